"""How rows are shown on a page: as small tables, or by the image or text that a column names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from unremix.domains.base import Trained
from unremix.domains.sampling import drawn
from unremix.domains.shown import MOST_ITEMS, Sample
from unremix.domains.vectors.dataset import VectorData
from unremix.domains.vectors.encoding import VectorShape
from unremix.domains.vectors.files import word
from unremix.domains.vectors.model import LABELED, parts_of
from unremix.files.atomic_files import open_file
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss

MOST_CELLS = 12
DIGITS = 4
TILE = 96  # pixels per side of an image
MISSING = "–"


def sample(run: Trained, data: VectorData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on rows; see :class:`unremix.domains.base.Domain`."""
    train, found = data.train, LABELED.sample(run, data, model, loss)
    numbers, is_image = drawn(len(train), MOST_ITEMS).tolist(), shows_images(data)
    texts = train.names if train.shown is None or is_image else train.shown

    def images(wanted: Sequence[int]) -> Tensor:
        found = thumbnails(data, [numbers[item] for item in wanted])
        return torch.stack([found[numbers[item]] for item in wanted])

    def table(item: int) -> list[tuple[str, str]]:
        return cells(data, run.shape, numbers[item])

    about = (
        f"One batch of {len(found.batch)} rows: each row as it is is an anchor, the changed views "
        "of all others are its negatives."
    )
    return replace(
        found,
        names=[texts[number] for number in numbers],
        about_batch=about,
        finding="rows find their own changed view",
        images=images if is_image else None,
        table=table if train.shown is None and not run.shape.are_dimensions else None,
    )


def cells(data: VectorData, shape: VectorShape, row: int) -> list[tuple[str, str]]:
    """The first columns of a training row and their values, as a small table."""
    names = [one.name for one in shape.columns[:MOST_CELLS]]
    found = [(name, word(data.train.columns[name][row], DIGITS) or MISSING) for name in names]
    more = len(shape.columns) - len(found)
    return [*found, (f"{more} more", "…")] if more else found


def shows_images(data: VectorData) -> bool:
    """Whether what is shown of each row is an image, by the first path."""
    first = next(filter(None, data.train.shown or ()), "")
    path = data.folder / first
    return path.suffix.lower() in Image.registered_extensions() and path.is_file()


def thumbnails(data: VectorData, rows: Sequence[int]) -> dict[int, Tensor]:
    """Images, uint8 (3, S, S), of rows of the data, those for training first; gray for none."""
    if not shows_images(data):
        return {}
    paths = [data.folder / path for part in parts_of(data) for path in part.shown or ()]
    return {row: _thumbnail(paths[row]) for row in rows}


def _thumbnail(path: Path) -> Tensor:
    try:
        with open_file(path) as file, Image.open(file) as image:
            image.draft("RGB", (TILE, TILE))
            found = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (TILE, TILE))
    except (OSError, ValueError, Image.DecompressionBombError):  # it is missing or damaged
        found = Image.new("RGB", (TILE, TILE), "gray")
    return torch.from_numpy(np.array(found)).permute(2, 0, 1)
