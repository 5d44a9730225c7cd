"""Runs on rows: training, resume, embedding, export, pages."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from same_runs import plain

import unremix
from unremix.domains.options import TrainConfig
from unremix.domains.vectors.dataset import load_vectors
from unremix.domains.vectors.model import MLP, columns_of
from unremix.domains.vectors.options import VectorOptions
from unremix.report.browse import write_neighbors
from unremix.report.sources import open_source
from unremix.report.storage import Stored
from unremix.training.checkpoints import read_safetensors
from unremix.training.embedding import embed_to_file
from unremix.training.export import export_encoder
from unremix.training.run import Run

KINDS = ("round", "flat")
USUAL = {"label": "kind", "without": ("picture",), "hidden": 16, "layers": 2}


def table(folder: Path) -> Path:
    """Two kinds of rows, with missing numbers, a category, a text and an image."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(48):
        size = "" if i % 7 == 0 else f"{rng.normal(i % 2):.3f}"
        color = str(rng.choice(["red", "blue"]))
        rows.append(
            [
                size,
                color,
                f"{rng.normal():.3f}",
                f"the text of row {i}",
                f"{i % 3}.png",
                KINDS[i % 2],
            ]
        )
    for i in range(2):  # of three
        Image.new("RGB", (20, 10), (100 * i, 0, 255)).save(folder / f"{i}.png")
    with (folder / "rows.csv").open("w", newline="") as file:
        headings = ["size", "color", "age", "text", "picture", "kind"]
        csv.writer(file).writerows([headings, *rows])
    return folder / "rows.csv"


