"""What the tests of training share."""

from __future__ import annotations

import pytest
from small_runs import small

import unremix
from unremix.training.run import Run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The small run, never interrupted; tests change copies of it."""
    return unremix.train(small(tmp_path_factory.mktemp("whole")))
