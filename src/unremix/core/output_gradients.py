"""δ of all views of a problem, block by block; see :func:`unremix.core.scores.output_gradients`.

The classes of an anchor are its negatives; of a candidate, the anchors that it is a negative of; of
an anchor's own candidate, all anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from unremix.core.checks import checks_on
from unremix.core.engines import Engine
from unremix.core.gather import Part, gather_rows
from unremix.core.options import Options, Tile
from unremix.core.pairs import EVERYTHING, Pairs
from unremix.core.problem import Comparison, Problem, blocks
from unremix.core.views import Vectors, Views, describe

Posterior = tuple[Tensor, Tensor | None]  # logits and, for nt-xent, the target; both (B, M)


def with_output_gradients(
    problem: Problem, comparison: Comparison, temperature: Tensor | float, engine: Engine
) -> Problem:
    """The problem with δ of anchors (N, D), of candidates (M, D) and of own candidates (N, S, D).

    Where processes share a loss, each computes δ of its part of the candidates and gathers the
    rest. ``nt-xent`` takes the temperature τ as t.
    """
    options, part, everyone = problem.options, comparison.part, comparison.everyone
    if options.gradient == "pseudo-label":
        temperature = options.posterior_temperature
    elif problem.own is not None:
        raise ValueError(
            "expected a positive for every view with gradient='nt-xent', got own candidates, which "
            "have none; use gradient='pseudo-label'"
        )
    elif isinstance(temperature, Tensor):
        temperature = temperature.detach()
    shared = comparison.candidates is comparison.anchors
    anchors = _at_last_layer(comparison.anchors, problem.anchors)
    candidates = anchors if shared else _at_last_layer(comparison.candidates, problem.candidates)
    there = replace(problem, anchors=anchors, candidates=candidates)
    posteriors = Posteriors(there, temperature)
    if problem.own is None and len(list(problem.blocks())) == 1:  # kept, since needed repeatedly
        there = replace(there, similarity=anchors.units @ candidates.units.T)
        posteriors = replace(posteriors, known=Posteriors(there, temperature).logits())
    derive = partial(_derive, engine, temperature, options.tile)
    own = None if problem.own is None else problem.own.units
    delta = others = derive(anchors, candidates.units, posteriors.of_anchors, own)
    classes = anchors.units  # of candidates: the anchors of all processes
    if everyone is None or part is None:
        if not shared:
            others = derive(candidates, classes, posteriors.of_candidates)
    elif everyone is comparison.candidates:  # of all first all first views, then all second ones
        classes = candidates.units
        others = torch.cat([gather_rows(half, part) for half in delta.chunk(2)])
    else:
        all_anchors = _at_last_layer(everyone, describe(everyone)[1])
        classes, pairs = all_anchors.units, _gather_pairs(problem.pairs, part)
        whole = replace(there, anchors=all_anchors, pairs=pairs, similarity=None)
        work = part.of_work(len(candidates.units))
        posteriors = Posteriors(whole, temperature, first=work.offset)
        held = derive(candidates[work.held], classes, posteriors.of_candidates)
        others = gather_rows(held, work)
    of_own = problem.own
    if of_own is not None:
        views = Vectors(of_own.units.flatten(0, 1), of_own.lengths.flatten())
        scaled = views.units / temperature
        found = derive(views, classes, lambda which: (scaled[which] @ classes.T, None))
        of_own = replace(of_own, output_gradients=found.view_as(of_own.units))
    same = anchors is problem.anchors and candidates is problem.candidates
    return replace(
        problem,
        anchors=replace(problem.anchors, output_gradients=delta),
        candidates=replace(problem.candidates, output_gradients=others),
        own=of_own,
        similarity=there.similarity if same else None,
    )


@dataclass(frozen=True)
class Posteriors:
    """What the pseudo-posteriors of anchors and candidates are made of.

    Args:
        problem: Anchors and candidates, as they come from the last layer.
        temperature: t.
        first: The candidate from which candidates are counted.
        known: What :meth:`logits` returns for all, where it fits into one block.
    """

    problem: Problem
    temperature: Tensor | float
    first: int = 0
    known: Tensor | None = None

    def logits(self, anchors: slice = EVERYTHING, candidates: slice = EVERYTHING) -> Tensor:
        """f · f / t of anchors and candidates, -∞ where they are no classes of each other."""
        if self.known is not None:
            return self.known[anchors, candidates]
        some = self.problem[anchors]
        similarity, pairs = some.similarity, some.pairs
        if similarity is None:
            similarity = some.anchors.units @ some.candidates.units[candidates].T
        is_class = pairs.negatives(candidates=candidates)
        if some.options.gradient == "nt-xent":
            is_class = is_class | pairs.positive_mask(candidates)
        return torch.where(is_class, similarity, -torch.inf).div_(self.temperature)

    def of_anchors(self, which: slice) -> Posterior:
        """Over their negatives; with ``nt-xent`` over their positives too, which are the target."""
        some, logits, target = self.problem[which], self.logits(which), None
        if some.options.gradient == "nt-xent":
            _check_positives(some.pairs.shares.sum(1), some.options)
            target = some.pairs.targets(logits.dtype)
        if some.own is not None:
            of_own = torch.einsum("bd,bsd->bs", some.anchors.units, some.own.units)
            logits = torch.cat([logits, of_own / self.temperature], dim=1)
        return logits, target

    def of_candidates(self, which: slice) -> Posterior:
        """Over the anchors that they are negatives of; with ``nt-xent`` likewise."""
        columns, target = slice(self.first + which.start, self.first + which.stop), None
        logits = self.logits(candidates=columns).T.contiguous()  # softmax over rows
        if self.problem.options.gradient == "nt-xent":
            positive = self.problem.pairs.positive_mask(columns).T.to(logits.dtype)
            count = positive.sum(1, keepdim=True)
            _check_positives(count, self.problem.options)
            target = positive / count.clamp(min=1)
        return logits, target


def _at_last_layer(views: Views, known: Vectors) -> Vectors:
    """What is known of the views, or of the last layer's output for them, where that is another."""
    if views.outputs is None:
        return known
    outputs = views.outputs.detach().to(views.embeddings.dtype)
    return describe(replace(views, embeddings=outputs))[1]


