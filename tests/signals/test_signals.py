"""Evidence and rules against loops, and what a loss with them must keep."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
import torch
from batches import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Report, processes
from scipy import stats
from torch import Tensor
from torch.nn.functional import cosine_similarity

import unremix
from unremix import FalseNegatives
from unremix.core.engines import compiled, native
from unremix.core.pairs import Pairs
from unremix.core.views import ExtraNegatives, Views
from unremix.losses import TwoViewLoss
from unremix.signals import memory as memories
from unremix.signals import rules
from unremix.signals.false_negatives import four_views

RULES = ("ring", "threshold", "rank", "mixture")
EVIDENCE = ("similarity", "four-views", "bank", "shared-neighbors")


def random_evidence(
    rows: int, columns: int, seed: int, ties: bool = False
) -> tuple[Tensor, Tensor]:
    """Evidence and a mask; every row has a negative."""
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.rand(rows, columns, generator=generator).double() * 2 - 1
    if ties:
        evidence = (evidence * 3).round() / 3
    negatives = torch.rand(rows, columns, generator=generator) < 0.7
    negatives[:, 0] = True
    return evidence, negatives


def entries(negatives: Tensor) -> list[tuple[int, int]]:
    """Rows and columns of the negatives."""
    return [
        (i, j) for i, row in enumerate(negatives.tolist()) for j, is_one in enumerate(row) if is_one
    ]


def slow_standing(evidence: Tensor, negatives: Tensor, i: int, j: int) -> float:
    others = [float(evidence[i, k]) for k in range(evidence.shape[1]) if negatives[i, k]]
    own = float(evidence[i, j])
    below, equal = sum(e < own for e in others), sum(e == own for e in others)
    return (below + equal / 2) / len(others)


shapes = given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**16), st.booleans())


@settings(max_examples=40)
@shapes
def test_standing_and_ring_equal_the_loops(n: int, m: int, seed: int, ties: bool) -> None:
    evidence, negatives = random_evidence(n, m, seed, ties)
    place = rules.standing(evidence, negatives)
    ring = rules.ring(evidence, negatives, share=0.2, outer=0.7)
    for i, j in entries(negatives):
        expected = slow_standing(evidence, negatives, i, j)
        assert float(place[i, j]) == pytest.approx(expected, abs=1e-12)
        if min(abs(expected - 0.8), abs(expected - 0.3)) > 1e-9:
            assert bool(ring[i, j]) == (0.3 <= expected <= 0.8)


def test_a_ring_leaves_out_its_share() -> None:
    evidence, _ = random_evidence(5, 40, seed=3)
    negatives = torch.ones(5, 40, dtype=torch.bool)
    kept = rules.ring(evidence, negatives, share=0.1)
    assert (kept.sum(1) == 36).all()
    assert (
        torch.where(kept == 0, evidence, 9).amin(1) > torch.where(kept > 0, evidence, -9).amax(1)
    ).all()


@settings(max_examples=40)
@shapes
def test_ranks_equal_bcl(n: int, m: int, seed: int, ties: bool) -> None:
    """p by bisection of the mixture's distribution function, and Bayes' theorem."""
    evidence, negatives = random_evidence(n, m, seed, ties)
    share, alpha = 0.15, 0.8
    found = rules.rank(evidence, negatives, share=share, separation=alpha)

    def density(phi: float, false: bool) -> float:
        upper = alpha if false else 1 - alpha
        return 2 * (upper * phi + (1 - upper) * (1 - phi))

    def distribution(phi: float) -> float:
        parts = [(phi**2, 2 * phi - phi**2), (1 - share, share)]
        top, bottom = parts[0]
        true = (1 - alpha) * top + alpha * bottom
        false = alpha * top + (1 - alpha) * bottom
        return (1 - share) * true + share * false

    for i, j in entries(negatives):
        target, low, high = slow_standing(evidence, negatives, i, j), 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if distribution(middle) < target else (low, middle)
        true = (1 - share) * density(low, False)
        expected = true / (true + share * density(low, True))
        assert float(found[i, j]) == pytest.approx(expected, abs=1e-9)


def test_ranks_know_nothing_at_a_separation_of_one_half() -> None:
    evidence, negatives = random_evidence(3, 9, seed=0)
    found = rules.rank(evidence, negatives, share=0.2, separation=0.5)
    torch.testing.assert_close(found, torch.full_like(found, 0.8))
    # and on average a share of the negatives is false, whatever the separation
    many = torch.linspace(0, 1, 4001).double()[None]
    found = rules.rank(many, many >= 0, share=0.2, separation=0.9)
    assert float(found.mean()) == pytest.approx(0.8, abs=1e-3)


def slow_mixture(values: list[float], share: float, steps: int) -> list[float]:
    """The probability of the lower distribution, by SciPy's Beta density."""
    low, high = min(values), max(values)
    x = [min(max((v - low) / (high - low), 1e-4), 1 - 1e-4) for v in values]
    lower, upper, weight = (1.0, 2.0), (2.0, 1.0), share

    def fit(w: list[float]) -> tuple[float, float]:
        total = max(sum(w), 1e-6)
        center = min(max(sum(a * b for a, b in zip(w, x, strict=True)) / total, 1e-3), 1 - 1e-3)
        spread = sum(a * (b - center) ** 2 for a, b in zip(w, x, strict=True)) / total
        precision = min(max(center * (1 - center) / max(spread, 1e-6) - 1, 1e-2), 1e4)
        return center * precision, (1 - center) * precision

    def probability(v: float) -> float:
        up, down = weight * stats.beta.pdf(v, *upper), (1 - weight) * stats.beta.pdf(v, *lower)
        return float(up / (up + down))

    for _ in range(steps):
        ups = [probability(v) for v in x]
        lower, upper = fit([1 - p for p in ups]), fit(ups)
        weight = min(max(mean(ups), 1e-4), 1 - 1e-4)
    centers = sorted((a / (a + b), name) for name, (a, b) in (("l", lower), ("u", upper)))
    bounded = [min(max(v, centers[0][0]), centers[1][0]) for v in x]
    ups = [probability(v) for v in bounded]
    return [1 - p if centers[1][1] == "u" else p for p in ups]


