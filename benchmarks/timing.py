"""Times taken in turns, ratios of them, and the memory a call takes."""

from __future__ import annotations

import math
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Seconds = dict[str, list[float]]


def race(contenders: Mapping[str, Callable[[], object]], rounds: int) -> Seconds:
    """Time each contender once per round, in turns, after one call of each that does not count.

    What slows the machine down for a while slows all of them down alike.
    """
    for run in contenders.values():
        run()
    seconds: Seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Ratio:
    """How much longer one contender takes than another: by medians, and by minima."""

    medians: float
    minima: float


def ratio(seconds: Sequence[float], others: Sequence[float]) -> Ratio:
    """The ratio of two contenders' times."""
    return Ratio(median(seconds) / median(others), min(seconds) / min(others))


def growth_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The power of the size with which time grows: least squares on the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def resident_bytes() -> int:
    """Memory this process holds now (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@dataclass(frozen=True)
class Call:
    """What one call took: time, and memory beyond what was held before."""

    seconds: float
    extra_bytes: int


def measure_call(run: Callable[[], object], interval: float = 0.005) -> Call:
    """Call once while a thread watches the resident memory.

    Args:
        run: The call.
        interval: Seconds between two looks.
    """
    before = resident_bytes()
    highest, done = before, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(interval):
            highest = max(highest, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return Call(seconds, max(highest, resident_bytes()) - before)
