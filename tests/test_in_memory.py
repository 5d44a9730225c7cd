"""Data in memory, and runs in Python and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import picture
from PIL import Image

import unremix
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.evaluation.card import card_table
from unremix.pipeline import written

FAST: dict[str, Any] = {
    "epochs": 1, "batch_size": 8, "probe_epochs": 0, "progress": False, "accelerator": "cpu",
    "threads": 1,
}  # fmt: skip
CLASSES = ["a", "b"] * 6


def pictures(*sizes: tuple[int, int]) -> list[Image.Image]:
    return [picture(number, sizes[number % len(sizes)]) for number in range(12)]


def loaded(folder: Path, data: Any, classes: list[str] | None = None, **options: Any) -> Any:
    config = TrainConfig(**written(data, classes, {"runs": str(folder), **options}), progress=False)
    return config, find_domain(config.domain).load(config)


@pytest.mark.parametrize("sizes", [[(20, 20)], [(20, 20), (28, 20)]])
def test_pictures_are_those_that_were_given(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    items = pictures(*sizes)
    config, data = loaded(tmp_path, items, CLASSES, image_size=20)
    assert config.domain == "image"
    names = [data.train.classes[label] for label in data.train.labels.tolist()]
    assert sorted(names) == sorted(CLASSES)
    same = {one.tobytes() for one in data.train.images.batch(torch.arange(12)).numpy()}
    if len(sizes) == 1:
        assert same == {np.asarray(one).transpose(2, 0, 1).tobytes() for one in items}
    again, _ = loaded(tmp_path, items, CLASSES, image_size=20)
    assert again.data == config.data
    assert loaded(tmp_path, items[:-1], None, image_size=20)[0].data != config.data


def test_arrays_are_images_or_rows_by_their_shape(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    config, data = loaded(tmp_path, draw.integers(0, 256, (9, 8, 8), dtype=np.uint8))
    assert (config.domain, len(data.train)) == ("image", 9)
    rows = draw.normal(size=(9, 3)).astype(np.float32)
    config, data = loaded(tmp_path, torch.from_numpy(rows), ["x", "y", "z"] * 3)
    assert config.domain == "vectors"
    expected = (rows - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(data.train.x.numpy(), expected, atol=1e-5)
    assert data.train.labels.tolist() == [0, 1, 2] * 3


def test_texts_are_sentences(tmp_path: Path) -> None:
    texts = ["First, a line.", "Then\nanother.", "“Third”"]
    config, data = loaded(tmp_path, texts, ["b", "a", "b"][:3], recipe="simcse", epochs=0)
    assert config.domain == "sentence"
    assert data.texts() == texts
    assert [data.classes[one] for one in data.labels.tolist()] == ["b", "a", "b"]


def test_graphs_are_those_of_torch_geometric(tmp_path: Path) -> None:
    geometric = pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1, 1], [1, 0, 2]])
    graphs = [
        geometric.Data(x=torch.eye(3) * size, edge_index=edges, y=torch.tensor([size % 2]))
        for size in range(1, 5)
    ]
    config, data = loaded(tmp_path, graphs)
    assert config.domain == "graph"
    batch = data.train.store.batch(torch.tensor([2]))
    assert batch.edge_index.equal(edges)
    assert data.train.labels.tolist() == [1, 0, 1, 0]
    assert data.encoding.width == 3


def test_what_is_nothing_known_is_refused(tmp_path: Path) -> None:
    for data in ([], [object()], {"a": 1}):
        with pytest.raises(ValueError, match="expected a path"):
            written(data, None, {"runs": str(tmp_path)})
    with pytest.raises(ValueError, match="each of 2 items"):
        written(["a", "b"], ["x"], {"runs": str(tmp_path)})
    with pytest.raises(ValueError, match="in memory"):
        unremix.train(data="photos", classes=["x"])


def test_a_run_says_what_it_is_and_finds_exports_and_reports(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    run = unremix.train(
        data=images, classes=CLASSES * 2, runs=str(tmp_path), name="mine", head_hidden=(8,),
        head_output=4, width=4, **FAST,
    )  # fmt: skip
    run = unremix.load(run.path)
    assert repr(run).startswith(f"<run {tmp_path / 'mine'}: unremix-simclr on")
    assert "kNN" in repr(run)
    page = run._repr_html_()
    assert "<th>" in page
    assert page.count("<tr>") == 1 + len(card_table(run.evaluation)[1])
    assert {"embed", "neighbors", "export", "report", "path"} <= set(dir(run))
    assert not {"restore", "fell_back", "_facts", "save_checkpoint"} & set(dir(run))
    assert all(hasattr(run, name) for name in dir(run))
    found = run.neighbors(list(images[[5, 9]]), k=3)
    assert [len(one) for one in found] == [3, 3]
    units = torch.nn.functional.normalize(run.embed(list(images)))
    cosines = units[[5, 9]] @ units.T
    for row, place in zip(found, (5, 9), strict=True):
        assert row[0][0].endswith(f"{place:05d}") or row[0][1] == pytest.approx(row[1][1])
    best = [[one for _, one in row] for row in found]
    np.testing.assert_allclose(best, cosines.topk(3).values.numpy(), atol=1e-5)
    file = run.export("safetensors", tmp_path / "out.safetensors")
    assert unremix.load_exported(file).embed(list(images)).equal(run.embed(list(images)))
    page = run.report()
    assert page == run.path / "report.html"
    assert page.is_file()


@pytest.mark.slow
def test_recipes_are_compared_on_data_in_memory(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    found = unremix.compare(
        ["simclr", "unremix-simclr"], data=images, classes=CLASSES * 2, seeds=1,
        output=tmp_path / "both", runs=str(tmp_path), head_hidden=(8,), head_output=4, width=4,
        **FAST,
    )  # fmt: skip
    assert not found.failed
    assert (tmp_path / "both" / "table.md").is_file()
    assert {"simclr", "unremix-simclr"} <= {row.name for row in found.rows}
