"""Training that breaks off at a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from unremix.training.loop import Training


class Crash(Exception):
    pass


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """Expect training to crash before its step of this number."""
    stepping = Training.training_step

    def crashing(self: Training, batch: Any, number: int) -> None:
        if self.step == step:
            raise Crash
        stepping(self, batch, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "training_step", crashing)
        with pytest.raises(Crash):
            yield
