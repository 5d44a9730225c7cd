"""Compiled sweeps against the same in torch, and what happens where they cannot be built."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import softplus

from unremix import HCLLoss, UnReMixLoss, native
from unremix.losses.info_nce import info_nce
from unremix.losses.jsd import jsd
from unremix.core.pairs import Pairs
from unremix.core.problem import Views
from unremix.core.scores import COMPONENTS, Context, Rows, Scored, noise, normalize, residuals
from unremix.core.weights import Weighting

needed = pytest.mark.skipif(
    native.missing() is not None, reason=f"there is no compiled code: {native.missing()}"
)
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def in_torch(function: Any, *arguments: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "missing", lambda dtype=None: "turned off by a test")
        return function(*arguments, **options)


def random_pairs(anchors: int, candidates: int, share: float, seed: int) -> Pairs:
    """Masks at random, in which every anchor has a positive, and some perhaps no negative."""
    generator = torch.Generator().manual_seed(seed)
    negatives = torch.rand(anchors, candidates, generator=generator) >= share
    positives = torch.zeros_like(negatives)
    positives[torch.arange(anchors), torch.arange(anchors) % candidates] = True
    negatives[0] = True  # one row at least has negatives
    return Pairs.from_masks(positives, negatives & ~positives)


def assert_like(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    actual, expected = actual.detach(), expected.detach()
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * size)


@needed
@DTYPES
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 7), (300, 96), (4, 3, 6)])
def test_unit_vectors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if z.numel() > 20:
        z[1], z[2] = 0, z[2] * 1e15
    for one, other in zip(normalise(z), in_torch(normalise, z), strict=True):
        assert one.shape == other.shape
        near = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=near, atol=near)
    assert normalise(torch.full((2, 3), torch.nan, dtype=dtype))[0].isnan().all()


@needed
@DTYPES
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("shape", [(1, 2), (7, 5), (40, 33), (130, 64), (9, 200)])
def test_posteriors(dtype: torch.dtype, temperature: float, shape: tuple[int, int]) -> None:
    pairs = random_pairs(*shape, share=0.3, seed=1)
    similarity = torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(2)) * 2 - 1
    (block,) = pairs.blocks(None)
    out = torch.empty_like(similarity)
    bounded = temperature >= 0.05
    total, label, column_total, column_label = native.posterior(
        similarity, block.masked, temperature, bounded=bounded, out=out, columns=True
    )
    mask = pairs.negative_mask()
    exact = similarity.double()
    if not bounded:
        exact = exact - exact.masked_fill(~mask, -1).amax(1, keepdim=True)
    exact = (exact / temperature).exp() * mask
    near = 100 * torch.finfo(dtype).eps  # s/t, rounded, is worth t/s units in the last place
    torch.testing.assert_close(out.double(), exact, rtol=near, atol=near)
    torch.testing.assert_close(total.double(), exact.sum(1), rtol=near, atol=near)
    assert torch.equal(label, out.argmax(1))
    assert column_total is not None
    assert column_label is not None
    torch.testing.assert_close(column_total.double(), exact.sum(0), rtol=near, atol=near)
    assert torch.equal(column_label, out.argmax(0))


@needed
@DTYPES
def test_exponentials_and_logarithms_are_those_of_torch(dtype: torch.dtype) -> None:
    """The sums of one negative of weight 1 are φ itself, the slope φ'."""
    x = torch.cat([torch.linspace(-86, 86, 2001), torch.tensor([0.0, -1e-9, 1e-9])]).to(dtype)
    similarity = torch.stack([x, x], dim=1)
    masked = torch.arange(len(x)) * 2 + 1  # the second column
    for estimate, function, slope in (
        ("exponential", torch.exp, torch.exp),
        ("softplus", softplus, torch.sigmoid),
    ):
        swept = native.sweep(
            native.Logits(similarity, 1.0), masked, None, estimate=estimate, bounded=True,
            extreme=False, centre=None, differentiate=False, out=torch.empty_like(similarity),
        )  # fmt: skip
        near = 8 * torch.finfo(dtype).eps
        exact = x.double().requires_grad_()
        # beyond 20 torch's softplus is linear
        expected = function(exact, threshold=1000) if function is softplus else function(exact)
        torch.testing.assert_close(swept.weighted.double(), expected, rtol=near, atol=0)
        torch.testing.assert_close(
            swept.slopes[:, 0].double(), slope(exact).detach(), rtol=near, atol=0
        )
        assert not swept.slopes[:, 1].any()


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "none": {"mass": "none"},
    "one": {"components": ("uncertainty",)},
    "two": {"components": ("representativeness", "similarity")},
    "nine": {"components": (*COMPONENTS, *COMPONENTS, *COMPONENTS)},  # more than it takes
    "five": {"components": (*COMPONENTS, "similarity", "uncertainty")},
    "uniform": {"components": ()},
    "uniform, no mass": {"components": (), "mass": "none"},
}


