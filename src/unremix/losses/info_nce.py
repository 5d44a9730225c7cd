"""InfoNCE with weighted negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unremix.losses.blockwise import Products, Rise, Settled, Sums, Tile, contrast
from unremix.losses.options import check_call, number
from unremix.native import Estimate
from unremix.pairs import Block, Pairs
from unremix.scores import COLD, LOG2_E, Gradient, Own, Rows, Views
from unremix.weights import Weighting, Weights


@dataclass(frozen=True)
class InfoNCE:
    """L_i = Σ_p π_p · -log( e^{l_p} / (e^{l_p} + Σ_j w_ij e^{l_ij}) ).

    Args:
        class_prior: τ⁺, the share of negatives that are positives in truth; the sum over the
            negatives is corrected for it, not below its least possible value (HCL, Eq. 4).
        bound: The largest absolute logit: 1/τ for cosines.
        positives_in_denominator: Whether an anchor's other positives stand in the denominator.
        factor: The largest factor on the logits of an anchor's own negatives.
    """

    class_prior: float = 0.0
    bound: float = math.inf
    positives_in_denominator: bool = False
    factor: float = 1.0

    estimate: ClassVar[Estimate] = "exponential"
    least: ClassVar[float] = 0.0

    @property
    def takes_exponentials(self) -> bool:
        """Whether no maximum has to be taken off first."""
        return self.bound * max(1.0, self.factor) <= 1 / COLD

    def extreme(self, dtype: torch.dtype) -> bool:
        """See :class:`unremix.losses.blockwise.Objective`."""
        return self.bound * (1 + max(1.0, self.factor)) > -math.log(torch.finfo(dtype).tiny) / 2

    def rise(self, logits: Tensor, weights: Weights, rows: Rows) -> Rise:
        """φ = e^x, which is its own derivative."""
        if rows.exponentials is not None:
            return Rise(rows.exponentials, rows.exponentials)
        highest = None
        if not self.takes_exponentials:
            # e^{l - highest}, highest the row maximum over the negatives. Where the logits span
            # more than exponentials can, a negative without weight must not drown the others:
            # leave it out.
            highest = logits.amax(1, keepdim=True)
            if weights.values is not None and self.extreme(logits.dtype):
                lowest = torch.finfo(logits.dtype).min
                highest = torch.where(weights.values > 0, logits, lowest).amax(1, keepdim=True)
                logits.clamp_(max=highest)
            logits.sub_(highest)
        exponentials = logits.mul_(LOG2_E).exp2_()  # (B, M)
        return Rise(exponentials, exponentials, None if highest is None else highest[:, 0])

    def settle(self, sums: Sums, positives: Tensor, block: Block) -> Settled:
        """See :class:`unremix.losses.blockwise.Objective`."""
        log_negatives = sums.weighted.log() + sums.log_factor(block)  # (B,)
        loss, to_negatives, to_positives = self._per_anchor(log_negatives, positives, block)
        tiny = torch.finfo(loss.dtype).tiny
        return Settled(loss, to_negatives / sums.weighted.clamp(min=tiny), to_positives)

    def _per_anchor(
        self, log_negatives: Tensor, positives: Tensor, block: Block
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (B,) and its gradients to log Σ_j w_j e^{l_j} (B,) and to the positives (P,).

        Of a positive, -log( e^{l_p} / (e^{l_p} + G) ) = softplus(log G - l_p), whose derivative by
        log G is q = sigmoid(log G - l_p), and by l_p is -q.
        """
        share, row = block.share.to(positives.dtype), block.positive_row
        if not self.positives_in_denominator:
            alone = block.pairs.one_positive  # then P = B, in the same order
            of_positives = log_negatives if alone else log_negatives.index_select(0, row)
            log_others, by_negatives, by_positive = self._debias(
                of_positives, positives, block, None if alone else row
            )
            gap = log_others - positives
            flow, losses = share * gap.sigmoid(), share * softplus(gap)  # (P,)
            to_positives = -flow if by_positive is None else flow * (by_positive - 1)
            flow = flow if by_negatives is None else flow * by_negatives
            if alone:
                return losses, flow, to_positives
            loss = torch.zeros_like(log_negatives).index_add_(0, row, losses)
            return loss, torch.zeros_like(loss).index_add_(0, row, flow), to_positives
        log_positives, posterior = _log_sum_exp(positives, row, log_negatives)  # (B,), (P,)
        count = torch.bincount(row, minlength=log_negatives.numel())
        mean = log_positives - count.clamp(min=1).to(log_positives.dtype).log()
        log_others, by_negatives, by_positive = self._debias(log_negatives, mean, block)
        total = torch.zeros_like(log_negatives).index_add_(
            0, row, share
        )  # 1, or 0 without positive
        gap = log_others - log_positives
        flow = total * gap.sigmoid()  # (B,)
        loss = torch.where(total > 0, total * softplus(gap), 0.0)
        loss = loss.index_add(0, row, share * (log_positives[row] - positives))
        through = total - flow if by_positive is None else total + flow * (by_positive - 1)
        to_positives = through[row] * posterior - share
        return loss, flow if by_negatives is None else flow * by_negatives, to_positives

    def _debias(
        self, log_negatives: Tensor, log_positive: Tensor, block: Block, row: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """log max( (Σ_j w_j e^{l_j} - τ⁺ n e^{l_p}) / (1 - τ⁺), n e^{-bound} ) and its derivatives.

        Returns:
            The value, its derivative by log Σ_j w_j e^{l_j} (None: 1) and by l_p (None: 0).
        """
        if self.class_prior == 0:
            return log_negatives, None, None
        count = block.count[:, 0].to(log_negatives.dtype)  # n
        count = count if row is None else count[row]
        shift = torch.maximum(log_negatives, log_positive)
        negatives, positive = (log_negatives - shift).exp(), (log_positive - shift).exp()
        false = self.class_prior * count * positive
        tiny = torch.finfo(false.dtype).tiny
        rest = (negatives - false).clamp(min=tiny)
        log_rest = (rest / (1 - self.class_prior)).clamp(min=tiny).log() + shift
        least = count.log() - self.bound
        held = (negatives <= false) | (log_rest <= least)  # at its least value nothing moves it
        by_negatives = (negatives / rest).masked_fill(held, 0.0)
        by_positive = (-false / rest).masked_fill(held, 0.0)
        return torch.where(held, least, log_rest), by_negatives, by_positive


def _log_sum_exp(values: Tensor, row: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ e^value over each row's values, shape (B,), and each value's share in it, shape (P,).

    A row without values has the dtype's lowest value.
    """
    lowest = torch.finfo(values.dtype).min
    highest = torch.full_like(like, lowest).scatter_reduce(0, row, values, "amax")
    exponentials = (values - highest[row]).exp()
    total = torch.zeros_like(like).index_add(0, row, exponentials)
    return torch.where(total > 0, total, 1).log() + highest, exponentials / total[row]


def info_nce(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
    own: Own | None = None,
    temperature: float = 0.5,
    weighting: Weighting | None = None,
    mix: Tensor | None = None,
    class_prior: float = 0.0,
    positives_in_denominator: bool = False,
    products: Products = "cosine",
    posterior_temperature: float = 1.0,
    gradient: Gradient = "pseudo-label",
    bias: bool = True,
    normaliser: float | None = None,
    tile: Tile = "auto",
) -> Tensor:
    """InfoNCE with weighted negatives, for any anchors, candidates and pairs.

    L = 1/N Σ_i -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_{j in Neg(i)} w_ij e^{s_ij/τ}) )

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        own: Further negatives of each anchor alone; see :class:`unremix.scores.Own`.
        temperature: τ.
        weighting: How negatives are weighted; uniform by default.
        mix: λ, one number per component, shape (K,); gradient flows to it. Equal by default.
        class_prior: τ⁺ of the debiasing.
        positives_in_denominator: Whether an anchor's other positives stand in the denominator.
        products: ``cosine``: logits are f·f/τ; ``dot``: z·z/τ. The scores always use f.
        posterior_temperature: t of the pseudo-posterior.
        gradient: Which cross-entropy the uncertainty differentiates; ``nt-xent`` uses t = τ.
        bias: Whether the last layer has a bias.
        normaliser: Divides the sum over anchors; by default the number that have a positive.
        tile: Rows per block: ``auto``, a number, or None for all at once.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If no anchor has a positive, or none a negative, or options contradict.

    Relations:
        Without weighting, NT-Xent over the given pairs. With ``weights.hardness(β/τ)``, HCL. With
        ``positives_in_denominator`` and uniform weights, Quick-Thought's cross-entropy.

    Example:
        >>> z = torch.eye(4)
        >>> views = Views(z)
        >>> info_nce(views, views, Pairs.both_views(2), temperature=1.0)  # log 3: all alike
        tensor(1.0986)

    Reference:
        UnReMix, Eq. 1 and Algorithm 1.
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
    number("class_prior", class_prior, least=0, below=1)
    if class_prior and products == "dot":
        raise ValueError(
            f"expected class_prior=0 with products='dot', received {class_prior}; the debiased sum "
            "is bounded below only for cosines"
        )
    bound = 1 / temperature if products == "cosine" else math.inf
    factor = 1.0 if own is None else own.logit_factor
    objective = InfoNCE(class_prior, bound, positives_in_denominator, factor)
    return contrast(
        anchors,
        candidates,
        pairs,
        objective,
        own=own,
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
