"""Rows from the files a user has: which columns are features, labels, names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.console.suggestions import did_you_mean
from unremix.domains.arrays import Samples
from unremix.domains.sampling import drawn
from unremix.domains.vectors.encoding import VectorShape
from unremix.domains.vectors.files import READERS, Columns, read_table, word
from unremix.domains.vectors.options import VectorOptions
from unremix.files.bounds import shorten
from unremix.files.locate import candidates, locate
from unremix.mining.embeddings import NUMBERED

EMBEDDED = ("breast-cancer", "wine")
ACCEPTED = (
    f"accepted are {' and '.join(EMBEDDED)}, and files that end in {', '.join(READERS)}: a table "
    "with a name for each column, or a matrix (n, D)"
)
LABELS = ("class_names", "labels", "label", "target", "class", "y")  # the first, if none is named
NEVER = LABELS[:2]  # of files of 'unremix embed': no features, whatever the label
NAMES = ("names", "name", "id", "", "__index_level_0__")  # the last two: of data frames
SURE = (".csv", ".parquet", ".npy", ".safetensors")  # an .npz holds images as often


@dataclass(frozen=True, kw_only=True)
class VectorSet(Samples):
    """Some rows: their features (n, F), and the columns that they were made of."""

    columns: Columns
    shown: list[str] | None = None  # an image's path or a text for each row

    @cached_property
    def spread(self) -> Tensor:
        """The standard deviation of each feature, shape (F,)."""
        return self.x.std(0, correction=0)


@dataclass(frozen=True)
class VectorData:
    """What :func:`load_vectors` found; the folder is that of the file, if there is one."""

    name: str
    train: VectorSet
    test: VectorSet | None
    shape: VectorShape
    folder: Path


def recognizes(source: str) -> bool:
    """Whether a path or name is that of rows of numbers."""
    if source in EMBEDDED:
        return not any(place.exists() for place in candidates(source))
    return Path(source).suffix.lower() in SURE


def load_vectors(
    source: str,
    options: VectorOptions,
    *,
    limit: int | None = None,
    validation: float | None = None,
    shape: VectorShape | None = None,
) -> VectorData:
    """Load rows from any of the accepted formats.

    Args:
        source: The name of embedded data, a path or a URL.
        options: Which columns are labels, shown, and no features.
        limit: At most this many rows, drawn with a fixed seed; they stay in order.
        validation: Hold out this share of the rows as ``test``, drawn with a fixed seed.
        shape: How to encode the rows, from other data; None to derive it from the rows for
            training. With one, the columns of labels and of what is shown may be missing.

    Raises:
        FileNotFoundError: If the data do not exist.
        ValueError: If a file is wrong, or a column is missing.

    Example:
        >>> data = load_vectors("wine", VectorOptions(), limit=100)
        >>> data.train.x.shape, data.train.classes
        (torch.Size([100, 13]), ['class_0', 'class_1', 'class_2'])
    """
    columns, name, folder = _read(source)
    kept = drawn(len(next(iter(columns.values()))), limit).numpy()
    columns = {one: values[kept] for one, values in columns.items()}
    roles, wanted = _roles(columns, options, strict=shape is None)
    names, shown = (_texts(columns, roles.get(role)) for role in ("names", "shown"))
    if names is None:
        names = np.array([f"row {1 + place}" for place in kept], dtype=object)
    labels, classes = _classes(columns, roles.get("label"))
    held = np.zeros(len(kept), dtype=bool)
    held[drawn(len(kept), round((validation or 0) * len(kept)))] = True
    train, test = ({one: v[chosen] for one, v in columns.items()} for chosen in (~held, held))
    encoding = VectorShape.fit(train, wanted, roles) if shape is None else shape

    def part(rows: Columns, chosen: NDArray[np.bool_]) -> VectorSet:
        return VectorSet(
            encoding.encode(rows),
            names[chosen].tolist(),
            None if labels is None else torch.from_numpy(labels[chosen]),
            classes,
            columns=rows,
            shown=None if shown is None else shown[chosen].tolist(),
        )

    later = part(test, held) if held.any() else None
    return VectorData(name, part(train, ~held), later, encoding, folder)


def _roles(
    columns: Columns, options: VectorOptions, *, strict: bool
) -> tuple[dict[str, str], list[str]]:
    """The columns that are label, shown and names, by these words; and those for features.

    Raises:
        ValueError: If one that the options name is not there, and that is strict.
    """
    for name in (options.label, options.shown, *options.without):
        if strict and name is not None and name not in columns:
            known, hint = shorten(", ".join(columns), 400), did_you_mean(name, columns)
            raise ValueError(f"expected the name of a column among {known}, got {name!r}{hint}")
    usual = (one for one in LABELS if one in columns and one not in options.without)
    label = options.label or next(usual, "")
    free = [n for n in columns if n not in (*NEVER, *options.without, label, options.shown)]
    texts = [n for n in (*free, options.shown) if n in columns and columns[n].dtype == object]
    distinct = [n for n in texts if len(set(columns[n])) == len(columns[n])]
    names = next((n for n in (*NAMES, *distinct) if n in (*free, options.shown)), None)
    wanted = [n for n in free if n != names]
    numbered = [n for n in wanted if n.startswith(NUMBERED)]  # beside them, nothing else
    roles = {"label": label, "shown": options.shown, "names": names}
    return {role: n for role, n in roles.items() if n in columns}, numbered or wanted


def _read(source: str) -> tuple[Columns, str, Path]:
    """The columns of embedded data or a file, a short name, and the file's folder."""
    if recognizes(source) and source in EMBEDDED:
        from sklearn import datasets  # type: ignore[import-untyped]

        found = getattr(datasets, f"load_{source.replace('-', '_')}")()
        columns = dict(zip(map(str, found.feature_names), found.data.T, strict=True))
        return columns | {"label": found.target_names.astype(object)[found.target]}, source, Path()
    path = locate(source, ACCEPTED, suffixes=("", *READERS))
    if not path.is_file() or path.suffix.lower() not in READERS:
        raise ValueError(f"expected a file of rows, got {path}; {ACCEPTED}")
    return read_table(path), path.stem, path.parent


def _texts(columns: Columns, name: str | None) -> NDArray[Any] | None:
    return None if name is None else np.array([word(one) for one in columns[name]], dtype=object)


def _classes(
    columns: Columns, label: str | None
) -> tuple[NDArray[np.int64] | None, list[str] | None]:
    """The class of each row, shape (n,), and the names of the classes.

    Raises:
        ValueError: If some rows have none, or most one of their own.
    """
    if label is None:
        return None, None
    values, labels = np.unique(columns[label], return_inverse=True)
    classes = [word(value) for value in values]
    if "" in classes or 2 * len(classes) > max(4, len(labels)):
        found = "rows without" if "" in classes else f"{len(classes)} in {len(labels)} rows"
        what = f"the class of each row in the column {label!r}"
        remedy = "complete it, name another with --vectors.label, or use --vectors.without"
        raise ValueError(f"expected {what}, got {found}; {remedy}")
    return labels, classes
