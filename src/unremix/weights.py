"""From scores to weights: scaling, mix, link and mass.

w_ij = link(Σ_k λ_k C^k_ij) over Neg(i), normalised to the asked mass, and 0 elsewhere; C^k is the
score of component k after scaling. Uniform weights have no component. HCL's weights are one raw
component, the similarity, under an exponential link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from unremix.pairs import Block
from unremix.scores import COMPONENTS, Component, Rows, Score, Scored, noise

Scaling = Literal["minmax", "zscore", "none"]
Mass = Literal["mean", "none"]


@dataclass(frozen=True)
class Weighting:
    """How scores become weights. The default is uniform.

    Args:
        components: Names from :data:`unremix.scores.COMPONENTS`, or score functions.
        scaling: ``minmax`` to [0, 1] per anchor, ``zscore`` standardised per anchor, ``none`` raw.
        sharpness: None: the mix itself, clamped at 0, is the weight. A number: the weight is
            exp(sharpness × mix).
        mass: ``mean`` makes the average weight over the negatives 1, ``none`` leaves it.
        similarity_gradient: Whether gradient flows to the embeddings through the similarity
            component.

    Raises:
        ValueError: For an unknown scaling or mass.
    """

    components: tuple[str | Score | Component, ...] = ()
    scaling: Scaling = "minmax"
    sharpness: float | None = None
    mass: Mass = "mean"
    similarity_gradient: bool = False

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("scaling", self.scaling, get_args(Scaling)),
            ("mass", self.mass, get_args(Mass)),
        ):
            if value not in choices:
                raise ValueError(f"expected {name} among {', '.join(choices)}, received {value!r}")

    @property
    def resolved(self) -> tuple[Component, ...]:
        """The components themselves."""
        return tuple(resolve(component) for component in self.components)

    @property
    def needs_residuals(self) -> bool:
        """Whether any component needs δ and h."""
        return any(component.needs_residuals for component in self.resolved)

    def shares(self, mix: Tensor | None, like: Tensor) -> Tensor | None:
        """λ as given, or equal shares, in the dtype of ``like``, shape (K,); None if uniform."""
        count = len(self.components)
        if count == 0:
            return None
        if mix is not None and mix.shape != (count,):
            raise ValueError(
                f"expected one share per component, shape ({count},), received "
                f"{tuple(mix.shape)}; hand over as many as there are components"
            )
        return like.new_full((count,), 1 / count) if mix is None else mix.to(like)

    @property
    def similarity_index(self) -> int | None:
        """Where the similarity stands among the components, if gradient flows through it."""
        if self.similarity_gradient and "similarity" in self.components:
            return self.components.index("similarity")
        return None


def resolve(component: str | Score | Component) -> Component:
    """A component by its name, or made of a bare function."""
    if isinstance(component, Component):
        return component
    if isinstance(component, str):
        if component not in COMPONENTS:
            raise ValueError(
                f"expected components among {', '.join(COMPONENTS)}, or functions, received "
                f"{component!r}; add one's own to unremix.scores.COMPONENTS"
            )
        return COMPONENTS[component]
    return Component(component, needs_residuals=True)


def name_of(component: str | Score | Component) -> str:
    """The name under which a component is shown."""
    if isinstance(component, str):
        return component
    score = component.score if isinstance(component, Component) else component
    return getattr(score, "__name__", type(score).__name__)


def hardness(sharpness: float, *, similarity_gradient: bool = True) -> Weighting:
    """W ∝ exp(sharpness × s), of mean 1: HCL, with sharpness = β/τ."""
    return Weighting(
        components=("similarity",),
        scaling="none",
        sharpness=sharpness,
        similarity_gradient=similarity_gradient,
    )


@dataclass(frozen=True)
class Scaled:
    """K scores and the affine maps, row by row, that scale them: C^k = factor_k × X^k + shift_k.

    Args:
        scores: X; positions that are not negatives hold the value of a negative.
        factor: Shape (K, B).
        shift: Shape (K, B).
    """

    scores: tuple[Scored, ...]
    factor: Tensor
    shift: Tensor


def scale(
    scores: tuple[Scored, ...],
    block: Block,
    scaling: Scaling,
    magnitudes: tuple[float | None, ...],
) -> Scaled:
    """Scale scores over each anchor's negatives.

    A score that is constant over Neg(i), up to rounding, becomes 1 (minmax) or 0 (zscore).

    Args:
        scores: X of K components.
        block: The rows.
        scaling: How.
        magnitudes: See :class:`unremix.scores.Component`.
    """
    if scaling == "none":
        ones = scores[0].values.new_ones(len(scores), block.count.shape[0])
        return Scaled(scores, ones, torch.zeros_like(ones))
    low = _lines(score.low for score in scores)  # (K, B)
    high = _lines(score.high for score in scores)
    size = torch.maximum(high, -low)  # of the absolute values
    if any(magnitudes):
        size = torch.maximum(size, _column(magnitudes, low.dtype, low.device))
    span = high - low
    constant = span <= noise(low.dtype) * size
    if scaling == "minmax":
        factor = span.reciprocal_().masked_fill_(constant, 0.0)
        return Scaled(scores, factor, (-low * factor).masked_fill_(constant, 1.0))
    count = block.count.clamp(min=1)
    means, squares = [], []
    for score in (each.values for each in scores):
        extra = score.shape[1] - block.count  # masked positions, with the reference's value
        reference = score.view(-1)[block.reference][:, None]
        mean = (score.sum(1, keepdim=True) - extra * reference) / count
        centred = score - mean
        square = centred.mul_(centred).sum(1, keepdim=True) - extra * (reference - mean) ** 2
        means.append(mean)
        squares.append(square)
    deviation = (_lines(squares) / count.T).clamp_(min=0).sqrt_()
    factor = (1 / deviation).masked_fill(constant | (deviation == 0), 0.0)
    return Scaled(scores, factor, -_lines(means) * factor)


def _lines(columns: Iterable[Tensor]) -> Tensor:
    """Columns, each (B, 1), as the lines of an array, shape (K, B)."""
    return torch.cat([column.view(1, -1) for column in columns])


def magnitudes_of(weighting: Weighting, like: Tensor) -> Tensor:
    """The magnitude of each component, 0 for none, shape (K,)."""
    magnitudes = tuple(component.magnitude for component in weighting.resolved)
    return _column(magnitudes, like.dtype, like.device)[:, 0]


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _column(
    magnitudes: tuple[float | None, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.tensor([[each or 0.0] for each in magnitudes], dtype=dtype, device=device)


@dataclass(frozen=True)
class Weights:
    """Weights of a block and what their gradient needs.

    The weight is ``values × exp(log_factor)``: kept apart so that nothing overflows.

    Args:
        values: Shape (B, M); 0 where there is no negative. None: 1 on all negatives.
        log_factor: Shape (B, 1).
        total: Σ_j values, shape (B, 1).
        scaled: The scaled components; none where the weights are uniform.
        replaced: Rows whose weights were all 0 and became uniform, boolean (B, 1); None: no row.
        clamped: Whether a weight of 0 may stand for a mix below 0, through which no gradient flows.
    """

    values: Tensor | None
    log_factor: Tensor
    total: Tensor
    scaled: Scaled | None
    replaced: Tensor | None
    clamped: bool = False

    def dense(self, block: Block, like: Tensor) -> Tensor:
        """The weights themselves, shape (B, M)."""
        if self.values is None:
            return block.blank(torch.ones_like(like))
        return self.values * self.log_factor.exp()


def weigh(rows: Rows, scores: list[Scored], mix: Tensor | None, weighting: Weighting) -> Weights:
    """Weights of a block of anchors.

    Args:
        rows: The block.
        scores: Raw scores, one per component.
        mix: λ, shape (K,), from :meth:`Weighting.shares`.
        weighting: How.
    """
    block, like = rows.block, rows.similarity
    if mix is None:
        nothing = torch.zeros_like(like[:, :1])
        return Weights(None, nothing, block.count.to(like.dtype), None, None)
    magnitudes = tuple(component.magnitude for component in weighting.resolved)
    scaled = scale(tuple(scores), block, weighting.scaling, magnitudes)
    # Σ_k λ_k (factor_k X_k + shift_k), the row-wise factors folded into one sweep per component.
    first, *others = (mix[:, None] * scaled.factor)[:, :, None].unbind()  # each (B, 1)
    values = torch.mul(scores[0].values, first, out=rows.empty("values"))
    for score, factor in zip(scores[1:], others, strict=True):
        values.addcmul_(score.values, factor)
    values.add_((mix @ scaled.shift)[:, None])
    if weighting.sharpness is None:
        floor = weight_floor(mix) if weighting.scaling == "minmax" else 0.0
        values = values.masked_fill_(values <= floor, 0.0) if floor else values.clamp_(min=0)
        block.blank(values)
        log_factor, clamped = None, floor > 0 or weighting.scaling != "minmax"
    else:
        exponent = values.mul_(weighting.sharpness)
        highest = block.fill(exponent).amax(1, keepdim=True)
        block.blank(exponent.sub_(highest).exp_())
        log_factor, clamped = highest, False
    total = values.sum(1, keepdim=True)
    if weighting.mass == "none":
        log_factor = torch.zeros_like(total) if log_factor is None else log_factor
        return Weights(values, log_factor, total, scaled, None, clamped)
    replaced = None
    if float(total.min()) <= 0:
        weightless = (total <= 0) & (block.count > 0)
        replaced = weightless if bool(weightless.any()) else None
    if replaced is not None:
        values.masked_fill_(replaced, 1.0)
        total = block.blank(values).sum(1, keepdim=True)
    log_factor = log_normaliser(total[:, 0], block)[:, None]
    return Weights(values, log_factor, total, scaled, replaced, clamped)


def weight_floor(mix: Tensor) -> float:
    """What a mix of scores in [0, 1] must exceed to count as a weight.

    Where no share is negative, nothing: no mix is below 0. Else a mix that is 0 but for rounding
    could be the only weight of its row.

    Args:
        mix: λ, shape (K,).
    """
    shares: list[float] = mix.tolist()
    return noise(mix.dtype) * sum(map(abs, shares)) if min(shares) < 0 else 0.0


def log_normaliser(total: Tensor, block: Block) -> Tensor:
    """log(n/Σ_j w_j), which makes the mean weight over the n negatives 1, shape (B,); 0 for none.

    Args:
        total: Σ_j w_j, shape (B,).
        block: The rows.
    """
    count = block.count[:, 0]
    log_factor = torch.log(count / total.clamp(min=torch.finfo(total.dtype).tiny))
    return log_factor.masked_fill_(count == 0, 0.0) if block.fewest == 0 else log_factor


def mixed_gradient(gradient: Tensor, weights: Weights, weighting: Weighting) -> Tensor:
    """Gradient with respect to the mix Σ_k λ_k C^k, from that with respect to ``weights.values``.

    Args:
        gradient: Shape (B, M), 0 where there is no negative; overwritten.
        weights: The weights.
        weighting: How they were made.
    """
    assert weights.values is not None
    if weighting.sharpness is not None:
        gradient.mul_(weights.values).mul_(weighting.sharpness)
    elif weights.clamped:
        gradient.mul_(weights.values > 0)
    return gradient if weights.replaced is None else gradient.masked_fill_(weights.replaced, 0.0)


def implied_share(mix: Tensor, weighting: Weighting) -> int | None:
    """The component whose gradient follows from the others', if any.

    Where the mix is the weight and the mass is normalised, λ and c λ give the same loss, so
    Σ_k λ_k ∂L/∂λ_k = 0. The largest λ divides best.
    """
    if weighting.sharpness is not None or weighting.mass != "mean":
        return None
    sizes = [abs(share) for share in mix.tolist()]
    return sizes.index(max(sizes)) if max(sizes) > 0 else None


def share_gradient(
    gradient: Tensor, scaled: Scaled, rows: Rows, implied: int | None = None
) -> Tensor:
    """Gradient with respect to λ, shape (K,), from that with respect to the mix.

    Args:
        gradient: Shape (B, M).
        scaled: The scaled scores.
        rows: The block.
        implied: A component to leave out, with 0 in its place.
    """
    product = rows.empty("temporary")
    total = gradient.sum(1)
    along = [
        total  # anything will do
        if index == implied
        else torch.mul(gradient, score.values, out=product).sum(1)
        for index, score in enumerate(scaled.scores)
    ]
    result = torch.stack(along).mul_(scaled.factor).addcmul_(total, scaled.shift).sum(1)
    if implied is not None:
        result[implied] = 0
    return result


def score_gradient(
    gradient: Tensor, scaled: Scaled, index: int, block: Block, scaling: Scaling
) -> Tensor:
    """Gradient with respect to a raw score, through its scaling, shape (B, M).

    Args:
        gradient: With respect to the scaled score C, shape (B, M), 0 where there is no negative.
        scaled: The scaled scores.
        index: Which of them.
        block: The rows.
        scaling: How it was scaled.
    """
    if scaling == "none":
        return gradient
    scored = scaled.scores[index]
    score, low, high = scored.values, scored.low, scored.high
    factor, shift = scaled.factor[index][:, None], scaled.shift[index][:, None]
    values = torch.addcmul(shift, score, factor)
    if scaling == "minmax":
        # C = (x - low)/(high - low): the extremes move every value; ties share the gradient.
        result = gradient.clone()
        for extreme, weight in ((low, 1 - values), (high, values)):
            at = block.blank((score == extreme).to(gradient.dtype))
            pull = (gradient * weight).sum(1, keepdim=True) / at.sum(1, keepdim=True).clamp(min=1)
            result.addcmul_(at, pull, value=-1)
        return result.mul_(factor)
    count = block.count.clamp(min=1)
    mean = gradient.sum(1, keepdim=True) / count
    along = (gradient * values).sum(1, keepdim=True) / count
    return block.blank((gradient - mean).addcmul_(values, along, value=-1).mul_(factor))
