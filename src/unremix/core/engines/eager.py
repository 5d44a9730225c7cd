"""Autograd over the readable functions: every device, dtype, weighting and component."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unremix.core.problem import Problem
from unremix.core.rows import rows_loss
from unremix.core.scores import output_gradients

Evaluated = tuple[Tensor, Tensor, tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Engine:
    """What evaluates a block.

    Args:
        name: As in ``engine=``.
        output_gradients: δ of some views; the arguments are those of
            :func:`unremix.core.scores.output_gradients`.
        evaluate: The loss of some anchors, how many lack weight, and the gradients to what is
            differentiated; the arguments are those of :func:`evaluate`.
    """

    name: str
    output_gradients: Callable[..., Tensor]
    evaluate: Callable[..., Evaluated]


def evaluate(tensors: Sequence[Any], wanted: Sequence[bool], problem: Problem) -> Evaluated:
    """The loss of a block of anchors and its gradients.

    Args:
        tensors: What is differentiated: the last arguments of
            :func:`unremix.core.rows.rows_loss`.
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
            found = iter(torch.autograd.grad(total, inputs, materialize_grads=True))
        else:  # of constants: nothing is wanted, or a mix of no components alone
            found = iter([torch.zeros_like(each) for each in inputs])
    return total.detach(), weightless, tuple(next(found) if want else None for want in wanted)


ENGINE = Engine("eager", output_gradients, evaluate)
