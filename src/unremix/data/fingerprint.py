"""A short text that identifies data, and some of their indices: spread, or drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def fingerprint(parts: Iterable[Tensor | str | None]) -> str:
    """SHA-256 over tensors and texts, one after the other.

    Args:
        parts: Tensors of any shape, texts, or None for what is not known.

    Example:
        >>> fingerprint(["a", None]) == fingerprint(["a", "None"])
        False
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            tensor = part.detach().cpu().contiguous()
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        else:
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            found.update(f"{type(part).__name__} {len(data)}\n".encode())
            found.update(data)
    return found.hexdigest()


def spread(count: int, most: int) -> Tensor:
    """At most this many indices, evenly spread over all, shape (k,), int64.

    Example:
        >>> spread(10, 4), spread(3, 4)
        (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // (most - 1)


def drawn(count: int, most: int | None) -> Tensor:
    """At most this many of ``count`` indices, drawn with a fixed seed, in order, shape (k,), int64.

    Example:
        >>> drawn(3, 10), len(drawn(1000, 10))
        (tensor([0, 1, 2]), 10)
    """
    if most is None or count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
