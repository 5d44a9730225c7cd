"""How a block of anchors is evaluated and differentiated: three engines with equal results.

Every engine does two things: it derives δ of some views, and it gives the loss of a block of
anchors with its gradients.

- ``eager``: autograd over the readable functions, for every device, dtype, weighting and component;
- ``compiled``: the same functions under ``torch.compile``;
- ``native``: sweeps in C, on the CPU, for the weightings it serves.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import get_args

import torch
from torch import Tensor

from unremix.core.checks import check_choice
from unremix.core.engines import compiled, eager, native
from unremix.core.engines.eager import BlockEngine
from unremix.core.problem import EngineName, Options

__all__ = ["BlockEngine", "engine_report", "find_engine"]

VARIABLE = "UNREMIX_ENGINE"


def find_engine(options: Options, like: Tensor, extra: bool = False) -> BlockEngine:
    """The engine for a loss.

    ``options.engine`` decides, then the environment variable ``UNREMIX_ENGINE``. ``auto`` takes
    ``native`` on the CPU where it serves, ``compiled`` on CUDA where Triton is installed, else
    ``eager``. Inside a user's own ``torch.compile`` it is always ``eager``.

    Args:
        options: Of the loss.
        like: A tensor of the device and dtype at work.
        extra: Whether anchors have extra negatives.

    Raises:
        ValueError: If ``engine='native'`` was asked for and cannot serve.
    """
    if torch.compiler.is_compiling():
        return eager.ENGINE
    name = options.engine
    if name == "auto":
        name = check_choice(VARIABLE, os.environ.get(VARIABLE, "auto"), get_args(EngineName))
    if name in ("auto", "native"):
        refusal = native.refusal(options, like, extra)
        if refusal is None:
            return native.ENGINE
        if options.engine == "native":
            raise ValueError(
                "expected a loss that engine='native' serves, got one that it does not: "
                f"{refusal}; use engine='auto'"
            )
    if name == "compiled" or (name == "auto" and _compiles(like.device)):
        return compiled.ENGINE
    return eager.ENGINE


def engine_report() -> str:
    """Which engine ``auto`` takes for UnReMix on this machine, and why not a faster one."""
    asked = os.environ.get(VARIABLE, "auto")
    if asked not in get_args(EngineName):
        return f"none: {VARIABLE} is {asked!r}, not one of {', '.join(get_args(EngineName))}"
    if asked != "auto":
        return f"{asked}, as {VARIABLE} says"
    if torch.cuda.is_available():
        compiles = _compiles(torch.device("cuda"))
        return "compiled" if compiles else "eager (Triton is not installed)"
    reason = native.missing()
    return "native" if reason is None else f"eager ({reason})"


@lru_cache(maxsize=8)
def _compiles(device: torch.device) -> bool:
    """Whether ``torch.compile`` makes kernels for a device."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (7, 0)  # what Triton asks for
