"""One kernel for every weighted contrastive loss and every size.

All statistics are per anchor, so a block of whole rows gives its part of the loss and of all
gradients in one go: scores, weights, loss, gradient to the embeddings and to the mix. Nothing of
size (N, M) is kept; a block stays in cache. The backward pass only multiplies by the incoming
scalar.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unremix.pairs import Pairs
from unremix.scores import Context, Gradient, Rows, Scratch, Views, make_context
from unremix.weights import (
    Weighting,
    Weights,
    mixed_gradient,
    score_gradient,
    share_gradient,
    weigh,
)

Tile = int | Literal["auto"] | None
Products = Literal["cosine", "dot"]


@dataclass(frozen=True)
class Outcome:
    """What an objective makes of a block.

    Args:
        loss: Per anchor, shape (B,).
        to_logits: ∂loss/∂logits of the negatives, shape (B, M); 0 elsewhere.
        to_positives: ∂loss/∂logits of the positives, shape (P,).
        to_weights: ∂loss/∂values of the weights through their mass, shape (B, M), where asked.
    """

    loss: Tensor
    to_logits: Tensor
    to_positives: Tensor
    to_weights: Tensor | None


class Objective(Protocol):
    """A loss per anchor of the logits of its positives and its weighted negatives."""

    def __call__(
        self,
        logits: Tensor,
        positives: Tensor,
        weights: Weights,
        rows: Rows,
        *,
        mass: bool,
        differentiate_weights: bool,
    ) -> Outcome:
        """Loss and gradients.

        Args:
            logits: Shape (B, M), filled; may be overwritten.
            positives: Logits of the positives, shape (P,).
            weights: Weights of the negatives.
            rows: The block.
            mass: Whether the weights are normalised to mean 1.
            differentiate_weights: Whether the gradient to the weights is wanted.
        """
        ...


@dataclass(frozen=True)
class Problem:
    """Everything about a loss that is not differentiated.

    Args:
        context: What the scores are computed from.
        weighting: How scores become weights.
        objective: The loss per anchor.
        temperature: Divides the logits.
        normaliser: Divides the sum of the anchors' losses.
        tile: Rows per block; None for all at once.
        needs_gradient: Whether gradients are wanted at all.
    """

    context: Context
    weighting: Weighting
    objective: Objective
    temperature: float
    normaliser: float
    tile: int | None
    needs_gradient: bool


def cache_tile(num_candidates: int, element_size: int, budget: int = 4 * 2**20) -> int:
    """Rows per block for which one (B, M) array takes about ``budget`` bytes.

    At least 256: below, the matrix products lose more than the sweeps gain.
    """
    return max(256, budget // max(1, num_candidates * element_size))


def score_rows(rows: Rows, context: Context, weighting: Weighting) -> list[Tensor]:
    """Raw scores of a block, each (B, M), filled."""
    scores = []
    for component in weighting.resolved:
        score = component.score(rows, context)
        scores.append(score if score is rows.similarity else rows.block.fill(score.contiguous()))
    return scores


class Contrast(torch.autograd.Function):
    """Σ over anchors of an objective on weighted negatives; see :class:`Problem`."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        anchors: Tensor,
        candidates: Tensor,
        anchor_units: Tensor | None,
        candidate_units: Tensor | None,
        mix: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Loss, and how many anchors have only zero weights.

        Args:
            ctx: Autograd's context.
            problem: All that is not differentiated.
            anchors: Vectors whose products are the logits, shape (N, D).
            candidates: Likewise, shape (M, D).
            anchor_units: f of the anchors where the logits are raw products, shape (N, D); None
                where ``anchors`` are f themselves.
            candidate_units: Likewise, shape (M, D).
            mix: λ, shape (K,).
        """
        context, weighting, pairs = problem.context, problem.weighting, problem.context.pairs
        raw_products = anchor_units is not None
        similarity_index = weighting.similarity_index
        learn_mix = mix is not None and problem.needs_gradient and ctx.needs_input_grad[5]
        differentiate_weights = problem.needs_gradient and (
            learn_mix or similarity_index is not None
        )
        to_anchors = torch.zeros_like(anchors) if problem.needs_gradient else None
        to_candidates = torch.zeros_like(candidates) if problem.needs_gradient else None
        split = raw_products and similarity_index is not None and problem.needs_gradient
        to_anchor_units = torch.zeros_like(anchors) if split else None
        to_candidate_units = torch.zeros_like(candidates) if split else None
        to_mix = torch.zeros_like(mix) if mix is not None else None
        loss = torch.zeros((), dtype=torch.float64, device=anchors.device)
        weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)

        scratch = Scratch(slots=7)
        for block in pairs.blocks(problem.tile):
            own = anchors[block.anchors]
            shape = (own.shape[0], pairs.num_candidates)
            products = torch.mm(own, candidates.T, out=scratch.take("products", shape, own))
            positives = products.view(-1)[block.positive].mul_(1 / problem.temperature)
            block.fill(products)
            rows = Rows(block, products, scratch)
            if raw_products:
                similarity = context.anchor_units[block.anchors] @ context.candidate_units.T
                rows = Rows(block, block.fill(similarity), scratch)
            weights = weigh(rows, score_rows(rows, context, weighting), mix, weighting)
            logits = torch.mul(products, 1 / problem.temperature, out=rows.empty("logits"))
            weightless += ((weights.total <= 0) & (block.count > 0)).sum()
            outcome = problem.objective(
                logits,
                positives,
                weights,
                rows,
                mass=weighting.mass == "mean",
                differentiate_weights=differentiate_weights,
            )
            loss += outcome.loss.sum(dtype=torch.float64)
            if to_anchors is None or to_candidates is None:
                continue
            flow = outcome.to_logits
            flow.view(-1)[block.positive] = outcome.to_positives
            if outcome.to_weights is not None and mix is not None and to_mix is not None:
                to_mixed = mixed_gradient(outcome.to_weights, weights, weighting)
                if learn_mix:
                    to_mix += share_gradient(to_mixed, weights.scaled, rows)
                if similarity_index is not None:
                    through = score_gradient(
                        to_mixed.mul_(mix[similarity_index]),
                        weights.scaled[similarity_index],
                        block,
                        weighting.scaling,
                    )
                    if to_anchor_units is None or to_candidate_units is None:
                        flow.add_(through, alpha=problem.temperature)
                    else:
                        to_anchor_units[block.anchors] = through @ context.candidate_units
                        to_candidate_units.addmm_(through.T, context.anchor_units[block.anchors])
            to_anchors[block.anchors] = flow @ candidates
            to_candidates.addmm_(flow.T, own)

        # ``flow`` is the gradient to the logits, which are products divided by the temperature.
        for gradient in (to_anchors, to_candidates):
            if gradient is not None:
                gradient.div_(problem.temperature)
        gradients = (to_anchors, to_candidates, to_anchor_units, to_candidate_units, to_mix)
        for gradient in gradients:
            if gradient is not None:
                gradient.div_(problem.normaliser)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(weightless)
        return (loss / problem.normaliser).to(anchors.dtype), weightless

    @staticmethod
    def backward(ctx: Any, incoming: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients made in the forward pass, times the incoming scalar."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected a first derivative, received create_graph=True: the gradients are made "
                "in the forward pass and cannot be differentiated again; leave create_graph out"
            )
        return (None, *(None if g is None else g * incoming for g in ctx.saved_tensors))


def rows_per_block(tile: Tile, num_candidates: int, element_size: int) -> int | None:
    """The number of rows that ``tile`` stands for; ``auto`` is sized to the cache."""
    return cache_tile(num_candidates, element_size) if tile == "auto" else tile


def contrast(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    objective: Objective,
    *,
    temperature: float,
    weighting: Weighting,
    mix: Tensor | None,
    products: Products,
    posterior_temperature: float,
    gradient: Gradient,
    bias: bool,
    normaliser: float | None,
    tile: Tile,
) -> Tensor:
    """Mean over the anchors of an objective on weighted negatives: scores, weights, loss.

    The arguments are those of :func:`unremix.losses.info_nce.info_nce`.
    """
    if pairs.num_anchors == 0 or len(pairs.positives) == 0:
        raise ValueError(
            f"expected anchors with a positive, received {pairs.num_anchors} anchors and "
            "no positive pair; check the pairs"
        )
    if int(pairs.negative_count.max()) == 0:
        raise ValueError(
            "expected at least one negative, received none for any anchor; "
            "use a batch of two samples or more, or check the masks"
        )
    rows = rows_per_block(tile, pairs.num_candidates, anchors.embeddings.element_size())
    context = make_context(
        anchors,
        candidates,
        pairs,
        needs_residuals=weighting.needs_residuals,
        posterior_temperature=posterior_temperature,
        gradient=gradient,
        bias=bias,
        tile=rows,
    )
    if normaliser is None:
        normaliser = float((pairs.positive_count > 0).sum())
    vectors: tuple[Tensor | None, ...]
    if products == "cosine":
        vectors = (anchors.units, candidates.units, None, None)
    else:
        vectors = (anchors.embeddings, candidates.embeddings, anchors.units, candidates.units)
    problem = Problem(
        context, weighting, objective, temperature, normaliser, rows, torch.is_grad_enabled()
    )
    loss: Tensor
    shares = weighting.shares(mix, anchors.units)
    loss, weightless = Contrast.apply(problem, *vectors, shares)  # type: ignore[no-untyped-call]
    if int(weightless):
        warnings.warn(
            f"{int(weightless)} of {pairs.num_anchors} anchors have only zero weights and "
            "contribute nothing; mass='mean' or another scaling avoids this",
            stacklevel=3,
        )
    return loss
