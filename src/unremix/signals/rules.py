"""Which negatives are probably false, told without labels: evidence, and a rule that acts on it.

A false negative is a negative of the anchor's own class. Two questions are kept apart:

- **Evidence**: how alike two samples are, a number for every anchor and candidate. It is the inner
  product of their descriptors: the embeddings themselves (``similarity``), their mean over a
  sample's two views (``four-views``), features averaged over the training (``bank``), or the sets
  of nearest neighbors in that bank (``shared-neighbors``).
- **Rule**: what becomes of the evidence, a factor in [0, 1] on the weight of each negative:
  ``ring``, ``threshold``, ``rank`` or ``mixture``.

Evidence is no score of the mix: the mix is not negative, so it could only raise the weight of
negatives that are probably false. Nothing here carries gradient or reads a value on the host.

Letters: N anchors, B of them in a block, M candidates, K dimensions of a descriptor, R samples of a
memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unremix.core.checks import check_indices, choose, number
from unremix.core.scores import Block, inner_products, noise, normalize

Rule = Literal["ring", "threshold", "rank", "mixture"]
Evidence = Literal["similarity", "four-views", "bank", "shared-neighbors"]

SEPARATION = 0.8  # α of BCL: how often a false negative is more alike than a true one
BANK_MOMENTUM = 0.5  # of averaged features; the encoder moves on, so old ones are forgotten soon
THRESHOLD_RATE = 0.1  # step of a learned threshold, in standard deviations
NEIGHBOR_SHARE = 10  # one sample in so many is a neighbor
FEWEST_NEIGHBORS = 10
FITTING_STEPS = 10  # of the mixture, as in ProGCL


@dataclass(frozen=True)
class FalseNegatives:
    """What is done about negatives that are probably false.

    Args:
        rule: ``ring``, ``threshold``, ``rank`` or ``mixture``: see the functions of these names.
        evidence: How alike two samples are: ``similarity``, ``four-views``, ``bank`` or
            ``shared-neighbors``.
        share: The share of an anchor's negatives that are false: about 1 / (number of classes).
            ``ring`` and ``threshold`` leave out so many, ``rank`` takes it as prior, ``mixture``
            starts from it.
        samples: How many samples the data have, where something is remembered of each: for the rule
            ``threshold``, and for ``bank`` and ``shared-neighbors``. Their ids are 0 … samples - 1.

    Raises:
        ValueError: For names that do not exist and numbers out of range.

    Example:
        >>> FalseNegatives("ring", evidence="four-views", share=0.05).needs_ids
        False
        >>> FalseNegatives("ring", evidence="bank", samples=50_000).needs_ids
        True
    """

    rule: Rule
    evidence: Evidence = "similarity"
    share: float = 0.1
    samples: int | None = None

    def __post_init__(self) -> None:
        choose("false_negatives", self.rule, get_args(Rule))
        choose("evidence", self.evidence, get_args(Evidence))
        number("false_negative_share", self.share, above=0, below=1)
        if self.samples is not None and (type(self.samples) is not int or self.samples < 1):
            raise ValueError(
                f"expected samples to be a whole number of at least 1, got {self.samples!r}; pass "
                "how many samples the data have"
            )

    @property
    def needs_features(self) -> bool:
        """Whether it has to be told the encoder's features of every batch."""
        return self.evidence in ("bank", "shared-neighbors")

    @property
    def needs_ids(self) -> bool:
        """Whether it remembers something of each sample."""
        return self.needs_features or self.rule == "threshold"

    @property
    def needs_two_views(self) -> bool:
        """Whether it has to see both views of every sample."""
        return self.evidence == "four-views"


def four_views(first: Tensor, second: Tensor) -> Tensor:
    """Descriptors whose inner product is the similarity averaged over the four pairs of views.

    (f_i0 + f_i1)/2 · (f_j0 + f_j1)/2 = mean over views a of i and b of j of f_a · f_b

    Args:
        first: f of the first views, shape (N, D).
        second: f of the second views, shape (N, D).

    Returns:
        Shape (N, D).
    """
    return (first + second) / 2


