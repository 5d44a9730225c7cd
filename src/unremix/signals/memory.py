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
                "expected the number of samples, got none; pass FalseNegatives(..., samples=...)"
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
        check_indices("ids", ids, len(self.known))
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
                "expected features of samples in the bank, got none; call loss.remember() first"
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
    def find(
        self, ids: Tensor, evidence: Tensor, negatives: Tensor, share: float, *, update: bool
    ) -> tuple[Tensor, Tensor]:
        """c and λ of some anchors, both (B,); :meth:`store` remembers c.

        Args:
            ids: Which samples they show, shape (B,).
            evidence: e, shape (B, M).
            negatives: Boolean, shape (B, M).
            share: Of the negatives, that is to lie above.
            update: Whether c makes its step first.
        """
        self._make_room(evidence.new_zeros(1, 1))
        check_indices("ids", ids, len(self.known))
        count = negatives.sum(1, keepdim=True)
        mean = torch.where(negatives, evidence, 0.0).sum(1, keepdim=True) / count.clamp(min=1)
        square = torch.where(negatives, (evidence - mean).square(), 0.0).sum(1, keepdim=True)
        deviation = (square / count.clamp(min=1)).sqrt().clamp(min=noise(evidence))
        ordered = torch.where(negatives, evidence, -torch.inf).sort(dim=1, descending=True).values
        above = (count * share).long()  # so many are left out
        quantile = ordered.gather(1, above.clamp(max=ordered.shape[1] - 1))
        start = torch.where(quantile.isfinite(), (quantile - mean) / deviation, 0.0)
        level = torch.where(self.known[ids, None], self.rows[ids].to(evidence.dtype), start)
        if update:
            kept = threshold(evidence, (mean + level * deviation)[:, 0]) > 0
            over = (~kept & negatives).sum(1, keepdim=True) / count.clamp(min=1)  # a
            level = level - self.rate * torch.where(count > 0, 1 - over / share, 0.0)
        return level[:, 0], (mean + level * deviation)[:, 0]

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
