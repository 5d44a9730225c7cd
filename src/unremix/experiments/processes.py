"""The runs of an experiment as processes.

For systems with ``flock`` and process groups: Linux and macOS.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from unremix.data.atomic_files import try_lock, write_text
from unremix.experiments.folder import BEGUN, Folder
from unremix.experiments.plan import Job
from unremix.options.config import TrainConfig, config_to_yaml

TRAIN = (sys.executable, "-m", "unremix", "train")
POLL = 0.1  # seconds between looks at the processes
GRACE = 20.0  # seconds that a process has to end before it is killed


@dataclass(frozen=True)
class Share:
    """What of the machine each run gets.

    Args:
        jobs: Runs at a time.
        threads: CPU threads of each process.
        gpus: The GPUs of a run, for each that runs at a time; empty without GPUs.
    """

    jobs: int
    threads: int
    gpus: tuple[tuple[str, ...], ...] = ()

    def environment(self, place: int) -> dict[str, str]:
        """Environment variables of the run at a place from 0 to jobs - 1."""
        found = {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[place % len(self.gpus)])
        return found


def share_out(
    runs: int,
    *,
    cores: int,
    gpus: Sequence[str] = (),
    jobs: int | None = None,
    threads: int | None = None,
    processes: int = 1,
) -> Share:
    """Share the machine out among the runs of an experiment.

    Args:
        runs: How many there are in all, done or not: a comparison that goes on where it was gives
            its runs what they had before.
        cores: CPU cores.
        gpus: Names of the GPUs that may be used.
        jobs: Runs at a time, if they are given.
        threads: CPU threads of each process, if they are given.
        processes: Processes of a run, each with a GPU of its own.

    Example:
        >>> share_out(3, cores=8)
        Share(jobs=3, threads=2, gpus=())
        >>> share_out(6, cores=8, gpus=["0", "1"])
        Share(jobs=2, threads=4, gpus=(('0',), ('1',)))
    """
    places = len(gpus) // processes if gpus else cores // (processes * (threads or 1))
    jobs = min(runs, jobs or max(1, places))
    groups = tuple(
        tuple(gpus[first : first + processes])
        for first in range(0, len(gpus) - processes + 1, processes)
    )
    return Share(jobs, threads or max(1, cores // (jobs * processes)), groups)


def share_for(jobs: Sequence[Job], at_a_time: int | None) -> Share:
    """Share this machine out among some jobs, which ask for the same devices and threads.

    Args:
        jobs: All jobs of the experiment, done or not.
        at_a_time: Runs at a time, if they are given.
    """
    train = jobs[0].train
    gpus: list[str] = []
    if train.accelerator != "cpu" and torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = map(str, range(torch.cuda.device_count()))
        gpus = visible.split(",") if visible else list(numbers)
    return share_out(
        len(jobs),
        cores=cpu_count(),
        gpus=gpus,
        jobs=at_a_time,
        threads=train.threads,
        processes=train.devices if isinstance(train.devices, int) else 1,
    )


def _code_words(config: TrainConfig) -> list[str]:
    """The code that the user named, typed again: no file decides which code runs."""
    words = ["--imports", json.dumps(config.imports)] if config.imports else []
    return words + (["--backbone", config.backbone] if config.backbone in config.code else [])


class Stop:
    """Counts how often somebody asked to stop: Ctrl-C, SIGTERM, a closed terminal."""

    def __init__(self) -> None:
        self.asked = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count signals instead of dying of them; those that are ignored stay so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier[number] = signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked += 1


@dataclass
class Work:
    """A run under way.

    Args:
        place: Which of the places it takes.
        process: Its process; None if an earlier start of the experiment began it.
        before: Share of the run that was done when we began.
        began: When that was.
        cpu_seconds: What the process took of the CPU, once it has ended.
    """

    place: int
    process: subprocess.Popen[bytes] | None
    before: float
    began: float = field(default_factory=time.monotonic)
    cpu_seconds: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.began

    def poll(self) -> int | None:
        """The exit code of our process, once it has ended."""
        process = self.process
        if process is None or process.returncode is not None:
            return None if process is None else process.returncode
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            self.cpu_seconds = usage.ru_utime + usage.ru_stime
            process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode


@dataclass(frozen=True)
class Begun:
    """A run begins, or goes on."""

    job: Job
    work: Work


@dataclass(frozen=True)
class Ended:
    """A run has ended well."""

    job: Job
    work: Work


@dataclass(frozen=True)
class Failed:
    """A run has failed; ``how`` is its exit code or signal."""

    job: Job
    work: Work
    how: str


Event = Begun | Ended | Failed


class Runner:
    """Runs those of some jobs that are not done.

    Args:
        jobs: The jobs, in the order in which they begin.
        folder: Where their runs are.
        share: What of the machine each gets.
        known: Jobs that are known to be done, also where their folders are gone.
    """

    def __init__(
        self, jobs: Sequence[Job], folder: Folder, share: Share, known: Collection[Job] = ()
    ) -> None:
        self.jobs = list(jobs)
        self.folder = folder
        self.share = share
        self.done = {job for job in jobs if job in known or folder.is_done(job)}
        self.failures: dict[Job, str] = {}
        self.waiting = [job for job in jobs if job not in self.done]
        self.working: dict[Job, Work] = {}

    def run(self) -> Iterator[Event | None]:
        """Run until nothing is left, and tell what happens; None where nothing has.

        Raises:
            KeyboardInterrupt: If somebody asked to stop; no process of ours is left behind.
        """
        stop = Stop()
        with stop.listening():
            try:
                while (self.waiting or self.working) and not stop.asked:
                    yield from self._collect()
                    yield from self._begin()
                    yield None
                    time.sleep(POLL)
            finally:
                self._end(stop)
        if stop.asked:
            raise KeyboardInterrupt

    def _begin(self) -> Iterator[Event]:
        """Fill the free places."""
        free = set(range(self.share.jobs)) - {work.place for work in self.working.values()}
        while self.waiting and free:
            job = self.waiting.pop(0)
            # Locked before anything is looked at or changed, for a process of an earlier start
            # may still be writing the run. The run's own process inherits the lock.
            lock = try_lock(self.folder.lock(job))
            try:
                if self.folder.is_done(job):
                    self.done.add(job)
                    continue
                place = min(free)
                free.remove(place)
                before = self.folder.share_done(job)
                process = None if lock is None else self._start(job, place, lock)
            finally:
                if lock is not None:
                    os.close(lock)
            self.working[job] = Work(place, process, before)
            yield Begun(job, self.working[job])

    def _start(self, job: Job, place: int, lock: int) -> subprocess.Popen[bytes]:
        run, log = self.folder.run(job), self.folder.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.folder.has_checkpoint(job):
            words = [*TRAIN, "--resume", str(run)]
        else:
            self.folder.discard(job)
            config = replace(
                job.train,
                name=job.name,
                runs=str(run.parent),
                resume=None,
                progress=True,
                threads=None,  # the environment says
            )
            options, text = log.with_suffix(".yaml"), config_to_yaml(config)
            write_text(options, text)
            words = [*TRAIN, "--config", str(options)]
        words += _code_words(job.train)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as output:
            output.write(f"{BEGUN}{shlex.join(words)}\n")
            output.flush()
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.share.environment(place)},
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C reaches us alone; we end the runs ourselves
            )

    def _collect(self) -> Iterator[Event]:
        """See which runs have ended, and how."""
        for job, work in list(self.working.items()):
            if work.process is None:
                lock = try_lock(self.folder.lock(job))
                if lock is not None:
                    os.close(lock)
                    del self.working[job]
                    self.waiting.insert(0, job)  # done by now, or to be gone on with
                continue
            code = work.poll()
            if code is None:
                continue
            del self.working[job]
            if code == 0 and self.folder.is_done(job):
                self.done.add(job)
                yield Ended(job, work)
            else:
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                last = self.folder.tail(job)[-1:] if code > 0 else []
                self.failures[job] = last[0].removeprefix("unremix: ") if last else how
                yield Failed(job, work, how)

    def _end(self, stop: Stop) -> None:
        """End all processes that are still there; at once if asked a second time."""
        ours = [work for work in self.working.values() if work.process is not None]
        asked = max(1, stop.asked)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for work in ours:
                if work.poll() is None and work.process is not None:
                    os.killpg(work.process.pid, number)
            deadline = time.monotonic() + GRACE
            while any(work.poll() is None for work in ours):
                if time.monotonic() > deadline or stop.asked > asked:
                    break
                time.sleep(POLL)
