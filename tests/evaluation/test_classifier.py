"""A classifier from few labels: honest accuracy, probabilities, errors that say what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict

from unremix.evaluation.accuracy import wilson_interval
from unremix.evaluation.classifier import FOLDS, STRENGTHS, classify_features


def blobs(count: int, classes: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centers = rng.normal(size=(classes, 24))
    return centers[labels] + spread * rng.normal(size=(count, 24)), labels


def test_it_is_nested_cross_validation_of_logistic_regression() -> None:
    x, y = blobs(90, 3, 1.6)
    given = np.where(np.arange(90) < 60, y, -1)
    found = classify_features(torch.from_numpy(x), torch.from_numpy(given))
    # The same by scikit-learn's search, without the turn into the span of the labeled items.
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    units = units - units.mean(0)
    units = units / np.sqrt((units**2).sum(1).mean())
    folds, inner = found.folds
    assert (folds, inner) == (FOLDS, FOLDS)
    search = GridSearchCV(
        LogisticRegression(max_iter=5000),
        {"C": STRENGTHS},
        scoring="neg_log_loss",
        cv=StratifiedKFold(inner, shuffle=True, random_state=0),
    )
    outer = StratifiedKFold(folds, shuffle=True, random_state=0)
    expected = cross_val_predict(search, units[:60], y[:60], cv=outer, method="predict_proba")
    # L-BFGS stops early, from other starts: probabilities agree to some hundredths.
    np.testing.assert_allclose(found.held_out, expected, atol=0.06)
    search.fit(units[:60], y[:60])
    assert found.strength == search.best_params_["C"]
    np.testing.assert_allclose(found.probabilities, search.predict_proba(units), atol=0.06)
    right = float((expected.argmax(1) == y[:60]).mean())
    assert found.accuracy.value == pytest.approx(right)
    assert (found.accuracy.low, found.accuracy.high) == pytest.approx(wilson_interval(right, 60))
    ordered = np.sort(found.probabilities, axis=1)
    np.testing.assert_allclose(found.margin, ordered[:, -1] - ordered[:, -2])


def test_labels_that_mean_nothing_are_not_learned() -> None:
    """What chooses C never sees the predicted item: chance stays chance."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 400)), rng.integers(0, 2, 120)
    found = classify_features(torch.from_numpy(x), torch.from_numpy(y))
    assert found.accuracy.low < 0.5 < found.accuracy.high
    assert found.most_frequent == pytest.approx(max(y.mean(), 1 - y.mean()))


def test_two_classes_and_few_labels() -> None:
    x, y = blobs(40, 2, 0.2)
    given = np.where(np.arange(40) < 6, y, -1)
    found = classify_features(torch.from_numpy(x), torch.from_numpy(given))
    assert found.folds == (3, 2)
    assert (found.probabilities.argmax(1) == y).all()
    np.testing.assert_allclose(found.probabilities.sum(1), 1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 1, 1, -1], "at least two classes, got 3 of yes"),
        ([-1, -1, -1, -1], "at least two classes, got 0 of none"),
        ([0, 0, 0, 1], "at least 3 labeled items of each class.*yes has 1; label more"),
    ],
)
def test_labels_that_no_classifier_can_be_measured_with(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classify_features(torch.eye(4), torch.tensor(labels), classes=["no", "yes"])