@settings(max_examples=25)
@given(st.integers(4, 25), st.integers(0, 2**16), st.sampled_from([0.05, 0.3]))
def test_the_mixture_equals_the_loops(m: int, seed: int, share: float) -> None:
    evidence, negatives = random_evidence(3, m, seed)
    negatives[:, :3] = True
    found = rules.mixture(evidence, negatives, share=share, steps=5)
    for i in range(3):
        columns = [j for row, j in entries(negatives) if row == i]
        expected = slow_mixture([float(evidence[i, j]) for j in columns], share, 5)
        assert found[i, columns].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_mixture_tells_two_heaps_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    far, near = (
        torch.randn(4, 180, generator=generator) * 0.1,
        torch.randn(4, 20, generator=generator) * 0.05 + 0.7,
    )
    evidence = torch.cat([far, near], 1)
    found = rules.mixture(evidence, torch.ones(4, 200, dtype=torch.bool), share=0.1)
    assert found[:, 180:].max() < 0.1
    assert (found[:, :180] > 0.9).double().mean() > 0.95
    assert (
        rules.mixture(torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool), share=0.1) == 1
    ).all()


def test_four_views_average_four_similarities() -> None:
    a, b = torch.randn(2, 5, 3).unbind()
    unit = torch.nn.functional.normalize
    both = four_views(unit(a, dim=1), unit(b, dim=1))
    for i in range(5):
        for j in range(5):
            expected = mean(
                float(cosine_similarity(x[i], y[j], dim=0)) for x in (a, b) for y in (a, b)
            )
            assert float(both[i] @ both[j]) == pytest.approx(expected, abs=1e-6)


def test_shared_neighbors_equal_the_loops() -> None:
    torch.manual_seed(0)
    bank = torch.nn.functional.normalize(torch.randn(30, 4), dim=1)
    known = torch.arange(30) % 5 != 0
    samples, k = bank[[1, 2, 3, 4, 6]], 7
    sets = []
    for row in samples:
        order = sorted(range(30), key=lambda r: -float(row @ bank[r]))
        sets.append({r for r in order if known[r]} and set([r for r in order if known[r]][:k]))
    found = memories.shared_neighbors(samples, bank, known, k)
    for i in range(5):
        for j in range(5):
            assert float(found[i] @ found[j]) == pytest.approx(len(sets[i] & sets[j]) / k, abs=1e-6)
    few = torch.arange(30) < 3  # fewer are known than asked for
    found = memories.shared_neighbors(samples, bank, few, k)
    assert float((found[0] @ found[1]) * k) == pytest.approx(3)


