"""How columns become features: numbers standardized, categories one-hot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.console.suggestions import did_you_mean
from unremix.console.values import check_types
from unremix.domains.vectors.files import Columns, word
from unremix.files.bounds import shorten
from unremix.mining.embeddings import NUMBERED

MOST_CATEGORIES = 32  # of a column, the most frequent; all others share a feature
MOST_INPUTS = 1 << 20  # features


@dataclass(frozen=True)
class Column:
    """How a column becomes features; learned from the training rows.

    A column of numbers is (value - mean) / scale, 0 where it is missing or infinite. If training
    rows lack it, a second feature marks those that do. A column of categories has a feature for
    each of its values, and a last one for all others.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0  # 0 if the column is constant; so is its feature then
    gaps: bool = False  # whether training rows lack it
    values: tuple[str, ...] = ()  # the categories; none for numbers

    @property
    def width(self) -> int:
        """Features of the column."""
        return len(self.values) + 1 if self.values else 1 + self.gaps

    @classmethod
    def fit(cls, name: str, values: NDArray[Any]) -> Column | None:
        """The encoding of a column (n,); None if it is empty, or text mostly distinct."""
        if values.dtype == object:
            counts = Counter(values.tolist())
            if set(counts) == {""} or 2 * len(counts) > len(values):
                return None
            usual = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_CATEGORIES]
            return cls(name, values=tuple(value for value, _ in usual))
        numbers = values.astype(np.float64)
        known = numbers[np.isfinite(numbers)]
        if not len(known):
            return None
        scale = float(known.std()) if known.min() < known.max() else 0.0
        return cls(name, float(known.mean()), scale, len(known) < len(numbers))

    def encode(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Features of rows, shape (n, width).

        Raises:
            ValueError: For texts in a column of numbers.
        """
        found = np.zeros((len(values), self.width), dtype=np.float32)
        if self.values:
            places = {value: place for place, value in enumerate(self.values)}
            chosen = [places.get(word(value), len(places)) for value in values.tolist()]
            found[np.arange(len(values)), chosen] = 1
            return found
        if values.dtype == object:
            text = next(filter(None, values), "")
            raise ValueError(f"expected numbers in the column {self.name!r}, got {shorten(text)!r}")
        numbers = values.astype(np.float64)
        known = np.isfinite(numbers)
        if self.scale:
            found[known, 0] = (numbers[known] - self.mean) / self.scale
        if self.gaps:
            found[:, 1] = ~known
        return found


@dataclass(frozen=True)
class VectorShape:
    """What rows decide about the model: how their columns become features."""

    columns: tuple[Column, ...]
    notes: tuple[str, ...]  # what became of other columns, in words

    @classmethod
    def fit(cls, columns: Columns, wanted: Sequence[str], roles: Mapping[str, str]) -> VectorShape:
        """The encoding of training rows.

        Args:
            columns: All columns.
            wanted: Those that may be features.
            roles: Of other columns, by what they are, for the notes.

        Raises:
            ValueError: If no column can be encoded.
        """
        tried = [Column.fit(name, columns[name]) for name in wanted]
        found = tuple(one for one in tried if one is not None)
        if not found:
            received = shorten(", ".join(columns), 400)
            raise ValueError(f"expected columns of numbers or categories, got only {received}")
        kept = {*roles.values(), *(one.name for one in found)}
        said = {**roles, "left out": ", ".join(name for name in columns if name not in kept)}
        notes = (f"{what}: {shorten(names, 200)}" for what, names in said.items() if names)
        return cls(found, tuple(notes))

    @property
    def inputs(self) -> int:
        """F, the number of features."""
        return sum(one.width for one in self.columns)

    @property
    def are_dimensions(self) -> bool:
        """Whether the columns are the dimensions of an embedding."""
        return all(one.name.startswith(NUMBERED) for one in self.columns)

    @property
    def column_of(self) -> Tensor:
        """The column of each feature, as its number, shape (F,)."""
        widths = torch.tensor([one.width for one in self.columns])
        return torch.arange(len(widths)).repeat_interleave(widths)

    def encode(self, columns: Columns) -> Tensor:
        """Features of rows, shape (n, F).

        Raises:
            ValueError: If a column is missing or holds something else than in training.
        """
        for name in (one.name for one in self.columns if one.name not in columns):
            got = shorten(", ".join(columns), 300) + did_you_mean(name, columns)
            raise ValueError(f"expected a column {name!r}, as in the training rows, got {got}")
        parts = [one.encode(columns[one.name]) for one in self.columns]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def describe(self) -> str:
        """The columns and their encoding, in a sentence."""
        named = sum(bool(one.values) for one in self.columns)
        gaps = sum(one.gaps for one in self.columns)
        parts = [f"{len(self.columns) - named} columns of numbers"]
        parts += [f"{named} of categories (one-hot, at most {MOST_CATEGORIES})"] if named else []
        parts += [f"{gaps} with missing numbers (the mean, and a mark)"] if gaps else []
        return ", ".join(parts) + (f" ({'; '.join(self.notes)})" if self.notes else "")


def shape_from(values: dict[str, Any]) -> VectorShape:
    """The shape from plain values.

    Raises:
        ValueError: For sizes or numbers that no data lead to.
    """
    columns = [Column(**{**one, "values": tuple(one["values"])}) for one in values["columns"]]
    shape = VectorShape(tuple(columns), tuple(values["notes"]))
    for one in (shape, *columns):
        check_types(one)
    finite = all(math.isfinite(one.mean) and 0 <= one.scale < math.inf for one in columns)
    if not finite or not 1 <= shape.inputs <= MOST_INPUTS:
        raise ValueError(f"expected finite columns, got {len(columns)} of {shape.inputs} features")
    return shape
