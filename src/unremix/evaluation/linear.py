"""The linear probe: logistic regression on frozen features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unremix.core.checks import check_number, check_positive
from unremix.evaluation.accuracy import Accuracy, top_accuracy
from unremix.evaluation.checks import (
    check_same_size,
    checked_features,
    checked_labels,
    checked_samples,
)

Progress = Callable[[int, float], None]

TOP = 5  # with five classes or fewer, every top-5 prediction would be right


@dataclass(frozen=True)
class LinearResult:
    """What :func:`linear_probe` found, after its last epoch.

    Args:
        top1: Accuracy of the highest logit, on the test samples.
        top5: Whether the right class is among the five highest; None for fewer than six classes.
        curve: The test top-1 after each epoch. Its maximum is chosen on test labels and is no
            result.
        train_top1: Top-1 on the training samples: far above the test's, the probe overfits.
    """

    top1: Accuracy
    top5: Accuracy | None
    curve: tuple[float, ...]
    train_top1: float


@torch.inference_mode(False)
@torch.enable_grad()
def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    epochs: int = 100,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
    batch_size: int = 512,
    seed: int = 0,
    progress: Progress | None = None,
) -> LinearResult:
    """Train one linear layer on frozen features with Adam, and test it.

    p = softmax(W x + b);  L = mean over the batch of -log p_y.

    The result depends on the seed and not on the global random state, which stays as it was.

    Args:
        train_features: x, shape (n, D).
        train_labels: y, integers from 0, shape (n,).
        test_features: Shape (m, D).
        test_labels: Shape (m,).
        epochs: Passes over the training samples.
        lr: Adam's learning rate.
        weight_decay: L2 penalty, added to the gradient as Adam does (not AdamW).
        batch_size: B; the last batch of an epoch may be smaller.
        seed: Draws the initial layer and the order of the samples.
        progress: Called with the epoch, from 1, and its test top-1.

    Returns:
        The accuracies after the last epoch, and the test top-1 after each.

    Raises:
        ValueError: If features are empty or not finite, labels do not fit or are of a single class,
            or an option is out of range.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(50, 1)
        >>> labels = torch.tensor([0, 1]).repeat(50)
        >>> result = linear_probe(features, labels, features, labels, epochs=20, lr=0.1)
        >>> result.top1.value, result.top5, len(result.curve)
        (1.0, None, 20)

    Reference:
        Protocol and defaults: HCL (Robinson et al. 2021), which UnReMix follows.
    """
    names = "the training features", "the training labels"
    x, y, num_classes = checked_samples(train_features, train_labels, *names)
    test = checked_features(test_features, "the test features")
    check_same_size(x, test, "training and test features")
    test = test.to(x)
    truth = checked_labels(test_labels, test, "the test labels", num_classes=num_classes)
    check_positive(epochs=epochs, batch_size=batch_size)
    check_number("lr", lr, above=0)
    check_number("weight_decay", weight_decay, least=0)

    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same draws for every device
    size = x.shape[1]
    bound = 1 / math.sqrt(size)  # as torch.nn.Linear, but from the seed
    draws = torch.empty(num_classes, size + 1).uniform_(-bound, bound, generator=generator)
    layer = nn.utils.skip_init(nn.Linear, size, num_classes, dtype=x.dtype, device=x.device)
    layer.load_state_dict({"weight": draws[:, :-1], "bias": draws[:, -1]})
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=weight_decay)

    @torch.no_grad()
    def accuracy(features: Tensor, labels: Tensor, top: int = 1) -> Accuracy:
        return top_accuracy(layer(features), labels, top)

    curve = []
    for epoch in range(1, epochs + 1):
        order = torch.randperm(x.shape[0], generator=generator).to(x.device)
        for batch in order.split(batch_size):
            optimizer.zero_grad()
            cross_entropy(layer(x[batch]), y[batch]).backward()
            optimizer.step()
        curve.append(accuracy(test, truth).value)
        if progress is not None:
            progress(epoch, curve[-1])

    return LinearResult(
        top1=accuracy(test, truth),
        top5=accuracy(test, truth, TOP) if y.unique().numel() > TOP else None,
        curve=tuple(curve),
        train_top1=accuracy(x, y).value,
    )