@needed
@pytest.mark.filterwarnings("ignore:.*anchors have only zero weights")
@DTYPES
@pytest.mark.parametrize("options", OPTIONS)
@given(
    anchors=st.integers(1, 40),
    candidates=st.integers(2, 40),
    share=st.sampled_from([0.0, 0.3, 0.9]),
    products=st.sampled_from(["cosine", "dot"]),
    temperature=st.sampled_from([1.0, 0.5, 0.049, 0.01]),
    estimate=st.sampled_from([info_nce, jsd]),
    signs=st.booleans(),
    seed=st.integers(0, 99),
)
def test_losses_and_gradients(
    dtype: torch.dtype, options: str, anchors: int, candidates: int, share: float, products: Any,
    temperature: float, estimate: Any, signs: bool, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    pairs = random_pairs(anchors, candidates, share, seed)
    za, zc = draw(anchors, 6).requires_grad_(), draw(candidates, 6).requires_grad_()
    ha, hc = draw(anchors, 5), draw(candidates, 5)
    weighting = Weighting(**{"components": tuple(COMPONENTS), **OPTIONS[options]})
    mix = None
    if weighting.components:
        mix = torch.rand(len(weighting.components), generator=generator).to(dtype) + 0.1
        if signs and dtype == torch.float64:  # some weights are clamped at 0, of some rows all
            mix = mix - 0.6
        mix.requires_grad_()
    if len(weighting.components) in (1, 2):
        # The least weight is 0 there, which torch has but for rounding: see the next test.
        temperature = max(temperature, 0.06)
    settings = {"temperature": temperature, "weighting": weighting, "products": products}

    def run(tile: int | None, dtype: torch.dtype = dtype) -> list[Tensor]:
        a, b, c, d = (each.to(dtype) for each in (za, ha, zc, hc))
        shares = None if mix is None else mix.to(dtype)
        loss = estimate(Views(a, b), Views(c, d), pairs, mix=shares, tile=tile, **settings)
        gradients = torch.autograd.grad(loss, [za, zc] if mix is None else [za, zc, mix])
        return [each.detach().double() for each in (loss, *gradients)]

    expected = in_torch(run, None, torch.float64)
    rounded = in_torch(run, None)  # a score that hardly varies over a row is known to few digits
    if not all(each.isfinite().all() for each in rounded):
        return  # as unbounded products may make it: nothing to compare
    for tile in (None, 7):
        for one, other, exact in zip(run(tile), rounded, expected, strict=True):
            error, usual = (one - exact).abs().max(), (other - exact).abs().max()
            size = max(1.0, float(exact.abs().max())) / min(1.0, temperature)
            assert error <= 20 * usual + TOLERANCE[dtype] * size


@needed
@pytest.mark.parametrize("temperature", [0.049, 0.01, 0.002])
@pytest.mark.parametrize("seed", range(5))
def test_a_negative_without_weight_hides_nothing(temperature: float, seed: int) -> None:
    """Of one score, the least weight is exactly 0, however large e^{l/τ}."""
    z, h = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(seed)).double()
    za, zc = z[:7].clone().requires_grad_(), z[7:].clone().requires_grad_()
    ha, hc = h[:7], h[7:]
    pairs = random_pairs(7, 5, 0.2, seed)
    negatives, positives = pairs.negative_mask(), pairs.positive_mask()
    mix = torch.ones(1).double()
    scores = [reference.uncertainty(za, zc, ha, hc, negatives, positives)]
    weights = reference.weights(
        scores, mix, negatives, scaling="minmax", mass="mean", hardness=None
    )
    logits = reference.similarity(za, zc) / temperature
    nothing = ~negatives | (weights <= 0)
    weighted = logits + weights.masked_fill(nothing, 1.0).log()
    total = weighted.masked_fill(nothing, -1e9).logsumexp(1)
    expected = softplus(total - logits[positives]).mean()
    actual = info_nce(
        Views(za, ha), Views(zc, hc), pairs, temperature=temperature,
        weighting=Weighting(("uncertainty",)), mix=mix,
    )  # fmt: skip
    assert_like(actual, expected, 1e-9)
    for one, other in zip(
        *(torch.autograd.grad(x, (za, zc)) for x in (actual, expected)), strict=True
    ):
        assert_like(one, other, 1e-10 / temperature)


