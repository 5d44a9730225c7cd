"""Frameworks and what they stand on, against plain loops: pairs, own negatives, queue, mixing."""

from __future__ import annotations

import copy
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest
import reference
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gather import LOSSES, Report, processes
from torch import Tensor, nn

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.frameworks import negatives as further_negatives
from unremix.frameworks.base import Batch, Framework
from unremix.frameworks.contrastive import NEGATIVES, NEGATIVES_OF_MIXED, STREAMS
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.queue import Queue
from unremix.frameworks.simclr import SimCLR
from unremix.losses.info_nce import info_nce
from unremix.losses.two_views import TwoViewLoss
from unremix.pairs import Pairs
from unremix.recipes import (
    PARTS,
    RECIPES,
    SECTIONS,
    LossOptions,
    MixOptions,
    MoCHiOptions,
    MoCoOptions,
    PatchOptions,
    SwAVOptions,
    compose,
)
from unremix.scores import COMPONENTS, Own, Views
from unremix.training.config import TrainConfig
from unremix.views import mixing
from unremix.views.mixing import IMix, UnMix, patch_negatives
from unremix.views.randomness import keys as random_keys
from unremix.views.randomness import uniforms
from unremix.weights import Weighting, hardness

NAMES = tuple(COMPONENTS)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# Who is whose positive and negative.


@st.composite
def aims(draw: st.DrawFn, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Keys and shares (rows, P), each row of shares summing to 1; keys may repeat in a row."""
    width = draw(st.integers(1, 3))
    numbers = st.integers(0, 4)
    shares = torch.zeros(rows, width, dtype=torch.float64)
    keys = torch.zeros(rows, width, dtype=torch.long)
    for i in range(rows):
        parts = draw(st.lists(numbers, min_size=width, max_size=width).filter(any))
        shares[i] = torch.tensor(parts).double() / sum(parts)
        keys[i] = torch.tensor(
            draw(st.lists(st.integers(0, columns - 1), min_size=width, max_size=width))
        )
    return keys, shares


@st.composite
def queues(draw: st.DrawFn) -> dict[str, Any]:
    n, q = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    ids = st.integers(0, 5)  # few of them: the batch and the queue repeat samples
    found: dict[str, Any] = {
        "sample_ids": torch.tensor(draw(st.lists(ids, min_size=n, max_size=n))),
        "queue_ids": torch.tensor(draw(st.lists(ids, min_size=q, max_size=q)), dtype=torch.long),
        "batch_negatives": draw(st.booleans()),
    }
    if draw(st.booleans()):
        found["keys"], found["shares"] = draw(aims(n, n))
    return found


def share_matrix(pairs: Pairs) -> Tensor:
    matrix = torch.zeros(pairs.num_anchors, pairs.num_candidates, dtype=torch.float64)
    matrix[pairs.positives.anchor, pairs.positives.candidate] = pairs.share
    return matrix


def assert_masks(pairs: Pairs, positives: Tensor, negatives: Tensor) -> None:
    """Masks, counts, and what the blocks of every size hold."""
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negative_mask(), negatives)
    assert torch.equal(pairs.negative_count, negatives.sum(1))
    assert torch.equal(pairs.positive_count, positives.sum(1))
    for tile in (None, 1, 2):
        for block in pairs.blocks(tile):
            ones = torch.ones(block.anchors.numel(), pairs.num_candidates)
            assert torch.equal(block.blank(ones) == 1, negatives[block.anchors])
            for row, anchor in enumerate(block.anchors.tolist()):
                if negatives[anchor].any():
                    place = int(block.reference[row]) - row * pairs.num_candidates
                    assert negatives[anchor, place]


@settings(max_examples=60)
@given(queues())
def test_queue_pairs_equal_the_loops(arguments: dict[str, Any]) -> None:
    pairs = Pairs.queue(**arguments)
    aimed = None
    if "keys" in arguments:
        aimed = []
        for row, parts in zip(arguments["keys"], arguments["shares"], strict=True):
            aim: dict[int, float] = {}
            for key, part in zip(row.tolist(), parts.tolist(), strict=True):
                aim[key] = aim.get(key, 0.0) + part
            aimed.append(aim)
    positives, negatives, shares = reference.masks_queue(
        arguments["sample_ids"].tolist(),
        arguments["queue_ids"].tolist(),
        batch_negatives=arguments["batch_negatives"],
        aims=aimed,
    )
    assert_masks(pairs, positives, negatives)
    assert_close(share_matrix(pairs), shares, 1e-15)


@settings(max_examples=60)
@given(st.data())
def test_aimed_pairs_equal_the_loops(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    keys, shares = data.draw(aims(n, n))
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    for offset, total in ((0, None), (before, before + n + after)):
        pairs = Pairs.towards(keys, shares, offset=offset, total=total)
        positives, negatives, share = reference.masks_towards(
            keys, shares, offset=offset, total=total
        )
        assert_masks(pairs, positives, negatives)
        assert_close(share_matrix(pairs), share, 1e-15)


@st.composite
def masks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 1, kind == 2


@settings(max_examples=60)
@given(masks(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_own_candidates_transposition_and_parts_equal_the_loops(
    both: tuple[Tensor, Tensor], own: int, before: int, after: int
) -> None:
    positives, negatives = both
    n, m = positives.shape
    pairs = Pairs.from_masks(positives, negatives)
    widened = pairs.with_own(own)
    assert widened.own == own
    assert_masks(
        widened,
        reference.with_own(positives, own, False),
        reference.with_own(negatives, own, True),
    )
    assert torch.equal(share_matrix(widened)[:, :m], share_matrix(pairs))
    twice = widened.with_own(2)
    assert twice.own == own + 2
    assert torch.equal(twice.negative_mask(), reference.with_own(negatives, own + 2, True))
    # Own candidates are nobody's anchors.
    assert_masks(widened.transposed(), positives.T, negatives.T)
    total = before + m + after
    wide = torch.zeros(n, total, dtype=torch.bool)
    wide[:, before : before + m] = positives
    others = torch.ones(n, total, dtype=torch.bool)
    others[:, before : before + m] = negatives
    assert_masks(pairs.among(before, total), wide, others)


def test_twins_end_where_own_candidates_begin() -> None:
    positives, negatives = reference.masks_both(3)
    pairs = Pairs.both_views(3).with_own(2)
    assert not pairs.twins
    assert_masks(
        pairs, reference.with_own(positives, 2, False), reference.with_own(negatives, 2, True)
    )
    assert_masks(pairs.transposed(), positives.T, negatives.T)


# Losses with negatives of one anchor alone.


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
    "aimed": lambda: Pairs.towards(
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
        hardness(2.0 / 0.4),
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
        za, zc, zo, ha, hc, ho, pairs.positive_mask(), pairs.negative_mask(), mix=mix,
        temperature=0.4, class_prior=class_prior, products=products, logit_factor=factor,
        shares=share_matrix(pairs), positives_in_denominator=positives_in_denominator,
        every_view_is_both=name == "both", use_bias=bias,
        posterior_temperature=posterior_temperature, **loops,
    )  # fmt: skip
    expected_gradients = torch.autograd.grad(expected, leaves)
    anchors = Views(za, ha)
    candidates = anchors if name == "both" else Views(zc, hc)
    for tile in tiles:
        zo.requires_grad_()
        actual = info_nce(
            anchors, candidates, pairs, own=Own(zo, ho, factor), temperature=0.4, weighting=ours,
            mix=mix if ours.components else None, class_prior=class_prior, products=products,
            positives_in_denominator=positives_in_denominator, bias=bias, tile=tile,
            posterior_temperature=posterior_temperature,
        )  # fmt: skip
        assert_close(actual, expected)
        gradients = torch.autograd.grad(actual, [*leaves, zo], allow_unused=True)
        assert gradients[-1] is None  # own candidates get no gradient
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
    option = {"temperature": 0.3, "weighting": WEIGHTINGS[weighting][0], "tile": tile,
              "class_prior": class_prior}  # fmt: skip
    mine = info_nce(
        Views(za), Views(zc), Pairs.from_masks(positives, negatives), own=Own(zo), **option
    )
    of_anchor = torch.arange(n)[:, None] == torch.arange(n * own) // own  # (N, N S)
    ordinary = info_nce(
        Views(za),
        Views(torch.cat([zc, zo.flatten(0, 1)])),
        Pairs.from_masks(
            torch.cat([positives, torch.zeros_like(of_anchor)], dim=1),
            torch.cat([negatives, of_anchor], dim=1),
        ),
        **option,
    )
    assert_close(mine, ordinary)
    assert_close(*(torch.autograd.grad(loss, za)[0] for loss in (mine, ordinary)), 1e-9)


def test_a_loud_own_negative_without_weight_hides_nothing() -> None:
    """In float32, a factor must not make a weightless logit drown the others."""
    angle = torch.tensor([0.0, 2.0, 2.2, math.pi - 0.1, math.pi / 2])
    z = torch.stack([angle.cos(), angle.sin()], dim=1).double()
    positives = torch.tensor([[True, False, False, False]])
    pairs = Pairs.from_masks(positives, ~positives)

    def dislike(rows: Any, context: Any) -> Tensor:
        return torch.tensor([[0.0, 1.0, 0.5, 0.2, 0.0]]).to(rows.similarity)

    losses = [
        info_nce(
            Views(z[:1].to(dtype)), Views(z[1:].to(dtype)), pairs, temperature=0.05,
            own=Own(z[:1, None].to(dtype), logit_factor=8.0), weighting=Weighting((dislike,)),
        ).double()
        for dtype in (torch.float32, torch.float64)
    ]  # fmt: skip
    assert losses[1] > 0.01
    assert_close(losses[0], losses[1], 1e-4)


def test_no_own_negatives_are_refused() -> None:
    for shape in ((4, 0, 3), (4, 3), (0, 2, 3)):
        with pytest.raises(ValueError, match=r"expected own candidates .*hand over None"):
            Own(torch.zeros(shape))


def test_inputs_of_some_views_only_are_refused() -> None:
    z, h = draw(4, 3), draw(4, 2)
    with pytest.raises(ValueError, match="for anchors and candidates or for neither"):
        info_nce(
            Views(z, h), Views(z, h), Pairs.one_way(4), own=Own(z[:, None]),
            weighting=Weighting(NAMES),
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"gradient='nt-xent', received 4 views without one"):
        info_nce(
            Views(z), Views(z), Pairs.one_way(4), own=Own(z[:, None]),
            weighting=Weighting(NAMES), gradient="nt-xent",
        )  # fmt: skip


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("make", [InfoNCELoss, HCLLoss, UnReMixLoss])
def test_modules_take_own_negatives(make: Callable[..., TwoViewLoss], layout: str) -> None:
    loss_fn = make(layout=layout, temperature=0.3).double()
    n, rows = 3, 6 if layout == "both" else 3
    z0, z1 = draw(n, 4).requires_grad_(), draw(n, 4, seed=1)
    h0, h1, zo, ho = draw(n, 3), draw(n, 3, seed=1), draw(rows, 2, 4, seed=2), draw(rows, 2, 3)
    actual = loss_fn(z0, z1, h0, h1, own=Own(zo, ho, 2.0))
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


# Views aimed at several keys.


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
    actual = InfoNCELoss(temperature=0.2, tile=2).towards(z0, z1, keys=keys, shares=shares)
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
    actual = InfoNCELoss(temperature=0.2).towards(
        z0, z1, keys=torch.stack([torch.arange(n), partners], 1),
        shares=torch.stack([lam, 1 - lam], 1),
    )  # fmt: skip
    assert_close(actual, (lam * own + (1 - lam) * other).mean())


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
        loss_fn.tile = tile
        actual = loss_fn.towards(z0, z1, h0, h1, keys=keys, shares=shares)
        assert_close(actual, expected)
        for one, other in zip(
            torch.autograd.grad(actual, (z0, z1)),
            torch.autograd.grad(expected, (z0, z1), retain_graph=True),
            strict=True,
        ):
            assert_close(one, other, 1e-9)


# The queue.


@settings(max_examples=60)
@given(
    st.integers(1, 7),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_the_queue_is_first_in_first_out(
    size: int, batches: list[int], dtype: torch.dtype, with_inputs: bool
) -> None:
    memory = Queue(size, width=2, input_width=3 if with_inputs else 0).to(dtype)
    kept: deque[tuple[list[float], list[float], int]] = deque(maxlen=size)
    number = 0
    for step, count in enumerate(batches):
        z, h = draw(count, 2, seed=step).to(dtype), draw(count, 3, seed=step + 50).to(dtype)
        samples = torch.arange(number, number + count)
        number += count
        memory.add(z, h if with_inputs else None, samples)
        kept.extend(zip(z.tolist(), h.tolist(), samples.tolist(), strict=True))
        if step % 2:  # as a checkpoint in between would
            fresh = Queue(size, width=2, input_width=3 if with_inputs else 0).to(dtype)
            fresh.load_state_dict(memory.state_dict())
            memory = fresh
        assert len(memory) == len(kept)
        assert memory.samples.tolist() == [sample for _, _, sample in kept]
        assert memory.views.embeddings.tolist() == [z for z, _, _ in kept]
        if with_inputs:
            assert memory.views.inputs is not None
            assert memory.views.inputs.tolist() == [h for _, h, _ in kept]
        else:
            assert memory.views.inputs is None


def test_the_queue_moves_between_precisions() -> None:
    memory = Queue(3, width=2, input_width=1)
    memory.add(draw(2, 2), draw(2, 1), torch.tensor([5, 2**40]))
    assert memory.embeddings.dtype == torch.float32
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        memory.to(dtype)
        assert memory.views.embeddings.dtype == dtype
        assert memory.samples.tolist() == [5, 2**40]  # whole numbers stay whole
        assert len(memory) == 2
    memory.add(draw(2, 2, seed=1).half(), draw(2, 1).half(), torch.tensor([1, 2]))
    assert memory.samples.tolist() == [2**40, 1, 2]
    assert_close(memory.views.embeddings[1:].double(), draw(2, 2, seed=1).half().double(), 1e-3)
    with pytest.raises(ValueError, match="at least 1 key, received 0"):
        Queue(0, width=2)


def test_the_queue_keeps_copies() -> None:
    memory = Queue(2, width=2).double()
    z = draw(2, 2).requires_grad_()
    memory.add(z, None, torch.arange(2))
    kept = memory.views.embeddings.clone()
    with torch.no_grad():
        z.zero_()
    assert torch.equal(memory.views.embeddings, kept)
    assert not memory.embeddings.requires_grad
    before = memory.views.embeddings
    memory.add(z, None, torch.arange(2))
    assert torch.equal(before, kept)  # what was read is not overwritten


# Frameworks. Images are (N, 1, 6, 6), features (N, 8), h (N, 7), embeddings (N, 5), in float64.

SIDE = 6


def make_parts(*, batch_norm: bool = False, seed: int = 0) -> tuple[nn.Module, nn.Sequential]:
    norm: list[nn.Module] = [nn.BatchNorm1d(8)] if batch_norm else []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 8), *norm, nn.Tanh())
        head = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 5))
        return encoder.double(), head.double()


def make_model(
    kind: type[SimCLR | MoCo] = MoCo,
    loss: TwoViewLoss | None = None,
    *,
    batch_norm: bool = False,
    seed: int = 0,
    **options: Any,
) -> Any:
    """A framework; the key encoder of MoCo is already away from the encoder it follows."""
    loss = InfoNCELoss(temperature=0.3) if loss is None else loss
    model = kind(*make_parts(batch_norm=batch_norm, seed=seed), loss, **options).double()
    if isinstance(model, MoCo):
        for number, p in enumerate([*model.key_encoder.parameters(), *model.key_head.parameters()]):
            p += 0.1 * draw(*p.shape, seed=number)
    return model


def make_batch(
    n: int = 4, *, seed: int = 0, first: int = 0, epoch: int = 0, rows: slice = slice(None)
) -> Batch:
    """Samples first ... first + n - 1, or some rows of that batch."""
    samples = torch.arange(first, first + n)
    return Batch(
        views=tuple(draw(n, 1, SIDE, SIDE, seed=10 * seed + v)[rows] for v in range(2)),
        samples=samples[rows],
        keys=random_keys(seed, epoch, samples, 4)[rows],
        batch_key=torch.tensor([1000 + seed]),
        epoch=epoch,
    )


def fill(model: MoCo, count: int, *, first: int = 50, seed: int = 99) -> None:
    """Put random keys, of samples from ``first`` on, into the queue."""
    h = model.memory.inputs.shape[1]
    model.memory.add(
        draw(count, 5, seed=seed), draw(count, h, seed=seed + 1), torch.arange(count) + first
    )


def forward(body: nn.Module, head: nn.Sequential, images: Tensor) -> tuple[Tensor, Tensor]:
    h = head[:-1](body(images))
    return head[-1](h), h


def queries_and_keys(model: MoCo, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z and h of the first views as queries, and of the second views as keys."""
    z, h = forward(model.encoder, model.head, batch.views[0])
    with torch.no_grad():
        zk, hk = forward(model.key_encoder, model.key_head, batch.views[1])
    return z, h, zk, hk


def gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}


