"""Embedding in chunks against embedding at once: gradients, random numbers, BatchNorm, memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from batches import assert_close
from torch import Tensor, nn

import unremix
from unremix import InfoNCELoss, UnReMixLoss
from unremix.losses import TwoViewLoss


class Dropped(nn.Module):
    """Drops numbers that are drawn one by one, so that chunks of them are those of the whole."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.stack([torch.rand(x.shape[1]) for _ in range(len(x))]) > 0.3
        return x * kept


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), Dropped(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 5)
    ).double()


def views(count: int = 11) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(2, count, 6, generator=generator, dtype=torch.float64))


def found(loss: Tensor, *modules: nn.Module) -> list[Tensor]:
    loss.backward()
    own = [parameter for module in modules for parameter in module.parameters()]
    return [loss.detach(), *(each.grad for each in own if each.grad is not None)]


@pytest.mark.parametrize("chunk", [1, 4, 11, 50])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"layout": "symmetric"}, {"mix": "free", "sketch": 3}])
def test_the_gradient_is_that_of_the_whole_batch(
    chunk: int, training: bool, options: dict[str, Any]
) -> None:
    """At the encoder, its last layer that is watched, and the mix; the values as well."""
    results = []
    for size in (None, chunk):
        model = encoder().train(training)
        loss_fn = UnReMixLoss(last_layer=model[-1], **options).double()
        x0, x1 = views()
        torch.manual_seed(3)
        if size is None:
            loss = loss_fn(model(x0), model(x1))
        else:
            loss = unremix.cached(loss_fn, model, chunk=size)(x0, x1)
        results.append(found(loss, model, loss_fn))
    for one, other in zip(*results, strict=True):
        assert_close(one, other)


def test_steps_follow_each_other() -> None:
    """What was recorded in a step, and in its second pass, is not taken for that of the next."""
    results = []
    for size in (50, 4):
        model = encoder()
        loss_fn = UnReMixLoss(last_layer=model[-1]).double()
        optimizer = torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.1)
        cached = unremix.cached(loss_fn, model, chunk=size)
        losses = []
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = cached(*views(11 + step), labels=torch.arange(11 + step) % 4)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        results.append(torch.stack(losses))
    assert_close(*results)


def test_no_activations_wait_for_the_backward_pass() -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)))
    kept = []
    for each in (model, unremix.InChunks(model, chunk=8)):
        numbers: list[int] = []

        def keep(tensor: Tensor, numbers: list[int] = numbers) -> Tensor:
            numbers.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            each(torch.randn(64, 6)).sum()
        kept.append(sum(numbers))
    assert kept[0] >= 8 * 64 * 6
    assert kept[1] <= 64 * 6


def test_batch_norm_sees_chunks_and_moves_once() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
    twin = copy.deepcopy(model)
    (x, _) = views(8)
    z = unremix.InChunks(model, chunk=4)(x)
    z.pow(2).sum().backward()
    expected = torch.cat([twin(part) for part in x.split(4)])
    expected.pow(2).sum().backward()
    assert_close(z, expected)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert_close(one.grad, other.grad)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, other)


def test_tokens_by_name_and_several_outputs() -> None:
    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, tokens: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            mean = (self.words(tokens["ids"]) * tokens["mask"][..., None]).mean(1)
            return mean, 2 * mean

    model, tokens = Texts(), {"ids": torch.randint(9, (7, 3)), "mask": torch.ones(7, 3)}
    for one, other in zip(unremix.InChunks(model, chunk=3)(tokens), model(tokens), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match=r"a tensor .* or tensors by name, got list"):
        unremix.InChunks(model, chunk=3)([1, 2])
    with pytest.raises(ValueError, match="chunk"):
        unremix.InChunks(model, chunk=0)


@pytest.mark.parametrize("loss_fn", [InfoNCELoss(), UnReMixLoss()])
def test_without_gradient_it_is_the_loss(loss_fn: TwoViewLoss) -> None:
    model = encoder()[:2]
    with torch.no_grad():
        loss = unremix.cached(loss_fn, model, chunk=3)(*views())
        assert_close(loss, loss_fn(*(model(view) for view in views())))
