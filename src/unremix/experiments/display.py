"""What a person sees while runs are under way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean

from rich.console import Console
from rich.live import Live

from unremix.console.printing import say
from unremix.console.quantities import duration, roughly
from unremix.evaluation.card import LABELS, label_of
from unremix.experiments import tables
from unremix.experiments.plan import Job
from unremix.experiments.processes import Event, Runner
from unremix.experiments.results import record_of
from unremix.experiments.tables import Measure

REFRESH = 1.0  # seconds between drawings of the live table

Row = Mapping[str, float]


def time_left(elapsed: float, before: float, now: float, total: float) -> float | None:
    """Seconds until all runs are done, at the pace so far.

    Args:
        elapsed: Seconds since the beginning.
        before: Runs that were done then; a part of a run is a part of 1.
        now: Runs that are done now.
        total: Runs in all.

    Returns:
        The seconds; None while nothing was done.

    Example:
        >>> time_left(60.0, before=1.0, now=1.5, total=3.0)
        180.0
    """
    return elapsed * (total - now) / (now - before) if now > before else None


def monitored(rows: Iterable[Row], measures: Iterable[str] = ()) -> list[str]:
    """The columns of metrics.csv that measure quality: those of a card, or known by name.

    Example:
        >>> monitored([{"epoch": 1, "loss": 2.0, "spread": 0.5, "knn": 0.9}])
        ['knn']
    """
    known = {*measures, *LABELS}
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name in known]


def latest(runs: Iterable[Sequence[Row]], column: str) -> float | None:
    """The mean over runs of the last value of a column; None if no run has one."""
    last = [value for rows in runs for value in [row[column] for row in rows if column in row][-1:]]
    return fmean(last) if last else None


class Display:
    """A live table on a terminal, a line per event elsewhere."""

    def __init__(self, runner: Runner, console: Console) -> None:
        self.runner = runner
        self.folder = runner.folder
        self.console = console
        self.live: Live | None = None
        self.drawn = 0.0
        self.began, self.before = time.monotonic(), self._progress()[0]

    def events(self) -> Iterator[Event]:
        """Run what is left, show the progress, and pass each event on."""
        runner = self.runner
        if runner.done:
            say(self.console, f"{len(runner.done)} of {len(runner.jobs)} runs are done already")
        if runner.waiting and self.console.is_terminal and not self.console.quiet:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
        with self.live or nullcontext():
            for event in runner.run():
                if event is None:
                    self._draw()
                else:
                    self._tell(event)
                    yield event

    def _tell(self, event: Event) -> None:
        """Say what has happened; the live table shows what goes well."""
        job, work, why = event.job, event.work, event.why
        if event.kind == "begun" and work.process.waits:
            said = "still under way from an earlier start"
        elif event.kind == "lost":
            said = f"its worker was lost ({why}); it continues from its checkpoint"
        elif event.kind == "failed":
            lines = "".join(f"\n    {line}" for line in self.folder.tail(job))
            said = f"failed ({why}); the end of {self.folder.log(job)}:{lines}"
        elif self.live is not None:
            return
        elif event.kind == "begun":
            said = f"resumes at {work.before:.0%}" if work.before else "begins"
        else:
            record = record_of(job, self.folder.find(job))
            result = [
                f"{measure.label} {measure.number(value)}{' %' * measure.percent}"
                for measure in tables.measures_among([record])[:1]
                if (value := record.measure(measure.path)) is not None
            ]
            said = " · ".join(["done", *result, duration(work.elapsed), self._standing()])
        say(self.console, f"{job}: {said}")

    def _progress(self) -> tuple[float, int]:
        """How many runs are over, with parts of those under way; and how many there are."""
        runner = self.runner
        over = [job for job in runner.jobs if job in runner.done or job in runner.failures]
        begun = [job for job in (*runner.waiting, *runner.working) if job not in over]
        return len(over) + sum(self._share(job) for job in begun), len(over) + len(begun)

    def _share(self, job: Job) -> float:
        """The part of a run that is done: of its epochs, or of its time where that ends it."""
        work, minutes = self.runner.working.get(job), job.train.max_minutes
        done = self.folder.share_done(job)
        return done if work is None or minutes is None else min(1.0, work.elapsed / (60 * minutes))

    def _standing(self) -> str:
        runner, (now, total) = self.runner, self._progress()
        said = [f"{len(runner.done)} of {len(runner.jobs)} runs done"]
        if runner.failures:
            said.append(f"{len(runner.failures)} failed")
        left = time_left(time.monotonic() - self.began, self.before, now, total)
        if left:
            said.append(f"about {roughly(left)} left")
        return " · ".join(said)

    def _draw(self) -> None:
        """Draw the live table, if it is due."""
        if self.live is None or time.monotonic() - self.drawn < REFRESH:
            return
        self.drawn = time.monotonic()
        runner = self.runner
        metrics = {job: self.folder.rows(job) for job in runner.jobs}
        column = (monitored(row for rows in metrics.values() for row in rows) or ["knn"])[0]
        measure = Measure(column, label_of(column), percent=True, decimals=1)
        epochs = f"epoch of {max(job.train.epochs for job in runner.jobs)}"
        headings = ["recipe", "done", "running", "failed", epochs, "loss", measure.heading]
        lines = []
        for row in dict.fromkeys(job.row for job in runner.jobs):
            own = [job for job in runner.jobs if job.row == row]
            running = [job for job in own if job in runner.working]
            done = sum(job in runner.done for job in own)
            failed = sum(job in runner.failures for job in own)
            reached = (int(metrics[job][-1]["epoch"]) if metrics[job] else 0 for job in running)
            loss = latest([metrics[job] for job in own], "loss")
            value = latest([metrics[job] for job in own], column)
            numbers = (
                "" if loss is None else f"{loss:.3f}",
                "" if value is None else measure.number(value),
            )
            counts = (f"{done} of {len(own)}", str(len(running) or ""), str(failed or ""))
            lines.append([row, *counts, ", ".join(map(str, reached)), *numbers])
        table = tables.to_rich(headings, lines)
        table.caption, table.caption_justify = self._standing(), "left"
        self.live.update(table, refresh=True)
