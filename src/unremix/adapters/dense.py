"""The weighted negatives of each anchor as tensors, for libraries that do the rest themselves."""

from __future__ import annotations

from torch import Tensor

from unremix.core.contrast import make_problem
from unremix.core.engines import eager
from unremix.core.objectives import InfoNCE
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.precision import full_precision
from unremix.core.views import Views
from unremix.core.weights import mix_or_equal
from unremix.core.weights import weights_of as weights_of_block
from unremix.losses import UnReMixLoss


def weights_of(
    loss: UnReMixLoss, anchors: Views, candidates: Views, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """The weights w of all negatives, 0 elsewhere, and all logits l, both (N, M).

    All at once: memory grows with N M, and autograd differentiates it.

    Args:
        loss: Says how negatives are weighted.
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
    """
    options, temperature = loss.options, loss.current_temperature()
    with full_precision(anchors.embeddings.device):
        compared = ContrastInput(anchors, candidates, pairs)
        problem, vectors = make_problem(compared, options, temperature, eager.ENGINE)
        logits, block = problem.compare(*vectors)
        mix = mix_or_equal(loss.lambdas(), options.weighting, logits)
        weights = weights_of_block(block, mix, options.weighting, temperature)
        return weights, logits / temperature


def weighted_negatives(
    loss: UnReMixLoss,
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """log Σ_j w_ij e^{l_ij} over the negatives of each anchor, shape (N,), and l, shape (N, M).

    Arguments are those of :func:`weights_of`; ``counts`` (N, M) says how often each negative
    counts, once by default.
    """
    weights, logits = weights_of(loss, anchors, candidates, pairs)
    weights = weights if counts is None else weights * counts
    return InfoNCE().sum_negatives(logits, weights, pairs.negatives()), logits
