"""The splits of a data set before decoding, and the files that a reader left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unremix.domains.image.decoding import ArraySource, Pixels, Source
from unremix.domains.sampling import drawn
from unremix.files.archives import Skipped

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


@dataclass(frozen=True)
class Split:
    """Images of a split before they are decoded.

    Args:
        names: The name of each image.
        source: The images.
        labels: The class of each, in 0..k-1, or as :func:`labeled` takes it; None if unknown.
        classes: Names of the k classes; None if unknown.
    """

    names: list[str]
    source: Source
    labels: Sequence[Any] | None = None
    classes: list[str] | None = None

    def keep(self, indices: Sequence[int]) -> Split:
        """Some of the images."""
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        names = [self.names[index] for index in indices]
        return Split(names, self.source.choose(indices), labels, self.classes)

    def limited(self, limit: int | None) -> Split:
        """At most ``limit`` images, drawn with a fixed seed, in their order here."""
        if limit is None or limit >= len(self.names):
            return self
        return self.keep(drawn(len(self.names), limit).tolist())

    def divided(self, share: float) -> list[Split]:
        """These images without a share of them, drawn with a fixed seed, and that share."""
        order = torch.randperm(len(self.names), generator=torch.Generator().manual_seed(1))
        cut = round(share * len(self.names))
        return [self.keep(sorted(order[cut:].tolist())), self.keep(sorted(order[:cut].tolist()))]


@dataclass(frozen=True)
class ImageSplits:
    """The splits of a data set: one for training, perhaps one for testing."""

    name: str
    splits: list[Split]
    skipped: Sequence[Skipped] = ()


def name_and_suffix(path: Path) -> tuple[str, str]:
    """The name of a path without its ending, and the ending."""
    for suffix in (".zip", ".npz", ".tar.gz", ".tgz", ".tar"):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)], suffix
    return path.name, ""


def of_array(title: str, images: Pixels, labels: Sequence[Any] | None = None) -> Split:
    """Images in an array, which are named by their numbers."""
    names = [f"{title}/{index:05d}" for index in range(len(images))]
    return Split(names, ArraySource(images), labels)


def labeled(splits: Sequence[Split]) -> list[Split]:
    """Splits whose labels, any values that can be sorted, become 0..k-1 through all of them.

    The sorted values of the first split come first, so that it defines the labels; then those that
    only later splits have.
    """
    classes: list[Any] = []
    for split in splits:
        classes += sorted(set(split.labels or ()) - set(classes))
    number = {value: index for index, value in enumerate(classes)}
    names = [str(value) for value in classes]
    return [
        split
        if split.labels is None
        else replace(split, labels=[number[value] for value in split.labels], classes=names)
        for split in splits
    ]
