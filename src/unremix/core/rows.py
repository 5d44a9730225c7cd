"""The loss of some anchors: scores → weights → objective. This is the whole method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unremix.core.pairs import Pairs
from unremix.core.problem import Options, Tile
from unremix.core.scores import Block, Vectors, inner_products, normalize
from unremix.core.weights import weights_of

# Numbers in a (B, M) array of a block. On a CPU it and a few more stay near the cores; on an
# accelerator a block should keep it busy; inside torch.compile blocks are unrolled: few are best.
BLOCK_ON_CPU, BLOCK_ELSEWHERE, BLOCK_TRACED = 2**21, 2**24, 2**26


def blocks(count: int, width: int, tile: Tile, device: torch.device) -> Iterator[slice]:
    """Cut ``count`` rows of ``width`` numbers into blocks.

    Args:
        count: Rows.
        width: Numbers in a row.
        tile: Rows per block; None for all at once, ``auto`` by what suits the device.
        device: Where they are.
    """
    if tile == "auto":
        size = BLOCK_ON_CPU if device.type == "cpu" else BLOCK_ELSEWHERE
        size = BLOCK_TRACED if torch.compiler.is_compiling() else size
        tile = max(64, size // max(width, 1))
    step = count if tile is None else min(tile, count)
    return (slice(first, min(first + step, count)) for first in range(0, count, max(step, 1)))


@dataclass(frozen=True)
class Problem:
    """A loss of N anchors, apart from what is differentiated.

    Args:
        pairs: Positives and negatives.
        options: How.
        anchors: N views.
        candidates: M views.
        own: The anchors' own candidates, of shape (N, S, ...), where there are any.
        own_factor: Multiplies their logits.
    """

    pairs: Pairs
    options: Options
    anchors: Vectors
    candidates: Vectors
    own: Vectors | None = None
    own_factor: float = 1.0

    def __getitem__(self, anchors: slice) -> Problem:
        """The same for some of the anchors."""
        return replace(
            self,
            pairs=self.pairs[anchors],
            anchors=self.anchors[anchors],
            own=None if self.own is None else self.own[anchors],
        )

    def blocks(self) -> Iterator[slice]:
        """The anchors, a block at a time."""
        count, width = self.pairs.num_anchors, self.pairs.num_candidates
        if self.own is not None:
            width += self.own.units.shape[1]
        return blocks(count, width, self.options.tile, self.anchors.units.device)

    def products(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """The logits but for their factors, shape (N, M).

        Args:
            anchors: What the logits of the anchors are made of, f or z, shape (N, D).
            candidates: Likewise of the candidates, shape (M, D).
        """
        if self.own is None:
            return inner_products(anchors, candidates)
        own = self.own.units
        if self.options.products == "dot":
            own = own * self.own.lengths[..., None]
        return inner_products(anchors, candidates, own)

    def block(self, products: Tensor, anchors: Tensor, candidates: Tensor) -> Block:
        """What the scores are computed from; the arguments are those of :meth:`products`."""
        weighting, own = self.options.weighting, self.own
        similarity = products
        if self.options.products == "dot" and (weighting.components or weighting.filter):
            units = (self.anchors.units, self.candidates.units)
            if weighting.similarity_gradient:
                units = (normalize(anchors)[0], normalize(candidates)[0])
            similarity = inner_products(*units, None if own is None else own.units)
        negatives = self.pairs.negatives()
        count = self.pairs.count_of(negatives)
        if own is not None:
            further = negatives.new_ones(own.units.shape[:2])
            negatives, count = torch.cat([negatives, further], dim=1), count + further.shape[1]
        return Block(
            anchors=self.anchors,
            candidates=self.candidates,
            own=own,
            negatives=negatives,
            count=count,
            non_negatives=self.pairs.non_negatives,
            similarity=similarity if weighting.similarity_gradient else similarity.detach(),
            bias=self.options.bias,
        )


def rows_loss(
    problem: Problem,
    anchors: Tensor,
    candidates: Tensor,
    mix: Tensor,
    temperature: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """The loss of the anchors of a problem: scores → weights → objective.

    Args:
        problem: Everything that is not differentiated.
        anchors: What the logits of the anchors are made of, f or z, shape (N, D).
        candidates: Likewise of the candidates, shape (M, D).
        mix: λ, shape (K,).
        temperature: τ.

    Returns:
        The sum of the anchors' losses, and how many of them have negatives but no weight.
    """
    pairs, options = problem.pairs, problem.options
    weighting, objective = options.weighting, options.objective
    products = problem.products(anchors, candidates)  # (N, M)
    block = problem.block(products, anchors, candidates)
    weights = weights_of(block, mix, weighting, temperature)
    logits = products / temperature
    if problem.own_factor != 1:
        shared, own = logits.split([len(candidates), logits.shape[1] - len(candidates)], dim=1)
        logits = torch.cat([shared, problem.own_factor * own], dim=1)
    count = block.count[:, 0]
    losses = objective.against_positives(
        objective.sum_negatives(logits, weights, block.negatives),
        logits.gather(1, pairs.positives),
        pairs.normalized_shares(logits.dtype),
        count,
        -1 / temperature,
    )
    weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)
    if weighting.mass == "none":  # else such rows are uniform
        weightless = ((count > 0) & (weights.sum(1) == 0)).sum()
    return losses.sum(), weightless
