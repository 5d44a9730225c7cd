"""The watched layer: h is found, whatever surrounds the model, and nothing stale is ever used."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import linear, normalize
from torch.nn.parallel import DistributedDataParallel

from unremix import UnReMixLoss
from unremix.core.last_layer import LastLayer, recorded
from unremix.core.last_layer.recorded import TOLERANCE, Recorder

Model = Callable[[Tensor], Tensor]
Call = Callable[[Model, Tensor, Tensor], tuple[Tensor, ...]]

NO_RECORDING = "last_layer to have run .*, got no recording"
NOT_MADE = "embeddings that last_layer made .*, got"
GONE = "last_layer to exist, got .*deleted"


class Encoder(nn.Module):
    def __init__(self, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8, dtype=dtype), nn.Tanh())
        self.head = nn.Linear(8, 4, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(x))
        return z


class Pair(nn.Module):
    """Model and loss in one module, in either order."""

    def __init__(self, model: Encoder, loss_fn: UnReMixLoss, *, loss_first: bool) -> None:
        super().__init__()
        if loss_first:
            self.loss_fn = loss_fn
        self.model = model
        self.loss_fn = loss_fn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> Encoder:
    return Encoder()


@pytest.fixture
def loss_fn(model: Encoder) -> UnReMixLoss:
    return UnReMixLoss(last_layer=model.head)


def draw(n: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x0, x1 = torch.randn(2, n, 6, dtype=dtype)
    return x0, x1


def in_one_call(model: Model, x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    return model(torch.cat([x0, x1])).chunk(2)


def in_two_calls(model: Model, x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    return model(x0), model(x1)


def second_view_first(model: Model, x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    z1, z0 = in_two_calls(model, x1, x0)
    return z0, z1


def halves_swapped(model: Model, x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    z1, z0 = in_one_call(model, x1, x0)
    return z0, z1


CALLS = [in_one_call, in_two_calls, second_view_first, halves_swapped]


def recordings(layer: nn.Linear) -> list[list[Tensor]]:
    """The inputs that each loss keeps of a layer."""
    hooks = [hook for hook in layer._forward_hooks.values() if isinstance(hook, Recorder)]
    return [[each.h for each in hook.recordings if each.h is not None] for hook in hooks]


def assert_works(loss_fn: UnReMixLoss, model: Encoder, run: Model) -> None:
    """The loss of watched embeddings equals that with h0 and h1 passed."""
    x0, x1 = draw(dtype=model.head.weight.dtype)
    with torch.no_grad():
        h0, h1 = model.body(x0), model.body(x1)
    for call in CALLS:
        z0, z1 = call(run, x0, x1)
        torch.testing.assert_close(
            loss_fn(z0, z1), loss_fn(z0, z1, h0, h1), atol=1e-6, rtol=1e-6, msg=call.__name__
        )


@contextlib.contextmanager
def counting_only() -> Iterator[None]:
    """Objects are freed by reference counting alone: a cycle would stay."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What is found


@pytest.mark.parametrize("call", CALLS)
def test_it_finds_the_very_inputs(call: Call, model: Encoder, loss_fn: UnReMixLoss) -> None:
    model.body[0].weight.requires_grad_(False)
    x0, x1 = draw()
    seen: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    z0, z1 = call(model, x0, x1)
    h0, h1 = torch.cat(seen).split(5)
    if call in (second_view_first, halves_swapped):
        h0, h1 = h1, h0
    expected = loss_fn(z0, z1, h0, h1)
    assert torch.equal(loss_fn(z0, z1), expected)
    without = UnReMixLoss()(z0, z1)
    assert (expected - without).abs() > 1e-5  # h matters at all


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_equal_those_with_inputs_passed(
    layout: Any, bias: bool, dtype: torch.dtype
) -> None:
    model = Encoder(bias=bias, dtype=dtype)
    watching = UnReMixLoss(last_layer=model.head, layout=layout)
    told = UnReMixLoss(bias=bias, layout=layout)
    x0, x1 = draw(dtype=dtype)
    found = []
    for loss_fn, passed in ((watching, ()), (told, (model.body(x0), model.body(x1)))):
        loss = loss_fn(*in_two_calls(model, x0, x1), *passed)
        mix = loss_fn.mix_parameters
        found.append([loss, *torch.autograd.grad(loss, [*model.parameters(), mix])])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-6)


