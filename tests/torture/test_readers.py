"""Every reader against thousands of damaged files; each is read or refused, in bounded memory."""

from __future__ import annotations

import os

import pytest
from data_seeds import formats
from fuzzing import fuzz

EXAMPLES, ROUNDS = 1000, 10

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("UNREMIX_TORTURE") != "1", reason="for `make torture`"),
]


@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("name", formats())
def test_damaged_files_are_read_or_refused(name: str, turn: int) -> None:
    form = formats()[name]
    found = fuzz(form.read, form.seeds, examples=EXAMPLES, seed=1000 + turn, name=form.name)
    assert sum(found.values()) >= EXAMPLES
    if name != "folder":  # there, damaged pictures are left out, and the rest is read
        assert found["refused"] > 0  # some damage is noticed
