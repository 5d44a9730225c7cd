"""Measures of predictions other than accuracy, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 1000


@dataclass(frozen=True)
class Measurement:
    """A number measured on test samples.

    Args:
        value: The number.
        standard_error: Its standard deviation over bootstrap resamples of the test samples.
        count: Number of samples.
    """

    value: float
    standard_error: float
    count: int


def _estimate(
    statistic: Callable[..., Any], first: np.ndarray, second: np.ndarray, seed: int
) -> Measurement:
    """A statistic of pairs, arrays (n,) and the ``axis`` of the samples, and its standard error."""
    from scipy.stats import bootstrap  # type: ignore[import-untyped]

    value, count = float(statistic(first, second, axis=-1)), len(first)
    if count < 2:
        return Measurement(value, 0.0, count)
    resampled = bootstrap(
        (first, second),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return Measurement(value, float(resampled.standard_error), count)


def f1(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Measurement:
    """F1 of class 1: 2 TP / (2 TP + FP + FN), and 0 if class 1 occurs in neither array (n,).

    Example:
        >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]), seed=0).value
        0.5

    Relations:
        ``sklearn.metrics.f1_score``, which takes one resample at a time: 1.8 s for 1000 resamples
        of 1725 samples, where this takes 0.02 s.
    """

    def statistic(x: np.ndarray, y: np.ndarray, axis: int) -> Any:
        return 2 * (x * y).sum(axis) / np.maximum((x + y).sum(axis), 1)

    return _estimate(statistic, predictions, truth, seed)


def pearson_correlation(x: np.ndarray, y: np.ndarray, axis: int = -1) -> Any:
    """The linear correlation along an axis, and 0 where either array is constant."""
    x, y = x - x.mean(axis, keepdims=True), y - y.mean(axis, keepdims=True)
    norm = np.sqrt((x * x).sum(axis) * (y * y).sum(axis))
    return (x * y).sum(axis) / np.where(norm > 0, norm, 1)


def pearson(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Measurement:
    """The linear correlation of predictions and truth, both (n,).

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]), seed=0).value, 4)
        0.9934
    """
    return _estimate(pearson_correlation, predictions, truth, seed)


def spearman(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Measurement:
    """The rank correlation of arrays (n,); resamples keep the ranks among all samples.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]), seed=0).value, 4)
        1.0
    """
    from scipy.stats import rankdata

    return pearson(rankdata(predictions), rankdata(truth), seed=seed)


def squared_error(predictions: np.ndarray, truth: np.ndarray) -> Measurement:
    """The mean squared error of predictions (n,), with the standard error of a mean."""
    errors = (predictions - truth) ** 2
    count = len(errors)
    deviation = float(errors.std(ddof=1)) if count > 1 else 0.0
    return Measurement(float(errors.mean()), deviation / math.sqrt(count), count)
