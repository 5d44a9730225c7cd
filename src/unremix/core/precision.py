"""What rounding may do: the precision of a loss, and what counts as zero or as constant."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

SMALLEST_NORM = 1e-12  # an embedding at most this long has no direction: its unit vector is 0
# TF32 rounds each factor to 11 bits: f · f' errs by up to 2^-10, a difference of two by twice that.
TF32_NOISE = 2.0**-9


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Compute in the dtype of the tensors passed, whatever autocast says.

    TF32 is left as the user set it; :func:`noise` allows for it.
    """
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device_type=device.type, enabled=False)


def noise(like: Tensor) -> float:
    """The largest value that, beside values of order one, counts as rounding.

    Args:
        like: A tensor of the dtype and on the device at work: with TF32, products of float32 on a
            GPU keep fewer digits.

    Example:
        >>> noise(torch.zeros(1))
        7.62939453125e-06
    """
    if like.dtype == torch.float32 and like.device.type == "cuda" and _uses_tf32():
        return TF32_NOISE
    return 64 * torch.finfo(like.dtype).eps


def _uses_tf32() -> bool:
    """Whether products of float32 on a GPU are computed in TF32."""
    settings: Any = torch.backends.cuda.matmul
    if hasattr(torch.backends, "fp32_precision"):  # since torch 2.9
        return bool(settings.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


# torch.compile takes the answer for a constant; it compiles again when the setting changes. This is
# what torch.compiler.assume_constant_result does, which would import Dynamo, for seconds.
_uses_tf32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def at_least_float32(values: Tensor) -> Tensor:
    """The same values, in float32 where they are in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def normalize(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors f = z/|z| and lengths |z|; both are 0 for a zero vector.

    Args:
        embeddings: z, shape (..., D); gradient flows to it.

    Returns:
        f, shape (..., D), and |z|, shape (...).

    Example:
        >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]]), tensor([5., 0.]))
    """
    if embeddings.shape[-1] == 0:
        return embeddings, embeddings.sum(-1)
    # Squares of very long or short vectors leave the range of numbers: bring them to size 1 first.
    largest = embeddings.detach().abs().amax(-1, keepdim=True)
    nothing = largest <= SMALLEST_NORM
    size = torch.where(nothing, 1.0, largest)
    shrunk = embeddings / size
    length = torch.linalg.vector_norm(torch.where(nothing, 1.0, shrunk), dim=-1, keepdim=True)
    units = torch.where(nothing, 0.0, shrunk / length)
    return units, torch.where(nothing, 0.0, length * size)[..., 0]
