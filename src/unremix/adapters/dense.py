"""The weighted negatives of each anchor as tensors, for libraries that do the rest themselves."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from unremix.core.contrast import make_problem
from unremix.core.engines import eager
from unremix.core.objectives import InfoNCE
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.precision import full_precision
from unremix.core.problem import Logits
from unremix.core.views import Views
from unremix.core.weights import mix_or_equal
from unremix.core.weights import weights_of as weights_of_block
from unremix.losses import UnReMixLoss


def weights_of(
    loss: UnReMixLoss,
    compared: ContrastInput,
    *,
    of: Pairs | None = None,
    logits: Logits = "cosine",
) -> tuple[Tensor, Tensor]:
    """The weights w of all negatives, 0 elsewhere, and all logits l, both (N, M).

    All at once: memory grows with N M, and autograd differentiates it.

    Args:
        loss: Says how negatives are weighted.
        compared: Anchors, candidates and pairs, as :meth:`unremix.losses.TwoViewLoss.compare`
            makes them.
        of: The pairs of the first N anchors, where only their weights are wanted. Others take part
            as classes of the candidates.
        logits: As in :meth:`unremix.losses.TwoViewLoss.against`.
    """
    options = replace(loss.options, logits=logits)
    with full_precision(compared.anchors.embeddings.device):
        compared = loss.settle(compared, update=loss.training)
        learned, temperature = loss.learned()
        problem, (anchors, candidates) = make_problem(compared, options, temperature, eager.ENGINE)
        if of is not None:
            wanted = slice(of.num_anchors)
            problem, anchors = replace(problem[wanted], pairs=of), anchors[wanted]
        products, block = problem.compare(anchors, candidates)
        mix = mix_or_equal(learned, options.weighting, products)
        weights = weights_of_block(block, mix, options.weighting, temperature)
        return weights, products / temperature


def weighted_negatives(
    loss: UnReMixLoss, anchors: Views, candidates: Views, pairs: Pairs, *, logits: Logits = "cosine"
) -> tuple[Tensor, Tensor]:
    """log Σ_j w_ij e^{l_ij} over the negatives of each anchor, shape (N,), and l, shape (N, M).

    Args:
        loss: Says how negatives are weighted.
        anchors: N views of this process.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        logits: As in :meth:`unremix.losses.TwoViewLoss.against`.
    """
    compared = loss.compare(anchors, candidates, pairs)
    weights, products = weights_of(loss, compared, logits=logits)
    return InfoNCE().sum_negatives(products, weights, pairs.negatives()), products
