"""Columns of numbers and texts from files, read as data: no pickle is ever opened."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.files.atomic_files import checked, open_text, write_arrays
from unremix.files.bounds import shorten
from unremix.mining.embeddings import NUMBERED, read_columns

Columns = dict[str, NDArray[Any]]
"""By name, each (n,): numbers, NaN where they are missing; or texts, empty where missing."""

MATRICES = ("embeddings", "x", "X", "data")  # the first of these, if a file has several
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
SHORT = 5  # characters


def read_table(path: Path) -> Columns:
    """The columns of a file; those of a matrix are called ``embedding_0`` and so on.

    Raises:
        ImportError: If a package for this kind of file is missing.
        ValueError: If it is damaged, or holds something else.
    """
    try:
        return _one_table(READERS[path.suffix.lower()](path))
    except Exception as error:  # the libraries raise almost anything for a damaged file
        if isinstance(error, ImportError | OSError) or str(error).startswith("expected "):
            raise
        why = shorten(error, 400)
        raise ValueError(f"expected rows of numbers in {path}, got {why}") from error


def as_column(values: Iterable[Any]) -> NDArray[Any]:
    """Values of a column as numbers, if they all are, else as texts.

    Example:
        >>> as_column([1, None, 2.5]), as_column(["a", None])
        (array([1. , nan, 2.5]), array(['a', ''], dtype=object))
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    found = list(values)
    if all(one is None or isinstance(one, Number) for one in found):
        return np.array(found, dtype=np.float64)  # None becomes NaN
    return np.array([word(one) for one in found], dtype=object)


def word(value: Any, digits: int = 9) -> str:
    """A cell as text; whole numbers without a point, missing ones empty.

    Example:
        >>> word(3.0), word(3.14159, 4), word("a"), word(float("nan"))
        ('3', '3.142', 'a', '')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, Number):
        return str(value)
    number: Any = value
    return str(int(number)) if number % 1 == 0 else f"{number:.{digits}g}"


def _one_table(arrays: dict[str, NDArray[Any]]) -> Columns:
    """The arrays of a file as columns of one table."""
    matrices = [name for name, one in arrays.items() if one.ndim > 1]
    chosen = [name for name in MATRICES if name in matrices][:1] or matrices
    if len(chosen) > 1 or any(arrays[name].ndim > 2 for name in chosen):
        shapes = ", ".join(f"{name} {arrays[name].shape}" for name in matrices)
        raise ValueError(f"{shapes}; save a matrix (n, D), called embeddings if there are several")
    columns = {name: as_column(one) for name, one in arrays.items() if one.ndim == 1}
    for name in chosen:
        by_column = np.ascontiguousarray(arrays[name].T)  # of a mapped file, read once
        columns |= {f"{NUMBERED}{place}": one for place, one in enumerate(by_column)}
    counts = {name: len(one) for name, one in columns.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(f"rows in each column: {counts or 'none'}; give all the same number")
    return columns


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors.torch import load_file

    found = load_file(checked(path)).items()
    return {name: (one.float() if one.is_floating_point() else one).numpy() for name, one in found}


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    with open_text(path, "utf-8-sig") as stream:
        first = stream.readline()
        stream.seek(0)
        reader = csv.reader(stream, delimiter=max(",;\t", key=first.count))
        headings = next(reader, [])
        numbers = sum(_typed([one]).dtype != object for one in headings)
        if not headings or len({*headings}) < len(headings) or 2 * numbers > len(headings):
            why = f"a first line {shorten(headings)}"
            raise ValueError(f"{why}; begin with the names of the columns, all different")
        columns: list[list[str]] = [[] for _ in headings]
        known: dict[str, str] = {}  # of equal short texts, one is kept
        for cells in filter(None, reader):
            if len(cells) != len(headings):
                why = f"{len(cells)} cells in line {reader.line_num}, but {len(headings)} headings"
                raise ValueError(f"{why}; repair that line")
            for column, cell in zip(columns, cells, strict=True):
                column.append(known.setdefault(cell, cell) if len(cell) < SHORT else cell)
    return {name: _typed(cells) for name, cells in zip(headings, columns, strict=True)}


def _typed(cells: Sequence[str]) -> NDArray[Any]:
    texts = ["" if cell.strip().lower() in MISSING else cell for cell in cells]
    try:
        return np.array([float(text or "nan") for text in texts])
    except ValueError:
        return np.array(texts, dtype=object)


READERS: dict[str, Callable[[Path], dict[str, NDArray[Any]]]] = {
    **dict.fromkeys((".npy", ".npz", ".parquet"), read_columns),
    ".csv": _read_csv,
    ".safetensors": _read_safetensors,
}


def holds(items: Any) -> bool:
    """Whether items in memory are rows of numbers."""
    return getattr(items, "ndim", None) == 2 and hasattr(items, "dtype")


def write(items: Any, classes: Sequence[Any] | None, path: Path) -> Path:
    """Write rows of numbers in memory as an .npz."""
    arrays = {"x": np.asarray(items)}
    if classes is not None:
        arrays["labels"] = np.asarray([str(one) for one in classes])
    write_arrays(path.with_suffix(".npz"), arrays)
    return path.with_suffix(".npz")
