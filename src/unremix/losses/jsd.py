"""The Jensen-Shannon estimate with weighted negatives (InfoGraph)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unremix.losses.blockwise import Outcome, Products, Tile, contrast
from unremix.pairs import Pairs
from unremix.scores import Gradient, Rows, Views
from unremix.weights import Weighting, Weights


@dataclass(frozen=True)
class JSD:
    """L_i = 1/n_i Σ_j w_ij E⁻(x_ij) - Σ_p π_p E⁺(x_ip).

    E⁺(x) = log 2 - softplus(-x) and E⁻(x) = softplus(x) - log 2, x the logits.
    """

    def __call__(
        self,
        logits: Tensor,
        positives: Tensor,
        weights: Weights,
        rows: Rows,
        *,
        mass: bool,
        differentiate_weights: bool,
    ) -> Outcome:
        """See :class:`unremix.losses.blockwise.Objective`."""
        block = rows.block
        count = block.count.clamp(min=1).to(logits.dtype)  # (B, 1)
        expectation = softplus(logits).sub_(math.log(2))  # E⁻, (B, M)
        weight = weights.dense(block, logits)
        mean = (weight * expectation).sum(1, keepdim=True) / count  # (B, 1)
        share = block.share.to(logits.dtype)
        of_positives = share * (math.log(2) - softplus(-positives))
        loss = mean[:, 0].index_add(0, block.positive_row, of_positives, alpha=-1)
        to_weights = None
        if differentiate_weights and weights.values is not None:
            # Where the mass is normalised, raising one weight lowers the others.
            to_weights = expectation.sub_(mean) if mass else expectation
            block.blank(to_weights.mul_(weights.log_factor.exp() / count))
        to_logits = weight.mul_(torch.sigmoid(logits)).div_(count)
        return Outcome(loss, to_logits, -share * torch.sigmoid(-positives), to_weights)


def jsd(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
    temperature: float = 1.0,
    weighting: Weighting | None = None,
    mix: Tensor | None = None,
    products: Products = "dot",
    posterior_temperature: float = 1.0,
    gradient: Gradient = "pseudo-label",
    bias: bool = True,
    normaliser: float | None = None,
    tile: Tile = "auto",
) -> Tensor:
    """Jensen-Shannon estimate of mutual information, negated, with weighted negatives.

    L = 1/N Σ_i ( 1/n_i Σ_{j in Neg(i)} w_ij E⁻(x_ij) - E⁺(x_ip) )

    Args:
        anchors: N views (InfoGraph: nodes).
        candidates: M views (InfoGraph: graphs).
        pairs: Positives and negatives (InfoGraph: ``Pairs.membership``).
        temperature: Divides the products; 1 in InfoGraph.
        weighting: How negatives are weighted; uniform by default.
        mix: λ, one number per component, shape (K,); gradient flows to it. Equal by default.
        products: ``dot``: x = z·z; ``cosine``: f·f.
        posterior_temperature: t of the pseudo-posterior.
        gradient: Which cross-entropy the uncertainty differentiates; ``nt-xent`` uses t = τ.
        bias: Whether the last layer has a bias.
        normaliser: Divides the sum over anchors; by default the number that have a positive.
        tile: Rows per block: ``auto``, a number, or None for all at once.

    Returns:
        The loss, a scalar.

    Example:
        >>> nodes, graphs = Views(torch.zeros(3, 2)), Views(torch.zeros(2, 2))
        >>> jsd(nodes, graphs, Pairs.membership(torch.tensor([0, 0, 1]), 2))
        tensor(0.)

    Reference:
        Sun et al. 2020 (InfoGraph), Eq. 4.
    """
    return contrast(
        anchors,
        candidates,
        pairs,
        JSD(),
        temperature=temperature,
        weighting=weighting or Weighting(),
        mix=mix,
        products=products,
        posterior_temperature=temperature if gradient == "nt-xent" else posterior_temperature,
        gradient=gradient,
        bias=bias,
        normaliser=normaliser,
        tile=tile,
    )