def test_a_layer_without_bias_drops_the_one() -> None:
    model = Encoder(bias=False)
    x0, x1 = draw()
    watching = UnReMixLoss(last_layer=model.head)
    z0, z1 = in_two_calls(model, x0, x1)
    h0, h1 = model.body(x0), model.body(x1)
    assert torch.equal(watching(z0, z1), UnReMixLoss(bias=False)(z0, z1, h0, h1))
    assert not torch.equal(watching(z0, z1), UnReMixLoss(bias=True)(z0, z1, h0, h1))


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, 1000.0), (torch.bfloat16, 40.0)])
@pytest.mark.parametrize("call", CALLS)
def test_nearly_equal_views_keep_their_own_inputs(
    call: Call, dtype: torch.dtype, offset: float, model: Encoder
) -> None:
    model.head.bias.data += offset
    model.to(dtype)
    watching = LastLayer(model.head)
    x0, x1 = draw(dtype=dtype)
    z0, z1 = call(model, x0, x1)
    assert (z0 - z1).abs().max() < TOLERANCE[dtype] * offset  # either could be the other
    expected = model.body(x0).detach(), model.body(x1).detach()
    found = tuple(each.inputs for each in watching.find(z0, z1))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [True, False])
def test_training_and_evaluation(training: bool) -> None:
    class Dropping(Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.body.extend([nn.BatchNorm1d(8), nn.Dropout(0.5)])

    model = Dropping().train(training)
    loss_fn = UnReMixLoss(last_layer=model.head)
    seen: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    z0, z1 = in_two_calls(model, *draw())
    assert torch.equal(loss_fn(z0, z1), loss_fn(z0, z1, *seen))


def test_without_gradient(model: Encoder, loss_fn: UnReMixLoss) -> None:
    with torch.no_grad():
        assert_works(loss_fn, model, model)


def test_model_in_inference_mode(model: Encoder, loss_fn: UnReMixLoss) -> None:
    assert_works(loss_fn, model, torch.inference_mode()(model.forward))


def test_float64() -> None:
    model = Encoder(dtype=torch.float64)
    assert_works(UnReMixLoss(last_layer=model.head), model, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("as_float", [True, False])
@pytest.mark.parametrize("within", [True, False])
def test_autocast(
    dtype: torch.dtype, as_float: bool, within: bool, model: Encoder, loss_fn: UnReMixLoss
) -> None:
    x0, x1 = draw()
    for call in CALLS:
        with torch.autocast("cpu", dtype):
            z0, z1 = call(model, x0, x1)
            assert z0.dtype == dtype
            h0, h1 = model.body(x0), model.body(x1)
            if as_float:
                z0, z1 = z0.float(), z1.float()
            inside = loss_fn(z0, z1)
        found = inside if within else loss_fn(z0, z1)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, loss_fn(z0, z1, h0, h1), atol=1e-6, rtol=1e-6)


def test_half_precision_model() -> None:
    model = Encoder(dtype=torch.bfloat16)
    assert_works(UnReMixLoss(last_layer=model.head), model, model)


def test_the_loss_called_twice_on_the_same_embeddings(model: Encoder) -> None:
    loss_fn, other = UnReMixLoss(last_layer=model.head), UnReMixLoss(last_layer=model.head)
    z0, z1 = in_two_calls(model, *draw())
    first, second = loss_fn(z0, z1), loss_fn(z0, z1)
    assert torch.equal(first, second)
    (first + second).backward()
    assert torch.equal(other(z0, z1), first)  # even after backward: nothing was consumed
    assert len(recordings(model.head)) == 2


def test_two_losses_watch_one_layer(model: Encoder) -> None:
    both, one_way = (
        UnReMixLoss(last_layer=model.head, layout="both"),
        UnReMixLoss(last_layer=model.head, layout="one-way"),
    )
    assert_works(both, model, model)
    assert_works(one_way, model, model)
    del both
    assert_works(one_way, model, model)


def test_importance_finds_the_inputs_too(model: Encoder, loss_fn: UnReMixLoss) -> None:
    x0, x1 = draw()
    z0, z1 = in_two_calls(model, x0, x1)
    with torch.no_grad():
        expected = loss_fn.importance(z0, z1, model.body(x0), model.body(x1))
        z0, z1 = in_two_calls(model, x0, x1)
        assert torch.equal(loss_fn.importance(z0, z1).weights, expected.weights)


def test_without_the_uncertainty_nothing_is_looked_up(model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head, components=("similarity",))
    z0, z1 = torch.randn(2, 5, 4)
    assert loss_fn(z0, z1).isfinite()


# What follows the layer


def tail(name: str) -> nn.Module:
    frozen = nn.BatchNorm1d(4, affine=False).eval()
    nn.init.normal_(frozen.running_mean)  # type: ignore[arg-type]
    return {
        "batch norm": nn.BatchNorm1d(4),
        "frozen batch norm": frozen,
        "layer norm": nn.LayerNorm(4),
        "relu": nn.ReLU(),
        "gelu": nn.GELU(),
        "two": nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()),
    }[name]


