"""What becomes of the evidence: a factor in [0, 1] on the weight of each negative.

Each rule is a function of the evidence e, shape (B, M), of B anchors and M candidates. Nothing here
carries gradient or reads a value on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unremix.core.precision import noise

SEPARATION = 0.8  # α of BCL: how far the ranks of false and of true negatives are apart
FITTING_STEPS = 10  # of the mixture, as in ProGCL


def standing(evidence: Tensor, negatives: Tensor) -> Tensor:
    """Where each negative stands among its anchor's: 0 for the least similar, 1 for the most.

    Φ_ij = (how many are below + how many are not above) / 2n: equals, up to rounding, share their
    place, such as the two views of a sample where both have the same descriptor.

    Args:
        evidence: e, shape (B, M).
        negatives: Boolean, shape (B, M).

    Returns:
        Φ, shape (B, M), strictly between 0 and 1; 1/2 where there is no negative.

    Example:
        >>> everything = torch.ones(1, 4, dtype=torch.bool)
        >>> standing(torch.tensor([[0.3, 0.1, 0.3, 0.9]]), everything)
        tensor([[0.5000, 0.1250, 0.5000, 0.8750]])
    """
    values = torch.where(negatives, evidence, torch.inf)  # what is no negative comes last
    ordered = values.sort(dim=1).values.contiguous()
    size = torch.where(negatives, evidence, 0.0).abs().amax(1, keepdim=True)
    rounding = noise(evidence) * size
    below = torch.searchsorted(ordered, (values - rounding).contiguous())
    not_above = torch.searchsorted(ordered, (values + rounding).contiguous(), right=True)
    count = negatives.sum(1, keepdim=True).clamp(min=1)
    place = (below + not_above).to(evidence.dtype) / (2 * count)
    return torch.where(negatives, place, 0.5)


def ring(evidence: Tensor, negatives: Tensor, *, share: float, outer: float = 1.0) -> Tensor:
    """Leave out the most similar negatives, and the least similar ones where asked.

    Args:
        evidence: e, shape (B, M).
        negatives: Boolean, shape (B, M).
        share: Of the negatives, the most similar, that are left out.
        outer: Where the ring ends: 1 keeps all others, 0.5 leaves out the less similar half.

    Returns:
        1 inside the ring and 0 outside, shape (B, M).

    Example:
        >>> everything = torch.ones(1, 4, dtype=torch.bool)
        >>> ring(torch.tensor([[0.3, 0.1, 0.2, 0.9]]), everything, share=0.25)
        tensor([[1., 1., 1., 0.]])

    Reference:
        Wu et al. 2021, conditional negative sampling (arXiv 2010.02037), there by sampling.
    """
    place = standing(evidence, negatives)
    return ((place <= 1 - share) & (place >= 1 - outer)).to(evidence.dtype)


def threshold(evidence: Tensor, limit: Tensor) -> Tensor:
    """Leave out the negatives above a threshold of each anchor's own.

    Args:
        evidence: e, shape (B, M).
        limit: λ, shape (B,); see :class:`unremix.signals.memory.Thresholds`.

    Returns:
        1 where e_ij ≤ λ_i, up to rounding, and 0 elsewhere, shape (B, M).
    """
    return (evidence <= limit[:, None] + noise(evidence)).to(evidence.dtype)


def rank(
    evidence: Tensor, negatives: Tensor, *, share: float, separation: float = SEPARATION
) -> Tensor:
    """The probability that a negative is a true one, given its rank among the anchor's negatives.

    Two densities, mirrored: of true negatives φ⁻ = 2 (α (1 - Φ) + (1 - α) Φ) φ, of false ones
    φ⁺ = 2 (α Φ + (1 - α) (1 - Φ)) φ. That is, of two draws from φ, a true negative is the lower one
    with probability α, and a false one the higher one. What is seen is their mixture,
    τ⁻ φ⁻ + τ⁺ φ⁺, whose distribution function is b Φ + (1 - b) Φ², b = 2 (α τ⁻ + (1 - α) τ⁺). It is
    known from the ranks, which gives Φ; then p = τ⁻ φ⁻ / (τ⁻ φ⁻ + τ⁺ φ⁺).

    Args:
        evidence: e, shape (B, M); only its order within a row matters.
        negatives: Boolean, shape (B, M).
        share: τ⁺ = 1 - τ⁻, the share of negatives that are false.
        separation: α, between 1/2 (p is τ⁻ everywhere) and 1. A false negative has more evidence
            than a true one with probability (1 + 4α) / 6: 0.7 for α = 0.8, 5/6 at most.

    Returns:
        p, shape (B, M).

    Relations:
        BCL's weights without hardness are p / τ⁻.

    Reference:
        Liu and Wang 2023, BCL (arXiv 2301.11673).
    """
    seen = standing(evidence, negatives)
    true = 1 - share
    b = 2 * (separation * true + (1 - separation) * share)
    phi = 2 * seen / (b + (b * b + 4 * (1 - b) * seen).sqrt())  # b Φ + (1 - b) Φ² = seen
    of_true = true * (separation * (1 - phi) + (1 - separation) * phi)
    of_false = share * (separation * phi + (1 - separation) * (1 - phi))
    return of_true / (of_true + of_false)


def mixture(
    evidence: Tensor, negatives: Tensor, *, share: float, steps: int = FITTING_STEPS
) -> Tensor:
    """The probability that a negative is a true one, by two Beta distributions fitted to a row.

    The evidence, brought to [0, 1] per anchor, is taken as a mixture of two Beta distributions, of
    which the one with the larger mean is that of false negatives. Expectation and maximization take
    turns, the latter by weighted moments. Outside the two means the probability stays as it is
    there, so that the most similar negative never counts as the most probably true one.

    Args:
        evidence: e, shape (B, M).
        negatives: Boolean, shape (B, M).
        share: Weight of the upper distribution at the start.
        steps: How often they take turns.

    Returns:
        Shape (B, M); 1 in rows whose evidence is constant.

    Relations:
        ProGCL fits one mixture to all pairs, once in a training; here every anchor has its own, in
        every step.

    Reference:
        Xia et al. 2022, ProGCL (arXiv 2110.02027).
    """
    low = torch.where(negatives, evidence, torch.inf).amin(1, keepdim=True)
    high = torch.where(negatives, evidence, -torch.inf).amax(1, keepdim=True)
    size = torch.maximum(low.abs(), high.abs())
    constant = ~(high - low > noise(evidence) * size)  # and rows without negatives
    span = torch.where(constant, 1.0, high - low)
    x = torch.where(negatives & ~constant, (evidence - low) / span, 0.5).clamp(1e-4, 1 - 1e-4)
    member = negatives.to(x.dtype)
    count = member.sum(1, keepdim=True).clamp(min=1)
    ones = x.new_ones(x.shape[0], 1)
    lower, upper, weight = (ones, 2 * ones), (2 * ones, ones), share * ones  # each (B, 1)
    for _ in range(steps):
        probability = _odds(x, lower, upper, weight).sigmoid() * member
        lower, upper = _fit_beta(x, member - probability), _fit_beta(x, probability)
        weight = (probability.sum(1, keepdim=True) / count).clamp(1e-4, 1 - 1e-4)
    means = [a / (a + b) for a, b in (lower, upper)]
    within = torch.minimum(torch.maximum(x, torch.minimum(*means)), torch.maximum(*means))
    odds = _odds(within, lower, upper, weight)
    odds = torch.where(means[1] >= means[0], odds, -odds)  # of being false
    return torch.where(constant, 1.0, (-odds).sigmoid())


Beta = tuple[Tensor, Tensor]


def _odds(x: Tensor, lower: Beta, upper: Beta, weight: Tensor) -> Tensor:
    """log of (weight × upper density) / ((1 - weight) × lower density), shape (B, M)."""

    def log_density(a: Tensor, b: Tensor) -> Tensor:
        normalizer = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return (a - 1) * x.log() + (b - 1) * (-x).log1p() + normalizer

    return log_density(*upper) - log_density(*lower) + weight.log() - (-weight).log1p()


def _fit_beta(x: Tensor, probability: Tensor) -> Beta:
    """The Beta distribution with the moments of x (B, M), weighted; its parameters, each (B, 1)."""
    total = probability.sum(1, keepdim=True).clamp(min=1e-6)
    mean = ((probability * x).sum(1, keepdim=True) / total).clamp(1e-3, 1 - 1e-3)
    variance = (probability * (x - mean).square()).sum(1, keepdim=True) / total
    precision = (mean * (1 - mean) / variance.clamp(min=1e-6) - 1).clamp(1e-2, 1e4)
    return mean * precision, (1 - mean) * precision
