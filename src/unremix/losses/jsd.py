"""The Jensen-Shannon estimate with weighted negatives (InfoGraph)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unremix.losses.blockwise import Products, Rise, Settled, Sums, Tile, contrast
from unremix.losses.options import PRESETS, Fidelity, check_call, choose, number
from unremix.native import Estimate
from unremix.pairs import Block, Pairs
from unremix.scores import Gradient, Rows, Views
from unremix.weights import Weighting, Weights


@dataclass(frozen=True)
class JSD:
    """L_i = 1/n_i Σ_j w_ij E⁻(x_ij) - Σ_p π_p E⁺(x_ip).

    E⁺(x) = log 2 - softplus(-x) and E⁻(x) = softplus(x) - log 2, x the logits.
    """

    estimate: ClassVar[Estimate] = "softplus"
    least: ClassVar[float] = math.log(2)
    takes_exponentials: ClassVar[bool] = False

    def extreme(self, dtype: torch.dtype) -> bool:
        """See :class:`unremix.losses.blockwise.Objective`."""
        return False

    def rise(self, logits: Tensor, weights: Weights, rows: Rows) -> Rise:
        """φ = softplus, which is E⁻ + log 2, and its derivative, the logistic function."""
        return Rise(softplus(logits), logits.sigmoid_())

    def settle(self, sums: Sums, positives: Tensor, block: Block) -> Settled:
        """See :class:`unremix.losses.blockwise.Objective`."""
        factor = sums.per_negative(block)
        mean = (sums.weighted - math.log(2) * sums.total).mul_(factor)
        share = block.share.to(positives.dtype)
        of_positives = share * (math.log(2) - softplus(-positives))
        loss = mean.index_add_(0, block.positive_row, of_positives, alpha=-1)
        return Settled(loss, factor, -share * torch.sigmoid(-positives))


def hard_jsd(
    logits: Tensor,
    groups: Tensor,
    *,
    hardness: float = 1.0,
    class_prior: float = 0.1,
    similarity_gradient: bool = True,
    fidelity: Fidelity = "sound",
    normaliser: float | None = None,
) -> Tensor:
    """Jensen-Shannon estimate, negated, with HCL's hard negatives and debiasing.

    L = 1/N Σ_i ( G_i - log 2 - E⁺(x_ip) ),
    G_i = max( (1/n Σ_j w_ij softplus(x_ij) - τ⁺ softplus(x_ip)) / (1 - τ⁺), 0 ),
    w_ij ∝ e^{2β x_ij/max|x|} over the negatives, of mean 1.

    The debiased sum is kept at or above its least value, 0, as in the contrastive loss of HCL:
    unbounded, it would be made -∞ by scaling up the logits.

    Args:
        logits: x of N members with M groups, shape (N, M).
        groups: The group of each member, its positive, shape (N,).
        hardness: β.
        class_prior: τ⁺; 0.5 in HCL's public code.
        similarity_gradient: Whether gradient flows through w, as published.
        fidelity: ``code`` as HCL's public code, up to a constant: the exponent is negative, so that
            easy negatives count most; the positive stands among the negatives with x = 0; the
            correction is added to the loss in place of being taken away.
        normaliser: Divides the sum over members; their number by default.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If there is but one group, so no negative.

    Relations:
        With ``hardness=0`` and ``class_prior=0`` this is :func:`jsd` under uniform weights.

    Example:
        >>> hard_jsd(torch.zeros(3, 2), torch.tensor([0, 0, 1]), class_prior=0.0)
        tensor(0.)

    Reference:
        Robinson et al. 2021, Section 5.2 and its public code.
    """
    choose("fidelity", fidelity, tuple(PRESETS))
    number("hardness", hardness, least=0)
    number("class_prior", class_prior, least=0, below=1)
    count = logits.shape[1] - 1
    if count < 1:
        raise ValueError(
            "expected at least one negative, received one group only; use a batch of two or more"
        )
    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, groups[:, None], True)
    positive = logits.gather(1, groups[:, None])[:, 0]  # (N,)
    negatives = logits.masked_fill(own, 0.0)
    largest = negatives.abs().amax().clamp(min=torch.finfo(logits.dtype).tiny)
    sign = -1.0 if fidelity == "code" else 1.0
    exponent = sign * 2 * hardness * negatives / largest
    if fidelity != "code":
        exponent = exponent.masked_fill(own, -math.inf)
    shares = exponent.softmax(1)  # (N, M); 0 for the own group, but in the code
    if not similarity_gradient:
        shares = shares.detach()
    mean = (shares * softplus(negatives)).sum(1)
    if fidelity == "code":
        mean = mean * ((count + 1) / count)
        rest = (mean + class_prior * softplus(positive)) / (1 - class_prior)
    else:
        rest = ((mean - class_prior * softplus(positive)) / (1 - class_prior)).clamp(min=0)
    loss = rest - math.log(2) - (math.log(2) - softplus(-positive))  # (N,)
    return loss.sum() / (len(loss) if normaliser is None else normaliser)


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

    Raises:
        ValueError: If no anchor has a positive, or none a negative, or an argument makes no sense.

    Example:
        >>> nodes, graphs = Views(torch.zeros(3, 2)), Views(torch.zeros(2, 2))
        >>> jsd(nodes, graphs, Pairs.membership(torch.tensor([0, 0, 1]), 2))
        tensor(0.)

    Reference:
        Sun et al. 2020 (InfoGraph), Eq. 4.
    """
    weighting = weighting or Weighting()
    check_call(
        (anchors, candidates),
        weighting,
        mix,
        temperature=temperature,
        posterior_temperature=posterior_temperature,
        products=products,
        gradient=gradient,
        tile=tile,
    )
    return contrast(
        anchors,
        candidates,
        pairs,
        JSD(),
        temperature=temperature,
        weighting=weighting,
        mix=mix,
        products=products,
        posterior_temperature=temperature if gradient == "nt-xent" else posterior_temperature,
        gradient=gradient,
        bias=bias,
        normaliser=normaliser,
        tile=tile,
    )
