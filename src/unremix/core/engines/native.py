"""A sweep over a block in C, for tensors on the CPU.

In torch, every operation reads and writes whole arrays; here each row is read once and everything
is made of it while it lies in cache: from scores to weights to the weighted sum of the negatives,
and its derivatives. Scores and matrix products stay in torch. See docs/benchmarks.md for the gain.

``kernels.c`` is built when first needed; see :mod:`unremix.core.engines.library`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unremix.core.engines.eager import BlockEngine, Evaluated
from unremix.core.engines.library import Unavailable, find_library, load
from unremix.core.objectives import OVERFLOW, InfoNCE
from unremix.core.precision import noise
from unremix.core.problem import Options, Problem
from unremix.core.scores import output_gradients
from unremix.core.weights import raw_scores

MOST_COMPONENTS = 8  # of a mix; as in the source


def refusal(options: Options, like: Tensor, extra: bool = False) -> str | None:
    """Why this engine does not serve such a loss; None if it does."""
    weighting, mixed = options.weighting, len(options.weighting.components)
    scaled = weighting.scaling == "minmax" and weighting.sharpness is None
    reasons = {
        f"it runs on the CPU, not on {like.device.type}": like.device.type != "cpu",
        "it does not serve anchors with extra negatives": extra,
        "it does not serve gradient through the weights": mixed and weighting.similarity_gradient,
        "it serves uniform weights and mixes with scaling='minmax'": mixed and not scaled,
        "it does not serve false_negatives": weighting.filter is not None,
        f"it serves at most {MOST_COMPONENTS} components": mixed > MOST_COMPONENTS,
    }
    return next((why for why, holds in reasons.items() if holds), None) or missing(like.dtype)


def evaluate(tensors: Sequence[Any], wanted: Sequence[bool], problem: Problem) -> Evaluated:
    """As :func:`unremix.core.engines.eager.evaluate`; see :func:`refusal` for what is served."""
    anchors, candidates, mix, temperature = tensors
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())  # of any dtype: it promotes none
    pairs, options = problem.pairs, problem.options
    unscaled, block = problem.compare(anchors, candidates)  # (B, M)
    scores = [score.contiguous() for score in raw_scores(block, options.weighting)]
    sums, slopes, total, by_mix = sweep(
        scores, block.negatives, mix, unscaled, float(temperature), options, differentiate=wanted[2]
    )
    count = block.count[:, 0]
    weightless = ((total == 0) & (count > 0)).sum()
    positives = unscaled.gather(1, pairs.positives) / temperature
    shares = pairs.normalized_shares(unscaled.dtype)
    # What is left concerns a few numbers per anchor: autograd differentiates it.
    least_logit, differentiate = -1 / temperature, any(wanted)
    few = [sums, positives, least_logit] if wanted[3] else [sums, positives]
    with torch.set_grad_enabled(differentiate):
        for each in few:
            each.requires_grad_(differentiate)
        losses = options.objective.against_positives(sums, positives, shares, count, least_logit)
        loss = losses.sum()
    if not differentiate:
        return loss, weightless, (None, None, None, None)
    by_sums, by_positives, *by_least = torch.autograd.grad(loss, few, materialize_grads=True)
    by_logits = slopes.mul_(by_sums[:, None]).scatter_add_(1, pairs.positives, by_positives)
    by_anchors = (by_logits @ candidates).div_(temperature) if wanted[0] or wanted[3] else None
    by_temperature = None
    if by_anchors is not None and wanted[3]:  # every logit is a · c / τ, and the least one -1 / τ
        by_temperature = (by_least[0] / temperature - (by_anchors * anchors).sum()) / temperature
        by_temperature = by_temperature.view_as(tensors[3])
    gradients = (
        by_anchors if wanted[0] else None,
        (by_logits.T @ anchors).div_(temperature) if wanted[1] else None,
        by_sums @ by_mix if wanted[2] else None,
        by_temperature,
    )
    return loss.detach(), weightless, gradients


ENGINE = BlockEngine("native", output_gradients, evaluate, takes_similarity=True)


def sweep(
    scores: Sequence[Tensor],
    negatives: Tensor,
    mix: Tensor,
    unscaled: Tensor,
    temperature: float,
    options: Options,
    *,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What an objective sums up of the weighted negatives, and its derivatives.

    Args:
        scores: One per component, each (B, M), contiguous.
        negatives: Boolean, shape (B, M).
        mix: λ, shape (K,).
        unscaled: The logits before the division by τ, shape (B, M).
        temperature: τ.
        options: Objective and weighting.
        differentiate: Whether the derivative by the mix is wanted.

    Returns:
        What ``objective.sum_negatives`` returns, shape (B,); its derivative by the logits,
        shape (B, M); Σ_j w_j before the mass is normalized, shape (B,); the derivative by the mix,
        shape (B, K), arbitrary where it is not wanted.
    """
    rows, width = unscaled.shape
    parts = len(scores)
    mix, negatives = mix.contiguous(), negatives.contiguous()  # alive during the call
    slopes = torch.empty_like(unscaled)
    sums, total = unscaled.new_empty(2, rows).unbind()
    by_mix = unscaled.new_empty(rows, parts)
    components = options.weighting.resolved
    magnitudes = [component.magnitude or 0.0 for component in components]
    real = ctypes.c_double if unscaled.dtype == torch.float64 else ctypes.c_float
    library = _library(unscaled.dtype)
    assert not isinstance(library, str), library
    done = library.sweep(
        rows,
        width,
        parts,
        (ctypes.c_void_p * parts)(*(score.data_ptr() for score in scores)),
        mix.data_ptr(),
        (real * parts)(*magnitudes),
        noise(unscaled),
        negatives.data_ptr(),
        unscaled.data_ptr(),
        temperature,
        OVERFLOW,
        0 if isinstance(options.objective, InfoNCE) else 1,
        options.weighting.mass == "mean",
        slopes.data_ptr(),
        sums.data_ptr(),
        total.data_ptr(),
        by_mix.data_ptr() if differentiate and parts else None,
    )
    if not done:
        raise MemoryError(
            f"expected memory for a few rows of {width} numbers, got none; use smaller batches"
        )
    return sums, slopes, total, by_mix


def missing(dtype: torch.dtype = torch.float32) -> str | None:
    """Why there is no compiled code for a dtype; None if there is."""
    library = _library(dtype)
    return library if isinstance(library, str) else None


@lru_cache(maxsize=8)
def _library(dtype: torch.dtype) -> ctypes.CDLL | str:
    """The compiled code for a dtype, or why there is none."""
    if dtype not in (torch.float32, torch.float64):
        return f"it is built for float32 and float64, not for {dtype}"
    wide = dtype == torch.float64
    try:
        return load(find_library(wide=wide), wide=wide)
    except Unavailable as error:
        return str(error)
