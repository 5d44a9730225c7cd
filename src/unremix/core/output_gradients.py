"""δ of all views of a problem, block by block; see :func:`unremix.core.scores.output_gradients`.

The classes of an anchor are its negatives; of a candidate, the anchors that it is a negative of; of
an anchor's own candidate, all anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unremix.core.checks import checks_on
from unremix.core.engines import Engine
from unremix.core.gather import Part, gather_rows
from unremix.core.options import Options, Tile
from unremix.core.pairs import Pairs
from unremix.core.problem import Comparison, Problem, blocks
from unremix.core.views import Vectors, Views, describe

# Of some views: which classes they have, boolean, and for nt-xent the target; both (B, M).
Classes = Callable[[slice], tuple[Tensor, Tensor | None]]


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
    classes = anchors.units  # of candidates: the anchors of all processes
    derive = partial(_derive, engine, temperature, options.tile)
    own = None if problem.own is None else problem.own.units
    delta = others = derive(anchors, candidates.units, _of_anchors(problem), own)
    if everyone is None or part is None:
        if not shared:
            others = derive(candidates, classes, _of_candidates(problem))
    elif everyone is comparison.candidates:  # of all first all first views, then all second ones
        classes = candidates.units
        others = torch.cat([gather_rows(half, part) for half in delta.chunk(2)])
    else:
        classes = _at_last_layer(everyone, describe(everyone)[1]).units
        whole = replace(problem, pairs=_gather_pairs(problem.pairs, part))
        work = part.of_work(len(candidates.units))
        held = derive(candidates[work.held], classes, _of_candidates(whole, work.offset))
        others = gather_rows(held, work)
    of_own = problem.own
    if of_own is not None:
        views = Vectors(of_own.units.flatten(0, 1), of_own.lengths.flatten())
        everything = torch.ones(1, len(classes), dtype=torch.bool, device=classes.device)
        found = derive(views, classes, lambda which: (everything, None))
        of_own = replace(of_own, output_gradients=found.view_as(of_own.units))
    return replace(
        problem,
        anchors=replace(problem.anchors, output_gradients=delta),
        candidates=replace(problem.candidates, output_gradients=others),
        own=of_own,
    )


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
    classes_of: Classes,
    own: Tensor | None = None,
) -> Tensor:
    """δ of N views, shape (N, D), from f of M classes (M, D) and of those of one view (N, S, D)."""
    width = len(classes) + (0 if own is None else own.shape[1])
    parts = []
    for which in blocks(len(views.units), width, tile, classes.device):
        is_class, target = classes_of(which)
        parts.append(
            engine.output_gradients(
                views.units[which], views.lengths[which], classes, is_class,
                temperature=temperature, target=target, own=None if own is None else own[which],
            )
        )  # fmt: skip
    return torch.cat(parts)


def _of_anchors(problem: Problem) -> Classes:
    """The negatives of each anchor; with ``nt-xent`` its positives too, which are the target."""

    def classes(which: slice) -> tuple[Tensor, Tensor | None]:
        pairs, target = problem.pairs[which], None
        is_class = pairs.negatives()
        if problem.options.gradient == "nt-xent":
            _check_positives(pairs.shares.sum(1), problem.options)
            target = pairs.targets(problem.anchors.units.dtype)
            is_class = is_class | (target > 0)
        if problem.own is not None:
            own = is_class.new_ones(len(is_class), problem.own.units.shape[1])
            is_class = torch.cat([is_class, own], dim=1)
        return is_class, target

    return classes


def _of_candidates(problem: Problem, first: int = 0) -> Classes:
    """The anchors that each candidate from number ``first`` on is a negative of; and likewise."""

    def classes(which: slice) -> tuple[Tensor, Tensor | None]:
        columns, target = slice(first + which.start, first + which.stop), None
        is_class = problem.pairs.negatives(candidates=columns).T.contiguous()  # softmax over rows
        if problem.options.gradient == "nt-xent":
            positive = problem.pairs.positive_mask(columns).T.to(problem.anchors.units.dtype)
            count = positive.sum(1, keepdim=True)
            _check_positives(count, problem.options)
            target = positive / count.clamp(min=1)
            is_class = is_class | (target > 0)
        return is_class, target

    return classes


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