def _derive(
    engine: Engine,
    temperature: Tensor | float,
    tile: Tile,
    views: Vectors,
    classes: Tensor,
    posterior_of: Callable[[slice], Posterior],
    own: Tensor | None = None,
) -> Tensor:
    """δ of N views, shape (N, D), from f of M classes (M, D) and of those of one view (N, S, D)."""
    width = len(classes) + (0 if own is None else own.shape[1])
    parts = []
    for which in blocks(len(views.units), width, tile, classes.device):
        logits, target = posterior_of(which)
        parts.append(
            engine.output_gradients(
                views.units[which], views.lengths[which], classes, logits,
                temperature=temperature, target=target, own=None if own is None else own[which],
            )
        )  # fmt: skip
    return torch.cat(parts)


def _gather_pairs(pairs: Pairs, part: Part) -> Pairs:
    """The pairs of the anchors of all processes, of which each knows its own."""
    excluded = pairs.excluded
    if excluded is not None and excluded.shape[0] > 1:
        excluded = gather_rows(excluded.to(torch.uint8), part).bool()
    return Pairs(
        gather_rows(pairs.positives, part),
        gather_rows(pairs.shares, part),
        gather_rows(pairs.anchor_ids, part),
        pairs.candidate_ids,
        excluded,
    )


def _check_positives(shares: Tensor, options: Options) -> None:
    """Refuse ``nt-xent`` where a view has no positive, given the sum of each view's shares."""
    lacking = int((shares == 0).sum()) if checks_on(options.check, shares) else 0
    if lacking:
        raise ValueError(
            f"expected a positive for every view with gradient='nt-xent', got {lacking} views "
            "without one (old keys of a queue have none); use gradient='pseudo-label'"
        )