@needed
@DTYPES
def test_residuals(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    units = torch.nn.functional.normalize(torch.randn(30, 8, generator=generator), dim=1).to(dtype)
    classes = torch.nn.functional.normalize(torch.randn(20, 8, generator=generator), dim=1)
    lengths = torch.rand(30, generator=generator).to(dtype)
    lengths[4], units[4] = 0, 0  # without direction
    pairs = random_pairs(30, 20, 0.5, seed=3)
    negatives = pairs.negative_mask()
    negatives[7] = False  # without class
    pairs = Pairs.from_masks(pairs.positive_mask(), negatives)
    arguments = (units, lengths, classes.to(dtype), pairs)
    for temperature in (1.0, 0.03):
        expected = in_torch(residuals, *arguments, temperature=temperature)
        assert not expected[[4, 7]].any()
        for tile in (None, 8):
            actual = residuals(*arguments, temperature=temperature, tile=tile)
            assert_like(actual, expected, 10 * TOLERANCE[dtype])


SHAPES = [(1, 2, 1), (7, 5, 3), (25, 17, 16), (31, 40, 33), (700, 130, 20), (500, 48, 96)]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@needed
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("threads")
def test_residuals_of_both_sides(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    count, others, depth = shape
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(count + others, depth, generator=generator).to(dtype)
    z[-1] = 0  # without direction
    anchors, candidates = Views(z[:count]), Views(z[count:])
    pairs = random_pairs(count, others, 0.3, seed=1)
    if count > 9:
        negatives = pairs.negative_mask()
        negatives[7] = negatives[:, 3] = False  # without class
        pairs = Pairs.from_masks(pairs.positive_mask(), negatives)
    (block,) = pairs.blocks(None)
    similarity = torch.empty(count, others, dtype=dtype)
    for temperature in (1.0, 0.06):
        both = native.residuals(
            anchors.units, anchors.lengths, candidates.units, candidates.lengths, block.masked,
            temperature=temperature, noise=noise(dtype), similarity=similarity,
        )  # fmt: skip
        assert_like(similarity, anchors.units @ candidates.units.T, 1e-6)
        for actual, one, other, each in zip(
            both,
            (anchors, candidates),
            (candidates, anchors),
            (pairs, pairs.transposed()),
            strict=True,
        ):
            arguments = (one.units, one.lengths, other.units, each)
            expected = in_torch(residuals, *arguments, temperature=temperature)
            assert_like(actual, expected, 20 * TOLERANCE[dtype])


@needed
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("times", [True, False])
@pytest.mark.usefixtures("threads")
def test_scores_as_vectors(
    dtype: torch.dtype, shape: tuple[int, int, int], times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inner products that the sweep makes itself against those of torch."""
    count, others, depth = shape
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    left, right, more = draw(count, depth), draw(others, depth), depth + 3
    features = (draw(count, more), draw(others, more))
    similarity, table = draw(count, others), draw(count, others)
    (block,) = random_pairs(count, others, 0.2, seed=2).blocks(None)

    def run() -> list[Tensor]:
        rooms = torch.empty(2, count, others, dtype=dtype)
        inner = native.Inner(left, right, rooms[0])
        factor = native.Inner(*features, rooms[1]) if times else None
        parts = (native.Part(table.clone()), native.Part(inner, None, factor, 1.0))
        mix = torch.tensor([0.3, 0.7, 0.3], dtype=dtype)
        swept = native.sweep(
            native.Logits(similarity, 1.0), block.masked,
            native.Mixture((*parts, parts[1]), mix, torch.zeros_like(mix), 1e-6, 0.0),
            estimate="softplus", bounded=False, extreme=False, centre=None, differentiate=True,
            out=torch.empty_like(similarity),
        )  # fmt: skip
        assert swept.along is not None
        return [swept.total, swept.weighted, swept.slopes, swept.along]

    at_once = run()
    monkeypatch.setattr(native, "FITTING", 0)
    for one, other in zip(at_once, run(), strict=True):
        assert_like(one, other, 10 * TOLERANCE[dtype])


@needed
@pytest.mark.parametrize("place", range(4))
def test_a_nan_reaches_the_loss(place: int) -> None:
    views = [torch.randn(count, 6) for count in (14, 5, 14, 5)]
    views[place][3, 2] = torch.nan
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    weighting = Weighting(tuple(COMPONENTS))
    loss = jsd(Views(views[0], views[2]), Views(views[1], views[3]), pairs, weighting=weighting)
    assert loss.isnan()


@needed
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_stays_so(broken: float, place: int) -> None:
    tables = [torch.rand(4, 9) for _ in range(2)]
    similarity = torch.rand(4, 9)
    (similarity, *tables)[place][2, 5] = broken
    mixture = native.Mixture(
        tuple(native.Part(table) for table in tables),
        torch.ones(2),
        torch.zeros(2),
        1e-6,
        0.0,
    )
    for estimate in ("exponential", "softplus"):
        swept = native.sweep(
            native.Logits(similarity, 1.0), torch.zeros(0, dtype=torch.long), mixture,
            estimate=estimate, bounded=True, extreme=False, centre=None, differentiate=True,
            out=torch.empty_like(similarity),
        )  # fmt: skip
        finite = swept.weighted.isfinite()
        exempt = place == 0 and estimate == "exponential" and broken == float("inf")
        assert finite.tolist() == [True, True, exempt, True]
        tables = [table.clone() for table in tables]


@needed
def test_a_number_of_threads_always_gives_the_same() -> None:
    z0, z1, h0, h1 = torch.randn(4, 90, 16, generator=torch.Generator().manual_seed(0))
    loss_fn = UnReMixLoss()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert len({loss_fn(z0, z1, h0, h1).item() for _ in range(5)}) == 1
    finally:
        torch.set_num_threads(before)


@needed
def test_memory_is_kept_and_two_losses_do_not_meet() -> None:
    """Losses of different size, in turn, as if each were alone; results do not change later."""
    loss_fn = UnReMixLoss()
    batches = [
        torch.randn(4, n, 8, generator=torch.Generator().manual_seed(n)) for n in (12, 40, 5, 40)
    ]
    alone = [in_torch(loss_fn, *batch).item() for batch in batches]
    losses = [loss_fn(*batch) for batch in batches]
    assert [loss.item() for loss in losses] == pytest.approx(alone, rel=1e-5)
    with torch.inference_mode():
        assert loss_fn(*batches[1]).item() == pytest.approx(alone[1], rel=1e-5)
    assert loss_fn(*batches[1]).item() == pytest.approx(alone[1], rel=1e-5)


def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(native.Unavailable, match="no C compiler 'no-such-compiler'; install gcc"):
        native.build(wide=False, compiler="no-such-compiler", folder=tmp_path)


@needed
def test_a_compiler_with_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -DUNUSED")
    made = native.build(wide=False, folder=tmp_path)
    assert made != native.build(wide=False, compiler="cc", folder=tmp_path)
    with pytest.raises(native.Unavailable, match="is not a command: No closing quotation"):
        native.build(wide=False, compiler="cc 'x", folder=tmp_path)


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'it is broken' >&2\nexit 3\n")
    compiler.chmod(0o755)
    with pytest.raises(native.Unavailable, match="broken-cc failed: it is broken"):
        native.build(wide=False, compiler=str(compiler), folder=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []  # nothing half-built is left


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(native.Unavailable, match="file"):
        native.build(wide=False, compiler="sh", folder=tmp_path / "file" / "below")


def test_a_library_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_text("not a library")
    with pytest.raises(native.Unavailable, match="kernels"):
        native.load(path, wide=False)


@needed
def test_it_is_built_once(tmp_path: Path) -> None:
    first = native.build(wide=False, folder=tmp_path)
    made = first.stat().st_mtime_ns
    assert native.build(wide=False, folder=tmp_path) == first
    assert first.stat().st_mtime_ns == made
    assert native.build(wide=True, folder=tmp_path) != first
    assert sorted(tmp_path.iterdir()) == sorted(tmp_path.glob("kernels-*.so"))
    assert native.load(first, wide=False).sweep is not None


def test_it_can_be_turned_off() -> None:
    code = (
        "import torch; from unremix import UnReMixLoss, native; torch.manual_seed(0);"
        "print(native.missing()); print(float(UnReMixLoss()(*torch.randn(4, 20, 8))))"
    )
    said = []
    for setting in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "UNREMIX_NATIVE": setting},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout.split("\n"))
    assert said[0][0] == "it is turned off by UNREMIX_NATIVE"
    assert said[1][0] == str(native.missing())
    assert float(said[0][1]) == pytest.approx(float(said[1][1]), rel=1e-6)


def test_other_dtypes_and_devices_go_through_torch() -> None:
    assert native.missing(torch.bfloat16) == (
        "it is built for float32 and float64, not for torch.bfloat16"
    )
    assert not native.ready(torch.zeros(2, device="meta"))
    assert not native.serves(torch.zeros(3, 4).T, torch.zeros(3))


def above_half(rows: Rows, context: Context) -> Tensor:
    """A score of another dtype."""
    return rows.similarity > 0.1


def far_from_the_nearest(rows: Rows, context: Context) -> Tensor:
    """A score that looks at whole rows, in memory of its own name."""
    highest = rows.similarity.amax(1, keepdim=True)
    rows.empty("temporary").fill_(7)
    return (rows.similarity - highest).square()


def as_columns(rows: Rows, context: Context) -> Scored:
    """Lines of a table that lies in memory column by column, named by small integers."""
    table = rows.similarity[:2].T.contiguous().T
    return Scored(table, (torch.arange(rows.similarity.shape[0]) % 2).int())


@pytest.mark.parametrize("score", [above_half, far_from_the_nearest, as_columns])
def test_scores_of_ones_own(score: Any) -> None:
    z, h = torch.randn(2, 19, 6, generator=torch.Generator().manual_seed(0))
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    weighting = Weighting(("uncertainty", score, "similarity"))

    def run() -> Tensor:
        return jsd(Views(z[:14], h[:14]), Views(z[14:], h[14:]), pairs, weighting=weighting)

    assert_like(run(), in_torch(run), 1e-5)


def test_a_score_of_another_shape_is_refused() -> None:
    z = torch.randn(19, 6, generator=torch.Generator().manual_seed(0))
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    for weighting in (Weighting((lambda rows, context: rows.similarity[:3],)),):
        with pytest.raises((ValueError, RuntimeError), match=r"shape|size|match"):
            jsd(Views(z[:14]), Views(z[14:]), pairs, weighting=weighting)


def test_autocast_does_not_reach_the_losses() -> None:
    z, h = torch.randn(2, 19, 6, generator=torch.Generator().manual_seed(0))
    pairs = Pairs.membership(torch.arange(14) % 5, 5)
    weighting = Weighting(tuple(COMPONENTS))

    def run() -> Tensor:
        return jsd(Views(z[:14], h[:14]), Views(z[14:], h[14:]), pairs, weighting=weighting)

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(), expected)


def test_what_does_not_fit_is_refused() -> None:
    z = torch.randn(19, 6, generator=torch.Generator().manual_seed(0))
    pairs = Pairs.membership(torch.arange(14, dtype=torch.int32) % 5, 5)  # small integers will do
    nodes, graphs, weighting = Views(z[:14]), Views(z[14:]), Weighting(tuple(COMPONENTS))
    with pytest.raises(ValueError, match=r"one share per component, shape \(3,\), received \(2,\)"):
        jsd(nodes, graphs, pairs, weighting=weighting, mix=torch.ones(2))
    for wrong in (torch.tensor([0, 5]), torch.tensor([-1, 0])):
        with pytest.raises(ValueError, match="groups among 0 … 4"):
            Pairs.membership(wrong, 5)
    with pytest.raises(ValueError, match="candidates among 0 … 4"):
        Pairs.build(2, 5, (torch.tensor([0, 1]), torch.tensor([1, 9])))
    with pytest.raises(ValueError, match="anchors among 0 … 1"):
        Pairs.build(2, 5, (torch.tensor([0, 1]),) * 2, (torch.tensor([2]), torch.tensor([0])))
    temperature: Any = np.float64(0.5)
    same = jsd(nodes, graphs, pairs, weighting=weighting, temperature=temperature)
    assert same == jsd(nodes, graphs, pairs, weighting=weighting, temperature=0.5)


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lost)
    with pytest.raises(native.Unavailable, match="home directory"):
        native.build(wide=False, compiler="sh")


@pytest.mark.filterwarnings("ignore")  # of torch.compile, about what it does not take
def test_the_losses_under_torch_compile() -> None:
    torch.compiler.reset()
    z0, z1, h0, h1 = torch.randn(4, 12, 6, generator=torch.Generator().manual_seed(0))
    z0.requires_grad_()
    for loss_fn in (UnReMixLoss(), HCLLoss()):
        inputs = (z0, z1, h0, h1) if isinstance(loss_fn, UnReMixLoss) else (z0, z1)
        expected = loss_fn(*inputs)
        actual = torch.compile(loss_fn, backend="eager")(*inputs)
        assert_like(actual, expected, 1e-6)
        for one, other in zip(
            *(torch.autograd.grad(x, z0) for x in (actual, expected)), strict=True
        ):
            assert_like(one, other, 1e-5)
    torch.compiler.reset()
