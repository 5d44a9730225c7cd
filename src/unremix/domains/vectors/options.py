"""What a run on rows of numbers can be told, and the recipes for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unremix.console.values import bounded
from unremix.frameworks.recipe import Recipe


@dataclass(frozen=True)
class VectorOptions:
    """Options for rows of numbers.

    Args:
        label: The column of classes, never a feature; by default labels, label, target, class or y,
            if there is one.
        without: Further columns that are no features, such as other targets.
        shown: The column of image paths or texts that pages show for each row; no feature.
        views: How the second view changes a row: corrupt replaces features by those of other rows
            (SCARF), noise adds noise; auto is noise for embeddings, corrupt for other data.
        corruption: The share of features that a corrupted view replaces.
        noise: The standard deviation of the noise, relative to that of each feature.
        hidden: Size of each layer of the encoder.
        layers: Layers of the encoder.
    """

    label: str | None = None
    without: tuple[str, ...] = ()
    shown: str | None = None
    views: Literal["auto", "corrupt", "noise"] = "auto"
    corruption: float = bounded(0.6, above=0, most=1)
    noise: float = bounded(0.5, above=0)
    hidden: int = bounded(256, least=1)
    layers: int = bounded(4, least=1, most=1000)


# One anchor per row: the row as it is, against the changed views of all rows.
SCARF = {"loss": {"layout": "one-way"}}
RECIPES = (
    Recipe("scarf", "SCARF: a row finds its corrupted view", temperature=1.0, preset=SCARF),
    Recipe("scarf-unremix", "UnReMix on SCARF", "simclr", "unremix", temperature=1.0, preset=SCARF),
)
