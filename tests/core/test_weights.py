from __future__ import annotations

import itertools
from typing import Any

import pytest
import reference
import torch
from batches import Batch, assert_close, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

import unremix
from unremix.core.contrast import make_problem
from unremix.core.engines import compiled, eager
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.scores import COMPONENTS, Block, Component
from unremix.core.views import Views
from unremix.core.weights import Weighting, hard_negatives, name_of, raw_scores, weigh

NAMES = tuple(COMPONENTS)


def reference_scores(batch: Batch, layout: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    if layout == "both":
        positives, negatives = reference.masks_both(batch.z0.shape[0])
        za = zc = torch.cat([batch.z0, batch.z1])
        ha = hc = torch.cat([batch.h0, batch.h1])
    else:
        positives, negatives = reference.masks_one_way(batch.z0.shape[0])
        za, zc, ha, hc = batch.views
    scores = [
        reference.uncertainty(
            za, zc, ha, hc, negatives, positives, weight=batch.weight, bias=batch.bias
        ),
        reference.similarity(za, zc),
        reference.representativeness(zc, negatives),
    ]
    return scores, negatives


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("scaling", ["minmax", "zscore-exp", "none"])
@pytest.mark.parametrize("mass", ["mean", "none"])
def test_weights_equal_the_loops(batch: Batch, layout: str, scaling: str, mass: str) -> None:
    scores, negatives = reference_scores(batch, layout)
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(3), size):
            mix = torch.tensor([0.2, 0.5, 0.3][:size]).double()
            strength = 2.0 if scaling == "zscore-exp" else None
            found = unremix.importance(
                *batch.views, layout=layout, scaling=scaling, mass=mass, hardness=strength,
                components=[NAMES[k] for k in chosen], mix=mix.tolist(),
            )  # fmt: skip
            expected = reference.weights(
                [scores[k] for k in chosen], mix, negatives,
                scaling=scaling, mass=mass, hardness=strength,
            )  # fmt: skip
            assert_close(found.weights, expected, 1e-7)  # the mix of the module is in float32
            assert torch.equal(found.negatives, negatives)
            assert_close(found.uncertainty, scores[0] * negatives)
            assert_close(found.similarity, scores[1] * negatives)
            assert_close(found.representativeness, scores[2])


def weights_of(z: torch.Tensor, weighting: Weighting, mix: list[float]) -> torch.Tensor:
    views, options = Views(z), Options(weighting)
    pairs = Pairs.both_views(z.shape[0] // 2)
    compared = ContrastInput(views, views, pairs)
    problem, vectors = make_problem(compared, options, 0.5, eager.ENGINE)
    _, block = problem.compare(*vectors)
    shares = torch.tensor(mix).to(z)
    return weigh(raw_scores(block, weighting), block.negatives, block.count, shares, weighting, 0.2)


@settings(max_examples=40)
@given(
    st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**16),
    st.sampled_from(["minmax", "zscore", "none"]), st.sampled_from([None, 0.5, 30.0]),
    st.sampled_from(["plain", "equal", "duplicates", "zero"]),
)  # fmt: skip
def test_the_mean_weight_is_one_and_zero_elsewhere(
    n: int, width: int, seed: int, scaling: str, sharpness: float | None, kind: str
) -> None:
    torch.manual_seed(seed)
    z = torch.randn(2 * n, width).double()
    if kind == "equal":
        z[:] = z[0]
    elif kind == "duplicates":
        z[n:] = z[:n]
        z[1] = z[0]
    elif kind == "zero":
        z[0] = 0
    weighting = Weighting(components=NAMES, scaling=scaling, sharpness=sharpness)
    weights = weights_of(z, weighting, [0.3, 0.4, 0.3])
    negatives = Pairs.both_views(n).negatives()
    assert (weights[~negatives] == 0).all()
    assert (weights >= 0).all()
    mean = weights.sum(1) / negatives.sum(1)
    assert_close(mean, torch.ones_like(mean))


