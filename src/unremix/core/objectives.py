"""The loss of each anchor: InfoNCE (debiased, decoupled) and the Jensen-Shannon estimate.

Both first sum up an anchor's weighted negatives, then set the sum against its positives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

OVERFLOW = 60.0  # largest exponent; only negatives of weight 0 can exceed it


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to the last digit; torch's own is linear beyond 20."""
    return -logsigmoid(-x)


@dataclass(frozen=True)
class InfoNCE:
    """InfoNCE with weighted negatives; l are the logits, π_p the shares of an anchor's positives.

    L_i = Σ_p π_p · -log( e^{l_p} / (e^{l_p} + Σ_j w_ij e^{l_ij}) )

    Args:
        class_prior: τ⁺, the share of negatives that are truly positives; the sum over the negatives
            is corrected for it, but not below its least possible value (HCL, Eq. 4).
        positives_in_denominator: Whether an anchor's other positives stand in the denominator too.
        decoupled: Whether positives are left out of the denominator: L_i = log Σ_j w_ij e^{l_ij} -
            Σ_p π_p l_p (Yeh et al. 2022).

    Reference:
        UnReMix, Eq. 1.
    """

    class_prior: float = 0.0
    positives_in_denominator: bool = False
    decoupled: bool = False

    def sum_negatives(self, logits: Tensor, weights: Tensor, negatives: Tensor) -> Tensor:
        """log Σ_j w_j e^{l_j}, shape (B,); the dtype's lowest number where every weight is 0.

        The logarithm of a weight is never taken: weights of exactly 0 occur.

        Args:
            logits: Shape (B, M).
            weights: w, shape (B, M), 0 where there is no negative.
            negatives: Boolean, shape (B, M).
        """
        lowest = torch.finfo(logits.dtype).min
        weighted = weights > 0
        highest = torch.where(weighted, logits.detach(), -torch.inf).amax(1, keepdim=True)
        highest = torch.where(highest > -torch.inf, highest, 0.0)
        exponent = torch.where(negatives, logits - highest, 0.0).clamp(max=OVERFLOW)
        total = (weights * exponent.exp()).sum(1)
        nothing = total == 0
        log_total = torch.where(nothing, 1.0, total).log() + highest[:, 0]
        return torch.where(nothing, lowest, log_total)

    def against_positives(
        self,
        log_negatives: Tensor,
        positives: Tensor,
        shares: Tensor,
        count: Tensor,
        least_logit: Tensor | float,
    ) -> Tensor:
        """The loss of each anchor, shape (B,).

        Of one positive, -log( e^{l_p} / (e^{l_p} + G) ) = softplus(log G - l_p).

        Args:
            log_negatives: log Σ_j w_j e^{l_j}, shape (B,).
            positives: l_p, shape (B, P).
            shares: π_p, shape (B, P); 0 in unused places.
            count: n, the number of negatives, shape (B,).
            least_logit: The least value a logit can take: -1/τ for cosines.
        """
        lowest = torch.finfo(positives.dtype).min
        used = shares > 0
        positives = torch.where(used, positives, 0.0)
        log_negatives = log_negatives[:, None]  # (B, 1)
        together = self.positives_in_denominator and not self.decoupled
        log_positives = positives  # of what stands beside the negatives: (B, P), or all as (B, 1)
        if together:
            log_positives = torch.where(used, positives, lowest).logsumexp(1, keepdim=True)
        if self.class_prior:
            false = log_positives
            if together:  # the mean over the positives
                false = false - used.sum(1, keepdim=True).clamp(min=1).to(false.dtype).log()
            log_negatives = self._debias(log_negatives, false, count[:, None], least_logit)
        if self.decoupled:
            losses = torch.where(log_negatives == lowest, 0.0, log_negatives - positives)
        elif together:
            losses = softplus(log_negatives - log_positives) + log_positives - positives
        else:
            losses = softplus(log_negatives - positives)
        return torch.where(used, shares * losses, 0.0).sum(1)

    def _debias(
        self,
        log_negatives: Tensor,
        log_positive: Tensor,
        count: Tensor,
        least_logit: Tensor | float,
    ) -> Tensor:
        """log max( (Σ_j w_j e^{l_j} - τ⁺ n e^{l_p}) / (1 - τ⁺), n e^{least} ), shape (B, P).

        Negatives without any weight stay without: the dtype's lowest number.
        """
        count = count.to(log_negatives.dtype)
        shift = torch.maximum(log_negatives, log_positive).detach()
        negatives, false = (log_negatives - shift).exp(), (log_positive - shift).exp()
        rest = (negatives - self.class_prior * count * false) / (1 - self.class_prior)
        tiny, lowest = torch.finfo(rest.dtype).tiny, torch.finfo(rest.dtype).min
        weighted = log_negatives > lowest  # else there is nothing to correct
        least = torch.where(weighted, count.clamp(min=1).log() + least_logit, lowest)
        nothing = rest <= tiny
        rest = torch.where(nothing, tiny, rest)
        log_rest = rest.log() + shift
        # Allow for rounding in `rest`; otherwise rounding decides whether the bound applies.
        rounding = 64 * torch.finfo(rest.dtype).eps / rest.detach()
        return torch.where(nothing | (log_rest <= least + rounding), least, log_rest)


@dataclass(frozen=True)
class JensenShannon:
    """The Jensen-Shannon estimate with weighted negatives; x are the logits.

    L_i = 1/n_i Σ_j w_ij E⁻(x_ij) - Σ_p π_p E⁺(x_ip)

    E⁺(x) is log 2 - softplus(-x), and E⁻(x) is softplus(x) - log 2.
    """

    def sum_negatives(self, logits: Tensor, weights: Tensor, negatives: Tensor) -> Tensor:
        """Σ_j w_j E⁻(x_j), shape (B,); the arguments are those of :class:`InfoNCE`."""
        return (weights * (softplus(torch.where(negatives, logits, 0.0)) - math.log(2))).sum(1)

    def against_positives(
        self,
        negatives: Tensor,
        positives: Tensor,
        shares: Tensor,
        count: Tensor,
        least_logit: Tensor | float,
    ) -> Tensor:
        """The loss of each anchor, shape (B,); the arguments are those of :class:`InfoNCE`."""
        agreement = torch.where(shares > 0, shares * (math.log(2) - softplus(-positives)), 0.0)
        return negatives / count.clamp(min=1) - agreement.sum(1)


Objective = InfoNCE | JensenShannon
ObjectiveName = Literal["info-nce", "jsd"]
