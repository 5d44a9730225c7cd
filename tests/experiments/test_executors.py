"""Runs on a cluster: lost workers, jobs by submitit, engines that are missing."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from small_runs import TINY

from unremix.cli import main
from unremix.experiments import executors, laboratory
from unremix.experiments.compare import CompareConfig, compare
from unremix.experiments.executors import (
    Local,
    Process,
    Running,
    Share,
    Slurm,
    Task,
    make_task,
)
from unremix.experiments.laboratory import RETRIES
from unremix.experiments.plan import Job, Plan
from unremix.experiments.results import Folder
from unremix.files.atomic_files import try_lock

pytestmark = pytest.mark.xdist_group("compare")


class Losing(Local):
    """Loses the first workers of a run after its first checkpoint.

    Args:
        losses: How many of which run.
        fake: Sets how the stand-in for the training behaves.
    """

    def __init__(self, losses: dict[str, int], fake: Callable[..., None]) -> None:
        self.losses = dict(losses)
        self.fake = fake
        self.begun: list[str] = []

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Process:
        self.begun.append(job.name)
        lost = bool(self.losses.get(job.name))
        self.fake(slow=[job.name] if lost else [])
        process = super().start(job, folder, share, place)
        if not lost:
            return process
        self.losses[job.name] -= 1
        while process.poll() is None and not folder.has_checkpoint(job):
            time.sleep(0.01)
        process.stop(signal.SIGKILL)
        process.wait(10)
        return Gone(process.task)


class Gone(Process):
    """A process of which nobody knows how it ended."""

    def __init__(self, task: Task) -> None:
        self.task, self.process, self.code, self.cpu_seconds = task, None, None, None

    def poll(self) -> int | None:
        self.lost = "node 7 died"
        return 1


def run(
    folder: Path, executor: Any, monkeypatch: pytest.MonkeyPatch, seeds: int = 2
) -> tuple[Any, str]:
    monkeypatch.setattr(executors, "make_executor", lambda on: executor)
    printed = io.StringIO()
    config = CompareConfig("simclr,hcl", seeds=seeds, jobs=2, output=str(folder))
    found = compare(config, replace(TINY, epochs=3), console=Console(file=printed))
    return found, printed.getvalue()


def results(folder: Path) -> Any:
    record = json.loads((folder / "results.json").read_text())
    return [record[name] for name in ("runs", "table")]


def test_a_lost_workers_run_continues_from_its_checkpoint(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "undisturbed", Local(), monkeypatch)
    losing = Losing({"hcl-0": 1, "simclr-1": RETRIES}, fake)
    found, printed = run(tmp_path / "lost", losing, monkeypatch)
    assert not found.failed
    assert results(tmp_path / "lost") == results(tmp_path / "undisturbed")
    assert losing.begun.count("hcl-0") == 2
    assert losing.begun.count("simclr-1") == RETRIES + 1
    assert "worker was lost (node 7 died)" in printed
    log = (tmp_path / "lost" / "logs" / "hcl-0.txt").read_text()
    assert "--resume" in log
    assert "begins at epoch 0" in log
    assert "begins at epoch 1" in log


def test_too_many_losses_are_a_failure(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, printed = run(tmp_path / "c", Losing({"hcl-0": 99}, fake), monkeypatch)
    assert [(o.row, o.seed, o.failure) for o in found.failed] == [("hcl", 0, "node 7 died")]
    assert f"{RETRIES + 1} workers were lost" in printed


class Late(Local):
    """Shows the last file of a run some time after its end, as network storage does.

    Args:
        seconds: How long after.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def start(self, job: Job, folder: Folder, share: Share, place: int) -> Any:
        process = super().start(job, folder, share, place)
        return Elsewhere(process, folder.run(job) / "evaluation.json", self.seconds)


class Elsewhere:
    """A process of another machine."""

    def __init__(self, process: Process, last: Path, seconds: float) -> None:
        self.process, self.last, self.seconds = process, last, seconds
        self.ended: float | None = None
        self.cpu_seconds, self.waits, self.lost = 0.0, False, None

    def poll(self) -> int | None:
        code, hidden = self.process.poll(), self.last.with_suffix(".late")
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
            self.last.rename(hidden)
        late = self.ended is not None and time.monotonic() - self.ended > self.seconds
        if late and hidden.exists():
            hidden.rename(self.last)
        return code

    def stop(self, number: int) -> None:
        self.process.stop(number)


