"""Autograd over the readable functions: every device, dtype, weighting and component."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unremix.core.problem import Options, Rows
from unremix.core.scores import residuals

RowsLoss = Callable[..., tuple[Tensor, Tensor]]
Evaluated = tuple[Tensor, Tensor, tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Engine:
    """What evaluates a block.

    Args:
        name: As in ``engine=``.
        residuals: δ of some views; the arguments are those of
            :func:`unremix.core.scores.residuals`.
        evaluate: The loss of some anchors, how many lack weight, and the gradients to what is
            differentiated; the arguments are those of :func:`evaluate`.
    """

    name: str
    residuals: Callable[..., Tensor]
    evaluate: Callable[..., Evaluated]


def evaluate(
    loss: RowsLoss,
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    rows: Rows,
    options: Options,
) -> Evaluated:
    """The loss of a block of anchors and its gradients.

    Args:
        loss: :func:`unremix.core.contrast.rows_loss`.
        tensors: Its first arguments, which are differentiated.
        wanted: To which of them the gradient is wanted.
        rows: See there.
        options: See there.

    Returns:
        What ``loss`` returns, and one gradient per tensor, None where none is wanted.
    """
    with torch.enable_grad():
        leaves = [
            each.detach().requires_grad_() if want else each
            for each, want in zip(tensors, wanted, strict=True)
        ]
        total, weightless = loss(*leaves, rows, options)
        inputs = [each for each, want in zip(leaves, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(total, inputs, materialize_grads=True) if inputs else ())
    return total.detach(), weightless, tuple(next(found) if want else None for want in wanted)


ENGINE = Engine("eager", residuals, evaluate)
