"""SentEval's transfer tasks: how good frozen sentence embeddings are for a linear classifier.

:func:`evaluate` takes any function from sentences to vectors. Each distinct sentence is encoded
once, and the folds and penalties of a task are fitted together, by :func:`fit_logistic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unremix.core.checks import check_count, check_number, check_positive
from unremix.domains.sentence.relatedness import (
    BATCH,
    EPOCHS_BETWEEN,
    LEARNING_RATE,
    PATIENCE,
    fit_relatedness,
)
from unremix.domains.sentence.senteval_files import (
    BINARY,
    BINS,
    STS,
    TASKS,
    Examples,
    Splits,
    canonical_name,
    find_folder,
    read_task,
)
from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.logistic import eigenbasis, fit_logistic
from unremix.evaluation.measurements import RESAMPLES, f1, pearson, spearman, squared_error
from unremix.evaluation.nested import Split, cross_validate, stratified

__all__ = ["TASKS", "evaluate"]

Encode = Callable[[list[str]], Any]
Progress = Callable[[str, int, int], None]

NESTED = tuple(2.0**power for power in range(-2, 4))  # C for MR, CR, SUBJ and MPQA
HELD_OUT = tuple(2.0**power for power in range(-1, 6))  # C for TREC and MRPC
ENTRIES = 2**22  # logits held at a time


def evaluate(
    encode: Encode,
    root: str | Path,
    tasks: Sequence[str] = TASKS,
    *,
    seed: int = 1111,
    folds: int = 10,
    strengths: Sequence[float] | None = None,
    norm: float | None = None,
    batch_size: int = 128,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure sentence embeddings on SentEval's tasks.

    - MR, CR, SUBJ, MPQA: logistic regression, accuracy over stratified folds; in each, the penalty
      is chosen by stratified folds of the other folds.
    - TREC, MRPC: logistic regression, accuracy (and F1) on the test set; the penalty is chosen by
      stratified folds of the training set. MRPC's features of a pair are [|u - v|, u ∘ v].
    - SICK: relatedness, Pearson, Spearman and mean squared error on the test set. Softmax
      regression on [|u - v|, u ∘ v] predicts a distribution over the scores 1 to 5 whose mean is
      the prediction; trained with Adam on the squared error of the distribution, stopped by the
      Pearson correlation on the development set.
    - STS12 to STS16: similarity without training, Spearman and Pearson correlation of the cosine
      of a pair with its score, over the pairs of all sources of the year.

    These are SentEval's protocols, with the same folds for the same seed; for the classifiers that
    with scikit-learn (``usepytorch=False``), whose result does not depend on when training stopped.
    Features are not standardized. An empty line of CR or MPQA counts as the sentence ``.``.

    Args:
        encode: From a list of n sentences, words separated by spaces, to n vectors: an array or
            tensor (n, D) of finite numbers. ``model.encode`` of a ``SentenceTransformer`` fits.
        root: SentEval's ``data`` or ``data/downstream`` folder; also looked up below the folder
            that the environment variable ``UNREMIX_DATA`` names.
        tasks: Any of MR, CR, SUBJ, MPQA, TREC, MRPC, SICK, STS12, STS13, STS14, STS15, STS16.
        seed: Draws the folds, and for SICK the first weights and the order of the samples.
        folds: Folds, outer and inner alike.
        strengths: C, the inverse penalties to choose from; SentEval's if None: 2⁻² to 2³ for the
            first four tasks, 2⁻¹ to 2⁵ for TREC and MRPC.
        norm: Multiply all vectors by one factor that brings the root mean square of their norms
            here, so that encoders of different scale meet the same penalties; 2 suits the grids.
            None leaves them as they are, as SentEval does.
        batch_size: Sentences handed to ``encode`` at a time, sorted by length.
        jobs: Threads for fitting; torch's setting if None.
        progress: Called with the current stage, how much of it is done, and its total.

    Returns:
        A card that can be written as JSON. ``tasks`` holds for each task its measures, each with
        ``value``, ``standard_error`` and ``count``; accuracies are shares of 1. It also holds the
        ``strengths`` chosen and how many of them are ``at_the_edge`` of those offered: many mean
        that the vectors are too short or too long for this grid. ``protocol`` says how it was
        measured, ``encoder`` what.

    Raises:
        FileNotFoundError: If the folder or a file of a task is missing.
        ValueError: If a task is unknown, a file is broken, an option is out of range, or
            ``encode`` does not return one finite vector per sentence.
    """
    if isinstance(tasks, str):
        raise ValueError(f"expected a list of tasks, got a string; write [{tasks!r}]")
    names = [canonical_name(task) for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected some tasks, each once, got {list(tasks)}")
    check_count("folds", folds, 2, "10 are usual")
    check_positive(batch_size=batch_size, jobs=jobs)
    if strengths is not None and (not len(strengths) or min(strengths) <= 0):
        raise ValueError(f"expected positive strengths C, got {list(strengths)}")
    if norm is not None:
        check_number("norm", norm, above=0)
    folder = find_folder(root)
    read = {name: read_task(folder, name) for name in names}
    for name in names:
        if name not in ("SICK", *STS):
            _check_folds(name, read[name]["train"], folds)

    started = time.perf_counter()
    say = progress or (lambda what, done, total: None)
    embeddings = _Embeddings(encode, read, batch_size, say)
    scale = embeddings.rescale(norm)
    encoded = time.perf_counter()
    measured: dict[str, Any] = {}
    with _threads(jobs):
        for position, name in enumerate(names):
            say("tasks of SentEval", position, len(names))
            measured[name] = _measure(name, read[name], embeddings, seed, folds, strengths)
        say("tasks of SentEval", len(names), len(names))
    return {
        "tasks": measured,
        "protocol": _protocol(names, seed, folds, strengths, norm),
        "encoder": {
            "features": embeddings.vectors.shape[1],
            "root_mean_square_norm": scale,
            "distinct_sentences": len(embeddings.rows),
            "seconds": encoded - started,
        },
        "seconds": time.perf_counter() - started,
    }


def _check_folds(name: str, train: Examples, folds: int) -> None:
    fewest = int(np.bincount(train.targets, minlength=2).min())
    # Where folds are nested, what an outer fold leaves of a class is split again.
    left = fewest - (-(-fewest // folds) if name in BINARY else 0)
    if left < folds:
        raise ValueError(
            f"expected enough training examples of each class in {name} for {folds} folds, "
            f"got a class of {fewest}; use fewer folds"
        )


class _Embeddings:
    """The vector of every sentence of some tasks."""

    def __init__(
        self, encode: Encode, read: dict[str, Splits], batch_size: int, say: Progress
    ) -> None:
        found = {
            sentence
            for splits in read.values()
            for examples in splits.values()
            for sentence in examples.sentences
        }
        ordered = sorted(found, key=lambda sentence: (len(sentence.split()), sentence))
        self.rows = {sentence: row for row, sentence in enumerate(ordered)}
        self.vectors = torch.empty(len(ordered), 0)
        for start in range(0, len(ordered), batch_size):
            say("sentences of SentEval", start, len(ordered))
            batch = ordered[start : start + batch_size]
            part = _checked(encode(batch), batch, self.vectors.shape[1])
            if not start:
                self.vectors = torch.empty(len(ordered), part.shape[1])
            self.vectors[start : start + len(batch)] = part
        say("sentences of SentEval", len(ordered), len(ordered))

    def rescale(self, norm: float | None) -> float:
        """Scale vectors to a root mean square norm; return the norm before."""
        before = float(self.vectors.square().sum(1).mean().sqrt())
        if norm is not None and before > 0:
            self.vectors *= norm / before
        return before

    def of(self, sentences: list[str]) -> Tensor:
        """Shape (n, D), float32."""
        return self.vectors[[self.rows[sentence] for sentence in sentences]]

    def features(self, examples: Examples) -> Tensor:
        """x of each example: its vector u, shape (n, D), or of pairs [|u - v|, u ∘ v], (n, 2 D)."""
        first = self.of(examples.first)
        if examples.second is None:
            return first
        second = self.of(examples.second)
        return torch.cat([(first - second).abs(), first * second], 1)


def _checked(output: Any, sentences: list[str], size: int) -> Tensor:
    """What ``encode`` returned, as a float32 tensor on the CPU; a size of 0 is not known yet."""
    try:
        vectors = torch.as_tensor(output).detach().to("cpu", torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            "expected encode to return an array or tensor of numbers, got "
            f"{type(output).__name__} ({error})"
        ) from error
    width = size or (vectors.shape[-1] if vectors.dim() else 0)
    if not width or vectors.shape != (len(sentences), width):
        raise ValueError(
            "expected encode to return one vector per sentence, shape "
            f"({len(sentences)}, {size or 'D'}), got {tuple(vectors.shape)}; pool over words, and "
            "keep empty sentences"
        )
    broken = ~vectors.isfinite().all(1)
    if bool(broken.any()):
        sentence = sentences[int(broken.nonzero()[0])]
        raise ValueError(
            "expected finite vectors from encode, got NaN or infinity for "
            f"{int(broken.sum())} of {len(sentences)} sentences, such as {sentence[:60]!r}"
        )
    return vectors


def _measure(
    name: str,
    splits: Splits,
    embeddings: _Embeddings,
    seed: int,
    folds: int,
    strengths: Sequence[float] | None,
) -> dict[str, Any]:
    if name == "SICK":
        return _measure_sick(splits, embeddings, seed)
    if name in STS:
        return _measure_sts(splits["test"], embeddings, seed)
    train = splits["train"]
    features, labels = embeddings.features(train).double(), torch.from_numpy(train.targets)
    if name in BINARY:
        return nested_folds(features, labels, seed=seed, folds=folds, strengths=strengths or NESTED)
    test = splits["test"]
    truth = torch.from_numpy(test.targets)
    places = np.arange(len(train) + len(test))
    (predictions,), inner, fits = classify(
        torch.cat([features, embeddings.features(test).double()]),
        torch.cat([labels, truth]),
        [(places[: len(train)], places[len(train) :])],
        seed=seed,
        folds=folds,
        strengths=strengths or HELD_OUT,
    )
    accuracy = asdict(Accuracy.of(predictions == truth))
    card = {"accuracy": accuracy, "examples": len(train), "fold_accuracy": inner, **fits}
    if name == "MRPC":
        card["f1"] = asdict(f1(predictions.numpy(), test.targets, seed=seed))
    return card


class _Logistic:
    """Logistic regression on samples (n, D) with labels (n,), for many splits and C at once."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.basis, self.labels = eigenbasis(features), labels
        self.converged = True

    def __call__(
        self, splits: Sequence[Split], grids: Sequence[Sequence[float]]
    ) -> list[np.ndarray]:
        """Predictions of the test samples, shape (samples, strengths) for each split."""
        count, width = len(self.labels), len(grids[0])
        together = max(1, ENTRIES // (count * width * max(1, int(self.labels.max()))))
        found: list[np.ndarray] = []
        for start in range(0, len(splits), together):
            group = splits[start : start + together]
            strengths = torch.tensor(grids[start : start + together], dtype=torch.float64)
            train = torch.zeros(count, len(group), 1, dtype=torch.bool)
            for column, (fitted, _) in enumerate(group):
                train[fitted, column] = True
            train = train.expand(-1, -1, width).flatten(1)
            fits = fit_logistic(self.basis, self.labels, train, strengths.flatten())
            self.converged &= fits.converged
            predictions = fits.predictions.reshape(count, len(group), width).numpy()
            found += [predictions[test, column] for column, (_, test) in enumerate(group)]
        return found


def classify(
    features: Tensor,
    labels: Tensor,
    outer: Sequence[Split],
    *,
    seed: int,
    folds: int,
    strengths: Sequence[float],
) -> tuple[list[Tensor], float, dict[str, Any]]:
    """Predict the test samples of each split, C chosen by stratified folds of its training part.

    Features (n, D) and labels (n,) are those of all samples; the labels of samples that no split
    trains on are not looked at.

    Returns:
        The predictions for each split's test samples; the mean accuracy of the chosen strengths in
        the inner folds; the strengths, and whether all fits converged, for a card.
    """
    trained = torch.zeros_like(labels)
    for train, _ in outer:
        trained[train] = 1
    predict = _Logistic(features, labels * trained)
    found = cross_validate(
        labels.numpy(),
        outer,
        [seed] * len(outer),
        folds=folds,
        grid=strengths,
        predict=predict,
        decimals=2,
    )
    edges = (0, len(strengths) - 1)
    card = {
        "strengths": [strengths[best] for best in found.chosen],
        "at_the_edge": sum(best in edges for best in found.chosen) if len(strengths) > 1 else 0,
        "converged": predict.converged,
    }
    predictions = [torch.from_numpy(one) for one in found.predictions]
    return predictions, float(np.mean(found.inner_accuracies)), card


def nested_folds(
    features: Tensor, labels: Tensor, *, seed: int, folds: int, strengths: Sequence[float]
) -> dict[str, Any]:
    """Accuracy of features (n, D) for labels (n,) over stratified folds, C chosen by inner folds.

    Returns:
        The accuracy over all samples, each classified when it was held out; the accuracy of each
        fold, the strength chosen in it and its accuracy in the inner folds.
    """
    outer = stratified(labels.numpy(), folds, seed)
    predictions, inner, fits = classify(
        features, labels, outer, seed=seed, folds=folds, strengths=strengths
    )
    right = [one == labels[test] for one, (_, test) in zip(predictions, outer, strict=True)]
    by_fold = [float(part.double().mean()) for part in right]
    # SentEval reports the mean over folds, whose sizes differ by one.
    accuracy = {**asdict(Accuracy.of(torch.cat(right))), "value": float(np.mean(by_fold))}
    return {
        "accuracy": accuracy,
        "examples": len(labels),
        "fold_accuracies": by_fold,
        "inner_accuracy": inner,
        **fits,
    }


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Limit torch's threads, if at all."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure_sick(splits: Splits, embeddings: _Embeddings, seed: int) -> dict[str, Any]:
    parts = [(embeddings.features(splits[key]), splits[key].targets) for key in splits]
    (x, y), (dev_x, dev_y), (test_x, test_y) = parts
    with _threads(1):  # its products are too small to divide
        predict, card = fit_relatedness(x, torch.from_numpy(y), dev_x, dev_y, seed=seed)
    predictions = predict(test_x)
    return {
        "pearson": asdict(pearson(predictions, test_y, seed=seed)),
        "spearman": asdict(spearman(predictions, test_y, seed=seed)),
        "mse": {**asdict(squared_error(predictions, test_y)), "percent": False},
        "examples": len(y),
        **card,
    }


def _measure_sts(pairs: Examples, embeddings: _Embeddings, seed: int) -> dict[str, Any]:
    first, second = (embeddings.of(some).double() for some in (pairs.first, pairs.second or []))
    similarity = cosine_similarity(first, second).numpy()
    return {
        "spearman": asdict(spearman(similarity, pairs.targets, seed=seed)),
        "pearson": asdict(pearson(similarity, pairs.targets, seed=seed)),
        "examples": len(pairs),
    }


def _protocol(
    names: Sequence[str],
    seed: int,
    folds: int,
    strengths: Sequence[float] | None,
    norm: float | None,
) -> dict[str, Any]:
    def grid(default: Sequence[float]) -> str:
        return ", ".join(f"{strength:g}" for strength in strengths or default)

    regression = (
        "L2-penalized logistic regression at its optimum, bias not penalized (the objective of "
        "scikit-learn's LogisticRegression), features not standardized"
    )
    texts = {
        "nested": (BINARY, f"MR, CR, SUBJ, MPQA: {regression}; stratified {folds}-fold, mean over "
        f"folds; in each, C of {grid(NESTED)} chosen by stratified {folds}-fold on the other "
        "folds"),
        "test": (("TREC", "MRPC"), f"TREC, MRPC: {regression}; C of {grid(HELD_OUT)} chosen by "
        f"stratified {folds}-fold on the training set, accuracy (and F1 of class 1) on the test "
        "set; MRPC's features [|u - v|, u * v]"),
        "sick": (("SICK",), f"softmax regression on [|u - v|, u * v] to {BINS} bins; squared "
        f"error, Adam {LEARNING_RATE:g}, batches of {BATCH}; Pearson on the development set every "
        f"{EPOCHS_BETWEEN} epochs, the best kept, at most {PATIENCE} checks without a new best "
        "passed over; Pearson, Spearman, MSE on the test set"),
        "sts": (STS, "STS: cosine similarity of each pair, no training; Spearman and Pearson over "
        "the pairs of all sources of a year together"),
    }  # fmt: skip
    as_given = "as the encoder gives it"
    scaled = f"one factor for all vectors, to a root mean square norm of {norm:g}" if norm else ""
    return {
        **{key: text for key, (tasks, text) in texts.items() if {*tasks} & {*names}},
        "standard_error": "accuracy: over the samples classified; MSE: of the mean; "
        f"others: deviation over {RESAMPLES} resamples of the test samples. One encoder, one seed",
        "blank_lines": "kept, as the sentence '.'",
        "scale": scaled or as_given,
        "seed": seed,
        "folds": folds,
    }