def test_a_constant_score_scales_to_one_or_zero() -> None:
    z = torch.ones(6, 3)  # all equal: every score is constant, up to rounding in float32
    z = z * torch.rand(3)
    for scaling, sharpness in (("minmax", None), ("zscore", 2.0)):
        weighting = Weighting(NAMES, scaling=scaling, sharpness=sharpness, mass="none")
        weights = weights_of(z, weighting, [0.2, 0.3, 0.5])
        assert_close(weights, Pairs.both_views(3).negatives().float(), 1e-6)


@pytest.mark.parametrize("scaling", ["minmax", "zscore", "none"])
def test_permuting_the_batch_permutes_the_weights(scaling: str) -> None:
    torch.manual_seed(0)
    z = torch.randn(10, 4).double()
    order = torch.randperm(5)
    both = torch.cat([order, order + 5])
    weighting = Weighting(NAMES, scaling=scaling)
    plain = weights_of(z, weighting, [0.3, 0.4, 0.3])
    permuted = weights_of(z[both], weighting, [0.3, 0.4, 0.3])
    assert_close(permuted, plain[both][:, both])


def test_hardness_weights_equal_the_published_formula() -> None:
    torch.manual_seed(1)
    z = torch.randn(8, 3).double()
    sim = reference.similarity(z, z)
    _, negatives = reference.masks_both(4)
    expected = reference.hcl_weights(sim, negatives, hardness=1.5, temperature=0.2)
    assert_close(weights_of(z, hard_negatives(1.5), [1.0]), expected)
    plain = hard_negatives(1.5 / 0.2, over_temperature=False)
    assert_close(weights_of(z, plain, [1.0]), expected)


def test_sharp_weights_do_not_overflow() -> None:
    torch.manual_seed(2)
    weighting = Weighting(NAMES, scaling="zscore", sharpness=1e4)
    weights = weights_of(torch.randn(12, 4), weighting, [0.3, 0.4, 0.3])
    assert weights.isfinite().all()
    assert_close(weights.sum(1), torch.full((12,), 10.0), 1e-5)


def test_a_fourth_component_is_one_function() -> None:
    def second_only(block: Block) -> torch.Tensor:
        score = torch.zeros_like(block.similarity)
        score[:, 1] = 1.0
        return score

    batch = make_batch(3)
    found = unremix.importance(
        *batch.views, components=["similarity", second_only], mix=(0.0, 1.0), layout="one-way"
    )
    # Min-max over two negatives each; anchor 1 has candidate 1 as its positive: constant.
    assert found.weights.tolist() == [[0, 2, 0], [1, 0, 1], [0, 2, 0]]
    assert name_of(second_only) == "second_only"
    named = Component(second_only)
    same = unremix.importance(
        *batch.views, components=["similarity", named], mix=(0.0, 1.0), layout="one-way"
    )
    assert torch.equal(same.weights, found.weights)
    loss_fn = unremix.UnReMixLoss(components=["uncertainty", second_only])
    assert set(loss_fn.mix) == {"uncertainty", "second_only"}
    assert loss_fn(*batch.views).isfinite()


@pytest.mark.parametrize("name", ["output_gradients", "inputs"])
def test_what_a_component_did_not_ask_for_is_named(name: Any) -> None:
    batch = make_batch(3)
    component = Component(lambda block: block.inner_products(name))
    with pytest.raises(ValueError, match=rf"expected {name} .* needs_gradients=True"):
        unremix.UnReMixLoss(components=[component])(batch.z0, batch.z1)


class LastSeen(torch.nn.Module):
    """A score with a memory by sample: how similar a candidate is to what its sample was before."""

    def __init__(self, samples: int, width: int) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(samples, width))

    def forward(self, block: Block) -> torch.Tensor:
        assert block.candidates.ids is not None
        return block.anchors.units @ self.bank[block.candidates.ids].T


