"""What a few seeds can say: mean, spread, and paired differences with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from unremix.core.checks import check_number


@dataclass(frozen=True)
class Summary:
    """Values of several seeds in short.

    Args:
        count: n, how many there are.
        mean: Their mean.
        deviation: Their standard deviation, with n - 1; None for a single value, which has no
            spread that could be known.
    """

    count: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """How much higher values are than those of a reference, paired by seed.

    Args:
        count: n, pairs.
        mean: The mean of the differences.
        low: Lower end of the interval; None for a single pair.
        high: Upper end.
    """

    count: int
    mean: float
    low: float | None
    high: float | None


def _checked(values: Sequence[float]) -> list[float]:
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"expected one finite value or more, got {list(values)}")
    return list(values)


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard deviation sqrt(Σ (x - mean)² / (n - 1)) of values, one per seed.

    Raises:
        ValueError: If there is no value, or one is not finite.

    Example:
        >>> summarize([1.0, 2.0, 3.0])
        Summary(count=3, mean=2.0, deviation=1.0)
        >>> summarize([1.0]).deviation is None
        True
    """
    values = _checked(values)
    return Summary(len(values), fmean(values), stdev(values) if len(values) > 1 else None)


def paired_difference(
    values: Sequence[float], reference: Sequence[float], *, confidence: float = 0.95
) -> Difference:
    """The mean of value minus reference, pair by pair, with Student's t interval.

    d ± t · s / √n,  d and s the differences' mean and deviation, t the quantile of n - 1 degrees of
    freedom. The effect that a seed has on both values of a pair cancels.

    Args:
        values: One per seed.
        reference: The reference's, of the same seeds in the same order.
        confidence: How often such intervals cover the true mean, if differences are normal.

    Returns:
        The mean difference and its interval. There is no interval for a single pair, nor for pairs
        that all differ by the same amount, such as by one image.

    Raises:
        ValueError: If there are no pairs, their numbers differ, a value is not finite, or the
            confidence is not between 0 and 1.

    Example:
        >>> difference = paired_difference([0.90, 0.92, 0.94], [0.89, 0.90, 0.91])
        >>> f"{difference.mean:.3f} [{difference.low:.3f}, {difference.high:.3f}]"
        '0.020 [-0.005, 0.045]'
    """
    if len(values) != len(reference):
        raise ValueError(
            f"expected as many values as of the reference, got {len(values)} and "
            f"{len(reference)}; pair them by seed first"
        )
    check_number("confidence", confidence, above=0, below=1)
    differences = [x - y for x, y in zip(_checked(values), _checked(reference), strict=True)]
    summary = summarize(differences)
    size = max(abs(value) for value in (*values, *reference))
    if summary.deviation is None or summary.deviation <= 1e-12 * size:
        return Difference(summary.count, summary.mean, None, None)
    from scipy.stats import ttest_rel  # type: ignore[import-untyped]

    interval = ttest_rel(values, reference).confidence_interval(confidence)
    return Difference(summary.count, summary.mean, float(interval.low), float(interval.high))
