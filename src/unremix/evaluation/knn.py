"""Weighted nearest neighbors on frozen features: a measurement without any training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unremix.core.precision import normalize
from unremix.evaluation.checks import (
    check_same_size,
    checked_features,
    checked_labels,
    count_classes,
)

Z95 = 1.959963984540054  # of the normal distribution
TILE_ENTRIES = 2**24  # similarities held at a time: 64 MB in float32


@dataclass(frozen=True)
class Accuracy:
    """A share of right predictions.

    Args:
        value: p, from 0 to 1.
        standard_error: sqrt(p (1 - p) / n), of the binomial distribution. It is 0 for p = 0 and
            p = 1, where the interval is not.
        count: n.
        low: Lower end of the 95 % Wilson interval: what another draw of n test samples could give.
            It says nothing about another training run.
        high: Upper end.

    Example:
        >>> print(Accuracy.of(torch.zeros(14, dtype=torch.bool)))
        0.00 % [0.00, 21.53]
    """

    value: float
    standard_error: float
    count: int
    low: float
    high: float

    @classmethod
    def of(cls, correct: Tensor) -> Accuracy:
        """From whether each prediction is right, a boolean of shape (n,)."""
        count = correct.numel()
        value = int(correct.sum()) / count
        error = math.sqrt(value * (1 - value) / count)
        return cls(value, error, count, *wilson_interval(value, count))

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % [{100 * self.low:.2f}, {100 * self.high:.2f}]"


def wilson_interval(value: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share p of n samples, which is never empty.

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n)  with z = 1.96.

    Args:
        value: p.
        count: n.

    Example:
        >>> low, high = wilson_interval(0.8, 100)
        >>> round(low, 3), round(high, 3)
        (0.711, 0.867)

    Relations:
        ``scipy.stats.binomtest(k, n).proportion_ci(method="wilson")``, without importing scipy.

    Reference:
        Wilson 1927.
    """
    square = Z95**2 / count
    middle = value + square / 2
    half = Z95 * math.sqrt(value * (1 - value) / count + square / (4 * count))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return (0.0 if value == 0 else low), (1.0 if value == 1 else high)


def usual_neighbors(labels: Tensor, most: int) -> int:
    """k of a kNN measurement: a fifth of a class's samples on average, at least 1.

    Args:
        labels: Shape (n,).
        most: The largest k.

    Example:
        >>> usual_neighbors(torch.arange(60) % 2, 20), usual_neighbors(torch.arange(4), 20)
        (6, 1)
    """
    return max(1, min(most, len(labels) // (5 * len(labels.unique()))))


@torch.no_grad()
def _class_shares(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    k: int,
    temperature: float,
    num_classes: int,
    leave_one_out: bool = False,
) -> Tensor:
    """The shares of :func:`knn_predict`, of checked inputs, shape (m, C).

    With ``leave_one_out`` the queries are the bank, and none is its own neighbor.
    """
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}")
    if not temperature > 0:
        raise ValueError(f"expected a positive temperature, got {temperature}")
    tile = max(1, TILE_ENTRIES // bank.shape[0])  # queries at a time
    k = min(k, bank.shape[0] - leave_one_out)
    bank = normalize(bank)[0]
    queries = bank if leave_one_out else normalize(queries)[0]
    shares = bank.new_zeros(queries.shape[0], num_classes)
    for start in range(0, queries.shape[0], tile):
        rows = slice(start, start + tile)
        similarity = queries[rows] @ bank.T  # (B, n)
        if leave_one_out:
            similarity.diagonal(start).fill_(-torch.inf)
        nearest = similarity.topk(k, dim=1, sorted=False)  # (B, k)
        weights = ((nearest.values - nearest.values.amax(1, keepdim=True)) / temperature).exp()
        weights /= weights.sum(1, keepdim=True)
        shares[rows].scatter_add_(1, bank_labels[nearest.indices], weights)
    return shares


def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.5,
    num_classes: int | None = None,
) -> Tensor:
    """The share of each class among a query's k nearest neighbors, weighted by their cosine.

    p_ic = Σ_j w_ij [y_j = c] / Σ_j w_ij  with  w_ij = exp(f_i·f_j / t), over the k nearest j.

    Memory is bounded: similarities exist for a tile of queries at a time.

    Args:
        bank: Features of the n samples to look among, shape (n, D); only their directions count.
        bank_labels: y, integers from 0, shape (n,).
        queries: Features to classify, shape (m, D).
        k: Neighbors; all of them where the bank has fewer.
        temperature: t; the smaller, the more the nearest ones count.
        num_classes: C; one more than the highest label if None.

    Returns:
        p, shape (m, C); each row sums to 1.

    Raises:
        ValueError: If features are empty or not finite, labels do not fit, or an option is out of
            range.

    Example:
        >>> bank, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> knn_predict(bank, labels, torch.tensor([[2.0, 0.0]]))
        tensor([[0.8808, 0.1192]])

    Reference:
        Wu et al. 2018, Section 3.4, there with t = 0.07; k = 200 and t = 0.5 are HCL's.
    """
    bank, queries = checked_features(bank, "the bank"), checked_features(queries, "the queries")
    check_same_size(bank, queries, "bank and queries")
    bank_labels = checked_labels(bank_labels, bank, "the bank's labels", num_classes=num_classes)
    return _class_shares(
        bank,
        bank_labels,
        queries.to(bank),
        k=k,
        temperature=temperature,
        num_classes=int(bank_labels.max()) + 1 if num_classes is None else num_classes,
    )


def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.5,
) -> Accuracy:
    """How often the class with the largest share in :func:`knn_predict` is the right one.

    Args:
        bank: Features of the training samples, shape (n, D).
        bank_labels: Their classes, shape (n,).
        queries: Features of the test samples, shape (m, D).
        labels: Their classes, shape (m,).
        k: Neighbors.
        temperature: t.

    Returns:
        The accuracy over the m test samples.

    Raises:
        ValueError: As :func:`knn_predict`; and if the bank has a single class, or a test label
            exceeds every label of the bank.

    Example:
        >>> bank, bank_labels = torch.eye(2), torch.tensor([0, 1])
        >>> queries = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 3.0], [3.0, 1.0]])
        >>> knn_accuracy(bank, bank_labels, queries, torch.tensor([0, 1, 1, 1])).value
        0.75
    """
    bank, queries = checked_features(bank, "the bank"), checked_features(queries, "the queries")
    bank_labels = checked_labels(bank_labels, bank, "the bank's labels")
    num_classes = count_classes(bank_labels, "a bank")
    labels = checked_labels(labels, queries, "the test labels", num_classes=num_classes)
    shares = knn_predict(
        bank,
        bank_labels,
        queries,
        k=k,
        temperature=temperature,
        num_classes=num_classes,
    )
    return top_accuracy(shares, labels)


