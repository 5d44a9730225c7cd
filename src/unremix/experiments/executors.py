"""Where the runs of an experiment are executed: here, as tasks of Ray, or as jobs of SLURM.

An executor shares what there is out among jobs, and starts the process of a run.

On a cluster, the experiment's folder lies on storage that all nodes share. A worker takes the run's
lock, starts the training as a process of its own, and waits for it. If the worker dies, the
training stops at its next step, writes a checkpoint and gives the lock back; the next worker
continues from there.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from unremix.cluster.ray_engine import connect, node_resources, places_for
from unremix.console.printing import one_line
from unremix.console.suggestions import needed_for
from unremix.experiments.plan import Job
from unremix.experiments.processes import LostError, Process, Share, Task, share_out
from unremix.experiments.results import Folder

On = Literal["local", "ray", "slurm"]
"""Where runs are executed."""

SLURM_THREADS = 4  # CPUs of a run's process, unless SBATCH_CPUS_PER_TASK says
SLURM_MINUTES = 24 * 60  # SBATCH_TIMELIMIT overrides it
REASON = 200  # characters of a lost worker's error


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
    threads = {"OMP_NUM_THREADS": str(share.threads), "PYTHONUNBUFFERED": "1"}
    shared = Folder(folder.path.resolve())
    return Task.of(job, shared, {**carried, **threads}, os.getcwd())


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
        self.waits = False  # the worker waits for the lock; it is not seen here

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.code is None:
            try:
                self.code, self.cpu_seconds = self.result() or (None, None)
            except Exception as error:  # the cluster's own, or the worker's
                raise LostError(_reason(error)) from error
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
