"""Views as the losses take them, with gradient, and as the constants that scores use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from unremix.core.precision import normalize

T = TypeVar("T")


@dataclass(frozen=True)
class Views:
    """Embeddings of some views, and what is known of the layer that made them.

    Args:
        embeddings: z, shape (N, D); gradient flows to it.
        inputs: h with z = W h + b, shape (N, H), if known.
        ids: Which sample each view shows, shape (N,), if known; for scores that ask for it.
        labels: The class of each view, -1 where it is unlabeled, shape (N,), if classes are used.
        descriptors: Rows whose inner products say how similar two samples are, shape (N, K), where
            these are not f; see :mod:`unremix.signals`.
        thresholds: How similar a negative may be, shape (N,), where anchors have such a limit.
        outputs: W h + b, shape (N, D), where BatchNorm or an activation turns it into z. The
            pseudo-posterior and δ are then computed from the directions of W h + b: this is not the
            chain rule through BatchNorm, which couples the samples of a batch.
    """

    embeddings: Tensor
    inputs: Tensor | None = None
    ids: Tensor | None = None
    descriptors: Tensor | None = None
    thresholds: Tensor | None = None
    outputs: Tensor | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class ExtraNegatives:
    """S further candidates of each anchor, all of them negatives of that anchor alone.

    Such as mixtures of its hardest negatives, or patches of its own image. No gradient reaches
    them.

    Args:
        embeddings: z, shape (N, S, D).
        inputs: h, shape (N, S, H), if known.
        logit_factor: Multiplies their logits.

    Raises:
        ValueError: For embeddings of another shape.
    """

    embeddings: Tensor
    inputs: Tensor | None = None
    logit_factor: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.embeddings.dim() != 3 or 0 in self.embeddings.shape:
            raise ValueError(
                "expected extra negatives of shape (N, S, D), none of them 0, got "
                f"{tuple(self.embeddings.shape)}; pass None where there are none"
            )


@dataclass(frozen=True)
class Vectors:
    """What is known of some views, as constants: no gradient flows to any of it.

    Args:
        units: f = z/|z|, shape (..., D).
        lengths: |z|, shape (...).
        inputs: h, the input of the last layer, shape (..., H), where it is known.
        ids: Which sample each view shows, shape (...), where it is known.
        output_gradients: δ, shape (..., D), where a component needs it; see
            :func:`unremix.core.scores.output_gradients`.
        descriptors: As in :class:`Views`, shape (..., K).
        thresholds: Likewise, shape (...).
    """

    units: Tensor
    lengths: Tensor
    inputs: Tensor | None = None
    ids: Tensor | None = None
    output_gradients: Tensor | None = None
    descriptors: Tensor | None = None
    thresholds: Tensor | None = None

    def __getitem__(self, rows: slice) -> Vectors:
        """Some of the views."""
        return map_tensors(lambda tensor: tensor[rows], self)


def describe(views: Views) -> tuple[Tensor, Vectors]:
    """Unit vectors with gradient, and all that is known of the views as constants."""
    units, lengths = normalize(views.embeddings)
    return units, Vectors(
        units.detach(),
        lengths.detach(),
        None if views.inputs is None else views.inputs.detach(),
        views.ids,
        descriptors=views.descriptors,
        thresholds=views.thresholds,
    )


def map_tensors(function: Callable[..., Tensor], *items: T) -> T:
    """Apply a function to each tensor of views, extra negatives or vectors.

    A tensor that one of them lacks is None. Fields that are not tensors are taken from the first.

    Example:
        >>> map_tensors(lambda rows: 2 * rows, Views(torch.eye(2))).embeddings
        tensor([[2., 0.],
                [0., 2.]])
    """
    made: dict[str, Any] = {}
    for name in (each.name for each in fields(items[0])):  # type: ignore[arg-type]
        given = [getattr(each, name) for each in items]
        made[name] = given[0]
        if any(isinstance(each, Tensor) for each in given):
            made[name] = None if any(each is None for each in given) else function(*given)
    return type(items[0])(**made)


def stack(*views: T) -> T:
    """The views of all, one below the other."""
    return map_tensors(lambda *each: torch.cat(each), *views)
