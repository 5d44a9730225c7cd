"""Embeddings by a run: layers, lengths, formats and lists of files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import save

import unremix
from unremix.cli import main
from unremix.training.building import build_model
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("embedding")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unremix.train(
        limit=32, batch_size=16, epochs=1, probe_epochs=1, head_hidden=(16,), head_output=8,
        runs=str(tmp_path_factory.mktemp("runs")), progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [str(save(Path("photos") / f"{number}.png")) for number in range(3)]


def embed(run: Run, *words: str) -> dict[str, np.ndarray]:
    assert main(["embed", str(run.path), *words, "-o", "e.npz"]) == 0
    with np.load("e.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def test_a_list_of_files(run: Run, files: list[str]) -> None:
    expected = run.embed(files).numpy()
    several = embed(run, "--data", *files)
    assert several["names"].tolist() == files
    np.testing.assert_allclose(several["embeddings"], expected, rtol=1e-5, atol=1e-6)
    assert embed(run, "--data", files[1])["names"].tolist() == files[1:2]
    Path("list.txt").write_text("\n".join([*files, "", ""]))
    np.testing.assert_array_equal(
        embed(run, "--data", "list.txt")["embeddings"], several["embeddings"]
    )
    # Paths may also be relative to the list.
    Path("photos/list.txt").write_text("2.png\n0.png\n")
    beside = embed(run, "--data", "photos/list.txt")
    assert beside["names"].tolist() == ["photos/2.png", "photos/0.png"]


def test_a_missing_file_is_named(
    run: Run, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(run.path), "--data", files[0], "gone.png"]) == 1
    assert "gone.png" in capsys.readouterr().err
    assert main(["embed", str(run.path), "--data", "gone.txt"]) == 1
    assert "paths at 'gone.txt'" in capsys.readouterr().err


def test_layers_and_lengths(run: Run, files: list[str]) -> None:
    backbone, head = (embed(run, "--data", *files, "--layer", layer)["embeddings"]
                      for layer in ("backbone", "head"))  # fmt: skip
    assert head.shape == (3, 8)
    assert backbone.shape == (3, run.embed(files).shape[1])
    # The head's output is what the loss compares: head(encoder(x)) in eval mode.
    model = build_model(run.config, run.shape)
    model.load_state_dict(run.load_checkpoint()["model"])
    with torch.no_grad():
        expected = model.head.eval()(torch.from_numpy(backbone))
    np.testing.assert_allclose(head, expected.numpy(), rtol=1e-5, atol=1e-6)
    loaded = unremix.load(run.path, layer="head").embed(files)
    np.testing.assert_allclose(loaded.numpy(), head, rtol=1e-5, atol=1e-6)
    unit = embed(run, "--data", *files, "--normalize")["embeddings"]
    lengths = np.linalg.norm(backbone, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, backbone / lengths, rtol=1e-5)
    np.testing.assert_allclose(run.embed(files, normalize=True).numpy(), unit, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="'backbone' or 'head', got 'tail'"):
        unremix.load(run.path, layer="tail")


def test_csv_gives_the_same_numbers(run: Run, files: list[str]) -> None:
    arrays = embed(run)
    assert main(["embed", str(run.path), "-o", "e.csv"]) == 0
    with open("e.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["names"] for row in rows] == arrays["names"].tolist()
    assert [int(row["labels"]) for row in rows] == arrays["labels"].tolist()
    assert [row["class_names"] for row in rows] == arrays["class_names"].tolist()
    width = arrays["embeddings"].shape[1]
    numbers = [[float(row[f"embedding_{i}"]) for i in range(width)] for row in rows]
    np.testing.assert_array_equal(np.array(numbers, np.float32), arrays["embeddings"])


def test_graphs_without_a_head_and_with_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rings = tmp_path / "rings.jsonl"
    rings.write_text('{"edges": [[0, 1], [1, 2], [2, 0]]}\n' * 4)
    run = unremix.train(
        data=str(rings), recipe="infograph", epochs=0, runs=str(tmp_path), name="g",
        graph={"hidden": 4, "layers": 1}, progress=False, accelerator="cpu", threads=1,
    )  # fmt: skip
    assert main(["embed", str(run.path), "--layer", "head"]) == 1
    assert "got InfoGraph, which has none" in capsys.readouterr().err
    assert main(["embed", str(run.path), "--data", "a", "b"]) == 1
    assert "one path for graphs, got 2" in capsys.readouterr().err
