"""Checks of the features and labels that every evaluation begins with."""

from __future__ import annotations

import torch
from torch import Tensor

from unremix.core.checks import check_finite


def checked_features(features: Tensor, name: str) -> Tensor:
    """The features (n, D), which an error calls ``name``, detached and in at least float32.

    Raises:
        ValueError: If they are not a matrix of finite floating-point numbers with a row.
    """
    if features.dim() != 2 or features.numel() == 0:
        raise ValueError(
            f"expected {name} of shape (n, D) with at least one row and column, got "
            f"{tuple(features.shape)}; give one feature vector per sample"
        )
    if not features.is_floating_point():
        raise ValueError(
            f"expected {name} in floating point, got {features.dtype}; convert with .float()"
        )
    check_finite(**{name: features})
    features = features.detach()
    # Half precision would tie many cosines that differ.
    return features if features.dtype == torch.float64 else features.float()


def checked_labels(
    labels: Tensor, features: Tensor, name: str, *, num_classes: int | None = None
) -> Tensor:
    """The labels, as int64 on the features' device.

    Args:
        labels: Shape (n,).
        features: The features they belong to, shape (n, D).
        name: What to call them in an error.
        num_classes: C, an upper bound of the labels; None for no bound.

    Raises:
        ValueError: If there is not one integer in [0, C) per sample.
    """
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"expected {name} of shape ({features.shape[0]},), one per row of the features, "
            f"got {tuple(labels.shape)}; one-hot labels become numbers with .argmax(1)"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"expected {name} of an integer type, got {labels.dtype}; convert with .long()"
        )
    labels = labels.detach().to(features.device, torch.int64)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        raise ValueError(
            f"expected {name} of 0 and above, got {lowest}; leave samples without label out"
        )
    if num_classes is not None and highest >= num_classes:
        raise ValueError(
            f"expected {name} below the number of classes, {num_classes}, got {highest}; "
            "number the classes of both splits alike"
        )
    return labels


def checked_samples(
    features: Tensor, labels: Tensor, name: str = "the features", of_labels: str = "the labels"
) -> tuple[Tensor, Tensor, int]:
    """Features (n, D) and labels (n,) for a classifier, and C, one more than the highest label.

    Raises:
        ValueError: As for :func:`checked_features` and :func:`checked_labels`; also if all labels
            are the same.
    """
    features = checked_features(features, name)
    labels = checked_labels(labels, features, of_labels)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest == highest:
        raise ValueError(
            f"expected {of_labels} to be of at least two classes, got only class {lowest}; "
            "every prediction would be right"
        )
    return features, labels, highest + 1


def check_same_size(first: Tensor, second: Tensor, names: str) -> None:
    """Raise ValueError unless features (n, D) and (m, D) have the same number of columns."""
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"expected {names} of the same size, got {first.shape[1]} and {second.shape[1]} "
            "columns; take both from the same encoder"
        )
