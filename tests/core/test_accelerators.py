"""Ready for accelerators: nothing waits for the device.

On ``meta`` tensors every operation that reads a value on the host raises: ``.item()``, ``bool()``,
``nonzero``, indexing with a boolean mask. What runs there, forward and backward, runs without
synchronization.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.torch_version import TorchVersion

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.pairs import Pairs
from unremix.core.views import ExtraNegatives, Views
from unremix.losses import TwoViewLoss

META = torch.device("meta")

LOSSES: dict[str, Any] = {
    "InfoNCE": lambda: InfoNCELoss(engine="eager"),
    "debiased": lambda: InfoNCELoss(engine="eager", class_prior=0.1),
    "decoupled": lambda: InfoNCELoss(engine="eager", decoupled=True),
    "HCL": lambda: HCLLoss(engine="eager"),
    "UnReMix": lambda: UnReMixLoss(engine="eager"),
    "zscore-exp": lambda: UnReMixLoss(engine="eager", scaling="zscore-exp"),
    "paper": lambda: UnReMixLoss(engine="eager", fidelity="paper"),
    "code": lambda: UnReMixLoss(engine="eager", fidelity="code"),
    "nt-xent": lambda: UnReMixLoss(engine="eager", gradient="nt-xent"),
    "free": lambda: UnReMixLoss(engine="eager", mix="free", sketch=3),
    "learnable": lambda: UnReMixLoss(engine="eager", learnable_temperature=True),
}


def meta(*shape: int, grad: bool = True) -> Tensor:
    return torch.empty(shape, device=META, requires_grad=grad)


def test_meta_tensors_catch_what_waits_for_the_device() -> None:
    values = meta(4, grad=False)
    for wait in (
        lambda: values.sum().item(),
        lambda: bool(values.sum() > 0),
        lambda: values[values > 0],
        lambda: values.nonzero(),
        lambda: float(values.max()),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wait()


@pytest.mark.parametrize("layout", ["both", "one-way", "symmetric"])
@pytest.mark.parametrize("name", LOSSES)
def test_two_views(name: str, layout: Any) -> None:
    loss_fn = LOSSES[name]().to(META)
    loss_fn.layout = layout
    z0, z1 = meta(6, 5), meta(6, 5)
    h0, h1 = meta(6, 7, grad=False), meta(6, 7, grad=False)
    loss = loss_fn(z0, z1, h0, h1)
    loss.backward()
    assert loss.shape == ()
    assert z0.grad is not None
    assert all(each.grad is not None for each in loss_fn.parameters())


@pytest.mark.parametrize("name", ["InfoNCE", "HCL", "UnReMix", "zscore-exp"])
def test_in_several_blocks_with_ids(name: str) -> None:
    loss_fn: TwoViewLoss = LOSSES[name]().to(META)
    ids = torch.empty(6, dtype=torch.long, device=META)
    object.__setattr__(loss_fn.options, "tile", 4)
    z0, z1, h0, h1 = meta(6, 5), meta(6, 5), meta(6, 7, grad=False), meta(6, 7, grad=False)
    loss_fn(z0, z1, h0, h1, ids=ids).backward()
    assert z1.grad is not None


@pytest.mark.parametrize("with_own", [False, True])
@pytest.mark.parametrize("name", ["InfoNCE", "HCL", "UnReMix", "zscore-exp"])
def test_a_queue_and_own_negatives(name: str, with_own: bool) -> None:
    loss_fn = LOSSES[name]().to(META)
    samples = torch.empty(4, dtype=torch.long, device=META)
    queue = torch.empty(9, dtype=torch.long, device=META)
    z = meta(4, 5)
    own = (
        ExtraNegatives(meta(4, 2, 5, grad=False), meta(4, 2, 7, grad=False), logit_factor=2.0)
        if with_own
        else None
    )
    for aims in ({}, {"keys": samples[:, None].expand(4, 2), "shares": meta(4, 2, grad=False)}):
        loss = loss_fn.against(
            Views(z, meta(4, 7, grad=False)),
            Views(meta(13, 5, grad=False), meta(13, 7, grad=False)),
            Pairs.queue(samples, queue, **aims),
            extra=own,
            positives_in_denominator=bool(aims),
        )
        loss.backward()
    assert z.grad is not None


@pytest.mark.parametrize("objective", ["jsd", "info-nce"])
def test_graphs_and_sentences(objective: Any) -> None:
    loss_fn = UnReMixLoss(engine="eager").to(META)
    z, groups = meta(6, 5), torch.empty(6, dtype=torch.long, device=META)
    for candidates, pairs in (
        (meta(3, 5), Pairs.membership(groups, 3)),
        (meta(6, 5), Pairs.windows(groups, texts=groups)),
    ):
        loss_fn.against(
            Views(z), Views(candidates), pairs, logits="dot", objective=objective
        ).backward()
    assert z.grad is not None


def test_mixed_views() -> None:
    loss_fn = UnReMixLoss(engine="eager").to(META)
    keys = torch.empty(4, 2, dtype=torch.long, device=META)
    z0, z1 = meta(4, 5), meta(4, 5)
    loss_fn.aimed(z0, z1, keys=keys, shares=meta(4, 2, grad=False)).backward()
    assert z0.grad is not None


@pytest.fixture
def two_processes() -> Iterator[None]:
    """A group of two whose exchanges only have the right shapes."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 8), reason="torch 2.6 gathers nothing without values"
)
@pytest.mark.parametrize("layout", ["both", "one-way", "symmetric"])
@pytest.mark.parametrize("name", ["InfoNCE", "HCL", "UnReMix", "zscore-exp"])
def test_gathered_negatives(name: str, layout: Any, two_processes: None) -> None:
    loss_fn = LOSSES[name]().to(META)
    loss_fn.layout, loss_fn.gather = layout, "equal"
    z0, z1, h0, h1 = meta(6, 5), meta(6, 5), meta(6, 7, grad=False), meta(6, 7, grad=False)
    loss_fn(z0, z1, h0, h1).backward()
    queue = Pairs.queue(torch.empty(6, device=META), torch.empty(9, device=META))
    old = Views(meta(15, 5, grad=False), meta(15, 7, grad=False))
    own = ExtraNegatives(meta(6, 2, 5, grad=False), meta(6, 2, 7, grad=False))
    loss_fn.against(Views(z0, h0), old, queue, extra=own).backward()
    assert z0.grad is not None
    assert all(each.grad is not None for each in loss_fn.parameters())


