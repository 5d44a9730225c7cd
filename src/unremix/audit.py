"""How good the important negatives are, seen with labels that training never uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the package is imported without torch, so that the command line answers at once
    from torch import Tensor

    from unremix.losses import Importance

DECILES = 10


@dataclass(frozen=True)
class Audit:
    """What :func:`audit` found.

    Args:
        false_negative_rate: Share of an anchor's k most weighted negatives that have its label,
            mean over anchors.
        base_rate: The same share among all its negatives: what random choice would give.
        decile_false_negative_rate: Share of same-label negatives in each tenth by weight, from the
            least to the most weighted, over all anchors; NaN for a tenth that holds none.
        distinct_class_share: Distinct labels among the k most weighted negatives, divided by k (or
            by the number of negatives, if fewer), mean over anchors.
        effective_negatives: (Σ_j w_ij)² / Σ_j w_ij², mean over anchors: the number of equally
            weighted negatives that would average as much.
        k: k.
    """

    false_negative_rate: float
    base_rate: float
    decile_false_negative_rate: tuple[float, ...]
    distinct_class_share: float
    effective_negatives: float
    k: int


def effective_negatives(weights: Tensor) -> float:
    """(Σ_j w_ij)² / Σ_j w_ij², mean over anchors; an anchor without weight counts 0.

    Args:
        weights: w, shape (A, C); 0 where there is no negative.
    """
    import torch

    square = weights.square().sum(1).clamp(min=torch.finfo(weights.dtype).tiny)
    return float((weights.sum(1).square() / square).mean())


def audit(importance: Importance, labels: Tensor, k: int = 10) -> Audit:
    """Look at the negatives that matter most.

    Args:
        importance: From :func:`unremix.importance`.
        labels: The class of each sample, shape (N,); or of each view, shape (A,).
        k: How many of the most weighted negatives to look at, per anchor.

    Raises:
        ValueError: If the labels do not fit the importance, or k is not positive.

    Example:
        >>> import torch, unremix
        >>> z0, z1 = torch.eye(4), torch.eye(4)
        >>> found = unremix.audit(unremix.importance(z0, z1), torch.tensor([0, 0, 1, 1]), k=2)
        >>> round(found.base_rate, 3)  # each view has 6 negatives, 2 of them of its own class
        0.333
    """
    import torch

    weights, negatives = importance.weights, importance.negatives
    anchors = weights.shape[0]
    if k < 1:
        raise ValueError(f"expected k of at least 1, received {k}")
    labels = torch.as_tensor(labels)
    if labels.dim() != 1 or labels.shape[0] not in (anchors, anchors // 2):
        raise ValueError(
            f"expected one label per sample or per view, shape ({anchors},) or ({anchors // 2},), "
            f"received {tuple(labels.shape)}; give labels in the order of the batch"
        )
    labels = labels.to(weights.device)
    if labels.shape[0] != anchors:
        labels = labels.repeat(2)
    _, labels = labels.unique(return_inverse=True)
    same = (labels[:, None] == labels[None, :]) & negatives  # (A, C)

    # Ascending by weight, equal weights in the order of the batch; what is no negative comes first.
    order = weights.masked_fill(~negatives, -torch.inf).sort(dim=1, stable=True).indices
    count = negatives.sum(1)
    rank = (
        torch.arange(weights.shape[1], device=weights.device) - (weights.shape[1] - count)[:, None]
    )
    ranked_same = same.gather(1, order)
    decile = rank * DECILES // count.clamp(min=1)[:, None]
    rates = []
    for number in range(DECILES):
        members = (decile == number) & (rank >= 0)
        rates.append(float(ranked_same[members].float().mean()))  # the mean of none is NaN

    # Descending for the top k: equal weights again in the order of the batch.
    best = weights.masked_fill(~negatives, -torch.inf).sort(dim=1, stable=True, descending=True)
    top = best.indices[:, :k]
    chosen = negatives.gather(1, top)
    looked_at = chosen.sum(1)
    usable = looked_at > 0
    false_rate = (same.gather(1, top) & chosen).sum(1)[usable] / looked_at[usable]
    present = torch.zeros(anchors, int(labels.max()) + 1, device=weights.device)
    present.scatter_reduce_(1, labels[top], chosen.to(present.dtype), "amax")
    distinct = present.sum(1)[usable] / looked_at[usable]
    return Audit(
        false_negative_rate=float(false_rate.mean()),
        base_rate=float((same.sum(1)[usable] / count[usable]).mean()),
        decile_false_negative_rate=tuple(rates),
        distinct_class_share=float(distinct.mean()),
        effective_negatives=effective_negatives(weights[usable]),
        k=k,
    )
