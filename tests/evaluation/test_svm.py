"""Nested cross-validation: against scikit-learn's own search, and what cannot be evaluated."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch import Tensor

from unremix.evaluation import svm
from unremix.evaluation.svm import C_GRID, SVMResult, plan_folds, svm_accuracy

MODELS: dict[str, Any] = {
    "rbf": lambda: SVC(),
    "linear": lambda: LinearSVC(dual=False),
    "logistic": lambda: LogisticRegression(solver="newton-cholesky", max_iter=1000),
}


def overlapping_classes(
    count: int = 120, size: int = 8, classes: int = 2, shift: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Overlapping classes, in features of very different scales; one feature is constant."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    features = torch.randn(count, size, generator=generator)
    features[:, :classes] += shift * torch.nn.functional.one_hot(labels, classes)
    features *= 10.0 ** torch.arange(-2, size - 2)
    features[:, -1] = 3.0
    return features, labels


def searched(
    features: Tensor, labels: Tensor, kernel: str, *, folds: int, inner: int, seed: int,
    standardize: bool = True, grid: tuple[float, ...] = C_GRID,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Accuracies and chosen C by scikit-learn's own search over a pipeline."""
    x, y = features.double().numpy(), labels.numpy()
    accuracies, chosen = [], []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
        steps = [("scale", StandardScaler())] if standardize else []
        search = GridSearchCV(
            Pipeline([*steps, ("model", MODELS[kernel]())]),
            {"model__C": list(grid)},
            cv=StratifiedKFold(inner, shuffle=True, random_state=seed),
            scoring="accuracy",
        ).fit(x[train], y[train])
        accuracies.append(search.score(x[test], y[test]))
        chosen.append(search.best_params_["model__C"])
    return accuracies, chosen


@pytest.mark.parametrize("kernel", ["rbf", "linear", "logistic"])
@pytest.mark.parametrize("classes", [2, 3])
def test_equals_scikit_learn(kernel: Any, classes: int) -> None:
    features, labels = overlapping_classes(classes=classes)
    found = svm_accuracy(
        features, labels, folds=3, inner_folds=2, kernel=kernel, repeats=2, seed=5, jobs=2
    )
    accuracies, chosen = searched(features, labels, kernel, folds=3, inner=2, seed=5)
    second = searched(features, labels, kernel, folds=3, inner=2, seed=6)
    assert found.accuracies == pytest.approx((*accuracies, *second[0]), abs=0)
    assert found.chosen == (*chosen, *second[1])
    assert found.mean == pytest.approx(np.mean(found.accuracies))
    assert found.std == pytest.approx(np.std(found.accuracies))
    assert found.count == 120
    assert 1 / classes < found.mean < 1


def test_equals_scikit_learn_without_standardising() -> None:
    features, labels = overlapping_classes(shift=2.0)
    features = features / features.abs().amax(0)
    found = svm_accuracy(features, labels, folds=3, inner_folds=3, standardize=False)
    accuracies, chosen = searched(
        features, labels, "rbf", folds=3, inner=3, seed=0, standardize=False
    )
    assert found.accuracies == pytest.approx(accuracies, abs=0)
    assert found.chosen == tuple(chosen)
    assert found.protocol["standardized"] == "no"


@pytest.mark.slow
def test_equals_scikit_learn_at_full_size() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(1113, generator=generator) < 0.4).long()
    features = torch.randn(1113, 96, generator=generator)
    features[:, :5] += 0.8 * labels[:, None]
    found = svm_accuracy(features, labels)
    accuracies, chosen = searched(features, labels, "rbf", folds=10, inner=5, seed=0)
    assert found.accuracies == pytest.approx(accuracies, abs=0)
    assert found.chosen == tuple(chosen)


def test_a_seed_decides_and_nothing_else() -> None:
    features, labels = overlapping_classes(shift=0.7)
    one = svm_accuracy(features, labels, folds=5, inner_folds=3, jobs=1, seed=3)
    torch.rand(3)
    again = svm_accuracy(features, labels, folds=5, inner_folds=3, jobs=4, seed=3)
    other = svm_accuracy(features, labels, folds=5, inner_folds=3, jobs=1, seed=4)
    assert one == again
    assert one.accuracies != other.accuracies


