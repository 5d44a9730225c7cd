"""Frameworks do not wait for the device: they run on ``meta``, where no tensor has a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from building import MAKERS, fill, make_batch, make_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.simclr import SimCLR


def on_meta(batch: Batch) -> Batch:
    """A batch without values; the key of the whole batch is known to the host."""
    return replace(
        batch,
        views=tuple(view.to("meta") for view in batch.views),
        samples=batch.samples.to("meta"),
        keys=batch.keys.to("meta"),
    )


def assert_runs(model: Any, steps: int = 1) -> None:
    model.to("meta")
    for step in range(steps):
        loss = model(on_meta(make_batch(seed=step, first=4 * step)))
        assert loss.device.type == "meta"
        assert loss.shape == ()
        loss.backward()
        model.after_step()
    for module in (model.encoder, model.head, model.loss):
        for parameter in module.parameters():
            assert parameter.grad is not None


NEGATIVES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "patches": lambda: Patches(2, 3),
    "mochi": lambda: MoCHi(3, 4, 2, 0),
}
MIXINGS: dict[str, Callable[[], Any]] = {"none": lambda: None, "imix": IMix, "unmix": UnMix}


@pytest.mark.parametrize(
    ("layout", "negatives", "mixing"),
    [
        ("both", "none", "none"),
        ("one-way", "none", "none"),
        ("both", "patches", "none"),
        ("one-way", "patches", "none"),
        ("both", "none", "unmix"),
        ("both", "patches", "imix"),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_simclr(name: str, layout: str, negatives: str, mixing: str) -> None:
    loss = MAKERS[name](layout=layout)
    assert_runs(
        make_model(SimCLR, loss, negatives=NEGATIVES[negatives](), mixing=MIXINGS[mixing]())
    )


@pytest.mark.parametrize(
    ("negatives", "mixing"),
    [
        ("none", "none"),
        ("patches", "none"),
        ("mochi", "none"),
        ("mochi", "imix"),
        ("none", "unmix"),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_moco(name: str, negatives: str, mixing: str) -> None:
    parts = {"negatives": NEGATIVES[negatives](), "mixing": MIXINGS[mixing]()}
    model = make_model(MoCo, MAKERS[name](), queue=6, **parts)
    fill(model, 3)  # not yet full; it fills up on the way
    assert_runs(model, steps=3)
    assert len(model.memory) == 6


@pytest.mark.parametrize("name", MAKERS)
def test_an_empty_queue(name: str) -> None:
    assert_runs(make_model(MoCo, MAKERS[name](), queue=6, symmetric=True), steps=2)


class CopiesToTheDevice(TorchDispatchMode):
    """Counts copies from the host to the device, each of which waits."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        given = [each for each in args if isinstance(each, Tensor)]
        if "copy" in function.name() and made.device.type == "meta":
            self.count += any(each.device.type == "cpu" for each in given)
        return made


def test_mixing_copies_nothing_to_the_device() -> None:
    batch = on_meta(make_batch())
    for cutmix in (0.0, 1.0):
        with CopiesToTheDevice() as copies:
            UnMix(cutmix=cutmix)(batch.views[0], batch.keys, batch.batch_key)
        assert copies.count == 0
    with CopiesToTheDevice() as copies:
        torch.ones(3).to("meta")
    assert copies.count == 1


def test_meta_would_tell() -> None:
    """Else the tests above would show nothing."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(nn.Linear(2, 1, device="meta")(torch.empty(1, 2, device="meta")))
