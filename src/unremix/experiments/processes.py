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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import unremix
from unremix.domains.options import TrainConfig, config_to_yaml, flat_options
from unremix.experiments.plan import Job
from unremix.experiments.results import BEGUN, Folder
from unremix.files.atomic_files import appending, try_lock, write_text

# What Python is called with: a file, since -m would look in the current folder first.
TRAIN = (str(Path(unremix.__file__).with_name("__main__.py")), "train")
POLL = 0.1  # seconds between looks at the processes
GRACE = 20.0  # seconds that a process has to end before it is killed
STOPPED = (130, -signal.SIGTERM, -signal.SIGINT)  # exit codes of a training that was asked to stop

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
    """A process of this machine, leader of its own group.

    It begins once no other process holds the run, such as that of an earlier start or of a worker
    that was lost. ``cpu_seconds`` is what it took of the CPU, once it has ended; None if it had
    nothing to do.

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
