"""The whole loss against the loops, for every engine, all pairs and both objectives."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, Literal

import pytest
import reference
import torch
from batches import assert_close
from building import draw, reference_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.core.contrast import contrast
from unremix.core.engines import native
from unremix.core.objectives import InfoNCE, JensenShannon
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.scores import COMPONENTS, Block
from unremix.core.specification import unremix
from unremix.core.views import Views
from unremix.core.weights import Weighting, hard_negatives

NAMES = tuple(COMPONENTS)
UNIFORM = Weighting()


def info_nce(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
    weighting: Weighting = UNIFORM,
    class_prior: float = 0.0,
    positives_in_denominator: bool = False,
    decoupled: bool = False,
    temperature: Any = 0.5,
    mix: Tensor | None = None,
    **options: Any,
) -> Tensor:
    objective = InfoNCE(class_prior, positives_in_denominator, decoupled)
    asked = Options(weighting, objective, **options)
    compared = ContrastInput(anchors, candidates, pairs)
    return contrast(compared, asked, temperature=temperature, mix=mix)


def jsd(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
    weighting: Weighting = UNIFORM,
    logits: Any = "dot",
    temperature: Any = 1.0,
    mix: Tensor | None = None,
    **options: Any,
) -> Tensor:
    asked = Options(weighting, JensenShannon(), logits, **options)
    compared = ContrastInput(anchors, candidates, pairs)
    return contrast(compared, asked, temperature=temperature, mix=mix)


def engines(weighting: Weighting) -> list[str]:
    """Those that serve a weighting and need no compilation; ``compiled`` is tested by itself."""
    refused = native.refusal(Options(weighting), torch.zeros(1, dtype=torch.float64))
    return ["eager"] if refused else ["eager", "native"]


def windows() -> Pairs:
    return Pairs.windows(
        torch.tensor([0, 0, 0, 1, 2, 2]), reach=2, texts=torch.tensor([1, 2, 3, 4, 1, 5])
    )


def imix() -> Pairs:
    """Two positives per anchor with shares λ and 1 - λ, as i-Mix has them."""
    partners = torch.stack([torch.arange(6), torch.arange(6).flip(0)], dim=1)
    share = torch.tensor([0.7, 0.6, 0.9, 0.8, 0.55, 0.75]).double()
    return Pairs.aimed(partners, torch.stack([share, 1 - share], dim=1))


PAIRS = {
    "windows": windows,
    "imix": imix,
    "queue": lambda: Pairs.queue(torch.arange(6), torch.tensor([3, 9, 0, 11, 12])),
    "membership": lambda: Pairs.membership(torch.tensor([0, 0, 1, 2, 2, 2]), 3),
    "both": lambda: Pairs.both_views(3),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("products", ["cosine", "dot"])
@pytest.mark.parametrize("positives_in_denominator", [False, True])
@pytest.mark.parametrize("similarity_gradient", [False, True])
@pytest.mark.parametrize(("scaling", "temperature"), [("minmax", 0.4), ("zscore", 1.0)])
def test_info_nce_equals_the_loops(
    name: str,
    products: str,
    positives_in_denominator: bool,
    similarity_gradient: bool,
    scaling: str,
    temperature: float,
) -> None:
    pairs = PAIRS[name]()
    za, zc = draw(pairs.num_anchors, 4).requires_grad_(), draw(pairs.num_candidates, 4, seed=1)
    zc.requires_grad_()
    ha, hc = draw(pairs.num_anchors, 3, seed=2), draw(pairs.num_candidates, 3, seed=3)
    mix = torch.tensor([0.3, 0.5, 0.2]).double().requires_grad_()
    weighting = Weighting(
        NAMES,
        scaling=scaling,
        sharpness=0.7 if scaling == "zscore" else None,
        similarity_gradient=similarity_gradient,
    )
    class_prior = 0.1 if products == "cosine" and scaling == "minmax" else 0.0
    weights = reference_weights(za, zc, ha, hc, pairs, mix, weighting)
    logits = (
        reference.similarity(za, zc) if products == "cosine" else reference.dots(za, zc)
    ) / temperature
    shares = pairs.targets(dtype=torch.float64)
    expected = reference.info_nce(
        logits, pairs.positive_mask(), pairs.negatives(), weights, class_prior=class_prior,
        temperature=temperature, positives_in_denominator=positives_in_denominator,
        positive_weights=shares,
    )  # fmt: skip
    expected_gradients = torch.autograd.grad(expected, (za, zc, mix))
    for engine, tile in itertools.product(engines(weighting), (None, 1, 4, 100)):
        actual = info_nce(
            Views(za, ha), Views(zc, hc), pairs, temperature=temperature, weighting=weighting,
            mix=mix, class_prior=class_prior, positives_in_denominator=positives_in_denominator,
            logits=products, tile=tile, engine=engine,
        )  # fmt: skip
        assert_close(actual, expected)
        gradients = torch.autograd.grad(actual, (za, zc, mix))
        for one, other in zip(gradients, expected_gradients, strict=True):
            assert_close(one, other, 1e-9)


@pytest.mark.parametrize("weighting", [
    Weighting(),
    Weighting(NAMES),
    Weighting(NAMES, mass="none"),
    Weighting(NAMES, scaling="zscore", sharpness=1.0, similarity_gradient=True),
    Weighting(NAMES, scaling="none", mass="none"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["membership", "queue"])
def test_jsd_equals_the_loops(weighting: Weighting, name: str) -> None:
    pairs = PAIRS[name]()
    za, zc = draw(pairs.num_anchors, 4).requires_grad_(), draw(pairs.num_candidates, 4, seed=1)
    zc.requires_grad_()
    ha, hc = draw(pairs.num_anchors, 3, seed=2), draw(pairs.num_candidates, 3, seed=3)
    mix = torch.tensor([0.3, 0.5, 0.2]).double().requires_grad_()
    if weighting.components:
        weights = reference_weights(za, zc, ha, hc, pairs, mix, weighting)
        inputs = [za, zc, mix]
    else:
        weights = pairs.negatives().double()
        inputs = [za, zc]
    expected = reference.jsd(
        reference.dots(za, zc), pairs.positive_mask(), pairs.negatives(), weights
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*only zero weights.*")
        losses = [
            jsd(
                Views(za, ha), Views(zc, hc), pairs, weighting=weighting,
                mix=mix if weighting.components else None, tile=2, engine=engine,
            )
            for engine in engines(weighting)
        ]  # fmt: skip
    expected_gradients = torch.autograd.grad(expected, inputs)
    for actual in losses:
        assert_close(actual, expected)
        for one, other in zip(torch.autograd.grad(actual, inputs), expected_gradients, strict=True):
            assert_close(one, other, 1e-9)


def test_quick_thought_cross_entropy() -> None:
    """Uniform weights, positives in the denominator: cross-entropy to uniform targets."""
    pairs = Pairs.windows(torch.tensor([0, 0, 0, 0, 1, 1]))
    f, g = draw(6, 4), draw(6, 4, seed=1)
    logits = (f @ g.T).masked_fill(torch.eye(6).bool(), -torch.inf)
    target = pairs.positive_mask() / pairs.positive_mask().sum(1, keepdim=True)
    expected = -(target * logits.log_softmax(1).masked_fill(torch.eye(6).bool(), 0)).sum(1).mean()
    actual = info_nce(
        Views(f), Views(g), pairs, temperature=1.0, logits="dot", positives_in_denominator=True
    )
    assert_close(actual, expected)


def test_a_queue_equals_one_way_when_it_holds_the_same_keys() -> None:
    queries, keys = draw(5, 4).requires_grad_(), draw(5, 4, seed=1)
    h_queries, h_keys = draw(5, 3, seed=2), draw(5, 3, seed=3)
    weighting = Weighting(NAMES)
    one_way = info_nce(
        Views(queries, h_queries), Views(keys, h_keys), Pairs.one_way(5), weighting=weighting
    )
    queued = info_nce(
        Views(queries, h_queries),
        Views(torch.cat([keys, keys]), torch.cat([h_keys, h_keys])),
        Pairs.queue(torch.arange(5), torch.arange(5)),
        weighting=weighting,
    )
    assert_close(queued, one_way)
    first, second = (torch.autograd.grad(loss, queries)[0] for loss in (one_way, queued))
    assert_close(first, second)


def test_anchors_without_positive_do_not_count() -> None:
    z = draw(4, 3)
    with_lonely = Pairs.windows(torch.tensor([0, 0, 1, 1]))
    lonely = Pairs.windows(torch.tensor([0, 0, 1, 2]))
    expected = reference.info_nce(
        reference.similarity(z, z) / 0.5, lonely.positive_mask(), lonely.negatives(),
        lonely.negatives().double(), temperature=0.5,
    )  # fmt: skip
    assert_close(info_nce(Views(z), Views(z), lonely), expected)
    assert info_nce(Views(z), Views(z), with_lonely) != expected


def test_anchors_without_negatives_contribute_nothing() -> None:
    positives = torch.tensor([[1, 0], [0, 1]]).bool()
    negatives = torch.tensor([[0, 1], [0, 0]]).bool()
    z = draw(2, 3).requires_grad_()
    for weighting in (Weighting(), Weighting(NAMES), hard_negatives(1.0)):
        pairs = Pairs.from_masks(positives, negatives)
        loss = info_nce(Views(z), Views(z.detach()), pairs, weighting=weighting, class_prior=0.1)
        (gradient,) = torch.autograd.grad(loss, z)
        assert gradient.isfinite().all()
        assert torch.equal(gradient[1], torch.zeros(3).double())
        assert loss > 0


def test_what_cannot_be_is_refused() -> None:
    views = Views(torch.eye(2))
    nothing = torch.zeros(2, 2, dtype=torch.bool)
    one = torch.eye(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="no positive pair"):
        info_nce(views, views, Pairs.from_masks(nothing, one))
    with pytest.raises(ValueError, match="at least one negative"):
        info_nce(views, views, Pairs.from_masks(one, nothing))
    with pytest.raises(ValueError, match="class_prior=0 with logits='dot'"):
        info_nce(views, views, Pairs.one_way(2), class_prior=0.1, logits="dot")


def test_zero_weights_without_mass_are_counted() -> None:
    # Opposite views only: every similarity to a negative is -1, so the clamped weight is 0.
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    weighting = Weighting(("similarity",), scaling="none", mass="none")
    with pytest.warns(UserWarning, match="2 of 2 anchors have only zero weights"):
        loss = info_nce(Views(z), Views(z.detach()), Pairs.one_way(2), weighting=weighting)
    loss.backward()
    assert loss == 0
    assert z.grad is not None
    assert torch.equal(z.grad, torch.zeros(2, 2))
    # Nor does debiasing make something of nothing, though it bounds the sum of negatives below.
    with pytest.warns(UserWarning, match="their negatives contribute nothing"):
        loss = info_nce(
            Views(z), Views(z.detach()), Pairs.one_way(2), weighting=weighting, class_prior=0.1
        )
    assert loss == 0
    # With mass 'mean' such a row becomes uniform.
    weighting = Weighting(("similarity",), scaling="none", mass="mean")
    plain = info_nce(Views(z), Views(z.detach()), Pairs.one_way(2))
    assert_close(
        info_nce(Views(z), Views(z.detach()), Pairs.one_way(2), weighting=weighting), plain
    )


def test_a_heavy_negative_of_weight_zero_hides_nothing() -> None:
    """At a low temperature e^{s/τ} of a negative without weight must not drown the others."""
    angle = torch.tensor([0.0, math.pi - 0.3, math.pi - 0.1, 0.02, math.pi / 2])
    z = torch.stack([angle.cos(), angle.sin()], dim=1)
    positives = torch.zeros(1, 4, dtype=torch.bool)
    positives[0, 0] = True
    pairs = Pairs.from_masks(positives, ~positives)

    def dislike(block: Block) -> Tensor:
        return torch.tensor([[0.0, 1.0, 0.0, 0.0]]).to(block.similarity)

    weighting = Weighting((dislike,))
    losses = [
        info_nce(
            Views(z[:1].to(dtype)), Views(z[1:].to(dtype)), pairs,
            temperature=0.005, weighting=weighting,
        ).double()
        for dtype in (torch.float32, torch.float64)
    ]  # fmt: skip
    assert losses[0].isfinite()
    assert_close(losses[0], losses[1], 1e-4)


@settings(max_examples=25)
@given(
    st.integers(2, 5), st.integers(1, 4), st.floats(0.01, 5.0), st.integers(0, 2**16),
    st.sampled_from(["plain", "equal", "zero", "duplicates", "tiny", "large"]),
    st.sampled_from(["minmax", "zscore", "none"]), st.sampled_from(["mean", "none"]),
    st.sampled_from([torch.float32, torch.float64]), st.sampled_from([0.0, 0.1]),
)  # fmt: skip
def test_always_finite(
    n: int, width: int, temperature: float, seed: int, kind: str, scaling: str, mass: str,
    dtype: torch.dtype, class_prior: float,
) -> None:  # fmt: skip
    z = draw(2 * n, width, seed=seed).to(dtype)
    z = {"equal": z[:1].repeat(2 * n, 1), "tiny": z * 1e-9, "large": z * 1e9}.get(kind, z)
    if kind == "zero":
        z[: n + 1] = 0
    elif kind == "duplicates":
        z[1] = z[0]
        z[n:] = z[:n]
    z.requires_grad_()
    mix = torch.tensor([0.3, 0.5, 0.2], dtype=dtype, requires_grad=True)
    for similarity_gradient in (False, True):
        weighting = Weighting(
            NAMES,
            scaling=scaling,
            sharpness=3.0 if scaling == "zscore" else None,
            mass=mass,
            similarity_gradient=similarity_gradient,
        )
        views = Views(z, z.detach())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*only zero weights.*")
            loss = info_nce(
                views, views, Pairs.both_views(n), temperature=temperature, weighting=weighting,
                mix=mix, class_prior=class_prior,
            )  # fmt: skip
        gradients = torch.autograd.grad(loss, (z, mix))
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_nothing_is_differentiated_without_need() -> None:
    z = draw(6, 3).requires_grad_()
    with torch.no_grad():
        loss = info_nce(Views(z), Views(z), Pairs.both_views(3), weighting=Weighting(NAMES))
    assert not loss.requires_grad
    views = Views(z)
    trained = info_nce(views, views, Pairs.both_views(3), weighting=Weighting(NAMES))
    assert_close(loss, trained.detach())


def test_gradcheck() -> None:
    def loss(za: Tensor, zc: Tensor, mix: Tensor) -> Tensor:
        weighting = Weighting(("similarity",), scaling="none", sharpness=1.5)
        return info_nce(
            Views(za), Views(zc), Pairs.one_way(4), weighting=weighting, mix=mix, tile=3
        )

    # The exponent λ s is detached from z here, so only the gradient to the mix is complete.
    za, zc = draw(4, 3), draw(4, 3, seed=1)
    mix = torch.tensor([0.8]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda mix: loss(za, zc, mix), mix)

    def complete(za: Tensor, zc: Tensor, mix: Tensor) -> Tensor:
        weighting = Weighting(
            ("similarity",), scaling="zscore", sharpness=1.5, similarity_gradient=True
        )
        return info_nce(
            Views(za), Views(zc), Pairs.one_way(4), weighting=weighting, mix=mix, class_prior=0.05
        )

    inputs = (za.requires_grad_(), zc.requires_grad_(), mix)
    assert torch.autograd.gradcheck(complete, inputs)


@pytest.mark.parametrize("shares", [(0.2, 0.5, 0.3), (3.0, 0.01, 1e-3), (0.4, 0.0, 0.9), (0, 0, 0)])
@pytest.mark.parametrize("scaling", ["minmax", "none"])
def test_the_gradient_to_the_mix_equals_differences(
    shares: tuple[float, ...], scaling: Literal["minmax", "none"]
) -> None:
    za, zc = draw(7, 4), draw(3, 4, seed=1)
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    weighting = Weighting(NAMES, scaling=scaling)
    for objective in (info_nce, jsd):

        def loss(mix: Tensor, objective: Any = objective) -> Tensor:
            pairs = Pairs.membership(groups, 3)
            return objective(Views(za), Views(zc), pairs, weighting=weighting, mix=mix, tile=5)

        mix = torch.tensor(shares).double().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(mix), mix)
        assert gradient.isfinite().all()
        if any(shares):  # at 0 every row is uniform, and any step away from it is a jump
            assert torch.autograd.gradcheck(loss, mix)
            assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", ["embeddings", "inputs"])
@pytest.mark.parametrize("change", [(1, 0), (-1, 0), (0, 1), (0, -1)])
@pytest.mark.parametrize("estimate", [info_nce, jsd])
def test_vectors_that_do_not_fit_are_refused(
    part: int, name: str, change: tuple[int, int], estimate: Any
) -> None:
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    weighting = Weighting(NAMES)
    views = []
    for number, count in enumerate((14, 5)):
        given = {each: draw(count, 6) for each in ("embeddings", "inputs")}
        if number == part:
            given[name] = draw(count + change[0], 6 + change[1])
        views.append(Views(**given))
    with pytest.raises(ValueError, match=r"(anchors|candidates) of shape .* got"):
        estimate(*views, pairs, weighting=weighting)


@pytest.mark.parametrize("estimate", [info_nce, jsd])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logits": "cos"}, "logits to be .* did you mean 'cosine'"),
        ({"gradient": "simclr"}, "gradient to be one of"),
        ({"temperature": 0}, "temperature to be a number above 0, finite, got 0"),
        ({"temperature": -1.0}, "temperature to be a number above 0"),
        ({"posterior_temperature": math.nan}, "posterior_temperature to be a number above 0"),
        ({"mix": torch.ones(2)}, "one λ per component, .* got .2,."),
        ({"tile": 0}, "tile to be 'auto'"),
    ],
)
def test_options_that_make_no_sense(estimate: Any, options: dict[str, Any], message: str) -> None:
    views = Views(draw(4, 3))
    with pytest.raises(ValueError, match=message):
        estimate(views, views, Pairs.both_views(2), **options)


@pytest.mark.parametrize("estimate", [info_nce, jsd])
def test_views_that_are_none(estimate: Any) -> None:
    pairs = Pairs.membership(torch.arange(4) % 3, 3)
    with pytest.raises(ValueError, match=r"expected .*Views, got Tensor"):
        estimate(draw(4, 3), draw(3, 3), pairs)
    with pytest.raises(ValueError, match=r"got torch.float64 and torch.float32"):
        estimate(Views(draw(4, 3)), Views(draw(3, 3).float()), pairs)


@pytest.mark.parametrize("estimate", [info_nce, jsd])
@pytest.mark.parametrize("wide", ["inputs", "embeddings"])
def test_numbers_of_two_widths_are_refused(estimate: Any, wide: str) -> None:
    parts = {"embeddings": draw(9, 4).float(), "inputs": draw(9, 3).float()}
    views = Views(**{**parts, wide: parts[wide].double()})
    candidates = Views(**{name: part[:3].clone() for name, part in parts.items()})
    with pytest.raises(ValueError, match=r"got torch\.float\d\d and torch"):
        estimate(views, candidates, Pairs.membership(torch.arange(9) % 3, 3))


@pytest.mark.parametrize("estimate", [info_nce, jsd])
def test_a_nan_of_any_kind_reaches_the_loss(estimate: Any) -> None:
    """A NaN carries bits of its own, as R's NA does."""
    anchors, candidates = draw(10, 6).float(), draw(20, 6).float()
    candidates.view(torch.int32)[15, 2] = 0x7FC00001
    pairs = Pairs.queue(torch.arange(10), torch.arange(100, 110))
    assert estimate(Views(anchors), Views(candidates), pairs).isnan()


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan, 1e38])
def test_what_is_no_negative_is_not_looked_at(broken: float) -> None:
    """Of a candidate that is masked for all, nothing reaches the loss."""
    anchors, candidates = draw(6, 3).float(), draw(4, 3).float()
    positives = torch.zeros(6, 4, dtype=torch.bool)
    positives[:, 0] = True
    negatives = ~positives
    negatives[:, 3] = False
    pairs = Pairs.from_masks(positives, negatives)
    without = Pairs.from_masks(positives[:, :3], negatives[:, :3])
    expected = jsd(Views(anchors), Views(candidates[:3]), without)
    candidates[3] = broken
    torch.testing.assert_close(jsd(Views(anchors), Views(candidates), pairs), expected)