@pytest.mark.parametrize(
    ("loss_fn", "what"),
    [
        (UnReMixLoss(engine="eager"), "mix"),
        (UnReMixLoss(engine="eager", mix="fixed"), "mix"),
        (InfoNCELoss(engine="eager", learnable_temperature=True), "temperature"),
    ],
)
def test_a_loss_on_another_device_says_so(loss_fn: TwoViewLoss, what: str) -> None:
    z0, z1 = meta(6, 5), meta(6, 5)
    with pytest.warns(UserWarning, match=rf"on meta, got its {what} on cpu"):
        assert loss_fn(z0, z1).device == META
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn.to(META)(z0, z1)


def test_checks_can_be_turned_on_and_off() -> None:
    z = torch.randn(4, 3)
    broken = z.clone()
    broken[0] = torch.nan
    with pytest.raises(ValueError, match="finite z0"):
        InfoNCELoss()(broken, z)
    assert InfoNCELoss(check=False)(broken, z).isnan()
    with pytest.raises((RuntimeError, NotImplementedError)):
        InfoNCELoss(check=True, engine="eager")(meta(4, 3), meta(4, 3))


@pytest.mark.parametrize("name", LOSSES)
def test_functional_call(name: str) -> None:
    torch.manual_seed(0)
    loss_fn: nn.Module = LOSSES[name]()
    views = tuple(torch.randn(5, 4) for _ in range(4))
    other = {key: torch.randn_like(value) for key, value in loss_fn.state_dict().items()}
    found = functional_call(loss_fn, other, views)
    loss_fn.load_state_dict(other)
    torch.testing.assert_close(found, loss_fn(*views))