def train(folder: Path, data: Path | str, name: str, **options: Any) -> Run:
    chosen: dict[str, Any] = {"epochs": 2, "batch_size": 16, "head_hidden": (8,), "head_output": 8}
    chosen |= {"probe_epochs": 0, "vectors": USUAL}
    common = {"progress": False, "accelerator": "cpu", "threads": 1, "runs": str(folder)}
    return unremix.train(
        data=str(data), domain="vectors", name=name, **{**common, **chosen, **options}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vectors")
    return train(folder, table(folder), "run", recipe="scarf-unremix", probe_epochs=2)


def test_the_encoder_is_a_chain_of_linear_layers_and_relu() -> None:
    encoder, x = MLP(3, hidden=4, layers=2), torch.randn(5, 3)
    (w1, b1), (w2, b2) = ((one.weight, one.bias) for one in (encoder.layers[0], encoder.layers[2]))
    expected = torch.relu(torch.relu(x @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(encoder(x), expected)
    assert encoder.features == 4


def test_the_card_compares_with_raw_columns(run: Run) -> None:
    card = run.evaluation
    assert card is not None
    assert set(card["results"]) == {"trained", "untrained", "raw columns"}
    assert card["results"]["raw columns"]["features"] == 2 + 3 + 1  # a mark, two colors and others
    assert "label: kind" in card["input_features"]
    assert card["train_rows"] == 48


def test_scarf_takes_one_anchor_per_row() -> None:
    config = TrainConfig(recipe="scarf")
    assert (config.domain, config.batch_size, config.head_output) == ("vectors", 128, 256)
    composition = config.composition()
    assert composition.temperature == 1
    assert composition.make_loss().layout == "one-way"


@pytest.mark.parametrize("views", ["corrupt", "noise"])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path, views: str) -> None:
    data, options = table(tmp_path), {"label": "kind", "hidden": 8, "layers": 1, "views": views}
    whole = train(tmp_path, data, "whole", epochs=3, vectors=options)
    part = train(tmp_path, data, "part", epochs=1, vectors=options)
    resumed = unremix.train(resume=str(part.path), epochs=3, progress=False)
    mine, other = (
        read_safetensors(one.path / "encoder.safetensors")[0] for one in (resumed, whole)
    )
    assert plain(mine) == plain(other)
    assert (resumed.path / "metrics.csv").read_text() == (whole.path / "metrics.csv").read_text()


def test_rows_in_memory_are_embedded_like_those_of_the_file(run: Run) -> None:
    file = run.path.parent / "rows.csv"
    embed_to_file(run, None, run.path.parent / "all.npz")
    expected = np.load(run.path.parent / "all.npz")["embeddings"]
    with file.open() as stream:
        cells = list(csv.DictReader(stream))
    rows = [{"size": float(one["size"] or "nan"), "color": one["color"], "age": float(one["age"])}
            for one in cells]  # fmt: skip
    np.testing.assert_allclose(run.embed(rows), expected, atol=1e-6)
    lists = [[one["size"], one["color"], one["age"]] for one in rows]
    np.testing.assert_allclose(run.embed(lists), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"expected a column 'color', .* got size, age"):
        run.embed([{"size": 1.0, "age": 2.0}])
    for wrong in ([[1.0, 2.0]], "rows.csv", [], np.zeros((2, 5)), [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="expected rows of 3 columns"):
            run.embed(wrong)


def test_an_exported_encoder_embeds_the_same(run: Run) -> None:
    path = export_encoder(str(run.path), "safetensors").path
    rows = [{"size": 1.0, "color": "red", "age": None}, {"size": None, "color": "?", "age": 0.5}]
    torch.testing.assert_close(unremix.load_exported(path).embed(rows), run.embed(rows))


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_embeddings_of_a_run_are_data_of_another(run: Run, tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"embedded.{ending}"
    embed_to_file(run, None, path)
    data = load_vectors(str(path), VectorOptions())
    assert data.train.classes == ["flat", "round"]
    assert data.train.names[3] == "the text of row 3"
    assert len(data.shape.columns) == 16
    again = train(tmp_path, path, "again", vectors={"hidden": 8, "layers": 1})
    array = np.random.default_rng(0).normal(size=(5, 16))
    expected = again.embed([list(row) for row in array])
    torch.testing.assert_close(again.embed(array), expected)
    torch.testing.assert_close(again.embed(torch.from_numpy(array)), expected)


def test_columns_of_arrays_and_frames() -> None:
    shape = load_vectors("wine", VectorOptions(), limit=20).shape
    names = [one.name for one in shape.columns]
    array = np.arange(26.0).reshape(2, 13)

    class Frame:
        def to_dict(self, orient: str) -> list[dict[str, float]]:
            assert orient == "records"
            return [dict(zip(names[::-1], row[::-1], strict=True)) for row in array]

    torch.testing.assert_close(shape.encode(columns_of(Frame(), shape)),
                               shape.encode(columns_of(array, shape)))  # fmt: skip


def test_a_page_shows_rows_as_tables(run: Run) -> None:
    about = Stored.read(run.path).about
    assert about["shown_as"] == "table"
    item = next(iter(about["tables"]))
    assert [name for name, _ in about["tables"][item]] == ["size", "color", "age"]
    with (run.path.parent / "rows.csv").open() as stream:
        row = list(csv.DictReader(stream))[int(item)]
    size = f"{float(row['size']):.4g}" if row["size"] else "–"
    assert dict(about["tables"][item]) == {
        "size": size, "color": row["color"], "age": f"{float(row['age']):.4g}",
    }  # fmt: skip
    assert about["classes"] == ["flat", "round"]


def test_a_page_shows_the_images_or_texts_of_a_column(tmp_path: Path) -> None:
    data = table(tmp_path)
    options = {"label": "kind", "hidden": 8, "layers": 1}
    texts = train(tmp_path, data, "texts", epochs=1, vectors={**options, "shown": "text"})
    about = Stored.read(texts.path).about
    assert about["shown_as"] == "text"
    assert about["names"][5] == "the text of row 5"
    images = train(tmp_path, data, "images", epochs=1, vectors={**options, "shown": "picture"})
    stored = Stored.read(images.path)
    assert stored.about["shown_as"] == "thumbnail"
    assert {one.name for one in images.shape.columns} == {"size", "color", "age"}
    found = images.domain.thumbnails(images.domain.load_for(images, None), [0, 1, 2])
    assert [found[row][:, 5, 5].tolist() for row in range(3)] == [
        [0, 0, 255], [100, 0, 255], [128, 128, 128],  # the third is missing
    ]  # fmt: skip


def test_neighbors_are_found_by_name(run: Run) -> None:
    data = open_source(str(run.path))
    written = write_neighbors(data, ["the text of row 7"], 3)
    assert len(written.listed) >= 3
    with pytest.raises(
        ValueError, match="expected the name of one of the rows in the data, got 'row 99'"
    ):
        write_neighbors(data, ["row 99"], 3)


def test_other_kinds_of_data_name_this_one(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.raises(ValueError, match=r"looks like .*vectors data; add .*--domain vectors"):
        unremix.train(data=str(path), progress=False, runs=str(tmp_path))
