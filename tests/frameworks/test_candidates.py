"""Who is whose positive and negative: queues, aims, negatives of one anchor alone."""

from __future__ import annotations

from typing import Any

import reference
import torch
from batches import assert_close
from building import aims
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.core.contrast import make_problem
from unremix.core.engines import eager
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.views import ExtraNegatives, Views


@st.composite
def queues(draw: st.DrawFn) -> dict[str, Any]:
    n, q = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    ids = st.integers(0, 5)  # few of them: the batch and the queue repeat samples
    found: dict[str, Any] = {
        "sample_ids": torch.tensor(draw(st.lists(ids, min_size=n, max_size=n))),
        "queue_ids": torch.tensor(draw(st.lists(ids, min_size=q, max_size=q)), dtype=torch.long),
        "batch_negatives": draw(st.booleans()),
    }
    if draw(st.booleans()):
        found["keys"], found["shares"] = draw(aims(n, n))
    return found


def assert_masks(pairs: Pairs, positives: Tensor, negatives: Tensor) -> None:
    """Masks as a whole, and by rows and columns in blocks of every size."""
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negatives(), negatives)
    assert pairs.has_positives() == bool(positives.any())
    assert pairs.has_negatives() == bool(negatives.any())
    for tile in (1, 2, 3):
        for start in range(0, max(positives.shape), tile):
            part = slice(start, start + tile)
            assert torch.equal(pairs[part].negatives(), negatives[part])
            assert torch.equal(pairs.negatives(candidates=part), negatives[:, part])
            assert torch.equal(pairs[part].negatives(candidates=part), negatives[part, part])


@settings(max_examples=60)
@given(queues())
def test_queue_pairs_equal_the_loops(arguments: dict[str, Any]) -> None:
    pairs = Pairs.queue(**arguments)
    aimed = None
    if "keys" in arguments:
        aimed = []
        for row, parts in zip(arguments["keys"], arguments["shares"], strict=True):
            aim: dict[int, float] = {}
            for key, part in zip(row.tolist(), parts.tolist(), strict=True):
                aim[key] = aim.get(key, 0.0) + part
            aimed.append(aim)
    positives, negatives, shares = reference.masks_queue(
        arguments["sample_ids"].tolist(),
        arguments["queue_ids"].tolist(),
        batch_negatives=arguments["batch_negatives"],
        aims=aimed,
    )
    assert_masks(pairs, positives, negatives)
    assert_close(pairs.targets(dtype=torch.float64), shares, 1e-15)


@settings(max_examples=60)
@given(st.data())
def test_aimed_pairs_equal_the_loops(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    keys, shares = data.draw(aims(n, n))
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    for offset, total in ((0, None), (before, before + n + after)):
        pairs = Pairs.aimed(keys, shares, offset=offset, total=total)
        positives, negatives, share = reference.masks_towards(
            keys, shares, offset=offset, total=total
        )
        assert_masks(pairs, positives, negatives)
        assert_close(pairs.targets(dtype=torch.float64), share, 1e-15)


@st.composite
def masks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 1, kind == 2


@settings(max_examples=60)
@given(masks(), st.integers(1, 3))
def test_own_candidates_equal_the_loops(both: tuple[Tensor, Tensor], own: int) -> None:
    positives, negatives = both
    n, m = positives.shape
    pairs = Pairs.from_masks(positives, negatives)
    assert_masks(pairs, positives, negatives)
    assert_own(pairs, Views(torch.ones(n, 2)), Views(torch.ones(m, 2)), positives, negatives, own)


def test_own_candidates_where_every_view_is_both() -> None:
    positives, negatives = reference.masks_both(3)
    views = Views(torch.ones(6, 2))
    assert_own(Pairs.both_views(3), views, views, positives, negatives, 2)


def assert_own(
    pairs: Pairs, anchors: Views, candidates: Views, positives: Tensor, negatives: Tensor, own: int
) -> None:
    """Own candidates take the last columns; all of them are negatives, none is a positive."""
    further = ExtraNegatives(torch.ones(len(positives), own, 2))
    compared = ContrastInput(anchors, candidates, pairs, extra=further)
    problem, vectors = make_problem(compared, Options(), 0.5, eager.ENGINE)
    widened = reference.with_own(negatives, own, True)
    targets = pairs.targets(dtype=torch.float64)
    for tile in (len(positives), 1, 2):
        for start in range(0, len(positives), tile):
            which = slice(start, start + tile)
            part, sides = problem[which], (vectors[0][which], vectors[1])
            _, rows = part.compare(*sides)
            assert torch.equal(rows.negatives, widened[which])
            assert torch.equal(rows.count, widened[which].sum(1, keepdim=True))
            found = torch.zeros(rows.negatives.shape, dtype=torch.float64)
            found.scatter_add_(1, part.pairs.positives, part.pairs.normalized_shares(found.dtype))
            assert_close(found[:, : positives.shape[1]], targets[which], 1e-6)
            assert torch.equal(found > 0, reference.with_own(positives, own, False)[which])