TAILS = ["batch norm", "frozen batch norm", "layer norm", "relu", "gelu", "two"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("watched", ["head", "part", "linear"])
@pytest.mark.parametrize("name", TAILS)
def test_uncertainty_at_the_layer_whatever_follows_it(name: str, watched: str, call: Call) -> None:
    """u of what the layer made, s and r of the embeddings; h is the layer's input."""
    body, layer = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 4)
    head = nn.Sequential(layer, tail(name))
    model = nn.Sequential(body, head)
    last = {"head": head, "part": head[-2:], "linear": layer}[watched]
    loss_fn = UnReMixLoss(last_layer=last)
    x0, x1 = draw()
    z0, z1 = call(model, x0, x1)
    found = loss_fn.importance(z0, z1)
    h0, h1 = body(x0).detach(), body(x1).detach()
    at_layer = UnReMixLoss().importance(layer(h0), layer(h1), h0, h1)
    at_end = UnReMixLoss().importance(z0, z1)
    torch.testing.assert_close(found.uncertainty, at_layer.uncertainty)
    assert torch.equal(found.similarity, at_end.similarity)
    assert torch.equal(found.representativeness, at_end.representativeness)
    loss = loss_fn(z0, z1)
    loss.backward()
    assert loss.isfinite()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("call", [in_two_calls, second_view_first])
def test_normalized_embeddings(call: Call, check: bool, model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head, check=check)
    x0, x1 = draw()
    z0, z1 = call(model, x0, x1)
    expected = loss_fn(z0, z1)
    torch.testing.assert_close(loss_fn(normalize(z0), normalize(z1)), expected)
    if check:  # by their values, without autograd's graph
        torch.testing.assert_close(loss_fn(*(normalize(z.detach()) for z in (z0, z1))), expected)


def test_weights_mean_what_the_scores_say() -> None:
    """The loss with BatchNorm equals the loss by hand from the scores of both places."""
    layer, norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
    head = nn.Sequential(layer, norm)
    loss_fn = UnReMixLoss(last_layer=head, components=("uncertainty",))
    h0, h1 = torch.randn(2, 5, 8)
    z = head(torch.cat([h0, h1]))
    y = layer(torch.cat([h0, h1])).detach()
    by_hand = UnReMixLoss(components=("uncertainty",)).importance(y[:5], y[5:], h0, h1)
    units = normalize(z)
    logits = units @ units.T / 0.5
    positive = logits[torch.arange(10), torch.arange(10).roll(5)]
    others = (by_hand.weights * logits.exp()).sum(1)
    expected = (positive.exp() / (positive.exp() + others)).log().neg().mean()
    torch.testing.assert_close(loss_fn(*z.chunk(2)), expected)


# Batches in parts, two encoders, parameters


@pytest.mark.parametrize("order", ["one after the other", "in turns", "together"])
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("sizes", [(5,), (3, 2), (2, 2, 2, 1), (1,) * 9])
def test_a_batch_in_parts(
    sizes: tuple[int, ...], end: bool, check: bool, graph: bool, order: str, model: Encoder
) -> None:
    head = nn.Sequential(model.head, nn.LayerNorm(4)) if end else model.head
    loss_fn = UnReMixLoss(last_layer=head, check=check)
    x0, x1 = draw(sum(sizes))
    parts: list[Tensor] = []
    with torch.set_grad_enabled(graph):
        if order == "one after the other":
            z0, z1 = (
                torch.cat([head(model.body(part)) for part in x.split(sizes)]) for x in (x0, x1)
            )
        else:
            for part0, part1 in zip(x0.split(sizes), x1.split(sizes), strict=True):
                if order == "in turns":
                    parts += [head(model.body(part0)), head(model.body(part1))]
                else:
                    parts += head(model.body(torch.cat([part0, part1]))).chunk(2)
            z0, z1 = torch.cat(parts[::2]), torch.cat(parts[1::2])
    z0, z1 = z0.detach().requires_grad_(), z1.detach().requires_grad_()  # as GradCache does
    found = loss_fn(z0, z1)
    h0, h1 = model.body(x0).detach(), model.body(x1).detach()
    y0, y1 = (linear(h, model.head.weight, model.head.bias) for h in (h0, h1))
    at_layer = UnReMixLoss().importance(y0, y1, h0, h1)
    torch.testing.assert_close(loss_fn.importance(z0, z1).uncertainty, at_layer.uncertainty)
    assert found.isfinite()


