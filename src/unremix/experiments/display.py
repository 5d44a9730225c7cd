"""What a person sees while runs are under way."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from unremix.console.printing import printable
from unremix.console.quantities import duration, roughly
from unremix.evaluation.card import LABELS, label_of
from unremix.experiments import tables
from unremix.experiments.plan import Job
from unremix.experiments.processes import Event, Runner
from unremix.experiments.results import record_of
from unremix.experiments.tables import Measure

REFRESH = 1.0  # seconds between drawings of the live table

Row = Mapping[str, float]


def makespan(running: Sequence[float], waiting: Sequence[float], places: int) -> float:
    """Seconds until all is done, if each run begins as soon as there is a place for it.

    Args:
        running: Seconds that each run under way still needs.
        waiting: Seconds that each other needs, in the order they begin.
        places: Runs at a time.

    Example:
        >>> makespan([1.0, 5.0], [3.0, 2.0], places=2)
        6.0
    """
    ends = list(running) + [0.0] * (places - len(running))
    heapq.heapify(ends)
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def whole_run(marks: Sequence[tuple[float, float]], before: float) -> float | None:
    """Seconds that a whole run takes: what it took to start, and then so much a share.

    Args:
        marks: Seconds since the run began or went on, and the share of it that was done by then.
        before: The share that was done when it began or went on.

    Returns:
        The seconds; None before there are two marks.

    Example:
        >>> whole_run([(30.0, 0.1), (40.0, 0.2)], before=0.0)
        120.0
    """
    if len(marks) < 2:
        return None
    (first, early), (last, late) = marks[0], marks[-1]
    pace = (last - first) / (late - early)
    return max(0.0, first - pace * (early - before)) + pace


def monitored(rows: Iterable[Row], measures: Iterable[str] = ()) -> list[str]:
    """The columns of metrics.csv that tell quality: measures of a card, or known by name.

    Example:
        >>> monitored([{"epoch": 1, "loss": 2.0, "spread": 0.5, "knn": 0.9}])
        ['knn']
    """
    known = {*measures, *LABELS}
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name in known]


def latest(runs: Iterable[Sequence[Row]], column: str) -> float | None:
    """The mean over runs of the last value of a column; None if no run has one."""
    values = [[row[column] for row in rows if column in row] for rows in runs]
    last = [found[-1] for found in values if found]
    return sum(last) / len(last) if last else None


class Display:
    """A live table on a terminal, a line per event elsewhere."""

    def __init__(self, runner: Runner, console: Console) -> None:
        self.runner = runner
        self.folder = runner.folder
        self.console = console
        self.live: Live | None = None
        self.drawn = 0.0
        self.seconds: dict[str, list[float]] = {}  # that whole runs took, by row
        self.marks: dict[Job, list[tuple[float, float]]] = {}  # when which share was first seen

    def events(self) -> Iterator[Event]:
        """Run what is left, show how it goes, and hand each event on."""
        runner = self.runner
        live: AbstractContextManager[Any] = nullcontext()
        if runner.done:
            self.say(f"{len(runner.done)} of {len(runner.jobs)} runs are done already")
        if runner.waiting and self.console.is_terminal and not self.console.quiet:
            live = self.live = Live(console=self.console, auto_refresh=False, transient=True)
        with live:
            for event in runner.run():
                if event is None:
                    self._draw()
                else:
                    self._tell(event)
                    yield event

    def say(self, message: str) -> None:
        """Print a line; on a terminal above the table."""
        self.console.print(printable(message), highlight=False, markup=False, soft_wrap=True)

    def _tell(self, event: Event) -> None:
        """Say what has happened; the live table shows what goes well."""
        job, work, why = event.job, event.work, event.why
        if event.kind == "begun" and work.process is None:
            self.say(f"{job}: still under way from an earlier start")
        elif event.kind == "begun" and self.live is None:
            self.say(f"{job}: " + (f"resumes at {work.before:.0%}" if work.before else "begins"))
        elif event.kind == "lost":
            self.say(f"{job}: its worker was lost ({why}); it continues from its checkpoint")
        elif event.kind == "failed":
            lines = "".join(f"\n    {line}" for line in self.folder.tail(job))
            self.say(f"{job}: failed ({why}); the end of {self.folder.log(job)}:{lines}")
        elif event.kind == "ended":
            if work.before < 1:
                whole = work.elapsed / (1 - work.before)
                self.seconds.setdefault(job.row, []).append(whole)
            if self.live is None:
                record = record_of(job, self.folder.find(job))
                result = [
                    f"{measure.label} {measure.shown(value)}"
                    for measure in tables.measures_among([record])[:1]
                    if (value := record.measure(measure.path)) is not None
                ]
                said = [f"{job}: done", *result, duration(work.elapsed), self._standing()]
                self.say(" · ".join(said))

    def _look(self) -> None:
        """Note how far the runs have come, and when."""
        for job, work in self.runner.working.items():
            marks, share = self.marks.setdefault(job, []), self.folder.share_done(job)
            if share > (marks[-1][1] if marks else work.before):
                marks.append((work.elapsed, share))

    def _left(self) -> dict[Job, float]:
        """Seconds that each run still needs; empty while nothing is known."""
        runner = self.runner
        known = {row: list(seconds) for row, seconds in self.seconds.items()}
        for job, work in runner.working.items():
            if job.row not in self.seconds:
                minutes = job.train.max_minutes
                marks = self.marks.get(job, [])
                whole = whole_run(marks, work.before) if minutes is None else 60 * minutes
                known.setdefault(job.row, []).extend([] if whole is None else [whole])
        means = {row: fmean(seconds) for row, seconds in known.items() if seconds}
        if not means:
            return {}
        typical = fmean(means.values())
        left = {
            job: means.get(job.row, typical) * (1 - self.folder.share_done(job))
            for job in runner.waiting
        }
        for job, work in runner.working.items():
            whole = means.get(job.row, typical)
            left[job] = max(0.0, whole * (1 - work.before) - work.elapsed)
        return left

    def _standing(self) -> str:
        runner, left = self.runner, self._left()
        said = [f"{len(runner.done)} of {len(runner.jobs)} runs done"]
        if runner.failures:
            said.append(f"{len(runner.failures)} failed")
        if left:
            running = [left[job] for job in runner.working]
            waiting = [left[job] for job in runner.waiting]
            said.append(f"about {roughly(makespan(running, waiting, runner.share.jobs))} left")
        return " · ".join(said)

    def _draw(self) -> None:
        """Draw the live table, if it is due."""
        if time.monotonic() - self.drawn < REFRESH:
            return
        self.drawn = time.monotonic()
        self._look()
        if self.live is None:
            return
        runner, left = self.runner, self._left()
        metrics = {job: self.folder.rows(job) for job in runner.jobs}
        column = (monitored(row for rows in metrics.values() for row in rows) or ["knn"])[0]
        measure = Measure(column, label_of(column), percent=True, decimals=1)
        table = Table(caption=self._standing(), caption_justify="left")
        table.add_column("recipe")
        epochs = f"epoch of {max(job.train.epochs for job in runner.jobs)}"
        for heading in ("done", "running", "failed", epochs, "loss", measure.heading, "left"):
            table.add_column(heading, justify="right")
        for row in dict.fromkeys(job.row for job in runner.jobs):
            own = [job for job in runner.jobs if job.row == row]
            running = [job for job in own if job in runner.working]
            done = sum(job in runner.done for job in own)
            failed = sum(job in runner.failures for job in own)
            reached = (int(metrics[job][-1]["epoch"]) if metrics[job] else 0 for job in running)
            loss = latest([metrics[job] for job in own], "loss")
            value = latest([metrics[job] for job in own], column)
            seconds = sum(left.get(job, 0.0) for job in own) if left else None
            table.add_row(
                row,
                f"{done} of {len(own)}",
                str(len(running) or ""),
                f"[red]{failed}[/]" if failed else "",
                ", ".join(map(str, reached)),
                "" if loss is None else f"{loss:.3f}",
                "" if value is None else measure.number(value),
                "" if done + failed == len(own) else duration(seconds),
            )
        self.live.update(table, refresh=True)
