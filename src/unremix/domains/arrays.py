"""Samples in one tensor, for kinds of data that need no store of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.domains.sampling import drawn


@dataclass(frozen=True)
class Samples:
    """n samples with their names and, where known, labels.

    Args:
        x: The samples, float32, shape (n, ...).
        names: Of each, such as "train/00012".
        labels: The class of each, shape (n,), int64 in 0..k-1; None if unknown.
        classes: Names of the k classes; None if unknown.
    """

    x: Tensor
    names: list[str]
    labels: Tensor | None = None
    classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Splits:
    """Samples to learn from and, where there are any, samples held out."""

    name: str
    train: Samples
    test: Samples | None = None

    @property
    def x(self) -> Tensor:
        """All samples, those to learn from first."""
        return self.train.x if self.test is None else torch.cat([self.train.x, self.test.x])


def splits_of(name: str, arrays: Mapping[str, NDArray[Any]], *, limit: int | None = None) -> Splits:
    """Arrays ``x`` (and ``y``), or ``x_train`` (``y_train``, ``x_test``, ``y_test``), as splits.

    Args:
        name: Of the data.
        arrays: Samples (n, ...), and their classes (n,) as numbers or text.
        limit: At most so many samples of each split, drawn with a fixed seed.

    Returns:
        The splits, with names of the classes where there are labels.

    Raises:
        ValueError: If there are no samples, numbers are not finite, or classes are not one each.

    Example:
        >>> found = splits_of("two", {"x": np.eye(2), "y": np.array(["cat", "ant"])})
        >>> found.train.labels, found.train.classes
        (tensor([1, 0]), ['ant', 'cat'])
    """
    if not {"x", "x_train"} & arrays.keys():
        given = ", ".join(sorted(arrays)) or "none"
        raise ValueError(f"expected an array x or x_train in {name}, got {given}; rename it")
    known = [array for key, array in arrays.items() if key in ("y", "y_train", "y_test")]
    classes = np.unique(np.concatenate(known)) if known else np.empty(0)

    def split(x: str, y: str) -> Samples:
        samples = torch.as_tensor(arrays[x]).float()
        if not samples.ndim or not len(samples):
            raise ValueError(f"expected samples in {x} of {name}, got none")
        if not samples.isfinite().all():
            raise ValueError(f"expected finite numbers in {x} of {name}, got others; fill them in")
        rows = drawn(len(samples), limit)
        names = [f"{x.removeprefix('x_')}/{row:05d}" for row in rows.tolist()]
        if y not in arrays:
            return Samples(samples[rows], names)
        if arrays[y].shape != (len(samples),):
            raise ValueError(
                f"expected a class for each of {len(samples)} samples in {y} of {name}, got shape "
                f"{arrays[y].shape}"
            )
        labels = torch.from_numpy(np.searchsorted(classes, arrays[y]))[rows]
        return Samples(samples[rows], names, labels, [str(one) for one in classes])

    train = split("x", "y") if "x" in arrays else split("x_train", "y_train")
    return Splits(name, train, split("x_test", "y_test") if "x_test" in arrays else None)
