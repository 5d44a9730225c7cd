"""Which samples a step uses: a function of the seed and the step alone."""

from __future__ import annotations

from threading import Event

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unremix.domains.sampling import pinned, read_ahead, streamed

SHARDS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def epoch_of(
    counts: list[int], batch_size: int, lanes: int, seed: int, epoch: int = 0
) -> torch.Tensor:
    """All steps of an epoch, shape (steps, batch_size)."""
    steps = sum(counts) // batch_size
    first = epoch * steps
    batches = [streamed(counts, batch_size, lanes, seed, first + step) for step in range(steps)]
    return torch.stack(batches)


def shards_of(indices: torch.Tensor, counts: list[int]) -> list[int]:
    """The shard of each sample, found by counting."""
    owners = [shard for shard, count in enumerate(counts) for _ in range(count)]
    return [owners[index] for index in indices.tolist()]


def without_repeats(shards: list[int]) -> list[int]:
    return [shard for n, shard in enumerate(shards) if n == 0 or shards[n - 1] != shard]


@given(SHARDS, st.integers(1, 6), st.integers(1, 7), st.integers(0, 3))
def test_an_epoch_uses_every_sample_at_most_once(
    counts: list[int], batch_size: int, lanes: int, seed: int
) -> None:
    batch_size = min(batch_size, sum(counts))
    used = epoch_of(counts, batch_size, lanes, seed).flatten().tolist()
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(sum(counts)))
    assert sum(counts) - len(used) < batch_size


@given(SHARDS, st.integers(1, 6), st.integers(1, 7), st.integers(0, 3))
def test_a_lane_uses_up_a_shard_before_the_next(
    counts: list[int], batch_size: int, lanes: int, seed: int
) -> None:
    batch_size = min(batch_size, sum(counts))
    steps = epoch_of(counts, batch_size, lanes, seed)
    visited: list[int] = []
    for lane in torch.arange(batch_size).tensor_split(min(lanes, batch_size)):
        turns = without_repeats(shards_of(steps[:, lane].flatten(), counts))
        assert len(set(turns)) == len(turns)  # it never comes back
        visited += turns
    # Together the lanes go through the shards once: only where one ends within a shard does the
    # next one begin there.
    together = without_repeats(visited)
    assert len(set(together)) == len(together)


def test_processes_read_shards_of_their_own() -> None:
    """Eight lanes of three equal shards each: any number of processes that divides them."""
    counts, batch_size = [4] * 24, 16
    steps = epoch_of(counts, batch_size, 8, seed=5)
    for world in (1, 2, 4, 8):
        parts = [
            set(shards_of(part.flatten(), counts)) for part in steps.tensor_split(world, dim=1)
        ]
        assert set().union(*parts) == set(range(24))
        assert sum(map(len, parts)) == 24  # disjoint


def test_batches_are_a_function_of_seed_and_step() -> None:
    counts = [5, 7, 6, 4, 9, 8]
    one = epoch_of(counts, 6, 3, seed=1)
    assert torch.equal(streamed(counts, 6, 3, 1, 2), one[2])
    assert not torch.equal(epoch_of(counts, 6, 3, seed=1, epoch=1), one)
    assert not torch.equal(epoch_of(counts, 6, 3, seed=2), one)
    assert one[0].dtype == torch.int64


@pytest.mark.parametrize("lanes", [1, 3])
def test_shards_and_samples_are_shuffled_evenly(lanes: int) -> None:
    """Over many epochs, every sample is as likely as any other to come first."""
    counts = [2, 3, 1]
    firsts = torch.tensor([streamed(counts, 3, lanes, 0, 2 * epoch)[0] for epoch in range(3000)])
    share = torch.bincount(firsts, minlength=6) / 3000
    by_hand = torch.tensor([1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3])  # a shard, then a sample
    torch.testing.assert_close(share, by_hand, atol=0.03, rtol=0)


def test_the_next_item_is_read_while_one_is_used() -> None:
    begun = {item: Event() for item in range(3)}

    def read(item: int) -> int:
        begun[item].set()
        return 10 * item

    for place, found in enumerate(read_ahead(read, range(3))):
        assert found == 10 * place
        assert begun[min(place + 1, 2)].wait(timeout=60)


def test_what_cannot_be_read_raises_in_its_turn() -> None:
    found = read_ahead(lambda item: 1 // item, [1, 0, 1])
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_only_tensors_for_a_gpu_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    ones = torch.ones(2)
    assert pinned(ones, torch.device("cpu")) is ones
    assert pinned("text", torch.device("cuda")) == "text"
    assert pinned(ones, torch.device("cuda")).tolist() == [2, 2]
