"""The sweeps in C against the readable functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unremix import UnReMixLoss
from unremix.core.contrast import contrast
from unremix.core.engines import native
from unremix.core.objectives import InfoNCE, JensenShannon
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.scores import COMPONENTS, Block, Component
from unremix.core.views import Views
from unremix.core.weights import Weighting, weigh

needed = pytest.mark.skipif(
    native.missing() is not None, reason=f"there is no compiled code: {native.missing()}"
)
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
SHAPES = [(1, 2), (7, 5), (40, 33), (300, 130), (9, 1000)]


def assert_like(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    actual, expected = actual.detach().double(), expected.detach().double()
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * size)


WEIGHTINGS = {
    "mean": Weighting(tuple(COMPONENTS)),
    "none": Weighting(tuple(COMPONENTS), mass="none"),
    "one": Weighting(("uncertainty",)),
    "five": Weighting((*COMPONENTS, "similarity", "uncertainty")),
    "uniform": Weighting(),
}


@needed
@DTYPES
@pytest.mark.parametrize("objective", [InfoNCE(), JensenShannon()], ids=["info-nce", "jsd"])
@pytest.mark.parametrize("name", WEIGHTINGS)
@pytest.mark.parametrize("temperature", [1.0, 0.03])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sweep_is_weigh_and_gather_with_their_derivatives(
    dtype: torch.dtype, objective: Any, name: str, temperature: float, shape: tuple[int, int]
) -> None:
    weighting = WEIGHTINGS[name]
    parts = len(weighting.components)
    scores = [draw(*shape, seed=seed, dtype=dtype) for seed in range(parts)]
    if parts > 1:
        scores[1][:] = 0.7  # constant over every row
    mix = torch.rand(parts, generator=torch.Generator().manual_seed(5)).to(dtype) + 0.1
    negatives = torch.rand(shape, generator=torch.Generator().manual_seed(6)) < 0.8
    negatives[0] = shape[0] == 1  # a row without negatives, unless it is the only one
    unscaled = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    unscaled = (2 * unscaled - 1).to(dtype)
    options = Options(weighting, objective)
    gathered, slopes, total, along = native.sweep(
        scores, negatives, mix, unscaled, temperature, options, differentiate=True
    )
    logits = (unscaled.double() / temperature).requires_grad_()
    shares = mix.double().requires_grad_()
    count = negatives.sum(1, keepdim=True)
    weights = weigh([each.double() for each in scores], negatives, count, shares, weighting)
    expected = objective.sum_negatives(logits, weights, negatives)
    present = count[:, 0] > 0
    near = 30 * TOLERANCE[dtype]
    assert_like(gathered[present], expected[present], near)
    (by_logits,) = torch.autograd.grad(expected.sum(), logits, retain_graph=True)
    assert_like(slopes, by_logits, near)
    assert not slopes[~negatives].any()
    assert torch.equal(total > 0, present)
    if parts:
        for row in range(min(shape[0], 7)):
            (by_mix,) = torch.autograd.grad(expected[row], shares, retain_graph=True)
            if present[row]:
                assert_like(along[row], by_mix, 10 * near)


@needed
@DTYPES
@pytest.mark.parametrize("name", WEIGHTINGS)
@settings(max_examples=60)  # for each of ten
@given(
    anchors=st.integers(1, 40),
    candidates=st.integers(2, 40),
    share=st.sampled_from([0.0, 0.3, 0.9]),
    products=st.sampled_from(["cosine", "dot"]),
    temperature=st.sampled_from([1.0, 0.5, 0.06]),
    objective=st.sampled_from([InfoNCE(), InfoNCE(decoupled=True), JensenShannon()]),
    seed=st.integers(0, 99),
)
def test_losses_and_gradients_equal_eager(
    dtype: torch.dtype, name: str, anchors: int, candidates: int, share: float, products: Any,
    temperature: float, objective: Any, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    negatives = torch.rand(anchors, candidates, generator=generator) >= share
    positives = torch.zeros_like(negatives)
    positives[torch.arange(anchors), torch.arange(anchors) % candidates] = True
    negatives[0] = True  # one row at least has negatives
    pairs = Pairs.from_masks(positives, negatives & ~positives)
    za, zc = draw(anchors, 6, seed=seed), draw(candidates, 6, seed=seed + 100)
    ha, hc = draw(anchors, 5, seed=seed + 200), draw(candidates, 5, seed=seed + 300)
    weighting = WEIGHTINGS[name]
    mix = torch.rand(len(weighting.components), generator=generator).double() + 0.1

    def run(engine: Any, tile: int | None, dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in (za, zc, mix)]
        options = Options(weighting, objective, products, engine=engine, tile=tile)
        loss = contrast(
            ContrastInput(Views(leaves[0], ha.to(dtype)), Views(leaves[1], hc.to(dtype)), pairs),
            options, temperature=temperature, mix=leaves[2],
        )  # fmt: skip
        inputs = leaves if len(mix) else leaves[:2]
        return [each.detach().double() for each in (loss, *torch.autograd.grad(loss, inputs))]

    expected = run("eager", None, torch.float64)
    rounded = run("eager", None, dtype)  # a score that hardly varies is known to few digits
    for tile in (None, 7):
        for one, other, exact in zip(run("native", tile, dtype), rounded, expected, strict=True):
            error, usual = (one - exact).abs().max(), (other - exact).abs().max()
            size = max(1.0, float(exact.abs().max())) / min(1.0, temperature)
            assert error <= 20 * usual + TOLERANCE[dtype] * size


@needed
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_stays_so(broken: float, place: int) -> None:
    tables = [torch.rand(4, 9) for _ in range(2)]
    unscaled = torch.rand(4, 9)
    (unscaled, *tables)[place][2, 5] = broken
    everything = torch.ones(4, 9, dtype=torch.bool)
    for objective in (InfoNCE(), JensenShannon()):
        options = Options(Weighting(("uncertainty", "similarity")), objective)
        gathered, *_ = native.sweep(
            tables, everything, torch.ones(2), unscaled, 1.0, options, differentiate=True
        )
        assert gathered.isfinite().tolist() == [True, True, False, True]


@needed
def test_a_number_of_threads_always_gives_the_same() -> None:
    z0, z1, h0, h1 = torch.randn(4, 90, 16, generator=torch.Generator().manual_seed(0))
    loss_fn = UnReMixLoss(engine="native")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert len({loss_fn(z0, z1, h0, h1).item() for _ in range(5)}) == 1
    finally:
        torch.set_num_threads(before)


def above(block: Block) -> Tensor:
    """A score of another dtype."""
    return block.similarity > 0.1


def by_columns(block: Block) -> Tensor:
    """A score that lies in memory column by column."""
    return block.similarity.T.contiguous().T.square()


@needed
@pytest.mark.parametrize("score", [above, by_columns, Component(by_columns, magnitude=2.0)])
def test_scores_of_ones_own(score: Any) -> None:
    z, h = torch.randn(2, 19, 6, generator=torch.Generator().manual_seed(0))
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    weighting = Weighting(("uncertainty", score, "similarity"))
    first, second = (
        contrast(
            ContrastInput(Views(z[:14], h[:14]), Views(z[14:], h[14:]), pairs),
            Options(weighting, JensenShannon(), "dot", engine=engine), temperature=1.0,
        )
        for engine in ("native", "eager")
    )  # fmt: skip
    assert_like(first, second, 1e-5)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        self.count += function is torch.ops.aten.mm.default
        return function(*given, **(named or {}))


@needed
@DTYPES
def test_a_batch_of_graphs_takes_few_products(dtype: torch.dtype) -> None:
    """InfoGraph's three, and six more: f · f, and one each for two posteriors, δ, h and r.

    In one block f · f is computed once, for both posteriors and the similarity; blocks agree.
    """
    h, graph_h = draw(14, 6, seed=1, dtype=dtype), draw(5, 6, seed=2, dtype=dtype)
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    found = {}
    for tile, weighting in (
        ("auto", Weighting()),
        ("auto", WEIGHTINGS["mean"]),
        (4, WEIGHTINGS["mean"]),
    ):
        nodes, graphs = draw(14, 6, dtype=dtype), draw(5, 6, seed=3, dtype=dtype)
        compared = ContrastInput(
            Views(nodes.requires_grad_(), h), Views(graphs.requires_grad_(), graph_h), pairs
        )
        options = Options(weighting, JensenShannon(), "dot", engine="native", tile=tile)
        with Products() as products:
            loss = contrast(compared, options, temperature=1.0)
            loss.backward()
        found[tile, bool(weighting.components)] = products.count, loss, nodes.grad, graphs.grad
    assert found["auto", False][0] == 3
    assert found["auto", True][0] == 3 + 6
    for whole, blocks in zip(found["auto", True][1:], found[4, True][1:], strict=True):
        assert_like(whole, blocks, TOLERANCE[dtype])
