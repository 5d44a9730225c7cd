"""What is remembered of each sample: features averaged over the training, and thresholds.

Letters: N samples of a batch, M candidates, R samples of the data, F dimensions of a feature.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unremix.core.checks import check_indices
from unremix.core.precision import noise, normalize
from unremix.signals.rules import threshold

BANK_MOMENTUM = 0.5  # of averaged features; the encoder moves on, so old ones are forgotten soon
THRESHOLD_RATE = 0.1  # step of a learned threshold, in standard deviations
NEIGHBOR_SHARE = 10  # one in ten samples is a neighbor
FEWEST_NEIGHBORS = 10


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
    similarity = torch.where(known, units @ bank.T, -torch.inf)  # (N, R)
    nearest = similarity.topk(k, dim=1).indices
    values = known[nearest].to(units.dtype) / math.sqrt(k)
    return torch.zeros_like(similarity).scatter(1, nearest, values)


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
    """Features of each sample, averaged over its views during training.

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
        levels = levels.to(self.rows.dtype)
        nothing = self.rows.new_zeros(len(self.rows))
        total = nothing.index_add(0, ids, levels)
        count = nothing.index_add(0, ids, torch.ones_like(levels))
        self.rows[ids, 0] = total[ids] / count[ids]
        self.known[ids] = True


def _moments(evidence: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over each anchor's negatives, each (B, 1); the latter above 0."""
    count = negatives.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(negatives, evidence, 0.0).sum(1, keepdim=True) / count
    square = torch.where(negatives, (evidence - mean).square(), 0.0).sum(1, keepdim=True) / count
    return mean, square.sqrt().clamp(min=noise(evidence))
