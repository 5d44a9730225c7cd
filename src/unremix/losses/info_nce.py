"""InfoNCE with weighted negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unremix.losses.blockwise import Outcome, Products, Tile, contrast
from unremix.pairs import Block, Pairs
from unremix.scores import Gradient, Rows, Views
from unremix.weights import Weighting, Weights


@dataclass(frozen=True)
class InfoNCE:
    """L_i = Σ_p π_p · -log( e^{l_p} / (e^{l_p} + Σ_j w_ij e^{l_ij}) ).

    Args:
        class_prior: τ⁺, the share of negatives that are positives in truth; the sum over the
            negatives is corrected for it, not below its least possible value (HCL, Eq. 4).
        bound: The largest absolute logit: 1/τ for cosines.
        positives_in_denominator: Whether an anchor's other positives stand in the denominator.
    """

    class_prior: float = 0.0
    bound: float = math.inf
    positives_in_denominator: bool = False

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
        # e^{l - highest}, highest the row maximum over the negatives. Where the logits span more
        # than exponentials can, a negative without weight must not drown the others: leave it out.
        tiny = torch.finfo(logits.dtype).tiny
        highest = logits.amax(1, keepdim=True)
        if weights.values is not None and 2 * self.bound > -math.log(tiny) / 2:
            lowest = torch.finfo(logits.dtype).min
            highest = torch.where(weights.values > 0, logits, lowest).amax(1, keepdim=True)
            logits.clamp_(max=highest)
        exponentials = block.blank(logits.sub_(highest).exp_())  # (B, M)
        products = exponentials
        if weights.values is not None:
            products = torch.mul(exponentials, weights.values, out=rows.empty("weighted"))
        total = products.sum(1, keepdim=True)  # (B, 1)
        log_negatives = (total.log() + highest + weights.log_factor)[:, 0]  # (B,)

        loss, to_negatives, to_positives = self._per_anchor(log_negatives, positives, block)
        row_scale = to_negatives[:, None] / total.clamp(min=tiny)
        to_weights = None
        if differentiate_weights and weights.values is not None:
            # log Σ_j w_j e_j, less log Σ_j w_j where the mass is normalised.
            to_weights = exponentials.mul_(row_scale)
            if mass:
                to_weights.sub_(to_negatives[:, None] / weights.total.clamp(min=tiny))
            block.blank(to_weights)
        return Outcome(loss, products.mul_(row_scale), to_positives, to_weights)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _per_anchor(
        self, log_negatives: Tensor, positives: Tensor, block: Block
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (B,) and its gradients to log Σ_j w_j e^{l_j} (B,) and to the positives (P,).

        These vectors are short, so autograd differentiates what the equation says.
        """
        # Cloned, for autograd refuses tensors made in inference mode.
        log_negatives = log_negatives.detach().clone().requires_grad_()
        positives = positives.detach().clone().requires_grad_()
        share, row = block.share.to(positives.dtype, copy=True), block.positive_row.clone()
        if self.positives_in_denominator:
            log_positives = _log_sum_exp(positives, row, log_negatives)  # (B,)
            count = torch.bincount(row, minlength=log_negatives.numel())
            mean = log_positives - count.clamp(min=1).to(log_positives.dtype).log()
            log_others = self._debias(log_negatives, mean, block.count[:, 0])
            denominator = torch.logaddexp(log_positives, log_others)[row]
        else:
            log_others = self._debias(log_negatives[row], positives, block.count[row, 0])
            denominator = torch.logaddexp(positives, log_others)
        per_positive = share * (denominator - positives)  # (P,)
        loss = torch.zeros_like(log_negatives).index_add(0, row, per_positive)
        to_negatives, to_positives = torch.autograd.grad(
            loss.sum(), (log_negatives, positives), materialize_grads=True, allow_unused=True
        )
        return loss.detach(), to_negatives, to_positives

    def _debias(self, log_negatives: Tensor, log_positive: Tensor, count: Tensor) -> Tensor:
        """log max( (Σ_j w_j e^{l_j} - τ⁺ n e^{l_p}) / (1 - τ⁺), n e^{-bound} )."""
        if self.class_prior == 0:
            return log_negatives
        count = count.to(log_negatives.dtype)
        shift = torch.maximum(log_negatives, log_positive).detach()
        negatives, positive = (log_negatives - shift).exp(), (log_positive - shift).exp()
        rest = (negatives - self.class_prior * count * positive) / (1 - self.class_prior)
        tiny = torch.finfo(rest.dtype).tiny
        log_rest = rest.clamp(min=tiny).log() + shift
        return torch.maximum(log_rest, count.log() - self.bound)


def _log_sum_exp(values: Tensor, row: Tensor, like: Tensor) -> Tensor:
    """log Σ e^value over each row's values, shape (B,); -inf for a row without values."""
    lowest = torch.finfo(values.dtype).min
    highest = torch.full_like(like, lowest).scatter_reduce(0, row, values.detach(), "amax")
    total = torch.zeros_like(like).index_add(0, row, (values - highest[row]).exp())
    return torch.where(total > 0, total, 1).log() + highest


def info_nce(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
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
    if class_prior and products == "dot":
        raise ValueError(
            f"expected class_prior=0 with products='dot', received {class_prior}; the debiased sum "
            "is bounded below only for cosines"
        )
    bound = 1 / temperature if products == "cosine" else math.inf
    objective = InfoNCE(class_prior, bound, positives_in_denominator)
    return contrast(
        anchors,
        candidates,
        pairs,
        objective,
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
