"""How good an image encoder is: health and kNN after an epoch, kNN and linear probe on a card."""

from __future__ import annotations

from typing import Any

from unremix.domains.base import Trained
from unremix.domains.image.dataset import ImageData
from unremix.domains.image.encoders import chosen_name
from unremix.domains.image.model import ImageShape, set_features
from unremix.domains.labeled import Labeled

MOST_PIXELS = 2**30  # values of raw pixels that are measured: 4 GiB; of more images than that, none


def facts(run: Trained, data: ImageData) -> dict[str, Any]:
    """What the card of a run on images says beside the counts."""
    shape: ImageShape = run.shape
    return {
        "skipped_files": len(data.skipped),
        "backbone": chosen_name(run.config.own.backbone, shape.image_size),
        "image_size": shape.image_size,
    }


def raw(run: Trained, data: ImageData) -> tuple[str, str | None]:
    """What is compared with the encoders, if it fits into memory."""
    shape: ImageShape = run.shape
    fits = len(data.train) * shape.channels * shape.image_size**2 <= MOST_PIXELS
    return "pixels", None if fits else "left out: they would not fit into memory"


LABELED = Labeled(
    encode=lambda encoder, images, shape: set_features(encoder, images, shape.settings),
    layer="backbone output, before the projection head; eval mode; images not augmented",
    facts=facts,
    raw=raw,
)
