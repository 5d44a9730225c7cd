"""From scores to weights: scaling, mix and mass.

w_ij = link(Σ_k λ_k C^k_ij) over Neg(i), brought to the wanted mass, and 0 elsewhere; C^k is the
score of component k after scaling. Uniform weights have no component. HCL's weights are one raw
component, the similarity, under an exponential link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from unremix.core.checks import check_choice, to_device_of
from unremix.core.precision import noise
from unremix.core.scores import COMPONENTS, Block, Component, Score

Scaling = Literal["minmax", "zscore", "none"]
Mass = Literal["mean", "none"]


class Filter(Protocol):
    """What makes negatives count less that are probably false; see :mod:`unremix.signals`."""

    def evidence_of(self, block: Block) -> Tensor:
        """How similar anchors and candidates are by its evidence, shape (B, M)."""

    def __call__(self, block: Block) -> Tensor:
        """A factor in [0, 1] on each weight, shape (B, M)."""


@dataclass(frozen=True)
class Weighting:
    """How scores become weights. The default is uniform.

    Args:
        components: Names from :data:`unremix.core.scores.COMPONENTS`, or score functions.
        scaling: ``minmax`` to [0, 1] per anchor, ``zscore`` standardized per anchor, ``none`` raw.
        sharpness: None: the mix itself, clamped at 0, is the weight. A number: the weight is
            exp(sharpness × mix).
        mass: ``mean`` makes the average weight over the negatives 1, ``none`` leaves it.
        similarity_gradient: Whether gradient flows to the embeddings through the similarity
            component.
        over_temperature: Whether the sharpness is divided by the loss's temperature (HCL).
        filter: What is done about negatives that are probably false; nothing by default.

    Raises:
        ValueError: For an unknown component, scaling or mass.
    """

    components: tuple[str | Score | Component, ...] = ()
    scaling: Scaling = "minmax"
    sharpness: float | None = None
    mass: Mass = "mean"
    similarity_gradient: bool = False
    over_temperature: bool = False
    filter: Filter | None = None

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, get_args(Scaling))
        check_choice("mass", self.mass, get_args(Mass))
        for component in self.components:
            resolve(component)

    @property
    def resolved(self) -> tuple[Component, ...]:
        """The components themselves."""
        return tuple(resolve(component) for component in self.components)

    @property
    def needs_gradients(self) -> bool:
        """Whether any component needs δ and h."""
        return any(component.needs_gradients for component in self.resolved)

    @property
    def needs_ids(self) -> bool:
        """Whether any component needs to know which samples it sees."""
        return any(component.needs_ids for component in self.resolved)


def resolve(component: str | Score | Component) -> Component:
    """A component by its name, or made of a bare function."""
    if isinstance(component, Component):
        return component
    if isinstance(component, str):
        return COMPONENTS[check_choice("each component", component, tuple(COMPONENTS))]
    if not callable(component):
        raise ValueError(
            f"expected components to be names or functions, got {type(component).__name__}; "
            "pass a function score(block) -> (B, M)"
        )
    return Component(component, needs_gradients=True, needs_ids=True)


def name_of(component: str | Score | Component) -> str:
    """The name under which a component is shown."""
    if isinstance(component, str):
        return component
    score = component.score if isinstance(component, Component) else component
    return getattr(score, "__name__", type(score).__name__)


def hard_negatives(
    hardness: float, *, similarity_gradient: bool = True, over_temperature: bool = True
) -> Weighting:
    """w ∝ exp(β s/τ), or exp(β s), of mean 1: HCL with hardness β."""
    return Weighting(
        components=("similarity",),
        scaling="none",
        sharpness=hardness,
        similarity_gradient=similarity_gradient,
        over_temperature=over_temperature,
    )


def mix_or_equal(mix: Tensor | None, weighting: Weighting, like: Tensor) -> Tensor:
    """λ, shape (K,), in the dtype and on the device of ``like``; equal by default."""
    count = len(weighting.components)
    if mix is None:
        return like.new_full((count,), 1 / max(count, 1))
    if mix.shape != (count,):
        raise ValueError(
            f"expected one λ per component, shape ({count},), got {tuple(mix.shape)}; pass as many"
        )
    return to_device_of(like, mix, "mix").to(like.dtype)


def raw_scores(block: Block, weighting: Weighting) -> list[Tensor]:
    """The scores of a block before scaling, one per component, each (B, M).

    They are constants unless ``similarity_gradient`` is set. A score's own parameters never receive
    a gradient.
    """
    scores = [component.score(block).to(block.similarity.dtype) for component in weighting.resolved]
    if not weighting.similarity_gradient:
        scores = [score.detach() for score in scores]
    for score in scores:
        if score.shape != block.negatives.shape:
            raise ValueError(
                f"expected a score of shape {tuple(block.negatives.shape)}, (B, M), got "
                f"{tuple(score.shape)}; check the functions in components="
            )
    return scores


def weights_of(
    block: Block, mix: Tensor, weighting: Weighting, temperature: float | Tensor
) -> Tensor:
    """w of a block, shape (B, M): its scores, its filter, then :func:`weigh`."""
    scores = raw_scores(block, weighting)
    keep = None if weighting.filter is None else weighting.filter(block)
    return weigh(scores, block.negatives, block.count, mix, weighting, temperature, keep)


def scale(
    score: Tensor, negatives: Tensor, count: Tensor, scaling: Scaling, magnitude: float | None
) -> Tensor:
    """C: a score scaled over each anchor's negatives.

    minmax: C_ij = (x_ij - min_j x_ij) / (max_j x_ij - min_j x_ij)
    zscore: C_ij = (x_ij - mean_j x_ij) / deviation_j x_ij

    A score that is constant over Neg(i), up to rounding, becomes 1 (minmax) or 0 (zscore).

    Args:
        score: x, shape (B, M).
        negatives: Boolean, shape (B, M).
        count: How many negatives each anchor has, shape (B, 1).
        scaling: How.
        magnitude: See :class:`unremix.core.scores.Component`.

    Returns:
        Shape (B, M); arbitrary where there is no negative.
    """
    if scaling == "none":
        return score
    low = torch.where(negatives, score, torch.inf).amin(1, keepdim=True)  # (B, 1)
    high = torch.where(negatives, score, -torch.inf).amax(1, keepdim=True)
    peak = torch.maximum(high.abs(), low.abs())
    size = peak.clamp(min=magnitude or 0.0)
    constant = ((high - low <= noise(score) * size) & size.isfinite()) | (count == 0)
    if scaling == "minmax":
        span = torch.where(constant, 1.0, high - low)
        return torch.where(constant, 1.0, (score - low) / span)
    count = count.clamp(min=1)
    score = score / torch.where(constant, 1.0, peak).detach()  # else squares leave the range
    mean = torch.where(negatives, score, 0.0).sum(1, keepdim=True) / count
    centered = score - mean
    variance = torch.where(negatives, centered, 0.0).square().sum(1, keepdim=True) / count
    constant = constant | (variance == 0)
    return torch.where(constant, 0.0, centered / torch.where(constant, 1.0, variance).sqrt())


def weigh(
    scores: Sequence[Tensor],
    negatives: Tensor,
    count: Tensor,
    mix: Tensor,
    weighting: Weighting,
    temperature: float | Tensor = 1.0,
    keep: Tensor | None = None,
) -> Tensor:
    """Weights of the negatives of B anchors: w_ij = link(Σ_k λ_k C^k_ij), then of the wanted mass.

    Args:
        scores: Raw scores, one per component, each (B, M).
        negatives: Boolean, shape (B, M).
        count: How many negatives each anchor has, shape (B, 1).
        mix: λ ≥ 0, shape (K,); gives the dtype, and gradient flows to it.
        weighting: How.
        temperature: τ, for a sharpness that is divided by it.
        keep: A factor on each weight before its mass is settled, shape (B, M); 0 leaves a negative
            out. None keeps all.

    Returns:
        w, shape (B, M); 0 where there is no negative. Under mass ``mean``, a row whose weights are
        all 0 becomes uniform over what is kept, or over all its negatives if nothing is.
    """
    support = negatives if keep is None else negatives & (keep > 0)
    if scores:
        mixed = mix_scores(scores, negatives, count, mix, weighting)
        weights = _link(mixed, support, weighting, temperature)
    else:
        weights = support.to(mix.dtype)
    if keep is not None:
        weights = weights * keep
    if weighting.mass == "none" or (not scores and keep is None):
        return weights
    total = weights.sum(1, keepdim=True)  # (B, 1)
    nothing = total <= 0
    mean = torch.where(nothing, 1.0, total / count.clamp(min=1))
    uniform = negatives.to(weights.dtype)
    if keep is not None:
        kept = uniform * keep
        size = kept.sum(1, keepdim=True)
        uniform = torch.where(size > 0, kept * count / torch.where(size > 0, size, 1.0), uniform)
    return torch.where(nothing, uniform, weights / mean)


def mix_scores(
    scores: Sequence[Tensor], negatives: Tensor, count: Tensor, mix: Tensor, weighting: Weighting
) -> Tensor:
    """Σ_k λ_k C^k_ij, with C^k the k-th score after scaling, shape (B, M): UnReMix, Eq. 5.

    The arguments are those of :func:`weigh`. Arbitrary where there is no negative.
    """
    # Scores of non-negatives are arbitrary: 0 times infinity would put NaN into the mix's gradient.
    scores = [torch.where(negatives, score, 0.0) for score in scores]
    if weighting.scaling == "none" and weighting.sharpness is None and weighting.mass == "mean":
        # Raw scores have any size; a factor of the whole row cancels.
        sizes = [score.detach().abs().amax(1, keepdim=True) for score in scores]
        peak = torch.stack(sizes).amax(0)
        scores = [score / torch.where(peak > 0, peak, 1.0) for score in scores]
    scaled = [
        scale(score, negatives, count, weighting.scaling, component.magnitude)
        for score, component in zip(scores, weighting.resolved, strict=True)
    ]
    terms = (lambda_k * score for lambda_k, score in zip(mix, scaled, strict=True))
    mixed: Tensor = reduce(torch.add, terms)  # Σ_k λ_k C^k
    return mixed


def _link(
    mixed: Tensor, support: Tensor, weighting: Weighting, temperature: float | Tensor
) -> Tensor:
    """Weights of any mass: max(mix, 0), or e^{sharpness × mix}; 0 outside ``support`` (B, M)."""
    if weighting.sharpness is None:
        return torch.where(support, mixed, 0.0).clamp(min=0)
    exponent = weighting.sharpness * mixed
    if weighting.over_temperature:
        exponent = exponent / temperature
    if weighting.mass == "mean":  # a factor of the whole row cancels
        highest = torch.where(support, exponent, -torch.inf).amax(1, keepdim=True)
        exponent = exponent - torch.where(highest > -torch.inf, highest, 0.0).detach()
    return torch.where(support, exponent, -torch.inf).exp()
