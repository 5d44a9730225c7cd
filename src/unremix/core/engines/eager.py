"""The whole method for some anchors, scores → weights → objective, and autograd over it.

It serves every device, dtype, weighting and component. The other engines compute the same:
``compiled`` by compiling :func:`rows_loss`, ``native`` by restating it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unremix.core.problem import Problem
from unremix.core.scores import output_gradients
from unremix.core.weights import weights_of

Evaluated = tuple[Tensor, Tensor, tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class BlockEngine:
    """What evaluates and differentiates a block of anchors.

    Args:
        name: As in ``engine=``.
        output_gradients: δ of some views; the arguments are those of
            :func:`unremix.core.scores.output_gradients`.
        evaluate: The loss of some anchors, how many lack weight, and the gradients to what is
            differentiated; the arguments are those of :func:`evaluate`.
        takes_similarity: Whether it saves work if f · f is known.
    """

    name: str
    output_gradients: Callable[..., Tensor]
    evaluate: Callable[..., Evaluated]
    takes_similarity: bool = False


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


def evaluate(tensors: Sequence[Any], wanted: Sequence[bool], problem: Problem) -> Evaluated:
    """The loss of a block of anchors and its gradients.

    Args:
        tensors: What is differentiated: the last arguments of :func:`rows_loss`.
        wanted: To which of them the gradient is wanted.
        problem: That of the block.

    Returns:
        What ``rows_loss`` returns, and one gradient per tensor, None where none is wanted.
    """
    with torch.enable_grad():
        leaves = [
            each.detach().requires_grad_() if want else each
            for each, want in zip(tensors, wanted, strict=True)
        ]
        total, weightless = rows_loss(problem, *leaves)
        inputs = [each for each, want in zip(leaves, wanted, strict=True) if want]
        if total.requires_grad:
            gradients = iter(torch.autograd.grad(total, inputs, materialize_grads=True))
        else:  # no gradient is wanted, or only that of a mix without components
            gradients = iter([torch.zeros_like(each) for each in inputs])
    return total.detach(), weightless, tuple(next(gradients) if want else None for want in wanted)


ENGINE = BlockEngine("eager", output_gradients, evaluate)
