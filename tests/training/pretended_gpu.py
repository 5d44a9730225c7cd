"""Losses and training steps on a pretended GPU; test_pretended_gpu.py runs this file by pytest.

Torch lets a process register a device in Python, with streams and autocast as a GPU has them, and
FakeTensorMode gives its tensors shapes and no values. So whatever reads a value on the host raises,
a copy that was forgotten raises, since tensors lie on two devices, and memory can be counted. A
process of its own runs this, since a device is registered for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.problem import BLOCK_ELSEWHERE
from unremix.domains import find_domain
from unremix.domains.base import make_batch
from unremix.domains.graph.features import NodeEncoding
from unremix.domains.graph.model import GraphShape
from unremix.domains.graph.store import GraphBatch
from unremix.domains.image.views import ImageShape
from unremix.domains.options import TrainConfig
from unremix.domains.sentence.corpus import SentenceBatch
from unremix.domains.sentence.model import SentenceShape
from unremix.domains.sentence.options import SentenceOptions
from unremix.domains.vectors.encoding import VectorShape
from unremix.domains.vectors.files import as_column
from unremix.frameworks.base import Batch, Framework
from unremix.training.building import outline_model
from unremix.training.optimizers import make_optimizer


class Pretended(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def gpu() -> torch.device:
    """The device; registered by the first test, not on import, which collecting doctests does."""
    _setup_privateuseone_for_python_backend("pretended", backend_module=Pretended())
    return torch.device("pretended:0")


HOST_RANDOM = ("rand", "normal", "uniform", "bernoulli", "multinomial", "poisson", "exponential")

LOSSES: dict[str, Any] = {
    "InfoNCE": InfoNCELoss,
    "debiased": lambda **more: InfoNCELoss(class_prior=0.1, **more),
    "HCL": HCLLoss,
    "UnReMix": UnReMixLoss,
    "zscore-exp": lambda **more: UnReMixLoss(scaling="zscore-exp", **more),
    "paper": lambda **more: UnReMixLoss(fidelity="paper", **more),
    "code": lambda **more: UnReMixLoss(fidelity="code", **more),
    "free": lambda **more: UnReMixLoss(mix="free", **more),
}
# Un-Mix draws for the whole batch on the host: see frameworks/test_no_waiting.py.
RECIPES = ["unremix-simclr", "unremix-moco"]
OTHERS = ["simclr", "debiased", "hcl", "moco", "mochi", "swav", "imix", "patch"]


MODE = FakeTensorMode()


@pytest.fixture(autouse=True)
def pretending() -> Iterator[None]:
    gpu()
    with MODE:
        yield


def pretended(model: nn.Module) -> None:
    """Bring the outline of a model, on meta, to the pretended GPU."""
    for module in model.modules():
        for name, one in module.named_parameters(recurse=False):
            fake = FakeTensor(MODE, one.detach(), gpu())
            setattr(module, name, nn.Parameter(fake, requires_grad=one.requires_grad))
        for name, one in module.named_buffers(recurse=False):
            setattr(module, name, FakeTensor(MODE, one, gpu()))


class Watched(TorchDispatchMode):
    """Notes copies from the host that wait, and what draws from torch's generators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made, name = function(*args, **(kwargs or {})), function.name()
        given = [one for one in args if isinstance(one, Tensor)]
        waits = not (kwargs or {}).get("non_blocking", False)
        if isinstance(made, Tensor) and made.device == gpu() and "copy" in name and waits:
            self.seen += [name for one in given if one.device.type == "cpu" and one.dim()]
        if any(word in name for word in HOST_RANDOM):
            self.seen.append(name)
        return made


