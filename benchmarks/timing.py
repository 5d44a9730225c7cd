"""Times taken in turns, ratios of them, and the memory a call takes."""

from __future__ import annotations

import ctypes
import math
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from unremix.training.freed_memory import keep_freed_memory

keep_freed_memory()  # as `unremix train` does; UNREMIX_KEEP_MEMORY=0 measures without

Seconds = dict[str, list[float]]
Clock = Literal["wall", "cpu"]
TURN = 0.1  # seconds that a turn takes at least


@dataclass(frozen=True)
class Race:
    """Seconds of each contender, round by round, and how many of them others disturbed."""

    seconds: Seconds
    disturbed: int


def pool(races: Sequence[Race]) -> Race:
    """Races of the same contenders, taken together."""
    seconds = {
        name: [second for each in races for second in each.seconds[name]]
        for name in races[0].seconds
    }
    return Race(seconds, sum(each.disturbed for each in races))


def race(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Clock = "wall",
    patience: float = 60.0,
) -> Race:
    """Time each contender once per round, in turns, after one call of each that does not count.

    A turn of a contender that is done in less than a tenth of a second is as many calls as fill
    one, after one that does not count, as in a loop of its own. Its time is the median of these
    calls, as the time of a contender is the median of its turns: a short call and a long one are
    then compared by the same measure, and a call that the machine held up counts as one call.

    Each round has an order of its own, since a call may profit or suffer from the one before it:
    from what that left in cache, and from the memory it gave back. What slows the machine down for
    a while slows all of them down, though not alike: two threads that wait for each other suffer
    more than one. So a call during which other processes were busy is timed again a second later.

    Args:
        contenders: What to call, by name.
        rounds: Turns of each.
        clock: What counts as time.
        patience: Seconds to spend on that in all; then disturbed calls are accepted, and counted.
    """
    for run in contenders.values():
        run()
    seconds: Seconds = {name: [] for name in contenders}
    disturbed = 0
    order, shuffle = list(contenders.items()), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name, run in order:
            elapsed, quiet = time_turn(run, clock)
            while not quiet and patience > 0:
                patience -= 1 + max(elapsed, TURN)
                time.sleep(1)
                elapsed, quiet = time_turn(run, clock)
            seconds[name].append(elapsed)
            disturbed += not quiet
    return Race(seconds, disturbed)


def time_turn(run: Callable[[], object], clock: Clock = "wall") -> tuple[float, bool]:
    """Seconds of a call, the median of as many as fill a turn; whether nothing disturbed them."""
    elapsed, quiet = time_call(run, clock)
    if elapsed >= TURN:
        return elapsed, quiet
    now = time.process_time if clock == "cpu" else time.perf_counter
    calls = []

    def repeat() -> None:
        for _ in range(math.ceil(TURN / max(elapsed, 1e-6))):
            start = now()
            run()
            calls.append(now() - start)

    _, quiet = time_call(repeat, clock)
    return median(calls), quiet


def time_call(run: Callable[[], object], clock: Clock = "wall") -> tuple[float, bool]:
    """Seconds of a call, and whether nothing disturbed it.

    Args:
        run: The call.
        clock: ``wall``: the time that passed, disturbed where other processes had more than 5 % of
            the machine; ``cpu``: this process's own time, undisturbed by definition, which says
            something only on one thread, since threads that wait for each other count as busy.
    """
    if clock == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start, True
    others, start = seconds_of_others(), time.perf_counter()
    run()
    elapsed = time.perf_counter() - start
    clock_error = 0.03  # the system counts in hundredths of a second, on each core
    allowed = 0.05 * elapsed * (os.cpu_count() or 1) + clock_error
    return elapsed, seconds_of_others() - others <= allowed


def seconds_of_others() -> float:
    """CPU time of all processes but this one, stolen time included (Linux; elsewhere 0)."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return 0.0
    fields = statistics.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _wait, interrupts, soft_interrupts, stolen = map(int, fields)
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


@dataclass(frozen=True)
class Ratio:
    """How much longer one contender takes than another: by medians, and by minima."""

    medians: float
    minima: float


def ratio(seconds: Sequence[float], others: Sequence[float]) -> Ratio:
    """The ratio of two contenders' times."""
    return Ratio(median(seconds) / median(others), min(seconds) / min(others))


def resident_bytes() -> int:
    """Memory this process holds now (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@dataclass(frozen=True)
class Call:
    """What one call took: time, memory beyond what was held before; whether others kept quiet."""

    seconds: float
    extra_bytes: int
    quiet: bool


def measure_call(run: Callable[[], object], clock: Clock = "wall", interval: float = 0.005) -> Call:
    """Call once while a thread watches the resident memory.

    Memory that earlier calls gave back is returned to the system first, so that it counts.

    Args:
        run: The call.
        clock: What counts as time.
        interval: Seconds between two looks.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    before = resident_bytes()
    highest, done = before, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(interval):
            highest = max(highest, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds, quiet = time_call(run, clock)
    done.set()
    watcher.join()
    return Call(seconds, max(highest, resident_bytes()) - before, quiet)