def test_two_encoders() -> None:
    first, second = Encoder(), Encoder()
    x0, x1 = draw()
    loss_fn = UnReMixLoss(last_layer=(first.head, second.head), layout="symmetric")
    h0, h1 = first.body(x0), second.body(x1)
    z0, z1 = first.head(h0), second.head(h1)
    assert torch.equal(loss_fn(z0, z1), UnReMixLoss(layout="symmetric")(z0, z1, h0, h1))


def test_two_encoders_of_different_widths() -> None:
    """Inputs that have no inner product enter by their lengths."""
    first, second = nn.Linear(6, 4), nn.Linear(7, 4)
    loss_fn = UnReMixLoss(last_layer=(first, second), layout="one-way")
    h0, h1 = torch.randn(5, 6), torch.randn(5, 7)
    z0, z1 = first(h0), second(h1)
    plain = UnReMixLoss(layout="one-way").importance(z0, z1)
    lengths = h0.norm(dim=1)[:, None] * h1.norm(dim=1)
    torch.testing.assert_close(
        loss_fn.importance(z0, z1).uncertainty, plain.uncertainty * (lengths + 1)
    )


@pytest.mark.parametrize("normalized", [True, False])
def test_a_parameter_in_place_of_a_layer(normalized: bool) -> None:
    images, texts = (nn.Parameter(torch.randn(8, 4)) for _ in range(2))
    loss_fn = UnReMixLoss(projection=(images, texts), layout="symmetric")
    assert [name for name, _ in loss_fn.named_parameters()] == ["mix_parameters"]
    h0, h1 = torch.randn(2, 5, 8)
    z0, z1 = h0 @ images, h1 @ texts
    told = UnReMixLoss(layout="symmetric", bias=False)
    expected = told(z0, z1, h0, h1)
    if normalized:
        z0, z1 = normalize(z0), normalize(z1)
    loss = loss_fn(z0, z1)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert images.grad is not None


def test_one_parameter_for_both_views_in_one_product() -> None:
    shared = nn.Parameter(torch.randn(8, 4))
    h0, h1 = torch.randn(2, 5, 8)
    z0, z1 = (torch.cat([h0, h1]) @ shared).chunk(2)
    loss_fn = UnReMixLoss(projection=shared)
    assert torch.equal(loss_fn(z0, z1), UnReMixLoss(bias=False)(z0, z1, h0, h1))
    twin = copy.deepcopy(loss_fn)
    assert torch.equal(twin(z0, z1), loss_fn(z0, z1))


@pytest.mark.parametrize("bad", [torch.randn(8, 4), nn.Parameter(torch.randn(8)), "proj"])
def test_not_a_parameter(bad: Any) -> None:
    with pytest.raises(ValueError, match="projection to be a parameter"):
        UnReMixLoss(projection=bad)


def test_embeddings_without_a_product_by_the_parameter() -> None:
    loss_fn = UnReMixLoss(projection=nn.Parameter(torch.randn(8, 4)))
    with pytest.raises(
        ValueError, match=r"h @ projection with a gradient, got \(5, 4\) .* last_layer="
    ):
        loss_fn(*torch.randn(2, 5, 4))


def test_layer_or_parameter() -> None:
    with pytest.raises(ValueError, match="last_layer or projection, got both"):
        UnReMixLoss(last_layer=nn.Linear(2, 2), projection=nn.Parameter(torch.randn(2, 2)))
    with pytest.raises(ValueError, match=r"last_layer to be .*, got 3"):
        UnReMixLoss(last_layer=(nn.Linear(2, 2),) * 3)  # type: ignore[arg-type]


# torch.compile and DistributedDataParallel


def can_compile() -> bool:
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


