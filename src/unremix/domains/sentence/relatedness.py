"""Softmax regression from pairs of sentences to how related they are, as SentEval trains it."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from unremix.domains.sentence.senteval_files import BINS
from unremix.evaluation.measurements import pearson_correlation

BATCH, LEARNING_RATE = 64, 1e-3
EPOCHS_BETWEEN, MOST_EPOCHS, PATIENCE = 50, 1000, 3


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
        found = float(pearson_correlation(predict(dev_features), dev_scores))
        if found > best:
            best, kept, best_epoch = found, deepcopy(layer.state_dict()), epoch
        else:
            worse += 1
    layer.load_state_dict(kept)
    return predict, {"dev_pearson": best, "epochs": epoch, "best_epoch": best_epoch}
