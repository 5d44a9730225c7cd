"""How many CPU threads a run takes: those that are free when it starts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

VARIABLE = "OMP_NUM_THREADS"
SAMPLE = 0.25  # seconds over which the load is measured


def _idle_ticks() -> dict[int, tuple[int, int]]:
    """For each core, clock ticks spent idle and in all; Linux only."""
    found = {}
    for core, ticks in re.findall(r"^cpu(\d+) (.*)$", Path("/proc/stat").read_text(), re.M):
        counts = [int(count) for count in ticks.split()[:8]]
        found[int(core)] = counts[3] + counts[4], sum(counts)
    return found


def free_cores() -> int:
    """Cores of this process that are idle, at least 1."""
    cores = os.cpu_count() or 1
    try:
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(cores))
        before = _idle_ticks()
        time.sleep(SAMPLE)
        after = _idle_ticks()
        idle = sum(
            (after[core][0] - before[core][0]) / max(1, after[core][1] - before[core][1])
            for core in own & before.keys() & after.keys()
        )
    except OSError:
        idle = cores - os.getloadavg()[0]
    return max(1, round(idle))


def choose_threads(processes: int = 1) -> int | None:
    """CPU threads for each of the processes of a run; None if OMP_NUM_THREADS already says so."""
    if VARIABLE in os.environ:
        return None
    return max(1, min(torch.get_num_threads(), free_cores()) // processes)


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Limit the threads, also of child processes and libraries loaded later, if at all."""
    if threads is None:
        yield
        return
    before, variable = torch.get_num_threads(), os.environ.get(VARIABLE)
    try:
        torch.set_num_threads(threads)
        os.environ[VARIABLE] = str(threads)
        yield
    finally:
        torch.set_num_threads(before)
        del os.environ[VARIABLE]
        if variable is not None:
            os.environ[VARIABLE] = variable
