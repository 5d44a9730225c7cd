"""The index against a full sort."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from building import draw_rows
from numpy.typing import NDArray

from unremix.files.seals import is_sealed, read_sealed, write_sealed
from unremix.mining import index as module
from unremix.mining.embeddings import open_embeddings, read_columns, unit_rows
from unremix.mining.index import Allowed, ExactIndex, Kind, make_index

draw = partial(draw_rows, dimensions=12)


def clustered(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows around a few centers, as embeddings of real data are."""
    generator = np.random.default_rng(seed)
    centers = generator.standard_normal((30, 12))
    rows = centers[generator.integers(30, size=count)] + 0.3 * generator.standard_normal(
        (count, 12)
    )
    return rows.astype(np.float32)


def sorted_by_hand(
    queries: NDArray[np.float32], corpus: NDArray[np.float32], allowed: Allowed, count: int
) -> tuple[list[list[int]], list[int]]:
    """The most similar rows that are allowed, and how many were too similar, in plain loops."""
    found, above = [], []
    for number, query in enumerate(queries):
        forbidden = {
            int(row) for who, row in zip(allowed.query, allowed.row, strict=True) if who == number
        }
        values = []
        for row, vector in enumerate(corpus.astype(np.float64)):
            length = np.linalg.norm(vector)
            value = float(query @ vector / length) if length else 0.0
            if row not in forbidden:
                values.append((-value, row))
        refused = [row for value, row in values if -value > allowed.highest[number]]
        kept = sorted(pair for pair in values if -pair[0] <= allowed.highest[number])
        found.append([row for _, row in kept[:count]] + [-1] * (count - len(kept)))
        above.append(len(refused))
    return found, above


