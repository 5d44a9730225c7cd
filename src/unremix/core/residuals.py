"""δ of all views of a problem, a block at a time; see :func:`unremix.core.scores.residuals`.

Of anchors the classes are their negatives; of a candidate, the anchors that it is a negative of; of
an anchor's own candidates, all anchors.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unremix.core.checks import checks_on
from unremix.core.engines import Engine
from unremix.core.gather import Share, gather_rows
from unremix.core.pairs import Pairs
from unremix.core.problem import Options, Tile
from unremix.core.rows import Problem, blocks
from unremix.core.scores import Vectors


def derive_residuals(
    problem: Problem,
    temperature: Tensor | float,
    engine: Engine,
    share: Share | None = None,
    everyone: Vectors | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """δ of anchors (N, D), of candidates (M, D) and of the anchors' own candidates (N, S, D).

    Args:
        problem: The problem.
        temperature: τ, which ``nt-xent`` takes as t.
        engine: Evaluates blocks.
        share: This process's part, where there are several.
        everyone: The anchors of all processes, where all of them hold the same candidates: each
            process then computes δ of its part of the candidates and gathers the rest. The
            candidates themselves where every view is both.
    """
    options, anchors, candidates = problem.options, problem.anchors, problem.candidates
    if options.gradient == "pseudo-label":
        temperature = options.posterior_temperature
    elif problem.own is not None:
        raise ValueError(
            "expected a positive for every view with gradient='nt-xent', got own candidates, which "
            "have none; use gradient='pseudo-label'"
        )
    elif isinstance(temperature, Tensor):
        temperature = temperature.detach()
    delta = others = _of_anchors(problem, temperature, engine)
    if everyone is None or share is None:
        if candidates is not anchors:
            everything = slice(0, len(candidates.units))
            others = _of_candidates(problem, everything, temperature, engine)
    elif everyone is candidates:  # of all processes first all first views, then all second ones
        others = torch.cat([gather_rows(half, share) for half in delta.chunk(2)])
    else:
        whole = replace(problem, pairs=_gather_pairs(problem.pairs, share), anchors=everyone)
        work = share.of_work(len(candidates.units))
        others = gather_rows(_of_candidates(whole, work.held, temperature, engine), work)
    if problem.own is None:
        return delta, others, None
    classes = anchors if everyone is None else everyone
    return delta, others, _of_own(problem.own, classes, options.tile, temperature, engine)


def _of_anchors(problem: Problem, temperature: Tensor | float, engine: Engine) -> Tensor:
    """δ of the anchors, shape (N, D)."""
    parts = []
    for which in problem.blocks():
        part = problem[which]
        views, pairs, own, target = part.anchors, part.pairs, None, None
        is_class = pairs.negatives()
        if problem.options.gradient == "nt-xent":
            _check_positives(pairs.shares.sum(1), problem.options)
            target = pairs.targets(views.units.dtype)
            is_class = is_class | (target > 0)
        if part.own is not None:
            own = part.own.units
            is_class = torch.cat([is_class, is_class.new_ones(own.shape[:2])], dim=1)
        parts.append(
            engine.residuals(
                views.units, views.lengths, part.candidates.units, is_class,
                temperature=temperature, target=target, own=own,
            )
        )  # fmt: skip
    return torch.cat(parts)


def _of_candidates(
    problem: Problem, some: slice, temperature: Tensor | float, engine: Engine
) -> Tensor:
    """δ of some of the candidates, shape (C, D)."""
    classes, options = problem.anchors.units, problem.options
    count = some.stop - some.start
    parts = []
    for which in blocks(count, len(classes), options.tile, classes.device):
        columns = slice(some.start + which.start, some.start + which.stop)
        views, target = problem.candidates[columns], None
        is_class = problem.pairs.negatives(candidates=columns).T.contiguous()  # else slow
        if options.gradient == "nt-xent":
            positive = problem.pairs.positive_mask(columns).T.to(classes.dtype)
            number = positive.sum(1, keepdim=True)
            _check_positives(number, options)
            target = positive / number.clamp(min=1)
            is_class = is_class | (target > 0)
        parts.append(
            engine.residuals(
                views.units, views.lengths, classes, is_class, temperature=temperature,
                target=target,
            )
        )  # fmt: skip
    return torch.cat(parts)


def _of_own(
    own: Vectors, classes: Vectors, tile: Tile, temperature: Tensor | float, engine: Engine
) -> Tensor:
    """δ of the anchors' own candidates, shape (N, S, D): every anchor is a class of each."""
    units, lengths, others = own.units.flatten(0, 1), own.lengths.flatten(), classes.units
    parts = []
    for which in blocks(len(units), len(others), tile, units.device):
        some = units[which]
        is_class = torch.ones(len(some), len(others), dtype=torch.bool, device=units.device)
        parts.append(
            engine.residuals(some, lengths[which], others, is_class, temperature=temperature)
        )
    return torch.cat(parts).view_as(own.units)


def _gather_pairs(pairs: Pairs, share: Share) -> Pairs:
    """The pairs of the anchors of all processes, of which each knows its own."""
    excluded = pairs.excluded
    if excluded is not None and excluded.shape[0] > 1:
        excluded = gather_rows(excluded.to(torch.uint8), share).bool()
    return Pairs(
        gather_rows(pairs.positives, share),
        gather_rows(pairs.shares, share),
        gather_rows(pairs.anchor_ids, share),
        pairs.candidate_ids,
        excluded,
    )


def _check_positives(mass: Tensor, options: Options) -> None:
    """Refuse ``nt-xent`` where a view has no positive, given sums of shares (N,)."""
    lacking = int((mass == 0).sum()) if checks_on(options.check, mass) else 0
    if lacking:
        raise ValueError(
            f"expected a positive for every view with gradient='nt-xent', got {lacking} views "
            "without one (old keys of a queue have none); use gradient='pseudo-label'"
        )
