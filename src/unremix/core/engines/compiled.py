"""The readable functions under ``torch.compile``: one graph for a block's loss and its gradients.

The block is compiled, not the loop over blocks, which the tracer would unroll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unremix.core.engines.eager import Engine, Evaluated, RowsLoss
from unremix.core.problem import Options, Rows
from unremix.core.scores import residuals


def _evaluate(
    loss: RowsLoss,
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    rows: Rows,
    options: Options,
) -> Evaluated:
    """As :func:`unremix.core.engines.eager.evaluate`, in a form that can be traced."""
    places = tuple(place for place, want in enumerate(wanted) if want)
    if not places:
        return (*loss(*tensors, rows, options), (None,) * len(tensors))

    def scalar(*leaves: Any) -> tuple[Tensor, Tensor]:
        return loss(*leaves, rows, options)

    differentiate = torch.func.grad_and_value(scalar, argnums=places, has_aux=True)
    found, (total, weightless) = differentiate(*tensors)
    gradients: list[Tensor | None] = [None] * len(tensors)
    for place, gradient in zip(places, found, strict=True):
        gradients[place] = gradient
    return total, weightless, tuple(gradients)


@lru_cache(maxsize=1)
def _compile() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return torch.compile(_evaluate), torch.compile(residuals)


def evaluate(*arguments: Any) -> Evaluated:
    """As :func:`unremix.core.engines.eager.evaluate`."""
    with torch.no_grad():
        evaluated: Evaluated = _compile()[0](*arguments)
    return evaluated


def derive(*arguments: Any, **options: Any) -> Tensor:
    """As :func:`unremix.core.scores.residuals`."""
    with torch.no_grad():
        delta: Tensor = _compile()[1](*arguments, **options)
    return delta


ENGINE = Engine("compiled", derive, evaluate)
