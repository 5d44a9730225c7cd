"""The page of embedded data that nobody trained on: what it carries for its scripts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import page_data
from small_runs import HOSTILE, embedded

import unremix
from unremix.cli import main
from unremix.evaluation.knn import leave_one_out_knn
from unremix.report.explore import BATCHES


def explored(folder: Path, *words: str) -> tuple[str, dict[str, Any]]:
    page = folder / "explore.html"
    assert main(["explore", *words, "-o", str(page)]) == 0
    text = page.read_text()
    return text, page_data(text)


def test_what_the_page_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = embedded(tmp_path)
    text, data = explored(tmp_path, file, "--data", str(tmp_path / "photos"))
    arrays = np.load(file)
    assert data["shown_as"] == "thumbnail"
    assert data["names"] == arrays["names"].tolist()
    rows, labels = torch.from_numpy(arrays["embeddings"]), torch.from_numpy(arrays["labels"])
    shown = capsys.readouterr().out
    assert f"kNN accuracy {leave_one_out_knn(rows, labels, k=6)}" in shown
    assert "6 images have a near-duplicate" in shown
    assert "1 label contradicts the neighbors: look whether it is wrong." in shown
    pairs = [sorted(one["items"]) for one in data["closest"] if one["duplicate"]]
    assert sorted(pairs) == [[4, 40], [5, 41], [6, 42]]
    assert [one["item"] for one in data["suspicious"]] == [50]
    assert max(data["clusters"]) + 1 == len(data["groups"])
    assert sum(len(set(one["items"])) for one in data["groups"]) <= 120
    assert HOSTILE[1] not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_one_neighbor_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "few.npz"
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    np.savez(file, embeddings=rows, labels=np.arange(12) % 3)
    text, _ = explored(tmp_path, str(file))
    assert "each of 12 items by its nearest other" in capsys.readouterr().out
    assert "classified by its nearest neighbor among the others" in text


def test_every_batch_has_the_scores_of_the_library(tmp_path: Path) -> None:
    file = embedded(tmp_path, 1000, labeled=False, pictures=False)
    _, data = explored(tmp_path, file)
    assert len(data["batches"]) == BATCHES
    items = [one["batch"] for one in data["batches"]]
    assert len({item for batch in items for item in batch}) == sum(map(len, items)) == 256 * BATCHES
    assert data["labels"] is None
    assert "suspicious" not in Path(tmp_path / "explore.html").read_text().partition("<script")[0]
    rows = torch.from_numpy(np.load(file)["embeddings"])
    for batch in data["batches"]:
        z = rows[torch.tensor(batch["batch"])]
        whole = unremix.importance(z, z, layout="one-way", mix=(1.0, 1.0, 1.0))
        for name in ("uncertainty", "similarity", "representativeness"):
            scores = np.frombuffer(base64.b64decode(batch["scores"][name]), "<f4").reshape(256, 256)
            np.testing.assert_allclose(scores, getattr(whole, name), rtol=1e-4, atol=1e-5)


def test_more_items_than_a_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "many.npz"
    np.savez(file, embeddings=rng.normal(size=(10_100, 8)).astype(np.float32))
    _, data = explored(tmp_path, str(file))
    assert len(data["names"]) == 10_000
    assert "shows 10,000 items, drawn at random from 10,100" in capsys.readouterr().out
    assert (tmp_path / "explore.html").stat().st_size < 6 * 2**20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a run's folder, a file of embeddings, or data and --encoder NAME, got none"),
        (["photos"], "got 'photos'; for data, add --encoder NAME"),
        (["none.npz"], "expected embeddings at 'none.npz', found no file"),
        (["--encoder", "timm:resnet18"], "the data to embed, got none"),
        (["a", "--data", "b", "--encoder", "timm:resnet18"], "got a and --data b"),
    ],
)
def test_what_cannot_be_explored(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", *words]) == 1
    assert message in capsys.readouterr().err
