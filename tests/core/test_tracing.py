"""The losses inside a user's own ``torch.compile``: one graph, equal to eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core import problem

LOSSES: dict[str, Callable[[], Any]] = {
    "InfoNCE": InfoNCELoss,
    "HCL": HCLLoss,
    "UnReMix": UnReMixLoss,
    "sketch": lambda: UnReMixLoss(sketch=3, learnable_temperature=True),
    "zscore-exp": lambda: UnReMixLoss(scaling="zscore-exp", class_prior=0.1, mix="adversarial"),
}

pytestmark = pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 10),
    reason="torch.compile of torch 2.8 and older breaks the graph at the loss, with a warning",
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(make: Callable[[], Any], backend: str, sizes: tuple[int, ...] = (9,)) -> None:
    torch.manual_seed(0)
    loss_fn = make()
    for n in sizes:
        views = [torch.randn(n, 5).requires_grad_() for _ in range(2)]
        views += [torch.randn(n, 7) for _ in range(2)]
        inputs = [*views[:2], *loss_fn.parameters()]
        expected = loss_fn(*views)
        compiled = torch.compile(loss_fn, fullgraph=True, backend=backend)
        actual: Tensor = compiled(*views)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        pairs = zip(
            torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_one_graph_equals_eager(name: str) -> None:
    check(LOSSES[name], "aot_eager", sizes=(6, 9) if name == "UnReMix" else (9,))  # traced again


def test_several_blocks_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are recomputed in the backward pass, so that memory stays that of a block."""
    monkeypatch.setattr(problem, "BLOCK_TRACED", 64 * 12)
    check(lambda: UnReMixLoss(tile=5), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["InfoNCE", "UnReMix"])
def test_the_default_backend(name: str) -> None:
    check(LOSSES[name], "inductor")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, while it traces
@pytest.mark.parametrize(
    ("whole", "ending"),
    [(False, True), (True, False), (True, True)],
    ids=["loss-batchnorm", "step-linear", "step-batchnorm"],
)
def test_a_watched_layer_in_one_graph(whole: bool, ending: bool) -> None:
    """The loss alone, and head and loss together; h is that of the same step."""

    def make() -> tuple[nn.Sequential, UnReMixLoss]:
        torch.manual_seed(0)
        end = [nn.BatchNorm1d(4)] if ending else []
        head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), *end)
        return head, UnReMixLoss(last_layer=head, components=("uncertainty", "similarity"))

    head, loss_fn = make()
    twin, expected_fn = make()
    step = (lambda x0, x1: loss_fn(head(x0), head(x1))) if whole else loss_fn
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        x0, x1 = torch.randn(2, 10, 8, generator=torch.Generator().manual_seed(seed))
        loss = compiled(x0, x1) if whole else compiled(head(x0), head(x1))
        expected = expected_fn(twin(x0), twin(x1))
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(loss, [*head.parameters(), *loss_fn.parameters()])
        wanted = torch.autograd.grad(expected, [*twin.parameters(), *expected_fn.parameters()])
        for one, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
