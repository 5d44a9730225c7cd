from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor
from torch.nn.functional import linear

from unremix.core.engines import VARIABLE, compiled, native

# A shared machine may be slow at any moment, and a check must not fail by chance.
settings.register_profile(
    "unremix", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unremix")


@dataclass
class Batch:
    """Two views through one linear layer, in float64: z = W h + b."""

    z0: Tensor
    z1: Tensor
    h0: Tensor
    h1: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.z0, self.z1, self.h0, self.h1


def make_batch(
    n: int = 4, width: int = 5, inputs: int = 6, *, bias: bool = True, seed: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, offset = draw(width, inputs), draw(width) if bias else None
    h0, h1 = draw(n, inputs), draw(n, inputs)
    z0, z1 = (linear(h, weight, offset).requires_grad_() for h in (h0, h1))
    return Batch(z0, z1, h0, h1, weight, offset)


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


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


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
