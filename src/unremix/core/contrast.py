"""The whole loss in one function: residuals, then block by block scores → weights → objective.

All statistics are per anchor, so a block of whole rows gives its part of the loss and of all
gradients in one go. An engine does that for a block: nothing of size (N, M) is kept, and the
backward pass only multiplies by the incoming scalar.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unremix.core.checks import checks_on, number
from unremix.core.engines import Engine, find_engine
from unremix.core.pairs import Pairs
from unremix.core.problem import (
    Options,
    Own,
    Rows,
    Views,
    check_pairs,
    check_shapes,
    make_block,
    settle_mix,
)
from unremix.core.residuals import blocks, with_residuals
from unremix.core.scores import Vectors, inner_products, normalize
from unremix.core.signals import kept
from unremix.core.weights import raw_scores, weigh


def rows_loss(
    anchors: Tensor,
    candidates: Tensor,
    mix: Tensor,
    temperature: Tensor | float,
    rows: Rows,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """The loss of B anchors: scores → weights → objective.

    Args:
        anchors: What the logits of the anchors are made of, f or z, shape (B, D).
        candidates: Likewise of the candidates, shape (M, D).
        mix: λ, shape (K,).
        temperature: τ.
        rows: Everything else about these anchors.
        options: How.

    Returns:
        The sum of the anchors' losses, and how many of them have negatives but no weight.
    """
    weighting, objective, negatives = options.weighting, options.objective, rows.negatives
    products = inner_products(anchors, candidates, rows.own_vectors)  # (B, M)
    block = make_block(products, anchors, candidates, rows, options)
    scores = raw_scores(block, weighting)
    keep = None if weighting.filter is None else kept(block, weighting.filter)
    weights = weigh(scores, negatives, rows.count, mix, weighting, temperature, keep)
    logits = products / temperature
    if rows.own_factor != 1:
        shared, own = logits[:, : len(candidates)], logits[:, len(candidates) :]
        logits = torch.cat([shared, rows.own_factor * own], dim=1)
    losses = objective.settle(
        objective.gather_negatives(logits, weights, negatives),
        logits.gather(1, rows.positives),
        rows.shares,
        rows.count[:, 0],
        -1 / temperature,
    )
    weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)
    if weighting.mass == "none":  # else such rows are uniform
        weightless = ((rows.count[:, 0] > 0) & (weights.sum(1) == 0)).sum()
    return losses.sum(), weightless


@dataclass(frozen=True)
class Problem:
    """A loss of N anchors, apart from what is differentiated.

    Args:
        pairs: Positives and negatives.
        options: How.
        anchors: N views.
        candidates: M views.
        own: The anchors' own candidates, of shape (N, S, ...).
        own_vectors: What their logits are made of, shape (N, S, D).
        own_factor: Multiplies their logits.
    """

    pairs: Pairs
    options: Options
    anchors: Vectors
    candidates: Vectors
    own: Vectors | None = None
    own_vectors: Tensor | None = None
    own_factor: float = 1.0

    def rows(self, which: slice = slice(None)) -> Rows:
        """Some of the anchors."""
        negatives, own_vectors = self.pairs.negatives(which), self.own_vectors
        if own_vectors is not None:
            own_vectors = own_vectors[which]
            negatives = torch.cat([negatives, negatives.new_ones(own_vectors.shape[:2])], dim=1)
        return Rows(
            anchors=self.anchors[which],
            candidates=self.candidates,
            own=None if self.own is None else self.own[which],
            own_vectors=own_vectors,
            own_factor=self.own_factor,
            negatives=negatives,
            count=negatives.sum(1, keepdim=True, dtype=torch.int32),
            non_negatives=None
            if self.pairs.non_negatives is None
            else self.pairs.non_negatives[which],
            positives=self.pairs.positives[which],
            shares=self.pairs.normalized_shares(which, dtype=self.anchors.units.dtype),
        )

    def blocks(self) -> Iterator[slice]:
        """The anchors, a block at a time."""
        device = self.anchors.units.device
        width = self.pairs.num_candidates
        if self.own_vectors is not None:
            width += self.own_vectors.shape[1]
        return blocks(self.pairs.num_anchors, width, self.options.tile, device)


def contrast(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    options: Options,
    *,
    temperature: Tensor | float = 0.5,
    mix: Tensor | None = None,
    own: Own | None = None,
    normalizer: float | None = None,
) -> Tensor:
    """The mean over anchors of a contrastive loss with weighted negatives.

    L = 1/N Σ_i -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_{j in Neg(i)} w_ij e^{s_ij/τ}) ) for InfoNCE.

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        options: Weighting, objective, and how to compute them.
        temperature: τ; gradient flows to it if it is a tensor.
        mix: λ, one number per component, none negative, shape (K,); gradient flows to it. Equal by
            default.
        own: Further negatives of each anchor alone.
        normalizer: Divides the sum over anchors; by default the number that have a positive.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: For shapes that do not fit, and, where checks are made, if no anchor has a
            positive, or none a negative.

    Relations:
        Without components, NT-Xent over the given pairs. With ``weights.hard_negatives(β)``, HCL.
        With ``positives_in_denominator`` and uniform weights, Quick-Thought's cross-entropy.

    Example:
        >>> views = Views(torch.eye(4))
        >>> contrast(views, views, Pairs.both_views(2), Options(), temperature=1.0)  # log 3
        tensor(1.0986)

    Reference:
        UnReMix, Eq. 1 and Algorithm 1.
    """
    if not isinstance(temperature, Tensor):
        temperature = number("temperature", temperature, above=0)
    check_shapes(anchors, candidates, own, pairs, options)
    check = checks_on(options.check, anchors.embeddings)
    if check:
        check_pairs(pairs, own)
    with full_precision(anchors.embeddings.device):
        like = anchors.embeddings
        shares = settle_mix(mix, options, like)
        engine = find_engine(options, like, own is not None, temperature)
        problem, vectors = pose(anchors, candidates, pairs, options, temperature, own, engine)
        if torch.compiler.is_compiling():
            total, weightless = _traced(problem, *vectors, shares, temperature)
        else:
            total, weightless = _Blockwise.apply(  # type: ignore[no-untyped-call]
                problem, engine, *vectors, shares, temperature
            )
        if normalizer is None:
            total = total / (pairs.shares > 0).any(1).sum().clamp(min=1)
        else:
            total = total / normalizer
    if check and options.weighting.mass == "none" and int(weightless):
        warnings.warn(
            f"{int(weightless)} of {pairs.num_anchors} anchors have only zero weights and "
            "contribute nothing; mass='mean' or another scaling avoids this",
            stacklevel=3,
        )
    return total


def pose(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    options: Options,
    temperature: Tensor | float,
    own: Own | None,
    engine: Engine,
) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """The problem, and what its logits are made of, with gradient: f or z of both sides.

    δ is derived where a component needs it and the views do not bring it.
    """
    units, first = describe(anchors)
    other_units, second = (units, first) if candidates is anchors else describe(candidates)
    own_units, third = (None, None) if own is None else describe(own)
    if options.weighting.needs_residuals:
        made = describe_layer(anchors)
        other_made = made if candidates is anchors else describe_layer(candidates)
        made, other_made, third = with_residuals(
            made, other_made, third, pairs, options, temperature, engine
        )
        first = replace(first, residuals=made.residuals)
        second = first if candidates is anchors else replace(second, residuals=other_made.residuals)
    vectors, own_vectors = (units, other_units), own_units
    if options.products == "dot":
        vectors = (anchors.embeddings, candidates.embeddings)
        own_vectors = None if own is None else own.embeddings
    return Problem(
        pairs,
        options,
        first,
        second,
        third,
        None if own_vectors is None else own_vectors.detach(),
        1.0 if own is None else own.logit_factor,
    ), vectors


def describe(views: Views | Own) -> tuple[Tensor, Vectors]:
    """Unit vectors with gradient, and all that is known of the views as constants."""
    units, lengths = normalize(views.embeddings)
    inputs = None if views.inputs is None else views.inputs.detach()
    known = (units.detach(), lengths.detach(), inputs)
    if isinstance(views, Own):
        return units, Vectors(*known, residuals=views.residuals)
    further = (views.ids, views.residuals, views.descriptors, views.thresholds)
    return units, Vectors(*known, *further)


def describe_layer(views: Views) -> Vectors:
    """What is known of the last layer's output for the views; δ is taken there."""
    if views.outputs is None:
        return describe(views)[1]
    outputs = views.outputs.detach().to(views.embeddings.dtype)
    return describe(replace(views, embeddings=outputs))[1]


