"""Losses with negatives of one anchor alone, against plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import reference
import torch
import torch.nn.functional as F
from batches import assert_close
from building import NAMES, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.contrast import contrast
from unremix.core.objectives import InfoNCE
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.scores import Block
from unremix.core.views import ExtraNegatives, Views
from unremix.core.weights import Weighting, hard_negatives
from unremix.losses import TwoViewLoss


def windows() -> Pairs:
    return Pairs.windows(torch.tensor([0, 0, 0, 1]), texts=torch.tensor([1, 2, 3, 1]))


def lone() -> Pairs:
    """One anchor without other negatives, one without positive."""
    positives = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]]).bool()
    return Pairs.from_masks(positives, torch.tensor([[0, 0, 0], [1, 0, 1], [1, 1, 0]]).bool())


PAIRS: dict[str, Callable[[], Pairs]] = {
    "one-way": lambda: Pairs.one_way(4),
    "both": lambda: Pairs.both_views(3),
    "queue": lambda: Pairs.queue(torch.arange(4), torch.tensor([3, 9, 0, 11, 12])),
    "aimed": lambda: Pairs.aimed(
        torch.tensor([[0, 2], [1, 1], [2, 0], [3, 1]]),
        torch.tensor([[0.7, 0.3], [0.6, 0.4], [1.0, 0.0], [0.5, 0.5]]),
    ),
    "windows": windows,
    "lone": lone,
}
# Weightings as the kernel and as the loops name them.
WEIGHTINGS: dict[str, tuple[Weighting, dict[str, Any]]] = {
    "uniform": (Weighting(), {"components": ()}),
    "hcl": (
        hard_negatives(2.0),
        {"components": ("similarity",), "scaling": "hcl", "hardness": 2.0,
         "similarity_gradient": True},
    ),
    **{
        "+".join(chosen): (Weighting(chosen), {"components": chosen})
        for count in (1, 2, 3)
        for chosen in itertools.combinations(NAMES, count)
    },
    "zscore-exp": (
        Weighting(NAMES, scaling="zscore", sharpness=0.7, similarity_gradient=True),
        {"components": NAMES, "scaling": "zscore-exp", "hardness": 0.7,
         "similarity_gradient": True},
    ),
    "similarity gradient": (
        Weighting(NAMES, similarity_gradient=True),
        {"components": NAMES, "similarity_gradient": True},
    ),
    "no mass": (
        Weighting(NAMES, mass="none"), {"components": NAMES, "mass": "none"},
    ),
    "raw, no mass": (
        Weighting(NAMES, scaling="none", mass="none"),
        {"components": NAMES, "scaling": "none", "mass": "none"},
    ),
}  # fmt: skip


def assert_own_loss(
    name: str, weighting: str, *, own: int = 2, products: str = "cosine", factor: float = 1.7,
    class_prior: float = 0.0, inputs: bool = True, bias: bool = True,
    positives_in_denominator: bool = False, posterior_temperature: float = 1.0, seed: int = 0,
    tiles: Sequence[int | None] = (None, 1, 3),
) -> None:  # fmt: skip
    pairs = PAIRS[name]()
    n, m = pairs.num_anchors, pairs.num_candidates
    za, zo = draw(n, 4, seed=seed).requires_grad_(), draw(n, own, 4, seed=seed + 1)
    zc = za if name == "both" else draw(m, 4, seed=seed + 2).requires_grad_()
    ha = hc = ho = None
    if inputs:
        ha, ho = draw(n, 3, seed=seed + 3), draw(n, own, 3, seed=seed + 4)
        hc = ha if name == "both" else draw(m, 3, seed=seed + 5)
    ours, loops = WEIGHTINGS[weighting]
    shares = torch.tensor([0.3, 0.5, 0.2])[: len(ours.components)].double()
    if weighting == "hcl":
        shares = torch.ones(1).double()
    mix = shares.requires_grad_()
    leaves = [za] if name == "both" else [za, zc]
    if loops.get("scaling") != "hcl" and ours.components:
        leaves.append(mix)
    expected = reference.own_loss(
        za, zc, zo, ha, hc, ho, pairs.positive_mask(), pairs.negatives(), mix=mix,
        temperature=0.4, class_prior=class_prior, products=products, logit_factor=factor,
        shares=pairs.targets(dtype=torch.float64), every_view_is_both=name == "both",
        positives_in_denominator=positives_in_denominator, use_bias=bias,
        posterior_temperature=posterior_temperature, **loops,
    )  # fmt: skip
    expected_gradients = torch.autograd.grad(expected, leaves)
    anchors = Views(za, ha)
    candidates = anchors if name == "both" else Views(zc, hc)
    for tile in tiles:
        zo.requires_grad_()
        options = Options(
            ours, InfoNCE(class_prior, positives_in_denominator), products, posterior_temperature,
            bias=bias, tile=tile,
        )  # fmt: skip
        actual = contrast(
            ContrastInput(
                anchors, candidates, pairs, extra=ExtraNegatives(zo, ho, logit_factor=factor)
            ),
            options, temperature=0.4, mix=mix if ours.components else None,
        )  # fmt: skip
        assert_close(actual, expected)
        gradients = torch.autograd.grad(actual, [*leaves, zo], allow_unused=True)
        assert gradients[-1] is None  # extra negatives get no gradient
        for one, other in zip(gradients[:-1], expected_gradients, strict=True):
            assert_close(one, other, 1e-9)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("name", ["one-way", "both", "queue"])
def test_own_negatives_equal_the_loops(name: str, weighting: str) -> None:
    assert_own_loss(name, weighting)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    "options",
    [
        {"factor": 1.0},
        {"factor": 0.3, "products": "dot"},
        {"factor": 2.0, "products": "dot", "weighting": "zscore-exp"},
        {"products": "dot", "weighting": "similarity gradient"},
        {"class_prior": 0.1, "weighting": "uniform"},
        {"class_prior": 0.1, "weighting": "hcl"},
        {"class_prior": 0.1},
        {"inputs": False},
        {"bias": False},
        {"own": 1, "posterior_temperature": 0.2},
        {"own": 5, "positives_in_denominator": True},
        {"own": 1, "positives_in_denominator": True, "weighting": "uniform"},
    ],
    ids=str,
)
def test_options_with_own_negatives_equal_the_loops(name: str, options: dict[str, Any]) -> None:
    chosen = {"weighting": "uncertainty+similarity+representativeness"} | options
    assert_own_loss(name, **chosen, seed=7, tiles=(None, 2))


@settings(max_examples=25)
@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2**16),
       st.sampled_from(["uniform", "hcl", "similarity", "representativeness",
                        "similarity+representativeness"]),
       st.sampled_from([0.0, 0.1]), st.sampled_from([None, 1, 2]))  # fmt: skip
def test_own_negatives_equal_shared_ones_that_exclude_all_others(
    n: int, m: int, own: int, seed: int, weighting: str, class_prior: float, tile: int | None
) -> None:
    """Whose scores do not ask who else has a candidate: no uncertainty."""
    za, zc, zo = draw(n, 4, seed=seed), draw(m, 4, seed=seed + 1), draw(n, own, 4, seed=seed + 2)
    za.requires_grad_()
    positives = F.one_hot(torch.arange(n) % m, m).bool()
    negatives = ~positives & (draw(n, m, seed=seed + 3) > -0.5)
    options = Options(WEIGHTINGS[weighting][0], InfoNCE(class_prior), tile=tile)
    mine = contrast(
        ContrastInput(
            Views(za), Views(zc), Pairs.from_masks(positives, negatives),
            extra=ExtraNegatives(zo),
        ),
        options, temperature=0.3,
    )  # fmt: skip
    of_anchor = torch.arange(n)[:, None] == torch.arange(n * own) // own  # (N, N S)
    pairs = Pairs.from_masks(
        torch.cat([positives, torch.zeros_like(of_anchor)], dim=1),
        torch.cat([negatives, of_anchor], dim=1),
    )
    everything = Views(torch.cat([zc, zo.flatten(0, 1)]))
    ordinary = contrast(ContrastInput(Views(za), everything, pairs), options, temperature=0.3)
    assert_close(mine, ordinary)
    assert_close(*(torch.autograd.grad(loss, za)[0] for loss in (mine, ordinary)), 1e-9)


def test_a_loud_own_negative_without_weight_hides_nothing() -> None:
    """In float32, a factor must not make a weightless logit drown the others."""
    angle = torch.tensor([0.0, 2.0, 2.2, math.pi - 0.1, math.pi / 2])
    z = torch.stack([angle.cos(), angle.sin()], dim=1).double()
    positives = torch.tensor([[True, False, False, False]])
    pairs = Pairs.from_masks(positives, ~positives)

    def dislike(block: Block) -> Tensor:
        return torch.tensor([[0.0, 1.0, 0.5, 0.2, 0.0]]).to(block.similarity)

    losses = [
        contrast(
            ContrastInput(
                Views(z[:1].to(dtype)), Views(z[1:].to(dtype)), pairs,
                extra=ExtraNegatives(z[:1, None].to(dtype), logit_factor=8.0),
            ),
            Options(Weighting((dislike,))), temperature=0.05,
        ).double()
        for dtype in (torch.float32, torch.float64)
    ]  # fmt: skip
    assert losses[1] > 0.01
    assert_close(losses[0], losses[1], 1e-4)


def test_no_own_negatives_are_refused() -> None:
    for shape in ((4, 0, 3), (4, 3), (0, 2, 3)):
        with pytest.raises(ValueError, match=r"expected extra negatives .*pass None"):
            ExtraNegatives(torch.zeros(shape))


def test_inputs_of_some_views_only_are_refused() -> None:
    z, h = draw(4, 3), draw(4, 2)
    with pytest.raises(ValueError, match="anchors and candidates or for neither"):
        contrast(
            ContrastInput(
                Views(z, h), Views(z, h), Pairs.one_way(4), extra=ExtraNegatives(z[:, None])
            ),
            Options(Weighting(NAMES)),
        )
    with pytest.raises(ValueError, match=r"gradient='nt-xent', got extra negatives, which have no"):
        contrast(
            ContrastInput(Views(z), Views(z), Pairs.one_way(4), extra=ExtraNegatives(z[:, None])),
            Options(Weighting(NAMES), gradient="nt-xent"),
        )


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("make", [InfoNCELoss, HCLLoss, UnReMixLoss])
def test_modules_take_own_negatives(make: Callable[..., TwoViewLoss], layout: str) -> None:
    loss_fn = make(layout=layout, temperature=0.3).double()
    n, rows = 3, 6 if layout == "both" else 3
    z0, z1 = draw(n, 4).requires_grad_(), draw(n, 4, seed=1)
    h0, h1, zo, ho = draw(n, 3), draw(n, 3, seed=1), draw(rows, 2, 4, seed=2), draw(rows, 2, 3)
    actual = loss_fn(z0, z1, h0, h1, extra=ExtraNegatives(zo, ho, logit_factor=2.0))
    both = layout == "both"
    positives, negatives = reference.masks_both(n) if both else reference.masks_one_way(n)
    za, zc = (torch.cat([z0, z1]),) * 2 if both else (z0, z1)
    ha, hc = (torch.cat([h0, h1]),) * 2 if both else (h0, h1)
    loops: dict[str, Any] = {
        InfoNCELoss: {"components": ()},
        HCLLoss: {"components": (), "scaling": "hcl", "hardness": 1.0, "class_prior": 0.1,
                  "similarity_gradient": True},
        UnReMixLoss: {"components": NAMES},
    }[make]  # fmt: skip
    expected = reference.own_loss(
        za, zc, zo, ha, hc, ho, positives, negatives, temperature=0.3, logit_factor=2.0,
        mix=torch.full((3,), 1 / 3, dtype=torch.float64), every_view_is_both=both, **loops,
    )  # fmt: skip
    assert_close(actual, expected)
    assert_close(torch.autograd.grad(actual, z0)[0], torch.autograd.grad(expected, z0)[0], 1e-9)
