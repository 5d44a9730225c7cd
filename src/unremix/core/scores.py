"""Three scores of every candidate for every anchor, in closed form: s, u and r.

A score is a function of a :class:`Block`: it scores all candidates for B anchors and returns a
plain tensor. To add one, write the function and add a line to :data:`COMPONENTS`, or pass the
function in ``components=``. What it returns for candidates that are not negatives is ignored. A
score with a memory of its own is an ``nn.Module`` with the same call.

Letters: N anchors, B of them in a block, M candidates, D dimensions of z, H dimensions of h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

Gradient = Literal["pseudo-label", "nt-xent"]

SMALLEST_NORM = 1e-12  # an embedding at most this long has no direction: its unit vector is 0


def noise(dtype: torch.dtype) -> float:
    """The largest value that, beside values of order one, counts as rounding."""
    return 64 * torch.finfo(dtype).eps


def at_least_float32(values: Tensor) -> Tensor:
    """The same values, in float32 where they are in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def normalize(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors f = z/|z| and lengths |z|; both are 0 for a zero vector.

    Args:
        embeddings: z, shape (..., D); gradient flows to it.

    Returns:
        f, shape (..., D), and |z|, shape (...).

    Example:
        >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]]), tensor([5., 0.]))
    """
    if embeddings.shape[-1] == 0:
        return embeddings, embeddings.sum(-1)
    # Squares of very long or short vectors leave the range of numbers: bring them to size 1 first.
    largest = embeddings.detach().abs().amax(-1, keepdim=True)
    nothing = largest <= SMALLEST_NORM
    size = torch.where(nothing, 1.0, largest)
    shrunk = embeddings / size
    length = torch.linalg.vector_norm(torch.where(nothing, 1.0, shrunk), dim=-1, keepdim=True)
    units = torch.where(nothing, 0.0, shrunk / length)
    return units, torch.where(nothing, 0.0, length * size)[..., 0]


@dataclass(frozen=True)
class Vectors:
    """What is known of some views, as constants: no gradient flows to any of it.

    Args:
        units: f = z/|z|, shape (..., D).
        lengths: |z|, shape (...).
        inputs: h, the input of the last layer, shape (..., H), where it is known.
        ids: Which sample each view shows, shape (...), where it is known.
        residuals: δ, shape (..., D), where a component needs it; see :func:`residuals`.
        descriptors: As in :class:`unremix.core.problem.Views`, shape (..., K).
        thresholds: Likewise, shape (...).
    """

    units: Tensor
    lengths: Tensor
    inputs: Tensor | None = None
    ids: Tensor | None = None
    residuals: Tensor | None = None
    descriptors: Tensor | None = None
    thresholds: Tensor | None = None

    def __getitem__(self, rows: slice) -> Vectors:
        """Some of the views."""
        return Vectors(
            self.units[rows],
            self.lengths[rows],
            None if self.inputs is None else self.inputs[rows],
            None if self.ids is None else self.ids[rows],
            None if self.residuals is None else self.residuals[rows],
            None if self.descriptors is None else self.descriptors[rows],
            None if self.thresholds is None else self.thresholds[rows],
        )


@dataclass(frozen=True)
class Block:
    """B anchors against all their candidates: what a score is computed from.

    M candidates are shared by all anchors. Each anchor may have S more of its own; they take the
    last columns, so every (B, M) below stands for (B, M + S).

    Args:
        anchors: B views.
        candidates: M views.
        own: The anchors' own candidates, their tensors of shape (B, S, ...).
        negatives: Which candidates are negatives of which anchors, boolean, shape (B, M).
        count: How many negatives each anchor has, shape (B, 1).
        non_negatives: The shared candidates that are not negatives, shape (B, E), where they are
            known as a list; None where only the mask is known.
        similarity: s_ij = f_i · f_j, shape (B, M).
        bias: Whether the last layer has a bias.
    """

    anchors: Vectors
    candidates: Vectors
    own: Vectors | None
    negatives: Tensor
    count: Tensor
    non_negatives: Tensor | None
    similarity: Tensor
    bias: bool = True

    def products(self, name: Literal["residuals", "inputs"]) -> Tensor:
        """Inner products x_i · x_j of δ or of h of anchors and candidates, shape (B, M)."""
        anchors, candidates = getattr(self.anchors, name), getattr(self.candidates, name)
        return inner_products(anchors, candidates, getattr(self.own, name, None))


def inner_products(anchors: Tensor, candidates: Tensor, own: Tensor | None = None) -> Tensor:
    """x_i · x_j of each anchor with the shared candidates and then with its own.

    Args:
        anchors: Shape (B, D).
        candidates: Shape (M, D).
        own: Shape (B, S, D), where there are any.

    Returns:
        Shape (B, M), or (B, M + S).
    """
    shared = anchors @ candidates.T
    if own is None:
        return shared
    return torch.cat([shared, torch.einsum("bd,bsd->bs", anchors, own)], dim=1)


def similarity(block: Block) -> Tensor:
    """s_ij = f_i · f_j, shape (B, M)."""
    return block.similarity


def uncertainty(block: Block) -> Tensor:
    """u_ij = <g_i, g_j> = (δ_i · δ_j)(h_i · h_j + 1), shape (B, M).

    g is the gradient at the last layer's weight and bias of a view's cross-entropy against its
    pseudo-label. The 1 belongs to the bias. Without a known layer, u_ij = δ_i · δ_j.

    It measures influence: how far a step on the candidate's pseudo-label changes the anchor's loss,
    to first order. It does not tell true negatives from false ones (docs/signals.md has figures).

    Reference:
        UnReMix, below Eq. 3.
    """
    at_output = block.products("residuals")
    if block.anchors.inputs is None:
        return at_output
    at_input = block.products("inputs")
    if not block.bias:
        return at_output * at_input
    # x (y + 1) = x + x y, in one operation.
    return torch.addcmul(at_output, at_output, at_input)


def representativeness(block: Block) -> Tensor:
    """r_ij = mean over j' in Neg(i), j' ≠ j, of (1 - f_j · f_j'), shape (B, M); 0 for one negative.

    Without a loop: Σ_{j' ≠ j} f_j · f_j' = f_j · T_i - f_j · f_j with T_i = Σ_{j' in Neg(i)} f_j'.

    Reference:
        UnReMix, Eq. 4.
    """
    units, count = block.candidates.units, block.count
    own = None if block.own is None else block.own.units
    if block.non_negatives is None:
        total = block.negatives[:, : len(units)].to(units.dtype) @ units  # T_i, shape (B, D)
    else:  # the sum of all, less the few that are not negatives
        total = units.sum(0) - units[block.non_negatives].sum(1)
    if own is not None:
        total = total + own.sum(1)
    several = (count > 1).to(units.dtype)
    share = several / (count - 1).clamp(min=1)  # 1 / (n - 1)
    # 1 - (f_j · T_i - f_j · f_j) / (n - 1) is one inner product, of the following two. The 1 comes
    # last: small terms that are added to it lose digits.
    anchors = torch.cat([-share * total, share, several], dim=1)
    return inner_products(anchors, _extend(units), None if own is None else _extend(own))


def _extend(units: Tensor) -> Tensor:
    """f itself, f · f and 1: (..., D) to (..., D + 2)."""
    squares = (units * units).sum(-1, keepdim=True)
    return torch.cat([units, squares, torch.ones_like(squares)], dim=-1)


Score = Callable[[Block], Tensor]


@dataclass(frozen=True)
class Component:
    """A score and what it takes to use it.

    Args:
        score: The function.
        magnitude: Size of the terms that the score sums up: a row that varies by less than their
            rounding counts as constant. None: the size of the row's own largest value.
        needs_residuals: Whether it uses δ and h.
        needs_ids: Whether it uses the samples' ids.
    """

    score: Score
    magnitude: float | None = None
    needs_residuals: bool = False
    needs_ids: bool = False


PAPER_COMPONENTS = ("uncertainty", "similarity", "representativeness")
"""The scores that UnReMix mixes; further ones are used where a loss names them."""

COMPONENTS: dict[str, Component] = {
    "uncertainty": Component(uncertainty, needs_residuals=True),
    "similarity": Component(similarity, magnitude=1.0),
    "representativeness": Component(representativeness, magnitude=1.0),
}


def residuals(
    units: Tensor,
    lengths: Tensor,
    classes: Tensor,
    is_class: Tensor,
    *,
    temperature: float | Tensor,
    target: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """δ: gradient at z of the cross-entropy of a view's pseudo-posterior against its label.

    p = softmax over classes k of f · f_k / t;  y = argmax p;
    d = (Σ_k p_k f_k - f_y) / t, the gradient at f;
    δ = (d - (d · f) f) / |z|, through the normalization.

    The classes of a view are its negatives, as constants. A view without a class, or without a
    direction (z = 0), has δ = 0, and so has one whose d is zero up to rounding.

    Args:
        units: f of B views, shape (B, D).
        lengths: |z| of the views, shape (B,).
        classes: f of the classes, shape (M, D).
        is_class: Which of them are classes of which view, boolean, shape (B, M).
        temperature: t.
        target: A distribution over the classes in place of the most probable one, shape (B, M);
            for ``nt-xent``, in which the positives are classes and the label.
        own: f of the classes of one view alone, shape (B, S, D); they take the last columns.

    Returns:
        δ, shape (B, D).

    Reference:
        UnReMix, Eq. 2 (p) and Eq. 3, up to the layer's output. Unlike in BADGE (Ash et al. 2020),
        the classes are other views.
    """
    logits = inner_products(units / temperature, classes, own)  # (B, M)
    logits = torch.where(is_class, logits, -torch.inf)
    p = logits.softmax(1)  # NaN for a view without a class
    if target is None:  # y is 1 at the most probable class; subtracted in place
        label = logits.argmax(1, keepdim=True)
        p_minus_y = p.scatter_add_(1, label, p.new_full(label.shape, -1.0))
    else:
        p_minus_y = p - target
    d = p_minus_y[:, : len(classes)] @ classes  # times t
    if own is not None:
        d = d + torch.einsum("bs,bsd->bd", p_minus_y[:, len(classes) :], own)
    tangent = d - (d * units).sum(1, keepdim=True) * units
    size = torch.linalg.vector_norm(tangent, dim=1, keepdim=True)
    scale = temperature * lengths[:, None]
    something = (size > noise(units.dtype)) & (scale > 0)
    return torch.where(something, tangent / scale, 0.0)


def sketch(inputs: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Project h to ``size`` dimensions so that inner products are kept on average.

    h' = sqrt(H/size) Qᵀ h with Q a random orthonormal (H, size): E[h'_i · h'_j] = h_i · h_j over
    draws of Q. At ``size`` ≥ H nothing is projected.

    Args:
        inputs: h, shape (..., H).
        size: Dimensions kept.
        seed: Draws Q; the same seed gives the same Q.

    Returns:
        Shape (..., min(size, H)).
    """
    width = inputs.shape[-1]
    if size >= width:
        return inputs
    return inputs @ _projection(width, size, seed, inputs.dtype, inputs.device)


def _projection(*settings: Any) -> Tensor:
    """Q as :func:`_draw_projection` makes it; ``torch.compile`` takes it for a constant."""
    return _draw_projection(*settings)


# What torch.compiler.assume_constant_result does, which would import Dynamo, for seconds.
_projection._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _draw_projection(
    width: int, size: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(gaussian)
    # Signs make the factorization unique, so that Q is uniformly distributed.
    scaled: Tensor = basis * triangle.diagonal().sign() * math.sqrt(width / size)
    return scaled.to(device, dtype)
