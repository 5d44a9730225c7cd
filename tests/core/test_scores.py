from __future__ import annotations

import pytest
import reference
import torch
from conftest import Batch, assert_close, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from unremix.losses.blockwise import score_rows
from unremix.core.pairs import Pairs
from unremix.core.problem import Views
from unremix.core.scores import COMPONENTS, Context, Rows, make_context, normalize, normalise_backward, residuals, row_argmax, sketch, uncertainty
from unremix.core.weights import Weighting

pytestmark = pytest.mark.usefixtures("lane")


def all_scores(anchors: Views, candidates: Views, pairs: Pairs, tile: int | None = None, **options):
    context = make_context(anchors, candidates, pairs, tile=tile, **options)
    everything = Weighting(components=tuple(COMPONENTS))
    result = {
        name: torch.zeros(pairs.num_anchors, pairs.num_candidates).double() for name in COMPONENTS
    }
    for block in pairs.blocks(tile):
        similarity = context.anchor_units[block.anchors] @ context.candidate_units.T
        rows = Rows(block, block.fill(similarity.detach()))
        for name, score in zip(COMPONENTS, score_rows(rows, context, everything), strict=True):
            result[name][block.anchors] = block.blank(score.values.clone())
    return result


def arrange(batch: Batch, layout: str) -> tuple[Views, Views, Pairs]:
    n = batch.z0.shape[0]
    if layout == "both":
        views = Views(torch.cat([batch.z0, batch.z1]), torch.cat([batch.h0, batch.h1]))
        return views, views, Pairs.both_views(n)
    return Views(batch.z0, batch.h0), Views(batch.z1, batch.h1), Pairs.one_way(n)


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("gradient", ["pseudo-label", "nt-xent"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_uncertainty_equals_per_sample_autograd(
    layout: str, gradient: str, bias: bool, temperature: float
) -> None:
    batch = make_batch(bias=bias)
    anchors, candidates, pairs = arrange(batch, layout)
    scores = all_scores(
        anchors, candidates, pairs, tile=3,
        posterior_temperature=temperature, gradient=gradient, bias=bias,
    )  # fmt: skip
    negatives, positives = pairs.negative_mask(), pairs.positive_mask()
    expected = reference.uncertainty(
        anchors.embeddings, candidates.embeddings, anchors.inputs, candidates.inputs,
        negatives, positives, weight=batch.weight, bias=batch.bias, use_bias=bias,
        posterior_temperature=temperature, gradient=gradient, temperature=temperature,
    )  # fmt: skip
    assert_close(scores["uncertainty"], expected * negatives)


def test_uncertainty_without_a_layer_leaves_the_inputs_out(batch: Batch) -> None:
    views = Views(torch.cat([batch.z0, batch.z1]))
    pairs = Pairs.both_views(4)
    scores = all_scores(views, views, pairs)
    expected = reference.uncertainty(
        views.embeddings, views.embeddings, None, None, pairs.negative_mask(), pairs.positive_mask()
    )
    assert_close(scores["uncertainty"], expected * pairs.negative_mask())


@st.composite
def general_masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 3), min_size=rows * columns, max_size=rows * columns))
    kind = torch.tensor(kinds).view(rows, columns)
    return kind == 0, kind >= 2


@settings(max_examples=30)
@given(general_masks(), st.integers(0, 2**16), st.sampled_from([None, 1, 2]))
def test_scores_equal_the_loops_for_any_masks(
    masks: tuple[torch.Tensor, torch.Tensor], seed: int, tile: int | None
) -> None:
    positives, negatives = masks
    torch.manual_seed(seed)
    za = torch.randn(positives.shape[0], 4).double()
    zc = torch.randn(positives.shape[1], 4).double()
    ha, hc = torch.randn(len(za), 3).double(), torch.randn(len(zc), 3).double()
    if seed % 3 == 0:
        zc[0] = 0  # a vector without direction
    pairs = Pairs.from_masks(positives, negatives)
    scores = all_scores(Views(za, ha), Views(zc, hc), pairs, tile)
    assert_close(scores["similarity"], reference.similarity(za, zc) * negatives)
    assert_close(scores["representativeness"], reference.representativeness(zc, negatives))
    expected = reference.uncertainty(za, zc, ha, hc, negatives, positives)
    assert_close(scores["uncertainty"], expected * negatives)


