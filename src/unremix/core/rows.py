"""The loss of some anchors: scores → weights → objective. This is the whole method."""

from __future__ import annotations

import torch
from torch import Tensor

from unremix.core.problem import Problem
from unremix.core.weights import weights_of


def rows_loss(
    problem: Problem,
    anchors: Tensor,
    candidates: Tensor,
    mix: Tensor,
    temperature: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """The loss of the anchors of a problem: scores → weights → objective.

    Args:
        problem: Everything that is not differentiated.
        anchors: What the logits of the anchors are made of, f or z, shape (N, D).
        candidates: Likewise of the candidates, shape (M, D).
        mix: λ, shape (K,).
        temperature: τ.

    Returns:
        The sum of the anchors' losses, and how many of them have negatives but no weight.
    """
    pairs, options = problem.pairs, problem.options
    weighting, objective = options.weighting, options.objective
    logits, block = problem.compare(anchors, candidates)  # (N, M)
    weights = weights_of(block, mix, weighting, temperature)  # Eq. 4 and 5; δ of Eq. 3 is given
    logits = logits / temperature
    count = block.count[:, 0]
    losses = objective.against_positives(  # Eq. 1
        objective.sum_negatives(logits, weights, block.negatives),
        logits.gather(1, pairs.positives),
        pairs.normalized_shares(logits.dtype),
        count,
        -1 / temperature,
    )
    weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)
    if weighting.mass == "none":  # else such rows are uniform
        weightless = ((count > 0) & (weights.sum(1) == 0)).sum()
    return losses.sum(), weightless
