"""Where the runs of an experiment are executed: as processes here, tasks of Ray, jobs of SLURM.

An executor shares what there is out among jobs, and starts the process of a run. For systems with
``flock`` and process groups: Linux and macOS.

On a cluster, the experiment's folder lies on storage that all nodes share. A worker takes the run's
lock, starts the training as a process of its own, and waits for it. If the worker dies, the
training stops at its next step, writes a checkpoint and gives the lock back; the next worker
continues from there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

import unremix
from unremix.cluster.ray_engine import connect, node_resources, places_for
from unremix.console.printing import one_line
from unremix.console.suggestions import needed_for
from unremix.domains.options import TrainConfig, config_to_yaml, flat_options
from unremix.experiments.plan import Job
from unremix.experiments.results import BEGUN, Folder
from unremix.files.atomic_files import appending, try_lock, write_text

On = Literal["local", "ray", "slurm"]
"""Where runs are executed."""

# What Python is called with: a file, since -m would look in the current folder first.
TRAIN = (str(Path(unremix.__file__).with_name("__main__.py")), "train")
POLL = 0.1  # seconds between looks at the processes
GRACE = 20.0  # seconds that a process has to end before it is killed
STOPPED = (130, -signal.SIGTERM, -signal.SIGINT)  # exit codes of a training that was asked to stop

SLURM_THREADS = 4  # CPUs of a run's process, unless SBATCH_CPUS_PER_TASK says
SLURM_MINUTES = 24 * 60  # SBATCH_TIMELIMIT overrides it
REASON = 200  # characters of a lost worker's error

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

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of every run."""
        return {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}

    def environment(self, place: int) -> dict[str, str]:
        """Environment variables of the run at a place from 0 to jobs - 1."""
        if not self.gpus:
            return self.variables
        visible = ",".join(self.gpus[place % len(self.gpus)])
        return {**self.variables, "CUDA_VISIBLE_DEVICES": visible}


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
        processes: Processes of a run; with GPUs, each has one.

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

    lost: str | None = None  # why its worker was lost; those of this machine are not

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
        """The exit code; None if it has not ended within this many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return code


def _shared(jobs: Sequence[Job], at_a_time: int | None, cores: int, gpus: Sequence[str]) -> Share:
    """What each job gets; all ask for the same devices and threads."""
    return share_out(
        len(jobs), cores=cores, gpus=gpus, jobs=at_a_time, threads=jobs[0].train.threads,
        processes=jobs[0].processes,
    )  # fmt: skip


class Local:
    """Runs as processes of this machine."""

    def share(self, jobs: Sequence[Job], at_a_time: int | None) -> Share:
        """What of this machine each job gets; all ask for the same devices and threads."""
        gpus: list[str] = []
        if jobs[0].train.accelerator != "cpu" and torch.cuda.is_available():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            numbers = map(str, range(torch.cuda.device_count()))
            gpus = visible.split(",") if visible else list(numbers)
        return _shared(jobs, at_a_time, cpu_count(), gpus)

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Process:
        """Begin a process."""
        return Process(Task.of(job, folder, share.environment(place)))


def make_task(job: Job, folder: Folder, share: Share) -> Task:
    """A run as a worker executes it, with the environment variables that concern us."""
    carried = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("UNREMIX_") or name == "PYTHONPATH"
    }
    shared = Folder(folder.path.resolve())
    return Task.of(job, shared, {**carried, **share.variables}, os.getcwd())


def _execute(task: Task) -> tuple[int, float]:
    return task()


class Ray:
    """Runs as tasks of Ray.

    Raises:
        ImportError: If Ray is not installed.
    """

    def __init__(self) -> None:
        self.ray = connect()

    def share(self, jobs: Sequence[Job], at_a_time: int | None) -> Share:
        """Share the cluster out: a run gets cores and GPUs of one node."""
        nodes, train, processes = node_resources(self.ray), jobs[0].train, jobs[0].processes
        cores = [int(node.get("CPU", 0)) for node in nodes]
        gpus = sum(int(node.get("GPU", 0)) for node in nodes) if train.accelerator != "cpu" else 0
        share = _shared(jobs, at_a_time, sum(cores), [str(number) for number in range(gpus)])
        most = max(1, max(cores) // processes)  # more than the largest node has would wait for ever
        threads = min(share.threads, most)
        places_for(nodes, cpus=threads * processes, gpus=processes if share.gpus else 0)
        return Share(share.jobs, threads, share.gpus)

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Submitted:
        """Submit a task."""
        task = self.ray.remote(_execute).options(
            num_cpus=share.threads * job.processes,
            num_gpus=job.processes if share.gpus else 0,
            max_retries=0,  # the runner begins it again
            name=job.name,
        )
        running = task.remote(make_task(job, folder, share))

        def result() -> tuple[int, float] | None:
            return self.ray.get(running) if self.ray.wait([running], timeout=0)[0] else None

        def cancel(number: int) -> None:  # with SIGKILL, its worker is killed
            self.ray.cancel(running, force=number == signal.SIGKILL)

        return Submitted(result, cancel)


class Submitted:
    """What a cluster runs, with what a :class:`Process` has.

    Args:
        result: Exit code and CPU seconds, once it has ended; raises what the cluster raises.
        cancel: Asks it to end, or ends it.
    """

    def __init__(
        self, result: Callable[[], tuple[int, float] | None], cancel: Callable[[int], None]
    ) -> None:
        self.result, self.stop = result, cancel
        self.cpu_seconds: float | None = None
        self.code: int | None = None
        self.lost: str | None = None
        self.waits = False  # the worker waits for the lock; it is not seen here

    def poll(self) -> int | None:
        """The exit code, once it has ended; 1 if the worker was lost before it could give one."""
        if self.code is None:
            try:
                self.code, self.cpu_seconds = self.result() or (None, None)
            except Exception as error:  # the cluster's own, or the worker's
                self.code, self.lost = 1, _reason(error)
        return self.code


class Slurm:
    """Runs as jobs of SLURM, by submitit.

    Options of ``sbatch`` are taken from its environment variables, such as ``SBATCH_PARTITION``,
    ``SBATCH_TIMELIMIT``, ``SBATCH_CPUS_PER_TASK`` and ``SBATCH_GPUS``.

    Args:
        cluster: ``slurm``, or submitit's ``local``: processes of this machine.

    Raises:
        ImportError: If submitit is not installed.
        ValueError: If there is no SLURM here.
    """

    def __init__(self, cluster: Literal["slurm", "local"] = "slurm") -> None:
        with needed_for("--on slurm", "leave it out"):
            import submitit
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "expected SLURM's sbatch for --on slurm, found none; start it on a login node, or "
                "leave out --on slurm"
            )
        self.submitit, self.cluster = submitit, cluster

    def share(self, jobs: Sequence[Job], at_a_time: int | None) -> Share:
        """All jobs are handed to SLURM at once, unless ``at_a_time`` says how many."""
        train = jobs[0].train
        asked = train.accelerator == "gpu"
        gpus = tuple(str(number) for number in range(jobs[0].processes)) if asked else ()
        threads = train.threads or int(os.environ.get("SBATCH_CPUS_PER_TASK", SLURM_THREADS))
        return Share(at_a_time or len(jobs), threads, (gpus,) if gpus else ())

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Submitted:
        """Submit a job."""
        executor = self.submitit.AutoExecutor(folder.path / "slurm", cluster=self.cluster)
        options: dict[str, Any] = {
            "name": job.name,
            "timeout_min": SLURM_MINUTES,
            "cpus_per_task": share.threads * job.processes,
        }
        if share.gpus:
            options["gpus_per_node"] = job.processes
        executor.update_parameters(**options)
        submitted = executor.submit(make_task(job, folder, share))
        return Submitted(
            lambda: submitted.result() if submitted.done() else None,
            lambda _: submitted.cancel(),  # SLURM itself kills what does not end
        )


Running = Process | Submitted
"""The process of a run, wherever it is."""

Executor = Local | Ray | Slurm
"""Where runs are executed."""


def make_executor(on: On) -> Executor:
    """The executor of a name.

    Raises:
        ImportError: If what it needs is not installed.
        ValueError: If there is no SLURM here.
    """
    executors: dict[On, type[Executor]] = {"local": Local, "ray": Ray, "slurm": Slurm}
    return executors[on]()


def _reason(error: Exception) -> str:
    """The last line of an error, which may hold the trace of another machine."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return one_line(lines[-1])[:REASON]