def definition(
    anchors: Tensor,
    candidates: Tensor,
    mix: Tensor,
    temperature: Tensor | float,
    problem: Problem,
) -> Tensor:
    """The loss of all anchors at once, for autograd to differentiate any number of times.

    This is what UnReMix is; the engines compute the same without (N, M) arrays. The arguments are
    those of :func:`rows_loss`, for all anchors; so is what is returned, a sum.
    """
    return rows_loss(anchors, candidates, mix, temperature, problem.rows(), problem.options)[0]


class _Blockwise(torch.autograd.Function):
    """The sum of the anchors' losses, block by block; the forward pass makes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, engine: Engine, *tensors: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """See :func:`rows_loss` for the tensors: anchors, candidates, mix and temperature."""
        wanted = ctx.needs_input_grad[2:]
        anchors, *others = (each.detach() if isinstance(each, Tensor) else each for each in tensors)
        assert isinstance(anchors, Tensor)
        total = anchors.new_zeros(())
        weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)
        # Made beforehand: what is kept between blocks would leave holes among the arrays freed.
        whole = [
            torch.zeros_like(each) if want and isinstance(each, Tensor) else None
            for each, want in zip(tensors, wanted, strict=True)
        ]
        for which in problem.blocks():
            loss, none, gradients = engine.evaluate(
                rows_loss, (anchors[which], *others), wanted, problem.rows(which), problem.options
            )
            total += loss
            weightless += none
            for place, gradient in enumerate(gradients):
                gathered = whole[place]
                if gathered is not None and gradient is not None:
                    part = gathered[which] if place == 0 else gathered
                    part += gradient
        ctx.problem, ctx.wanted = problem, wanted
        ctx.temperature = tensors[3]
        ctx.save_for_backward(
            *(each if isinstance(each, Tensor) else None for each in tensors), *whole
        )
        ctx.mark_non_differentiable(weightless)
        return total, weightless

    @staticmethod
    def backward(ctx: Any, incoming: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients made in the forward pass, times the incoming scalar."""
        saved = ctx.saved_tensors
        tensors, gradients = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        if torch.is_grad_enabled():  # create_graph=True: the gradients of the definition
            # Aliases, since anchors and candidates may be one tensor.
            given: list[Any] = [each if each is None else each.view_as(each) for each in tensors]
            anchors, candidates, mix, temperature = given
            with full_precision(incoming.device):
                loss = definition(
                    anchors,
                    candidates,
                    mix,
                    ctx.temperature if temperature is None else temperature,
                    ctx.problem,
                )
                inputs = [each for each, want in zip(given, ctx.wanted, strict=True) if want]
                found = iter(
                    torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
                )
            gradients = [next(found) if want else None for want in ctx.wanted]
        return (None, None, *(None if each is None else each * incoming for each in gradients))


def _traced(problem: Problem, *tensors: Any) -> tuple[Tensor, Tensor]:
    """The same for ``torch.compile`` to trace: few blocks, each recomputed in the backward pass."""

    def block(
        which: slice, anchors: Tensor, candidates: Tensor, mix: Tensor, temperature: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        rows = problem.rows(which)
        return rows_loss(anchors[which], candidates, mix, temperature, rows, problem.options)

    slices = list(problem.blocks())
    if len(slices) == 1:
        return block(slices[0], *tensors)
    losses, weightless = zip(
        *(checkpoint(block, which, *tensors, use_reentrant=False) for which in slices), strict=True
    )
    return torch.stack(losses).sum(), torch.stack(weightless).sum()


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Compute in the precision of the tensors passed, whatever autocast says."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device_type=device.type, enabled=False)
