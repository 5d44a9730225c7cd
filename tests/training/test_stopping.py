"""Runs that are stopped, resumed, trained further, or fail before they begin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import small
from test_training import assert_same_run, state_of

import unremix
from unremix.cli import main
from unremix.domains import DOMAINS
from unremix.domains.options import TrainConfig
from unremix.training import stopping
from unremix.training.checkpoints import write_checkpoint
from unremix.training.loop import Training
from unremix.training.preparation import prepare
from unremix.training.run import Run
from unremix.training.stopping import StopRequest, handling

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("heard")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The small run, never interrupted; without checkpoints within an epoch."""
    return unremix.train(small(tmp_path_factory.mktemp("whole"), checkpoint_every=None))


def signal_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """Send a signal to this process in the middle of a step."""
    stepping = Training.training_step

    def signaled(self: Training, indices: Any, fetched: Any) -> None:
        if self.step == step:
            os.kill(os.getpid(), number)
        stepping(self, indices, fetched)

    monkeypatch.setattr(Training, "training_step", signaled)


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (0, signal.SIGINT),
        (1, signal.SIGTERM),
        (2, signal.SIGINT),
        (4, signal.SIGHUP),
        (8, signal.SIGINT),
    ],
)
def test_a_stop_at_any_step_is_exact(
    step: int, number: int, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 0 to 2 are the first epoch, whose end brings the first checkpoint."""
    with monkeypatch.context() as patch:
        signal_at(patch, step, number)
        with pytest.raises(KeyboardInterrupt) as stopped:
            unremix.train(small(tmp_path, checkpoint_every=None))
    folder = str(stopped.value)
    assert folder == str(tmp_path / "run")
    assert state_of(Run(folder))["step"] == step + 1
    assert_same_run(unremix.train(resume=folder, progress=False), whole)


def test_the_command_that_is_printed_resumes(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train", "--runs", str(tmp_path), "--name", "run", "--limit", "96", "--batch_size", "32",
        "--epochs", "3", "--probe_epochs", "0", "--head_hidden", "[16]", "--head_output", "8",
        "--progress", "false", "--accelerator", "cpu", "--threads", "1",
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        signal_at(patch, 0, signal.SIGINT)
        assert main(words) == 130
    command = re.search(r"unremix (train --resume \S+)", capsys.readouterr().err)
    assert command is not None
    assert main([*command[1].split(), "--progress", "false"]) == 0
    assert_same_run(Run(tmp_path / "run"), whole)


def test_the_same_name_and_options_resume(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, checkpoint_every=None)
    with monkeypatch.context() as patch:
        signal_at(patch, 1, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            unremix.train(config)
    with pytest.raises(FileExistsError, match=r"other options \(lr\); .* --name"):
        unremix.train(small(tmp_path, checkpoint_every=None, lr=0.5))
    assert state_of(Run(tmp_path / "run"))["step"] == 2
    assert_same_run(unremix.train(config), whole)
    with pytest.raises(FileExistsError, match="is finished; choose another --name"):
        unremix.train(config)


def test_a_run_that_never_began_leaves_no_folder(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    config = small(tmp_path, checkpoint_every=None)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            unremix.train(config)
    assert not list(tmp_path.iterdir())
    # A folder that was there before keeps what is in it.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "photo.jpg").write_bytes(b"mine")
    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            unremix.train(config)
    assert (tmp_path / "run" / "photo.jpg").read_bytes() == b"mine"
    # What was killed before its first checkpoint starts again under its name.
    assert_same_run(unremix.train(config), whole)


def test_a_finished_run_trains_further(tmp_path: Path, whole: Run) -> None:
    run = unremix.train(small(tmp_path, checkpoint_every=None, epochs=1))
    with pytest.raises(ValueError, match=r"at least the 1 .*, got 0"):
        unremix.train(resume=str(run.path), epochs=0, progress=False)
    further = unremix.train(resume=str(run.path), epochs=3, progress=False)
    assert further.config.epochs == Run(run.path).config.epochs == 3
    assert [row["epoch"] for row in further.metrics()] == [1, 2, 3]
    assert further.evaluation is not None
    assert further.evaluation["epoch"] == 3
    assert_same_run(further, whole)


def test_the_default_number_of_epochs_counts_if_it_is_given(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=0))
    usual = TrainConfig().epochs
    assert prepare(TrainConfig(resume=str(run.path))).config.epochs == 0
    assert prepare(TrainConfig(resume=str(run.path), epochs=usual)).config.epochs == usual


def test_an_untrained_run_trains_further(tmp_path: Path, whole: Run) -> None:
    run = unremix.train(small(tmp_path, checkpoint_every=None, epochs=0))
    assert_same_run(unremix.train(resume=str(run.path), epochs=3, progress=False), whole)


def test_time_that_is_up_can_be_extended(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, max_minutes=1e-6))
    assert state_of(run)["step"] == 3
    run = unremix.train(resume=str(run.path), progress=False)  # it has had its time
    assert state_of(run)["step"] == 3
    run = unremix.train(resume=str(run.path), max_minutes=5, progress=False)
    assert state_of(run)["step"] == 9


def test_a_second_request_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopRequest()
    with handling(stop):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # as torchrun repeats it
        assert stop.asked
        monkeypatch.setattr(stopping, "IMPATIENCE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_slurm_puts_the_job_back(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(stopping.subprocess, "run", lambda words, **_: called.append(words))
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", "17")
        signal_at(patch, 1, signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            unremix.train(small(tmp_path, checkpoint_every=None))
    assert called == [["scontrol", "requeue", "17"]]
    assert_same_run(unremix.train(small(tmp_path, checkpoint_every=None)), whole)


def test_a_run_of_another_version_says_so(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=0))
    file = run.path / "config.yaml"
    text = file.read_text()
    assert text.startswith(f"# unremix {unremix.__version__}\n")
    file.write_text(text.replace(f"# unremix {unremix.__version__}", "# unremix 0.0.7") + "old: 1")
    with pytest.raises(ValueError, match=r"unremix 0\.0\.7 \(.*old.*that version"):
        unremix.load(run.path)
    file.write_text(text)
    state = state_of(run)
    state["model"]["gone"] = state["model"].popitem()[1]
    write_checkpoint(state | {"version": "0.0.8"}, run.checkpoint)
    with pytest.raises(ValueError, match=r"written by unremix 0\.0\.8"):
        Run(run.path).encoder()
    del state["version"]
    write_checkpoint(state, run.checkpoint)
    with pytest.raises(ValueError, match="written by an early version"):
        Run(run.path).encoder()


def test_the_model_is_outlined_once_and_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = DOMAINS["image"]
    built: list[str] = []

    def counted(*arguments: Any) -> Any:
        made = image.build(*arguments)
        built.append(next(made[0].parameters()).device.type)
        return made

    monkeypatch.setitem(DOMAINS, "image", replace(image, build=counted))
    unremix.train(small(tmp_path, epochs=1))
    assert built == ["meta", "cpu"]  # an outline, and the model


@pytest.mark.slow
def test_two_processes_stop_together(tmp_path: Path) -> None:
    """SIGTERM to torchrun reaches both; the run resumes in one process."""
    words = [
        "train", "--runs", str(tmp_path), "--name", "run", "--limit", "96", "--batch_size", "32",
        "--epochs", "2000", "--probe_epochs", "0", "--head_hidden", "[16]", "--head_output", "8",
        "--accelerator", "cpu", "--threads", "1",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
         "-m", "unremix", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    state = state_of(Run(tmp_path / "run"))
    assert 0 < state["step"] < 6000
    epochs = -(-state["step"] // 3) + 1
    (tmp_path / "run" / "config.yaml").write_text(
        re.sub(r"epochs: 2000", f"epochs: {epochs}", (tmp_path / "run/config.yaml").read_text())
    )
    run = unremix.train(resume=str(tmp_path / "run"), progress=False)
    assert state_of(run)["step"] == 3 * epochs
