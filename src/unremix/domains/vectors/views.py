"""How a row is changed: features of other rows in place of its own, or noise."""

from __future__ import annotations

import torch
from torch import Tensor

from unremix.frameworks.randomness import uniforms


def corrupt(rows: Tensor, keys: Tensor, train: Tensor, column_of: Tensor, share: float) -> Tensor:
    """Replace columns by those of other rows: draws from the empirical marginals.

    Of M columns, ⌊share M⌋, at least one, are replaced in each row; which ones is drawn without
    replacement. Each takes the features of a row of its own, drawn from all training rows.

    Args:
        rows: Shape (N, F).
        keys: From :func:`unremix.frameworks.randomness.keys`, shape (N,).
        train: The training rows, shape (n, F).
        column_of: The column of each feature, shape (F,).
        share: Of the columns, above 0.

    Example:
        >>> rows, marginal = torch.zeros(1, 4), torch.ones(5, 4)
        >>> corrupt(rows, torch.tensor([3]), marginal, torch.arange(4), 0.5).sum()
        tensor(2.)

    Reference:
        SCARF (Bahri et al. 2022), Algorithm 1.
    """
    count = int(column_of[-1]) + 1
    numbers = uniforms(keys, 2 * count)
    ranks = numbers[:, :count].argsort(dim=1, stable=True).argsort(dim=1)
    replaced = ranks < max(1, int(share * count + 1e-9))  # 0.6 · 5 is a little less than 3
    donors = (numbers[:, count:].double() * len(train)).long()  # (N, M)
    drawn = train[donors[:, column_of], torch.arange(len(column_of))]
    return torch.where(replaced[:, column_of], drawn, rows)


def add_noise(rows: Tensor, keys: Tensor, deviation: Tensor) -> Tensor:
    """Add normal noise with a standard deviation (F,) for each feature to rows (N, F)."""
    numbers = uniforms(keys, rows.shape[1]).double() + 2.0**-25  # never 0 or 1
    noise: Tensor = torch.special.ndtri(numbers) * deviation
    return rows + noise.to(rows.dtype)
