"""How many heavily weighted negatives are false, by labels that training never uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the package is imported without torch, so that the command line answers at once
    from torch import Tensor

    from unremix.core.contrast import Importance

DECILES = 10


@dataclass(frozen=True)
class Audit:
    """What :func:`audit` found.

    Args:
        false_negative_rate: Share of an anchor's k most weighted negatives that have its label,
            mean over anchors.
        matched_false_negative_rate: The same share among negatives that are as similar to the
            anchor: what a choice by similarity alone would give; see :func:`matched_rates`. A
            weighting that avoids false negatives has a lower rate than this; one that merely
            prefers easy negatives has the same.
        base_rate: The same share among all its negatives: what random choice would give.
        decile_false_negative_rate: Share of same-label negatives in each tenth by weight, from the
            least to the most weighted, over all anchors; NaN for a tenth that holds none.
        distinct_class_share: Distinct labels among the k most weighted negatives, divided by k (or
            by the number of negatives, if fewer), mean over anchors.
        effective_negatives: (Σ_j w_ij)² / Σ_j w_ij², mean over anchors: the number of equally
            weighted negatives that would average as much.
        auc: For each score, for the weights and for the evidence, if any: how often a
            negative of the anchor's label has more of it than one of another label (ties count
            half), mean over anchors that have both. 0.5 is chance; above, false negatives get more.
        k: How many of the most weighted negatives were looked at, per anchor.
    """

    false_negative_rate: float
    matched_false_negative_rate: float
    base_rate: float
    decile_false_negative_rate: tuple[float, ...]
    distinct_class_share: float
    effective_negatives: float
    auc: dict[str, float]
    k: int


def effective_negatives(weights: Tensor) -> float:
    """(Σ_j w_ij)² / Σ_j w_ij², mean over anchors; an anchor without weight counts 0.

    Args:
        weights: w, shape (A, C); 0 except for negatives.
    """
    import torch

    square = weights.square().sum(1).clamp(min=torch.finfo(weights.dtype).tiny)
    return float((weights.sum(1).square() / square).mean())


def separation(values: Tensor, same: Tensor, negatives: Tensor) -> float:
    """How well values separate negatives of the anchor's label from others (AUC).

    The share of pairs (a negative of the same label, one of another) in which the first has the
    larger value, ties counting half; per anchor, then the mean over anchors that have both.

    Args:
        values: Shape (A, C).
        same: Which candidates have the anchor's label, boolean, shape (A, C).
        negatives: Boolean, shape (A, C).

    Returns:
        0.5 for chance, 1 where false negatives always have more; NaN where no anchor has both.

    Example:
        >>> import torch
        >>> same = torch.tensor([[True, True, False, False]])
        >>> separation(torch.tensor([[0.9, 0.2, 0.5, 0.1]]), same, torch.ones_like(same))
        0.75
    """
    from unremix.signals.rules import standing

    same = same & negatives
    alike, count = same.sum(1).double(), negatives.sum(1).double()
    ranks = standing(values.double(), negatives) * count[:, None] + 0.5  # from 1 to n
    wins = (ranks * same).sum(1) - alike * (alike + 1) / 2
    pairs = alike * (count - alike)
    return float((wins / pairs)[pairs > 0].mean())  # the mean of none is NaN


def matched_rates(
    similarity: Tensor,
    same: Tensor,
    negatives: Tensor,
    twin: Tensor,
    chosen: Tensor,
    window: int = 2,
) -> Tensor:
    """Share of same-label negatives among those as similar to the anchor as the chosen ones.

    Rank an anchor's negatives by similarity, equal ones in the order of the batch. The matches of a
    chosen negative are as many negatives just above it as just below it: ``window`` on each side,
    or as many as both sides have. More on one side than on the other would be more or less similar
    than the chosen one on average, and a wide window would blur a rate that rises steeply towards
    the most similar. Left out are the negative itself and the other view of its
    sample, whose label is the same. The rate of a chosen negative is the share of its matches that
    have the anchor's label. One without matches, such as the most similar of all, is its own match.

    Args:
        similarity: s, shape (A, C).
        same: Which negatives have the anchor's label, boolean, shape (A, C).
        negatives: Boolean, shape (A, C).
        twin: The other view of each candidate's sample, itself without one, shape (C,).
        chosen: The chosen candidates of each anchor, shape (A, k); those that are no negatives are
            ignored.
        window: How far matches are, in ranks.

    Returns:
        The mean over the chosen of each anchor, shape (A,); NaN if none is a negative.
    """
    import torch

    similarity = similarity.masked_fill(~negatives, -torch.inf)  # negatives come first
    order = similarity.argsort(dim=1, stable=True, descending=True)
    rank = order.argsort(dim=1)
    before = torch.nn.functional.pad(same.gather(1, order).long().cumsum(1), (1, 0))  # (A, C + 1)
    here = rank.gather(1, chosen)
    below = negatives.sum(1, keepdim=True) - 1 - here
    reach = torch.minimum(here, below).clamp(0, window)  # ranks on either side
    own = same.gather(1, chosen).long()
    false = before.gather(1, here + reach + 1) - before.gather(1, here - reach) - own
    count = 2 * reach
    other = twin[chosen]
    near = (rank.gather(1, other) - here).abs() <= reach
    counted = near & (other != chosen) & negatives.gather(1, other)
    false = false - (same.gather(1, other) & counted).long()
    count = count - counted.long()
    rates = torch.where(count > 0, false / count.clamp(min=1), own).double()
    usable = negatives.gather(1, chosen)
    return torch.where(usable, rates, 0.0).sum(1) / usable.sum(1)


def audit(importance: Importance, labels: Tensor, k: int = 10) -> Audit:
    """Look at the negatives that matter most.

    A rate of false negatives among heavy negatives means little by itself: whoever prefers easy
    negatives lowers it for free. Compare ``false_negative_rate`` with
    ``matched_false_negative_rate``, the rate among negatives as similar to the anchor as the heavy
    ones (see :func:`matched_rates`): the difference is what the weighting knows beyond similarity.

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
        raise ValueError(f"expected k of at least 1, got {k}")
    labels = torch.as_tensor(labels)
    if labels.dim() != 1 or labels.shape[0] not in (anchors, anchors // 2):
        raise ValueError(
            f"expected one label per sample or per view, shape ({anchors},) or ({anchors // 2},), "
            f"got {tuple(labels.shape)}; give labels in the order of the batch"
        )
    labels = labels.to(weights.device)
    if labels.shape[0] != anchors:
        labels = labels.repeat(2)
    _, labels = labels.unique(return_inverse=True)
    same = (labels[:, None] == labels[None, :]) & negatives  # (A, C)

    # Equal weights stand in the order of the batch. Non-negatives come first where weights ascend
    # (deciles), and last where they descend (the top k).
    heaviness = weights.masked_fill(~negatives, -torch.inf)
    order = heaviness.argsort(dim=1, stable=True)
    count = negatives.sum(1)
    rank = torch.arange(weights.shape[1], device=weights.device) - (~negatives).sum(1)[:, None]
    decile = rank * DECILES // count.clamp(min=1)[:, None]  # below 0 for non-negatives
    ranked_same = same.gather(1, order).float()
    rates = [float(ranked_same[decile == number].mean()) for number in range(DECILES)]  # or NaN
    top = heaviness.argsort(dim=1, stable=True, descending=True)[:, :k]
    chosen = negatives.gather(1, top)
    looked_at = chosen.sum(1)
    usable = looked_at > 0
    false_rate = (same.gather(1, top) & chosen).sum(1)[usable] / looked_at[usable]
    present = torch.zeros(anchors, int(labels.max()) + 1, device=weights.device)
    present.scatter_reduce_(1, labels[top], chosen.to(present.dtype), "amax")
    distinct = present.sum(1)[usable] / looked_at[usable]
    scores = {**importance.scores, "evidence": importance.evidence, "weights": weights}
    twin = importance.positives.int().argmax(1)
    matched = matched_rates(importance.similarity, same, negatives, twin, top)
    return Audit(
        false_negative_rate=float(false_rate.mean()),
        matched_false_negative_rate=float(matched[~matched.isnan()].mean()),
        auc={
            name: separation(values, same, negatives)
            for name, values in scores.items()
            if values is not None
        },
        base_rate=float((same.sum(1)[usable] / count[usable]).mean()),
        decile_false_negative_rate=tuple(rates),
        distinct_class_share=float(distinct.mean()),
        effective_negatives=effective_negatives(weights[usable]),
        k=k,
    )
