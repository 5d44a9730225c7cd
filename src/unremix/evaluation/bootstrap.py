"""Measures of predictions other than accuracy, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A number measured on test samples.

    Args:
        value: The number.
        standard_error: Its deviation over resamples of the test samples, drawn with replacement.
        count: How many samples.
    """

    value: float
    standard_error: float
    count: int


def _resampled(statistic: Callable[[np.ndarray], np.ndarray], count: int, seed: int) -> float:
    """The deviation of a statistic over resamples, given the times each sample was drawn.

    Args:
        statistic: From weights (B, n) to values (B,).
        count: n.
        seed: Draws the resamples.
    """
    random = np.random.default_rng(seed)
    weights = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return float(np.std(statistic(weights.astype(np.float64)), ddof=1))


def f1(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Estimate:
    """F1 of class 1: 2 TP / (2 TP + FP + FN), 0 where there is none of it.

    Args:
        predictions: 0 or 1, shape (n,).
        truth: 0 or 1, shape (n,).
        seed: Draws the resamples.

    Example:
        >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]), seed=0).value
        0.5
    """
    twice_hit = 2.0 * (predictions * truth)
    positives = predictions + truth

    def statistic(weights: np.ndarray) -> np.ndarray:
        ratio: np.ndarray = weights @ twice_hit / np.maximum(weights @ positives, 1)
        return ratio

    value = float(statistic(np.ones((1, len(truth))))[0])
    return Estimate(value, _resampled(statistic, len(truth), seed), len(truth))


def pearson(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Estimate:
    """The linear correlation; 0 where either is constant.

    Args:
        predictions: Shape (n,).
        truth: Shape (n,).
        seed: Draws the resamples.

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]), seed=0).value, 4)
        0.9934
    """
    x, y = predictions - predictions.mean(), truth - truth.mean()
    moments = np.stack([x, y, x * x, y * y, x * y], 1)

    def statistic(weights: np.ndarray) -> np.ndarray:
        means = (weights @ moments / weights.sum(1, keepdims=True)).T
        spread = np.maximum(means[2] - means[0] ** 2, 0) * np.maximum(means[3] - means[1] ** 2, 0)
        shared = means[4] - means[0] * means[1]
        return np.where(spread > 0, shared / np.sqrt(np.where(spread > 0, spread, 1)), 0.0)

    value = float(statistic(np.ones((1, len(truth))))[0])
    return Estimate(value, _resampled(statistic, len(truth), seed), len(truth))


def spearman(predictions: np.ndarray, truth: np.ndarray, *, seed: int) -> Estimate:
    """The correlation of ranks; resamples keep the ranks among all samples.

    Args:
        predictions: Shape (n,).
        truth: Shape (n,).
        seed: Draws the resamples.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]), seed=0).value, 4)
        1.0
    """
    return pearson(_ranks(predictions), _ranks(truth), seed=seed)


def _ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value in order; the mean place for equal ones."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(times) - (times - 1) / 2)[place]
    return ranks


def squared_error(predictions: np.ndarray, truth: np.ndarray) -> Estimate:
    """The mean squared error, with the standard error of a mean.

    Args:
        predictions: Shape (n,).
        truth: Shape (n,).
    """
    errors = (predictions - truth) ** 2
    count = len(errors)
    deviation = float(errors.std(ddof=1)) if count > 1 else 0.0
    return Estimate(float(errors.mean()), deviation / math.sqrt(count), count)
