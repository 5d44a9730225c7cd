"""The readable functions under ``torch.compile``: one graph for a block's loss and its gradients.

The block is compiled, not the loop over blocks, which the tracer would unroll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, compile

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


# Losses with other options must not count against each other's limit of recompilations.
_known = "isolate_recompiles" in signature(compile).parameters  # since torch 2.13
ISOLATED: dict[str, Any] = {"isolate_recompiles": True} if _known else {}


@lru_cache(maxsize=64)
def _compiled(function: Callable[..., Any], options: Options | None) -> Callable[..., Any]:
    made: Callable[..., Any] = compile(function, **ISOLATED)
    return made


@torch.no_grad()
def evaluate(
    loss: RowsLoss,
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    rows: Rows,
    options: Options,
) -> Evaluated:
    """As :func:`unremix.core.engines.eager.evaluate`."""
    found: Evaluated = _compiled(_evaluate, options)(loss, tensors, wanted, rows, options)
    return found


@torch.no_grad()
def derive(*arguments: Any, **options: Any) -> Tensor:
    """As :func:`unremix.core.scores.residuals`."""
    delta: Tensor = _compiled(residuals, None)(*arguments, **options)
    return delta


ENGINE = Engine("compiled", derive, evaluate)
