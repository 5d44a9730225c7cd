"""Embeddings behind URLs are those on disk; outputs are files here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from unremix.cli import main
from unremix.files import remote
from unremix.mining.embeddings import PLAN, open_embeddings, read_columns


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    monkeypatch.setenv("UNREMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()


def test_a_file_behind_a_url(files: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    np.savez(tmp_path / "rows.npz", embeddings=rows)
    files.pipe_file("/corpus/rows.npz", (tmp_path / "rows.npz").read_bytes())
    assert (open_embeddings("memory://corpus/rows.npz") == rows).all()
    with pytest.raises(FileNotFoundError, match=r"memory://corpus/others\.npz"):
        open_embeddings("memory://corpus/others.npz")


def test_parts_behind_a_url(files: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parts are parquet files")
    pytest.importorskip("pyarrow.parquet")
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    for number, part in enumerate(np.split(rows, [2])):
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(part.reshape(-1)), 3)
        names = pyarrow.array([f"{number}-{row}" for row in range(len(part))])
        table = pyarrow.table({"embeddings": column, "names": names})
        pyarrow.parquet.write_table(table, tmp_path / "part.parquet")
        content = (tmp_path / "part.parquet").read_bytes()
        files.pipe_file(f"/out/part-{number:05d}.parquet", content)
    with pytest.raises(ValueError, match="expected a folder of parts"):
        read_columns("memory://out")
    files.pipe_file(f"/out/{PLAN}", json.dumps({"parts": 2}).encode())
    found = read_columns("memory://out")
    assert (found["embeddings"] == rows).all()
    assert found["names"].tolist() == ["0-0", "0-1", "1-0", "1-1", "1-2"]
    files.rm("/out/part-00001.parquet")
    with pytest.raises(ValueError, match="2 parts in memory://out, got 1"):
        read_columns("memory://out")


def test_outputs_are_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mine", "--anchors", "a.npz", "--positives", "p.tsv", "-o", "s3://bucket/out.csv"]
    assert main(words) == 1
    assert "file on this machine, got 's3://bucket/out.csv'" in capsys.readouterr().err
    assert main(["embed", "runs/x", "-o", "s3://bucket/out.npz"]) == 1
    assert "add --on ray" in capsys.readouterr().err
