from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from unremix.core.pairs import Links, Pairs


@pytest.mark.parametrize("n", [1, 2, 5])
def test_layouts_equal_their_masks(n: int) -> None:
    for pairs, masks in (
        (Pairs.both_views(n), reference.masks_both(n)),
        (Pairs.one_way(n), reference.masks_one_way(n)),
    ):
        assert torch.equal(pairs.positive_mask(), masks[0])
        assert torch.equal(pairs.negative_mask(), masks[1])


def test_a_part_of_a_batch_is_rows_of_the_whole() -> None:
    positives, negatives = reference.masks_both(5)
    part = Pairs.both_views(2, offset=1, total=5)
    rows = torch.tensor([1, 2, 6, 7])
    assert torch.equal(part.positive_mask(), positives[rows])
    assert torch.equal(part.negative_mask(), negatives[rows])
    part = Pairs.one_way(2, offset=3, total=5)
    positives, negatives = reference.masks_one_way(5)
    assert torch.equal(part.positive_mask(), positives[3:])
    assert torch.equal(part.negative_mask(), negatives[3:])


@pytest.mark.parametrize("batch_negatives", [False, True])
def test_queue_excludes_keys_of_the_same_sample(batch_negatives: bool) -> None:
    ids, queue = torch.tensor([7, 8, 9]), torch.tensor([9, 1, 7, 7])
    pairs = Pairs.queue(ids, queue, batch_negatives=batch_negatives)
    for i in range(3):
        for j in range(7):
            own = j == i
            sample = ids[j] if j < 3 else queue[j - 3]
            negative = bool(sample != ids[i]) and (j >= 3 or batch_negatives)
            assert bool(pairs.positive_mask()[i, j]) == own
            assert bool(pairs.negative_mask()[i, j]) == negative


@pytest.mark.parametrize("reach", [1, 2, 9])
def test_windows_never_cross_a_document(reach: int) -> None:
    documents = torch.tensor([0, 0, 0, 1, 2, 2])
    texts = torch.tensor([5, 6, 7, 8, 5, 9])
    pairs = Pairs.windows(documents, reach=reach, texts=texts)
    plain = Pairs.windows(documents, reach=reach)
    for i in range(6):
        for j in range(6):
            near = i != j and abs(i - j) <= reach and bool(documents[i] == documents[j])
            same = bool(texts[i] == texts[j])
            assert bool(pairs.positive_mask()[i, j]) == near
            assert bool(pairs.negative_mask()[i, j]) == (not near and not same)
            assert bool(plain.negative_mask()[i, j]) == (not near and i != j)


def test_membership() -> None:
    pairs = Pairs.membership(torch.tensor([0, 2, 2]), 3)
    assert pairs.positive_mask().int().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert torch.equal(pairs.negative_mask(), ~pairs.positive_mask())


def test_positives_share_equally_or_as_told() -> None:
    links = (torch.tensor([0, 0, 1]), torch.tensor([2, 1, 0]))
    assert Pairs.build(2, 3, links).share.tolist() == [0.5, 0.5, 1.0]
    told = Pairs.build(2, 3, links, share=torch.tensor([0.25, 0.75, 1.0]))
    assert told.positives.candidate.tolist() == [1, 2, 0]
    assert told.share.tolist() == [0.75, 0.25, 1.0]


@st.composite
def masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    kinds = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 1, kind == 2


@given(masks(), st.one_of(st.none(), st.integers(1, 8)))
def test_blocks_hold_what_the_masks_say(
    both: tuple[torch.Tensor, torch.Tensor], tile: int | None
) -> None:
    positives, negatives = both
    pairs = Pairs.from_masks(positives, negatives)
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negative_mask(), negatives)
    assert torch.equal(pairs.transposed().negative_mask(), negatives.T)
    assert torch.equal(pairs.transposed().positive_mask(), positives.T)
    widened = pairs.with_positives_as_negatives()
    assert torch.equal(widened.negative_mask(), negatives | positives)
    seen = []
    for block in pairs.blocks(tile):
        size = block.anchors.numel()
        assert tile is None or size <= tile
        mask = torch.ones(size, positives.shape[1])
        assert torch.equal(block.blank(mask) == 1, negatives[block.anchors])
        chosen = torch.zeros(size, positives.shape[1])
        chosen.view(-1)[block.positive] = 1
        assert torch.equal(chosen == 1, positives[block.anchors])
        assert torch.equal(block.count[:, 0], negatives[block.anchors].sum(1))
        values = torch.arange(float(mask.numel())).view_as(mask)
        filled = block.fill(values.clone())
        for row in range(size):
            own = values[row][negatives[block.anchors[row]]].tolist()
            if own:
                assert set(filled[row].tolist()) == set(own)
        seen += block.anchors.tolist()
    assert sorted(seen) == list(range(positives.shape[0]))


def test_twins_stay_together() -> None:
    for block in Pairs.both_views(5).blocks(4):
        half = block.anchors.numel() // 2
        assert torch.equal(block.anchors[:half] + 5, block.anchors[half:])


def test_bad_masks() -> None:
    mask = torch.eye(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="boolean"):
        Pairs.from_masks(mask.int(), ~mask)
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(2, 1\)"):
        Pairs.from_masks(mask, ~mask[:, :1])
    with pytest.raises(ValueError, match="2 pairs that are both"):
        Pairs.from_masks(mask, mask)


def test_links_out_of_order_are_refused() -> None:
    """Compiled code writes where they point."""
    order, groups = torch.arange(6), torch.arange(6) % 3
    for links in (
        Links(order.flip(0), groups),
        Links(order, groups + 10),
        Links(order // 6, groups),
    ):
        with pytest.raises(ValueError, match=r"expected links sorted .* Pairs\.build"):
            _ = Pairs(6, 3, links, links).blocks(None)[0].masked
    with pytest.raises(ValueError, match=r"shape \(N,\), received \(6, 1\)"):
        Pairs.membership(groups[:, None], 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_links_of_any_integers(dtype: torch.dtype) -> None:
    narrow = torch.arange(20, dtype=dtype)
    assert torch.equal(
        Pairs.build(20, 20, (narrow, narrow), (narrow, narrow.flip(0))).negative_mask(),
        Pairs.build(20, 20, (narrow.long(),) * 2, (narrow.long(), narrow.long().flip(0)))
        .negative_mask(),
    )  # fmt: skip
