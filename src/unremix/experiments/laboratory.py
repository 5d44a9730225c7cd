"""The laboratory of all experiments: jobs in, records out.

The folder of an experiment holds ``runs/`` and ``logs/``, and ``results.jsonl`` with a line per
finished run. What has a line is done; what has a checkpoint resumes from there.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console
from rich.live import Live

from unremix.console.printing import say
from unremix.console.quantities import duration, roughly
from unremix.evaluation.card import LABELS, label_of
from unremix.experiments import executors, tables
from unremix.experiments.executors import On, Process, Running, Share
from unremix.experiments.plan import Job
from unremix.experiments.results import RESULTS, Folder, Record, Results, record_of
from unremix.experiments.tables import Measure
from unremix.files.atomic_files import try_lock
from unremix.training.stopping import handling

REFRESH = 1.0  # seconds between drawings of the live table
RETRIES = 3  # times that a run begins again after its worker was lost
LATENESS = 90.0  # seconds until files of another machine are seen here; NFS looks again after 60

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


def latest(runs: Iterable[Sequence[Row]], measure: Measure) -> str:
    """The mean over runs of the last value of a measure; empty if no run has one."""
    series = ([row[measure.path] for row in rows if measure.path in row] for rows in runs)
    last = [values[-1] for values in series if values]
    return measure.number(fmean(last)) if last else ""


@dataclass
class Work:
    """A run under way, and what has happened to it.

    It has begun or resumed; it has ended well; it has failed; or its worker was lost, and it waits
    for another one. ``why`` says how it failed or why the worker was lost.
    """

    job: Job
    place: int  # which of the places it takes
    process: Running
    before: float  # share of the run that was done when we began
    began: float = field(default_factory=time.monotonic)  # when that was
    ended_well: float | None = None  # when it was first seen to have done so
    state: Literal["begun", "ended", "failed", "lost"] = "begun"
    why: str = ""

    @property
    def elapsed(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.began

    def may_be_late(self) -> bool:
        """Whether what it wrote before it ended well may not be seen here yet."""
        if isinstance(self.process, Process):
            return False
        if self.ended_well is None:
            self.ended_well = time.monotonic()
        return time.monotonic() - self.ended_well < LATENESS


@dataclass
class Runner:
    """Runs those of some jobs that are not done."""

    jobs: Sequence[Job]  # in the order in which they begin
    done: set[Job]  # those of them that are known to be done
    folder: Folder  # where their runs are
    share: Share  # what of the machine each gets
    executor: executors.Executor  # where they run
    failures: dict[Job, str] = field(default_factory=dict)
    working: dict[Job, Work] = field(default_factory=dict)
    losses: Counter[Job] = field(default_factory=Counter)  # workers that a run has lost

    def __post_init__(self) -> None:
        self.waiting = [job for job in self.jobs if job not in self.done]

    def run(self) -> Iterator[Work | None]:
        """Run until nothing is left. Yields runs to which something happens, and then None.

        Raises:
            KeyboardInterrupt: If somebody asked to stop; no process of ours is left behind.
        """
        requests: list[int] = []  # signals that ask to stop, which do not end this process
        with handling(lambda number, _: requests.append(number)):
            try:
                while (self.waiting or self.working) and not requests:
                    yield from self._collect()
                    yield from self._begin()
                    yield None
                    time.sleep(executors.POLL)
            finally:
                self._end(requests)
        if requests:
            raise KeyboardInterrupt

    def _begin(self) -> Iterator[Work]:
        """Fill the free places."""
        free = set(range(self.share.jobs)) - {work.place for work in self.working.values()}
        while self.waiting and free:
            job = self.waiting.pop(0)
            if self.folder.is_done(job):
                self.done.add(job)
                continue
            place = min(free)
            free.remove(place)
            before = self.folder.share_done(job)
            process = self.executor.start(job, self.folder, self.share, place)
            self.working[job] = Work(job, place, process, before)
            yield self.working[job]

    def _collect(self) -> Iterator[Work]:
        """See which runs have ended, and how."""
        for job, work in list(self.working.items()):
            code = work.process.poll()
            done = code == 0 and self.folder.is_done(job)
            if code is None or (code == 0 and not done and work.may_be_late()):
                continue
            del self.working[job]
            self.losses[job] += work.process.lost is not None
            if done:
                self.done.add(job)
                work.state = "ended"
            elif work.process.lost is None:
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                last = self.folder.tail(job)[-1:] if code > 0 else []
                self.failures[job] = last[0].removeprefix("unremix: ") if last else how
                work.state, work.why = "failed", how
            elif self.losses[job] > RETRIES:
                self.failures[job] = work.process.lost
                work.state, work.why = "failed", f"{self.losses[job]} workers were lost"
            else:  # it begins again, from its checkpoint
                self.waiting.insert(0, job)
                work.state, work.why = "lost", work.process.lost
            yield work

    def _end(self, requests: list[int]) -> None:
        """End all processes that are still there; at once if asked a second time."""
        asked, processes = max(1, len(requests)), [work.process for work in self.working.values()]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                if process.poll() is None:
                    process.stop(number)
            deadline = time.monotonic() + executors.GRACE
            while any(process.poll() is None for process in processes):
                if time.monotonic() > deadline or len(requests) > asked:
                    break
                time.sleep(executors.POLL)


class Display:
    """A live table on a terminal, a line per event elsewhere."""

    def __init__(self, runner: Runner, console: Console) -> None:
        self.runner = runner
        self.folder = runner.folder
        self.console = console
        self.live: Live | None = None
        self.drawn = 0.0
        self.began, self.before = time.monotonic(), self._progress()[0]
        if runner.done:
            say(self.console, f"{len(runner.done)} of {len(runner.jobs)} runs are done already")
        if runner.waiting and self.console.is_terminal and not self.console.quiet:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)

    def tell(self, work: Work) -> None:
        """Say what has happened; the live table shows what goes well."""
        job = work.job
        if work.state == "begun" and work.process.waits:
            said = "still under way from an earlier start"
        elif work.state == "lost":
            said = f"its worker was lost ({work.why}); it continues from its checkpoint"
        elif work.state == "failed":
            lines = "".join(f"\n    {line}" for line in self.folder.tail(job))
            said = f"failed ({work.why}); the end of {self.folder.log(job)}:{lines}"
        elif self.live is not None:
            return
        elif work.state == "begun":
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

    def draw(self) -> None:
        """Draw the live table, if it is due."""
        if self.live is None or time.monotonic() - self.drawn < REFRESH:
            return
        self.drawn = time.monotonic()
        runner = self.runner
        metrics = {job: self.folder.rows(job) for job in runner.jobs}
        column = (monitored(row for rows in metrics.values() for row in rows) or ["knn"])[0]
        loss = Measure("loss", "loss", percent=False, decimals=3)
        quality = Measure(column, label_of(column), percent=True, decimals=1)
        epochs = f"epoch of {max(job.train.epochs for job in runner.jobs)}"
        headings = ["recipe", "done", "running", "failed", epochs, loss.heading, quality.heading]
        lines = []
        for row in dict.fromkeys(job.row for job in runner.jobs):
            own = [job for job in runner.jobs if job.row == row]
            running = [job for job in own if job in runner.working]
            done = sum(job in runner.done for job in own)
            failed = sum(job in runner.failures for job in own)
            reached = (int(metrics[job][-1]["epoch"]) if metrics[job] else 0 for job in running)
            numbers = [latest([metrics[job] for job in own], one) for one in (loss, quality)]
            counts = (f"{done} of {len(own)}", str(len(running) or ""), str(failed or ""))
            lines.append([row, *counts, ", ".join(map(str, reached)), *numbers])
        table = tables.to_rich(headings, lines)
        table.caption, table.caption_justify = self._standing(), "left"
        self.live.update(table, refresh=True)


class Laboratory:
    """Runs the jobs of an experiment and keeps their records.

    Args:
        path: The experiment's folder.
        console: Where to show progress.
        at_a_time: Runs at a time; by default one per GPU, or one per core.
        on: Where they run: on this machine, on Ray, or on SLURM.
    """

    def __init__(
        self, path: Path, console: Console, at_a_time: int | None = None, on: On = "local"
    ) -> None:
        self.path = path
        self.console = console
        if at_a_time is not None and at_a_time < 1:
            raise ValueError(f"expected jobs to be at least 1, got {at_a_time}")
        self.at_a_time = at_a_time
        self.on = on
        self.folder = Folder(path)
        self.results = Results(path / RESULTS)
        self.failures: Mapping[Job, str] = {}  # of the last run

    def say(self, message: str) -> None:
        """Print a line."""
        say(self.console, message)

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Make the folder and keep other processes out of it.

        Raises:
            ValueError: If it is a file.
            BlockingIOError: If another process is at work there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(
                f"expected a folder, got the file {self.path}; choose another --output"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        lock = try_lock(self.path / ".locks" / "experiment")
        if lock is None:
            raise BlockingIOError(
                f"expected nobody else at work in {self.path}, found another {what}; wait for it "
                "or choose another --output"
            )
        try:
            yield
        finally:
            os.close(lock)

    @cached_property
    def executor(self) -> executors.Executor:
        """Where the runs are executed; nothing is connected to before it is asked for."""
        return executors.make_executor(self.on)

    def share(self, jobs: Sequence[Job]) -> Share:
        """What of the machine, or of the cluster, each of some jobs gets."""
        return self.executor.share(jobs, self.at_a_time)

    def record(self, job: Job) -> Record | None:
        """The record of a job, also of one that failed; None if it has not ended."""
        if job in self.results:
            return self.results.of([job])[0]
        failure = self.failures.get(job)
        return None if failure is None else record_of(job, self.folder.find(job), failure)

    def run(
        self,
        jobs: Sequence[Job],
        trim: Callable[[Runner], None] = lambda _: None,
        *,
        ended: Callable[[Job], None] = lambda _: None,
        again: str | None = None,
        with_folder: Sequence[Job] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Run what has no record yet, show the progress, and record each run as it ends.

        Why runs failed is in :attr:`failures`.

        Args:
            jobs: The runs, in the order in which they begin.
            trim: May remove jobs that wait; called before the first run and after each.
            ended: Called after each run that ended well.
            again: The command that resumes it, for the message.
            with_folder: Jobs whose run folder is needed; without it they run again, even with a
                record.
            about: What else to note of every run.

        Raises:
            KeyboardInterrupt: If it was asked to stop; the same call resumes it.
        """
        needed = {job.name for job in with_folder}
        known = {job for job in jobs if job in self.results and job.name not in needed}
        over = known | {job for job in jobs if self.folder.is_done(job)}
        runner = Runner(jobs, over, self.folder, self.share(jobs), self.executor)
        self.failures = runner.failures

        def note(job: Job, cpu_seconds: float | None = None) -> None:
            run = self.folder.find(job)
            if job not in self.results and run is not None:
                cost = None if cpu_seconds is None else round(cpu_seconds, 3)
                self.results.add(replace(record_of(job, run), cpu_seconds=cost), about)

        for job in runner.done:  # ended, but the experiment was killed before it was noted
            note(job)
        trim(runner)
        display = Display(runner, self.console)
        try:
            with display.live or nullcontext():
                for work in runner.run():
                    if work is None:
                        display.draw()
                        continue
                    display.tell(work)
                    if work.state == "ended":
                        cost, left = work.process.cpu_seconds, 1 - work.before
                        note(work.job, None if cost is None else cost / max(1e-3, left))
                        ended(work.job)
                    if work.state != "begun":
                        trim(runner)
        except KeyboardInterrupt:
            if again is not None:
                done = f"{len(runner.done)} of {len(jobs)} runs done"
                self.say(f"stopped with {done}; resume with: {again}")
            raise
        finally:
            for job in runner.done:  # by a process of an earlier start
                note(job)
