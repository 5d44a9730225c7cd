"""How images are shown on a page: a sample with views, thumbnails, queries by path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from unremix.core.pairs import Pairs
from unremix.domains.base import Trained
from unremix.domains.image.dataset import ImageData
from unremix.domains.image.items import read_items
from unremix.domains.image.model import features_of
from unremix.domains.image.views import augment
from unremix.domains.remembered import recall
from unremix.domains.sample import (
    FIRST_VIEW,
    MOST_ITEMS,
    SECOND_VIEW,
    SHOWN_VIEWS,
    Sample,
    as_views,
    draw_batch,
    how_drawn,
    projecting,
)
from unremix.domains.sampling import drawn
from unremix.frameworks.base import Framework
from unremix.frameworks.randomness import keys
from unremix.losses import TwoViewLoss

EMBEDDED_AT_ONCE = 128


def sample(run: Trained, data: ImageData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on images; see :class:`unremix.domains.base.Domain`."""
    settings, parts = run.shape.settings, [data.train]
    if data.test is not None and (data.test.labels is not None or data.train.labels is None):
        parts.append(data.test)  # without labels it would hide those of the training images
    sizes = [len(part) for part in parts]
    items = drawn(sum(sizes), MOST_ITEMS)

    def images(numbers: Sequence[int]) -> Tensor:
        """Images of items, in their order."""
        rows = [int(items[number]) for number in numbers]
        found = thumbnails(data, rows)
        return torch.stack([found[row] for row in rows])

    encoder = run.encoder()
    embedded = [recall(encoder, part) for part in parts]
    if all(one is not None for one in embedded):
        features = torch.cat(embedded)[items]
    else:
        features = torch.cat(
            [
                features_of(encoder, images(part.tolist()), settings)
                for part in torch.arange(len(items)).split(512)
            ]
        )
    known = [part.labels for part in parts if part.labels is not None]
    names = [name for part in parts for name in part.names]
    of_training = int((items < sizes[0]).sum())
    batch = draw_batch(of_training)
    model = projecting(model)
    pictures = images(batch.tolist())

    def embed(view: int) -> tuple[Tensor, Tensor]:
        parts = []
        for part in torch.arange(len(batch)).split(EMBEDDED_AT_ONCE):
            key = keys(run.config.seed, 0, items[batch[part]], view)
            shown = augment(pictures[part], settings, key)
            parts.append(model.embed(shown.to(model.dtype)))
        return torch.cat([z for z, _ in parts]), torch.cat([h for _, h in parts])

    few = batch[:SHOWN_VIEWS]
    mean = torch.tensor(settings.mean).view(-1, 1, 1)
    std = torch.tensor(settings.std).view(-1, 1, 1)
    shown = [
        augment(images(few.tolist()), settings, keys(run.config.seed, 0, items[few], view))
        for view in (FIRST_VIEW, SECOND_VIEW)
    ]
    views = [(255 * (view * std + mean)).round().clamp(0, 255).byte() for view in shown]
    return Sample(
        names=[names[index] for index in items.tolist()],
        features=features,
        total=sum(sizes),
        how_drawn=how_drawn(items, sum(sizes)),
        labels=torch.cat(known)[items] if len(known) == len(parts) else None,
        classes=None if data.train.classes is None else list(data.train.classes),
        batch=batch,
        anchors=as_views(*embed(FIRST_VIEW)),
        candidates=as_views(*embed(SECOND_VIEW)),
        pairs=Pairs.one_way(len(batch)),
        about_batch=(
            f"One batch of {len(batch)} training images: the first view of each is an anchor, the "
            "second views of all others are its negatives."
        ),
        finding="images find their own second view",
        loss=loss,
        images=images,
        views=torch.stack(views, dim=1),
    )


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
            # Folders that wrap all the others are no part of a name.
            names += ["/".join(parts[start:]) for start in range(len(parts))]
    return names
