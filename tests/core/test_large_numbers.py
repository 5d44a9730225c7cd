"""Numbers at the ends of their range: the result is right, or refused; never NaN in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agreement import check_call
from building import draw

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.engines import native
from unremix.core.pairs import Pairs
from unremix.core.views import ExtraNegatives, Views
from unremix.core.weights import scale

needed = pytest.mark.skipif(
    native.missing() is not None, reason=f"there is no compiled code: {native.missing()}"
)


@needed
@pytest.mark.parametrize("power", [30, 150, 154, 156, 160, 200, 300])
@pytest.mark.parametrize("gradient", ["pseudo-label", "nt-xent"])
@pytest.mark.parametrize("width", [1, 5])
def test_native_equals_eager_for_long_embeddings(power: int, gradient: Any, width: int) -> None:
    z0, z1 = draw(2, 8, width) * 10.0**power
    h0, h1 = draw(2, 8, 6, seed=1)
    found = []
    for engine in ("eager", "native"):
        loss_fn = UnReMixLoss(engine=engine, gradient=gradient)  # type: ignore[arg-type]
        first = z0.clone().requires_grad_()
        loss = loss_fn(first, z1, h0, h1)
        loss.backward()
        assert first.grad is not None
        found.append((loss.detach(), first.grad * 10.0**power))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [-0.9, -0.5, 0.5, 0.9])
def test_a_standardized_score_knows_no_size(dtype: torch.dtype, power: float) -> None:
    score, negatives = draw(4, 9), draw(4, 9, seed=1, dtype=torch.float32) > -0.5
    count = negatives.sum(1, keepdim=True)
    factor = float(torch.finfo(dtype).max) ** power
    expected = scale(score, negatives, count, "zscore", None)
    found = scale((score * factor).to(dtype), negatives, count, "zscore", None)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        found[negatives].double(), expected[negatives], rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("seed", "outcome"), [(296, "agreed"), (4071, "refused")])
def test_a_loss_that_is_finite_has_gradients_that_are(seed: int, outcome: str) -> None:
    """Where the product of a view with itself overflows, and where raw scores do."""
    assert check_call(seed, ("eager",)) == outcome


@pytest.mark.parametrize("scaling", ["minmax", "zscore-exp", "none"])
@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_inputs_that_overflow_are_refused(scaling: Any, engine: Any) -> None:
    z0, z1, h0, h1 = draw(4, 8, 5, dtype=torch.float32)
    loss_fn = UnReMixLoss(scaling=scaling, engine=engine)
    with pytest.raises(ValueError, match=r"finite loss, .* overflow"):
        loss_fn(z0, z1, h0 * 1e30, h1 * 1e30)
    with pytest.raises(ValueError, match=r"finite weights, .* overflow"):
        loss_fn.importance(z0, z1, h0 * 1e30, h1 * 1e30)
    with pytest.raises(ValueError, match="expected finite weights"):
        unremix.importance(z0, z1, h0 * 1e30, h1 * 1e30, scaling=scaling)


MASK = torch.eye(6, dtype=torch.bool)


@pytest.mark.parametrize("objective", ["info-nce", "jsd"])
@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_dot_products_that_overflow_are_refused(objective: Any, engine: Any) -> None:
    z0, z1 = draw(2, 6, 4, dtype=torch.float32) * 1e20
    with pytest.raises(ValueError, match="expected a finite loss"):
        InfoNCELoss(engine=engine).against(
            Views(z0), Views(z1), Pairs.from_masks(MASK, ~MASK), logits="dot", objective=objective
        )


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_a_loss_too_large_for_the_dtype_of_the_mix_is_refused(engine: Any) -> None:
    """In float64 it is finite, but its gradient at the mix, which is float32, is not."""
    z0, z1 = draw(2, 6, 4) * 1e25
    given = Views(z0), Views(z1), Pairs.from_masks(MASK, ~MASK)
    uniform, mixed = InfoNCELoss(engine=engine), UnReMixLoss(engine=engine)
    assert uniform.against(*given, logits="dot", objective="jsd").isfinite()
    with pytest.raises(ValueError, match=r"finite loss, at most 3.4e\+38"):
        mixed.against(*given, logits="dot", objective="jsd")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        "anchors",
        "candidates",
        "anchor_inputs",
        "candidate_inputs",
        "extra_negatives",
        "extra_inputs",
    ],
)
@pytest.mark.parametrize("make", [InfoNCELoss, UnReMixLoss])
def test_against_refuses_what_is_not_finite(make: Any, name: str, value: float) -> None:
    tensors = {
        "anchors": draw(6, 4, dtype=torch.float32),
        "candidates": draw(6, 4, seed=1, dtype=torch.float32),
        "anchor_inputs": draw(6, 3, seed=2, dtype=torch.float32),
        "candidate_inputs": draw(6, 3, seed=3, dtype=torch.float32),
        "extra_negatives": draw(6, 2, 4, seed=4, dtype=torch.float32),
        "extra_inputs": draw(6, 2, 3, seed=5, dtype=torch.float32),
    }
    tensors[name][5, -1] = value
    # Nobody meets the last candidate: the loss alone would not show what is wrong with it.
    positives, negatives = MASK.clone(), ~MASK
    positives[5, 5], positives[5, 0] = False, True
    negatives[:, 5], negatives[5, 0] = False, False
    with pytest.raises(ValueError, match=f"finite {name}, got .* in 1 of 6"):
        make().against(
            Views(tensors["anchors"], tensors["anchor_inputs"]),
            Views(tensors["candidates"], tensors["candidate_inputs"]),
            Pairs.from_masks(positives, negatives),
            extra=ExtraNegatives(tensors["extra_negatives"], tensors["extra_inputs"]),
        )


@pytest.mark.parametrize("make", [InfoNCELoss, HCLLoss, UnReMixLoss])
def test_one_pair_of_large_embeddings_has_a_loss_of_zero(make: Any) -> None:
    views = [torch.full((1, 8), 1e38, requires_grad=True) for _ in range(2)]
    with pytest.warns(UserWarning, match="one pair has no negatives"):
        loss = make()(*views)
    loss.backward()
    assert loss.item() == 0
    for each in views:
        assert each.grad is not None
        assert not each.grad.any()
