"""What the bits of a run depend on besides its options, kept in its checkpoints."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

import unremix
from unremix.console.quantities import counted
from unremix.core.engines import engine_report


def versions() -> dict[str, str]:
    """What computes: the engine of the losses, and the versions."""
    return {
        "engine": engine_report(),
        "unremix": unremix.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def device_in_words(device: torch.device, *, processes: int, threads: int) -> str:
    """What a run is trained on.

    Args:
        device: The device of this process.
        processes: How many processes train, each with a device of this kind.
        threads: CPU threads of each.

    Example:
        >>> device_in_words(torch.device("cpu"), processes=4, threads=2)
        '4 × CPU, 2 threads each'
    """
    if device.type == "cpu":
        each = " each" * (processes > 1)
        name = f"CPU, {counted(threads, 'thread')}{each}"
    else:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    return f"{processes} × {name}" if processes > 1 else name


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs from a record, the data aside; empty if nothing does.

    Example:
        >>> differences({"threads": 2, "torch": "2.4"}, {"threads": 1, "torch": "2.4"})
        'threads 1 instead of 2'
    """
    return ", ".join(
        f"{name} {value} instead of {earlier[name]}"
        for name, value in now.items()
        if name != "data" and earlier.get(name, value) != value
    )