@pytest.mark.parametrize("kind", ["exact", "flat"])
@pytest.mark.parametrize("width", [32, 64, 8192])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_equals_a_full_sort(
    kind: Kind, width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WIDTH", width)
    corpus, queries = draw(300), unit_rows(draw(9, seed=1))
    corpus[17] = 0  # no direction
    row = np.sort(np.array([3, 3, 250, 299, 17]))
    highest = np.full(9, np.inf, dtype=np.float32)
    highest[2:6] = [0.4, 0.1, -0.3, -2.0]  # the last allows nothing
    allowed = Allowed(highest, np.array([0, 1, 2, 0, 8]), row)
    found = make_index(corpus, kind).search(queries, count, allowed)
    rows, above = sorted_by_hand(queries, corpus, allowed, count)
    assert found.rows.tolist() == rows
    assert found.above.tolist() == above
    assert (found.similarity[found.rows < 0] == -np.inf).all()
    expected = np.einsum("bd,bnd->bn", queries, unit_rows(corpus)[found.rows])
    np.testing.assert_allclose(
        found.similarity[found.rows >= 0], expected[found.rows >= 0], atol=1e-5
    )


def test_equal_similarities_come_in_the_order_of_the_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WIDTH", 32)
    corpus = np.tile(draw(4), (40, 1))  # each row forty times
    found = make_index(corpus).search(unit_rows(corpus[:4]), 5)
    assert found.rows.tolist() == [[n, n + 4, n + 8, n + 12, n + 16] for n in range(4)]


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_indexes_find_most_and_build_the_same_each_time(
    kind: Kind, tmp_path: Path
) -> None:
    corpus, queries = clustered(3000), unit_rows(clustered(20, seed=1))
    exact = ExactIndex(corpus).search(queries, 10)
    found = make_index(corpus, kind, tmp_path).search(queries, 10)
    shared = [len(set(a) & set(b)) for a, b in zip(exact.rows, found.rows, strict=True)]
    assert sum(shared) >= 0.9 * exact.rows.size
    again = make_index(corpus, kind).search(queries, 10)
    assert (again.rows == found.rows).all()
    assert [file.suffix for file in tmp_path.iterdir()] == [".faiss"]
    kept = make_index(corpus, kind, tmp_path).search(queries, 10)
    assert (kept.rows == found.rows).all()


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_faiss_searches_all_rows_where_it_finds_too_few(kind: Kind) -> None:
    corpus, queries = clustered(3000), unit_rows(clustered(6, seed=1))
    allowed = Allowed(
        np.full(6, -0.2, np.float32), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    )
    exact = ExactIndex(corpus).search(queries, 20, allowed)
    found = make_index(corpus, kind).search(queries, 20, allowed)
    assert (found.rows == exact.rows).all()
    assert (found.above == exact.above).all()


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"index to be .*, got 'fla'; did you mean"):
        make_index(draw(3), "fla")  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["npy", "npz", "compressed.npz", "parquet"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_files_give_the_array_back(ending: str, dtype: type, tmp_path: Path) -> None:
    rows = draw(50).astype(dtype)
    names = np.array([f"näme {n}" for n in range(50)])
    path = tmp_path / f"file.{ending}"
    if ending == "npy":
        np.save(path, rows)
    elif ending == "npz":
        np.savez(path, names=names, embeddings=rows, fortran=np.asfortranarray(rows))
        assert isinstance(open_embeddings(path), np.memmap)
        assert (read_columns(path)["fortran"] == rows).all()
    elif ending == "compressed.npz":
        np.savez_compressed(path, embeddings=rows, names=names)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        flat = pyarrow.array(rows.reshape(-1))
        lists = pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])
        parquet.write_table(pyarrow.table({"embeddings": lists, "names": names}), path)
    found = open_embeddings(str(path))
    assert found.dtype == dtype
    assert (np.asarray(found) == rows).all()
    if ending != "npy":
        assert read_columns(path, ["names"])["names"].tolist() == names.tolist()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.npy, .*, \.csv, got 'x\.txt'"):
        open_embeddings("x.txt")
    with pytest.raises(FileNotFoundError, match="found no file"):
        open_embeddings(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", vectors=draw(3))
    with pytest.raises(ValueError, match=r"array 'embeddings' in .*, got vectors"):
        open_embeddings(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"embeddings .*text\.npz, got a damaged"):
        open_embeddings(tmp_path / "text.npz")
    with pytest.raises(ValueError, match=r"matrix \(n, D\) .*, got shape \(3,\); "):
        open_embeddings(np.ones(3))
    with pytest.raises(ValueError, match="floating point, got int64; "):
        open_embeddings(np.ones((3, 2), dtype=int))


def test_long_and_short_vectors_keep_their_direction() -> None:
    rows = draw(5).astype(np.float64)
    for size in (1e-9, 1.0, 1e150):
        np.testing.assert_allclose(unit_rows(rows * size), unit_rows(rows), atol=1e-6)
    half = (draw(5) * 1e4).astype(np.float16)  # its squares are infinite in half precision
    np.testing.assert_allclose(np.linalg.norm(unit_rows(half), axis=1), 1, atol=1e-3)
    rows[1] = np.nan
    with pytest.raises(ValueError, match=r"NaN, infinity .* in 1 of 5 rows"):
        unit_rows(rows)


@pytest.mark.parametrize("change", ["planted", "flipped", "cut", "another user's"])
def test_an_index_that_this_user_did_not_write_is_never_read(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faiss trusts the numbers in a file: wrong ones make it read memory that is not its own."""
    faiss = pytest.importorskip("faiss")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus, queries = clustered(300), unit_rows(clustered(5, seed=1))
    found = make_index(corpus, "hnsw", tmp_path / "kept").search(queries, 3)
    (file,) = (tmp_path / "kept").iterdir()
    content = file.read_bytes()
    if change == "planted":  # a sound index of other rows, which would be taken for this one
        faiss.write_index(make_index(corpus[::-1].copy(), "hnsw").index, str(file))  # type: ignore[attr-defined]
    elif change == "flipped":
        file.write_bytes(content[:9000] + bytes([content[9000] ^ 1]) + content[9001:])
    elif change == "cut":
        file.write_bytes(content[:-1])
    else:
        (tmp_path / "cache" / "unremix" / "seal.key").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(faiss, "deserialize_index", None)
        again = make_index(corpus, "hnsw", tmp_path / "kept").search(queries, 3)
    assert (again.rows == found.rows).all()
    assert file.read_bytes()[:-32] == content[:-32]  # it was built and written again
    assert (
        make_index(corpus, "hnsw", tmp_path / "kept").search(queries, 3).rows == found.rows
    ).all()


def test_a_key_that_others_can_read_seals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "file"
    write_sealed(file, lambda path: path.write_bytes(b"content"))
    assert is_sealed(file)
    assert read_sealed(file) == b"content"
    file.replace(tmp_path / "other")  # a sound file in the place of another
    assert not is_sealed(tmp_path / "other")
    assert read_sealed(tmp_path / "other") is None
    (tmp_path / "other").replace(file)
    key = tmp_path / "unremix" / "seal.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    assert not is_sealed(file)
    key.chmod(0o600)
    key.rename(tmp_path / "moved")
    key.symlink_to(tmp_path / "moved")
    assert not is_sealed(file)
    assert not is_sealed(tmp_path / "absent")
