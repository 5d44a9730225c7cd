"""The runs of an experiment as processes, here or on the workers of a cluster.

For systems with ``flock`` and process groups: Linux and macOS.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

import unremix
from unremix.domains.options import TrainConfig, config_to_yaml, flat_options
from unremix.experiments.folder import BEGUN, Folder
from unremix.experiments.plan import Job
from unremix.files.atomic_files import appending, try_lock, write_text
from unremix.training.stopping import handling

# What Python is called with: a file, since -m would look in the current folder first.
TRAIN = (str(Path(unremix.__file__).with_name("__main__.py")), "train")
POLL = 0.1  # seconds between looks at the processes
GRACE = 20.0  # seconds that a process has to end before it is killed
RETRIES = 3  # times that a run begins again after its worker was lost
STOPPED = (130, -signal.SIGTERM, -signal.SIGINT)  # exit codes of a training that was asked to stop
LATENESS = 90.0  # seconds until files of another machine are seen here; NFS looks again after 60

# Begins a process that gets SIGTERM when its parent dies (prctl's PR_SET_PDEATHSIG is 1), and that
# SLURM's notice of a timeout, which is for its parent, does not end.
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Share:
    """What of the machine each run gets."""

    jobs: int  # runs at a time
    threads: int  # CPU threads of each process
    gpus: tuple[tuple[str, ...], ...] = ()  # those of a run, for each that runs at a time

    def environment(self, place: int) -> dict[str, str]:
        """Environment variables of the run at a place from 0 to jobs - 1."""
        variables = {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[place % len(self.gpus)])
        return variables


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
        runs: How many there are in all, done or not, so that a resumed comparison gives its runs
            what they had before.
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


def _code_words(config: TrainConfig) -> list[str]:
    """The code that the user named, typed again: no file decides which code runs."""
    words = ["--imports", json.dumps(config.imports)] if config.imports else []
    options = flat_options(config.options()).items()
    return words + [
        w for name, value in options if value in config.code for w in (f"--{name}", value)
    ]


class LostError(Exception):
    """A worker was lost before it could say how its run ended; the message says why."""


class Running(Protocol):
    """The process of a run, wherever it is.

    ``cpu_seconds`` is what it took of the CPU, once it has ended; None if it had nothing to do.
    """

    cpu_seconds: float | None

    @property
    def waits(self) -> bool:
        """Whether another process still holds the run."""
        ...

    def poll(self) -> int | None:
        """The exit code, once it has ended.

        Raises:
            LostError: If the worker was lost, so that no exit code will come.
        """
        ...

    def stop(self, number: int) -> None:
        """Ask it to end (SIGTERM), or end it (SIGKILL)."""
        ...


class Executor(Protocol):
    """Where runs are executed: here, see :class:`Local`, or as :mod:`.executors` says."""

    def share(self, jobs: Sequence[Job], at_a_time: int | None) -> Share:
        """What each job of an experiment gets, whether it is done or not."""
        ...

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Running:
        """Begin a run, or continue it, once no other process holds it.

        Args:
            job: The run.
            folder: Where its files are.
            share: What it gets.
            place: Which of the share's places it takes.
        """
        ...


@dataclass(frozen=True)
class Task:
    """The process of a run as plain values, which can be sent anywhere."""

    name: str  # of the run
    path: Path  # the experiment's folder
    program: tuple[str, ...]  # what Python is called with
    options: str  # the run's options, as YAML
    code: tuple[str, ...]  # words that name the user's code
    environment: Mapping[str, str]  # environment variables besides those of the worker
    directory: str | None = None  # where the process works, if it is there; here by default

    @classmethod
    def of(
        cls, job: Job, folder: Folder, environment: Mapping[str, str], directory: str | None = None
    ) -> Task:
        """The process of a run in a folder."""
        config = replace(
            job.train,
            name=job.name,
            runs=str(folder.run(job).parent),
            resume=None,
            progress=True,
            threads=None,  # the environment says
            compile=job.train.compile is True,  # alike in all runs, on whatever machine
        )
        options, code = config_to_yaml(config), tuple(_code_words(job.train))
        return cls(job.name, folder.path, TRAIN, options, code, environment, directory)

    def begin(self, lock: int, *, bound: bool) -> subprocess.Popen[bytes]:
        """Begin the run on this machine, or continue it from its checkpoint.

        Args:
            lock: The descriptor that holds the run's lock; the process inherits it.
            bound: Whether it ends when this process does, where the system can.
        """
        folder, job = Folder(self.path), Job("", 0, self.name, TrainConfig())  # its name counts
        run, log = folder.run(job), folder.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, *self.program]
        if folder.has_checkpoint(job):
            words += ["--resume", str(run)]
        else:
            folder.discard(job)
            options = log.with_suffix(".yaml")
            write_text(options, self.options)
            words += ["--config", str(options)]
        words += self.code
        with appending(log) as output:
            output.write(f"{BEGUN}{shlex.join(words)}\n")
            output.flush()
            if bound and sys.platform == "linux":
                words = [sys.executable, "-ISc", BOUND, str(os.getpid()), *words]
            # On a cluster, SLURM's job is the worker's: the training must not take it for its own.
            own = {
                name: v for name, v in os.environ.items() if not (bound and name[:6] == "SLURM_")
            }
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**own, **self.environment, "PYTHONSAFEPATH": "1"},
                cwd=self.directory if os.path.isdir(self.directory or "") else None,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C reaches us alone; we end the runs ourselves
            )

    def __call__(self) -> tuple[int, float]:
        """Begin the run on a worker of a cluster, and wait for it.

        Returns:
            Exit code and CPU seconds.

        Raises:
            FileNotFoundError: If this machine does not see the experiment's folder.
            InterruptedError: If the training was asked to stop, such as by a node that shuts down.
        """
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"expected the folder {self.path} on {os.uname().nodename}, found none; put "
                "--output on storage that all nodes share"
            )
        process = Process(self, bound=True)
        try:
            while (code := process.poll()) is None:
                time.sleep(POLL)
        except BaseException:  # we are asked to stop
            process.stop(signal.SIGTERM)
            if process.wait(GRACE) is None:
                process.stop(signal.SIGKILL)
            raise
        if code in STOPPED:
            raise InterruptedError(f"{os.uname().nodename} stopped the training")
        return code, process.cpu_seconds or 0.0

    def checkpoint(self) -> Any:
        """What submitit puts back into the queue when SLURM takes the node away."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Process:
    """A process of this machine, leader of its own group; see :class:`Running`.

    It begins once no other process holds the run, such as that of an earlier start or of a worker
    that was lost.

    Args:
        task: What it does.
        bound: Whether it ends when this process does, where the system can.
    """

    def __init__(self, task: Task, *, bound: bool = False) -> None:
        self.task, self.bound = task, bound
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.cpu_seconds: float | None = None
        self.poll()

    @property
    def waits(self) -> bool:
        """Whether another process still holds the run."""
        return self.process is None and self.code is None

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.waits:
            folder, job = Folder(self.task.path), Job("", 0, self.task.name, TrainConfig())
            # Locked before anything is looked at or changed. The process inherits the lock.
            lock = try_lock(folder.lock(job))
            if lock is None:
                return None
            try:
                if folder.is_done(job):
                    self.code = 0
                else:
                    self.process = self.task.begin(lock, bound=self.bound)
            finally:
                os.close(lock)
        elif self.process is not None and self.code is None:
            ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if ended:
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.code

    def stop(self, number: int) -> None:
        """Send a signal to the process and those that it started."""
        if self.process is None:
            self.code = -number  # it never begins
        elif self.poll() is None:
            os.killpg(self.process.pid, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it has not ended after so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return code


class Local:
    """Runs as processes of this machine; see :class:`Executor`."""

    def share(self, jobs: Sequence[Job], at_a_time: int | None) -> Share:
        """What of this machine each job gets; all ask for the same devices and threads."""
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
            processes=jobs[0].processes,
        )

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Process:
        """Begin a process."""
        return Process(Task.of(job, folder, share.environment(place)))