def top_accuracy(shares: Tensor, labels: Tensor, top: int = 1) -> Accuracy:
    """How often the right class is among those with the largest shares.

    Args:
        shares: p of :func:`knn_predict`, shape (m, C).
        labels: The right classes, shape (m,).
        top: How many classes.

    Example:
        >>> shares = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
        >>> [top_accuracy(shares, torch.tensor([1, 2]), top).value for top in (1, 2)]
        [0.5, 1.0]
    """
    labels = labels.to(shares.device)
    if top == 1:
        return Accuracy.of(shares.argmax(1) == labels)
    return Accuracy.of((shares.topk(top, dim=1).indices == labels[:, None]).any(1))


def leave_one_out_shares(
    features: Tensor,
    labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.5,
) -> Tensor:
    """The shares of :func:`knn_predict`, each sample's neighbors looked for among all the others.

    Args:
        features: Shape (n, D).
        labels: Shape (n,).
        k: Neighbors; all others where there are fewer.
        temperature: t.

    Returns:
        Shape (n, C); each row sums to 1.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> leave_one_out_shares(features, torch.tensor([0, 0, 1, 1]), k=1)
        tensor([[1., 0.],
                [1., 0.],
                [0., 1.],
                [0., 1.]])
    """
    features = checked_features(features, "the features")
    labels = checked_labels(labels, features, "the labels")
    return _class_shares(
        features,
        labels,
        features,
        k=k,
        temperature=temperature,
        num_classes=count_classes(labels, "labels"),
        leave_one_out=True,
    )


def leave_one_out_knn(
    features: Tensor,
    labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.5,
) -> Accuracy:
    """The accuracy of :func:`knn_accuracy` with each sample classified by all the others.

    For data without a test split. Its standard error takes the samples as independent.

    Args:
        features: Shape (n, D).
        labels: Shape (n,).
        k: Neighbors; all others where there are fewer.
        temperature: t.

    Raises:
        ValueError: As :func:`knn_accuracy`.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> leave_one_out_knn(features, torch.tensor([0, 0, 1, 1]), k=1).value
        1.0
    """
    shares = leave_one_out_shares(features, labels, k=k, temperature=temperature)
    return top_accuracy(shares, torch.as_tensor(labels))
