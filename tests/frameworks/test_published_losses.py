"""HCL and debiased, by their formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from batches import assert_close
from building import assert_gradients, draw, fill, make_batch, make_model, queries_and_keys
from torch import Tensor

from unremix.recipes import RECIPES, compose


def published(
    positive: Tensor, negative: Tensor, *, temperature: float, beta: float, class_prior: float
) -> Tensor:
    """Of one anchor: cosines to its positive (scalar) and its negatives (n,)."""
    n = negative.numel()
    pos, neg = (positive / temperature).exp(), (negative / temperature).exp()
    importance = (beta * negative / temperature).exp()
    total = (importance * neg).sum() / importance.mean()
    g = (total - class_prior * n * pos) / (1 - class_prior)
    g = torch.clamp(g, min=n * math.exp(-1 / temperature))
    return -(pos / (pos + g)).log()


@pytest.mark.parametrize(
    ("recipe", "beta", "class_prior"),
    [("simclr", 0.0, 0.0), ("debiased", 0.0, 0.1), ("hcl", 1.0, 0.1)],
)
@pytest.mark.parametrize("spread", [0.05, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 0.07])
def test_published_losses(
    recipe: str, beta: float, class_prior: float, spread: float, temperature: float
) -> None:
    """Also where debiasing reaches its floor: views alike, a low temperature."""
    n = 6
    z0 = draw(n, 4).requires_grad_()
    z1 = (z0.detach() + spread * draw(n, 4, seed=1)).requires_grad_()
    loss_fn = compose(RECIPES[recipe], temperature=temperature).make_loss()
    assert loss_fn is not None
    assert compose(RECIPES[recipe]).temperature == 0.5
    f = F.normalize(torch.cat([z0, z1]))
    option = {"temperature": temperature, "beta": beta, "class_prior": class_prior}
    losses = []
    for i in range(2 * n):
        others = [j for j in range(2 * n) if j % n != i % n]
        losses.append(published(f[i] @ f[(i + n) % (2 * n)], f[others] @ f[i], **option))
    expected = torch.stack(losses).mean()
    actual = loss_fn(z0, z1)
    assert_close(actual, expected)
    for one, other in zip(
        torch.autograd.grad(actual, (z0, z1)), torch.autograd.grad(expected, (z0, z1)), strict=True
    ):
        assert_close(one, other, 1e-9)  # near its floor, the debiased sum is a small difference
    # The same on a queue, whose keys are the negatives.
    model = make_model(
        loss=compose(RECIPES["moco"], changes={"weighting": "hcl" if beta else "uniform"},
                     options={"loss": dict(class_prior=class_prior)},
                     temperature=temperature).make_loss(), queue=7,
    )  # fmt: skip
    fill(model, 7)
    batch = make_batch()
    z, _, zk, _ = queries_and_keys(model, batch)
    q, k, old = F.normalize(z), F.normalize(zk), F.normalize(model.memory.views.embeddings)
    expected = torch.stack([published(q[i] @ k[i], old @ q[i], **option) for i in range(4)]).mean()
    assert_gradients(model(batch), expected, model)
