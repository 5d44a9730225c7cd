"""Which samples a step uses: a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK = 2**63 - 1


def scramble(*numbers: int) -> int:
    """One seed made of several numbers."""
    state = 0x243F6A8885A308D3
    for number in numbers:
        state = ((state ^ (number & MASK)) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & MASK
        state ^= state >> 29
    return state


def permuted(count: int, batch_size: int, seed: int, step: int, steps: int | None = None) -> Tensor:
    """Which of ``count`` samples a step uses, shape (batch_size,): a fresh order every epoch.

    What is left over at an epoch's end, less than a batch, is left out, unless ``steps`` says that
    there is one more step.

    Args:
        count: Samples.
        batch_size: Samples per step.
        seed: Of the run.
        step: Counted from 0 over all epochs.
        steps: Steps per epoch; as many as there are whole batches by default.
    """
    epoch, within = divmod(step, count // batch_size if steps is None else steps)
    order = _permutation(count, seed, epoch)
    return order[within * batch_size : (within + 1) * batch_size]


def streamed(counts: Sequence[int], batch_size: int, lanes: int, seed: int, step: int) -> Tensor:
    """Which samples of some shards a step uses, shape (batch_size,), few shards at a time.

    Every epoch has an order of its own: the shards are permuted, and the samples within each. This
    order is cut into ``lanes`` pieces of equal length, and each step takes the next samples of
    every lane, those of the first lane first. So a batch is drawn from as many shards as there are
    lanes, and a shard is used up before the lane comes to the next one. What is left over at an
    epoch's end, less than a batch, is left out.

    The batch does not depend on the number of processes, which share it in equal pieces. If this
    number divides that of the lanes, which divides the batch size, every process reads lanes of its
    own; two of them read the same shard only where a lane ends within it.

    Args:
        counts: Samples of each shard; those of the first are numbered first.
        batch_size: Samples per step.
        lanes: Shards that are read at a time; at most one per sample of a batch is used.
        seed: Of the run.
        step: Counted from 0 over all epochs.

    Example:
        >>> [streamed([3, 3, 2], 4, 2, seed=0, step=step).tolist() for step in (0, 1)]
        [[2, 0, 5, 3], [1, 4, 6, 7]]
    """
    sizes = torch.tensor(counts)
    steps = int(sizes.sum()) // batch_size
    epoch, within = divmod(step, steps)
    order = _permutation(len(counts), seed, epoch)  # of the shards
    ends = sizes[order].cumsum(0)  # in the order of the epoch
    first = sizes.cumsum(0) - sizes  # in the order of the numbers
    # The numbers in a batch of each lane's samples; a lane starts behind all steps of those before.
    lane_numbers = torch.arange(batch_size).tensor_split(min(lanes, batch_size))
    places = torch.cat([(steps - 1) * of[0] + within * len(of) + of for of in lane_numbers])
    turns = torch.searchsorted(ends, places, right=True)  # which shard of the epoch
    found = torch.empty(batch_size, dtype=torch.int64)
    for turn in turns.unique().tolist():
        shard, here = int(order[turn]), turns == turn
        inside = places[here] - (ends[turn] - sizes[shard])
        found[here] = first[shard] + _permutation(counts[shard], seed, epoch, shard)[inside]
    return found


def _permutation(count: int, *key: int) -> Tensor:
    """A permutation that is a function of its key alone, shape (count,)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(scramble(*key)))
