"""The three scores and δ against loops and per-sample autograd."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import reference
import torch
from batches import Batch, assert_close, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.core.contrast import make_problem
from unremix.core.engines import find_engine
from unremix.core.last_layer.sketch import sketch
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.precision import normalize
from unremix.core.problem import Options
from unremix.core.scores import COMPONENTS, output_gradients
from unremix.core.views import Views
from unremix.core.weights import Weighting


def all_scores(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    tile: int | None = None,
    temperature: float = 0.5,
    **options: Any,
) -> dict[str, Tensor]:
    """Every score of every anchor, block by block, 0 where there is no negative."""
    asked = Options(Weighting(tuple(COMPONENTS)), tile=tile, **options)
    engine = find_engine(asked, anchors.embeddings)
    compared = ContrastInput(anchors, candidates, pairs)
    problem, vectors = make_problem(compared, asked, temperature, engine)
    parts: dict[str, list[Tensor]] = {name: [] for name in COMPONENTS}
    for which in problem.blocks():
        part, sides = problem[which], (vectors[0][which], vectors[1])
        _, block = part.compare(*sides)
        for name, component in COMPONENTS.items():
            parts[name].append(torch.where(block.negatives, component.score(block), 0.0))
    return {name: torch.cat(part).detach() for name, part in parts.items()}


def arrange(batch: Batch, layout: str) -> tuple[Views, Views, Pairs]:
    n = batch.z0.shape[0]
    if layout == "both":
        views = Views(torch.cat([batch.z0, batch.z1]), torch.cat([batch.h0, batch.h1]))
        return views, views, Pairs.both_views(n)
    return Views(batch.z0, batch.h0), Views(batch.z1, batch.h1), Pairs.one_way(n)


@cache
def looped_uncertainty(layout: str, gradient: str, bias: bool, temperature: float) -> Tensor:
    """What every engine has to find, zero where there is no negative."""
    batch = make_batch(bias=bias)
    anchors, candidates, pairs = arrange(batch, layout)
    negatives, positives = pairs.negatives(), pairs.positive_mask()
    expected = reference.uncertainty(
        anchors.embeddings, candidates.embeddings, anchors.inputs, candidates.inputs,
        negatives, positives, weight=batch.weight, bias=batch.bias, use_bias=bias,
        posterior_temperature=temperature, gradient=gradient, temperature=temperature,
    )  # fmt: skip
    return expected * negatives


@pytest.mark.usefixtures("every_engine")
@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("gradient", ["pseudo-label", "nt-xent"])
@pytest.mark.parametrize(("bias", "temperature"), [(True, 1.0), (True, 0.1), (False, 0.1)])
def test_uncertainty_equals_per_sample_autograd(
    layout: str, gradient: str, bias: bool, temperature: float
) -> None:
    anchors, candidates, pairs = arrange(make_batch(bias=bias), layout)
    scores = all_scores(
        anchors, candidates, pairs, tile=3, temperature=temperature,
        posterior_temperature=temperature, gradient=gradient, bias=bias,
    )  # fmt: skip
    expected = looped_uncertainty(layout, gradient, bias, temperature)
    assert_close(scores["uncertainty"], expected)


def test_uncertainty_without_a_layer_ignores_its_inputs(batch: Batch) -> None:
    views = Views(torch.cat([batch.z0, batch.z1]))
    pairs = Pairs.both_views(4)
    scores = all_scores(views, views, pairs)
    expected = reference.uncertainty(
        views.embeddings, views.embeddings, None, None, pairs.negatives(), pairs.positive_mask()
    )
    assert_close(scores["uncertainty"], expected * pairs.negatives())


@st.composite
def general_masks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 3), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 0, kind >= 2


@settings(max_examples=30)
@given(general_masks(), st.integers(0, 2**16), st.sampled_from([None, 1, 2]))
@pytest.mark.parametrize("engine_name", ["eager", "native"])
def test_scores_equal_the_loops_for_any_masks(
    engine_name: Any, masks: tuple[Tensor, Tensor], seed: int, tile: int | None
) -> None:
    positives, negatives = masks
    torch.manual_seed(seed)
    za = torch.randn(positives.shape[0], 4).double()
    zc = torch.randn(positives.shape[1], 4).double()
    ha, hc = torch.randn(len(za), 3).double(), torch.randn(len(zc), 3).double()
    if seed % 3 == 0:
        zc[0] = 0  # a vector without direction
    pairs = Pairs.from_masks(positives, negatives)
    scores = all_scores(Views(za, ha), Views(zc, hc), pairs, tile, engine=engine_name)
    assert_close(scores["similarity"], reference.similarity(za, zc) * negatives)
    assert_close(scores["representativeness"], reference.representativeness(zc, negatives))
    expected = reference.uncertainty(za, zc, ha, hc, negatives, positives)
    assert_close(scores["uncertainty"], expected * negatives)


@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_representativeness_equals_the_loop(batch: Batch, layout: str) -> None:
    anchors, candidates, pairs = arrange(batch, layout)
    scores = all_scores(anchors, candidates, pairs, tile=2)
    expected = reference.representativeness(candidates.embeddings, pairs.negatives())
    assert_close(scores["representativeness"], expected)


def test_one_negative_has_representativeness_zero() -> None:
    views = Views(torch.eye(2).double())
    scores = all_scores(views, Views(torch.eye(2).double()), Pairs.one_way(2))
    assert torch.equal(scores["representativeness"], torch.zeros(2, 2).double())


def test_views_without_class_or_direction_have_no_output_gradient() -> None:
    z = torch.randn(3, 4).double()
    z[2] = 0
    units, lengths = normalize(z)
    classes = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 0]]).bool()
    logits = torch.where(classes, units @ units.T, -torch.inf)
    delta = output_gradients(units, lengths, units, logits, temperature=1.0)
    assert delta[0].norm() > 0
    assert torch.equal(delta[1:], torch.zeros(2, 4).double())


def test_unit_vectors_have_the_gradient_of_torch_and_none_at_zero() -> None:
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    incoming = torch.randn(5, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(torch.nn.functional.normalize(z), z, incoming)
    (actual,) = torch.autograd.grad(normalize(z)[0], z, incoming)
    assert_close(actual, expected)
    none = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    units, lengths = normalize(none)
    assert torch.equal(units, none)
    assert lengths.tolist() == [0.0]
    (nothing,) = torch.autograd.grad(units, none, incoming[:1])
    assert torch.equal(nothing, torch.zeros_like(nothing))


@pytest.mark.parametrize("size", [1e-11, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_long_and_short_vectors_have_a_direction(size: float, dtype: torch.dtype) -> None:
    z = torch.randn(4, 3).to(dtype)
    z[0] = size * z[0]
    units, lengths = normalize(z)
    expected = reference.unit(z.double())
    near = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(units.double(), expected, rtol=near, atol=near)
    if size >= 1e-11:
        torch.testing.assert_close(lengths.double(), z.double().norm(dim=1), rtol=near, atol=0)


def test_nt_xent_needs_a_positive_for_every_view() -> None:
    keys, queue = torch.randn(3, 4).double(), torch.randn(5, 4).double()
    candidates = Views(torch.cat([keys, queue]))
    pairs = Pairs.queue(torch.arange(3), torch.arange(10, 15))
    with pytest.raises(ValueError, match="5 views without one"):
        all_scores(Views(keys), candidates, pairs, gradient="nt-xent")
    assert all_scores(Views(keys), candidates, pairs)["uncertainty"].any()


def test_sketch_is_unbiased_seeded_and_exact_at_full_size() -> None:
    h = torch.randn(6, 40).double()
    exact = h @ h.T
    mean = torch.zeros_like(exact)
    for seed in range(400):
        small = sketch(h, 10, seed=seed)
        mean += small @ small.T / 400
    spread = (h.square().sum(1)[:, None] * h.square().sum(1)[None, :] / 10).sqrt()
    assert ((mean - exact).abs() < 5 * spread / 20).all()  # five standard errors
    assert torch.equal(sketch(h, 10, seed=1), sketch(h, 10, seed=1))
    assert not torch.equal(sketch(h, 10, seed=1), sketch(h, 10, seed=2))
    assert sketch(h, 10).shape == (6, 10)
    assert torch.equal(sketch(h, 40), h)
    assert torch.equal(sketch(h, 64), h)
