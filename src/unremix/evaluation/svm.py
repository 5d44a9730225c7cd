"""Cross-validated classifiers on frozen features: how graph embeddings are usually judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.core.checks import check_choice, check_count, check_positive
from unremix.evaluation.checks import checked_samples
from unremix.evaluation.nested import Labels, Split, cross_validate, stratified

Kernel = Literal["rbf", "linear", "logistic"]
Floats = NDArray[np.float64]

C_GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
MAX_ITERATIONS = 1000  # of the two linear classifiers; libsvm iterates until it has converged

_DESCRIBED = {
    "rbf": "SVC with the RBF kernel, gamma = 1 / (features · variance of the training part)",
    "linear": "LinearSVC: linear, squared hinge loss, primal problem, one versus rest",
    "logistic": "LogisticRegression: multinomial, L2 penalty, Newton's method",
}


@dataclass(frozen=True)
class SVMResult:
    """What :func:`svm_accuracy` found.

    Args:
        mean: Of the accuracies, from 0 to 1.
        std: Their standard deviation (divided by their number, as NumPy does). The folds share
            training samples, so it is no standard error.
        accuracies: One per outer fold, repeat after repeat.
        chosen: The C that the inner folds chose for each.
        count: Samples, n.
        protocol: How it was measured, in words and numbers, for an evaluation card.
    """

    mean: float
    std: float
    accuracies: tuple[float, ...]
    chosen: tuple[float, ...]
    count: int
    protocol: dict[str, Any] = field(compare=False)

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f} % ± {100 * self.std:.2f}"


@dataclass(frozen=True)
class FoldPlan:
    """How samples are split into folds; see :func:`plan_folds`.

    Args:
        kept: Which samples are evaluated, bool, shape (n,).
        outer: Outer folds; 0 where fewer than two classes are left.
        inner: Inner folds, likewise.
        notes: What differs from what was asked for, a sentence each.
    """

    kept: Tensor
    outer: int
    inner: int
    notes: tuple[str, ...]


def plan_folds(
    labels: Tensor,
    *,
    folds: int = 10,
    inner_folds: int = 5,
    classes: Sequence[str] | None = None,
) -> FoldPlan:
    """As many folds as asked for, or as the smallest class allows.

    Every outer fold tests a sample of each class, and every inner fold chooses by one: a class too
    small for three folds in all cannot be evaluated and is left out.

    Args:
        labels: Integers from 0, shape (n,).
        folds: Outer folds asked for.
        inner_folds: Inner folds asked for.
        classes: The name of each label, for messages; its number by default.

    Returns:
        The folds, which samples are in them, and what to report about both.

    Raises:
        ValueError: For fewer than two outer or inner folds.

    Example:
        >>> plan = plan_folds(torch.tensor([0] * 12 + [1] * 4 + [2]))
        >>> plan.outer, plan.inner, int(plan.kept.sum())
        (4, 3, 16)
        >>> print(plan.notes[0])
        1 of 3 classes have fewer than 3 samples: 1 of 17 samples left out of the evaluation
    """
    check_count("folds", folds, 2, "10 are usual")
    check_count("inner_folds", inner_folds, 2, "5 are usual")
    sizes = labels.bincount()
    present = int((sizes > 0).sum())
    least = next(size for size in count(1) if _trained_on(size, folds) >= 2)
    kept = sizes[labels] >= least
    notes = []
    if not kept.all():
        notes.append(
            f"{int(((sizes > 0) & (sizes < least)).sum())} of {present} classes have fewer than "
            f"{least} samples: {int((~kept).sum())} of {len(labels)} samples left out of the "
            "evaluation"
        )
    large = (sizes >= least).nonzero()[:, 0]
    if len(large) < 2:
        notes.append(
            f"fewer than two classes have {least} samples or more: accuracy cannot be measured"
        )
        return FoldPlan(kept, 0, 0, tuple(notes))
    rare = int(large[sizes[large].argmin()])
    size = int(sizes[rare])
    outer, inner = min(folds, size), min(inner_folds, _trained_on(size, folds))
    if (outer, inner) != (folds, inner_folds):
        name = rare if classes is None else repr(classes[rare])
        enough = next(size for size in count(folds) if _trained_on(size, folds) >= inner_folds)
        notes.append(
            f"{int((sizes[large] < enough).sum())} of {len(large)} classes have fewer than "
            f"{enough} samples (class {name} has {size}): {outer} outer and {inner} inner folds "
            f"are used instead of {folds} and {inner_folds}"
        )
    return FoldPlan(kept, outer, inner, tuple(notes))


def _trained_on(size: int, folds: int) -> int:
    """The least number of training samples that an outer fold leaves of a class of this size."""
    return size - -(-size // min(folds, size))


def svm_accuracy(
    features: Tensor,
    labels: Tensor,
    *,
    folds: int = 10,
    inner_folds: int = 5,
    C: Sequence[float] = C_GRID,
    kernel: Kernel = "rbf",
    standardize: bool = True,
    repeats: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SVMResult:
    """Accuracy of a classifier on frozen features, by nested stratified cross-validation.

    Each outer fold is tested once, by a classifier fitted to the other folds. Its C is the one with
    the best mean accuracy in inner folds of that training part alone, the smallest of equals. Mean
    and scale of the features are those of whatever the classifier is fitted to, at either level. So
    no test sample has a part in any choice.

    The kernel matrix of a training part serves all values of C. The result is that of
    scikit-learn's ``GridSearchCV`` over a pipeline of ``StandardScaler`` and ``SVC``, which takes
    2.3 times as long for 600 samples of 96 features (``python benchmarks/handwork.py svm``).

    Args:
        features: Shape (n, F); computed with in float64.
        labels: Integers from 0, shape (n,).
        folds: Outer folds. With fewer samples in a class there are as many folds as samples, and a
            `UserWarning` says so; so too for the inner folds.
        inner_folds: Folds of a training part that choose C.
        C: Candidates.
        kernel: ``rbf`` and ``linear`` for support vector machines, ``logistic`` for logistic
            regression.
        standardize: Whether to bring each feature to mean 0 and variance 1. InfoGraph's public code
            does not.
        repeats: How often to draw new folds.
        seed: Draws the folds; repeat r uses seed + r.
        jobs: Folds at a time, each in its own thread; as many as torch has threads if None.
        progress: Called with the number of folds done, inner and outer, and how many there are.

    Returns:
        The accuracies of all folds of all repeats.

    Raises:
        ValueError: If features are empty or not finite, labels do not fit, a class has too few
            samples (:func:`plan_folds` says which to leave out), or an option is out of range.

    Example:
        >>> import torch
        >>> labels = torch.arange(60) % 2
        >>> noise = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
        >>> features = torch.stack([labels, 1 - labels], dim=1) + 0.1 * noise
        >>> result = svm_accuracy(features, labels, jobs=1)
        >>> print(result)
        100.00 % ± 0.00
        >>> len(result.accuracies), result.protocol["inner_folds"]
        (10, 5)

    Reference:
        InfoGraph (Sun et al. 2020), Section 4.1: 10 folds, C from 1e-3 to 1e3.
    """
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    features, labels, _ = checked_samples(features, labels)
    check_choice("kernel", kernel, tuple(_DESCRIBED))
    grid = tuple(sorted(float(value) for value in C))
    if not grid or not 0 < grid[0] <= grid[-1] < float("inf"):
        raise ValueError(f"expected at least one C, all of them positive numbers, got {tuple(C)}")
    check_positive(repeats=repeats, jobs=jobs)
    x: Floats = features.double().cpu().numpy()
    y: Labels = labels.cpu().numpy()
    plan = plan_folds(labels, folds=folds, inner_folds=inner_folds)
    if not plan.kept.all():
        raise ValueError(
            "expected enough samples of every class for outer and inner folds, got "
            f"{plan.notes[0].partition(':')[0]}; leave these classes out or merge them"
        )
    for note in plan.notes:
        warnings.warn(note, stacklevel=2)
    outer, inner = plan.outer, plan.inner
    parts = [
        (split, repeat)
        for repeat in range(seed, seed + repeats)
        for split in stratified(y, outer, repeat)
    ]
    splits, seeds = zip(*parts, strict=True)
    total = len(splits) * (inner + 1)
    early: list[int] = []  # fits of each fold done that have not converged
    # libsvm runs without the interpreter's lock, and a thread needs no second copy of anything. One
    # thread of BLAS per fold: the folds keep the processors busy. scikit-learn's own warnings would
    # come by the hundred; the fits that stopped early are counted instead.
    with (
        threadpool_limits(limits=1),
        warnings.catch_warnings(),
        ThreadPoolExecutor(jobs or torch.get_num_threads()) as pool,
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)

        def predict(splits: Sequence[Split], grids: Sequence[Sequence[float]]) -> list[Labels]:
            predictions = []
            fit = partial(_predict, x, y, kernel, standardize)
            for predicted, unfinished in pool.map(fit, splits, grids):
                predictions.append(predicted)
                early.append(unfinished)
                if progress is not None:
                    progress(len(early), total)
            return predictions

        nested = cross_validate(y, splits, seeds, folds=inner, grid=grid, predict=predict)
    accuracies = tuple(
        float(np.mean(predicted == y[test]))
        for predicted, (_, test) in zip(nested.predictions, splits, strict=True)
    )
    if sum(early):
        warnings.warn(
            f"{sum(early)} of {len(parts) * (inner * len(grid) + 1)} fits stopped after "
            f"{MAX_ITERATIONS} iterations without having converged; leave out the largest C, or "
            "standardize the features",
            stacklevel=2,
        )
    return SVMResult(
        mean=float(np.mean(accuracies)),
        std=float(np.std(accuracies)),
        accuracies=accuracies,
        chosen=tuple(grid[best] for best in nested.chosen),
        count=len(y),
        protocol={
            "classifier": _DESCRIBED[kernel],
            "C": list(grid),
            "choice_of_C": "best mean accuracy over the inner folds of the training part, the "
            "smallest of equals",
            "outer_folds": outer,
            "inner_folds": inner,
            "folds": "stratified and shuffled, at both levels",
            "standardized": "each feature, by mean and variance of what the classifier is fitted to"
            if standardize
            else "no",
            "repeats": repeats,
            "seed": seed,
            "precision": "float64",
            "reported": "mean and standard deviation (divided by n) over all outer folds",
        },
    )


def _predict(
    x: Floats, y: Labels, kernel: Kernel, standardize: bool, split: Split, grid: Sequence[float]
) -> tuple[Labels, int]:
    """Predictions of the test samples for each C, and how many fits have not converged."""
    train, test = split
    fitted, tested = x[train], x[test]
    if standardize:
        from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

        scaler = StandardScaler().fit(fitted)
        fitted, tested = scaler.transform(fitted), scaler.transform(tested)
    if kernel == "rbf":
        fitted, tested = _rbf(fitted, tested)
    models = [_classifier(kernel, C).fit(fitted, y[train]) for C in grid]
    unfinished = 0
    if kernel != "rbf":
        unfinished = sum(int(np.max(model.n_iter_)) >= MAX_ITERATIONS for model in models)
    return np.stack([model.predict(tested) for model in models], axis=1), unfinished


def _rbf(fitted: Floats, tested: Floats) -> tuple[Floats, Floats]:
    """exp(-γ|a - b|²) of fitted and fitted, (n, n), and of tested and fitted, (m, n).

    With γ = 1 / (F var(fitted)), or 1 where the variance is 0, as ``gamma="scale"``.
    """
    from sklearn.metrics.pairwise import rbf_kernel  # type: ignore[import-untyped]

    variance = fitted.var()
    gamma = 1 / (fitted.shape[1] * variance) if variance else 1.0
    return rbf_kernel(fitted, gamma=gamma), rbf_kernel(tested, fitted, gamma=gamma)


def _classifier(kernel: Kernel, C: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.svm import SVC, LinearSVC  # type: ignore[import-untyped]

    # No estimator draws at random, but without a seed it would touch NumPy's global state.
    if kernel == "rbf":
        return SVC(C=C, kernel="precomputed", random_state=0)
    if kernel == "linear":
        return LinearSVC(C=C, dual=False, max_iter=MAX_ITERATIONS, random_state=0)
    # Embeddings are strongly correlated, where L-BFGS takes hundreds of steps and Newton's ten.
    return LogisticRegression(
        C=C, solver="newton-cholesky", max_iter=MAX_ITERATIONS, random_state=0
    )