def shared_neighbors(units: Tensor, bank: Tensor, known: Tensor, k: int) -> Tensor:
    """Descriptors whose inner product is the share of nearest neighbors that two samples share.

    Args:
        units: Unit vectors of N samples, shape (N, F).
        bank: Unit vectors of R samples, of which the neighbors are, shape (R, F).
        known: Which of these are known, boolean, shape (R,).
        k: Neighbors of each; a sample in the bank is its own neighbor.

    Returns:
        1/√k for each of a sample's k nearest, 0 elsewhere, shape (N, R).
    """
    k = min(k, bank.shape[0])
    alike = torch.where(known, units @ bank.T, -torch.inf)  # (N, R)
    nearest = alike.topk(k, dim=1).indices
    found = known[nearest].to(units.dtype) / math.sqrt(k)
    return torch.zeros_like(alike).scatter(1, nearest, found)


def standing(evidence: Tensor, negatives: Tensor) -> Tensor:
    """Where each negative stands among its anchor's, from 0 for the least to 1 for the most alike.

    Φ_ij = (how many are below + how many are not above) / 2n: equals, up to rounding, share their
    place, such as the two views of a sample where both are judged alike.

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
    rounding = noise(evidence.dtype) * size
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
        limit: λ, shape (B,); see :class:`Thresholds`.

    Returns:
        1 where e_ij ≤ λ_i, up to rounding, and 0 elsewhere, shape (B, M).
    """
    return (evidence <= limit[:, None] + noise(evidence.dtype)).to(evidence.dtype)


