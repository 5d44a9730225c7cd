"""A random projection of h that keeps inner products on average."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def sketch(inputs: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Project h to ``size`` dimensions so that inner products are kept on average.

    h' = sqrt(H/size) Qᵀ h with Q a random orthonormal (H, size): E[h'_i · h'_j] = h_i · h_j over
    draws of Q. At ``size`` ≥ H nothing is projected.

    Args:
        inputs: h, shape (..., H).
        size: Dimensions kept.
        seed: Draws Q; the same seed gives the same Q.

    Returns:
        Shape (..., min(size, H)).
    """
    width = inputs.shape[-1]
    if size >= width:
        return inputs
    return inputs @ _projection(width, size, seed, inputs.dtype, inputs.device)


def _projection(*settings: Any) -> Tensor:
    """Q as :func:`_draw_projection` makes it; ``torch.compile`` takes it for a constant."""
    return _draw_projection(*settings)


# What torch.compiler.assume_constant_result does, which would import Dynamo, for seconds.
_projection._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _draw_projection(
    width: int, size: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(gaussian)
    # Signs make the factorization unique, so that Q is uniformly distributed.
    scaled: Tensor = basis * triangle.diagonal().sign() * math.sqrt(width / size)
    return scaled.to(device, dtype)
