"""What counts as rounding, in float32 and in TF32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from unremix.core import precision, weights
from unremix.core.precision import TF32_NOISE, noise, normalize
from unremix.core.weights import scale


@pytest.fixture
def tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def on_gpu(dtype: torch.dtype) -> Tensor:
    """A tensor that says it is on a GPU, where there may be none."""
    with FakeTensorMode():
        return torch.empty(1, dtype=dtype, device="cuda")


def rounded(values: Tensor) -> Tensor:
    """float32 as TF32 keeps it: ten bits after the first."""
    bits = values.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_float32_has_the_digits_of_float32() -> None:
    assert noise(on_gpu(torch.float32)) == noise(torch.zeros(1)) == 64 * 2.0**-23


def test_tf32_on_a_gpu_has_fewer_digits(tf32: None) -> None:
    assert noise(on_gpu(torch.float32)) == TF32_NOISE
    assert noise(on_gpu(torch.float64)) == 64 * 2.0**-52
    assert noise(torch.zeros(1)) == 64 * 2.0**-23


def test_the_setting_is_read_when_compiled() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def answer(x: Tensor) -> Tensor:
        return x + float(precision._uses_tf32())

    zero = torch.zeros(())
    assert answer(zero) == 0
    torch.set_float32_matmul_precision("high")
    try:
        assert answer(zero) == 1
    finally:
        torch.set_float32_matmul_precision("highest")
    assert answer(zero) == 0


@pytest.mark.parametrize("size", [2, 16, 512])
def test_inner_products_in_tf32_err_by_less(size: int) -> None:
    torch.manual_seed(0)
    units = normalize(torch.randn(200, size))[0]
    narrow = rounded(units)
    error = (narrow.double() @ narrow.double().T - units.double() @ units.double().T).abs().max()
    assert noise(torch.zeros(1)) < error < TF32_NOISE / 2


def test_rounding_to_tf32_does_not_become_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    score = 1 + (torch.rand(3, 20) - 0.5) * 2.0**-10  # a constant up to the rounding of TF32
    negatives, count = torch.ones(3, 20, dtype=torch.bool), torch.full((3, 1), 20)
    stretched = scale(score, negatives, count, "minmax", 1.0)
    assert_close(stretched.amax(1), torch.ones(3))
    assert_close(stretched.amin(1), torch.zeros(3))
    monkeypatch.setattr(weights, "noise", lambda like: TF32_NOISE)
    assert torch.equal(scale(score, negatives, count, "minmax", 1.0), torch.ones(3, 20))
