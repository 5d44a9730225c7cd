"""How far a command is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as rich
from rich.console import Console

from unremix.console.quantities import roughly

SILENCE = 30.0  # seconds without a line in a log file, at most


def times() -> tuple[str | rich.ProgressColumn, ...]:
    """Columns of a bar: how long it has taken, and how long it still takes."""
    return rich.TimeElapsedColumn(), "elapsed", rich.TimeRemainingColumn(), "left"


@contextmanager
def showing(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, a line every 30 seconds elsewhere, on standard error.

    Args:
        what: What is done.

    Yields:
        A function that is called with the share of the work that is done.
    """
    console = Console(stderr=True)
    bars = rich.Progress(
        what,
        rich.BarColumn(bar_width=None),
        rich.TaskProgressColumn(),
        *times(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    started = said = time.perf_counter()

    def advance(done: float) -> None:
        nonlocal said
        bars.update(task, completed=done)
        now = time.perf_counter()
        if not console.is_terminal and now - said >= SILENCE and done > 0:
            left = (now - started) * (1 - done) / done
            console.print(f"{what} {done:.0%}, about {roughly(left)} left", highlight=False)
            said = now

    with bars:
        task = bars.add_task(what, total=1.0)
        yield advance
