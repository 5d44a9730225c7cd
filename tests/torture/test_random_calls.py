"""Twenty thousand random calls of a loss: the engines agree on each of them."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from agreement import check_call

from unremix.core.engines import native

CALLS, PARTS = 20_000, 40

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("UNREMIX_TORTURE") != "1", reason="for `make torture`"),
    pytest.mark.skipif(native.missing() is not None, reason="there is no compiled code"),
]


@pytest.mark.parametrize("part", range(PARTS))
def test_engines_agree(part: int) -> None:
    size = CALLS // PARTS
    outcomes = Counter(check_call(seed) for seed in range(size * part, size * (part + 1)))
    assert sum(outcomes.values()) == size