def test_vectors_without_numbers() -> None:
    """u is 0 where h has no numbers and there is no bias, and so is everything where z has none."""
    nodes, graphs = draw(14, 6), draw(5, 6)
    pairs, weighting = Pairs.membership(torch.arange(14) % 5, 5), Weighting(NAMES)
    nothing = jsd(Views(nodes[:, :0]), Views(graphs[:, :0]), pairs, weighting=weighting)
    assert abs(float(nothing)) < 1e-12
    empty = Views(nodes, nodes[:, :0]), Views(graphs, graphs[:, :0])
    zeros = Views(nodes, torch.zeros(14, 1).double()), Views(graphs, torch.zeros(5, 1).double())
    found, expected = (
        jsd(*views, pairs, weighting=weighting, bias=False) for views in (empty, zeros)
    )
    assert_close(found, expected)


def test_very_long_vectors_have_a_direction() -> None:
    """Their squares are more than float32 holds."""
    anchors, candidates = draw(6, 4).float(), draw(6, 4).float()
    expected = info_nce(Views(anchors), Views(candidates), Pairs.one_way(6))
    long = info_nce(Views(1e20 * anchors), Views(1e20 * candidates), Pairs.one_way(6))
    torch.testing.assert_close(long, expected)


def test_debiasing_at_its_least_value_passes_no_gradient() -> None:
    """At a low temperature the float32 of a negative is nothing beside that of the positive."""
    anchor = torch.tensor([[1.0, 0.0]], requires_grad=True)
    candidates = torch.tensor([[0.9, 0.43], [0.3, -0.95]])
    loss = info_nce(
        Views(anchor),
        Views(candidates),
        Pairs.membership(torch.tensor([0]), 2),
        temperature=0.01,
        class_prior=0.1,
    )
    (gradient,) = torch.autograd.grad(loss, anchor)
    assert loss.item() < 1e-30
    assert float(gradient.abs().max()) < 1e-30


