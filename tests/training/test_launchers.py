"""torchrun and SLURM: processes that meet, one run folder, restarts, and time-outs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batches import assert_close
from launching import finish, ranks_of, slurm_task, torchrun, train_words, wait_until
from same_runs import assert_same

import unremix
from unremix.domains.options import TrainConfig
from unremix.training.preparation import _is_first_process, prepare
from unremix.training.run import Run

EXACT = ["--backbone", "tiny:encoder", "--head_batch_norm", "false", "--precision", "64-true"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun on the second machine of a job
        ({"RANK": "2", "SLURM_PROCID": "0"}, False),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),  # started by Lightning in a shell
        ({"NODE_RANK": "1"}, False),
        ({"NODE_RANK": "0", "LOCAL_RANK": "0"}, True),
    ],
)
def test_who_is_first(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], first: bool
) -> None:
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _is_first_process() == first


def test_restarts_need_a_name_and_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="add --name"):
        prepare(TrainConfig(runs=str(tmp_path)))
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        prepare(TrainConfig(runs=str(tmp_path), name="run"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_any_number_of_processes_trains_as_one(tmp_path: Path) -> None:
    """One, two, and three by torchrun; two by SLURM are to the bit those by torchrun."""
    further = [
        "--recipe", "unremix-moco", "--mixing", "unmix", "--loss.sketch", "4", "--moco.queue", "20",
        "--moco.group", "0", "--epochs", "2", *EXACT,
    ]  # fmt: skip
    for count in (1, 2, 3):
        words = train_words(tmp_path / str(count), *further)
        finish(torchrun(words, processes=count))
    port = free_port()
    words = train_words(tmp_path / "slurm", *further)
    for task in [slurm_task(words, rank, 2, port) for rank in range(2)]:
        finish(task)
    one, two, three, slurm = (Run(tmp_path / name / "run") for name in ("1", "2", "3", "slurm"))
    for run in (two, three, slurm):  # no process has made a folder of its own
        assert list(run.path.parent.iterdir()) == [run.path]
    assert_same(slurm, two)
    expected = one.load_checkpoint()
    for run in (two, three):
        state = run.load_checkpoint()
        assert state["step"] == expected["step"]
        for name, tensor in expected["model"].items():
            assert_close(state["model"][name], tensor, 1e-8)
        assert run.metrics()[-1]["loss"] == pytest.approx(one.metrics()[-1]["loss"])


@pytest.mark.slow
def test_two_processes_in_automatic_precision(tmp_path: Path) -> None:
    """Both compute as the first one settled; it repeats to the bit, and ends where one does."""
    runs = {"one": 1, "two": 2, "again": 2}
    words = ["--epochs", "2", "--backbone", "tiny:encoder", "--head_batch_norm", "false"]
    for name, count in runs.items():
        train = train_words(tmp_path / name, *words)
        finish(torchrun(train, processes=count, UNREMIX_PRECISION="bf16-mixed"))
    one, two, again = (unremix.load(tmp_path / name / "run", trust=True) for name in runs)
    assert two.config.precision == "bf16-mixed"
    assert_same(two, again)
    untrained = one.encoder(trained=False).state_dict()
    trained = one.encoder().state_dict()
    for name, tensor in two.encoder().state_dict().items():
        moved = (trained[name] - untrained[name]).norm()
        assert (
            tensor - trained[name]
        ).norm() < 0.3 * moved  # Adam magnifies what rounding does to small gradients


def written(run: Path) -> float:
    """When a run's last checkpoint was written; 0 if there is none."""
    file = run / "checkpoints" / "last.ckpt"
    return file.stat().st_mtime if file.exists() else 0.0


def is_replaced(process: subprocess.Popen[str], gone: set[int]) -> bool:
    now = set(ranks_of(process).values())
    return len(now) == 2 and not now & gone


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_is_replaced(tmp_path: Path, killed: int) -> None:
    """torchrun restarts the workers; the run ends as one that was never disturbed, to the bit."""
    further = ["--epochs", "40", "--checkpoint_every", "3"]
    finish(torchrun(train_words(tmp_path / "whole", *further)))
    process = torchrun(
        train_words(tmp_path / "disturbed", *further), "--standalone", "--max_restarts", "2"
    )
    run = tmp_path / "disturbed" / "run"
    for _ in range(2):
        since = time.time()
        # A checkpoint of these workers, so that they are in the midst of training.
        wait_until(lambda since=since: written(run) > since, process)
        assert Run(run).load_checkpoint()["step"] < 160
        before = ranks_of(process)
        os.kill(before[killed], signal.SIGKILL)
        gone = set(before.values())
        wait_until(lambda gone=gone: is_replaced(process, gone), process)
    finish(process)
    assert_same(Run(run), Run(tmp_path / "whole" / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_meet_say_so(tmp_path: Path, rank: int) -> None:
    port = free_port()
    words = train_words(tmp_path, "--timeout_minutes", "0.05", "--epochs", "1")
    began = time.monotonic()
    process = slurm_task(words, rank, 2, port)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert time.monotonic() - began < 45  # most of it imports
    assert f"at 127.0.0.1:{port} within 0.05 minutes" in said
    assert "raise --timeout_minutes" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()  # a run that came to nothing leaves no folder


@pytest.mark.slow
def test_other_data_in_a_process_are_refused(tmp_path: Path) -> None:
    port = free_port()
    words = train_words(tmp_path, "--epochs", "1", "--timeout_minutes", "0.5")
    first = slurm_task(words, 0, 2, port)
    words[words.index("--limit") + 1] = "60"
    said, _ = slurm_task(words, 1, 2, port).communicate(timeout=120)
    assert "data of the first process" in said
    first.communicate(timeout=120)
    assert first.returncode == 1


@pytest.mark.slow
def test_the_folder_is_the_first_process_s_alone(tmp_path: Path) -> None:
    """The second machine has no access to the first one's folder, also when the run resumes."""
    port = free_port()
    first = tmp_path / "first" / "run"
    for number, (host, epochs) in enumerate([("whole", 2), ("first", 1), ("first", 2)]):
        tasks = [
            slurm_task(
                train_words(tmp_path / each, "--epochs", str(epochs)), rank, 2, port + number
            )
            for rank, each in enumerate((host, "second"))
        ]
        for task in tasks:
            finish(task)
        if epochs == 1:  # as if it had been stopped after the first of two
            (first / "evaluation.json").unlink()
            config = first / "config.yaml"
            config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 2\n", 1))
    assert not (tmp_path / "second").exists()
    assert_same(Run(first), Run(tmp_path / "whole" / "run"))
