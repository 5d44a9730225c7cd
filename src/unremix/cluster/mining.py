"""Mining on Ray: blocks of anchors go to a pool of actors, which share the corpus of their node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from unremix.cluster.ray_engine import connect, ray_map
from unremix.mining.index import Advance, ExactIndex
from unremix.mining.mine import Block, Miner


def mine_on_ray(miner: Miner, parts: Sequence[slice], _: Advance) -> Iterator[tuple[int, Block]]:
    """Mine blocks of anchors on Ray; for ``each`` of :func:`unremix.mine_hard_negatives`.

    Ray's object store holds the corpus once per node; all actors of the node read it there.

    Args:
        miner: What is the same for all blocks.
        parts: The blocks of anchors.
        _: Not called: progress is reported when a block is done.

    Yields:
        The place of a block among ``parts``, and its arrays.
    """
    if not parts:
        return
    if isinstance(miner.index, ExactIndex):  # a mapped file is this machine's alone
        miner = replace(miner, index=ExactIndex(np.asarray(miner.index.corpus)))
    shared = connect().put(miner)

    def make() -> Callable[[slice], Block]:
        there: Miner = connect().get(shared)
        return lambda part: there.mine(part, lambda _: None)

    yield from ray_map(make, parts)
