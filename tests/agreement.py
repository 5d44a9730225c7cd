"""Random calls of a loss, many of them degenerate: every engine must give the same.

A call either gives a finite loss with finite gradients, or raises a ValueError, whatever finite
numbers it is made of; and the engines agree which.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.engines import VARIABLE
from unremix.core.pairs import Pairs
from unremix.core.views import Views

DTYPES = (torch.float32, torch.float64, torch.float64, torch.float16, torch.bfloat16)
PRECISION = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


class Call(NamedTuple):
    """A loss by its options, and what it is called with."""

    kind: str
    options: dict[str, Any]
    tensors: list[Tensor]  # z0, z1 and perhaps h0, h1
    ids: Tensor | None
    pairs: Pairs | None  # of anchors z0 against candidates z1; None: both are views of the samples
    extra: dict[str, Any]  # how those are put together


class Outcome(NamedTuple):
    """A loss and its gradients, or the error that was raised."""

    loss: float
    gradients: list[Tensor]
    error: str | None = None


def some_tensor(draw: random.Random, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers of a kind that breaks things, finite in the dtype."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    values = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    most = math.log10(torch.finfo(dtype).max) - 2
    kind = draw.choice(
        ["plain", "plain", "equal", "zero row", "zeros", "signs", "two", "scaled", "rows", "tiny",
         "near", "sparse", "integers"]
    )  # fmt: skip
    if kind == "equal":
        values[:] = values[0]
    elif kind == "zero row":
        values[draw.randrange(rows)] = 0
    elif kind == "zeros":
        values.zero_()
    elif kind == "signs":
        values = values.sign()
    elif kind == "two":
        values = values[torch.arange(rows) % 2]
    elif kind == "scaled":
        values = values * 10 ** draw.uniform(-most, most)
    elif kind == "rows":
        size = draw.choice([3, 20, most])
        exponents = torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 2 - 1
        values = values * 10 ** (exponents * min(size, most))
    elif kind == "tiny":
        values = values * torch.finfo(dtype).tiny * draw.choice([0.01, 1, 1e3])
    elif kind == "near":
        values = values[:1] + values * 10 ** draw.uniform(-17, -5)
    elif kind == "sparse":
        values = values * (values.abs() > 1)
    elif kind == "integers":
        values = values.round()
    largest = torch.finfo(dtype).max / 4
    return values.clamp(-largest, largest).to(dtype)


def random_call(seed: int) -> Call:
    """The call of this number."""
    draw = random.Random(seed)
    dtype = draw.choice(DTYPES)
    rows = draw.choice([2, 2, 3, 5, 9, 17])
    width, inputs = draw.choice([1, 1, 2, 3, 8]), draw.choice([1, 2, 6])
    tensors = [some_tensor(draw, rows, width, dtype) for _ in range(2)]
    if draw.random() < 0.3:
        tensors[1] = tensors[0].clone()
    ids = None
    if draw.random() < 0.2:
        ids = torch.tensor([draw.randrange(max(2, rows - 1)) for _ in range(rows)])
    options: dict[str, Any] = {
        "temperature": draw.choice([0.5, 0.5, 0.07, 0.01, 1.0, 10.0, 0.3]),
        "layout": draw.choice(["both", "both", "one-way", "symmetric"]),
        "tile": draw.choice(["auto", None, 1, 3]),
        "decoupled": draw.random() < 0.2,
        "class_prior": draw.choice([0.0, 0.0, 0.1, 0.5]),
    }
    kind = draw.choice(["UnReMix"] * 4 + ["InfoNCE", "HCL"])
    if kind == "UnReMix":
        components = ["uncertainty", "similarity", "representativeness"]
        chosen = tuple(draw.sample(components, draw.choice([1, 2, 3, 3, 3])))
        mixes: list[Any] = ["learned", "free", "fixed", "adversarial"]
        mixes.append(tuple(draw.choice([0.0, 1.0, 0.3]) for _ in chosen))
        if not any(mixes[-1]):
            mixes.pop()
        options |= {
            "components": chosen,
            "mix": draw.choice(mixes),
            "scaling": draw.choice(["minmax"] * 4 + ["zscore-exp", "none"]),
            "mass": draw.choice(["mean", "mean", "none"]),
            "posterior_temperature": draw.choice([1.0, 0.1, 5.0]),
            "gradient": draw.choice(["pseudo-label", "nt-xent"]),
            "bias": draw.random() < 0.7,
            "sketch": draw.choice([None, None, 2]),
        }
        if draw.random() < 0.8:
            tensors += [some_tensor(draw, rows, inputs, dtype) for _ in range(2)]
    elif kind == "HCL":
        options |= {"hardness": draw.choice([0.0, 0.5, 1.0, 4.0])}
    pairs, extra = None, {}
    if draw.random() < 0.3:
        positives = torch.zeros(rows, rows, dtype=torch.bool)
        positives[torch.arange(rows), torch.tensor([draw.randrange(rows) for _ in range(rows)])] = (
            True
        )
        negatives = torch.tensor([[draw.random() < 0.7 for _ in range(rows)] for _ in range(rows)])
        pairs = Pairs.from_masks(positives, negatives & ~positives)
        extra = {
            "logits": draw.choice(["cosine", "dot"]),
            "objective": draw.choice(["info-nce", "jsd"]),
            "positives_in_denominator": draw.random() < 0.3,
        }
    return Call(kind, options, tensors, ids, pairs, extra)


def run(call: Call, engine: str) -> Outcome:
    """Make the call with an engine, preferred where it serves."""
    losses: dict[str, Any] = {"UnReMix": UnReMixLoss, "InfoNCE": InfoNCELoss, "HCL": HCLLoss}
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = engine
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss_fn = losses[call.kind](**call.options)
            leaves = [each.clone().requires_grad_(at < 2) for at, each in enumerate(call.tensors)]
            if call.pairs is None:
                loss = loss_fn(*leaves, ids=call.ids)
            else:
                anchors, candidates = (Views(*leaves[at::2]) for at in range(2))
                loss = loss_fn.against(anchors, candidates, call.pairs, **call.extra)
            inputs = [*leaves[:2], *(each for each in loss_fn.parameters() if each.requires_grad)]
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    except ValueError as error:
        return Outcome(math.nan, [], str(error))
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
    return Outcome(loss.item(), [torch.zeros(1) if g is None else g.detach() for g in gradients])


def check_call(seed: int, engines: tuple[str, ...] = ("eager", "native")) -> str:
    """Make a call with all engines; 'refused' or 'agreed'.

    Raises:
        AssertionError: If a result is not finite, or engines disagree.
    """
    call = random_call(seed)
    outcomes = [run(call, engine) for engine in engines]
    for engine, outcome in zip(engines, outcomes, strict=True):
        if outcome.error is not None:
            assert outcome.error.startswith("expected "), f"call {seed}, {engine}: {outcome.error}"
            continue
        assert math.isfinite(outcome.loss), f"call {seed}, {engine}: loss {outcome.loss}"
        for place, gradient in enumerate(outcome.gradients):
            if gradient.dtype in (torch.float16, torch.bfloat16):
                continue  # of a short embedding it may be too large for the dtype
            assert gradient.isfinite().all(), f"call {seed}, {engine}: gradient {place} {gradient}"
    first = outcomes[0]
    for engine, other in zip(engines[1:], outcomes[1:], strict=True):
        assert (first.error is None) == (other.error is None), (
            f"call {seed}: {engines[0]} {first.error or first.loss}, {engine} "
            f"{other.error or other.loss}"
        )
        if first.error is None:
            _compare(call, first, other, f"call {seed}, {engine}")
    return "agreed" if first.error is None else "refused"


def _compare(call: Call, first: Outcome, other: Outcome, name: str) -> None:
    dtype = torch.float64 if call.tensors[0].dtype == torch.float64 else torch.float32
    sizes = [each.double().abs().amax(1, keepdim=True) for each in call.tensors[:2]]
    dot = call.extra.get("logits") == "dot"
    largest = 1.0  # of the products that logits are made of
    if dot:
        largest = float(sizes[0].max() * sizes[1].max()) * call.tensors[0].shape[1]
    logit = max(1.0, largest) / call.options["temperature"]
    tolerance = 64 * PRECISION[dtype] * (1 + logit)
    if tolerance > 1e-2:
        return  # rounding alone decides about so large a logit
    size = max(1.0, abs(first.loss))
    assert abs(first.loss - other.loss) <= tolerance * size, f"{name}: {first.loss} {other.loss}"
    for place, (one, two) in enumerate(zip(first.gradients, other.gradients, strict=True)):
        precision = max(PRECISION[dtype], torch.finfo(one.dtype).eps)
        same = one == two
        one, two = one.double().masked_fill(same, 0), two.double().masked_fill(same, 0)
        scale = 1 / call.options["temperature"]
        if place < 2 and dot:
            scale *= max(1e-300, float(sizes[1 - place].max()))
        elif place < 2:  # by its direction, since the length of an embedding divides the gradient
            one, two = one * sizes[place], two * sizes[place]
        scale = max(scale, float(one.abs().max()))
        error = float((one - two).abs().max())
        assert error <= 64 * precision * scale * (1 + logit), (
            f"{name}: gradient {place} differs by {error} of {scale}"
        )