def rank(
    evidence: Tensor, negatives: Tensor, *, share: float, separation: float = SEPARATION
) -> Tensor:
    """The probability that a negative is a true one, given its rank among the anchor's negatives.

    Two densities, mirrored: of true negatives φ⁻ = 2 (α (1 - Φ) + (1 - α) Φ) φ, of false ones
    φ⁺ = 2 (α Φ + (1 - α) (1 - Φ)) φ. What is seen is their mixture, τ⁻ φ⁻ + τ⁺ φ⁺, whose
    distribution function is b Φ + (1 - b) Φ², b = 2 (α τ⁻ + (1 - α) τ⁺). It is known from the
    ranks, which gives Φ; then p = τ⁻ φ⁻ / (τ⁻ φ⁻ + τ⁺ φ⁺).

    Args:
        evidence: e, shape (B, M); only its order within a row matters.
        negatives: Boolean, shape (B, M).
        share: τ⁺ = 1 - τ⁻, the share of negatives that are false.
        separation: α, how often a false negative is more alike than a true one; between 1/2 (p is
            τ⁻ everywhere) and 1.

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
    constant = ~(high - low > noise(evidence.dtype) * size)  # and rows without negatives
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


RULES: dict[str, Callable[..., Tensor]] = {"ring": ring, "rank": rank, "mixture": mixture}


def evidence_of(block: Block) -> Tensor:
    """How alike anchors and shared candidates are, shape (B, M): see :class:`FalseNegatives`."""
    anchors, candidates = block.anchors.descriptors, block.candidates.descriptors
    if anchors is None or candidates is None:
        return block.similarity[:, : len(block.candidates.units)].detach()
    return inner_products(anchors, candidates)


def kept(block: Block, settings: FalseNegatives) -> Tensor:
    """The factor on each weight: 1 keeps a negative, 0 leaves it out.

    Args:
        block: Anchors and candidates, with the descriptors and thresholds that the settings need.
        settings: How.

    Returns:
        Shape (B, M), or (B, M + S) where anchors have S candidates of their own: these were made to
        be negatives and are kept.
    """
    evidence = evidence_of(block)
    negatives = block.negatives[:, : evidence.shape[1]]
    if settings.rule == "threshold":
        assert block.anchors.thresholds is not None
        factor = threshold(evidence, block.anchors.thresholds)
    else:
        factor = RULES[settings.rule](evidence, negatives, share=settings.share)
    own = block.negatives.shape[1] - evidence.shape[1]
    return torch.cat([factor, factor.new_ones(len(factor), own)], dim=1) if own else factor


class Memory(nn.Module):
    """A table with a row for every sample, saved with the loss.

    Args:
        samples: R, if known; else :meth:`reserve` has to be called before the first use.
    """

    rows: Tensor
    known: Tensor

    def __init__(self, samples: int | None = None) -> None:
        super().__init__()
        self.samples = samples
        self.register_buffer("rows", torch.zeros(0, 0))
        self.register_buffer("known", torch.zeros(0, dtype=torch.bool))

    def reserve(self, samples: int) -> None:
        """Say how many samples there are."""
        self.samples = samples

    def _make_room(self, like: Tensor) -> None:
        """Make the table for rows like these, shape (n, K), where there is none yet."""
        if self.samples is None:
            raise ValueError(
                "expected the number of samples of the data, got none; pass "
                "FalseNegatives(..., samples=...)"
            )
        if self.known.shape[0] == 0:
            self.rows = like.new_zeros(self.samples, like.shape[1])
            self.known = torch.zeros(self.samples, dtype=torch.bool, device=like.device)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("rows", "known"):  # the table as it was saved, however large
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name], device=self.rows.device))
        self.samples = len(self.known) or self.samples
        super()._load_from_state_dict(state, prefix, *others)


class Bank(Memory):
    """Features of each sample, averaged over its views as training goes on.

    b ← m b + (1 - m) f̄, with f̄ the mean of the unit features of a sample's views in this step; the
    first time, b = f̄. Samples are compared by b less its mean over all known samples, since
    features that are never negative point much the same way.

    Args:
        samples: R, if known.
        momentum: m.

    Example:
        >>> bank = Bank(samples=10)
        >>> bank.add(torch.tensor([4, 7]), torch.eye(2), torch.eye(2))
        >>> bank.units(torch.tensor([7, 3]))  # sample 3 is not known yet
        tensor([[-0.7071,  0.7071],
                [ 0.0000,  0.0000]])
    """

    def __init__(self, samples: int | None = None, *, momentum: float = BANK_MOMENTUM) -> None:
        super().__init__(samples)
        self.momentum = momentum

    @torch.no_grad()
    def add(self, ids: Tensor, *features: Tensor) -> None:
        """Average features in.

        Args:
            ids: Which samples, each once, shape (n,).
            features: Of each view of them, shape (n, F).
        """
        views = [normalize(view.detach().float())[0] for view in features]
        latest = torch.stack(views).mean(0)
        self._make_room(latest)
        assert self.samples is not None
        check_indices("ids", ids, self.samples)
        ids = ids.to(self.known.device)
        averaged = torch.lerp(latest, self.rows[ids], self.momentum)
        self.rows[ids] = torch.where(self.known[ids][:, None], averaged, latest)
        self.known[ids] = True

    def units(self, ids: Tensor) -> Tensor:
        """The averaged features of samples, of length 1, shape (n, F); 0 where not known."""
        return self._units()[ids]

    def neighbors(self, ids: Tensor) -> Tensor:
        """Descriptors of samples by their neighbors, shape (n, R); see :func:`shared_neighbors`."""
        everything = self._units()
        k = max(FEWEST_NEIGHBORS, len(everything) // NEIGHBOR_SHARE)
        return shared_neighbors(everything[ids], everything, self.known, k)

    def _units(self) -> Tensor:
        """All samples, centered and of length 1, shape (R, F)."""
        if self.known.shape[0] == 0:
            raise ValueError(
                "expected features of samples in the bank, got none yet; call "
                "loss.remember(ids, features) before the loss"
            )
        mean = self.rows.sum(0) / self.known.sum().clamp(min=1)
        centered = torch.where(self.known[:, None], self.rows - mean, 0.0)
        return normalize(centered)[0]


class Thresholds(Memory):
    """A threshold of each sample, learned so that a share of all other samples lie above it.

    λ_i = mean_i + c_i · deviation_i, with the mean and the standard deviation of the anchor's
    evidence in this batch. c_i is remembered; it minimizes share · c + mean over all j of
    max(x_ij - c, 0), x the evidence so standardized, by a step in every batch that shows the
    sample: c ← c - rate · (1 - a_i / share), with a_i the share of the batch's negatives above λ_i.
    It starts at the batch's own quantile.

    Args:
        samples: R, if known.
        rate: Size of a step.

    Relations:
        GloFND learns λ itself, by Adam's steps, after some epochs without. Standardized, it follows
        an encoder whose similarities change their scale from the first step on.

    Reference:
        Balmaseda et al. 2025, GloFND (arXiv 2502.20612).
    """

    def __init__(self, samples: int | None = None, *, rate: float = THRESHOLD_RATE) -> None:
        super().__init__(samples)
        self.rate = rate

    @torch.no_grad()
    def levels(self, ids: Tensor, evidence: Tensor, negatives: Tensor, share: float) -> Tensor:
        """c of some anchors, shape (B,): from the batch's quantile where it is not known.

        Args:
            ids: Which samples they show, shape (B,).
            evidence: e, shape (B, M).
            negatives: Boolean, shape (B, M).
            share: Of the negatives, that is to lie above.
        """
        self._make_room(evidence.new_zeros(1, 1))
        assert self.samples is not None
        check_indices("ids", ids, self.samples)
        ordered = torch.where(negatives, evidence, -torch.inf).sort(dim=1, descending=True).values
        above = (negatives.sum(1, keepdim=True) * share).long()  # so many are left out
        quantile = ordered.gather(1, above.clamp(max=ordered.shape[1] - 1))
        mean, deviation = _moments(evidence, negatives)
        start = torch.where(quantile.isfinite(), (quantile - mean) / deviation, 0.0)[:, 0]
        return torch.where(self.known[ids], self.rows[ids, 0].to(evidence.dtype), start)

    @torch.no_grad()
    def limits(self, levels: Tensor, evidence: Tensor, negatives: Tensor) -> Tensor:
        """λ of anchors whose c is ``levels`` (B,), shape (B,)."""
        mean, deviation = _moments(evidence, negatives)
        return (mean + levels[:, None] * deviation)[:, 0]

    @torch.no_grad()
    def stepped(self, levels: Tensor, evidence: Tensor, negatives: Tensor, share: float) -> Tensor:
        """c after a step, shape (B,)."""
        kept = threshold(evidence, self.limits(levels, evidence, negatives)) > 0
        above = (~kept & negatives).sum(1) / negatives.sum(1).clamp(min=1)
        return levels - self.rate * torch.where(negatives.any(1), 1 - above / share, 0.0)

    @torch.no_grad()
    def store(self, ids: Tensor, levels: Tensor) -> None:
        """Remember c; of several anchors that show one sample, their mean.

        Args:
            ids: Shape (N,).
            levels: c, shape (N,).
        """
        same = (ids[:, None] == ids).to(levels.dtype)  # (N, N)
        self.rows[ids, 0] = ((same @ levels) / same.sum(1)).to(self.rows.dtype)
        self.known[ids] = True


def _moments(evidence: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over each anchor's negatives, each (B, 1); the latter above 0."""
    count = negatives.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(negatives, evidence, 0.0).sum(1, keepdim=True) / count
    square = torch.where(negatives, (evidence - mean).square(), 0.0).sum(1, keepdim=True) / count
    return mean, square.sqrt().clamp(min=noise(evidence.dtype))
