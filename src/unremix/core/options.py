"""The options of a loss, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from unremix.core.checks import choose, number
from unremix.core.objectives import InfoNCE, Objective
from unremix.core.scores import Gradient
from unremix.core.weights import Weighting

Tile = int | Literal["auto"] | None
Logits = Literal["cosine", "dot"]
EngineName = Literal["auto", "eager", "compiled", "native"]


@dataclass(frozen=True)
class Options:
    """Everything about a loss that is not a tensor.

    Args:
        weighting: How negatives are weighted; uniform by default.
        objective: The loss of an anchor.
        logits: ``cosine``: f·f/τ; ``dot``: z·z/τ. The scores always use f.
        posterior_temperature: As in :class:`unremix.UnReMixLoss`, and so the following.
        gradient: Which cross-entropy the uncertainty differentiates; ``nt-xent`` uses t = τ.
        bias: Whether the last layer has a bias.
        engine: What evaluates and differentiates a block.
        tile: Anchors per block.
        check: Whether to make checks that wait for the device.

    Raises:
        ValueError: For options that do not exist or contradict each other.
    """

    weighting: Weighting = field(default_factory=Weighting)
    objective: Objective = field(default_factory=InfoNCE)
    logits: Logits = "cosine"
    posterior_temperature: float = 1.0
    gradient: Gradient = "pseudo-label"
    bias: bool = True
    engine: EngineName = "auto"
    tile: Tile = "auto"
    check: bool | None = None

    def __post_init__(self) -> None:
        choose("logits", self.logits, get_args(Logits))
        choose("gradient", self.gradient, get_args(Gradient))
        choose("engine", self.engine, get_args(EngineName))
        number("posterior_temperature", self.posterior_temperature, above=0)
        tile = self.tile
        if not (tile is None or tile == "auto" or (type(tile) is int and tile >= 1)):
            raise ValueError(
                f"expected tile to be 'auto', None or a number of at least 1, got {tile!r}; "
                "leave it at 'auto'"
            )
        prior = getattr(self.objective, "class_prior", 0.0)
        number("class_prior", prior, least=0, below=1)
        if prior and self.logits == "dot":
            raise ValueError(
                f"expected class_prior=0 with logits='dot', got {prior}; leave it out: the "
                "debiased sum is bounded below only for cosines"
            )
