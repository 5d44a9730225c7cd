"""The laboratory of all experiments: jobs in, records out.

The folder of an experiment holds ``runs/`` and ``logs/``, and ``results.jsonl`` with a line per
finished run. What has a line is done; what has a checkpoint resumes from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from unremix.console.printing import say
from unremix.experiments.display import Display
from unremix.experiments.executors import On, make_executor
from unremix.experiments.folder import Folder
from unremix.experiments.plan import Job
from unremix.experiments.processes import Executor, Runner, Share
from unremix.experiments.results import RESULTS, Record, Results, record_of
from unremix.files.atomic_files import try_lock


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
    def executor(self) -> Executor:
        """Where the runs are executed; nothing is connected to before it is asked for."""
        return make_executor(self.on)

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
        runner = Runner(jobs, self.folder, self.share(jobs), known, self.executor)
        self.failures = runner.failures

        def note(job: Job, cpu_seconds: float | None = None) -> None:
            run = self.folder.find(job)
            if job not in self.results and run is not None:
                cost = None if cpu_seconds is None else round(cpu_seconds, 3)
                self.results.add(replace(record_of(job, run), cpu_seconds=cost), about)

        for job in runner.done:  # ended, but the experiment was killed before it was noted
            note(job)
        trim(runner)
        try:
            for event in Display(runner, self.console).events():
                if event.kind == "ended":
                    cost, left = event.work.process.cpu_seconds, 1 - event.work.before
                    note(event.job, None if cost is None else cost / max(1e-3, left))
                    ended(event.job)
                if event.kind != "begun":
                    trim(runner)
        except KeyboardInterrupt:
            if again is not None:
                done = f"{len(runner.done)} of {len(jobs)} runs done"
                self.say(f"stopped with {done}; resume with: {again}")
            raise
        finally:
            for job in runner.done:  # by a process of an earlier start
                note(job)
