"""Training on streamed shards: the same from anywhere, and resumed at the exact sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from crashing import crash_at
from launching import finish, torchrun
from s3_server import S3
from shards import upload, write_digits
from small_runs import small
from test_training import assert_same_run

import unremix
from unremix.domains.options import TrainConfig
from unremix.files import remote
from unremix.training.loop import Training
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("training")
URL = "memory://digits/s-{0..7}.tar"


def config(folder: Path, data: str, **options: Any) -> TrainConfig:
    """Four lanes of three samples: eight steps an epoch."""
    usual: dict[str, Any] = {"limit": None, "batch_size": 12, "stream": 4, "epochs": 2}
    return small(folder, data=data, **{**usual, **options})


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_digits(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, local: str) -> Run:
    """A run on the shards of this disk, never interrupted."""
    return unremix.train(config(tmp_path_factory.mktemp("whole"), local))


@pytest.fixture
def memory(local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shards behind a URL, and a cache for four of them at a time and four to come."""
    shards = Path(local).parent
    largest = max(path.stat().st_size for path in shards.iterdir())
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", str(6 * largest))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    upload(shards, "memory://digits")
    yield URL
    fsspec.filesystem("memory").store.clear()


@pytest.mark.filterwarnings("ignore:expected room in the cache")  # both ways are to be the same
def test_a_stream_trains_as_the_disk_does(tmp_path: Path, whole: Run, memory: str) -> None:
    run = unremix.train(config(tmp_path, memory))
    assert_same_run(run, whole)


def test_a_stream_is_another_order_and_is_recorded(tmp_path: Path, whole: Run, local: str) -> None:
    assert Run(whole.path).config.stream == 4
    for name, stream in (("any", None), ("two", 2)):
        other = unremix.train(config(tmp_path / name, local, stream=stream, epochs=1))
        assert other.metrics()[0]["loss"] != whole.metrics()[0]["loss"]


@pytest.mark.parametrize("at", [3, 8, 11])
@pytest.mark.filterwarnings("ignore:expected room in the cache")
def test_a_stream_resumes_at_the_exact_sample(
    tmp_path: Path, whole: Run, memory: str, at: int
) -> None:
    with crash_at(at):
        unremix.train(config(tmp_path, memory))
    resumed = unremix.train(resume=str(tmp_path / "run"), progress=False)
    assert_same_run(resumed, whole)


@pytest.mark.filterwarnings("ignore:expected room in the cache")
def test_shards_that_vanish_stop_the_run_which_resumes_where_it_was(
    tmp_path: Path, whole: Run, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREMIX_CACHE_BYTES", "0")
    files, stepping = fsspec.filesystem("memory"), Training.training_step

    def vanishing(self: Training, indices: Any, fetched: Any) -> None:
        if self.step == 5:
            files.store.clear()
        stepping(self, indices, fetched)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", vanishing)
        told = r"memory://digits/s-\d\.tar, got 'no such file'.*resume with: unremix train --resume"
        with pytest.raises(OSError, match=told):
            unremix.train(config(tmp_path, memory, checkpoint_every=None))
    assert Run(tmp_path / "run").load_checkpoint()["step"] in (6, 7)  # one batch was read ahead
    upload(Path(whole.config.data).parent, "memory://digits")
    resumed = unremix.train(resume=str(tmp_path / "run"), progress=False)
    assert_same_run(resumed, whole)


def test_changed_shards_are_noticed(tmp_path: Path) -> None:
    """Of the same names and labels."""
    data = write_digits(tmp_path / "shards")
    run = unremix.train(config(tmp_path, data, epochs=1))
    write_digits(tmp_path / "shards", brightness=14)
    with pytest.raises(ValueError, match="--allow_changed_data"):
        unremix.train(resume=str(run.path), epochs=2, progress=False)


@pytest.mark.slow
def test_two_processes_stream_from_a_faulty_s3_as_one_from_disk(
    tmp_path: Path, local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto.server", reason="the S3 server needs moto[server]")
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    exact = {"backbone": "tiny:encoder", "head_batch_norm": False, "precision": "64-true"}
    one = unremix.train(config(tmp_path / "one", local, **exact))
    server = S3()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        files, _ = remote.file_system("s3://digits/x")
        files.mkdir("digits")
        upload(Path(local).parent, "s3://digits")
        server.spoil(
            **{"digits__s-0.tar": ["error", "truncate"], "digits__s-5.tar": [0.5, "truncate"]}
        )
        words = [
            "-m", "unremix", "train", "--runs", str(tmp_path), "--name", "two", "--data",
            "s3://digits/s-{0..7}.tar", "--stream", "4", "--batch_size", "12", "--epochs", "2",
            "--probe_epochs", "0", "--head_hidden", "[16]", "--head_output", "8", "--progress",
            "false", "--accelerator", "cpu", "--threads", "1", "--checkpoint_every", "2",
            "--backbone", "tiny:encoder", "--head_batch_norm", "false", "--precision", "64-true",
        ]  # fmt: skip
        finish(torchrun(words, UNREMIX_CACHE=str(tmp_path / "cache")))
        gets = server.gets()
    finally:
        server.close()
    two = Run(tmp_path / "two")
    assert [row["loss"] for row in two.metrics()] == pytest.approx(
        [row["loss"] for row in one.metrics()], rel=1e-8
    )
    for name, tensor in one.load_checkpoint()["model"].items():
        torch.testing.assert_close(
            two.load_checkpoint()["model"][name], tensor, rtol=1e-7, atol=1e-9
        )
    assert gets["/digits/s-1.tar"] == 1  # for both processes and epochs, by their common cache
