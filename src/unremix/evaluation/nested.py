"""Nested cross-validation: inner folds of the training part choose the penalty of a classifier.

SVMs on graphs and SentEval's tasks both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Labels = NDArray[np.int64]
Split = tuple[Indices, Indices]
"""Samples to train on and samples to test on."""

Predict = Callable[[Sequence[Split], Sequence[Sequence[float]]], Sequence[Labels]]
"""From splits and the strengths C to fit for each, to predictions of the test samples, shape
(samples, strengths) for each split."""


@dataclass(frozen=True)
class Nested:
    """What :func:`cross_validate` found, an entry per outer split.

    Args:
        predictions: Of the test samples.
        chosen: The place of the chosen C in the grid.
        inner_accuracies: The mean accuracy of that C over the inner folds.
    """

    predictions: list[Labels]
    chosen: list[int]
    inner_accuracies: list[float]


def stratified(labels: Labels, folds: int, seed: int) -> list[Split]:
    """Stratified, shuffled folds, as scikit-learn draws them."""
    from sklearn.model_selection import StratifiedKFold  # type: ignore[import-untyped]

    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return list(splitter.split(labels, labels))


def cross_validate(
    labels: Labels,
    outer: Sequence[Split],
    seeds: Sequence[int],
    *,
    folds: int,
    grid: Sequence[float],
    predict: Predict,
    decimals: int | None = None,
) -> Nested:
    """Predict the test samples of each split, C chosen by inner folds of its training part.

    C is the one with the highest mean accuracy over the inner folds, the smallest of equals.

    Args:
        labels: Integers from 0, shape (n,); those of test samples are only compared with.
        outer: The outer splits.
        seeds: Draws the inner folds of each.
        folds: Inner folds.
        grid: Candidates for C, rising.
        predict: Fits and predicts; called once for all inner and once for all outer splits.
        decimals: Digits of an accuracy in percent that are compared; all by default.
    """
    inner = [
        (train[fit], train[tested])
        for (train, _), seed in zip(outer, seeds, strict=True)
        for fit, tested in stratified(labels[train], folds, seed)
    ]
    predictions = predict(inner, [grid] * len(inner))
    accuracies = np.array(
        [
            np.mean(predicted == labels[tested][:, None], axis=0)
            for predicted, (_, tested) in zip(predictions, inner, strict=True)
        ]
    ).reshape(len(outer), folds, len(grid))
    chosen = [best_strength(rows, decimals) for rows in accuracies]
    final = predict(outer, [[grid[best]] for best in chosen])
    return Nested(
        [predicted[:, 0] for predicted in final],
        chosen,
        [float(rows.mean(0)[best]) for rows, best in zip(accuracies, chosen, strict=True)],
    )


def best_strength(accuracies: NDArray[np.float64], decimals: int | None = None) -> int:
    """The best of some strengths by mean accuracy over folds, shape (folds, C).

    Example:
        >>> best_strength(np.array([[0.5, 0.80001, 0.80003]]), decimals=2)
        1
    """
    means = np.average(accuracies, axis=0)
    return int(np.argmax(means if decimals is None else np.round(100 * means, decimals)))
