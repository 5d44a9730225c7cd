"""Images in pieces that are read, decoded and embedded on other machines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unremix.domains.base import Cut, Features, Trained
from unremix.domains.image.dataset import find_splits
from unremix.domains.image.decoding import ArraySource, FileSource, Shape, Source, quiet_pillow
from unremix.domains.image.model import set_features
from unremix.domains.image.splits import Split
from unremix.domains.image.stores import store_images
from unremix.domains.sampling import ranges
from unremix.files.archives import Skipped
from unremix.files.remote import RemoteFile, cache_folder


@dataclass(frozen=True)
class ImagePiece:
    """Images that are read and decoded where they are embedded."""

    split: Split

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`unremix.domains.base.Piece`.

        Raises:
            FileNotFoundError: If this machine does not see a file.
        """
        for file in _files(self.split.source):
            if isinstance(file, str) and not os.path.exists(file):
                raise FileNotFoundError(
                    f"expected {file} on {os.uname().nodename}, found none; put --data on storage "
                    "that all nodes share, or name shards by their URL"
                )
        budget = len(self.split.names) * shape.channels * shape.image_size**2
        with quiet_pillow():
            images, skipped = store_images(
                self.split, Shape(shape.channels, shape.image_size), budget, None
            )
        found = set_features(encoder, images, shape.settings)
        return Features(found, images.names, images.labels, images.classes), skipped


def cut(run: Trained, source: Any, rows: int) -> Cut:
    """The images of a run, or others, in pieces of at most so many."""
    config = run.config
    found = find_splits(
        config.data if source is None else source,
        limit=config.limit if source is None else None,
        validation=config.validation if source is None else None,
    )
    pieces = [ImagePiece(split) for split in _pieces(found.splits, rows)]
    identity = (one for piece in pieces for one in _identity(piece.split))
    return Cut(pieces, identity, found.skipped)


def _files(source: Source) -> dict[str | RemoteFile, None]:
    """The files that images lie in, each once; none if they are in memory."""
    return dict.fromkeys(source.files if isinstance(source, FileSource) else ())


def _identity(split: Split) -> Iterator[str | Tensor]:
    """What distinguishes these images from others, even those of the same names."""
    yield from split.names
    yield repr((split.labels, split.classes))
    yield from map(_version, _files(split.source))
    if isinstance(split.source, ArraySource):
        yield torch.from_numpy(np.ascontiguousarray(split.source.array))


def _version(file: str | RemoteFile) -> str:
    """What changes when a file does, though not if it is moved."""
    if isinstance(file, RemoteFile):
        return f"{file.size} {file.tag}"
    if Path(file).is_relative_to(cache_folder()):
        return Path(file).parent.name  # made of its URL, size and tag
    status = os.stat(file)
    return f"{status.st_size} {status.st_mtime_ns}"


def _pieces(splits: Sequence[Split], rows: int) -> Iterator[Split]:
    """At most so many images each, those for training first."""
    known = all(split.labels is not None for split in splits)
    for split in splits:
        for some in ranges(len(split.names), rows):
            piece = split.keep(some)
            labels = piece.labels if known else None
            yield replace(piece, labels=labels, classes=splits[0].classes)