def test_the_bank_averages() -> None:
    bank = memories.Bank(samples=6, momentum=0.5)
    first, second, third = torch.eye(3)[[0]] * 5, torch.eye(3)[[1]], torch.eye(3)[[2]] * 0.1
    ids = torch.tensor([4])
    bank.add(ids, first, second)
    expected = torch.tensor([0.5, 0.5, 0.0])
    torch.testing.assert_close(bank.rows[4], expected)
    bank.add(ids, third, third)
    expected = 0.5 * expected + 0.5 * torch.tensor([0.0, 0.0, 1.0])
    torch.testing.assert_close(bank.rows[4], expected)
    bank.add(torch.tensor([1]), first)
    away = (expected - first[0] / 5) / 2  # from the mean of both
    torch.testing.assert_close(bank.units(ids)[0], away / away.norm())
    assert (bank.units(torch.tensor([0])) == 0).all()
    assert bank.known.nonzero()[:, 0].tolist() == [1, 4]
    other = memories.Bank()  # of unknown size: it takes that of the state
    other.load_state_dict(bank.state_dict())
    torch.testing.assert_close(other.rows, bank.rows)
    with pytest.raises(ValueError, match="among 0 … 5, got 6"):
        bank.add(torch.tensor([6]), first)
    with pytest.raises(ValueError, match="expected the number of samples"):
        memories.Bank().add(ids, first)


def test_thresholds_follow_the_loop() -> None:
    evidence, negatives = random_evidence(4, 20, seed=1)
    memory = memories.Thresholds(samples=9, rate=0.05)
    ids, share = torch.tensor([3, 5, 3, 8]), 0.2
    table: dict[int, float] = {}
    for _ in range(3):
        levels, limits = memory.find(ids, evidence, negatives, share, update=False)
        memory.store(ids, memory.find(ids, evidence, negatives, share, update=True)[0])
        new: dict[int, list[float]] = {}
        for i, sample in enumerate(ids.tolist()):
            row = sorted((float(evidence[i, j]) for r, j in entries(negatives) if r == i))[::-1]
            center, width = mean(row), pstdev(row)
            level = table.get(sample, (row[int(len(row) * share)] - center) / width)
            assert float(levels[i]) == pytest.approx(level, abs=1e-6)
            assert float(limits[i]) == pytest.approx(center + level * width, abs=1e-6)
            above = sum(e > center + level * width + 1e-12 for e in row) / len(row)
            new.setdefault(sample, []).append(level - 0.05 * (1 - above / share))
        table |= {sample: mean(values) for sample, values in new.items()}
        for sample, level in table.items():
            assert float(memory.rows[sample, 0]) == pytest.approx(level, abs=1e-6)
    assert memory.known.nonzero()[:, 0].tolist() == [3, 5, 8]


def test_thresholds_find_the_quantile_of_all_samples_at_any_scale() -> None:
    """No batch shows more than a few negatives, yet λ comes near the quantile of all."""
    generator = torch.Generator().manual_seed(0)
    everything = torch.rand(5000, generator=generator) * 2 - 1
    memory = memories.Thresholds(samples=1, rate=0.02)
    ids, seen, everyone = torch.zeros(1, dtype=torch.long), [], torch.ones(1, 40, dtype=torch.bool)
    for step in range(600):
        scale = 1 / (1 + step / 100)  # the encoder changes
        batch = scale * everything[torch.randint(5000, (1, 40), generator=generator)]
        _, limit = memory.find(ids, batch, everyone, 0.1, update=False)
        seen.append(float(limit) / scale)
        memory.store(ids, memory.find(ids, batch, everyone, 0.1, update=True)[0])
    assert mean(seen[200:]) == pytest.approx(float(everything.quantile(0.9)), abs=0.05)


def make(
    rule: Any, evidence: Any, kind: type[TwoViewLoss] = unremix.UnReMixLoss, **more: Any
) -> TwoViewLoss:
    samples = FalseNegatives(rule, evidence).needs_ids
    loss = kind(
        false_negatives=FalseNegatives(rule, evidence, 0.3, 50 if samples else None), **more
    )
    if loss.bank is not None:
        torch.manual_seed(5)
        loss.remember(torch.arange(50), torch.randn(50, 6), torch.randn(50, 6))
    return loss.double()


