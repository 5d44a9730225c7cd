"""A classifier from few labels: fitted to some items, measured honestly, applied to all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.core.precision import normalize
from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.checks import checked_features
from unremix.evaluation.nested import Labels
from unremix.evaluation.svm import plan_folds

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
MOST_ITERATIONS = 300
FOLDS = 5
SURE = 0.9  # a probability from which a prediction is called sure


@dataclass(frozen=True)
class Classified:
    """What :func:`classify_features` found.

    Args:
        probabilities: Of each class for each of all n items, by the classifier fitted to all
            labeled ones, shape (n, C).
        held_out: The same for the m labeled items, each by a classifier that has not seen it, shape
            (m, C).
        fold: The outer fold that predicted each of them, shape (m,).
        accuracy: How often ``held_out`` is right.
        sure: How often it is right where it gives a class 90 % or more; None if it never does.
        most_frequent: The share of the most frequent class: what guessing it would be right.
        strength: C, chosen by cross-validation of all labeled items.
        folds: Outer folds, and the inner ones that choose C.
    """

    probabilities: NDArray[np.float64]
    held_out: NDArray[np.float64]
    fold: Labels
    accuracy: Accuracy
    sure: Accuracy | None
    most_frequent: float
    strength: float
    folds: tuple[int, int]

    @property
    def margin(self) -> NDArray[np.float64]:
        """How far the likeliest class is ahead of the second for each of all items, shape (n,)."""
        ordered = np.sort(self.probabilities, axis=1)
        ahead: NDArray[np.float64] = ordered[:, -1] - ordered[:, -2]
        return ahead


def classify_features(
    features: Tensor, labels: Tensor, *, classes: Sequence[str] | None = None, seed: int = 0
) -> Classified:
    """Fit logistic regression to the labeled items, and predict all.

    The features are scaled to length 1 and then to a mean square of 1 around their mean. The
    penalty is the one with the highest likelihood of held-out labels. Accuracy is measured by
    nested folds: what chooses the penalty never sees the item that is predicted.

    Args:
        features: Shape (n, F); only their directions count.
        labels: Integers from 0 to C - 1, each of which occurs, or -1 for unlabeled items, shape
            (n,).
        classes: The name of each label, for messages; its number by default.
        seed: Draws the folds.

    Returns:
        Probabilities, and how good they are.

    Raises:
        ValueError: For a single class, or classes with fewer than three labeled items.

    Example:
        >>> x = torch.tensor([[1.0, 0.1], [0.1, 1.0]]).repeat(10, 1) + 0.01 * torch.eye(20)[:, :2]
        >>> y = torch.tensor([0, 1] * 8 + [-1] * 4)
        >>> found = classify_features(x, y)
        >>> found.probabilities.argmax(1)[-4:].tolist(), found.accuracy.value
        ([0, 1, 0, 1], 1.0)
    """
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegressionCV  # type: ignore[import-untyped]
    from sklearn.model_selection import (  # type: ignore[import-untyped]
        StratifiedKFold,
        cross_val_predict,
    )

    x: NDArray[np.float64] = (
        normalize(checked_features(features, "the features").double())[0].cpu().numpy()
    )
    x = x - x.mean(0)
    x /= max(float(np.sqrt(np.square(x).sum(1).mean())), 1e-12)
    known = np.flatnonzero(labels.cpu().numpy() >= 0)
    given = labels.cpu()[known]
    _check_classes(given, classes)
    plan = plan_folds(given, folds=FOLDS, inner_folds=FOLDS)
    truth: Labels = given.numpy()
    # In the span of the labeled items the penalty is the same, and features are at most as many.
    x = x @ np.linalg.qr(x[known].T)[0]
    outer, inner = (
        StratifiedKFold(folds, shuffle=True, random_state=seed)
        for folds in (plan.outer, plan.inner)
    )
    model = LogisticRegressionCV(
        Cs=STRENGTHS, cv=inner, scoring="neg_log_loss", max_iter=MOST_ITERATIONS,
        use_legacy_attributes=False, l1_ratios=(0,),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        held_out = cross_val_predict(model, x[known], truth, cv=outer, method="predict_proba")
        model.fit(x[known], truth)
    fold = np.zeros_like(truth)
    for number, (_, tested) in enumerate(outer.split(x[known], truth)):
        fold[tested] = number
    right = torch.from_numpy(held_out.argmax(1) == truth)
    sure = torch.from_numpy(held_out.max(1) >= SURE)
    return Classified(
        probabilities=model.predict_proba(x),
        held_out=held_out,
        fold=fold,
        accuracy=Accuracy.of(right),
        sure=Accuracy.of(right[sure]) if sure.any() else None,
        most_frequent=int(given.bincount().max()) / len(given),
        strength=float(model.C_),
        folds=(plan.outer, plan.inner),
    )


def _check_classes(labels: Tensor, classes: Sequence[str] | None) -> None:
    """Refuse labels (m,) that no classifier can be fitted to and measured with."""
    sizes = labels.bincount().tolist()
    names = [str(number) for number in range(len(sizes))] if classes is None else classes
    if sum(size > 0 for size in sizes) < 2:
        raise ValueError(
            f"expected labels of at least two classes, got {len(labels)} of "
            f"{names[len(sizes) - 1] if sizes else 'none'}; label items of another class too"
        )
    few = [f"{names[c]} has {size}" for c, size in enumerate(sizes) if size < 3]
    if few:
        more = f" and {len(few) - 5} more" if few[5:] else ""
        raise ValueError(
            "expected at least 3 labeled items of each class, so that accuracy can be measured, "
            f"got fewer: {', '.join(few[:5])}{more}; label more of them, or leave the class out"
        )