def test_the_specification_and_the_core_are_two_ways_to_the_same_loss() -> None:
    """Written apart from each other: value, all gradients, and second derivatives."""
    views = [draw(7, width, seed=seed) for seed, width in enumerate((5, 5, 6, 6))]
    z0, z1, h0, h1 = (view.requires_grad_(number < 2) for number, view in enumerate(views))
    mix = torch.tensor([0.2, 0.5, 0.3]).double().requires_grad_()
    settings = {"temperature": 0.3, "posterior_temperature": 0.4}
    expected = unremix(z0, z1, h0, h1, mix, **settings)
    both = Views(torch.cat([z0, z1]), torch.cat([h0, h1]))
    for engine in engines(Weighting(NAMES)):
        actual = info_nce(
            both, both, Pairs.both_views(7), weighting=Weighting(NAMES), mix=mix, engine=engine,
            **settings,
        )  # fmt: skip
        assert_close(actual, expected)
        first = [
            torch.autograd.grad(loss, (z0, z1, mix), create_graph=True)
            for loss in (actual, expected)
        ]
        for one, other in zip(*first, strict=True):
            assert_close(one, other)
        second = [
            torch.autograd.grad(found[0].square().sum() + found[2][0], (z0, mix), retain_graph=True)
            for found in first
        ]
        for one, other in zip(*second, strict=True):
            assert_close(one, other)