def test_results_that_are_seen_late_are_waited_for(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = run(tmp_path / "late", Late(1.0), monkeypatch)
    assert not found.failed
    monkeypatch.setattr(laboratory, "LATENESS", 0.5)
    found, _ = run(tmp_path / "never", Late(1e9), monkeypatch)
    assert [record.failure for record in found.failed] == ["exit code 0"] * 4


def task_of(tmp_path: Path, epochs: int = 1) -> tuple[Task, Folder, Job]:
    plan = Plan(("simclr",), 1, "simclr", replace(TINY, epochs=epochs))
    folder, job = Folder(tmp_path / "c"), plan.jobs[0]
    folder.path.mkdir()
    return make_task(job, folder, Share(1, 1)), folder, job


def test_a_task_runs_once_and_finds_its_run_done(tmp_path: Path, fake: Callable[..., None]) -> None:
    task, folder, job = task_of(tmp_path)
    code, seconds = task()
    assert code == 0
    assert seconds > 0
    assert folder.is_done(job)
    assert task() == (0, 0.0)
    assert folder.log(job).read_text().count("begins at epoch") == 1


def test_a_task_waits_for_the_process_of_a_lost_worker(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    task, folder, job = task_of(tmp_path)
    lock = try_lock(folder.lock(job))
    assert lock is not None
    holder = subprocess.Popen(["sleep", "0.5"], pass_fds=(lock,))
    os.close(lock)
    began = time.monotonic()
    assert task()[0] == 0
    assert time.monotonic() - began > 0.3
    holder.wait()


def test_a_training_that_a_node_stops_counts_as_lost(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake(slow=["simclr-0"])
    task, folder, job = task_of(tmp_path, epochs=2)

    def stop() -> None:
        place = folder.run(job) / "process"
        while not (place.exists() and place.read_text() and folder.has_checkpoint(job)):
            time.sleep(0.01)
        os.kill(int(place.read_text()), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(InterruptedError, match="stopped the training"):
        task()
    stopping.join()


def test_a_task_needs_the_shared_folder(tmp_path: Path) -> None:
    task, folder, _ = task_of(tmp_path)
    folder.path.rmdir()
    with pytest.raises(FileNotFoundError, match="storage that all nodes share"):
        task()


@pytest.mark.skipif(sys.platform != "linux", reason="processes outlive their parent elsewhere")
def test_a_training_stops_when_its_worker_is_killed(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake(slow=["simclr-0"])
    task, folder, job = task_of(tmp_path, epochs=2)
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))()"
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    worker = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "task")])
    place = folder.run(job) / "process"
    while not place.exists() or not place.read_text():
        time.sleep(0.02)
    worker.kill()
    worker.wait()
    os.close(await_lock(folder, job))  # given back: the training is gone


# submitit


def test_slurm_by_submitit_gives_the_results_of_local_runs(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="SLURM's executor needs submitit")
    run(tmp_path / "local", Local(), monkeypatch, seeds=1)
    found, _ = run(tmp_path / "slurm", Slurm(cluster="local"), monkeypatch, seeds=1)
    assert not found.failed
    assert results(tmp_path / "slurm") == results(tmp_path / "local")
    records = (tmp_path / "slurm" / "results.jsonl").read_text().splitlines()
    assert all(json.loads(line)["cpu_seconds"] > 0 for line in records)
    assert "with 1 threads" in (tmp_path / "slurm" / "logs" / "hcl-0.txt").read_text()


@pytest.mark.skipif("UNREMIX_TORTURE" not in os.environ, reason="a fault test: make torture")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.usefixtures("heard")  # submitit stops its jobs by SIGINT
def test_what_slurm_takes_away_or_a_person_stops_is_continued(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="SLURM's executor needs submitit")
    run(tmp_path / "local", Local(), monkeypatch)
    folder, executor = Folder(tmp_path / "slurm"), Slurm(cluster="local")
    folder.path.mkdir()
    fake(slow=["simclr-0"])
    job = Plan(("simclr", "hcl"), 2, "simclr", replace(TINY, epochs=3)).jobs[0]
    begun = executor.start(job, folder, Share(1, 1), 0)
    await_checkpoint(folder, job)
    os.kill(worker_in(folder.path), signal.SIGUSR2)  # as SLURM does before it takes the node
    while "begins at epoch 1" not in folder.log(job).read_text():  # submitit has put it back
        time.sleep(0.02)
    begun.stop(signal.SIGTERM)
    await_end(begun, folder.path)
    os.close(await_lock(folder, job))
    fake()
    again = executor.start(job, folder, Share(1, 1), 0)
    await_end(again, folder.path)
    assert again.code == 0
    value = lambda path: json.loads((path / "runs/simclr-0/evaluation.json").read_text())  # noqa: E731
    assert value(tmp_path / "slurm") == value(tmp_path / "local")
    assert folder.log(job).read_text().count("--resume") >= 2, folder.log(job).read_text()