def views_of(
    count: int, width: int, hidden: int, numbers: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    z = [
        torch.empty(count, width, dtype=numbers, device=gpu(), requires_grad=True) for _ in range(2)
    ]
    return (*z, *(torch.empty(count, hidden, dtype=numbers, device=gpu()) for _ in range(2)))


def peak_of(make: Any, count: int, width: int, hidden: int) -> int:
    """Bytes that forward and backward take at most."""
    with gpu():
        loss_fn = make()
    views, tracker = views_of(count, width, hidden), MemTracker()
    with tracker:
        loss_fn(*views).backward()
    return int(tracker.get_tracker_snapshot("peak")[gpu()]["Total"])


def bound(count: int, width: int, hidden: int) -> int:
    """What docs/benchmarks.md states: 18 arrays of a block, and 3 times the views."""
    block = min(BLOCK_ELSEWHERE, (2 * count) ** 2)
    return 4 * (18 * block + 3 * 2 * count * (width + hidden))


def test_what_reads_a_value_raises() -> None:
    with pytest.raises(DataDependentOutputException):
        bool(torch.empty(3, device=gpu()).sum() > 0)
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(3, device=gpu()) + torch.empty(3)
    with Watched() as watched:
        torch.empty(3).to(gpu())
        torch.rand(3, device=gpu())
    assert len(watched.seen) == 2


@pytest.mark.parametrize("numbers", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, numbers: torch.dtype) -> None:
    with gpu():
        loss_fn = LOSSES[name]()
    views = views_of(6, 5, 7, numbers)
    with Watched() as watched:
        loss = loss_fn(*views)
        loss.backward()
    assert loss.dtype == torch.float32
    assert all(one.grad is not None and one.grad.device == gpu() for one in views[:2])
    assert not watched.seen


@pytest.mark.parametrize("name", LOSSES)
def test_memory(name: str) -> None:
    assert peak_of(LOSSES[name], 1024, 128, 512) <= bound(1024, 128, 512)


@pytest.mark.slow
def test_memory_of_65536_views() -> None:
    assert peak_of(UnReMixLoss, 32_768, 128, 512) <= bound(32_768, 128, 512)


def outlined(config: TrainConfig, shape: Any) -> Framework:
    """The outline of a run's model, on the pretended GPU."""
    with unset_fake_temporarily():
        model = outline_model(config, shape)
        assert model is not None
        pretended(model)
    return model


def train(model: Framework, make: Callable[[int], Batch]) -> None:
    """Two steps; the second waits for nothing and draws nothing from torch's generators."""
    optimizer = make_optimizer(model, model.undecayed(), name="adam", lr=1e-3, weight_decay=1e-6)
    for step in range(2):
        with Watched() as watched:
            loss = model(make(step))
            loss.backward()
        optimizer.step()
        model.after_step()
        assert loss.device == gpu()
        assert loss.dtype == torch.float32
        if step:  # in the first, constants are copied, once for all
            assert not watched.seen


@pytest.mark.parametrize(
    "recipe", [*RECIPES, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_a_step(recipe: str) -> None:
    config = TrainConfig(recipe=recipe, backbone="resnet18", width=4, batch_size=8)
    shape, domain = ImageShape(3, 32, "cifar"), find_domain("image")
    model = outlined(config, shape)
    model.reserve(64)
    images = torch.empty(8, 3, 32, 32, dtype=torch.uint8, device=gpu())
    indices = numbers_of(8)
    train(
        model,
        lambda step: make_batch(domain, images, indices, model, config, shape, step=step, epoch=0),
    )


def numbers_of(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.long, device=gpu())


def batch_of(*views: Any, count: int) -> Batch:
    return Batch(views, numbers_of(count), numbers_of(count), torch.tensor([7]))


@pytest.mark.parametrize("recipe", ["scarf", "scarf-unremix"])
def test_a_step_on_rows(recipe: str) -> None:
    config = TrainConfig(domain="vectors", recipe=recipe, batch_size=8)
    with unset_fake_temporarily():
        columns = {"a": [1.0, 2.0], "b": [0.5, 3.0]}
        shape = VectorShape.fit(
            {name: as_column(np.array(values)) for name, values in columns.items()}, ["a", "b"], {}
        )
    views = [torch.empty(8, 2, device=gpu()) for _ in range(2)]
    train(outlined(config, shape), lambda _: batch_of(*views, count=8))


@pytest.mark.parametrize(
    "recipe", ["infograph", "infograph-hcl", "infograph-unremix", "graphcl", "graphcl-unremix"]
)
def test_a_step_on_graphs(recipe: str) -> None:
    config = TrainConfig(domain="graph", recipe=recipe, batch_size=4)
    shape = GraphShape(NodeEncoding("degree", max_degree=2))
    model = outlined(config, shape)
    edges = torch.empty(2, 20, dtype=torch.long, device=gpu())
    graphs = GraphBatch(torch.empty(12, 3, device=gpu()), edges, numbers_of(12), 4)
    views = [graphs] * (2 if model.takes_views else 1)
    train(model, lambda _: batch_of(*views, count=4))


# A GRU packs sentences by their lengths, which it reads on the host: they stay there.
@pytest.mark.parametrize("encoder", ["bow", "transformer"])
@pytest.mark.parametrize("recipe", ["quickthought", "quickthought-hcl", "quickthought-unremix"])
def test_a_step_on_sentences(recipe: str, encoder: Any) -> None:
    own = SentenceOptions(encoder=encoder, words=8)
    config = TrainConfig(domain="sentence", recipe=recipe, batch_size=8, own=own)
    words = tuple(f"word{one}" for one in range(9))
    model = outlined(config, SentenceShape(words, tuple(range(9, 0, -1)), 1))
    tokens, lengths = torch.empty(8, 5, dtype=torch.long), torch.tensor([5] * 8)
    rows = SentenceBatch(tokens, lengths, *(numbers_of(8) for _ in range(2)))
    sentences = rows.to(gpu())
    train(model, lambda _: batch_of(sentences, count=8))
