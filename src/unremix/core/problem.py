"""What a loss is computed from: views and options; plain data and checks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from unremix.core.checks import choose, number
from unremix.core.objectives import InfoNCE, Objective
from unremix.core.pairs import Pairs
from unremix.core.scores import Gradient
from unremix.core.weights import Weighting

Tile = int | Literal["auto"] | None
Products = Literal["cosine", "dot"]
EngineName = Literal["auto", "eager", "compiled", "native"]


@dataclass(frozen=True)
class Views:
    """Embeddings of some views, and what is known of the layer that made them.

    Args:
        embeddings: z, shape (N, D); gradient flows to it.
        inputs: h with z = W h + b, shape (N, H), if known.
        ids: Which sample each view shows, shape (N,), if known; for scores that ask for it.
        descriptors: Rows whose inner products say how alike two samples are, shape (N, K), where
            these are not f; see :mod:`unremix.signals`.
        thresholds: How similar a negative may be, shape (N,), where anchors have such a limit.
        outputs: W h + b, shape (N, D), where z is made of it and differs, by BatchNorm for example;
            δ is taken there.
    """

    embeddings: Tensor
    inputs: Tensor | None = None
    ids: Tensor | None = None
    descriptors: Tensor | None = None
    thresholds: Tensor | None = None
    outputs: Tensor | None = None


@dataclass(frozen=True)
class Own(Views):
    """S further candidates of each anchor, all of them negatives of that anchor alone.

    Such as mixtures of its hardest negatives, or patches of its own image. The tensors are those of
    :class:`Views`, of shape (N, S, ...). No gradient reaches them.

    Args:
        logit_factor: Multiplies their logits.

    Raises:
        ValueError: For embeddings of another shape.
    """

    logit_factor: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.embeddings.dim() != 3 or 0 in self.embeddings.shape:
            raise ValueError(
                "expected own candidates of shape (N, S, D), none of them 0, got "
                f"{tuple(self.embeddings.shape)}; pass None where there are none"
            )


V = TypeVar("V", bound=Views)


def map_views(function: Callable[..., Tensor], *views: V) -> V:
    """Views made tensor by tensor of others; a field that one of them lacks is None.

    Example:
        >>> map_views(lambda rows: 2 * rows, Views(torch.eye(2))).embeddings
        tensor([[2., 0.],
                [0., 2.]])
    """
    made: dict[str, Any] = {}
    for name in ("embeddings", "inputs", "ids", "descriptors", "thresholds", "outputs"):
        given = [getattr(each, name) for each in views]
        made[name] = None if any(each is None for each in given) else function(*given)
    return replace(views[0], **made)


def stack(*views: V) -> V:
    """The views of all, one below the other."""
    return map_views(lambda *each: torch.cat(each), *views)


@dataclass(frozen=True)
class Options:
    """Everything about a loss that is not a tensor.

    Args:
        weighting: How negatives are weighted; uniform by default.
        objective: The loss of an anchor.
        products: ``cosine``: logits are f·f/τ; ``dot``: z·z/τ. The scores always use f.
        posterior_temperature: t of the pseudo-posterior.
        gradient: Which cross-entropy the uncertainty differentiates; ``nt-xent`` uses t = τ.
        bias: Whether the last layer has a bias.
        engine: What evaluates and differentiates a block; see :mod:`unremix.core.engines`.
        tile: Anchors per block: ``auto``, a number, or None for all at once.
        check: Whether to make checks that wait for the device: NaN, and anchors without weight.
            None: for tensors on the CPU.

    Raises:
        ValueError: For options that do not exist or contradict each other.
    """

    weighting: Weighting = field(default_factory=Weighting)
    objective: Objective = field(default_factory=InfoNCE)
    products: Products = "cosine"
    posterior_temperature: float = 1.0
    gradient: Gradient = "pseudo-label"
    bias: bool = True
    engine: EngineName = "auto"
    tile: Tile = "auto"
    check: bool | None = None

    def __post_init__(self) -> None:
        choose("products", self.products, get_args(Products))
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
        if prior and self.products == "dot":
            raise ValueError(
                f"expected class_prior=0 with products='dot', got {prior}; leave it out: the "
                "debiased sum is bounded below only for cosines"
            )


def mix_or_equal(mix: Tensor | None, options: Options, like: Tensor) -> Tensor:
    """λ, shape (K,), in the dtype of ``like``; equal shares by default."""
    count = len(options.weighting.components)
    if mix is None:
        return like.new_full((count,), 1 / max(count, 1))
    if mix.shape != (count,):
        raise ValueError(
            f"expected one share per component, shape ({count},), got {tuple(mix.shape)}; "
            "pass as many as there are components"
        )
    if mix.device != like.device:
        warnings.warn(
            f"expected the loss on {like.device}, got its mix on {mix.device}, from where it is "
            "copied at every step; call loss_fn.to(device)",
            stacklevel=4,
        )
    return mix.to(like)


def check_pairs(pairs: Pairs, own: Own | None) -> None:
    """Refuse pairs without any positive or any negative; waits for the device."""
    if not pairs.has_positives():
        raise ValueError(
            f"expected anchors with a positive, got {pairs.num_anchors} anchors and no positive "
            "pair; check the pairs"
        )
    if own is None and not pairs.has_negatives():
        raise ValueError(
            "expected at least one negative, got none for any anchor; "
            "use a batch of two samples or more, or check the masks"
        )


def check_shapes(
    anchors: Views, candidates: Views, own: Own | None, pairs: Pairs, options: Options
) -> None:
    """Refuse tensors that do not fit each other or the pairs."""
    for each in (anchors, candidates):
        if not isinstance(each, Views):
            raise ValueError(
                f"expected unremix.core.problem.Views, got {type(each).__name__}; pass Views(z), "
                "or Views(z, h) with the input h of the last layer"
            )
    given: list[tuple[str, Views, tuple[int, ...]]] = [
        ("anchors", anchors, (pairs.num_anchors,)),
        ("candidates", candidates, (pairs.num_candidates,)),
    ]
    if own is not None:
        given.append(("own candidates", own, (pairs.num_anchors, own.embeddings.shape[1])))
    tensors = [each for _, views, _ in given for each in (views.embeddings, views.inputs)]
    dtypes = list(dict.fromkeys(str(each.dtype) for each in tensors if each is not None))
    if len(dtypes) > 1:
        raise ValueError(
            f"expected embeddings and inputs of one dtype, got {' and '.join(dtypes)}; convert "
            "with .to()"
        )
    some = len({views.inputs is None for _, views, _ in given}) > 1
    if some and options.weighting.needs_residuals:  # otherwise h is not used
        raise ValueError(
            "expected the last layer's inputs h for anchors and candidates or for neither, "
            "got them for some; pass all or none"
        )
    for name, views, rows in given:
        for what in ("embeddings", "inputs"):
            tensor, like = getattr(views, what), getattr(candidates, what)
            if tensor is None:
                continue
            expected = (*rows, (tensor if like is None else like).shape[-1])
            if tensor.shape != expected:
                raise ValueError(
                    f"expected {what} of the {name} of shape {expected}, one row per view and of "
                    f"the candidates' width, got {tuple(tensor.shape)}; check the pairs"
                )
