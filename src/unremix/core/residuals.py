"""δ of all views of a problem, a block at a time; see :func:`unremix.core.scores.residuals`.

Of anchors the classes are their negatives; of a candidate, the anchors that it is a negative of; of
an anchor's own candidates, all anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unremix.core.checks import checks_on
from unremix.core.engines import Engine
from unremix.core.pairs import Pairs
from unremix.core.problem import Options, Tile
from unremix.core.scores import Vectors

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


def with_residuals(
    anchors: Vectors,
    candidates: Vectors,
    own: Vectors | None,
    pairs: Pairs,
    options: Options,
    temperature: Tensor | float,
    engine: Engine,
) -> tuple[Vectors, Vectors, Vectors | None]:
    """The same views with δ, derived where they do not bring it."""
    shared = candidates is anchors
    settings = (pairs, options, temperature, engine)
    if anchors.residuals is None:
        delta = anchor_residuals(anchors, candidates, *settings, own=own)
        anchors = replace(anchors, residuals=delta)
    if shared:
        candidates = anchors
    elif candidates.residuals is None:
        delta = candidate_residuals(candidates, anchors, *settings)
        candidates = replace(candidates, residuals=delta)
    if own is not None and own.residuals is None:
        own = replace(own, residuals=own_residuals(own, anchors, options, engine))
    return anchors, candidates, own


def anchor_residuals(
    anchors: Vectors,
    candidates: Vectors,
    pairs: Pairs,
    options: Options,
    temperature: Tensor | float,
    engine: Engine,
    own: Vectors | None = None,
) -> Tensor:
    """δ of the anchors, shape (N, D)."""

    def target(which: slice) -> Tensor | None:
        if options.gradient == "pseudo-label":
            return None
        _check_positives(pairs.shares[which].sum(1), options)
        return pairs.targets(which, dtype=anchors.units.dtype)

    return _in_blocks(
        anchors, candidates, pairs.negatives, target, options, temperature, engine, own
    )


def candidate_residuals(
    candidates: Vectors,
    anchors: Vectors,
    pairs: Pairs,
    options: Options,
    temperature: Tensor | float,
    engine: Engine,
    *,
    offset: int = 0,
) -> Tensor:
    """δ of some candidates, from ``offset`` on, shape (C, D); ``anchors`` are all of ``pairs``."""

    def columns(which: slice) -> slice:
        return slice(which.start + offset, which.stop + offset)

    def classes(which: slice) -> Tensor:
        return pairs.negatives(candidates=columns(which)).T

    def target(which: slice) -> Tensor | None:
        if options.gradient == "pseudo-label":
            return None
        share = pairs.positive_mask(columns(which)).T.to(candidates.units.dtype)
        count = share.sum(1, keepdim=True)
        _check_positives(count, options)
        return share / count.clamp(min=1)

    return _in_blocks(candidates, anchors, classes, target, options, temperature, engine)


def own_residuals(own: Vectors, anchors: Vectors, options: Options, engine: Engine) -> Tensor:
    """δ of the anchors' own candidates, shape (N, S, D): every anchor is a class of each."""
    if options.gradient == "nt-xent":
        raise ValueError(
            "expected a positive for every view with gradient='nt-xent', got own candidates, which "
            "have none; use gradient='pseudo-label'"
        )
    flat = Vectors(own.units.flatten(0, 1), own.lengths.flatten())
    count = len(anchors.units)

    def classes(which: slice) -> Tensor:
        shape = (which.stop - which.start, count)
        return torch.ones(shape, dtype=torch.bool, device=own.units.device)

    delta = _in_blocks(
        flat, anchors, classes, lambda _: None, options, options.posterior_temperature, engine
    )
    return delta.view_as(own.units)


def _in_blocks(
    views: Vectors,
    classes: Vectors,
    is_class: Callable[[slice], Tensor],
    target: Callable[[slice], Tensor | None],
    options: Options,
    temperature: Tensor | float,
    engine: Engine,
    own: Vectors | None = None,
) -> Tensor:
    if options.gradient == "pseudo-label":
        temperature = options.posterior_temperature
    elif isinstance(temperature, Tensor):
        temperature = temperature.detach()
    parts = []
    for which in blocks(len(views.units), len(classes.units), options.tile, views.units.device):
        mask, label = is_class(which), target(which)
        further = None if own is None else own.units[which]
        if label is not None:
            mask = mask | (label > 0)
        if further is not None:
            mask = torch.cat([mask, mask.new_ones(further.shape[:2])], dim=1)
            label = (
                None
                if label is None
                else torch.cat([label, label.new_zeros(further.shape[:2])], dim=1)
            )
        parts.append(
            engine.residuals(
                views.units[which],
                views.lengths[which],
                classes.units,
                mask,
                temperature=temperature,
                target=label,
                own=further,
            )
        )
    return torch.cat(parts)


def _check_positives(mass: Tensor, options: Options) -> None:
    """Refuse ``nt-xent`` where a view has no positive, in (N,) sums of shares."""
    if options.gradient != "nt-xent" or not checks_on(options.check, mass):
        return
    lacking = int((mass == 0).sum())
    if lacking:
        raise ValueError(
            f"expected a positive for every view with gradient='nt-xent', got {lacking} views "
            "without one (old keys of a queue have none); use gradient='pseudo-label'"
        )
