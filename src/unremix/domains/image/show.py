"""How images are shown on a page: a sample with views, thumbnails, queries by path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unremix.domains.base import Trained
from unremix.domains.image.dataset import ImageData
from unremix.domains.image.items import read_items
from unremix.domains.image.model import features_of
from unremix.domains.remembered import recall
from unremix.domains.shown import Sample, two_view_sample
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss


def sample(run: Trained, data: ImageData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on images; see :class:`unremix.domains.base.Domain`."""
    settings, parts, encoder = run.shape.settings, [data.train], run.encoder()
    if data.test is not None and (data.test.labels is not None or data.train.labels is None):
        parts.append(data.test)  # without labels it would hide those of the training images

    def read(items: Tensor) -> Tensor:
        found = thumbnails(data, items.tolist())
        return torch.stack([found[item] for item in items.tolist()])

    def draw(images: Tensor) -> Tensor:
        """Stored images as they are; views without their normalization."""
        if images.dtype == torch.uint8:
            return images
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (settings.mean, settings.std))
        return (255 * (images.float() * std + mean)).round().clamp(0, 255).byte()

    def features(items: Tensor) -> Tensor:
        embedded = [recall(encoder, part) for part in parts]
        if all(one is not None for one in embedded):
            return torch.cat(embedded)[items]
        return torch.cat([features_of(encoder, read(some), settings) for some in items.split(512)])

    return two_view_sample(run, data, model, loss, features, draw=draw, parts=parts, read=read)


def thumbnails(data: ImageData, rows: Sequence[int]) -> dict[int, Tensor]:
    """Images, uint8 (C, S, S), of rows of the data: training images first."""
    found: dict[int, Tensor] = {}
    for part, offset in ((data.train, 0), (data.test, len(data.train))):
        some = [] if part is None else [row for row in rows if 0 <= row - offset < len(part)]
        if part is not None and some:
            found |= dict(zip(some, part.images.batch(torch.tensor(some) - offset), strict=True))
    return found


def ask(query: str) -> list[str]:
    """A query that names no image of the data is the path of one.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not Path(query).is_file():
        raise FileNotFoundError(
            f"expected a picture in the data, or the path of one, got {query!r}; "
            "pass a path, or a name as 'unremix embed' lists them"
        )
    return [query]


def preview(run: Trained, paths: Sequence[str]) -> Sequence[Tensor]:
    """The pictures at some paths, each uint8, shape (C, S, S)."""
    return list(read_items(paths, channels=run.shape.channels, size=run.shape.image_size))


def names_of(query: str, places: Sequence[Path]) -> list[str]:
    """The names that a query may have: as it is, or by its path below one of the folders."""
    names, path = [query], Path(query).resolve()
    for folder in places:
        if path.is_file() and path.is_relative_to(folder.resolve()):
            parts = path.relative_to(folder.resolve()).parts
            # Outer folders that hold everything are not part of a name.
            names += ["/".join(parts[start:]) for start in range(len(parts))]
    return names