def test_a_component_with_a_memory_is_a_module_fed_with_ids() -> None:
    batch = make_batch(3)
    memory = LastSeen(10, 5).double()
    memory.bank.copy_(torch.randn(10, 5))
    loss_fn = unremix.UnReMixLoss(components=[memory], mix="fixed", layout="one-way").double()
    assert "score_modules.LastSeen.bank" in loss_fn.state_dict()
    ids = torch.tensor([7, 2, 4])

    def by_hand(block: Block) -> torch.Tensor:
        return block.anchors.units @ memory.bank[ids].T

    same = unremix.UnReMixLoss(components=[by_hand], mix="fixed", layout="one-way")
    assert_close(loss_fn(*batch.views, ids=ids), same.double()(*batch.views))


def test_a_memory_inside_a_component_is_saved_and_moved() -> None:
    loss_fn = unremix.UnReMixLoss(components=(Component(LastSeen(8, 5), needs_ids=True),))
    assert loss_fn.state_dict()["score_modules.LastSeen.bank"].shape == (8, 5)


@pytest.mark.parametrize("engine", ["eager", "native", "compiled"])
def test_a_fourth_entry_of_the_table_reaches_engines_importance_and_audit(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    if engine == "compiled":
        monkeypatch.setattr(compiled, "ISOLATED", {"backend": "eager"})

    def length(block: Block) -> torch.Tensor:
        return block.candidates.lengths.expand(block.negatives.shape)

    monkeypatch.setitem(COMPONENTS, "length", Component(length))
    z0, z1 = torch.randn(8, 4), torch.randn(8, 4)
    plain = unremix.UnReMixLoss(engine=engine)
    assert plain.component_names == NAMES  # nobody gets a score unasked
    loss_fn = unremix.UnReMixLoss(components=("similarity", "length"), engine=engine)
    by_function = unremix.UnReMixLoss(components=("similarity", length), engine="eager")
    torch.testing.assert_close(loss_fn(z0, z1), by_function(z0, z1))
    found = loss_fn.importance(z0, z1)
    expected = torch.cat([z0, z1]).norm(dim=1).expand(16, 16) * found.negatives
    torch.testing.assert_close(found.scores["length"], expected)
    assert list(plain.importance(z0, z1).scores) == list(NAMES)
    report = unremix.audit(found, torch.arange(16) % 3)
    assert 0 <= report.auc["length"] <= 1


def test_what_a_filter_leaves_out_never_comes_back() -> None:
    negatives = torch.ones(3, 4, dtype=torch.bool)
    count = torch.full((3, 1), 4)
    scores = [torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(3, 4)]
    # Row 0 keeps its least similar alone, whose scaled score is 0; row 1 two, in part; row 2 none.
    keep = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.25, 0, 0], [0.0, 0, 0, 0]])
    found = weigh(scores, negatives, count, torch.ones(1), Weighting(("similarity",)), keep=keep)
    expected = torch.tensor([[4.0, 0, 0, 0], [0, 4.0, 0, 0], [1.0, 1, 1, 1]])
    torch.testing.assert_close(found, expected)


def test_an_anchor_without_negatives_has_a_gradient_without_nan() -> None:
    negatives = torch.tensor([[True, True], [False, False]])
    count = negatives.sum(1, keepdim=True)
    mix = torch.tensor([0.5, 0.5], requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        scores = [torch.randn(2, 2), torch.randn(2, 2)]
        weigh(scores, negatives, count, mix, Weighting(NAMES[:2])).sum().backward()
    assert mix.grad is not None
    assert mix.grad.isfinite().all()


def test_a_score_of_another_shape_is_refused() -> None:
    batch = make_batch(3)
    loss_fn = unremix.UnReMixLoss(components=[lambda block: block.similarity[:, 1:]])
    with pytest.raises(ValueError, match=r"shape \(6, 6\), .* got \(6, 5\)"):
        loss_fn(*batch.views)


def test_weightings_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"scaling to be one of .*, got 'x'"):
        Weighting(scaling="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mass to be one of mean, none, got 'x'"):
        Weighting(mass="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 'similarty'; did you mean"):
        Weighting(("similarty",))