@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_representativeness_equals_the_loop(batch: Batch, layout: str) -> None:
    anchors, candidates, pairs = arrange(batch, layout)
    scores = all_scores(anchors, candidates, pairs, tile=2)
    expected = reference.representativeness(candidates.embeddings, pairs.negative_mask())
    assert_close(scores["representativeness"], expected)


def test_one_negative_has_representativeness_zero() -> None:
    scores = all_scores(
        Views(torch.eye(2).double()), Views(torch.eye(2).double()), Pairs.one_way(2)
    )
    assert torch.equal(scores["representativeness"], torch.zeros(2, 2).double())


def test_views_without_class_or_direction_have_no_residual() -> None:
    z = torch.randn(3, 4).double()
    z[2] = 0
    units, lengths = normalise(z)
    positives = torch.zeros(3, 3, dtype=torch.bool)
    negatives = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 0]]).bool()
    delta = residuals(
        units, lengths, units, Pairs.from_masks(positives, negatives), temperature=1.0
    )
    assert delta[0].norm() > 0
    assert torch.equal(delta[1:], torch.zeros(2, 4).double())


def test_normalise_backward_equals_autograd_and_passes_nothing_to_a_zero_vector() -> None:
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    incoming = torch.randn(5, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(torch.nn.functional.normalize(z), z, incoming)
    assert_close(normalise_backward(incoming.clone(), *normalise(z)), expected)
    none = torch.zeros(1, 3, dtype=torch.float64)
    assert torch.equal(normalise_backward(incoming[:1].clone(), *normalise(none)), none)


@given(
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(0, 100),
    st.none() | st.integers(1, 70),
    st.booleans(),
)
def test_row_argmax_is_the_first_maximum(
    rows: int, columns: int, seed: int, chunk: int | None, transposed: bool
) -> None:
    torch.manual_seed(seed)
    values = torch.randint(0, 5, (rows, columns)).float()  # many ties
    if transposed:
        values = values.T.contiguous().T
    expected = [row.tolist().index(max(row.tolist())) for row in values]
    assert row_argmax(values, chunk).tolist() == expected
    assert row_argmax(values.bfloat16(), chunk).tolist() == expected  # which NumPy does not know


def test_nt_xent_needs_a_positive_for_every_view() -> None:
    keys, queue = torch.randn(3, 4).double(), torch.randn(5, 4).double()
    candidates = Views(torch.cat([keys, queue]))
    pairs = Pairs.queue(torch.arange(3), torch.arange(10, 15))
    with pytest.raises(ValueError, match="5 views without one"):
        make_context(Views(keys), candidates, pairs, gradient="nt-xent")
    assert make_context(Views(keys), candidates, pairs).candidate_residuals is not None


def test_contexts_say_what_they_lack() -> None:
    views = Views(torch.eye(3))
    pairs = Pairs.one_way(3)
    with pytest.raises(ValueError, match="for anchors and candidates or for neither"):
        make_context(Views(torch.eye(3), torch.eye(3)), views, pairs)
    (block,) = pairs.blocks(None)
    with pytest.raises(ValueError, match="make_context"):
        uncertainty(Rows(block, torch.eye(3)), Context(pairs, views.units, views.units))


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


def test_extremes_that_a_score_brings_are_those_of_its_rows() -> None:
    torch.manual_seed(0)
    groups = torch.tensor([0, 0, 1, 2, 2, 3, 3, 3])
    anchors, candidates = Views(torch.randn(8, 5).double()), Views(torch.randn(4, 5).double())
    pairs = Pairs.membership(groups, 4)
    context = make_context(anchors, candidates, pairs)
    (block,) = pairs.blocks(None)
    rows = Rows(block, block.fill(anchors.units @ candidates.units.T))
    brought = 0
    for score in score_rows(rows, context, Weighting(components=tuple(COMPONENTS))):
        brought += score.lines is not None
        assert torch.equal(score.values, block.fill(score.values.clone()))
        assert torch.equal(score.low, score.values.amin(1, keepdim=True))
        assert torch.equal(score.high, score.values.amax(1, keepdim=True))
    assert brought == 1  # the representativeness: one table for all nodes of a graph


def test_residuals_leave_the_exponentials_as_they_were() -> None:
    torch.manual_seed(0)
    views = Views(torch.randn(8, 5))
    pairs = Pairs.both_views(4)
    context = make_context(views, views, pairs)
    expected = (views.units @ views.units.T).exp() * pairs.negative_mask()
    assert context.exponentials is not None
    torch.testing.assert_close(context.exponentials, expected)
