"""Samples of WebDataset shards one after the other, for training loops of your own.

``unremix train --stream`` does not use this: it shuffles within shards, too, and reads the samples
of a step wherever they are. See :mod:`unremix.data.image.streamed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unremix.data.archives import Sample, expand_braces
from unremix.data.remote import is_url, list_files
from unremix.data.remote_shards import read_any_shard

AHEAD = 2  # shards that are fetched while one is read


class Streamed(NamedTuple):
    """A sample of a stream.

    Args:
        number: Its place in the stream of this rank, from 0 on; to resume, pass it as ``start``.
        name: Shard and name.
        data: The bytes of its image file.
        label: Where the shard has one.
    """

    number: int
    name: str
    data: bytes
    label: int | None


def shards_for(
    shards: Sequence[str], *, rank: int = 0, world: int = 1, seed: int = 0, epoch: int = 0
) -> list[str]:
    """The shards of a rank, in the order of an epoch: a function of its arguments alone.

    Every shard belongs to one rank. Ranks have equal numbers of shards, but for one.

    Args:
        shards: All shards, in the same order on every rank.
        rank: Which process this is.
        world: How many processes there are.
        seed: Of the order.
        epoch: Every epoch has an order of its own.

    Example:
        >>> (
        ...     shards_for(["a", "b", "c"], rank=0, world=2),
        ...     shards_for(["a", "b", "c"], rank=1, world=2),
        ... )
        (['c', 'b'], ['a'])
    """
    if not 0 <= rank < world:
        raise ValueError(f"expected a rank from 0 to {world - 1}, got {rank}; check the world size")
    order = np.random.default_rng((seed, epoch)).permutation(len(shards))
    return [shards[number] for number in order[rank::world]]


def stream_samples(
    data: str, *, rank: int = 0, world: int = 1, seed: int = 0, epoch: int = 0, start: int = 0
) -> Iterator[Streamed]:
    """The samples of a rank's shards, while the next shards are fetched.

    Args:
        data: A pattern such as ``s3://bucket/shard-{000..099}.tar``, a ``.tar`` file, or a folder
            of them, as a URL or a path.
        rank: Which process this is.
        world: How many processes there are.
        seed: Of the order of the shards.
        epoch: Every epoch has an order of its own.
        start: Samples to pass over, such as the number of those that were used already.

    Raises:
        OSError: If a shard cannot be read in several attempts.
        ValueError: If a shard is damaged, or there is none.
    """
    shards = shards_for(_shards(data), rank=rank, world=world, seed=seed, epoch=epoch)
    number = 0
    pool = ThreadPoolExecutor(AHEAD)
    try:
        waiting = [pool.submit(_read, shard) for shard in shards[:AHEAD]]
        for place in range(len(shards)):
            samples = waiting.pop(0).result()
            if place + AHEAD < len(shards):
                waiting.append(pool.submit(_read, shards[place + AHEAD]))
            first = max(0, start - number)
            for within in range(first, len(samples)):
                sample = samples[within]
                yield Streamed(number + within, sample.name, sample.image.read(), sample.label)
            number += len(samples)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _shards(data: str) -> list[str]:
    if "{" in data:
        return expand_braces(data)
    if data.endswith(".tar"):
        return [data]
    if is_url(data):
        found = [file.url for name, file in list_files(data) if name.endswith(".tar")]
    else:
        found = sorted(str(path) for path in Path(data).glob("*.tar"))
    if not found:
        raise ValueError(f"expected .tar files in {data}, got none; name a pattern or a folder")
    return found


def _read(shard: str) -> list[Sample]:
    samples, skipped = read_any_shard(shard)
    if skipped:
        name, reason = skipped[0]
        raise ValueError(f"expected a sound shard, got {name} ({reason}); write it again")
    return samples
