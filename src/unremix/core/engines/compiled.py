"""The readable functions under ``torch.compile``: one graph for a block's loss and its gradients.

The block is compiled, not the loop over blocks, which the tracer would unroll.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, compile

from unremix.core.engines.eager import BlockEngine, Evaluated, rows_loss
from unremix.core.engines.library import Untrusted, make_private
from unremix.core.problem import Problem
from unremix.core.scores import output_gradients
from unremix.user_cache import user_cache

# Count recompilations per set of options, not for all losses together.
_known = "isolate_recompiles" in signature(compile).parameters  # since torch 2.13
ISOLATED: dict[str, Any] = {"isolate_recompiles": True} if _known else {}


@cache
def keep_code_private() -> None:
    """Let torch keep what it compiles where no other user can plant code.

    Its own default is a folder below the one for temporary files, which all users share. A folder
    that the variable names is used as it is.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        try:
            folder = str(user_cache() / "inductor")
            make_private(Path(folder))
        except (OSError, RuntimeError, Untrusted):  # or no home folder
            folder = tempfile.mkdtemp()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


@lru_cache(maxsize=64)
def _compiled(function: Callable[..., Any], options: str = "") -> Callable[..., Any]:
    """One compiled function per set of options, given as text so that no score is kept alive."""
    keep_code_private()
    made: Callable[..., Any] = compile(function, **ISOLATED)
    return made


def _evaluate(tensors: Sequence[Any], wanted: Sequence[bool], problem: Problem) -> Evaluated:
    """As :func:`evaluate`, in a form that can be traced.

    ``eager`` differs, since ``torch.func`` refuses scores that update a memory of their own.
    """
    places = tuple(place for place, want in enumerate(wanted) if want)
    if not places:
        return (*rows_loss(problem, *tensors), (None,) * len(tensors))

    def loss(*leaves: Any) -> tuple[Tensor, Tensor]:
        return rows_loss(problem, *leaves)

    differentiate = torch.func.grad_and_value(loss, argnums=places, has_aux=True)
    derived, (total, weightless) = differentiate(*tensors)
    gradients = dict(zip(places, derived, strict=True))
    return total, weightless, tuple(gradients.get(place) for place in range(len(tensors)))


@torch.no_grad()
def evaluate(tensors: Sequence[Any], wanted: Sequence[bool], problem: Problem) -> Evaluated:
    """As :func:`unremix.core.engines.eager.evaluate`."""
    evaluated: Evaluated = _compiled(_evaluate, repr(problem.options))(tensors, wanted, problem)
    return evaluated


@torch.no_grad()
def derive(*arguments: Any, **options: Any) -> Tensor:
    """As :func:`unremix.core.scores.output_gradients`."""
    delta: Tensor = _compiled(output_gradients)(*arguments, **options)
    return delta


ENGINE = BlockEngine("compiled", derive, evaluate)
