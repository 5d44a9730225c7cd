"""Readers against NumPy and csv, and how columns become features."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from unremix.domains.vectors.dataset import load_vectors, recognizes
from unremix.domains.vectors.encoding import Column, VectorShape, shape_from
from unremix.domains.vectors.files import READERS, read_table
from unremix.domains.vectors.options import VectorOptions

MATRIX = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LABELS = np.arange(12) % 3


def standardized(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(0)) / values.std(0)


def write_table(path: Path, headings: list[str], rows: list[list[object]], **how: str) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file, **how).writerows([headings, *rows])
    return str(path)


def table(path: Path) -> str:
    rows = [[f"r{i}", i / 2 if i % 4 else "", "red" if i % 3 else "blue", 7, i % 2, ""]
            for i in range(12)]  # fmt: skip
    return write_table(path, ["name", "size", "color", "same", "kind", "none"], rows)


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors", "parquet", "csv"])
def test_every_reader_finds_the_matrix(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "npy":
        np.save(path, MATRIX)
    elif ending == "npz":
        np.savez(path, embeddings=MATRIX, labels=LABELS)
    elif ending == "safetensors":
        save_file({"x": torch.tensor(MATRIX).half(), "y": torch.tensor(LABELS)}, path)
    elif ending == "parquet":
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        lists = pa.array([row.tolist() for row in MATRIX], pa.list_(pa.float32()))
        pq.write_table(pa.table({"embeddings": lists, "labels": LABELS}), path)
    else:
        headings = ["labels", *(f"embedding_{i}" for i in range(3))]
        rows = [
            [label, *map(repr, row.tolist())] for label, row in zip(LABELS, MATRIX, strict=True)
        ]
        write_table(path, headings, rows)
    data = load_vectors(str(path), VectorOptions())
    matrix = MATRIX.astype(np.float16) if ending == "safetensors" else MATRIX
    np.testing.assert_allclose(data.train.x, standardized(matrix.astype(float)), atol=1e-5)
    assert data.shape.are_dimensions
    assert [one.name for one in data.shape.columns] == [f"embedding_{i}" for i in range(3)]
    if ending == "npy":
        assert data.train.labels is None
    else:
        assert data.train.labels.tolist() == LABELS.tolist()
        assert data.train.classes == ["0", "1", "2"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_is_read_as_the_csv_module_does(tmp_path: Path, delimiter: str) -> None:
    rows = [["a, b", 1.5, "007"], ['say "hi"', "NA", "x"], ["two\nlines", "-2e3", "?"]]
    path = write_table(tmp_path / "x.csv", ["text", "number", "mixed"], rows, delimiter=delimiter)
    found = read_table(Path(path))
    assert found["text"].tolist() == ["a, b", 'say "hi"', "two\nlines"]
    np.testing.assert_array_equal(found["number"], [1.5, np.nan, -2000])
    assert found["mixed"].tolist() == ["007", "x", ""]


def test_parquet_columns_of_every_type(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": pa.array([1, None, 3]),
        "flag": pa.array([True, None, False]),
        "text": pa.array(["a", None, "b"]),
        "coded": pa.array(["u", "v", "u"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    found = read_table(tmp_path / "x.parquet")
    np.testing.assert_array_equal(found["whole"], [1, np.nan, 3])
    np.testing.assert_array_equal(found["flag"], [1, np.nan, 0])
    assert found["text"].tolist() == ["a", "", "b"]
    assert found["coded"].tolist() == ["u", "v", "u"]


def test_columns_become_features(tmp_path: Path) -> None:
    data = load_vectors(table(tmp_path / "x.csv"), VectorOptions(label="kind"))
    size, color, same = data.shape.columns
    present = np.array([i / 2 for i in range(12) if i % 4])
    assert size == Column("size", present.mean(), present.std(), gaps=True)
    assert color == Column("color", values=("red", "blue"))  # the most frequent first
    assert same.scale == 0
    expected = np.zeros((12, 6))
    for i in range(12):
        expected[i, 0] = (i / 2 - present.mean()) / present.std() if i % 4 else 0
        expected[i, 1] = i % 4 == 0
        expected[i, 2 if i % 3 else 3] = 1
    np.testing.assert_allclose(data.train.x, expected, atol=1e-6)
    assert data.shape.column_of.tolist() == [0, 0, 1, 1, 1, 2]
    assert data.train.names == [f"r{i}" for i in range(12)]
    assert data.train.labels.tolist() == [i % 2 for i in range(12)]
    assert data.shape.describe() == (
        "2 columns of numbers, 1 of categories (one-hot, at most 32), 1 with missing numbers "
        "(the mean, and a mark) (label: kind; names: name; left out: none)"
    )


def test_other_rows_are_encoded_alike(tmp_path: Path) -> None:
    shape = load_vectors(table(tmp_path / "x.csv"), VectorOptions(label="kind")).shape
    rows = [["", "green", 9], ["2.5", "", 7]]  # missing, unseen, another value of a constant
    path = write_table(tmp_path / "other.csv", ["size", "color", "same"], rows)
    data = load_vectors(path, VectorOptions(label="kind"), shape=shape)
    size = shape.columns[0]
    expected = [[0, 1, 0, 0, 1, 0], [(2.5 - size.mean) / size.scale, 0, 0, 0, 1, 0]]
    np.testing.assert_allclose(data.train.x, expected, atol=1e-6)
    assert data.train.labels is None
    path = write_table(tmp_path / "less.csv", ["size", "colour"], [[1, "red"]])
    with pytest.raises(
        ValueError, match=r"expected a column 'color', .*, got size, colour; did you"
    ):
        load_vectors(path, VectorOptions(), shape=shape)
    path = write_table(tmp_path / "text.csv", ["size", "color", "same"], [["big", "red", 1]])
    with pytest.raises(ValueError, match="expected numbers in the column 'size', got 'big'"):
        load_vectors(path, VectorOptions(), shape=shape)


def test_many_categories_are_capped_and_distinct_texts_left_out(tmp_path: Path) -> None:
    rows = [[f"c{min(i % 50, 40)}", f"note {i}", i] for i in range(200)]
    path = write_table(tmp_path / "x.csv", ["code", "note", "n"], rows)
    data = load_vectors(path, VectorOptions())
    code, number = data.shape.columns
    assert len(code.values) == 32
    assert code.values[0] == "c40"
    assert (data.train.x[:, : code.width].sum(1) == 1).all()
    assert number.name == "n"
    assert data.train.names[3] == "note 3"


def test_the_label_is_never_a_feature(tmp_path: Path) -> None:
    values = np.arange(12) % 3
    rows = [[value, f"k{value}", value, i] for i, value in enumerate(values)]
    path = write_table(tmp_path / "x.csv", ["labels", "class_names", "y", "n"], rows)
    for label in (None, "labels", "class_names"):
        options = VectorOptions(label=label, without=("y",))
        assert [one.name for one in load_vectors(path, options).shape.columns] == ["n"]
    classes = load_vectors(path, VectorOptions()).train.classes
    assert classes == ["k0", "k1", "k2"]
    for name in ("label", "target", "class", "y"):
        path = write_table(tmp_path / "y.csv", [name, "n"], [[i % 2, i] for i in range(12)])
        data = load_vectors(path, VectorOptions())
        assert [one.name for one in data.shape.columns] == ["n"]
        assert data.train.labels is not None


def test_shapes_come_back_from_plain_values(tmp_path: Path) -> None:
    import json
    from dataclasses import asdict

    shape = load_vectors(table(tmp_path / "x.csv"), VectorOptions(label="kind")).shape
    plain = json.loads(json.dumps(asdict(shape)))
    assert shape_from(plain) == shape
    for wrong in ({"scale": -1.0}, {"mean": float("inf")}, {"mean": "a"}, {"values": [1]}):
        first, *rest = plain["columns"]
        with pytest.raises((ValueError, TypeError)):
            shape_from({**plain, "columns": [{**first, **wrong}, *rest]})
    with pytest.raises(ValueError, match="expected finite columns"):
        shape_from({"columns": [], "notes": []})


def test_validation_and_limit_choose_rows() -> None:
    data = load_vectors("wine", VectorOptions(), limit=100, validation=0.25)
    assert (len(data.train), len(data.test)) == (75, 25)
    assert not {*data.train.names} & {*data.test.names}
    # The encoding is that of the training rows alone.
    assert data.train.x.mean(0).abs().max() < 1e-5
    assert data.test.x.mean(0).abs().max() > 0.01


def test_infinite_numbers_count_as_missing() -> None:
    column = Column.fit("x", np.array([1.0, np.inf, 3.0]))
    assert column == Column("x", 2.0, 1.0, gaps=True)
    assert column.encode(np.array([3.0, -np.inf])).tolist() == [[1, 0], [0, 1]]


def test_recognized_are_only_files_that_surely_hold_rows(tmp_path: Path, monkeypatch) -> None:
    assert all(recognizes(f"x{ending}") for ending in READERS if ending != ".npz")
    assert not recognizes("x.npz")
    assert recognizes("wine")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wine").mkdir()
    assert not recognizes("wine")


BAD = {
    "pickle.npy": (lambda p: np.save(p, np.array([{}]), allow_pickle=True), "not of plain numbers"),
    "short.npy": (lambda p: p.write_bytes(b"\x93NUMPY\x01\x00"), "damaged file"),
    "images.npz": (lambda p: np.savez(p, images=np.zeros((3, 4, 4))), r"images \(3, 4, 4\)"),
    "two.npz": (lambda p: np.savez(p, a=np.zeros((3, 4)), b=np.zeros((3, 4))), "save a matrix"),
    "flat.npy": (lambda p: np.save(p, np.float64(3)), "give all the same number"),
    "long.npz": (lambda p: np.savez(p, x=np.zeros((3, 4)), y=np.zeros(5)), "same number"),
    "none.csv": (lambda p: p.write_text("a,b\n"), "rows in each column"),
    "empty.csv": (lambda p: p.write_text(""), "names of the columns"),
    "twice.csv": (lambda p: p.write_text("a,a\n1,2\n"), "all different"),
    "bare.csv": (lambda p: p.write_text("1,2,red\n3,4,blue\n"), "names of the columns"),
    "ragged.csv": (lambda p: p.write_text("a,b\n1,2\n\n3\n"), "1 cells in line 4, but 2 headings"),
    "texts.csv": (lambda p: p.write_text("a,b\nu,v\nw,x\n"), "got only a, b"),
    "x.parquet": (lambda p: p.write_bytes(b"PAR1 nothing"), "damaged file"),
    "x.safetensors": (lambda p: p.write_bytes(b"nothing"), "expected rows of numbers"),
    "x.txt": (lambda p: p.write_text("a"), "expected a file of rows"),
    "folder.csv": (lambda p: p.mkdir(), "expected a file of rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_words(tmp_path: Path, name: str) -> None:
    write, message = BAD[name]
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        load_vectors(str(tmp_path / name), VectorOptions())


def test_bad_labels_are_refused_in_words(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "x.csv", ["kind", "n"], [["" if i == 3 else "a", i] for i in range(9)]
    )
    with pytest.raises(ValueError, match="among kind, n, got 'knd'; did you mean 'kind'"):
        load_vectors(path, VectorOptions(label="knd"))
    with pytest.raises(ValueError, match="column 'kind', got rows without"):
        load_vectors(path, VectorOptions(label="kind"))
    with pytest.raises(ValueError, match=r"column 'n', got 9 in 9 rows; .*--vectors.without"):
        load_vectors(path, VectorOptions(label="n"))
    with pytest.raises(FileNotFoundError, match="breast-cancer and wine"):
        load_vectors(str(tmp_path / "gone.csv"), VectorOptions())


def test_no_column_is_no_shape() -> None:
    with pytest.raises(ValueError, match="expected columns of numbers or categories"):
        VectorShape.fit({"a": np.array([np.nan, np.nan])}, ["a"], {})
