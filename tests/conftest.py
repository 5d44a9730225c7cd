from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from batches import Batch, make_batch
from hypothesis import HealthCheck, settings

from unremix.core.engines import VARIABLE, compiled, native

# A shared machine may be slow at any moment, and a check must not fail by chance.
settings.register_profile(
    "unremix", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unremix")


@pytest.fixture(scope="module", params=["native", "eager"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Engines of a loss on the CPU: ``native`` where it can be built and serves, and ``eager``."""
    reason = native.missing()
    if request.param == "native" and reason is not None:
        pytest.skip(f"there is no compiled code: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield request.param


@pytest.fixture(params=["eager", "native", "compiled"])
def every_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine, preferred where it serves; ``compiled`` without a backend that takes seconds."""
    reason = native.missing()
    if request.param == "native" and reason is not None:
        pytest.skip(f"there is no compiled code: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        patch.setattr(compiled, "compile", partial(torch.compile, backend="aot_eager"))
        compiled._compiled.cache_clear()
        yield request.param
        compiled._compiled.cache_clear()
        if request.param == "compiled":
            torch._dynamo.reset()


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@pytest.fixture
def split_folder(tmp_path: Path) -> Path:
    """Pictures of two animals, for training and for testing."""
    from pictures import save  # it needs Pillow, the losses do not

    folder = tmp_path / "animals"
    for split, count in (("train", 3), ("test", 2)):
        for animal in ("dog", "cat"):
            for number in range(count):
                save(folder / split / animal / f"{number}.png")
    return folder
