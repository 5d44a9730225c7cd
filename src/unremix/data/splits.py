"""What a reader found: the splits of a data set, and what it had to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unremix.data.archives import Skipped
from unremix.data.bounds import shorten
from unremix.data.image.decoding import Source
from unremix.data.subsets import drawn

ACCEPTED = (
    "the word 'digits'; a folder of images or a zip of one; CIFAR-10/100 python pickles, as a "
    "folder or .tar.gz; a folder of MNIST-like idx files; an .npz with arrays images (and labels) "
    "or x_train, y_train, x_test, y_test; WebDataset shards, as a .tar, a folder of .tar files or "
    "a pattern like 'shards-{000..099}.tar'. A relative path is also looked up in the folder that "
    "the environment variable UNREMIX_DATA names"
)

IMAGES = (
    "accepted are digits, a folder or zip of images, CIFAR or idx files, .npz and WebDataset shards"
)


def name_some(skipped: Sequence[Skipped], most: int = 5) -> str:
    """Files and reasons in words; beyond ``most``, only their number."""
    words = ", ".join(f"{shorten(name)} ({shorten(reason)})" for name, reason in skipped[:most])
    return words if len(skipped) <= most else f"{words} and {len(skipped) - most} more"


@dataclass(frozen=True)
class Split:
    """Images of a split before they are decoded.

    Args:
        names: The name of each image.
        source: The images.
        labels: The class of each, in 0..k-1; None where unknown.
        classes: Names of the k classes; None where unknown.
    """

    names: list[str]
    source: Source
    labels: list[int] | None = None
    classes: list[str] | None = None

    def keep(self, indices: Sequence[int]) -> Split:
        """Some of the images."""
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        names = [self.names[index] for index in indices]
        return Split(names, self.source.choose(indices), labels, self.classes)

    def choose(self, limit: int | None) -> Split:
        """At most ``limit`` images, drawn with a fixed seed, in their order here."""
        if limit is None or limit >= len(self.names):
            return self
        return self.keep(drawn(len(self.names), limit).tolist())

    def part(self, share: float) -> list[Split]:
        """These images without a share of them, drawn with a fixed seed, and that share."""
        order = torch.randperm(len(self.names), generator=torch.Generator().manual_seed(1))
        cut = round(share * len(self.names))
        return [self.keep(sorted(order[cut:].tolist())), self.keep(sorted(order[:cut].tolist()))]


@dataclass(frozen=True)
class Found:
    """What a format yields: a split for training, perhaps one for testing."""

    name: str
    splits: list[Split]
    skipped: Sequence[Skipped] = ()


def name_and_suffix(path: Path) -> tuple[str, str]:
    """The name of a path without its ending, and the ending."""
    for suffix in (".zip", ".npz", ".tar.gz", ".tgz", ".tar"):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)], suffix
    return path.name, ""


def index_names(split: str, count: int) -> list[str]:
    """Names for images that have none of their own."""
    return [f"{split}/{index:05d}" for index in range(count)]


def _number(values: Sequence[Sequence[Any] | None]) -> tuple[list[list[int] | None], list[str]]:
    """Labels 0..k-1 for the values of each split, and the k names.

    The sorted values of the first split come first, so that it defines the labels; then those that
    only later splits have.
    """
    classes: list[Any] = []
    for part in values:
        classes += sorted(set(part or ()) - set(classes))
    number = {value: index for index, value in enumerate(classes)}
    labels = [None if part is None else [number[value] for value in part] for part in values]
    return labels, [str(value) for value in classes]


def labeled(
    splits: Sequence[tuple[list[str], Source]], values: Sequence[Sequence[Any] | None]
) -> list[Split]:
    """Splits whose labels count through all of them."""
    labels, classes = _number(values)
    return [
        Split(names, source, part, None if part is None else classes)
        for (names, source), part in zip(splits, labels, strict=True)
    ]
