"""Losses of views aimed at several keys, against plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
import torch.nn.functional as F
from batches import assert_close
from building import aims, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import LOSSES
from torch import Tensor

from unremix import InfoNCELoss


def soft_cross_entropy(z0: Tensor, z1: Tensor, target: Tensor, temperature: float) -> Tensor:
    logits = F.normalize(z0) @ F.normalize(z1).T / temperature
    return F.cross_entropy(logits, target)


@settings(max_examples=30)
@given(st.data())
def test_aiming_is_the_cross_entropy_against_the_shares(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    keys, shares = data.draw(aims(n, n))
    z0, z1 = draw(n, 4).requires_grad_(), draw(n, 4, seed=1).requires_grad_()
    _, negatives, share = reference.masks_towards(keys, shares)
    if not negatives.any():
        return
    actual = InfoNCELoss(temperature=0.2, tile=2).aimed(z0, z1, keys=keys, shares=shares)
    # A row without any negative still prefers one key to another.
    expected = soft_cross_entropy(z0, z1, share, 0.2)
    assert_close(actual, expected)
    for one, other in zip(
        torch.autograd.grad(actual, (z0, z1)), torch.autograd.grad(expected, (z0, z1)), strict=True
    ):
        assert_close(one, other, 1e-9)


def test_aiming_is_a_mean_of_two_cross_entropies() -> None:
    """i-Mix as published: λ CE(i) + (1 - λ) CE(perm i)."""
    n, partners = 5, torch.tensor([2, 1, 4, 0, 3])
    lam = torch.tensor([0.5, 0.6, 0.7, 0.8, 1.0]).double()
    z0, z1 = draw(n, 4), draw(n, 4, seed=1)
    logits = F.normalize(z0) @ F.normalize(z1).T / 0.2
    own, other = (
        F.cross_entropy(logits, target, reduction="none") for target in (torch.arange(n), partners)
    )
    actual = InfoNCELoss(temperature=0.2).aimed(
        z0, z1, keys=torch.stack([torch.arange(n), partners], 1),
        shares=torch.stack([lam, 1 - lam], 1),
    )  # fmt: skip
    assert_close(actual, (lam * own + (1 - lam) * other).mean())


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", ["debiased", "hcl", "minmax", "zscore-exp", "nt-xent"])
def test_aiming_with_weights_equals_the_loops(name: str) -> None:
    n = 6
    loss_fn = LOSSES[name]().double()
    keys = torch.tensor([[0, 2], [1, 1], [2, 0], [3, 1], [4, 5], [5, 3]])
    lam = torch.tensor([0.7, 0.6, 1.0, 0.5, 0.9, 0.8]).double()
    if name == "nt-xent":  # the loops know labels of equal shares only
        lam = torch.where(lam < 1, 0.5, lam)
    shares = torch.stack([lam, 1 - lam], 1)
    z0, z1 = draw(n, 4).requires_grad_(), draw(n, 4, seed=1).requires_grad_()
    h0, h1 = draw(n, 3, seed=2), draw(n, 3, seed=3)
    positives, negatives, share = reference.masks_towards(keys, shares)
    similarity = reference.similarity(z0, z1)
    if name == "debiased":
        w = negatives.double()
    elif name == "hcl":
        w = reference.hcl_weights(
            similarity, negatives, hardness=2.0, temperature=loss_fn.temperature
        )
    else:
        gradient = "nt-xent" if name == "nt-xent" else "pseudo-label"
        scores = [
            reference.uncertainty(
                z0, z1, h0, h1, negatives, positives, temperature=loss_fn.temperature,
                gradient=gradient,
            ),
            similarity.detach(),
            reference.representativeness(z1, negatives).detach(),
        ]  # fmt: skip
        scaling = "zscore-exp" if name == "zscore-exp" else "minmax"
        equal = torch.full((3,), 1 / 3, dtype=torch.float64)
        w = reference.weights(scores, equal, negatives, scaling=scaling, mass="mean")
    expected = reference.info_nce(
        similarity / loss_fn.temperature, positives, negatives, w, positive_weights=share,
        temperature=loss_fn.temperature, class_prior=loss_fn.class_prior,
        positives_in_denominator=True,
    )  # fmt: skip
    for tile in (None, 1, 3):
        loss_fn.options = replace(loss_fn.options, tile=tile)
        actual = loss_fn.aimed(z0, z1, h0, h1, keys=keys, shares=shares)
        assert_close(actual, expected)
        for one, other in zip(
            torch.autograd.grad(actual, (z0, z1)),
            torch.autograd.grad(expected, (z0, z1), retain_graph=True),
            strict=True,
        ):
            assert_close(one, other, 1e-9)