def assert_gradients(actual: Tensor, expected: Tensor, model: nn.Module) -> None:
    assert_close(actual, expected)
    one, other = gradients_of(actual, model), gradients_of(expected, model)
    assert one.keys() == other.keys()
    for name, gradient in other.items():
        assert_close(one[name], gradient, 1e-9)


def queue_loss(
    model: MoCo, batch: Batch, zq: Tensor, hq: Tensor, zk: Tensor, hk: Tensor, *,
    aims: Sequence[dict[int, float]] | None = None, batch_negatives: bool = False,
    own: Own | None = None, **loops: Any,
) -> Tensor:  # fmt: skip
    """The loops' loss of queries against [keys; queue], and each query's own negatives."""
    old = model.memory.views
    positives, negatives, shares = reference.masks_queue(
        batch.samples.tolist(), model.memory.samples.tolist(), batch_negatives=batch_negatives,
        aims=aims,
    )  # fmt: skip
    with_h = old.inputs is not None
    zo = torch.zeros(len(zq), 0, 5).double() if own is None else own.embeddings
    ho = torch.zeros(len(zq), 0, 7).double() if own is None else own.inputs
    loops = {"components": (), "mix": torch.zeros(0).double()} | loops
    return reference.own_loss(
        zq, torch.cat([zk, old.embeddings]), zo,
        hq.detach() if with_h else None,
        torch.cat([hk, old.inputs]) if old.inputs is not None else None,
        ho if with_h else None, positives, negatives, shares=shares,
        logit_factor=1.0 if own is None else own.logit_factor,
        positives_in_denominator=aims is not None, **{"temperature": 0.3, **loops},
    )  # fmt: skip


