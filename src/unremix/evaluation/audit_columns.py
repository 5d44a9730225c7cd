"""What the weights pick while a model trains on labeled data: columns of metrics.csv."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor, nn

from unremix.audit import audit
from unremix.core.contrast import Importance

PREFIX = "audit_"


def _spread(score: Tensor, negatives: Tensor) -> float:
    """Standard deviation of a score over an anchor's negatives, both (A, C), mean over anchors.

    Example:
        >>> _spread(torch.tensor([[1.0, 3.0, 50.0]]), torch.tensor([[True, True, False]]))
        1.0
    """
    score, count = score.double(), negatives.sum(1, keepdim=True)
    mean = torch.where(negatives, score, 0.0).sum(1, keepdim=True) / count
    square = torch.where(negatives, (score - mean).square(), 0.0).sum(1, keepdim=True) / count
    return float(square[count > 0].sqrt().mean())


def audit_columns(importance: Importance, labels: Tensor, k: int = 10) -> dict[str, float]:
    """What :func:`unremix.audit` finds in a batch, and the spread of each score; same arguments.

    Returns:
        ``audit_false_negative_rate``, ``audit_matched_false_negative_rate``, ``audit_base_rate``,
        ``audit_distinct_class_share``, ``audit_effective_negatives``, ``audit_auc_NAME`` and
        ``audit_spread_NAME`` for each score, the weights and the evidence.
    """
    audited = audit(importance, labels, k)
    row = {f"auc_{name}": value for name, value in audited.auc.items()}
    row |= {
        f"spread_{name}": _spread(getattr(importance, name), importance.negatives)
        for name in audited.auc
    }
    single = {name: value for name, value in asdict(audited).items() if isinstance(value, float)}
    return {PREFIX + name: value for name, value in (single | row).items()}


def gradient_columns(model: nn.Module) -> dict[str, float]:
    """The norm of the latest gradient, after any clipping, of each part: encoder, head, loss.

    The columns are ``audit_gradient_NAME``, for each part that has a gradient.
    """
    norms = {}
    for name, part in model.named_children():
        gradients = [each.grad for each in part.parameters() if each.grad is not None]
        if gradients:
            norms[f"{PREFIX}gradient_{name}"] = float(nn.utils.get_total_norm(gradients))
    return norms
