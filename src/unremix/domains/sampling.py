"""Which samples a step uses, by seed and step alone; and some of many, spread or drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from unremix.frameworks.randomness import scramble

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What is read for each item, in order; a thread reads the next one meanwhile.

    Example:
        >>> list(read_ahead(abs, [-1, 2]))
        [1, 2]
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: list[Future[Result]] = []
        for item in items:
            arrived = [one.result() for one in waiting]
            waiting = [pool.submit(read, item)]
            yield from arrived
        yield from (one.result() for one in waiting)


def pinned(values: Any, device: torch.device) -> Any:
    """A tensor in memory from which a GPU copies without waiting; all else as it is."""
    is_for_gpu = device.type == "cuda" and isinstance(values, Tensor)
    return values.pin_memory() if is_for_gpu else values


def evenly_spaced(count: int, most: int) -> Tensor:
    """At most this many indices, evenly spread over all, shape (k,), int64.

    Example:
        >>> evenly_spaced(10, 4), evenly_spaced(3, 4)
        (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // (most - 1)


def drawn(count: int, most: int | None) -> Tensor:
    """At most this many of ``count`` indices, drawn with a fixed seed, in order, shape (k,), int64.

    Example:
        >>> drawn(3, 10), len(drawn(1000, 10))
        (tensor([0, 1, 2]), 10)
    """
    if most is None or count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values


if TYPE_CHECKING:
    from unremix.domains.options import TrainConfig


def steps_of(data: Any, config: TrainConfig) -> int:
    """Steps per epoch; a last, incomplete batch counts if it has two samples."""
    return math.ceil((len(data.train) - 1) / config.batch_size)


def indices_of(data: Any, config: TrainConfig, step: int) -> Tensor:
    """Which of ``data.train`` a step uses, shape (batch_size,), fewer at the end of an epoch."""
    return permuted(len(data.train), config.batch_size, config.seed, step, steps_of(data, config))


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


def ranges(count: int, size: int) -> Iterator[range]:
    """0 … count - 1 in ranges of at most so many.

    Example:
        >>> list(ranges(5, 2))
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return (range(first, min(first + size, count)) for first in range(0, count, size))