# MoCo.


class TestMoCo:
    def test_the_key_encoder_starts_equal_and_apart(self) -> None:
        model = MoCo(*make_parts(batch_norm=True), InfoNCELoss())
        for query, key in ((model.encoder, model.key_encoder), (model.head, model.key_head)):
            assert query.state_dict().keys() == key.state_dict().keys()
            for one, other in zip(query.parameters(), key.parameters(), strict=True):
                assert torch.equal(one, other)
                assert one.data_ptr() != other.data_ptr()
                assert not other.requires_grad

    def test_keys_carry_no_gradient(self) -> None:
        model, batch = make_model(), make_batch()
        fill(model, 6)
        views = tuple(view.requires_grad_() for view in batch.views)
        model(batch).backward()
        assert all(p.grad is None for p in model.key_encoder.parameters())
        assert all(p.grad is None for p in model.key_head.parameters())
        assert all(p.grad is not None for p in model.encoder.parameters())
        assert views[0].grad is not None
        assert views[1].grad is None
        assert not model.memory.embeddings.requires_grad

    @pytest.mark.parametrize("queued", [1, 6, 9])
    @pytest.mark.parametrize("weighting", ["uniform", "hcl", "unremix"])
    def test_the_loss_equals_the_loops(self, queued: int, weighting: str) -> None:
        loss, loops = {
            "uniform": (InfoNCELoss(temperature=0.3), {}),
            "hcl": (
                HCLLoss(temperature=0.3, class_prior=0.05),
                {"scaling": "hcl", "hardness": 1.0, "class_prior": 0.05,
                 "similarity_gradient": True},
            ),
            "unremix": (
                UnReMixLoss(temperature=0.3, mix=(0.2, 0.3, 0.5)),
                {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()},
            ),
        }[weighting]  # fmt: skip
        model, batch = make_model(loss=loss, queue=9), make_batch()
        fill(model, queued, first=2)  # samples 2 and 3 stand in the queue and in the batch
        expected = queue_loss(model, batch, *queries_and_keys(model, batch), **loops)
        assert_gradients(model(batch), expected, model)

    @pytest.mark.parametrize("momentum", [0.0, 0.25, 0.99, 1.0])
    def test_the_key_encoder_follows_exactly(self, momentum: float) -> None:
        model, batch = make_model(momentum=momentum), make_batch()
        optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
        expected = [p.detach().clone() for p in model.key_encoder.parameters()]
        expected += [p.detach().clone() for p in model.key_head.parameters()]
        for step in range(3):
            optimiser.zero_grad()
            model(batch if step else make_batch(seed=1)).backward()
            optimiser.step()
            model.after_step()
            leading = [*model.encoder.parameters(), *model.head.parameters()]
            for number, parameter in enumerate(leading):
                old = expected[number].flatten().tolist()
                new = parameter.detach().flatten().tolist()
                followed = [
                    momentum * k + (1 - momentum) * q for k, q in zip(old, new, strict=True)
                ]
                expected[number] = torch.tensor(followed, dtype=torch.float64).view_as(parameter)
            following = [*model.key_encoder.parameters(), *model.key_head.parameters()]
            for found, wanted in zip(following, expected, strict=True):
                if momentum in (0.0, 1.0):
                    assert torch.equal(found, wanted)
                assert_close(found.detach(), wanted, 1e-14)

    def test_running_statistics_of_the_keys_are_their_own(self) -> None:
        model = make_model(batch_norm=True, momentum=1.0, group=0)
        query, key = model.encoder[2], model.key_encoder[2]
        model(make_batch())
        model.after_step()
        assert int(query.num_batches_tracked) == int(key.num_batches_tracked) == 1
        assert not torch.equal(query.running_mean, key.running_mean)

    def test_the_first_batch_takes_its_own_keys(self) -> None:
        model, batch = make_model(), make_batch()
        z, _, zk, _ = queries_and_keys(model, batch)
        expected = InfoNCELoss(temperature=0.3, layout="one-way")(z, zk)
        assert_gradients(model(batch), expected, model)
        model.after_step()
        z, h, zk, hk = queries_and_keys(model, batch)
        expected = queue_loss(model, batch, z, h, zk, hk)  # the batch's keys no more
        assert_close(model(batch), expected)

    def test_symmetric_is_the_mean_of_both_ways(self) -> None:
        model = make_model(symmetric=True)
        one_way = make_model()
        batch = make_batch()
        for each in (model, one_way):
            fill(each, 6)
        turned = copy.copy(batch)
        object.__setattr__(turned, "views", batch.views[::-1])
        expected = (one_way(batch) + one_way(turned)) / 2
        assert_close(model(batch), expected)
        gradients, others = gradients_of(model(batch), model), gradients_of(expected, one_way)
        for name, gradient in others.items():
            assert_close(gradients[name], gradient, 1e-9)
        model.after_step()
        assert len(model.memory) == 6 + 2 * 4
        assert model.memory.samples[6:].tolist() == [*range(4), *range(4)]

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_keys_are_kept_once_per_step_and_after_the_loss(self, symmetric: bool) -> None:
        model, batch = make_model(symmetric=symmetric, queue=64), make_batch(first=7)
        per_step = 8 if symmetric else 4
        first = model(batch)
        assert len(model.memory) == 0
        assert_same(model(batch), first)  # another look changes nothing
        _, _, zk, _ = queries_and_keys(model, batch)
        model.after_step()
        assert len(model.memory) == per_step
        # The keys that the loss saw, not those of the key encoder as it is now.
        assert_close(model.memory.views.embeddings[:4], zk, 1e-12)  # shuffled: rounded otherwise
        assert model.memory.samples[:4].tolist() == [7, 8, 9, 10]
        model.after_step()
        assert len(model.memory) == per_step
        model(batch)
        model.after_step()
        assert len(model.memory) == 2 * per_step

    @pytest.mark.parametrize("queue", [1, 3, 5, 8])
    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_any_batch_and_any_queue(self, queue: int, n: int) -> None:
        model = make_model(queue=queue, loss=UnReMixLoss(temperature=0.3))
        kept: deque[int] = deque(maxlen=queue)
        for step in range(4):
            batch = make_batch(n, seed=step, first=n * step)
            loss = model(batch)
            loss.backward()
            model.after_step()
            kept.extend(batch.samples.tolist())
            assert loss.isfinite()
            assert model.memory.samples.tolist() == list(kept)

    def test_h_is_kept_only_where_weights_need_it(self) -> None:
        assert make_model().memory.inputs.shape[1] == 0
        assert make_model(loss=HCLLoss()).memory.inputs.shape[1] == 0
        similar = UnReMixLoss(components=("similarity", "representativeness"))
        assert make_model(loss=similar).memory.inputs.shape[1] == 0
        assert make_model(loss=UnReMixLoss()).memory.inputs.shape[1] == 7

    @pytest.mark.parametrize("n", [4, 5, 8, 11])
    def test_batch_norm_sees_groups(self, n: int) -> None:
        model = make_model(batch_norm=True, group=4)
        twin = copy.deepcopy(model)
        images = draw(n, 1, SIDE, SIDE)
        z, h = model.embed(images)
        parts = [
            forward(twin.encoder, twin.head, part) for part in images.tensor_split(max(1, n // 4))
        ]
        assert min(len(part) for part, _ in parts) >= 4
        assert_same(z, torch.cat([z for z, _ in parts]))
        assert_same(h, torch.cat([h for _, h in parts]))
        assert_same(model.encoder[2].running_mean, twin.encoder[2].running_mean)
        assert_same(model.encoder[2].running_var, twin.encoder[2].running_var)
        whole = forward(twin.encoder, twin.head, images)[0]
        assert torch.equal(z, whole) == (n < 8)
        model.eval()
        twin.load_state_dict(model.state_dict())
        twin.eval()
        assert_same(model.embed(images)[0], forward(twin.encoder, twin.head, images)[0])
        assert_close(
            model.embed_keys(images, torch.tensor([3]))[0],
            forward(twin.key_encoder, twin.key_head, images)[0],
            1e-14,
        )

    def test_keys_are_shuffled_before_they_are_grouped(self) -> None:
        model = make_model(batch_norm=True, group=4)
        images = draw(8, 1, SIDE, SIDE)
        found = []
        for key in range(4):
            z, _ = model.embed_keys(images, torch.tensor([key]))
            # Which four were normalised together: the only ones whose result fits.
            together = [
                group
                for group in itertools.combinations(range(8), 4)
                if torch.allclose(
                    forward(model.key_encoder, model.key_head, images[list(group)])[0],
                    z[list(group)],
                )
            ]
            assert len(together) == 2
            assert sorted([*together[0], *together[1]]) == list(range(8))
            found.append(together[0])
        assert len(set(found)) > 1
        assert any(group != (0, 1, 2, 3) for group in found)

    @pytest.mark.parametrize("n", [2, 7, 64])
    def test_shuffling_keeps_each_key_with_its_query(self, n: int) -> None:
        model = make_model(group=2)
        images = draw(n, 1, SIDE, SIDE)
        for key in range(3):
            z, h = model.embed_keys(images, torch.tensor([key]))
            expected = forward(model.key_encoder, model.key_head, images)
            assert_close(z, expected[0], 1e-14)
            assert_close(h, expected[1], 1e-14)
            assert not z.requires_grad

    def test_a_model_goes_on_from_its_state(self) -> None:
        def make(seed: int) -> tuple[MoCo, torch.optim.Optimizer]:
            model = make_model(
                loss=UnReMixLoss(temperature=0.3), negatives=MoCHi(4, 3, 2, 0), mixing=UnMix(),
                symmetric=True, queue=11, group=2, batch_norm=True, seed=seed,
            )  # fmt: skip
            return model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad])

        def step(model: MoCo, optimiser: torch.optim.Optimizer, number: int) -> Tensor:
            optimiser.zero_grad()
            loss: Tensor = model(make_batch(5, seed=number, first=3 * number))
            loss.backward()
            optimiser.step()
            model.after_step()
            return loss.detach()

        whole, optimiser = make(0)
        for number in range(3):
            step(whole, optimiser, number)
        state = copy.deepcopy((whole.state_dict(), optimiser.state_dict()))
        expected = [step(whole, optimiser, number) for number in range(3, 6)]
        other, other_optimiser = make(1)
        other.load_state_dict(state[0])
        other_optimiser.load_state_dict(state[1])
        found = [step(other, other_optimiser, number) for number in range(3, 6)]
        assert_same(torch.stack(found), torch.stack(expected))
        for name, tensor in whole.state_dict().items():
            assert_same(other.state_dict()[name], tensor)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"scaling": "zscore-exp", "hardness": 2.0},
            {"mass": "none"},
            {"components": ("uncertainty",), "posterior_temperature": 0.1},
            {"class_prior": 0.02, "similarity_gradient": True},
        ],
        ids=str,
    )
    def test_a_queue_of_the_same_keys_equals_one_way(self, options: dict[str, Any]) -> None:
        """Loss and gradient to the queries; sample ids exclude each key's own anchor."""
        loss = UnReMixLoss(temperature=0.3, layout="one-way", **options)
        model, batch = make_model(loss=loss, queue=6), make_batch(6)
        z, h, zk, hk = queries_and_keys(model, batch)
        order = torch.tensor([4, 0, 5, 2, 1, 3])
        model.memory.add(zk[order], hk[order], batch.samples[order])
        assert_gradients(model(batch), model.loss(z, zk, h, hk), model)  # the mix's as well

    def test_bad_options(self) -> None:
        for options, message in (
            ({"momentum": 1.5}, "momentum between 0 and 1, received 1.5"),
            ({"momentum": -0.1}, "received -0.1"),
            ({"group": 1}, "at least 2 images, or 0 for the whole batch, received 1"),
            ({"group": -2}, "received -2"),
            ({"queue": 0}, "at least 1 key, received 0"),
            ({"loss": UnReMixLoss(gradient="nt-xent")}, "'pseudo-label' with a queue"),
        ):
            with pytest.raises(ValueError, match=message):
                make_model(**options)
        only = UnReMixLoss(gradient="nt-xent", components=("similarity",))
        make_model(loss=only)  # no uncertainty, no contradiction
        encoder, _ = make_parts()
        with pytest.raises(ValueError, match=r"torch.nn.Linear, received Tanh"):
            MoCo(encoder, nn.Sequential(nn.Linear(8, 5), nn.Tanh()), InfoNCELoss())


