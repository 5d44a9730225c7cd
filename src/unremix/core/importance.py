"""All scores and weights of a batch at once, for analysis."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unremix.core.checks import checks_on
from unremix.core.contrast import make_problem
from unremix.core.engines import eager
from unremix.core.options import Options
from unremix.core.problem import Comparison
from unremix.core.scores import PAPER_COMPONENTS
from unremix.core.weights import mix_or_equal, name_of, raw_scores, weigh


@dataclass(frozen=True)
class Importance:
    """Scores and weights of a batch: A anchors against C candidates, each (A, C).

    With layout ``both`` A = C = 2N, views stacked [z0; z1]; with ``one-way`` A = C = N, anchors z0
    and candidates z1. All are 0 where there is no negative.

    Args:
        scores: u, s, r and every further component of the loss, by name.
        weights: w.
        negatives: Which candidates are negatives, boolean.
        positives: Which candidates are positives, boolean.
        evidence: How similar samples are, where ``false_negatives`` is set.
        keep: The factor on the weights, likewise.
    """

    scores: dict[str, Tensor]
    weights: Tensor
    negatives: Tensor
    positives: Tensor
    evidence: Tensor | None = None
    keep: Tensor | None = None

    @property
    def uncertainty(self) -> Tensor:
        """u, shape (A, C)."""
        return self.scores["uncertainty"]

    @property
    def similarity(self) -> Tensor:
        """s, shape (A, C)."""
        return self.scores["similarity"]

    @property
    def representativeness(self) -> Tensor:
        """r, shape (A, C)."""
        return self.scores["representativeness"]


@torch.no_grad()
def examine(
    comparison: Comparison, options: Options, temperature: Tensor | float, mix: Tensor | None
) -> Importance:
    """Scores and weights; the arguments are those of :func:`unremix.core.contrast.contrast`.

    Raises:
        ValueError: If weights overflow.
    """
    weighting, filtering = options.weighting, options.weighting.filter
    wanted = {name_of(each): each for each in (*PAPER_COMPONENTS, *weighting.components)}
    everything = replace(weighting, components=tuple(wanted.values()))
    problem, vectors = make_problem(
        comparison, replace(options, weighting=everything), temperature, eager.ENGINE
    )
    _, block = problem.compare(*vectors)
    scores = dict(zip(wanted, raw_scores(block, everything), strict=True))
    keep = None if filtering is None else filtering(block)
    weights = weigh(
        [scores[name_of(each)] for each in weighting.components],
        block.negatives,
        block.count,
        mix_or_equal(mix, weighting, block.similarity),
        weighting,
        temperature,
        keep,
    )
    if checks_on(options.check, weights) and not bool(weights.isfinite().all()):
        raise ValueError(
            "expected finite weights, got NaN or infinity from finite input: numbers overflow; "
            "scale embeddings and inputs down"
        )
    return Importance(
        {name: torch.where(block.negatives, each, 0.0) for name, each in scores.items()},
        weights=weights,
        negatives=block.negatives,
        positives=comparison.pairs.positive_mask(),
        evidence=None if filtering is None else filtering.evidence_of(block),
        keep=keep,
    )