@dataclass
class Work:
    """A run under way."""

    place: int  # which of the places it takes
    process: Running
    before: float  # share of the run that was done when we began
    began: float = field(default_factory=time.monotonic)  # when that was
    ended_well: float | None = None  # when it was first seen to have done so

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

    def ended(self) -> bool:
        """Whether it has ended, however it did."""
        try:
            return self.process.poll() is not None
        except LostError:
            return True


@dataclass(frozen=True)
class Event:
    """What happens to a run.

    It has begun or resumed; it has ended well; it has failed; or its worker was lost, and it waits
    for another one. ``why`` says how it failed or why the worker was lost.
    """

    kind: Literal["begun", "ended", "failed", "lost"]
    job: Job
    work: Work
    why: str = ""


class Runner:
    """Runs those of some jobs that are not done.

    Args:
        jobs: The jobs, in the order in which they begin.
        folder: Where their runs are.
        share: What of the machine each gets.
        known: Jobs that are known to be done, even if their folders are gone.
        executor: Where they run; here by default.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        share: Share,
        known: Collection[Job] = (),
        executor: Executor | None = None,
    ) -> None:
        self.jobs = list(jobs)
        self.folder = folder
        self.share = share
        self.done = {job for job in jobs if job in known or folder.is_done(job)}
        self.failures: dict[Job, str] = {}
        self.waiting = [job for job in jobs if job not in self.done]
        self.working: dict[Job, Work] = {}
        self.executor: Executor = Local() if executor is None else executor
        self.losses: Counter[Job] = Counter()  # workers that a run has lost

    def run(self) -> Iterator[Event | None]:
        """Run until nothing is left. Yields what happens, and None at every look without news.

        Raises:
            KeyboardInterrupt: If somebody asked to stop; no process of ours is left behind.
        """
        requests: list[
            int
        ] = []  # signals that ask to stop; they are counted and do not end this process
        with handling(lambda number, _: requests.append(number)):
            try:
                while (self.waiting or self.working) and not requests:
                    yield from self._collect()
                    yield from self._begin()
                    yield None
                    time.sleep(POLL)
            finally:
                self._end(requests)
        if requests:
            raise KeyboardInterrupt

    def _begin(self) -> Iterator[Event]:
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
            self.working[job] = Work(place, process, before)
            yield Event("begun", job, self.working[job])

    def _collect(self) -> Iterator[Event]:
        """See which runs have ended, and how."""
        for job, work in list(self.working.items()):
            try:
                code = work.process.poll()
            except LostError as error:
                del self.working[job]
                yield self._lost(job, work, str(error))
                continue
            if code is None:
                continue
            done = code == 0 and self.folder.is_done(job)
            if code == 0 and not done and work.may_be_late():
                continue
            del self.working[job]
            if done:
                self.done.add(job)
                yield Event("ended", job, work)
            else:
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                last = self.folder.tail(job)[-1:] if code > 0 else []
                self.failures[job] = last[0].removeprefix("unremix: ") if last else how
                yield Event("failed", job, work, how)

    def _lost(self, job: Job, work: Work, why: str) -> Event:
        """Let a run begin again, from its checkpoint, unless it has lost too many workers."""
        self.losses[job] += 1
        if self.losses[job] > RETRIES:
            self.failures[job] = why
            return Event("failed", job, work, f"{self.losses[job]} workers were lost")
        self.waiting.insert(0, job)
        return Event("lost", job, work, why)

    def _end(self, requests: list[int]) -> None:
        """End all processes that are still there; at once if asked a second time."""
        asked = max(1, len(requests))
        for number in (signal.SIGTERM, signal.SIGKILL):
            for work in self.working.values():
                if not work.ended():
                    work.process.stop(number)
            deadline = time.monotonic() + GRACE
            while not all(work.ended() for work in self.working.values()):
                if time.monotonic() > deadline or len(requests) > asked:
                    break
                time.sleep(POLL)
