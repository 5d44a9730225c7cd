"""Some of the indices of a data set: evenly spread, or drawn."""

from __future__ import annotations

import torch
from torch import Tensor


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
