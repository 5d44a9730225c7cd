"""Weighted nearest neighbors on frozen features: a measurement without any training."""

from __future__ import annotations

import torch
from torch import Tensor

from unremix.core.checks import check_number, check_positive
from unremix.core.precision import normalize
from unremix.evaluation.accuracy import Accuracy, top_accuracy
from unremix.evaluation.checks import (
    check_same_size,
    checked_features,
    checked_labels,
    checked_samples,
)

TILE_ENTRIES = 2**24  # similarities held at a time: 64 MB in float32


def usual_neighbors(labels: Tensor, most: int) -> int:
    """k of a kNN measurement: a fifth of a class's samples on average, from 1 to ``most``.

    Example:
        >>> usual_neighbors(torch.arange(60) % 2, 20), usual_neighbors(torch.arange(4), 20)
        (6, 1)
    """
    return max(1, min(most, len(labels) // (5 * len(labels.unique()))))


@torch.no_grad()
def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor | None = None,
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
        queries: Features to classify, shape (m, D); by default those of the bank, each by its
            neighbors among all the others.
        k: Neighbors; all if there are fewer.
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
    bank = checked_features(bank, "the bank")
    bank_labels = checked_labels(bank_labels, bank, "the bank's labels", num_classes=num_classes)
    check_positive(k=k)
    check_number("temperature", temperature, above=0)
    leave_one_out = queries is None
    if leave_one_out and len(bank) < 2:
        raise ValueError("expected two samples or more, to leave one out, got one; pass queries")
    if queries is not None:
        queries = checked_features(queries, "the queries")
        check_same_size(bank, queries, "bank and queries")
        queries = normalize(queries.to(bank))[0]
    bank = normalize(bank)[0]
    queries = bank if queries is None else queries
    tile = max(1, TILE_ENTRIES // bank.shape[0])  # queries at a time
    k = min(k, bank.shape[0] - leave_one_out)
    num_classes = int(bank_labels.max()) + 1 if num_classes is None else num_classes
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
    names = "the bank", "the bank's labels"
    bank, bank_labels, num_classes = checked_samples(bank, bank_labels, *names)
    queries = checked_features(queries, "the queries")
    labels = checked_labels(labels, queries, "the test labels", num_classes=num_classes)
    shares = knn_predict(bank, bank_labels, queries, k=k, temperature=temperature)
    return top_accuracy(shares, labels)


def leave_one_out_knn(
    features: Tensor,
    labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.5,
) -> Accuracy:
    """The accuracy of :func:`knn_accuracy` with each sample classified by all the others.

    For data without a test split. Its standard error takes the samples as independent. Features
    are (n, D), labels (n,); options and errors are those of :func:`knn_accuracy`.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> leave_one_out_knn(features, torch.tensor([0, 0, 1, 1]), k=1).value
        1.0
    """
    features, labels, _ = checked_samples(features, labels)
    return top_accuracy(knn_predict(features, labels, k=k, temperature=temperature), labels)
