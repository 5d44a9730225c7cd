"""The adapter for lightly against its NTXentLoss, its heads and its memory bank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import leaf, with_gradients
from lightly.loss import NTXentLoss
from lightly.models.modules import MoCoProjectionHead, SimCLRProjectionHead
from torch import Tensor, nn

import unremix
from unremix.adapters.lightly import UnReMixLoss


def two_views() -> list[Tensor]:
    return [leaf(9, 5), leaf(9, 5)]


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_without_components_it_is_nt_xent(temperature: float) -> None:
    views = two_views()
    torch.testing.assert_close(
        with_gradients(UnReMixLoss(temperature, components=())(*views), *views),
        with_gradients(NTXentLoss(temperature)(*views), *views),
    )


def test_with_components_it_is_unremix() -> None:
    views = two_views()
    torch.testing.assert_close(
        with_gradients(UnReMixLoss(0.3)(*views), *views),
        with_gradients(unremix.UnReMixLoss(temperature=0.3)(*views), *views),
    )


def test_memory_bank() -> None:
    """Three steps: the bank starts, fills and wraps around as lightly's does."""
    ours = UnReMixLoss(0.2, memory_bank_size=(16, 5), components=())
    theirs = NTXentLoss(0.2, memory_bank_size=(16, 5))
    theirs.memory_bank.load_state_dict(ours.memory_bank.state_dict())
    theirs.memory_bank.bank.copy_(ours.memory_bank.bank)
    for _ in range(3):
        views = [each.detach().float().requires_grad_() for each in two_views()]
        found, expected = (with_gradients(loss_fn(*views), *views) for loss_fn in (ours, theirs))
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours.memory_bank.bank, theirs.memory_bank.bank)
    frozen = ours.memory_bank.bank.clone()
    with torch.no_grad():
        ours(*(each.detach() for each in views))
    assert torch.equal(ours.memory_bank.bank, frozen)  # kept in evaluation


def test_the_memory_bank_is_weighted() -> None:
    loss_fn = UnReMixLoss(0.2, memory_bank_size=(16, 5))
    plain = UnReMixLoss(0.2, memory_bank_size=(16, 5), components=())
    plain.memory_bank.bank.copy_(loss_fn.memory_bank.bank)
    views = [each.detach().float().requires_grad_() for each in two_views()]
    loss = loss_fn(*views)
    loss.backward()
    assert (loss - plain(*views)).abs() > 1e-3
    assert loss_fn.weighted.mix_parameters.grad.abs().sum() > 0


@pytest.mark.parametrize("watched", ["head", "layers", "linear"])
def test_lightly_s_heads(watched: str) -> None:
    """The last layer of lightly's SimCLR head is followed by BatchNorm."""
    head = SimCLRProjectionHead(6, 8, 4)
    last: Any = {"head": head, "layers": head.layers, "linear": head.layers[3]}[watched]
    loss_fn = UnReMixLoss(0.5, last_layer=last)
    views = torch.randn(2, 9, 6)
    loss = loss_fn(head(views[0]), head(views[1]))
    loss.backward()
    assert head.layers[3].weight.grad.abs().sum() > 0
    # The same with the inputs handed over, and δ taken at the linear layer's output.
    hidden = [head.layers[:3](view) for view in views]
    made = [head.layers[3](each) for each in hidden]
    at_layer = unremix.UnReMixLoss(bias=False).importance(*made, *hidden)
    found = loss_fn.weighted.importance(head(views[0]), head(views[1]))
    torch.testing.assert_close(found.uncertainty, at_layer.uncertainty, atol=1e-4, rtol=1e-4)


def test_a_plain_head() -> None:
    head = MoCoProjectionHead(6, 8, 4)
    loss_fn = UnReMixLoss(0.5, last_layer=head)
    views = torch.randn(2, 9, 6)
    assert loss_fn(head(views[0]), head(views[1])).isfinite()


def test_the_last_batch_of_one_pair() -> None:
    with pytest.warns(UserWarning, match="a batch of one pair has no negatives"):
        assert UnReMixLoss()(*torch.randn(2, 1, 4)) == 0


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="last_layer=None with a memory bank"):
        UnReMixLoss(memory_bank_size=(16, 4), last_layer=nn.Linear(4, 4))
    with pytest.raises(ValueError, match="temperature to be a number above 0"):
        UnReMixLoss(0.0)
