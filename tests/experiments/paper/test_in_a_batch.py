"""Galleries, contributions and gradients: what is shown follows from weights and labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unremix.experiments.paper import in_a_batch
from unremix.experiments.paper.in_a_batch import (
    SeenBatch,
    anchors_of,
    contributions_of,
    frames_of,
    gradients_of,
    heaviest,
)
from unremix.losses import UnReMixLoss


@given(st.lists(st.integers(0, 3), min_size=7, max_size=12), st.permutations(range(1, 7)))
def test_frames_agree_with_labels(labels: list[int], images: list[int]) -> None:
    picked = images[:5]
    for image, frame in zip(picked, frames_of(0, picked, torch.tensor(labels)), strict=True):
        again = [other for other in picked if labels[other] == labels[image]]
        if labels[image] == labels[0]:
            assert frame == "false negative"
        elif len(again) > 1:
            assert frame == "redundant"
        else:
            assert frame == "true and diverse"


def test_the_same_image_twice_is_redundant() -> None:
    labels = torch.tensor([0, 1, 2])
    assert frames_of(0, [1, 1, 2], labels) == ["redundant", "redundant", "true and diverse"]


def test_anchors_are_of_different_classes() -> None:
    labels = torch.tensor([4, 4, 4, 2, 2, 7])
    assert anchors_of(labels, 3) == [0, 3, 5]
    assert anchors_of(labels, 5) == [0, 3, 5, 1, 2]


def views(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(6, size, generator=generator) for size in (4, 4, 5, 5))


@pytest.mark.parametrize("options", [{}, {"mix": (0.2, 0.5, 0.3)}, {"components": ("similarity",)}])
def test_contributions_add_up_to_the_weights(options: dict[str, object]) -> None:
    loss = UnReMixLoss(**options)  # type: ignore[arg-type]
    found = loss.importance(*views())
    parts = contributions_of(loss, found)
    assert torch.allclose(sum(parts.values()), found.weights, atol=1e-5)  # type: ignore[arg-type]
    # Of two parts of one weight, the ratio is that of λ times the scaled scores.
    for row in range(12):
        own = found.negatives[row]
        low, high = found.similarity[row][own].min(), found.similarity[row][own].max()
        scaled = loss.mix["similarity"] * (found.similarity[row] - low) / (high - low)
        total = sum(
            share * (score - score[own].min()) / (score[own].max() - score[own].min())
            for name, share in loss.mix.items()
            for score in [getattr(found, name)[row]]
        )
        expected = (scaled / total * found.weights[row]).nan_to_num()  # 0 of 0
        assert torch.allclose(parts["similarity"][row][own], expected[own], atol=1e-4)
    with pytest.raises(ValueError, match="exponentials"):
        contributions_of(UnReMixLoss(scaling="zscore-exp"), found)


def test_the_heaviest() -> None:
    found = UnReMixLoss().importance(*views())
    weights = [
        (float(found.weights[3, j]), j) for j in range(12) if bool(found.negatives[3, j])
    ]  # fmt: skip
    assert heaviest(found, 3, 4) == [j for _, j in sorted(weights, reverse=True)[:4]]


def test_some_gradients_are_of_both_views(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SeenBatch(None, torch.empty(0), torch.zeros(6), views()[:2], views()[2:])  # type: ignore[arg-type]
    every = gradients_of(seen, "pseudo-label", 1.0)
    monkeypatch.setattr(in_a_batch, "MOST_VALUES", 4 * 4 * 5 + 1)
    assert torch.equal(gradients_of(seen, "pseudo-label", 1.0), every[[0, 4, 7, 11]])


@pytest.mark.parametrize(("kind", "temperature"), [("pseudo-label", 1.0), ("nt-xent", 0.5)])
def test_gradients_equal_autograd(kind: str, temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(8, 5, generator=generator).double()
    layer = nn.Linear(5, 4).double()
    z = layer(h).detach()
    seen = SeenBatch(None, torch.empty(0), torch.zeros(4), (z[:4], z[4:]), (h[:4], h[4:]))  # type: ignore[arg-type]
    found = gradients_of(seen, kind, temperature)
    units = nn.functional.normalize(z, dim=1)
    for j in range(8):
        partner = (j + 4) % 8
        classes = [k for k in range(8) if k != j and (k != partner or kind == "nt-xent")]
        weight = layer.weight.detach().clone().requires_grad_()
        f = nn.functional.normalize(weight @ h[j] + layer.bias.detach(), dim=0)
        logits = units[classes] @ f / temperature
        label = classes.index(partner) if kind == "nt-xent" else int(logits.argmax())
        (gradient,) = torch.autograd.grad(-logits.log_softmax(0)[label], weight)
        assert torch.allclose(found[j], gradient, atol=1e-10)
