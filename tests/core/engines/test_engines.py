"""Which engine is chosen, and that all give the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.engines import compiled, engine_report, find_engine, native
from unremix.core.pairs import Pairs
from unremix.core.problem import Options
from unremix.core.views import ExtraNegatives, Views
from unremix.core.weights import Weighting, hard_negatives
from unremix.losses import TwoViewLoss

MIXED = Weighting(("similarity", "representativeness"))
needed = pytest.mark.skipif(
    native.missing() is not None, reason=f"there is no compiled code: {native.missing()}"
)


@pytest.fixture(autouse=True)
def no_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNREMIX_ENGINE", raising=False)


@needed
def test_auto_takes_native_where_it_serves() -> None:
    like = torch.zeros(1)
    assert find_engine(Options(MIXED), like).name == "native"
    assert find_engine(Options(), like).name == "native"
    for options, reason in (
        (Options(hard_negatives(1.0)), "gradient through the weights"),
        (Options(Weighting(("similarity",), scaling="zscore", sharpness=1.0)), "minmax"),
    ):
        assert find_engine(options, like).name == "eager"
        refusal = native.refusal(options, like)
        assert refusal is not None
        assert reason in refusal
    assert find_engine(Options(MIXED), like.to(torch.bfloat16)).name == "eager"
    assert find_engine(Options(MIXED), torch.zeros(1, device="meta")).name == "eager"
    assert find_engine(Options(MIXED), like, extra=True).name == "eager"


TEMPERATURES = [torch.tensor(0.2), torch.tensor([0.2], dtype=torch.float64), torch.tensor([[0.2]])]


@needed
@pytest.mark.parametrize("temperature", TEMPERATURES, ids=["0", "1 double", "2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["both", "one-way", "symmetric"])
@pytest.mark.parametrize("further", [{}, {"class_prior": 0.4}, {"components": ()}], ids=str)
def test_native_differentiates_the_temperature(
    temperature: Tensor, dtype: torch.dtype, layout: Any, further: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    views = [torch.randn(9, 5).to(dtype).requires_grad_() for _ in range(2)]
    if dtype == torch.float64 and temperature.dim() < 2:
        temperature = temperature.double()
    temperature = temperature.detach().requires_grad_()
    found = []
    for engine in ("eager", "native"):
        for tile in ("auto", 4):
            loss_fn = UnReMixLoss(layout=layout, engine=engine, tile=tile, **further)
            loss = loss_fn(*views, temperature=temperature)
            inputs = [*views, *(each for each in loss_fn.parameters() if each.numel()), temperature]
            found.append([loss, *torch.autograd.grad(loss, inputs)])
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    if temperature.dim() == 2:
        tolerance = max(tolerance, 1e-6)  # it is in float32
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.dtype == other.dtype or one is found[0][0]
            torch.testing.assert_close(
                one, other, rtol=tolerance, atol=tolerance, check_dtype=False
            )


@needed
def test_native_differentiates_the_temperature_alone() -> None:
    views = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).double()
    pairs = Pairs.membership(torch.arange(6) % 3, 3)
    for further in ({}, {"logits": "dot", "objective": "jsd"}):
        slopes = []
        for engine in ("eager", "native"):
            temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
            loss_fn = InfoNCELoss(engine=engine)
            known = Views(views[0].clone().requires_grad_()), Views(views[1, :3])
            loss = loss_fn.against(*known, pairs, temperature=temperature, **further)
            slopes.append(torch.autograd.grad(loss, temperature)[0])
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("engine", ["auto", "eager"])
@pytest.mark.parametrize("further", [{}, {"gradient": "nt-xent"}, {"components": ()}], ids=str)
@pytest.mark.parametrize("labeled", [False, True])
def test_symmetric_is_the_mean_of_both_directions(
    engine: Any, further: dict[str, Any], labeled: bool
) -> None:
    """What one direction computes for the other is what the other would compute itself."""
    torch.manual_seed(0)
    views = [torch.randn(70, 24).double().requires_grad_() for _ in range(2)]
    inputs = [torch.randn(70, 9).double() for _ in range(2)]
    labels = torch.arange(70) % 7 if labeled else None
    for tile in ("auto", 32):
        both, one_way = (
            UnReMixLoss(layout=layout, engine=engine, tile=tile, **further).double()
            for layout in ("symmetric", "one-way")
        )
        there = one_way(*views, *inputs, labels=labels)
        back = one_way(*views[::-1], *inputs[::-1], labels=labels)
        results = []
        for loss_fn, loss in (
            (both, both(*views, *inputs, labels=labels)),
            (one_way, (there + back) / 2),
        ):
            own = [each for each in loss_fn.parameters() if each.numel()]
            results.append([loss, *torch.autograd.grad(loss, [*views, *own])])
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("temperature", [0.5, torch.tensor(0.5)])
def test_constants_need_no_gradient(temperature: Any) -> None:
    views = torch.eye(4), torch.eye(4)
    loss = UnReMixLoss(components=(), engine="eager")(*views, temperature=temperature)
    torch.testing.assert_close(loss.detach(), InfoNCELoss(temperature=0.5)(*views))


def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1)
    monkeypatch.setenv("UNREMIX_ENGINE", "eager")
    assert find_engine(Options(MIXED), like).name == "eager"
    assert find_engine(Options(MIXED, engine="compiled"), like).name == "compiled"
    assert engine_report() == "eager, as UNREMIX_ENGINE says"
    monkeypatch.setenv("UNREMIX_ENGINE", "natve")
    assert engine_report().startswith("none: UNREMIX_ENGINE is 'natve', not one of auto, eager")
    with pytest.raises(ValueError, match=r"UNREMIX_ENGINE .* did you mean 'native'"):
        find_engine(Options(MIXED), like)


def test_what_native_does_not_serve_is_refused_if_asked_for() -> None:
    with pytest.raises(ValueError, match="engine='auto'"):
        HCLLoss(engine="native")(torch.randn(4, 3), torch.randn(4, 3))
    with pytest.raises(ValueError, match="engine to be one of"):
        InfoNCELoss(engine="fast")  # type: ignore[arg-type]


def test_compiled_on_cuda_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unremix.core.engines.find_spec", lambda name: object())
    like = torch.empty(1, device="meta")
    monkeypatch.setattr(
        "unremix.core.engines._compiles", lambda device: device.type in ("cuda", "meta")
    )
    assert find_engine(Options(MIXED), like).name == "compiled"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert engine_report() == "compiled"


CASES: dict[str, Any] = {
    "InfoNCE": lambda engine: InfoNCELoss(engine=engine, decoupled=True),
    "HCL": lambda engine: HCLLoss(engine=engine),
    "UnReMix": lambda engine: UnReMixLoss(engine=engine),
    "zscore-exp": lambda engine: UnReMixLoss(engine=engine, scaling="zscore-exp"),
    "learnable": lambda engine: UnReMixLoss(
        engine=engine, learnable_temperature=True, mass="none", class_prior=0.1
    ),
}


def two_views(loss_fn: TwoViewLoss, z0: Tensor, z1: Tensor, h0: Tensor, h1: Tensor) -> Tensor:
    loss: Tensor = loss_fn(z0, z1, h0, h1)
    return loss


def graphs(loss_fn: TwoViewLoss, z0: Tensor, z1: Tensor, h0: Tensor, h1: Tensor) -> Tensor:
    """Nodes against three graphs."""
    nodes, known = Views(z0, h0), Views(z1[:3], h1[:3])
    pairs = Pairs.membership(torch.arange(len(z0)) % 3, 3)
    return loss_fn.against(nodes, known, pairs, logits="dot", objective="jsd")


def queue(loss_fn: TwoViewLoss, z0: Tensor, z1: Tensor, h0: Tensor, h1: Tensor) -> Tensor:
    """Two queries against their keys, a queue and negatives of their own."""
    pairs = Pairs.queue(torch.arange(2), torch.arange(len(z1) - 2))
    own = ExtraNegatives(-z1[:4].detach().view(2, 2, -1), h1[:4].view(2, 2, -1), logit_factor=2.0)
    return loss_fn.against(Views(z0[:2], h0[:2]), Views(z1, h1), pairs, extra=own)


Call = Callable[..., Tensor]


def check_compiled(name: str, sizes: tuple[int, ...] = (6,), call: Call = two_views) -> None:
    torch.manual_seed(0)
    for n in sizes:
        views = [torch.randn(n, 5).double().requires_grad_() for _ in range(2)]
        views += [torch.randn(n, 7).double() for _ in range(2)]
        results: list[list[Tensor]] = []
        for engine in ("eager", "compiled"):
            loss_fn = CASES[name](engine).double()
            loss_fn.options = loss_fn.options.__class__(**{**vars(loss_fn.options), "tile": 8})
            loss = call(loss_fn, *views)
            inputs = [*views[:2], *loss_fn.parameters()]
            results.append([loss, *torch.autograd.grad(loss, inputs)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled code that is traced, and not generated, which takes longer."""
    monkeypatch.setattr(compiled, "compile", partial(torch.compile, backend="aot_eager"))
    compiled._compiled.cache_clear()
    yield
    compiled._compiled.cache_clear()
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_eager(name: str, traced: None) -> None:
    check_compiled(name, sizes=(6, 11) if name == "UnReMix" else (6,))  # traced again for another


@pytest.mark.parametrize("call", [graphs, queue])
def test_compiled_equals_eager_for_other_pairs(call: Call, traced: None) -> None:
    check_compiled("UnReMix", call=call)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["UnReMix", "HCL"])
def test_compiled_equals_eager_with_the_default_backend(name: str) -> None:
    compiled._compiled.cache_clear()
    check_compiled(name)
    torch._dynamo.reset()


@pytest.mark.parametrize("engine", ["eager", "native"])
def test_two_threads_may_call_one_loss(engine: Any) -> None:
    if engine == "native" and native.missing():
        pytest.skip(f"there is no compiled code: {native.missing()}")
    loss_fn = UnReMixLoss(engine=engine)
    batches = [torch.randn(4, 30 + n, 8) for n in range(4)]
    expected = [loss_fn(*batch).item() for batch in batches]
    found: dict[tuple[int, int], float] = {}

    def work(number: int) -> None:
        for turn in range(10):
            found[number, turn] = loss_fn(*batches[number]).item()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 40
    for (number, _), loss in found.items():
        assert loss == pytest.approx(expected[number], rel=1e-6)
