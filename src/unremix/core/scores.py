"""Three scores of every candidate for every anchor, in closed form: s, u and r.

A score is a function of a :class:`Block`: it scores all candidates for B anchors and returns a
plain tensor. To add one, write the function and add a line to :data:`COMPONENTS`, or pass the
function in ``components=``. What it returns for candidates that are not negatives is ignored. A
score with a memory of its own is an ``nn.Module`` with the same call.

Letters: N anchors, B of them in a block, M candidates, D dimensions of z, H dimensions of h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unremix.core.precision import noise
from unremix.core.views import Vectors

Gradient = Literal["pseudo-label", "nt-xent"]


@dataclass(frozen=True)
class Block:
    """B anchors against all their candidates: what a score is computed from.

    M candidates are shared by all anchors. Each anchor may have S more of its own; they take the
    last columns, so every (B, M) below stands for (B, M + S).

    Args:
        anchors: B views.
        candidates: M views.
        extra: The anchors' extra negatives, their tensors of shape (B, S, ...).
        negatives: Which candidates are negatives of which anchors, boolean, shape (B, M).
        count: How many negatives each anchor has, shape (B, 1).
        non_negatives: The shared candidates that are not negatives, shape (B, E), where they are
            known as a list; None where only the mask is known.
        similarity: s_ij = f_i · f_j, shape (B, M).
        bias: Whether the last layer has a bias.
    """

    anchors: Vectors
    candidates: Vectors
    extra: Vectors | None
    negatives: Tensor
    count: Tensor
    non_negatives: Tensor | None
    similarity: Tensor
    bias: bool = True

    def inner_products(self, name: Literal["output_gradients", "inputs"]) -> Tensor:
        """Inner products x_i · x_j of δ or of h of anchors and candidates, shape (B, M)."""
        anchors, candidates = getattr(self.anchors, name), getattr(self.candidates, name)
        if anchors is None or candidates is None:
            raise ValueError(
                f"expected {name} of anchors and candidates, got none; use Component(score, "
                "needs_gradients=True), and for inputs pass last_layer=, or h0 and h1"
            )
        return inner_products(anchors, candidates, getattr(self.extra, name, None))


def inner_products(anchors: Tensor, candidates: Tensor, extra: Tensor | None = None) -> Tensor:
    """x_i · x_j of each anchor with the shared candidates and then with its own.

    Args:
        anchors: Shape (B, D).
        candidates: Shape (M, D).
        extra: Shape (B, S, D), where there are any.

    Returns:
        Shape (B, M), or (B, M + S).
    """
    shared = anchors @ candidates.T
    if extra is None:
        return shared
    return torch.cat([shared, torch.einsum("bd,bsd->bs", anchors, extra)], dim=1)


def similarity(block: Block) -> Tensor:
    """s_ij = f_i · f_j, shape (B, M)."""
    return block.similarity


def output_gradients(
    units: Tensor,
    lengths: Tensor,
    classes: Tensor,
    logits: Tensor,
    *,
    temperature: float | Tensor,
    target: Tensor | None = None,
    extra: Tensor | None = None,
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
        logits: f · f_k / t, shape (B, M); -∞ where k is no class of the view.
        temperature: t.
        target: A distribution over the classes in place of the most probable one, shape (B, M);
            for ``nt-xent``, in which the positives are classes and the label.
        extra: f of the classes of one view alone, shape (B, S, D); they take the last columns.

    Returns:
        δ, shape (B, D).

    Reference:
        UnReMix, Eq. 2 (p) and Eq. 3, up to the layer's output. Unlike in BADGE (Ash et al. 2020),
        the classes are other views.
    """
    p = logits.softmax(1)  # (B, M); NaN for a view without a class
    if target is None:  # y is 1 at the most probable class; subtracted in place
        label = logits.argmax(1, keepdim=True)
        p_minus_y = p.scatter_add_(1, label, p.new_full(label.shape, -1.0))
    else:
        p_minus_y = p - target
    d = p_minus_y[:, : len(classes)] @ classes  # times t
    if extra is not None:
        d = d + torch.einsum("bs,bsd->bd", p_minus_y[:, len(classes) :], extra)
    tangent = d - (d * units).sum(1, keepdim=True) * units
    size = torch.linalg.vector_norm(tangent, dim=1, keepdim=True)
    scale = temperature * lengths[:, None]
    something = (size > noise(units)) & (scale > 0)
    delta = tangent * torch.where(something, 1 / scale, 0.0)  # NaN without a class
    return torch.nan_to_num(delta)


def uncertainty(block: Block) -> Tensor:
    """u_ij = <g_i, g_j> = (δ_i · δ_j)(h_i · h_j + 1), shape (B, M).

    g is the gradient at the last layer's weight and bias of a view's cross-entropy against its
    pseudo-label. The 1 belongs to the bias. Without a known layer, u_ij = δ_i · δ_j.

    It measures influence: how far a step on the candidate's pseudo-label changes the anchor's loss,
    to first order. It does not tell true negatives from false ones (docs/results-study.md).

    Reference:
        UnReMix, below Eq. 3.
    """
    at_output = block.inner_products("output_gradients")
    if block.anchors.inputs is None:
        return at_output
    at_input = block.inner_products("inputs")
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
    units, count, few = block.candidates.units, block.count, block.non_negatives
    extra = None if block.extra is None else block.extra.units
    if few is None:
        total = block.negatives[:, : len(units)].to(units.dtype) @ units  # T_i, shape (B, D)
    else:  # the sum of all, less the few that are not negatives
        total = units.sum(0) - units[few].sum(1)
    if extra is not None:
        total = total + extra.sum(1)
    one = (count > 1).to(units.dtype)  # 0 where r is to be 0
    inverse = one / (count - 1).clamp(min=1)  # 1 / (n - 1)
    # r_ij = 1 - (f_j · T_i - f_j · f_j) / (n - 1) is one inner product of (D + 2) numbers,
    # (-T_i / (n - 1), 1 / (n - 1), 1) · (f_j, f_j · f_j, 1). The 1 comes last: small terms that are
    # added to it lose digits.
    anchors = torch.cat([-inverse * total, inverse, one], dim=1)
    return inner_products(anchors, _extend(units), None if extra is None else _extend(extra))


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
        needs_gradients: Whether it uses δ and h.
        needs_ids: Whether it uses the samples' ids.
    """

    score: Score
    magnitude: float | None = None
    needs_gradients: bool = False
    needs_ids: bool = False


PAPER_COMPONENTS = ("uncertainty", "similarity", "representativeness")
"""The scores that UnReMix mixes; further ones are used where a loss names them."""

COMPONENTS: dict[str, Component] = {
    "uncertainty": Component(uncertainty, needs_gradients=True),
    "similarity": Component(similarity, magnitude=1.0),
    "representativeness": Component(representativeness, magnitude=1.0),
}
