"""SentEval's transfer tasks: how good frozen sentence embeddings are for a linear classifier.

:func:`evaluate` takes any function from sentences to vectors. Each distinct sentence is encoded
once, and the folds and penalties of a task are fitted together, by :func:`fit_logistic`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss

from unremix.core.checks import check_count, check_number, check_positive
from unremix.domains.sentence import senteval_files
from unremix.domains.sentence.senteval_files import BINARY, BINS, STS, TASKS, Examples, Splits
from unremix.evaluation import measurements
from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.logistic import eigenbasis, fit_logistic
from unremix.evaluation.nested import Split, cross_validate, stratified
from unremix.files.bounds import sound

__all__ = ["TASKS", "evaluate"]

Encode = Callable[[list[str]], Any]
Progress = Callable[[str, int, int], None]

NESTED = tuple(2.0**power for power in range(-2, 4))  # C for MR, CR, SUBJ and MPQA
HELD_OUT = tuple(2.0**power for power in range(-1, 6))  # C for TREC and MRPC
ENTRIES = 2**22  # logits held at a time
# Of the regression for SICK.
BATCH, LEARNING_RATE = 64, 1e-3
EPOCHS_BETWEEN, MOST_EPOCHS, PATIENCE = 50, 1000, 3


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
    names = [senteval_files.canonical_name(task) for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected some tasks, each once, got {list(tasks)}")
    check_count("folds", folds, 2, "10 are usual")
    check_positive(batch_size=batch_size, jobs=jobs)
    if strengths is not None and (not len(strengths) or min(strengths) <= 0):
        raise ValueError(f"expected positive strengths C, got {list(strengths)}")
    if norm is not None:
        check_number("norm", norm, above=0)
    folder = senteval_files.find_folder(root)
    read = {name: senteval_files.read_task(folder, name) for name in names}
    for name in (one for one in names if one not in ("SICK", *STS)):
        fewest = int(np.bincount(read[name]["train"].targets, minlength=2).min())
        # Where folds are nested, what an outer fold leaves of a class is split again.
        left = fewest - (-(-fewest // folds) if name in BINARY else 0)
        if left < folds:
            what = f"enough training examples of each class in {name} for {folds} folds"
            raise ValueError(f"expected {what}, got a class of {fewest}; use fewer folds")

    started = time.perf_counter()
    say = progress or (lambda what, done, total: None)
    embeddings = _Embeddings(encode, read, batch_size, say)
    facts = {
        "features": embeddings.vectors.shape[1],
        "root_mean_square_norm": embeddings.rescale(norm),
        "distinct_sentences": len(embeddings.rows),
        "seconds": time.perf_counter() - started,
    }
    measured: dict[str, Any] = {}
    grids = {name: strengths or (NESTED if name in BINARY else HELD_OUT) for name in TASKS}
    with _threads(jobs):
        for position, name in enumerate(names):
            say("tasks of SentEval", position, len(names))
            search = Search(seed, folds, grids.get(name, ()))
            measured[name] = _measure(name, read[name], embeddings, search)
        say("tasks of SentEval", len(names), len(names))
    scaled = f"one factor for all vectors, to a root mean square norm of {norm or 0:g}"
    protocol = {
        **_protocols(names, folds, grids),
        "standard_error": "accuracy: over the samples classified; MSE: of the mean; "
        f"others: deviation over {measurements.RESAMPLES} resamples of the test samples. One "
        "encoder, one seed",
        "blank_lines": "kept, as the sentence '.'",
        "scale": scaled if norm else "as the encoder gives it",
        "seed": seed,
        "folds": folds,
    }
    seconds = time.perf_counter() - started
    return {"tasks": measured, "protocol": protocol, "encoder": facts, "seconds": seconds}


class _Embeddings:
    """The vector of every sentence of some tasks."""

    def __init__(
        self, encode: Encode, read: dict[str, Splits], batch_size: int, say: Progress
    ) -> None:
        examples = chain.from_iterable(splits.values() for splits in read.values())
        found = {sentence for one in examples for sentence in one.sentences}
        ordered = sorted(found, key=lambda sentence: (len(sentence.split()), sentence))
        self.rows = {sentence: row for row, sentence in enumerate(ordered)}
        parts: list[Tensor] = []
        for start in range(0, len(ordered), batch_size):
            say("sentences of SentEval", start, len(ordered))
            batch = ordered[start : start + batch_size]
            parts.append(_checked(encode(batch), batch, parts[0].shape[1] if parts else 0))
        self.vectors = torch.cat(parts)
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
    what = "encode to return an array or tensor of numbers"
    with sound(what, type(output).__name__, "convert it"):
        vectors = torch.as_tensor(output).detach().to("cpu", torch.float32)
    width = size or (vectors.shape[-1] if vectors.dim() else 0)
    if not width or vectors.shape != (len(sentences), width):
        what = f"one vector per sentence, shape ({len(sentences)}, {size or 'D'})"
        got = f"{tuple(vectors.shape)}; pool over words, and keep empty sentences"
        raise ValueError(f"expected encode to return {what}, got {got}")
    broken = ~vectors.isfinite().all(1)
    if bool(broken.any()):
        sentence = sentences[int(broken.nonzero()[0])]
        got = f"{int(broken.sum())} of {len(sentences)} sentences, such as {sentence[:60]!r}"
        raise ValueError(f"expected finite vectors from encode, got NaN or infinity for {got}")
    return vectors


@dataclass(frozen=True)
class Search:
    """How C is chosen.

    Args:
        seed: Draws the folds.
        folds: Folds, outer and inner alike.
        strengths: C to choose from, rising.
    """

    seed: int
    folds: int
    strengths: Sequence[float]


def _measure(name: str, splits: Splits, embeddings: _Embeddings, search: Search) -> dict[str, Any]:
    seed = search.seed
    if name == "SICK":
        return _measure_sick(splits, embeddings, seed)
    if name in STS:
        return _measure_sts(splits["test"], embeddings, seed)
    train = splits["train"]
    features, labels = embeddings.features(train).double(), torch.from_numpy(train.targets)
    if name in BINARY:
        return nested_folds(features, labels, search)
    test = splits["test"]
    truth = torch.from_numpy(test.targets)
    features = torch.cat([features, embeddings.features(test).double()])
    fitted, held_out = np.split(np.arange(len(features)), [len(train)])
    together = torch.cat([labels, truth])
    (predictions,), inner, fits = classify(features, together, [(fitted, held_out)], search)
    accuracy = asdict(Accuracy.of(predictions == truth))
    card = {"accuracy": accuracy, "examples": len(train), "fold_accuracy": inner, **fits}
    if name == "MRPC":
        card["f1"] = asdict(measurements.f1(predictions.numpy(), test.targets, seed=seed))
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
    features: Tensor, labels: Tensor, outer: Sequence[Split], search: Search
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
    predict, grid = _Logistic(features, labels * trained), search.strengths
    y, seeds = labels.numpy(), [search.seed] * len(outer)
    found = cross_validate(
        y, outer, seeds, folds=search.folds, grid=grid, predict=predict, decimals=2
    )
    edges = (0, len(grid) - 1)
    card = {
        "strengths": [grid[best] for best in found.chosen],
        "at_the_edge": sum(best in edges for best in found.chosen) if len(grid) > 1 else 0,
        "converged": predict.converged,
    }
    predictions = [torch.from_numpy(one) for one in found.predictions]
    return predictions, float(np.mean(found.inner_accuracies)), card


def nested_folds(features: Tensor, labels: Tensor, search: Search) -> dict[str, Any]:
    """Accuracy of features (n, D) for labels (n,) over stratified folds, C chosen by inner folds.

    Returns:
        The accuracy over all samples, each classified when it was held out; the accuracy of each
        fold, the strength chosen in it and its accuracy in the inner folds.
    """
    outer = stratified(labels.numpy(), search.folds, search.seed)
    predictions, inner, fits = classify(features, labels, outer, search)
    right = [one == labels[test] for one, (_, test) in zip(predictions, outer, strict=True)]
    by_fold = [float(part.double().mean()) for part in right]
    # SentEval reports the mean over folds, whose sizes differ by one.
    accuracy = {**asdict(Accuracy.of(torch.cat(right))), "value": float(np.mean(by_fold))}
    measured = {"accuracy": accuracy, "examples": len(labels), "fold_accuracies": by_fold}
    return {**measured, "inner_accuracy": inner, **fits}


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
    mse = {**asdict(measurements.squared_error(predictions, test_y)), "percent": False}
    return {
        "pearson": asdict(measurements.pearson(predictions, test_y, seed=seed)),
        "spearman": asdict(measurements.spearman(predictions, test_y, seed=seed)),
        "mse": mse,
        "examples": len(y),
        **card,
    }


def score_bins(scores: Tensor) -> Tensor:
    """A distribution over the scores 1 to 5, (n, 5), whose mean is the given score, (n,).

    It has shares of the two nearest whole scores.

    Example:
        >>> score_bins(torch.tensor([3.25, 5.0]))
        tensor([[0.0000, 0.0000, 0.7500, 0.2500, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.0000, 1.0000]])

    Reference:
        Tai, Socher and Manning 2015, Section 4.2.
    """
    places = torch.arange(1, BINS + 1, dtype=scores.dtype)
    return (1 - (scores[:, None] - places).abs()).clamp(min=0)


@torch.inference_mode(False)
@torch.enable_grad()
def fit_relatedness(
    features: Tensor, scores: Tensor, dev_features: Tensor, dev_scores: np.ndarray, *, seed: int
) -> tuple[Callable[[Tensor], np.ndarray], dict[str, Any]]:
    """Softmax regression from the features of pairs to distributions over scores.

    p = softmax(W x + b);  L = mean of (p - q)², q the scores' bins. Adam in batches of 64. Every
    50 epochs the Pearson correlation on the development set is measured and the best model so far
    is kept. Training ends at the fourth measurement without a new best, or after 1000 epochs.

    Args:
        features: x, shape (n, D).
        scores: Shape (n,).
        dev_features: Shape (m, D).
        dev_scores: Shape (m,).
        seed: Draws the first weights and the order of the samples. Global randomness is untouched.

    Returns:
        A function from features to predicted scores, and the card's part about training.
    """
    generator = torch.Generator().manual_seed(seed)
    x, q = features.float(), score_bins(scores).float()
    count, size = x.shape
    bound = 1 / math.sqrt(size)  # as torch.nn.Linear, but from the seed
    first = torch.empty(size + 1, BINS).uniform_(-bound, bound, generator=generator)
    layer = nn.utils.skip_init(nn.Linear, size, BINS)
    layer.load_state_dict({"weight": first[:-1].T, "bias": first[-1]})
    optimizer = torch.optim.Adam(layer.parameters(), lr=LEARNING_RATE, fused=True)

    @torch.no_grad()
    def predict(inputs: Tensor) -> np.ndarray:
        p: Tensor = layer(inputs.float()).softmax(1)
        return (p @ torch.arange(1.0, BINS + 1)).double().numpy()

    best, kept, best_epoch = -1.0, deepcopy(layer.state_dict()), 0
    worse = epoch = 0
    while worse <= PATIENCE and epoch <= MOST_EPOCHS:
        for _ in range(EPOCHS_BETWEEN):
            for batch in torch.randperm(count, generator=generator).split(BATCH):
                optimizer.zero_grad()
                mse_loss(layer(x[batch]).softmax(1), q[batch]).backward()
                optimizer.step()
        epoch += EPOCHS_BETWEEN
        found = float(measurements.pearson_correlation(predict(dev_features), dev_scores))
        if found > best:
            best, kept, best_epoch = found, deepcopy(layer.state_dict()), epoch
        else:
            worse += 1
    layer.load_state_dict(kept)
    return predict, {"dev_pearson": best, "epochs": epoch, "best_epoch": best_epoch}


def _measure_sts(pairs: Examples, embeddings: _Embeddings, seed: int) -> dict[str, Any]:
    first, second = (embeddings.of(some).double() for some in (pairs.first, pairs.second or []))
    similarity = cosine_similarity(first, second).numpy()
    return {
        "spearman": asdict(measurements.spearman(similarity, pairs.targets, seed=seed)),
        "pearson": asdict(measurements.pearson(similarity, pairs.targets, seed=seed)),
        "examples": len(pairs),
    }


def _protocols(
    names: Sequence[str], folds: int, grids: Mapping[str, Sequence[float]]
) -> dict[str, str]:
    """How the tasks are measured, in words."""
    nested, test = (", ".join(f"{C:g}" for C in grids[name]) for name in ("MR", "TREC"))
    regression = (
        "L2-penalized logistic regression at its optimum, bias not penalized (the objective of "
        "scikit-learn's LogisticRegression), features not standardized"
    )
    texts = {
        "nested": (BINARY, f"MR, CR, SUBJ, MPQA: {regression}; stratified {folds}-fold, mean over "
        f"folds; in each, C of {nested} chosen by stratified {folds}-fold on the other "
        "folds"),
        "test": (("TREC", "MRPC"), f"TREC, MRPC: {regression}; C of {test} chosen by "
        f"stratified {folds}-fold on the training set, accuracy (and F1 of class 1) on the test "
        "set; MRPC's features [|u - v|, u * v]"),
        "sick": (("SICK",), f"softmax regression on [|u - v|, u * v] to {BINS} bins; squared "
        f"error, Adam {LEARNING_RATE:g}, batches of {BATCH}; Pearson on "
        f"the development set every {EPOCHS_BETWEEN} epochs, the best kept, at most "
        f"{PATIENCE} checks without a new best passed over; Pearson, Spearman, MSE on "
        "the test set"),
        "sts": (STS, "STS: cosine similarity of each pair, no training; Spearman and Pearson over "
        "the pairs of all sources of a year together"),
    }  # fmt: skip
    return {key: text for key, (tasks, text) in texts.items() if {*tasks} & {*names}}
