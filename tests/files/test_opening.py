"""What is read back: a regular file, in its folder, of bounded size, and never waited for."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import small_runs

import unremix
from unremix.cli import main
from unremix.domains.vectors.files import read_table
from unremix.files.atomic_files import checked, open_file, open_text, read_bytes, read_text
from unremix.files.locate import locate
from unremix.report.storage import Stored
from unremix.training.run import Run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.digits(tmp_path_factory.mktemp("runs")).path


def plant(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "one"
    plant(path, kind)
    start = time.monotonic()
    for read in (read_bytes, read_text, checked, open_text):
        with pytest.raises(OSError, match=f"expected a file at .*one, got a {kind}"):
            read(path)
    assert time.monotonic() - start < 1


def test_no_link_leads_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    folder = tmp_path / "run"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "a").write_text("theirs")
    (folder / "out").symlink_to("../secret")
    (folder / "over").symlink_to("out")
    (folder / "within").symlink_to("blobs/a")
    for name in ("out", "over"):
        with pytest.raises(OSError, match=r"to lie in its folder, got a link to .*secret"):
            read_text(folder / name, inside=folder)
    assert read_text(folder / "out") == "mine"  # as you named it
    assert read_text(folder / "within", inside=folder) == "theirs"
    # A folder that is itself reached by a link is the folder that was named.
    (tmp_path / "best").symlink_to("run")
    assert read_text(tmp_path / "best" / "within", inside=tmp_path / "best") == "theirs"


def test_a_snapshot_of_the_hub_shares_its_files(tmp_path: Path) -> None:
    model = tmp_path / "models--user--name"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "blobs" / "1").write_text("weights")
    (snapshot / "file").symlink_to("../../blobs/1")
    (snapshot / "out").symlink_to(tmp_path / "elsewhere")
    assert read_text(snapshot / "file", inside=snapshot) == "weights"
    with pytest.raises(OSError, match="to lie in its folder"):
        open_file(snapshot / "out", inside=snapshot)


def test_the_size_is_bounded_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"expected at most 268,435,456 bytes in .*large"):
        read_text(tmp_path / "large")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "name", ["config.yaml", "shape.json", "metrics.csv", "evaluation.json", "warnings.txt"]
)
def test_no_file_of_a_run_is_waited_for(
    sound: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    plant(run / name, kind)
    assert main(["report", str(run)]) == 1
    said = capsys.readouterr().err
    assert (f"{name}, got a pipe" if kind == "pipe" else "a link to /dev/zero") in said


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_weights_that_are_no_file_leave_the_checkpoint(
    sound: Path, tmp_path: Path, kind: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    file = run / "encoder.safetensors"
    if kind == "link":
        file.unlink()
        file.symlink_to(sound / file.name)
    else:
        plant(file, kind)
    with pytest.warns(UserWarning, match="the checkpoint is used"):
        Run(run).encoder()


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.safetensors"])
def test_an_exported_encoder_is_a_file(tmp_path: Path, name: str, kind: str) -> None:
    pytest.importorskip("onnxruntime")
    plant(tmp_path / name, kind)
    with pytest.raises((OSError, ValueError), match=rf"expected a file at .*{name}, got a {kind}"):
        unremix.load_exported(tmp_path / name)


def test_results_of_a_page_are_read_from_its_own_folder(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "report.npz").symlink_to(sound / "report.npz")
    assert Stored.read(sound) is not None
    assert Stored.read(tmp_path) is None
    plant(tmp_path / "report.npz", "pipe")
    assert Stored.read(tmp_path) is None


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_data_are_files(tmp_path: Path, kind: str) -> None:
    for name in ("data.zip", "data.csv", "data.safetensors", "data.npz"):
        plant(tmp_path / name, kind)
        with pytest.raises(OSError, match=f"got a {kind}"):
            locate(tmp_path / name, "")
    for name in ("data.csv", "data.safetensors"):
        with pytest.raises(OSError, match=f"got a {kind}"):
            read_table(tmp_path / name)


def test_pairs_and_labels_keep_their_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'a,b\r\n"1\r\n2",\xff\r\n')
    with open_text(tmp_path / "x.csv") as file:
        assert file.read() == 'a,b\r\n"1\r\n2",\\xff\r\n'
    np.testing.assert_equal(read_bytes(tmp_path / "x.csv", 100)[:3], b"a,b")