@pytest.mark.parametrize("kind", [unremix.InfoNCELoss, unremix.HCLLoss, unremix.UnReMixLoss])
@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("rule", RULES)
def test_weights_are_those_without_times_the_factor(rule: str, evidence: str, kind: Any) -> None:
    """Of mean 1 over the negatives; the evidence is what its name says."""
    batch = make_batch(8)
    ids = torch.arange(8) + 3
    loss = make(rule, evidence, kind)
    found = loss.importance(*batch.views, ids=ids)
    plain = kind().double().importance(*batch.views, ids=ids)
    assert found.keep is not None
    assert found.evidence is not None
    expected = plain.weights * found.keep
    expected = expected / (expected.sum(1, keepdim=True) / found.negatives.sum(1, keepdim=True))
    torch.testing.assert_close(found.weights, expected)
    assert ((found.keep >= 0) & (found.keep <= 1)).all()
    assert float(found.keep[found.negatives].min()) < float(found.keep[found.negatives].max())
    order = found.evidence.masked_fill(~found.negatives, -math.inf).argmax(1, keepdim=True)
    likest = found.keep.gather(1, order)
    assert (
        likest <= found.keep.masked_fill(~found.negatives, math.inf).amin(1, keepdim=True) + 1e-9
    ).all()
    if evidence == "bank":
        assert loss.bank is not None
        centered = loss.bank.rows - loss.bank.rows.mean(0)  # all are known
        rows = torch.nn.functional.normalize(centered[ids].repeat(2, 1), dim=1)
        torch.testing.assert_close(found.evidence, rows @ rows.T)


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("rule", RULES)
def test_the_loss_is_that_of_the_weights_in_any_tiles(
    rule: str, evidence: str, layout: Any
) -> None:
    batch = make_batch(8)
    ids = torch.arange(8) + 3
    loss = make(rule, evidence, layout=layout, temperature=0.3).eval()
    found = loss.importance(*batch.views, ids=ids)
    f = torch.nn.functional.normalize
    first, second = f(batch.z0, dim=1), f(batch.z1, dim=1)
    anchors, candidates = (first, second)
    if layout == "both":
        anchors = candidates = torch.cat([first, second])
    logits = anchors @ candidates.T / 0.3
    top = (logits.exp() * found.positives).sum(1)
    expected = -(top / (top + (found.weights * logits.exp()).sum(1))).log().mean()
    gradient = torch.autograd.grad(expected, (batch.z0, batch.z1))
    for tile in (None, 3, 1):
        object.__setattr__(loss.options, "tile", tile)
        actual = loss(*batch.views, ids=ids)
        torch.testing.assert_close(actual, expected)
        # Evidence and weights are constants: the gradient is that of the logits alone.
        for one, other in zip(
            torch.autograd.grad(actual, (batch.z0, batch.z1)), gradient, strict=True
        ):
            torch.testing.assert_close(one, other)


def test_training_learns_thresholds_and_evaluation_does_not() -> None:
    batch, ids = make_batch(8), torch.arange(8)
    loss = make("threshold", "similarity")
    assert loss.thresholds is not None
    loss.eval()(*batch.views, ids=ids)
    loss.train().importance(*batch.views, ids=ids)
    assert not loss.thresholds.known.any()
    loss(*batch.views, ids=ids)
    assert loss.thresholds.known.sum() == 8
    assert any(name.startswith("thresholds") for name in loss.state_dict())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("evidence", ["similarity", "bank", "shared-neighbors"])
def test_a_queue_with_own_negatives(rule: str, evidence: str) -> None:
    """Own negatives are always kept."""
    torch.manual_seed(0)
    loss = make(rule, evidence, unremix.InfoNCELoss)
    ids, old = torch.arange(4), torch.arange(10, 30)
    anchors = Views(torch.randn(4, 5).double().requires_grad_(), ids=ids)
    candidates = Views(torch.randn(24, 5).double(), ids=torch.cat([ids, old]))
    own = ExtraNegatives(torch.randn(4, 2, 5).double())
    value = loss.against(anchors, candidates, Pairs.queue(ids, old), extra=own)
    value.backward()
    assert value.isfinite()


def test_permuting_the_batch_permutes_the_weights() -> None:
    batch, order = make_batch(9), torch.randperm(9)
    twice = torch.cat([order, order + 9])
    for rule in RULES:
        loss = make(rule, "four-views" if rule != "threshold" else "similarity")
        one = loss.importance(*batch.views, ids=torch.arange(9)).weights
        other = loss.importance(*(view[order] for view in batch.views), ids=order).weights
        torch.testing.assert_close(one[twice][:, twice], other)