@pytest.fixture
def compiling() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not can_compile(), reason="no C++ compiler"),
            pytest.mark.filterwarnings("ignore::DeprecationWarning"),
        ],
    ),
]


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("loss_first", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_model(backend: str, loss_first: bool, model: Encoder) -> None:
    if loss_first:
        loss_fn = UnReMixLoss(last_layer=model.head)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    else:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        loss_fn = UnReMixLoss(last_layer=compiled.head)
    for _ in range(2):
        assert_works(loss_fn, model, compiled)
    loss_fn(*in_two_calls(compiled, *draw())).backward()
    assert model.body[0].weight.grad is not None


@pytest.mark.usefixtures("compiling")
def test_watching_does_not_make_the_model_compile_again(model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for n in (5, 5, 4, 7, 7, 5):
        loss_fn(*in_two_calls(compiled, *draw(n)))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("warm", [True, False])
def test_loss_made_after_the_first_compiled_call(warm: bool, model: Encoder) -> None:
    compiled = torch.compile(model, backend="eager")
    x0, x1 = draw()
    compiled(x0)
    loss_fn = UnReMixLoss(last_layer=model.head)
    if warm:  # recordings there are, but not of the compiled calls
        in_two_calls(model, *draw())
    z0, z1 = in_two_calls(compiled, x0, x1)
    # Whether torch looks at hooks once it has compiled depends on its version and settings.
    with contextlib.suppress(ValueError):
        assert torch.equal(loss_fn(z0, z1), loss_fn(z0, z1, model.body(x0), model.body(x1)))
        return
    with pytest.raises(ValueError, match=NOT_MADE if warm else NO_RECORDING):
        loss_fn(z0, z1)


@pytest.mark.usefixtures("compiling")
def test_the_compiled_model_outlives_the_loss(model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head)
    compiled = torch.compile(model, backend="eager")
    x0, x1 = draw()
    expected = loss_fn(*in_two_calls(compiled, x0, x1))
    del loss_fn
    assert torch.equal(
        UnReMixLoss()(compiled(x0), compiled(x1)), UnReMixLoss()(model(x0), model(x1))
    )
    torch.compiler.reset()
    again = UnReMixLoss(last_layer=model.head)
    assert torch.equal(again(*in_two_calls(compiled, x0, x1)), expected)


def test_distributed_data_parallel(model: Encoder, loss_fn: UnReMixLoss, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert_works(loss_fn, model, DistributedDataParallel(model))
        wrapped = DistributedDataParallel(Encoder())
        assert_works(UnReMixLoss(last_layer=wrapped.module.head), wrapped.module, wrapped)
    finally:
        dist.destroy_process_group()


# What is refused


def test_the_layer_never_ran(model: Encoder, loss_fn: UnReMixLoss) -> None:
    z0, z1 = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=NO_RECORDING):
        loss_fn(z0, z1)


@pytest.mark.parametrize("call", CALLS)
def test_the_graph_knows_what_was_not_recorded(call: Call, model: Encoder) -> None:
    """The layer ran before the loss was made, or was called past its hooks."""
    x0, x1 = draw()
    z0, z1 = call(model, x0, x1)
    h0, h1 = model.body(x0), model.body(x1)
    late = UnReMixLoss(last_layer=model.head)
    expected = late(z0, z1, h0, h1)
    torch.testing.assert_close(late(z0, z1), expected)
    past = (model.head.forward(h0), model.head(input=h1))
    torch.testing.assert_close(late(*past), expected)
    with pytest.raises(ValueError, match=NO_RECORDING):
        late(z0.detach(), z1.detach())


@pytest.mark.parametrize("call", CALLS)
def test_embeddings_of_an_earlier_step(call: Call, model: Encoder, loss_fn: UnReMixLoss) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stale = call(model, *draw())
    loss_fn(*stale).backward()
    optimizer.step()
    fresh = call(model, *draw())
    for z0, z1 in (stale, (stale[0], fresh[1]), (fresh[0], stale[1])):
        with pytest.raises(ValueError, match=NOT_MADE):
            loss_fn(z0, z1)
    assert loss_fn(*fresh).isfinite()


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.flip(0),
        lambda z: z.roll(1, 1),
        lambda z: z[:, :3],
        lambda z: z[torch.tensor([0, 2, 1])],
        lambda z: z.detach() + 0.01,
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_embeddings_modified_after_the_layer(
    change: Callable[[Tensor], Tensor],
    call: Call,
    model: Encoder,
    loss_fn: UnReMixLoss,
) -> None:
    z0, z1 = call(model, *draw())
    with pytest.raises(ValueError, match=NOT_MADE):
        loss_fn(change(z0), change(z1))


@pytest.mark.parametrize(
    "rows",
    [slice(None, None, 2), slice(1, None, 2), slice(1, 9, 3), slice(-4, None), slice(-6, -2)],
    ids=str,
)
def test_any_slice_of_a_call(rows: slice, model: Encoder, loss_fn: UnReMixLoss) -> None:
    """Such as views in turns, z[::2] and z[1::2]."""
    x = torch.cat(draw())
    h, z = model.body(x).detach(), model(x)
    first = slice(len(z[rows]))
    expected = loss_fn(z[rows], z[first], h[rows], h[first])
    torch.testing.assert_close(loss_fn(z[rows], z[first]), expected)


def test_a_mixture_of_two_calls_is_refused(model: Encoder, loss_fn: UnReMixLoss) -> None:
    z0, z1 = in_two_calls(model, *draw())
    with pytest.raises(ValueError, match=NOT_MADE):
        loss_fn(0.3 * z0 + 0.7 * z1, z1)


def test_embeddings_modified_in_place(model: Encoder, loss_fn: UnReMixLoss) -> None:
    with torch.no_grad():
        z0, z1 = in_two_calls(model, *draw())
        z0.add_(1)
        with pytest.raises(ValueError, match=r"got z0 \(5, 4\), which"):
            loss_fn(z0, z1)


def test_a_third_call_in_evaluation(model: Encoder, loss_fn: UnReMixLoss) -> None:
    model.eval()
    with torch.no_grad():
        z0, z1 = in_two_calls(model, *draw())
        model(draw()[0])
        with pytest.raises(ValueError, match=r"got z0 \(5, 4\), which"):
            loss_fn(z0, z1)


@pytest.mark.parametrize("call", CALLS)
def test_weights_changed_in_between(call: Call, model: Encoder, loss_fn: UnReMixLoss) -> None:
    z0, z1 = call(model, *draw())
    loss_fn(z0, z1).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    with pytest.raises(ValueError, match=NOT_MADE):
        loss_fn(z0, z1)


def test_weights_of_another_shape(model: Encoder, loss_fn: UnReMixLoss) -> None:
    z0, z1 = in_two_calls(model, *draw())
    model.head.weight = nn.Parameter(torch.randn(4, 7))
    with pytest.raises(ValueError, match=NOT_MADE):
        loss_fn(z0, z1)


def test_inputs_of_other_dimensions(loss_fn: UnReMixLoss, model: Encoder) -> None:
    """Both views in one call along a further dimension: found in the graph, not in a recording."""
    h = torch.randn(2, 5, 8)
    z = model.head(h)
    for first, second in ((0, 1), (1, 0)):
        expected = UnReMixLoss()(z[first], z[second], h0=h[first], h1=h[second])
        torch.testing.assert_close(loss_fn(z[first], z[second]), expected)
    with torch.no_grad():
        z = model.head(h)
    with pytest.raises(ValueError, match=r"recorded inputs \(2, 5, 8\)"):
        loss_fn.importance(z[0], z[1])


@pytest.mark.parametrize(
    "layer", [nn.ReLU(), nn.Conv1d(3, 3, 1), nn.Sequential(nn.BatchNorm1d(3)), 3, (nn.ReLU(),) * 2]
)
def test_not_a_linear_layer(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"last_layer to be a torch\.nn\.Linear"):
        UnReMixLoss(last_layer=layer)


# What is kept


def test_recordings_are_dropped_once_used(model: Encoder, loss_fn: UnReMixLoss) -> None:
    assert recordings(model.head) == [[]]
    for count in (1, 2, 3, 4):
        z = model(draw()[0])
        assert [len(kept) for kept in recordings(model.head)] == [count]
    loss_fn(z, z)
    for count in (2, 3):
        model(draw()[0])
        assert [len(kept) for kept in recordings(model.head)] == [count]


@pytest.mark.parametrize("unused", ["h is passed", "no uncertainty"])
def test_recordings_that_no_loss_reads_are_dropped(model: Encoder, unused: str) -> None:
    """Up to 1 GiB of them would be kept."""
    components = ("similarity",) if unused == "no uncertainty" else ("uncertainty", "similarity")
    loss_fn = UnReMixLoss(last_layer=model.head, components=components)
    h = torch.randn(5, 8)
    for _ in range(4):
        z0, z1 = (model(x) for x in draw())
        inputs = () if unused == "no uncertainty" else (h, h)
        loss_fn(z0, z1, *inputs)
        assert len(recordings(model.head)[0]) <= 3


def test_two_recordings_in_evaluation(model: Encoder, loss_fn: UnReMixLoss) -> None:
    model.eval()
    for count in (1, 2, 2, 2):
        model(draw()[0])
        assert [len(kept) for kept in recordings(model.head)] == [count]


def test_recordings_have_a_bound(
    model: Encoder, loss_fn: UnReMixLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LARGEST_RECORDINGS", 3 * 5 * 8 * 4)
    for count in (1, 2, 3, 2, 3, 4, 2):
        model(draw()[0])
        assert [len(kept) for kept in recordings(model.head)] == [count]


def test_recordings_keep_no_graph(model: Encoder, loss_fn: UnReMixLoss) -> None:
    x0, x1 = draw()
    x0.requires_grad_()
    z0, z1 = in_two_calls(model, x0, x1)
    loss = loss_fn(z0, z1)
    (kept,) = recordings(model.head)
    assert not any(h.requires_grad or h.grad_fn is not None for h in kept)
    parts = [weakref.ref(part) for part in (x0, z0, z1, loss)]  # the graph would keep x0
    with counting_only():
        del x0, z0, z1, loss
        assert [part() for part in parts] == [None] * len(parts)


def test_the_loss_holds_only_the_mix(model: Encoder, loss_fn: UnReMixLoss) -> None:
    assert list(loss_fn.state_dict()) == ["mix_parameters"]
    assert [name for name, _ in loss_fn.named_parameters()] == ["mix_parameters"]
    assert [*loss_fn.children()] == []
    with torch.no_grad():
        loss_fn.mix_parameters.copy_(torch.tensor([0.1, 0.2, 0.3]))
    other = UnReMixLoss(last_layer=Encoder().head)
    other.load_state_dict(loss_fn.state_dict())
    assert other.mix == loss_fn.mix


@pytest.mark.parametrize("loss_first", [True, False])
def test_loss_and_model_are_in_no_cycle(loss_first: bool) -> None:
    model = Encoder()
    loss_fn = UnReMixLoss(last_layer=model.head)
    loss_fn(*in_two_calls(model, *draw())).backward()
    things = [weakref.ref(thing) for thing in (model, model.head, loss_fn, loss_fn.last_layer)]
    with counting_only():
        if loss_first:
            del loss_fn
            del model
        else:
            del model
            del loss_fn
        assert [thing() for thing in things] == [None] * len(things)


def test_a_deleted_loss_leaves_no_hook(model: Encoder) -> None:
    kept = UnReMixLoss(last_layer=model.head)
    loss_fn = UnReMixLoss(last_layer=model.head)
    loss_fn(*in_two_calls(model, *draw()))
    assert len(model.head._forward_hooks) == 2
    with counting_only():
        del loss_fn
        assert len(model.head._forward_hooks) == 1
        assert_works(kept, model, model)
        del kept
        assert len(model.head._forward_hooks) == 0


def test_a_deleted_model_is_missed() -> None:
    model = Encoder()
    loss_fn = UnReMixLoss(last_layer=model.head)
    x0, x1 = draw()
    z0, z1 = in_two_calls(model, x0, x1)
    h0, h1 = model.body(x0), model.body(x1)
    del model
    with pytest.raises(ValueError, match=GONE):
        loss_fn(z0, z1)
    assert torch.equal(loss_fn(z0, z1, h0, h1), UnReMixLoss()(z0, z1, h0, h1))


# Copies and pickles


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def saved(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("loss_first", [True, False])
@pytest.mark.parametrize("ran", [True, False])
def test_copied_together(
    duplicate: Callable[[Any], Any],
    loss_first: bool,
    ran: bool,
    model: Encoder,
    loss_fn: UnReMixLoss,
) -> None:
    if ran:
        loss_fn(*in_two_calls(model, *draw())).backward()
    twin = duplicate(Pair(model, loss_fn, loss_first=loss_first))
    with torch.no_grad():
        for parameter in twin.model.parameters():
            parameter.add_(0.1)
    assert twin.model.head is not model.head
    z0, z1 = in_two_calls(model, *draw())
    if not ran:
        with pytest.raises(ValueError, match=NO_RECORDING):
            twin.loss_fn(z0, z1)
    assert_works(twin.loss_fn, twin.model, twin.model)
    assert loss_fn(z0, z1).isfinite()  # the copy's calls have not disturbed the original
    with pytest.raises(ValueError, match=NOT_MADE):
        twin.loss_fn(z0, z1)
    assert_works(loss_fn, model, model)
    del twin
    gc.collect()
    assert_works(loss_fn, model, model)
    assert len(model.head._forward_hooks) == 1


def test_copied_together_the_copy_goes_its_own_way() -> None:
    model = Encoder()
    loss_fn = UnReMixLoss(last_layer=model.head)
    twin_model, twin_loss = copy.deepcopy((model, loss_fn))
    assert_works(twin_loss, twin_model, twin_model)
    layer = model.head
    with counting_only():
        del loss_fn
        assert len(layer._forward_hooks) == 0
    del model, layer
    assert_works(twin_loss, twin_model, twin_model)
    del twin_model
    with pytest.raises(ValueError, match=GONE):
        twin_loss(*torch.randn(2, 5, 4))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_of_copies_gather_no_hooks(
    duplicate: Callable[[Any], Any], model: Encoder, loss_fn: UnReMixLoss
) -> None:
    pair = model, loss_fn
    for _ in range(3):
        pair = duplicate(pair)
        assert len(pair[0].head._forward_hooks) == 1
        assert_works(pair[1], pair[0], pair[0])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy])
def test_a_loss_copied_alone_keeps_watching(
    duplicate: Callable[[Any], Any], model: Encoder, loss_fn: UnReMixLoss
) -> None:
    x0, x1 = draw()
    before = in_two_calls(model, x0, x1)
    twin = duplicate(loss_fn)
    assert torch.equal(twin(*before), loss_fn(*before))
    assert_works(twin, model, model)
    assert_works(loss_fn, model, model)
    del twin
    assert_works(loss_fn, model, model)
    assert len(model.head._forward_hooks) == 1


def test_a_loss_copied_alone_outlives_the_original(model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head)
    with torch.no_grad():
        loss_fn.mix_parameters.copy_(torch.tensor([0.1, 0.2, 0.3]))
    twin = copy.deepcopy(copy.deepcopy(loss_fn))
    mix = loss_fn.mix
    del loss_fn
    assert twin.mix == mix
    assert_works(twin, model, model)
    with counting_only():
        del twin
        assert len(model.head._forward_hooks) == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_model_copied_alone_records_nothing(
    duplicate: Callable[[Any], Any], model: Encoder, loss_fn: UnReMixLoss
) -> None:
    twin = duplicate(model)
    in_two_calls(twin, *draw())
    assert recordings(twin.head) == [[]]
    assert recordings(model.head) == [[]]
    assert_works(UnReMixLoss(last_layer=twin.head), twin, twin)
    assert_works(loss_fn, model, model)


@pytest.mark.parametrize("duplicate", [pickled, saved])
def test_a_loss_pickled_alone(
    duplicate: Callable[[Any], Any], model: Encoder, loss_fn: UnReMixLoss
) -> None:
    x0, x1 = draw()
    z0, z1 = in_two_calls(model, x0, x1)
    h0, h1 = model.body(x0), model.body(x1)
    twin = duplicate(duplicate(loss_fn))
    assert torch.equal(twin(z0, z1, h0, h1), loss_fn(z0, z1))
    with pytest.raises(ValueError, match=GONE):
        twin(z0, z1)
    again = UnReMixLoss(last_layer=model.head)
    again.load_state_dict(twin.state_dict())
    assert_works(again, model, model)


def test_recordings_are_not_pickled(model: Encoder, loss_fn: UnReMixLoss) -> None:
    before = len(pickle.dumps((model, loss_fn)))
    in_two_calls(model, *draw(1000))
    assert len(pickle.dumps((model, loss_fn))) == before
    assert before < 10_000


# Without checks


@pytest.mark.parametrize("call", CALLS)
def test_unchecked_the_same_inputs_are_found(call: Call, model: Encoder) -> None:
    checked, unchecked = (UnReMixLoss(last_layer=model.head, check=on) for on in (True, False))
    z0, z1 = call(model, *draw())
    found = [last_layer_of(each).find(z0, z1, check=on) for each, on in
             ((checked, True), (unchecked, False))]  # fmt: skip
    assert all(torch.equal(one.inputs, other.inputs) for one, other in zip(*found, strict=True))
    losses = [each(z0, z1) for each in (checked, unchecked)]
    assert torch.equal(*losses)
    for one, other in zip(*(torch.autograd.grad(loss, [z0, z1]) for loss in losses), strict=True):
        assert torch.equal(one, other)


def last_layer_of(loss_fn: UnReMixLoss) -> LastLayer:
    assert isinstance(loss_fn.last_layer, LastLayer)
    return loss_fn.last_layer


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_unchecked_the_loss_of_other_embeddings_is_nan(
    call: Call, first: bool, model: Encoder
) -> None:
    """No error, and no number that looks like a loss."""
    loss_fn = UnReMixLoss(last_layer=model.head, check=False)
    z0, z1 = call(model, *draw())
    z0, z1 = (z0.flip(0), z1) if first else (z0, z1.flip(0))
    h0, h1 = (each.inputs for each in last_layer_of(loss_fn).find(z0, z1, check=False))
    assert bool(h0.isnan().all()) == first
    assert bool(h1.isnan().all()) != first
    assert not (h1 if first else h0).isnan().any()
    assert loss_fn(z0, z1).isnan()


@pytest.mark.parametrize("call", CALLS)
def test_unchecked_nothing_waits_for_the_device(call: Call) -> None:
    """Tensors on ``meta`` have no values to wait for."""
    model = Encoder().to("meta")
    loss_fn = UnReMixLoss(last_layer=model.head).to("meta")
    z0, z1 = call(model, *(x.to("meta") for x in draw()))
    for found in last_layer_of(loss_fn).find(z0, z1, check=False):
        assert found.inputs.shape == (5, 8)
    loss = loss_fn(z0, z1)
    assert loss.device.type == "meta"
    loss.backward()
    gradients = [*model.parameters(), *loss_fn.parameters()]
    assert all(parameter.grad is not None for parameter in gradients)


def test_shapes_are_checked_all_the_same(model: Encoder) -> None:
    loss_fn = UnReMixLoss(last_layer=model.head, check=False)
    z0, z1 = in_two_calls(model, *draw())
    with pytest.raises(ValueError, match=NOT_MADE):
        loss_fn(z0[:3].detach(), z1[:3].detach())
