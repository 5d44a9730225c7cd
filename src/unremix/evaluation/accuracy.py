"""How often predictions are right, with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

MOST_KEPT = 100_000  # predictions; of more, it is not kept which are right
Z95 = 1.959963984540054  # of the normal distribution


@dataclass(frozen=True)
class Accuracy:
    """A share of right predictions.

    Args:
        value: p, from 0 to 1.
        standard_error: sqrt(p (1 - p) / n), of the binomial distribution. It is 0 for p = 0 and
            p = 1, unlike the interval.
        count: n.
        low: Lower end of the 95 % Wilson interval: what another draw of n test samples could give.
            It says nothing about another training run.
        high: Upper end.
        right: One bit per prediction, 1 where it is right, as hexadecimal digits; empty for more
            than 100,000 predictions.

    Example:
        >>> import torch
        >>> print(Accuracy.of(torch.zeros(14, dtype=torch.bool)))
        0.00 % [0.00, 21.53]
    """

    value: float
    standard_error: float
    count: int
    low: float
    high: float
    right: str = ""

    @classmethod
    def of(cls, correct: Tensor) -> Accuracy:
        """The accuracy of n predictions, given which are right: boolean, shape (n,)."""
        count = correct.numel()
        value = int(correct.sum()) / count
        error = math.sqrt(value * (1 - value) / count)
        bits = np.packbits(correct.cpu().numpy().astype(bool)) if count <= MOST_KEPT else b""
        return cls(value, error, count, *wilson_interval(value, count), bytes(bits).hex())

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % [{100 * self.low:.2f}, {100 * self.high:.2f}]"


def wilson_interval(value: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share p of n samples, which is never empty.

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n)  with z = 1.96.

    Args:
        value: p.
        count: n.

    Example:
        >>> low, high = wilson_interval(0.8, 100)
        >>> round(low, 3), round(high, 3)
        (0.711, 0.867)

    Relations:
        ``scipy.stats.binomtest(k, n).proportion_ci(method="wilson")``, without importing scipy.

    Reference:
        Wilson 1927.
    """
    square = Z95**2 / count
    middle = value + square / 2
    half = Z95 * math.sqrt(value * (1 - value) / count + square / (4 * count))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return (0.0 if value == 0 else low), (1.0 if value == 1 else high)


def agreement(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """The correlation φ between two accuracies of the same samples.

    With a samples that both predict right, b and c that only one predicts right, and d that neither
    does, φ = (ad - bc) / √((a + b)(c + d)(a + c)(b + d)). A positive ad - bc is reduced by n/2, but
    not below 0, since a few samples show little. φ is 0 unless both record what is right.

    Args:
        first: The fields of an :class:`Accuracy`.
        second: Those of the other.

    Example:
        >>> import torch
        >>> one, other = (vars(Accuracy.of(torch.arange(100) < n)) for n in (80, 90))
        >>> round(agreement(one, other), 3)
        0.625
    """
    bits = [bytes.fromhex(one.get("right") or "") for one in (first, second)]
    count = first.get("count", 0)
    if count != second.get("count") or not all(len(one) == -(-count // 8) for one in bits):
        return 0.0
    one, other = (np.unpackbits(np.frombuffer(b, np.uint8), count=count) for b in bits)
    d, c, b, a = np.bincount(2 * one + other, minlength=4).tolist()
    cross, sizes = a * d - b * c, (a + b) * (c + d) * (a + c) * (b + d)
    cross = cross if cross < 0 else max(0.0, cross - count / 2)
    return cross / math.sqrt(sizes) if sizes else 0.0


def top_accuracy(shares: Tensor, labels: Tensor, top: int = 1) -> Accuracy:
    """How often the right class is among those with the largest shares.

    Args:
        shares: Of each class, or logits, shape (m, C).
        labels: The right classes, shape (m,).
        top: How many classes.

    Example:
        >>> import torch
        >>> shares = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
        >>> [top_accuracy(shares, torch.tensor([1, 2]), top).value for top in (1, 2)]
        [0.5, 1.0]
    """
    labels = labels.to(shares.device)
    if top == 1:
        return Accuracy.of(shares.argmax(1) == labels)
    return Accuracy.of((shares.topk(top, dim=1).indices == labels[:, None]).any(1))