def await_end(running: Running, path: Path) -> None:
    """Wait until a run has ended, and the worker with it."""
    with suppress(LookupError):
        while worker_in(path):
            time.sleep(0.02)
    while running.poll() is None:
        time.sleep(0.02)


def worker_in(path: Path) -> int:
    """The process of submitit that works in a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_text().split("\0")
                if "submitit.core._submit" in words and any(str(path) in word for word in words):
                    return int(entry.name)
    raise LookupError(f"expected a worker of submitit in {path}, found none")


def await_checkpoint(folder: Folder, job: Job) -> None:
    while not folder.has_checkpoint(job):
        time.sleep(0.02)


def await_lock(folder: Folder, job: Job) -> int:
    """The lock of a run, once its process has given it back."""
    deadline = time.monotonic() + 60
    while (lock := try_lock(folder.lock(job))) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lock is not None
    return lock


def test_what_slurm_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="SLURM's executor needs submitit")
    executor = Slurm(cluster="local")
    train = replace(TINY, threads=None)
    jobs = Plan(("simclr",), 5, "simclr", train).jobs
    monkeypatch.delenv("SBATCH_CPUS_PER_TASK", raising=False)
    assert executor.share(jobs, None) == Share(5, 4)
    assert executor.share(jobs, 2) == Share(2, 4)
    monkeypatch.setenv("SBATCH_CPUS_PER_TASK", "6")
    assert executor.share(jobs, None) == Share(5, 6)
    gpus = Plan(("simclr",), 5, "simclr", replace(train, accelerator="gpu", threads=8)).jobs
    assert executor.share(gpus, None) == Share(5, 8, (("0",),))


# What is missing


def refuse(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compare", "--recipes", "simclr", *words]) == 1
    return capsys.readouterr().err


def test_missing_engines_are_named_with_the_command_that_installs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert 'pip install "unremix[ray]"' in refuse(["--on", "ray"], capsys)
    assert 'pip install "unremix[slurm]"' in refuse(["--on", "slurm"], capsys)
    assert main(["compare", "--recipes", "simclr", "--on", "moon"]) == 2


def test_without_slurm_it_says_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="SLURM's executor needs submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors.shutil, "which", lambda name: None)
    assert "login node" in refuse(["--on", "slurm"], capsys)


class FakeRay:
    """The part of Ray that an executor calls; the test decides when a task ends."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.ended: Any = None
        self.cancelled: list[bool] = []

    def remote(self, *_: Any) -> Any:
        made = SimpleNamespace(remote=lambda task: task)
        made.options = lambda **options: self.options.update(options) or made
        return made

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout == 0
        return (tasks, []) if self.ended is not None else ([], tasks)

    def get(self, task: Any) -> Any:
        if isinstance(self.ended, Exception):
            raise self.ended
        return self.ended

    def cancel(self, task: Any, *, force: bool) -> None:
        self.cancelled.append(force)


def test_a_task_of_ray_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay()
    monkeypatch.setattr(executors, "connect", lambda: fake)
    job = Job("hcl", 0, "hcl-0", replace(TINY, devices=2))
    run = executors.Ray().start(job, Folder(tmp_path), Share(1, 3, (("0", "1"),)), 0)
    assert fake.options == {"num_cpus": 6, "num_gpus": 2, "max_retries": 0, "name": "hcl-0"}
    assert run.poll() is None
    run.stop(signal.SIGTERM)
    run.stop(signal.SIGKILL)
    assert fake.cancelled == [False, True]
    fake.ended = (0, 12.5)
    assert (run.poll(), run.cpu_seconds) == (0, 12.5)
    fake.ended = ValueError("asked again")
    assert run.poll() == 0
    lost = executors.Ray().start(job, Folder(tmp_path), Share(1, 1), 0)
    assert fake.options["num_gpus"] == 0
    fake.ended = OSError("trace\n  of another machine\nnode 7 died\n")
    assert (lost.poll(), lost.lost) == (1, "node 7 died")
