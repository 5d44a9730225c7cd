"""What ``--precision auto`` stands for: 16 bits where the device multiplies them fast.

On a GPU its generation decides. On a CPU a convolution, forward and backward, is timed in both
precisions, which takes about a second, once: the user's cache keeps the result by machine and
version of torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import nn

from unremix.files.atomic_files import read_text, write_text
from unremix.training.threads import limited_threads
from unremix.user_cache import user_cache

VARIABLE = "UNREMIX_PRECISION"  # says what auto is, in place of a measurement
Fast = Literal["32-true", "bf16-mixed"]
FULL: Fast = "32-true"
MIXED: Fast = "bf16-mixed"
FASTER = 1.25  # times the speed of 32 bits from which 16 are used: casting takes time, too
AMPERE = (8, 0)  # the first generation of CUDA devices that multiplies bfloat16 fast
IMAGES, CHANNELS, SIDE = 32, 64, 16  # of the convolution that is timed
REPEATS = 3
LARGEST_NOTE = 1 << 16  # bytes of the file in the cache


@dataclass(frozen=True)
class Speed:
    """Billions of multiplications and additions per second, of one thread."""

    float32: float
    bfloat16: float

    @property
    def ratio(self) -> float:
        """How many times as fast 16 bits are."""
        return self.bfloat16 / self.float32


def _seconds(half: bool) -> float:
    layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    images = torch.ones(IMAGES, CHANNELS, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    before = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        # As inside a network, where the layers before have left 16 bits.
        inputs = images.to(torch.bfloat16 if half else torch.float32).requires_grad_()
        F.relu(layer(inputs)).float().sum().backward()
    return time.perf_counter() - before


def measure_speed() -> Speed:
    """Time both precisions alternately; the shortest times count."""
    took: dict[bool, list[float]] = {False: [], True: []}
    with limited_threads(1), torch.random.fork_rng(devices=[]), torch.enable_grad():
        for _ in range(1 + REPEATS):
            for half, times in took.items():
                times.append(_seconds(half))
    work = 3 * 2 * IMAGES * SIDE**2 * CHANNELS**2 * 9 / 1e9  # forward, and two gradients
    return Speed(work / min(took[False]), work / min(took[True]))


def processor() -> str:
    """The name of the CPU."""
    with suppress(OSError):
        if found := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()):
            return found[1]
    return platform.processor()


def cpu_speed() -> Speed:
    """What this machine's CPU can do, from the cache if it was measured before."""
    machine = f"{platform.node()}, {processor()}, torch {torch.__version__}"
    known, file = {}, None
    with suppress(OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        file = user_cache() / "speed.json"  # there may be no home folder
        known = json.loads(read_text(file, LARGEST_NOTE))
        speed = Speed(**{name: float(known[machine][name]) for name in ("float32", "bfloat16")})
        if min(speed.float32, speed.bfloat16) > 0:
            return speed
    speed = measure_speed()
    if file is not None:
        notes = {**(known if isinstance(known, dict) else {}), machine: asdict(speed)}
        with suppress(OSError):  # measured again the next time
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text(file, json.dumps(notes, indent=1))
    return speed


def device_kind(accelerator: str) -> str:
    """The type of device that ``--accelerator`` means here."""
    if accelerator == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def fast_precision(device: str) -> Fast:
    """The precision that a type of device is fast in: ``bf16-mixed`` or ``32-true``.

    Raises:
        ValueError: If ``UNREMIX_PRECISION`` holds something else.
    """
    if said := os.environ.get(VARIABLE):
        if said not in get_args(Fast):
            raise ValueError(f"expected {VARIABLE} to be {FULL} or {MIXED}, got {said!r}; unset it")
        return cast(Fast, said)
    if device == "cuda":
        return MIXED if torch.cuda.get_device_capability() >= AMPERE else FULL
    return MIXED if device == "cpu" and cpu_speed().ratio >= FASTER else FULL