# MoCHi.


def generated(
    model: MoCo, batch: Batch, negatives: MoCHi
) -> tuple[Own | None, tuple[Tensor, Tensor]]:
    z, h, _, _ = queries_and_keys(model, batch)
    samples = batch.samples[:, None]
    own = negatives(model, (z, h), batch.views[0], samples, batch.keys, batch.epoch)
    return own, (z.detach(), h.detach())


class TestMoCHi:
    @pytest.mark.parametrize("weighting", ["uniform", "unremix"])
    def test_without_points_it_is_moco(self, weighting: str) -> None:
        make = partial(UnReMixLoss if weighting == "unremix" else InfoNCELoss, temperature=0.3)
        plain = make_model(loss=make(), queue=8)
        mochi = make_model(loss=make(), queue=8, negatives=MoCHi(4, 0, 0, 0))
        for step in range(4):
            batch = make_batch(seed=step, first=3 * step)
            losses = [model(batch) for model in (plain, mochi)]
            assert_same(losses[1], losses[0])
            for model, loss in zip((plain, mochi), losses, strict=True):
                for p, gradient in zip(
                    (p for p in model.parameters() if p.requires_grad),
                    gradients_of(loss, model).values(),
                    strict=True,
                ):
                    p.data -= 0.1 * gradient
                model.after_step()
        for one, other in zip(
            plain.state_dict().values(), mochi.state_dict().values(), strict=True
        ):
            assert_same(other, one)

    @pytest.mark.parametrize("with_inputs", [False, True])
    def test_points_are_mixtures_of_the_hardest(self, with_inputs: bool) -> None:
        """Each lies between two of the hardest keys, or the query and one; |z| and h as well."""
        loss = UnReMixLoss(temperature=0.3) if with_inputs else InfoNCELoss(temperature=0.3)
        model, batch = make_model(loss=loss, queue=12), make_batch(3)
        fill(model, 12, first=2)  # sample 2 is an anchor's own, and its key one of its hardest
        z, _, _, _ = queries_and_keys(model, batch)
        model.memory.embeddings[0] = 3 * z[2].detach() + 0.1
        hardest, pairs, queries = 4, 40, 30
        own, (z, h) = generated(model, batch, MoCHi(hardest, pairs, queries, 0))
        assert own is not None
        assert own.embeddings.shape == (3, pairs + queries, 5)
        assert not own.embeddings.requires_grad
        assert own.logit_factor == 1
        assert (own.inputs is not None) == with_inputs
        assert_close(own.units.norm(dim=-1), torch.ones(3, pairs + queries).double(), 1e-12)
        old, samples = model.memory.views, model.memory.samples
        f_old, f = reference.unit(old.embeddings), reference.unit(z)
        for i in range(3):
            cosines = [
                (float(f[i] @ f_old[j]), j) for j in range(12) if samples[j] != batch.samples[i]
            ]
            chosen = [j for _, j in sorted(cosines, reverse=True)[:hardest]]
            used = set()
            for point in range(pairs + queries):
                direction = reference.unit(own.embeddings[i, point][None])[0]
                fits = []
                for j, k in itertools.combinations(chosen, 2):
                    if point < pairs:
                        fits.append((f_old[j], f_old[k], ("key", j), ("key", k)))
                for j in chosen:
                    if point >= pairs:
                        fits.append((f[i], f_old[j], ("query", i), ("key", j)))
                shares = []
                for left, right, one, other in fits:
                    basis = torch.stack([left, right], dim=1)  # (D, 2)
                    weights = torch.linalg.lstsq(basis, direction[:, None]).solution[:, 0]
                    if (basis @ weights - direction).norm() < 1e-10:
                        shares.append((float(weights[0] / weights.sum()), one, other))
                assert len(shares) == 1, "one pair of parents explains a point"
                share, one, other = shares[0]
                assert 0 <= share <= (1 if point < pairs else 0.5)
                used |= {one, other}
                parents = []
                for kind, j in (one, other):
                    length = (z if kind == "query" else old.embeddings)[j].norm()
                    inputs = None
                    if old.inputs is not None:
                        inputs = (h if kind == "query" else old.inputs)[j]
                    parents.append((length, inputs))
                length = share * parents[0][0] + (1 - share) * parents[1][0]
                assert_close(own.embeddings[i, point].norm(), length, 1e-8)
                if own.inputs is not None:
                    inputs = share * parents[0][1] + (1 - share) * parents[1][1]
                    assert_close(own.inputs[i, point], inputs, 1e-7)
            assert used == {("key", j) for j in chosen} | {("query", i)}  # all of them, in time

    def test_points_differ_between_steps_and_anchors(self) -> None:
        model = make_model(queue=12)
        fill(model, 12)
        first, _ = generated(model, make_batch(3), MoCHi(4, 5, 5, 0))
        again, _ = generated(model, make_batch(3), MoCHi(4, 5, 5, 0))
        other, _ = generated(model, make_batch(3, epoch=1), MoCHi(4, 5, 5, 0))
        assert first is not None
        assert again is not None
        assert other is not None
        assert_same(first.embeddings, again.embeddings)
        assert not torch.isclose(first.embeddings, other.embeddings).any(-1).all()

    @pytest.mark.parametrize("shape", [(3, 2), (5, 0), (0, 4)])
    @pytest.mark.parametrize("weighting", ["uniform", "unremix"])
    def test_the_loss_equals_the_loops(self, shape: tuple[int, int], weighting: str) -> None:
        loops: dict[str, Any] = {}
        loss: TwoViewLoss = InfoNCELoss(temperature=0.3)
        if weighting == "unremix":
            loss = UnReMixLoss(temperature=0.3, mix=(0.2, 0.3, 0.5))
            loops = {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()}
        negatives = MoCHi(3, *shape, warmup_epochs=0)
        model = make_model(loss=loss, queue=6, negatives=negatives)
        batch = make_batch(3)
        fill(model, 6, first=1)
        z, h, zk, hk = queries_and_keys(model, batch)
        samples = batch.samples[:, None]
        own = negatives(model, (z, h), batch.views[0], samples, batch.keys + NEGATIVES, 0)
        assert own is not None
        expected = queue_loss(model, batch, z, h, zk, hk, own=own, **loops)
        assert_gradients(model(batch), expected, model)

    def test_points_are_never_enqueued(self) -> None:
        plain = make_model(queue=16)
        model = make_model(queue=16, negatives=MoCHi(3, 4, 2, 0))
        for step in range(3):
            batch = make_batch(seed=step, first=4 * step)
            for each in (plain, model):
                each(batch)
                each.after_step()
        assert_same(model.memory.embeddings, plain.memory.embeddings)
        assert len(model.memory) == 12

    def test_nothing_during_warm_up_or_from_too_small_a_queue(self) -> None:
        negatives = MoCHi(4, 3, 2, warmup_epochs=2)
        model = make_model(queue=12)
        assert generated(model, make_batch(epoch=2), negatives)[0] is None  # an empty queue
        fill(model, 1)
        assert generated(model, make_batch(epoch=2), negatives)[0] is None  # one key
        fill(model, 1, first=51)
        assert generated(model, make_batch(epoch=1), negatives)[0] is None
        found, _ = generated(model, make_batch(epoch=2), negatives)
        assert found is not None
        assert found.embeddings.shape[1] == 5
        # Two keys, one of them of an anchor's own sample.
        assert generated(model, make_batch(epoch=2, first=51), negatives)[0] is None

    def test_it_needs_a_queue(self) -> None:
        model = make_model(SimCLR, negatives=MoCHi())
        with pytest.raises(ValueError, match="framework with a queue, received SimCLR; use MoCo"):
            model(make_batch())

    @pytest.mark.parametrize("mixing_name", ["imix", "unmix"])
    def test_no_point_stems_from_a_sample_that_is_shown(
        self, mixing_name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the mixed image's own sample nor its partner's.

        Keys stand upright on each other, so that a point's coordinates tell what it is made of.
        """
        kind = {"imix": IMix, "unmix": UnMix}[mixing_name]
        negatives = MoCHi(512, 400, 0, 0)
        model, batch = make_model(mixing=kind(), negatives=negatives, queue=5), make_batch(5)
        queued = torch.tensor([3, 0, 4, 2, 1])  # keys of the very samples of the batch
        model.memory.add(torch.eye(5).double(), draw(5, 7), batch.samples[queued])
        found: list[Own] = []

        def keep(*given: Any) -> Own | None:
            own = negatives(*given)
            assert own is not None
            found.append(own)
            return own

        monkeypatch.setattr(model, "negatives", keep)
        model(batch)
        mixed = kind()(batch.views[0], batch.keys, batch.batch_key)
        expected = [[{i} for i in range(5)]] if mixing_name == "unmix" else []
        shown: list[set[int]] = [set() for _ in range(5)]
        for target in mixed.targets:
            for i, (keys, shares) in enumerate(zip(target.keys, target.shares, strict=True)):
                for key, share in zip(keys.tolist(), shares.tolist(), strict=True):
                    if share * target.weight > 0:
                        shown[i].add(key)
        expected.append(shown)
        assert any(len(samples) == 2 for samples in shown)
        assert len(found) == len(expected)
        for own, excluded in zip(found, expected, strict=True):
            for i in range(5):
                used = {int(queued[q]) for q in own.units[i].abs().amax(0).nonzero()[:, 0]}
                assert not used & excluded[i]
                assert len(used) == 5 - max(map(len, excluded))  # as many for every anchor

    def test_more_hardest_than_there_are_keys(self) -> None:
        model, batch = make_model(queue=12), make_batch()
        fill(model, 5, first=0)  # keys of samples 0 to 4: four are left to each anchor
        own, _ = generated(model, batch, MoCHi(512, 64, 0, 0))
        assert own is not None
        f_old = reference.unit(model.memory.views.embeddings)
        for i in range(4):  # five dimensions: a share in the own key would show
            others = torch.stack([f_old[j] for j in range(5) if j != i], dim=1)
            solved = torch.linalg.lstsq(others, own.units[i].T).solution
            assert (others @ solved - own.units[i].T).abs().max() < 1e-10

    def test_bad_options(self) -> None:
        for options in ((1, 2, 3, 0), (4, -1, 3, 0), (4, 1, -3, 0), (4, 1, 3, -1)):
            with pytest.raises(ValueError, match="at least 2 hardest keys and no negative number"):
                MoCHi(*options)


# Mixing.


def one_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mixing, "beta", lambda numbers, *, alpha: torch.ones(numbers.shape[:-1]).double()
    )


MAKERS: dict[str, Callable[..., TwoViewLoss]] = {
    "uniform": partial(InfoNCELoss, temperature=0.3),
    "hcl": partial(HCLLoss, temperature=0.3),
    "unremix": partial(UnReMixLoss, temperature=0.3, mix=(0.2, 0.3, 0.5)),
}
LOOPS: dict[str, dict[str, Any]] = {
    "uniform": {"components": (), "mix": torch.zeros(0).double()},
    "hcl": {"components": (), "mix": torch.zeros(0).double(), "scaling": "hcl", "hardness": 1.0,
            "class_prior": 0.1, "similarity_gradient": True},
    "unremix": {"components": NAMES, "mix": torch.tensor([0.2, 0.3, 0.5]).double()},
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
class TestMixing:
    def test_i_mix_of_one_image_is_one_way(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one_always(monkeypatch)
        batch = make_batch()
        model = make_model(SimCLR, MAKERS[name](), mixing=IMix())
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        expected = MAKERS[name](layout="one-way").double()(z0, z1, h0, h1)
        assert_gradients(model(batch), expected, model)
        moco = make_model(MoCo, MAKERS[name](), mixing=IMix(), queue=5)
        fill(moco, 5, first=2)
        expected = moco.loss.against(
            *(Views(torch.cat(zs), torch.cat(hs) if name == "unremix" else None)
              for zs, hs in self.queued(moco, batch)),
            Pairs.queue(batch.samples, moco.memory.samples, batch_negatives=True),
        )  # fmt: skip
        assert_gradients(moco(batch), expected, moco)

    def queued(self, model: MoCo, batch: Batch) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        z, h, zk, hk = queries_and_keys(model, batch)
        old = model.memory.views
        yield [z], [h]
        yield [zk, old.embeddings], [hk] if old.inputs is None else [hk, old.inputs]

    @pytest.mark.parametrize("cutmix", [0.0, 1.0])
    def test_un_mix_of_one_image_adds_its_base(
        self, name: str, cutmix: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        one_always(monkeypatch)
        batch = make_batch()
        model = make_model(SimCLR, MAKERS[name](), mixing=UnMix(cutmix=cutmix))
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        expected = MAKERS[name]().double()(z0, z1, h0, h1)
        expected = expected + MAKERS[name](layout="one-way").double()(z0, z1, h0, h1)
        assert_gradients(model(batch), expected, model)
        plain, moco = (make_model(MoCo, MAKERS[name](), mixing=m, queue=5)
                       for m in (None, UnMix(cutmix=cutmix)))  # fmt: skip
        for each in (plain, moco):
            fill(each, 5, first=2)
        assert_same(moco(batch), 2 * plain(batch))

    @pytest.mark.parametrize("framework", [SimCLR, MoCo])
    def test_i_mix_equals_the_loops(self, name: str, framework: type[SimCLR | MoCo]) -> None:
        batch = make_batch(5)
        model = make_model(framework, MAKERS[name](), mixing=IMix())
        mixed = IMix()(batch.views[0], batch.keys, batch.batch_key)
        # Which images were mixed, from the images themselves.
        aims: list[dict[int, float]] = []
        flat, images = batch.views[0].flatten(1), mixed.images.flatten(1)
        for i in range(5):
            fits = []
            for j in range(5):
                if j == i:
                    continue
                share = (
                    (images[i] - flat[j]) @ (flat[i] - flat[j]) / (flat[i] - flat[j]).norm() ** 2
                )
                if (share * flat[i] + (1 - share) * flat[j] - images[i]).norm() < 1e-5:
                    fits.append({i: float(share), j: 1 - float(share)})
            aims.append(fits[0] if fits and not torch.equal(images[i], flat[i]) else {i: 1.0})
            assert aims[-1][i] >= 0.5
        assert len({tuple(aim) for aim in aims}) > 1
        z, h = forward(model.encoder, model.head, mixed.images)
        loops = LOOPS[name]
        if framework is MoCo:
            fill(model, 6, first=3)
            _, _, zk, hk = queries_and_keys(model, batch)
            expected = queue_loss(
                model, batch, z, h, zk, hk, aims=aims, batch_negatives=True, **loops
            )
        else:
            z1, h1 = forward(model.encoder, model.head, batch.views[1])
            keys = torch.tensor([[*aim, i][:2] for i, aim in enumerate(aims)])
            shares = torch.tensor([[*aim.values(), 0.0][:2] for aim in aims]).double()
            positives, negatives, share = reference.masks_towards(keys, shares)
            expected = reference.own_loss(
                z, z1, torch.zeros(5, 0, 5).double(), h.detach(), h1.detach(),
                torch.zeros(5, 0, 7).double(), positives, negatives, shares=share,
                positives_in_denominator=True, temperature=0.3, **loops,
            )  # fmt: skip
        # λ was read off the images, in double precision.
        torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)
        one, other = gradients_of(model(batch), model), gradients_of(expected, model)
        for key, gradient in other.items():
            assert_close(one[key], gradient, 1e-7)

    @pytest.mark.parametrize("cutmix", [0.0, 1.0])
    @pytest.mark.parametrize("framework", [SimCLR, MoCo])
    def test_un_mix_equals_the_loops(
        self, name: str, framework: type[SimCLR | MoCo],
        cutmix: float,
    ) -> None:  # fmt: skip
        """L_orig + λ L(mix, k) + (1 - λ) L(flip(mix), k); the partner stays a negative."""
        n, batch = 5, make_batch(5)
        model = make_model(framework, MAKERS[name](), mixing=UnMix(cutmix=cutmix))
        mixed = UnMix(cutmix=cutmix)(batch.views[0], batch.keys, batch.batch_key).images
        flipped = batch.views[0].flip(0)
        if cutmix:
            pasted = (mixed == flipped) & (mixed != batch.views[0])
            lam = 1 - float(pasted[0].double().mean())
        else:
            away = (batch.views[0] - flipped)[0]
            lam = float(((mixed - flipped)[0] * away).sum() / (away**2).sum())
        assert 0 < lam < 1
        loops = LOOPS[name]
        z, h = forward(model.encoder, model.head, mixed)
        if framework is MoCo:
            fill(model, 6, first=3)
            zq, hq, zk, hk = queries_and_keys(model, batch)
            aimed: dict[str, Any] = {
                "own": [{i: 1.0} for i in range(n)],
                "other": [{n - 1 - i: 1.0} for i in range(n)],
            }
            expected = queue_loss(model, batch, zq, hq, zk, hk, **loops)
            expected = expected + lam * queue_loss(
                model, batch, z, h, zk, hk, aims=aimed["own"], **loops
            )
            expected = expected + (1 - lam) * queue_loss(
                model, batch, z, h, zk, hk, aims=aimed["other"], **loops
            )
        else:
            (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
            expected = MAKERS[name]().double()(z0, z1, h0, h1)
            one_way = MAKERS[name](layout="one-way").double()
            expected = expected + lam * one_way(z, z1, h, h1)
            # L(flip(mix), k): the rows in reverse, each against its own key.
            expected = expected + (1 - lam) * one_way(z.flip(0), z1, h.flip(0), h1)
        torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)
        one, other = gradients_of(model(batch), model), gradients_of(expected, model)
        for key, gradient in other.items():
            assert_close(one[key], gradient, 1e-7)


# Patches.


class TestPatches:
    def perturbed(self, batch: Batch, row: int) -> Batch:
        views = tuple(view.clone() for view in batch.views)
        views[0][row] += 1.0
        return Batch(views, batch.samples, batch.keys, batch.batch_key, batch.epoch)

    @pytest.mark.parametrize("name", MAKERS)
    def test_a_patch_touches_its_own_anchor_alone(self, name: str) -> None:
        """Another image, the same query: only that anchor's gradient and loss change."""
        model = make_model(loss=MAKERS[name](), negatives=Patches(2, 3), queue=6)
        fill(model, 6)
        batch = make_batch()
        other = self.perturbed(batch, 2)
        z, h = model.embed(batch.views[0])
        z = z.detach().requires_grad_()
        found = []
        for each in (batch, other):
            loss = model.objective([(z, h)], each)
            found.append((loss.detach(), torch.autograd.grad(loss, z)[0]))
        (before, gradient), (after, changed) = found
        assert abs(float(after - before)) > 1e-8
        moved = (gradient - changed).abs().amax(1) > 1e-12
        assert moved.tolist() == [False, False, True, False]

    @pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("name", MAKERS)
    def test_moco_equals_the_loops(self, name: str, factor: float) -> None:
        model = make_model(loss=MAKERS[name](), negatives=Patches(2, 3, factor), queue=6)
        fill(model, 6, first=2)
        batch = make_batch()
        patches = patch_negatives(batch.views[0], batch.keys + NEGATIVES, smallest=2, largest=3)
        with torch.no_grad():
            zp, hp = forward(model.key_encoder, model.key_head, patches)
        own = Own(zp[:, None], hp[:, None], factor)
        expected = queue_loss(model, batch, *queries_and_keys(model, batch), own=own, **LOOPS[name])
        assert_gradients(model(batch), expected, model)

    @pytest.mark.parametrize("layout", ["both", "one-way"])
    @pytest.mark.parametrize("name", MAKERS)
    def test_simclr_equals_the_loops(self, name: str, layout: str) -> None:
        model = make_model(SimCLR, MAKERS[name](layout=layout), negatives=Patches(2, 3))
        batch = make_batch()
        (z0, h0), (z1, h1) = (forward(model.encoder, model.head, view) for view in batch.views)
        both = layout == "both"
        zo, ho = [], []
        for view in range(2 if both else 1):
            patches = patch_negatives(
                batch.views[view], batch.keys + STREAMS * view + NEGATIVES, smallest=2, largest=3
            )
            z, h = forward(model.encoder, model.head, patches)
            zo.append(z.detach()[:, None])
            ho.append(h.detach()[:, None])
        positives, negatives = reference.masks_both(4) if both else reference.masks_one_way(4)
        za, zc = (torch.cat([z0, z1]),) * 2 if both else (z0, z1)
        ha, hc = (torch.cat([h0, h1]).detach(),) * 2 if both else (h0.detach(), h1.detach())
        expected = reference.own_loss(
            za, zc, torch.cat(zo), ha, hc, torch.cat(ho), positives, negatives, logit_factor=2.0,
            every_view_is_both=both, **{"temperature": 0.3, **LOOPS[name]},
        )  # fmt: skip
        assert_gradients(model(batch), expected, model)

    def patches_of(self, images: Tensor, keys: Tensor, *modules: Any) -> Own:
        tiled = patch_negatives(images, keys, smallest=2, largest=3)
        with torch.no_grad():
            z, h = forward(*modules, tiled)
        return Own(z[:, None], h[:, None], 2.0)

    @pytest.mark.parametrize("name", MAKERS)
    def test_mixed_images_are_cut_from_themselves(self, name: str) -> None:
        """Un-Mix on MoCo and i-Mix on SimCLR: each loss has the patches of what it shows."""
        batch = make_batch()
        model = make_model(MoCo, MAKERS[name](), mixing=UnMix(), negatives=Patches(2, 3), queue=6)
        fill(model, 6, first=2)
        z, h, zk, hk = queries_and_keys(model, batch)
        keys = batch.keys + NEGATIVES
        own = self.patches_of(batch.views[0], keys, model.key_encoder, model.key_head)
        expected = queue_loss(model, batch, z, h, zk, hk, own=own, **LOOPS[name])
        mixed = UnMix()(batch.views[0], batch.keys, batch.batch_key)
        z, h = forward(model.encoder, model.head, mixed.images)
        keys = batch.keys + NEGATIVES_OF_MIXED
        own = self.patches_of(mixed.images, keys, model.key_encoder, model.key_head)
        for target in mixed.targets:
            aims = [{int(key): 1.0} for key in target.keys[:, 0]]
            expected = expected + target.weight * queue_loss(
                model, batch, z, h, zk, hk, own=own, aims=aims, **LOOPS[name]
            )
        assert_gradients(model(batch), expected, model)

        model = make_model(SimCLR, MAKERS[name](), mixing=IMix(), negatives=Patches(2, 3))
        mixed = IMix()(batch.views[0], batch.keys, batch.batch_key)
        z, h = forward(model.encoder, model.head, mixed.images)
        z1, h1 = forward(model.encoder, model.head, batch.views[1])
        own = self.patches_of(mixed.images, keys, model.encoder, model.head)
        (target,) = mixed.targets
        positives, negatives, shares = reference.masks_towards(target.keys, target.shares)
        expected = reference.own_loss(
            z, z1, own.embeddings, h.detach(), h1.detach(), own.inputs, positives, negatives,
            shares=shares, positives_in_denominator=True, logit_factor=2.0, temperature=0.3,
            **LOOPS[name],
        )  # fmt: skip
        assert_gradients(model(batch), expected, model)

    def test_sizes_follow_the_image(self) -> None:
        seen = []
        model = make_model(negatives=Patches())
        model.embed_keys = lambda images, keys: (  # type: ignore[method-assign]
            seen.append(images), (images.flatten(1)[:, :5], images.flatten(1)[:, :7])
        )[1]  # fmt: skip
        n = 64
        images = torch.arange(n * 36.0).view(n, 1, 6, 6).double()
        keys = random_keys(0, 0, torch.arange(n), 1)
        samples = torch.arange(n)[:, None]
        own = Patches()(model, (draw(n, 5), draw(n, 7)), images, samples, keys, 0)
        assert own.embeddings.shape == (n, 1, 5)
        assert own.inputs is None
        assert own.logit_factor == 2.0
        distinct = {len(image.unique()) for image in seen[0]}
        assert distinct == {1, 4}  # sides 6 // 16 → 1 to 6 // 3 = 2
        for i, image in enumerate(seen[0]):
            assert image.min() >= 36 * i  # of its own image
            assert image.max() < 36 * (i + 1)

    def test_bad_options(self) -> None:
        for factor in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"factor to be above 0, received {factor}"):
                Patches(factor=factor)
        model = make_model(negatives=Patches(3, 9))
        with pytest.raises(ValueError, match=r"largest <= 6, the images' side"):
            model(make_batch())