def test_refusals() -> None:
    batch = make_batch(4)
    with pytest.raises(ValueError, match=r"false_negatives=None .*fidelity='paper'"):
        unremix.UnReMixLoss(fidelity="paper", false_negatives="ring")
    with pytest.raises(ValueError, match=r"false_negatives to be one of ring, .* got 0.1"):
        unremix.UnReMixLoss(false_negatives=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"false_negatives .*did you mean 'ring'"):
        unremix.InfoNCELoss(false_negatives="rings")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ids= for false_negatives='threshold'"):
        make("threshold", "similarity")(*batch.views)
    empty = unremix.InfoNCELoss(false_negatives=FalseNegatives("ring", "bank", samples=4))
    with pytest.raises(ValueError, match="features of samples in the bank"):
        empty(*batch.views, ids=torch.arange(4))
    keys, views = torch.arange(4)[:, None], Views(batch.z0)
    with pytest.raises(ValueError, match="for mixed views, got 'ring' and 'four-views'"):
        make("ring", "four-views").aimed(*batch.views, keys=keys, shares=torch.ones(4, 1))
    with pytest.raises(ValueError, match="for given anchors and candidates"):
        make("ring", "four-views").against(views, views, Pairs.one_way(4))
    with pytest.raises(ValueError, match="leave the call out"):
        unremix.InfoNCELoss().remember(torch.arange(4), batch.z0)
    assert native.refusal(make("ring", "similarity").options, batch.z0) is not None


def test_nothing_waits_for_the_device() -> None:
    """See tests/core/test_accelerators.py for what meta tensors show."""
    device = torch.device("meta")

    def meta(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, requires_grad=True)

    ids = torch.empty(6, dtype=torch.long, device=device)
    for rule in RULES:
        for evidence in EVIDENCE:
            samples = 50 if FalseNegatives(rule, evidence).needs_ids else None  # type: ignore[arg-type]
            loss = unremix.UnReMixLoss(
                false_negatives=FalseNegatives(rule, evidence, samples=samples),  # type: ignore[arg-type]
                engine="eager",
            ).to(device)
            if loss.bank is not None:
                loss.remember(ids, meta(6, 9), meta(6, 9))
            z0, z1 = meta(6, 5), meta(6, 5)
            loss(z0, z1, ids=ids if loss.takes_ids else None).backward()
            assert z0.grad is not None


def shared_loss(rule: Any, evidence: Any, rank: int | None) -> dict[str, Tensor]:
    """Two steps of one of two processes, or of one that holds the joint batch."""
    rows = slice(None) if rank is None else (slice(0, 4), slice(4, 6))[rank]
    settings_ = FalseNegatives(rule, evidence, 0.3, samples=6)
    loss = unremix.InfoNCELoss(false_negatives=settings_, gather=rank is not None, tile=3).double()
    found = {}
    for step in range(2):
        torch.manual_seed(step)
        z0, z1, features = (torch.randn(6, 5).double()[rows] for _ in range(3))
        ids = torch.arange(6)[rows]
        if loss.bank is not None:
            loss.remember(ids, features)
        z0.requires_grad_()
        value = loss(z0, z1, ids=ids)
        value.backward()
        assert z0.grad is not None
        found |= {f"loss {step}": value.detach(), f"gradient {step}": z0.grad}
    return found | loss.state_dict()


CASES = [("threshold", "similarity"), ("ring", "four-views"), ("rank", "bank")]


def several(world: int) -> Report:
    return {case: shared_loss(*case, torch.distributed.get_rank()) for case in CASES}


@pytest.mark.xdist_group("gather")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Losses, gradients and memories."""
    reports = processes(2, several, tmp_path)
    for case in CASES:
        expected, found = shared_loss(*case, None), [report[case] for report in reports]
        for name, value in expected.items():
            if name.startswith("loss "):
                actual = sum(each[name] for each in found) / 2
            elif name.startswith("gradient"):
                actual = torch.cat([each[name] for each in found]) / 2
            else:
                assert torch.equal(found[0][name], found[1][name])
                actual = found[0][name]
            torch.testing.assert_close(actual, value)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ring", "rank", "mixture"])
def test_engines_and_tracing_agree(rule: Any) -> None:
    batch = make_batch(6)
    given_ = FalseNegatives(rule, "four-views", 0.3)
    expected = unremix.UnReMixLoss(false_negatives=given_, engine="eager")(*batch.views)
    gradient = torch.autograd.grad(expected, batch.z0, create_graph=True)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "compile", partial(torch.compile, backend="aot_eager"))
        compiled._compiled.cache_clear()
        other = unremix.UnReMixLoss(false_negatives=given_, engine="compiled")(*batch.views)
        traced = torch.compile(
            unremix.UnReMixLoss(false_negatives=given_), backend="eager", fullgraph=True
        )(*batch.views)
        compiled._compiled.cache_clear()
    torch._dynamo.reset()
    for each in (other, traced):
        torch.testing.assert_close(each, expected)
        torch.testing.assert_close(torch.autograd.grad(each, batch.z0)[0], gradient)
