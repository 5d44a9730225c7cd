"""The losses inside a user's own ``torch.compile``: one graph, equal to eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core import problem

LOSSES: dict[str, Callable[[], Any]] = {
    "InfoNCE": InfoNCELoss,
    "HCL": HCLLoss,
    "UnReMix": UnReMixLoss,
    "sketch": lambda: UnReMixLoss(sketch=3),
    "zscore-exp": lambda: UnReMixLoss(scaling="zscore-exp", class_prior=0.1, mix="adversarial"),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(make: Callable[[], Any], backend: str, **options: Any) -> None:
    torch.manual_seed(0)
    loss_fn = make()
    for n in (6, 9):  # another size: traced again
        views = [torch.randn(n, 5).requires_grad_() for _ in range(2)]
        views += [torch.randn(n, 7) for _ in range(2)]
        inputs = [*views[:2], *loss_fn.parameters()]
        expected = loss_fn(*views)
        compiled = torch.compile(loss_fn, fullgraph=True, backend=backend, **options)
        actual: Tensor = compiled(*views)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        pairs = zip(
            torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_one_graph_equals_eager(name: str) -> None:
    check(LOSSES[name], "aot_eager")


def test_several_blocks_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are recomputed in the backward pass, so that memory stays that of a block."""
    monkeypatch.setattr(problem, "BLOCK_TRACED", 64 * 12)
    check(lambda: UnReMixLoss(tile=5), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["InfoNCE", "UnReMix"])
def test_the_default_backend(name: str) -> None:
    check(LOSSES[name], "inductor")