@pytest.mark.parametrize("kernel", ["rbf", "linear", "logistic"])
def test_global_random_states_stay_as_they_were(kernel: Any) -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    svm_accuracy(*overlapping_classes(), folds=3, inner_folds=2, C=(1,), kernel=kernel)
    assert torch.equal(torch.get_rng_state(), torch_state)
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(after[1], numpy_state[1])
    assert after[2:] == numpy_state[2:]


def test_noise_is_at_chance() -> None:
    """Whatever looks at test samples would be above."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(100, 200, generator=generator)
    found = svm_accuracy(features, torch.arange(100) % 2, repeats=2, inner_folds=3, C=(1, 10))
    assert abs(found.mean - 0.5) < 0.12


def test_the_order_of_candidates_does_not_matter() -> None:
    features, labels = overlapping_classes()
    one = svm_accuracy(features, labels, folds=3, inner_folds=2, C=(1.0, 0.1, 10.0))
    assert one == svm_accuracy(features, labels, folds=3, inner_folds=2, C=(0.1, 1, 10))
    easy = svm_accuracy(*overlapping_classes(shift=100.0), folds=3, inner_folds=2, C=(10, 1))
    assert easy.mean == 1.0
    assert set(easy.chosen) == {1.0}  # the smallest of equals


def test_equal_features() -> None:
    found = svm_accuracy(torch.ones(40, 3), torch.arange(40) % 2, folds=4, inner_folds=2)
    assert found.mean == 0.5


def test_labels_may_have_gaps_and_other_types() -> None:
    features, labels = overlapping_classes(classes=3)
    plain = svm_accuracy(features, labels, folds=3, inner_folds=2, C=(1,))
    gaps = svm_accuracy(
        features.requires_grad_(), (2 * labels).to(torch.int16), folds=3, inner_folds=2, C=(1,)
    )
    assert plain == gaps


def test_the_card_says_everything() -> None:
    features, labels = overlapping_classes()
    found = svm_accuracy(features, labels, folds=3, inner_folds=2, C=(1, 0.1), seed=9)
    card = json.loads(json.dumps(found.protocol))
    assert card["C"] == [0.1, 1.0]
    assert (card["outer_folds"], card["inner_folds"], card["repeats"]) == (3, 2, 1)
    assert card["seed"] == 9
    assert "RBF" in card["classifier"]
    assert "stratified" in card["folds"]
    assert "fitted to" in card["standardized"]
    shown = SVMResult(0.5, 0.125, (0.5,), (1.0,), 8, {})
    assert str(shown) == "50.00 % ± 12.50"


@pytest.mark.parametrize("folds", [1, 0])
def test_one_fold_leaves_nothing_to_train_on(folds: int) -> None:
    with pytest.raises(ValueError, match=f"folds .* at least 2, got {folds}"):
        plan_folds(torch.tensor([0, 0, 1, 1]), folds=folds)


def test_rare_classes_have_fewer_folds() -> None:
    features, labels = overlapping_classes(count=64)
    labels[:4] = 2
    with pytest.warns(
        UserWarning,
        match=r"1 of 3 classes .*class 2 has 4\).* 3 inner",
    ):
        found = svm_accuracy(features, labels, C=(1,))
    assert len(found.accuracies) == 4
    assert (found.protocol["outer_folds"], found.protocol["inner_folds"]) == (4, 3)
    labels[:2] = 3
    with pytest.raises(ValueError, match=r"got 2 of 4 classes .*fewer than 3"):
        svm_accuracy(features, labels, C=(1,))


def test_the_smallest_class_that_can_be_evaluated() -> None:
    features, labels = overlapping_classes(count=63)
    labels[:] = 0
    labels[:3] = 1
    with pytest.warns(UserWarning, match="3 outer and 2 inner folds"):
        assert len(svm_accuracy(features, labels, C=(1,)).accuracies) == 3


def test_a_class_too_small_for_the_inner_folds_alone() -> None:
    """No class is below the outer folds; the message counts those below what both need."""
    features, labels = overlapping_classes(count=44)
    labels[:] = 0
    labels[:5] = 1
    with pytest.warns(UserWarning, match=r"1 of 2 classes .*6 .*\(class 1 has 5"):
        found = svm_accuracy(features, labels, folds=3, inner_folds=4, C=(1,))
    assert (found.protocol["outer_folds"], found.protocol["inner_folds"]) == (3, 3)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    st.integers(2, 6),
    st.integers(2, 4),
    st.integers(0, 9),
)
def test_planned_folds_hold_every_class(
    sizes: list[int], folds: int, inner_folds: int, seed: int
) -> None:
    """Where folds are planned, scikit-learn can draw them, each with a sample of every class."""
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
    labels = torch.repeat_interleave(torch.tensor(sizes))[order]
    plan = plan_folds(labels, folds=folds, inner_folds=inner_folds)
    y = labels[plan.kept].numpy()
    for k, size in enumerate(sizes):  # a class is kept or left out as a whole
        assert int((y == k).sum()) in (0, size)
    assert bool(plan.notes) == (
        len(y) < len(labels) or (plan.outer, plan.inner) != (folds, inner_folds)
    )
    if not plan.outer:
        assert len(set(y.tolist())) < 2
        return
    assert 2 <= plan.outer <= folds
    assert 2 <= plan.inner <= inner_folds
    for train, test in StratifiedKFold(plan.outer, shuffle=True, random_state=seed).split(y, y):
        assert set(y[test]) == set(y)
        inner = StratifiedKFold(plan.inner, shuffle=True, random_state=seed)
        for fitted, held in inner.split(train, y[train]):
            assert set(y[train][fitted]) == set(y[train][held]) == set(y)


def test_only_what_cannot_be_folded_is_left_out() -> None:
    """A class one sample larger than the largest left out makes for two inner folds."""
    for folds, least in ((2, 4), (3, 3), (10, 3)):
        labels = torch.tensor([0] * 40 + [1] * 40 + [2] * least)
        assert bool(plan_folds(labels, folds=folds).kept.all())
        assert plan_folds(labels[:-1], folds=folds).kept.tolist() == [True] * 80 + [False] * (
            least - 1
        )
    unique = plan_folds(torch.arange(7))
    assert (unique.outer, int(unique.kept.sum())) == (0, 0)
    assert "accuracy cannot be measured" in unique.notes[-1]


def test_fits_that_do_not_converge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svm, "MAX_ITERATIONS", 1)
    features, labels = overlapping_classes()
    with pytest.warns(UserWarning, match=r"\d+ of 15 fits .* 1 iterations"):
        svm_accuracy(features, labels, folds=3, inner_folds=2, C=(1, 10), kernel="logistic")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "poly"}, r"kernel to be one of rbf, linear, logistic, got 'poly'"),
        ({"C": ()}, "at least one C"),
        ({"C": (1, 0)}, "all of them positive"),
        ({"C": (1, math.nan)}, "all of them positive"),
        ({"folds": 1}, "expected folds .* at least 2, got 1"),
        ({"inner_folds": 1}, "inner_folds .* at least 2, got 1"),
        ({"repeats": 0}, "repeats .* at least 1, got 0"),
        ({"jobs": 0}, "jobs .* at least 1, got 0"),
        ({"features": torch.full((120, 2), math.nan)}, "NaN or infinity in 120 of 120 rows"),
        ({"features": torch.ones(4)}, r"got \(4,\)"),
        ({"labels": torch.zeros(120).long()}, "only class 0"),
        ({"labels": torch.zeros(7).long()}, r"of shape \(120,\)"),
    ],
)
def test_what_cannot_be_evaluated(options: dict[str, Any], message: str) -> None:
    features, labels = overlapping_classes()
    with pytest.raises(ValueError, match=message):
        svm_accuracy(options.pop("features", features), options.pop("labels", labels), **options)
