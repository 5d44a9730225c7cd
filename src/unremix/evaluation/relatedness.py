"""Softmax regression from pairs of sentences to how related they are, as SentEval trains it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unremix.evaluation.senteval_files import BINS

BATCH, LEARNING_RATE = 64, 1e-3
EPOCHS_BETWEEN, MOST_EPOCHS, PATIENCE = 50, 1000, 3


def score_bins(scores: Tensor) -> Tensor:
    """A distribution over the scores 1 to 5 whose mean is the given score.

    Args:
        scores: From 1 to 5, shape (n,).

    Returns:
        Shares of the two nearest whole scores, shape (n, 5).

    Example:
        >>> score_bins(torch.tensor([3.25, 5.0]))
        tensor([[0.0000, 0.0000, 0.7500, 0.2500, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.0000, 1.0000]])

    Reference:
        Tai, Socher and Manning 2015, Section 4.2.
    """
    places = torch.arange(1, BINS + 1, dtype=scores.dtype)
    return (1 - (scores[:, None] - places).abs()).clamp(min=0)


@torch.no_grad()
def fit_relatedness(
    features: Tensor, scores: Tensor, dev_features: Tensor, dev_scores: np.ndarray, *, seed: int
) -> tuple[Callable[[Tensor], np.ndarray], dict[str, Any]]:
    """Softmax regression from the features of pairs to distributions over scores.

    p = softmax(W x + b);  L = mean of (p - q)², q the scores' bins. Adam in batches of 64; every
    50 epochs the Pearson correlation on the development set is taken, the best so far is kept, and
    the fourth time without a new best, or after 1000 epochs, training ends.

    Args:
        features: x, shape (n, D).
        scores: Shape (n,).
        dev_features: Shape (m, D).
        dev_scores: Shape (m,).
        seed: Draws the first weights and the order of the samples.

    Returns:
        A function from features to predicted scores, and the card's part about training.
    """
    generator = torch.Generator().manual_seed(seed)
    count, size = features.shape
    bound = 1 / math.sqrt(size)  # as torch.nn.Linear
    weight = torch.empty(size + 1, BINS).uniform_(-bound, bound, generator=generator)
    x = torch.cat([features.float(), torch.ones(count, 1)], 1)  # the last weight is the bias
    q = score_bins(scores).float()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    places = torch.arange(1.0, BINS + 1)

    def predictor(weight: Tensor) -> Callable[[Tensor], np.ndarray]:
        def predict(inputs: Tensor) -> np.ndarray:
            logits = torch.addmm(weight[-1], inputs.float(), weight[:-1])
            return (logits.softmax(1) @ places).double().numpy()

        return predict

    best, kept, best_epoch = -1.0, weight.clone(), 0
    step = worse = epoch = 0
    while worse <= PATIENCE and epoch <= MOST_EPOCHS:
        for _ in range(EPOCHS_BETWEEN):
            order = torch.randperm(count, generator=generator)
            for inputs, targets in zip(x[order].split(BATCH), q[order].split(BATCH), strict=True):
                step += 1
                p = (inputs @ weight).softmax(1)
                into_p = (p - targets).mul_(2 / targets.numel())
                gradient = inputs.T @ (p * (into_p - (into_p * p).sum(1, keepdim=True)))
                mean.lerp_(gradient, 1 - 0.9)
                square.lerp_(gradient.square_(), 1 - 0.999)
                scale = LEARNING_RATE / (1 - 0.9**step)
                weight.addcdiv_(mean, (square / (1 - 0.999**step)).sqrt_().add_(1e-8), value=-scale)
        epoch += EPOCHS_BETWEEN
        found = _correlation(predictor(weight)(dev_features), dev_scores)
        if found > best:
            best, kept, best_epoch = found, weight.clone(), epoch
        else:
            worse += 1
    return predictor(kept), {"dev_pearson": best, "epochs": epoch, "best_epoch": best_epoch}


def _correlation(predictions: np.ndarray, truth: np.ndarray) -> float:
    x, y = predictions - predictions.mean(), truth - truth.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm > 0 else 0.0