# What a step draws.


@pytest.mark.parametrize("symmetric", [None, False, True])  # None: SimCLR
@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
@pytest.mark.parametrize("negatives", ["none", "mochi", "patch"])
def test_no_two_streams_of_a_step_are_equal(
    symmetric: bool | None, mixing_name: str, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is drawn from twice, be it a sample's or the batch's."""
    if symmetric is None and negatives == "mochi":
        pytest.skip("no queue")
    options: dict[str, Any] = {
        "mixing": {"none": None, "imix": IMix(), "unmix": UnMix()}[mixing_name],
        "negatives": {"none": None, "mochi": MoCHi(4, 3, 2, 0), "patch": Patches(2, 3)}[negatives],
    }
    if symmetric is None:
        model = make_model(SimCLR, **options)
    else:
        model = make_model(symmetric=symmetric, group=2, queue=8, **options)
        fill(model, 8)
    batch = make_batch(4)
    embedded = [model.embed(images) for images in model.inputs(batch)]
    drawn: list[int] = []

    def recorded(keys: Tensor, count: int) -> Tensor:
        drawn.extend(keys.tolist())
        return uniforms(keys, count)

    for module in (mixing, further_negatives):
        monkeypatch.setattr(module, "uniforms", recorded)
    model.objective(embedded, batch)
    assert len(set(drawn)) == len(drawn)
    ways, mixes = 1 + bool(symmetric), mixing_name != "none"
    assert len(drawn) >= ways * (mixes + (symmetric is not None))


# HCL and debiased, by their formulas.


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
        assert_close(one, other, 1e-10)
    # The same on a queue, whose keys are the negatives.
    model = make_model(
        loss=compose(RECIPES["moco"], changes={"weighting": "hcl" if beta else "uniform"},
                     options={"loss": LossOptions(class_prior=class_prior)},
                     temperature=temperature).make_loss(), queue=7,
    )  # fmt: skip
    fill(model, 7)
    batch = make_batch()
    z, _, zk, _ = queries_and_keys(model, batch)
    q, k, old = F.normalize(z), F.normalize(zk), F.normalize(model.memory.views.embeddings)
    expected = torch.stack([published(q[i] @ k[i], old @ q[i], **option) for i in range(4)]).mean()
    assert_gradients(model(batch), expected, model)


# Free compositions.

FREE = [
    (framework, mixing_name, negatives, weighting)
    for framework in ("simclr", "moco")
    for mixing_name in ("none", "imix", "unmix")
    for negatives in ("none", "mochi", "patch")
    for weighting in ("uniform", "hcl", "unremix")
]
SMALL = {
    "moco": MoCoOptions(queue=9, group=2),
    "mochi": MoCHiOptions(hardest=4, pairs=3, queries=2, warmup_epochs=0),
}


def composed(
    framework: str, mixing_name: str, negatives: str, weighting: str, **options: Any
) -> Framework:
    used = {
        "moco": {"moco": SMALL["moco"]} if framework == "moco" else {},
        "mochi": {"mochi": SMALL["mochi"]} if negatives == "mochi" else {},
    }
    changes: dict[Any, str | None] = {
        "framework": framework, "mixing": mixing_name, "negatives": negatives,
        "weighting": weighting,
    }  # fmt: skip
    composition = compose(
        RECIPES["simclr"], changes=changes, options={**used["moco"], **used["mochi"], **options}
    )
    assert composition.parts == changes
    return composition.make_framework(*make_parts(batch_norm=True)).double()


def assert_trains(model: Framework, steps: int = 3) -> None:
    for step in range(steps):
        loss = model(make_batch(seed=step, first=3 * step))
        found = gradients_of(loss, model)
        assert loss.isfinite()
        assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
        for name, gradient in found.items():
            assert gradient.isfinite().all()
            # The mix and the bias before BatchNorm have none, or next to none.
            assert gradient.any() or "mix" in name or name == "encoder.1.bias"
        model.after_step()


@pytest.mark.parametrize(("framework", "mixing_name", "negatives", "weighting"), FREE)
def test_every_composition_trains(
    framework: str, mixing_name: str, negatives: str, weighting: str
) -> None:
    if framework == "simclr" and negatives == "mochi":
        with pytest.raises(ValueError, match=r"expected .*queue .*received 'simclr'; use moco"):
            composed(framework, mixing_name, negatives, weighting)
        return
    assert_trains(composed(framework, mixing_name, negatives, weighting))


@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
@pytest.mark.parametrize("negatives", ["none", "patch"])
@pytest.mark.parametrize(
    "option",
    [
        LossOptions(layout="one-way"),
        LossOptions(scaling="zscore-exp", hardness=2.0, similarity_gradient=True),
        LossOptions(fidelity="paper"),
        LossOptions(fidelity="code"),
        LossOptions(mix="adversarial", mass="none", sketch=3),
        LossOptions(components=("uncertainty",), mix="free", posterior_temperature=0.1),
        LossOptions(components=("representativeness", "similarity"), class_prior=0.1),
    ],
    ids=str,
)
def test_options_of_the_weights_in_every_composition(
    mixing_name: str, negatives: str, option: LossOptions
) -> None:
    for framework in ("simclr", "moco"):
        if framework == "simclr" or option.layout is None:
            assert_trains(composed(framework, mixing_name, negatives, "unremix", loss=option), 2)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [0, 3])
@pytest.mark.parametrize("mixing_name", ["none", "imix", "unmix"])
def test_options_of_moco_in_every_composition(
    symmetric: bool, group: int, mixing_name: str
) -> None:
    option = MoCoOptions(queue=5, momentum=0.5, symmetric=symmetric, group=group)
    for negatives in ("mochi", "patch"):
        model = composed("moco", mixing_name, negatives, "unremix", moco=option)
        assert isinstance(model, MoCo)
        assert (model.memory.size, model.momentum) == (5, 0.5)
        assert (model.symmetric, model.group) == (symmetric, group)
        assert_trains(model)


SWAV_MIXES = {
    "mixing": ["imix", "unmix"], "negatives": ["mochi", "patch"],
    "weighting": ["uniform", "hcl", "unremix"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, names in SWAV_MIXES.items() for n in names]
)
def test_swav_has_no_negatives_to_change(kind: Any, name: str) -> None:
    message = (
        rf"expected a framework with negatives for {kind}, received 'swav'.*use simclr or moco"
    )
    with pytest.raises(ValueError, match=message):
        compose(RECIPES["swav"], changes={kind: name})
    with pytest.raises(ValueError, match=message):
        compose(RECIPES["simclr"], changes={"framework": "swav", kind: name})
    assert compose(RECIPES["simclr"], changes={"framework": "swav"}).parts["weighting"] == "none"


@pytest.mark.parametrize("recipe", ["imix", "mochi", "patch", "unmix"])
def test_a_recipe_with_parts_does_not_turn_into_swav(recipe: str) -> None:
    with pytest.raises(ValueError, match=r"expected a framework with negatives .*received 'swav'"):
        compose(RECIPES[recipe], changes={"framework": "swav"})
    bare: dict[Any, str | None] = {"framework": "swav", "mixing": "none", "negatives": "none"}
    assert compose(RECIPES[recipe], changes=bare).make_loss() is None


def test_unknown_parts_are_refused() -> None:
    for kind, name, near in (
        ("framework", "mocco", "moco"), ("mixing", "unmixed", "unmix"), ("weighting", "hlc", "hcl"),
        ("negatives", "patches", "patch"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"expected a {kind} among .*did you mean '{near}'"):
            compose(RECIPES["simclr"], changes={kind: name})  # type: ignore[dict-item]
    for kind in ("framework", "weighting"):
        with pytest.raises(ValueError, match=f"expected a {kind} among .*received 'none'"):
            compose(RECIPES["simclr"], changes={kind: "none"})  # type: ignore[dict-item]


def test_contradicting_parts_are_refused() -> None:
    for change in ({"framework": "moco"}, {"negatives": "patch"}):
        composition = compose(RECIPES["unremix-nt-xent"], changes=change)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"expected gradient='pseudo-label' .*received 'nt-xe"):
            composition.make_framework(*make_parts())


IMAGE_RECIPES = [
    "simclr", "debiased", "hcl", "moco", "mochi", "swav", "imix", "patch", "unmix", "unremix",
    "unremix-simclr", "unremix-moco", "unremix-u", "unremix-s", "unremix-r", "unremix-fixed",
    "unremix-nt-xent",
]  # fmt: skip
OPTIONS: dict[str, Any] = {
    "loss": LossOptions(
        ("similarity",), "fixed", "minmax", "mean", 1.0, 1.0, "pseudo-label", 0.1, True, 8, "both",
        "sound",
    ),
    "moco": MoCoOptions(8, 0.9, False, 2),
    "swav": SwAVOptions(5, 3, 0.05, 0, 0, 15, 0),
    "mixture": MixOptions(1.0, 0.5),
    "mochi": MoCHiOptions(4, 4, 4, 0),
    "patch": PatchOptions(1, 2, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("recipe", IMAGE_RECIPES)
def test_options_that_do_nothing_are_refused(recipe: str) -> None:
    """And no others: each option of each section by itself."""
    assert set(OPTIONS) <= set(SECTIONS)
    parts = RECIPES[recipe].parts
    used = {
        (part.section, option)
        for kind, name in parts.items()
        if name != "none"
        for part in [PARTS[kind][name]]
        for option in part.options
    }
    for section, whole in OPTIONS.items():
        for option, value in vars(whole).items():
            assert value is not None
            given = type(whole)(**{option: value})
            if (section, option) in used:
                chosen = compose(RECIPES[recipe], options={section: given}).options[section]
                assert chosen[option] == value
                continue
            message = rf"'{recipe}' uses .*received --{section}\.{option}, which would do nothing"
            with pytest.raises(ValueError, match=message):
                compose(RECIPES[recipe], options={section: given})


def test_options_reach_their_parts() -> None:
    config = TrainConfig(
        recipe="unremix-simclr", framework="moco", mixing="unmix", negatives="mochi",
        temperature=0.7, loss=LossOptions(mix=(0.1, 0.2, 0.7), mass="none"),
        moco=MoCoOptions(queue=17, momentum=0.3, symmetric=True, group=5),
        mixture=MixOptions(alpha=2.0, cutmix=0.25), mochi=MoCHiOptions(5, 6, 7, 8),
    )  # fmt: skip
    model = config.composition().make_framework(*make_parts(), gather=True)
    assert isinstance(model, MoCo)
    assert (model.memory.size, model.momentum, model.symmetric, model.group) == (17, 0.3, True, 5)
    assert model.mixing == UnMix(alpha=2.0, cutmix=0.25)
    assert model.negatives == MoCHi(5, 6, 7, 8)
    assert model.loss.temperature == 0.7
    assert model.loss.gather
    assert model.loss.weighting.mass == "none"
    assert list(model.mix.values()) == pytest.approx([0.1, 0.2, 0.7])
    assert config.composed_name == "unremix-simclr+moco+unmix+mochi"


def test_recipes_are_what_their_papers_say() -> None:
    settings = {name: compose(RECIPES[name]) for name in IMAGE_RECIPES}
    parts = {name: tuple(found.parts.values()) for name, found in settings.items()}
    assert parts["simclr"] == parts["debiased"] == ("simclr", "none", "none", "uniform")
    assert parts["hcl"] == ("simclr", "none", "none", "hcl")
    assert parts["moco"] == ("moco", "none", "none", "uniform")
    assert parts["mochi"] == ("moco", "none", "mochi", "uniform")
    assert parts["swav"] == ("swav", "none", "none", "none")
    assert parts["imix"] == ("moco", "imix", "none", "uniform")
    assert parts["patch"] == ("moco", "none", "patch", "uniform")
    assert parts["unmix"] == ("simclr", "unmix", "none", "uniform")
    assert parts["unremix"] == ("simclr", "unmix", "none", "unremix")
    assert parts["unremix-simclr"] == ("simclr", "none", "none", "unremix")
    assert parts["unremix-moco"] == ("moco", "none", "none", "unremix")
    temperatures = {name: found.temperature for name, found in settings.items()}
    assert temperatures["moco"] == temperatures["swav"] == temperatures["mochi"] == 0.1
    assert temperatures["imix"] == temperatures["patch"] == 0.2
    assert temperatures["unmix"] == temperatures["unremix"] == 0.5
    model = settings["imix"].make_framework(*make_parts())
    assert isinstance(model, MoCo)
    assert (model.momentum, model.memory.size) == (0.999, 4096)
    model = settings["patch"].make_framework(*make_parts())
    assert isinstance(model, MoCo)
    assert (model.momentum, model.memory.size) == (0.99, 16384)
    assert model.negatives == Patches(factor=2.0)
    model = settings["mochi"].make_framework(*make_parts())
    assert model.negatives == MoCHi(512, 512, 64, 10)
    assert settings["debiased"].make_loss().class_prior == 0.1  # type: ignore[union-attr]


def test_a_changed_part_leaves_its_preset_behind() -> None:
    assert compose(RECIPES["imix"], changes={"framework": "simclr"}).options["moco"] == {}
    assert compose(RECIPES["unremix-u"], changes={"weighting": "hcl"}).options["loss"] == {}
    kept = compose(RECIPES["debiased"], changes={"weighting": "unremix"})
    assert kept.options["loss"] == {"class_prior": 0.1}
    told = compose(RECIPES["imix"], options={"moco": MoCoOptions(momentum=0.5)})
    assert told.options["moco"] == {"momentum": 0.5}


# Several processes with gathered negatives against one that holds the joint batch.

SIZES = [(4, 2)]
AIMED = [(name, "aimed", "one-way") for name in LOSSES]
WITH_OWN = [
    (name, "own", layout) for name in LOSSES if name != "nt-xent" for layout in ("both", "one-way")
]
WITH_OWN += [(name, "own and aimed", "one-way") for name in ("hcl", "minmax", "zscore-exp")]
QUEUED = [
    (loss, negatives, symmetric)
    for loss in ("uniform", "hcl")
    for negatives in ("none", "mochi", "patch")
    for symmetric in (False, True)
]


def part_of(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def aims_of(sizes: tuple[int, ...], rank: int) -> tuple[Tensor, Tensor]:
    """Keys, counted from the process's first, and shares: itself and the next of its own."""
    n = sizes[rank]
    own = torch.arange(n)
    lam = torch.linspace(0.5, 1.0, 7)[own + rank].double()
    return torch.stack([own, (own + 1) % n], 1), torch.stack([lam, 1 - lam], 1)


def joint_aims(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    parts = [aims_of(sizes, rank) for rank in range(len(sizes))]
    keys = torch.cat([k + part_of(sizes, rank).start for rank, (k, _) in enumerate(parts)])
    return keys, torch.cat([shares for _, shares in parts])


def contrasted(
    name: str, kind: str, layout: str, sizes: tuple[int, ...], rank: int | None
) -> dict[str, Tensor]:
    """Loss and gradients of one process of several, or of all in one."""
    rows = slice(None) if rank is None else part_of(sizes, rank)
    total = sum(sizes)
    z0, z1 = (draw(total, 4, seed=v)[rows].requires_grad_() for v in range(2))
    h0, h1 = (draw(total, 3, seed=2 + v)[rows] for v in range(2))
    loss_fn = LOSSES[name](layout=layout, gather=rank is not None, tile=2).double()
    own = None
    if "own" in kind:
        zo, ho = draw(2, total, 2, 4, seed=5)[:, rows], draw(2, total, 2, 3, seed=6)[:, rows]
        count = 2 if layout == "both" else 1
        own = Own(zo[:count].flatten(0, 1), ho[:count].flatten(0, 1), 1.5)
    if "aimed" in kind:
        keys, shares = joint_aims(sizes) if rank is None else aims_of(sizes, rank)
        loss = loss_fn.towards(z0, z1, h0, h1, keys=keys, shares=shares, own=own)
    else:
        loss = loss_fn(z0, z1, h0, h1, own=own)
    loss.backward()
    found = {"loss": loss.detach(), "z0": z0.grad, "z1": z1.grad}
    return found | {n: p.grad for n, p in loss_fn.named_parameters()}  # type: ignore[dict-item]


def stepped(
    loss: str, negatives: str, symmetric: bool, sizes: tuple[int, ...], rank: int | None
) -> dict[str, Any]:
    """Two steps of MoCo with a queue at hand; the gradients averaged by hand."""
    chosen = {"none": None, "mochi": MoCHi(4, 3, 2, 0), "patch": Patches(2, 3)}[negatives]
    loss_fn = MAKERS[loss](gather=rank is not None)
    model = make_model(loss=loss_fn, queue=11, symmetric=symmetric, negatives=chosen, momentum=0.5)
    fill(model, 7, first=1)
    losses = []
    for step in range(2):
        rows = slice(None) if rank is None else part_of(sizes, rank)
        value = model(make_batch(sum(sizes), seed=step, first=4 * step, rows=rows))
        found = gradients_of(value, model)
        value = value.detach()
        if rank is not None:
            for tensor in (value, *found.values()):
                dist.all_reduce(tensor)
                tensor /= len(sizes)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in found:
                    parameter -= 0.5 * found[name]
        model.after_step()
        losses.append(value)
    return {"losses": torch.stack(losses), **model.state_dict()}


@cache
def alone(function: Callable[..., Any], *case: Any) -> Any:
    return function(*case, None)


def gathered(world: int) -> Report:
    rank = dist.get_rank()
    found: Report = {}
    for sizes in SIZES:
        for case in (*AIMED, *WITH_OWN):
            found[(*case, sizes)] = contrasted(*case, sizes, rank)
        for queued in QUEUED:
            found[(*queued, sizes)] = stepped(*queued, sizes, rank)
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    return processes(2, gathered, tmp_path_factory.mktemp("frameworks"))


@pytest.mark.xdist_group("gather")  # processes are started by one worker
class TestTwoProcesses:
    @pytest.mark.parametrize(("name", "kind", "layout"), [*AIMED, *WITH_OWN])
    def test_losses_are_those_of_the_joint_batch(
        self, reports: list[Report], name: str, kind: str, layout: str
    ) -> None:
        for sizes in SIZES:
            found = [report[name, kind, layout, sizes] for report in reports]
            expected = alone(contrasted, name, kind, layout, sizes)
            assert_close(sum(each["loss"] for each in found) / 2, expected["loss"])
            for leaf in expected.keys() - {"loss"}:
                if leaf in ("z0", "z1"):  # DistributedDataParallel divides by the processes
                    rows = torch.cat([each[leaf] for each in found]) / 2
                    assert_close(rows, expected[leaf], 1e-9)
                else:
                    for each in found:
                        assert_close(each[leaf], expected[leaf], 1e-9)

    @pytest.mark.parametrize(("loss", "negatives", "symmetric"), QUEUED)
    def test_a_queue_is_that_of_one_process(
        self, reports: list[Report], loss: str, negatives: str, symmetric: bool
    ) -> None:
        """Losses, encoders and the queue, in order; while there is a queue."""
        for sizes in SIZES:
            expected = alone(stepped, loss, negatives, symmetric, sizes)
            for report in reports:
                found = report[loss, negatives, symmetric, sizes]
                assert found.keys() == expected.keys()
                for name, value in expected.items():
                    assert_close(found[name], value, 1e-9)
