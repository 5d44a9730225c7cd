"""Who is whose positive and negative: queues, aims, negatives of one anchor alone."""

from __future__ import annotations

from typing import Any

import reference
import torch
from building import aims, share_matrix
from conftest import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.core.pairs import Pairs


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
    """Masks, counts, and what the blocks of every size hold."""
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negative_mask(), negatives)
    assert torch.equal(pairs.negative_count, negatives.sum(1))
    assert torch.equal(pairs.positive_count, positives.sum(1))
    for tile in (None, 1, 2):
        for block in pairs.blocks(tile):
            ones = torch.ones(block.anchors.numel(), pairs.num_candidates)
            assert torch.equal(block.blank(ones) == 1, negatives[block.anchors])
            for row, anchor in enumerate(block.anchors.tolist()):
                if negatives[anchor].any():
                    place = int(block.reference[row]) - row * pairs.num_candidates
                    assert negatives[anchor, place]


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
    assert_close(share_matrix(pairs), shares, 1e-15)


@settings(max_examples=60)
@given(st.data())
def test_aimed_pairs_equal_the_loops(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    keys, shares = data.draw(aims(n, n))
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    for offset, total in ((0, None), (before, before + n + after)):
        pairs = Pairs.towards(keys, shares, offset=offset, total=total)
        positives, negatives, share = reference.masks_towards(
            keys, shares, offset=offset, total=total
        )
        assert_masks(pairs, positives, negatives)
        assert_close(share_matrix(pairs), share, 1e-15)


@st.composite
def masks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 1, kind == 2


@settings(max_examples=60)
@given(masks(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_own_candidates_transposition_and_parts_equal_the_loops(
    both: tuple[Tensor, Tensor], own: int, before: int, after: int
) -> None:
    positives, negatives = both
    n, m = positives.shape
    pairs = Pairs.from_masks(positives, negatives)
    widened = pairs.with_own(own)
    assert widened.own == own
    assert_masks(
        widened,
        reference.with_own(positives, own, False),
        reference.with_own(negatives, own, True),
    )
    assert torch.equal(share_matrix(widened)[:, :m], share_matrix(pairs))
    twice = widened.with_own(2)
    assert twice.own == own + 2
    assert torch.equal(twice.negative_mask(), reference.with_own(negatives, own + 2, True))
    # Own candidates are nobody's anchors.
    assert_masks(widened.transposed(), positives.T, negatives.T)
    total = before + m + after
    wide = torch.zeros(n, total, dtype=torch.bool)
    wide[:, before : before + m] = positives
    others = torch.ones(n, total, dtype=torch.bool)
    others[:, before : before + m] = negatives
    assert_masks(pairs.among(before, total), wide, others)


def test_twins_end_where_own_candidates_begin() -> None:
    positives, negatives = reference.masks_both(3)
    pairs = Pairs.both_views(3).with_own(2)
    assert not pairs.twins
    assert_masks(
        pairs, reference.with_own(positives, 2, False), reference.with_own(negatives, 2, True)
    )
    assert_masks(pairs.transposed(), positives.T, negatives.T)
