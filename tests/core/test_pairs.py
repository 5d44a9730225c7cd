"""Who is whose positive and negative, against loops over the definitions."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from unremix.core.pairs import Pairs


@pytest.mark.parametrize("n", [1, 2, 5])
def test_layouts_equal_their_masks(n: int) -> None:
    for pairs, masks in (
        (Pairs.both_views(n), reference.masks_both(n)),
        (Pairs.one_way(n), reference.masks_one_way(n)),
    ):
        assert torch.equal(pairs.positive_mask(), masks[0])
        assert torch.equal(pairs.negatives(), masks[1])


def test_a_part_of_a_batch_is_rows_of_the_whole() -> None:
    positives, negatives = reference.masks_both(5)
    part = Pairs.both_views(2, offset=1, total=5)
    rows = torch.tensor([1, 2, 6, 7])
    assert torch.equal(part.positive_mask(), positives[rows])
    assert torch.equal(part.negatives(), negatives[rows])
    part = Pairs.one_way(2, offset=3, total=5)
    positives, negatives = reference.masks_one_way(5)
    assert torch.equal(part.positive_mask(), positives[3:])
    assert torch.equal(part.negatives(), negatives[3:])


@pytest.mark.parametrize("layout", ["both", "one-way", "towards"])
def test_samples_with_one_id_are_not_negatives_of_each_other(layout: str) -> None:
    ids = torch.tensor([4, 7, 4, 9])
    keys, shares = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 3]]), torch.full((4, 2), 0.5)
    made = {
        "both": Pairs.both_views(4, ids=ids),
        "one-way": Pairs.one_way(4, ids=ids),
        "towards": Pairs.aimed(keys, shares, ids=ids),
    }[layout]
    views = len(made.candidate_ids)
    for i in range(made.num_anchors):
        own = {int(ids[key]) for key in keys[i % 4]} if layout == "towards" else {int(ids[i % 4])}
        for j in range(views):
            assert bool(made.negatives()[i, j]) == (int(ids[j % 4]) not in own)


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
            assert bool(pairs.negatives()[i, j]) == negative


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
            assert bool(pairs.negatives()[i, j]) == (not near and not same)
            assert bool(plain.negatives()[i, j]) == (not near and i != j)


def test_membership() -> None:
    pairs = Pairs.membership(torch.tensor([0, 2, 2]), 3)
    assert pairs.positive_mask().int().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert torch.equal(pairs.negatives(), ~pairs.positive_mask())


def test_a_key_that_repeats_counts_once_with_all_its_shares() -> None:
    keys = torch.tensor([[0, 1, 0], [2, 2, 2], [1, 0, 2]])
    shares = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.0, 1.0, 0.0]]).double()
    pairs = Pairs.aimed(keys, shares)
    positives, negatives, expected = reference.masks_towards(keys, shares)
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negatives(), negatives)
    torch.testing.assert_close(pairs.targets(dtype=torch.float64), expected)
    assert ((pairs.shares > 0).sum(1) == positives.sum(1)).all()


@st.composite
def masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    kinds = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 1, kind == 2


@given(masks(), st.integers(0, 6), st.integers(0, 7))
def test_any_rows_and_columns_hold_what_the_masks_say(
    both: tuple[torch.Tensor, torch.Tensor], first_row: int, first_column: int
) -> None:
    positives, negatives = both
    pairs = Pairs.from_masks(positives, negatives)
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negatives(), negatives)
    rows, columns = slice(first_row, first_row + 2), slice(first_column, first_column + 3)
    assert torch.equal(pairs[rows].negatives(), negatives[rows])
    assert torch.equal(pairs.negatives(candidates=columns), negatives[:, columns])
    assert pairs.has_negatives() == bool(negatives.any())
    assert pairs.has_positives() == bool(positives.any())
    shares = pairs.targets(dtype=torch.float64)
    expected = positives.double() / positives.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(shares, expected)


def test_bad_masks() -> None:
    mask = torch.eye(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="boolean"):
        Pairs.from_masks(mask.int(), ~mask)
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(2, 1\)"):
        Pairs.from_masks(mask, ~mask[:, :1])
    with pytest.raises(ValueError, match="2 pairs that are both"):
        Pairs.from_masks(mask, mask)


def test_bad_groups() -> None:
    groups = torch.arange(6) % 3
    with pytest.raises(ValueError, match=r"shape \(N,\), got \(6, 1\)"):
        Pairs.membership(groups[:, None], 3)
    with pytest.raises(ValueError, match=r"groups among 0 … 1, got 0 to 2"):
        Pairs.membership(groups, 2)
    with pytest.raises(ValueError, match=r"groups to be integers, got torch.float"):
        Pairs.membership(torch.rand(3), 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_groups_of_any_integers(dtype: torch.dtype) -> None:
    groups = torch.arange(20) % 7
    expected = Pairs.membership(groups, 7).negatives()
    assert torch.equal(Pairs.membership(groups.to(dtype), 7).negatives(), expected)


@pytest.mark.parametrize(
    "pairs",
    [
        Pairs.both_views(4),
        Pairs.both_views(2, offset=1, total=4),
        Pairs.one_way(3),
        Pairs.one_way(2, offset=2, total=5),
        Pairs.membership(torch.tensor([0, 2, 1, 2]), 3),
    ],
)
def test_the_list_of_non_negatives_says_what_the_mask_says(pairs: Pairs) -> None:
    assert pairs.non_negatives is not None
    listed = torch.zeros(pairs.num_anchors, pairs.num_candidates, dtype=torch.bool)
    listed.scatter_(1, pairs.non_negatives, True)
    assert torch.equal(~listed, pairs.negatives())
    assert (listed.sum(1) == pairs.non_negatives.shape[1]).all()  # none twice
    columns = slice(1, 3)
    assert torch.equal(pairs.positive_mask(columns), pairs.positive_mask()[:, columns])


def test_with_ids_only_the_mask_tells() -> None:
    ids = torch.tensor([1, 2, 1])
    assert Pairs.both_views(3, ids=ids).non_negatives is None
    assert Pairs.one_way(3, ids=ids).non_negatives is None
