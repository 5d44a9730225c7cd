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

from unremix.pairs import Block, Pairs
from unremix.scores import (
    Context,
    Gradient,
    Own,
    Rows,
    Scored,
    Scratch,
    Views,
    inner_products,
    make_context,
    normalise_backward,
)
from unremix.weights import (
    Weighting,
    Weights,
    implied_share,
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

    @property
    def takes_exponentials(self) -> bool:
        """Whether it makes do with e^logits of the negatives, where they are at hand."""
        ...

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
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        own: Further candidates of each anchor alone.
        context: What the scores are computed from.
        weighting: How scores become weights.
        objective: The loss per anchor.
        temperature: Divides the logits.
        products: What the logits are made of.
        normaliser: Divides the sum of the anchors' losses.
        tile: Rows per block; None for all at once.
        needs_gradient: Whether gradients are wanted at all.
    """

    anchors: Views
    candidates: Views
    own: Own | None
    context: Context
    weighting: Weighting
    objective: Objective
    temperature: float
    products: Products
    normaliser: float
    tile: int | None
    needs_gradient: bool


def cache_tile(num_candidates: int, element_size: int, budget: int = 4 * 2**20) -> int:
    """Rows per block for which one (B, M) array takes about ``budget`` bytes.

    At least 256: below, the matrix products lose more than the sweeps gain.
    """
    return max(256, budget // max(1, num_candidates * element_size))


def score_rows(rows: Rows, context: Context, weighting: Weighting) -> list[Scored]:
    """Raw scores of a block."""
    scores = []
    for component in weighting.resolved:
        score = component.score(rows, context)
        if not isinstance(score, Scored):
            filled = score is rows.similarity
            score = Scored(score if filled else rows.block.fill(score.contiguous()))
        scores.append(score)
    return scores


class Flow:
    """Gradients to anchors and candidates, gathered block by block from those to their products.

    Args:
        anchors: Vectors, shape (N, D).
        candidates: Vectors, shape (M, D).
        own: Each anchor's own, shape (N, S, D), which gets no gradient.
        factor: Multiplies the gradients.
    """

    def __init__(
        self, anchors: Tensor, candidates: Tensor, own: Tensor | None, factor: float
    ) -> None:
        self.anchors, self.candidates, self.own, self.factor = anchors, candidates, own, factor
        self.shared = anchors is candidates
        self.to_anchors = torch.empty_like(anchors)
        self.to_candidates = None if self.shared else torch.zeros_like(candidates)

    def add(self, gradient: Tensor, rows: Rows) -> None:
        """Add a block's part, from the gradient to its products, shape (B, M)."""
        count, block = self.candidates.shape[0], rows.block
        if self.shared and gradient.shape == (count, count):  # all in one block: multiply once
            both = torch.add(gradient, gradient.T, out=rows.empty("temporary"))
            torch.mm(both, self.anchors, out=self.to_anchors)
            return
        if self.to_candidates is None:
            self.to_candidates = torch.zeros_like(self.candidates)
        to_shared = gradient[:, :count]
        out = block.take(self.to_anchors) if block.in_order else None
        part = torch.mm(to_shared, self.candidates, out=out)
        if self.own is not None:
            part += torch.einsum("bs,bsd->bd", gradient[:, count:], block.take(self.own))
        if not block.in_order:
            self.to_anchors[block.anchors] = part
        self.to_candidates.addmm_(to_shared.T, block.take(self.anchors))

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """To the anchors; to the candidates, None where they are the anchors themselves."""
        if self.shared and self.to_candidates is not None:
            return self.to_anchors.add_(self.to_candidates).mul_(self.factor), None
        to_candidates = self.to_candidates
        if to_candidates is not None:
            to_candidates.mul_(self.factor)
        return self.to_anchors.mul_(self.factor), to_candidates


class Contrast(torch.autograd.Function):
    """Σ over anchors of an objective on weighted negatives; see :class:`Problem`."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        anchors: Tensor,
        candidates: Tensor | None,
        mix: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Loss, and how many anchors have only zero weights.

        Args:
            ctx: Autograd's context.
            problem: All that is not differentiated.
            anchors: z of the anchors, shape (N, D).
            candidates: z of the candidates, shape (M, D); None where they are the anchors.
            mix: λ, shape (K,).
        """
        context, weighting, pairs = problem.context, problem.weighting, problem.context.pairs
        cosine, inverse_temperature = problem.products == "cosine", 1 / problem.temperature
        similarity_index = weighting.similarity_index
        learn_mix = mix is not None and problem.needs_gradient and ctx.needs_input_grad[3]
        differentiate_weights = problem.needs_gradient and (
            learn_mix or similarity_index is not None
        )
        units = (context.anchor_units, context.candidate_units, context.own_units)
        vectors = units
        if not cosine:
            other = anchors if candidates is None else candidates
            vectors = (anchors, other, None if problem.own is None else problem.own.embeddings)
        flow = None
        if problem.needs_gradient:
            flow = Flow(*vectors, inverse_temperature / problem.normaliser)
        through_units = flow
        if not cosine and similarity_index is not None and problem.needs_gradient:
            through_units = Flow(*units, 1 / problem.normaliser)
        to_mix = implied = None
        if mix is not None and learn_mix:
            to_mix, implied = torch.zeros_like(mix), implied_share(mix, weighting)
        loss = torch.zeros((), dtype=torch.float64, device=anchors.device)
        weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)

        scratch = Scratch(slots=7)
        for block in pairs.blocks(problem.tile):
            if cosine or weighting.components:
                similarity = _products(units, block, scratch, "similarity", context.similarity)
                products = similarity
                if not cosine:
                    products = _dots(similarity, problem, vectors, block, scratch)
            else:  # no score looks at the similarity
                products = similarity = _products(vectors, block, scratch, "products")
            positives = products.view(-1).index_select(0, block.positive).mul_(inverse_temperature)
            exponentials = _exponentials(problem, block, scratch)
            rows = Rows(block, block.fill(similarity), scratch, exponentials)
            weights = weigh(rows, score_rows(rows, context, weighting), mix, weighting)
            if products is not similarity:
                block.fill(products)
            logits = products
            if exponentials is None:  # else they serve in place of the logits
                if products is similarity and weighting.components:  # a score, needed later
                    logits = torch.mul(products, inverse_temperature, out=rows.empty("logits"))
                elif problem.temperature != 1:
                    logits = products.mul_(inverse_temperature)
            scaled_own = problem.own is not None and problem.own.logit_factor != 1
            if scaled_own and problem.own is not None:
                logits[:, -pairs.own :] *= problem.own.logit_factor
                block.fill(logits)
            if weighting.mass == "none":  # where it is normalised, such rows became uniform
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
            if flow is None or through_units is None:
                continue
            # To the products times 1/τ, which are the logits; the flow knows that factor.
            to_products = outcome.to_logits
            if scaled_own and problem.own is not None:
                to_products[:, -pairs.own :] *= problem.own.logit_factor
            to_products.view(-1).index_copy_(0, block.positive, outcome.to_positives)
            scaled = weights.scaled
            if outcome.to_weights is not None and scaled is not None and mix is not None:
                to_mixed = mixed_gradient(outcome.to_weights, weights, weighting)
                if to_mix is not None:
                    to_mix += share_gradient(to_mixed, scaled, rows, implied)
                if similarity_index is not None:
                    to_similarity = score_gradient(
                        to_mixed.mul_(mix[similarity_index]),
                        scaled,
                        similarity_index,
                        block,
                        weighting.scaling,
                    )
                    if through_units is flow:
                        to_products.add_(to_similarity, alpha=problem.temperature)
                    else:
                        through_units.add(to_similarity, rows)
            flow.add(to_products, rows)

        if flow is None or through_units is None:
            return (loss / problem.normaliser).to(anchors.dtype), weightless
        gradients = _to_embeddings(problem, flow, through_units)
        if to_mix is not None and mix is not None:
            to_mix.div_(problem.normaliser)
            if implied is not None:  # still 0, and Σ_k λ_k ∂L/∂λ_k is 0
                to_mix[implied] = torch.dot(to_mix, mix) / -mix[implied]
        ctx.save_for_backward(*gradients, to_mix)
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


def _products(
    vectors: tuple[Tensor, Tensor, Tensor | None],
    block: Block,
    scratch: Scratch,
    name: str,
    at_hand: Tensor | None = None,
) -> Tensor:
    """Inner products of a block's anchors with their candidates, shape (B, M)."""
    anchors, candidates, own = vectors
    if at_hand is not None:
        if block.in_order:
            return block.take(at_hand)
        out = scratch.take(name, (block.anchors.numel(), candidates.shape[0]), at_hand)
        return torch.index_select(at_hand, 0, block.anchors, out=out)
    part = block.take(anchors)
    own = None if own is None else block.take(own)
    width = candidates.shape[0] + (0 if own is None else own.shape[1])
    out = scratch.take(name, (part.shape[0], width), part)
    return inner_products(part, candidates, own, out=out)


def _exponentials(problem: Problem, block: Block, scratch: Scratch) -> Tensor | None:
    """e^{s/τ} of a block, shape (B, M), as a power of e^{s/t} where that is at hand.

    With the defaults, t = 1 and τ = 0.5, it is the square.
    """
    at_hand = problem.context.exponentials
    power = problem.context.posterior_temperature / problem.temperature
    if at_hand is None or power not in (1, 2) or problem.products != "cosine":
        return None
    if not problem.objective.takes_exponentials:
        return None
    part = block.take(at_hand)
    if power == 1:
        return part
    out = scratch.take("logits", (part.shape[0], part.shape[1]), part)
    return torch.mul(part, part, out=out)


def _dots(
    similarity: Tensor,
    problem: Problem,
    vectors: tuple[Tensor, Tensor, Tensor | None],
    block: Block,
    scratch: Scratch,
) -> Tensor:
    """z·z of a block, shape (B, M): the similarities times the lengths, cheaper than a product."""
    if problem.own is not None:
        return _products(vectors, block, scratch, "products")
    out = scratch.take("products", (similarity.shape[0], similarity.shape[1]), similarity)
    torch.mul(similarity, block.take(problem.anchors.lengths)[:, None], out=out)
    return out.mul_(problem.candidates.lengths)


def _to_embeddings(
    problem: Problem, flow: Flow, through_units: Flow
) -> tuple[Tensor, Tensor | None]:
    """Gradients to the embeddings z: directly, and through their unit vectors."""

    def backward(gradient: Tensor | None, views: Views) -> Tensor | None:
        return (
            None if gradient is None else normalise_backward(gradient, views.units, views.lengths)
        )

    views = (problem.anchors, problem.candidates)
    if problem.products == "cosine":
        parts = [backward(part, of) for part, of in zip(flow.gradients(), views, strict=True)]
    else:
        parts = list(flow.gradients())
        if through_units is not flow:
            for number, (part, of) in enumerate(zip(through_units.gradients(), views, strict=True)):
                further, direct = backward(part, of), parts[number]
                if further is not None and direct is not None:
                    direct.add_(further)
    to_anchors, to_candidates = parts
    assert to_anchors is not None
    return to_anchors, to_candidates


def rows_per_block(tile: Tile, num_candidates: int, element_size: int) -> int | None:
    """The number of rows that ``tile`` stands for; ``auto`` is sized to the cache."""
    return cache_tile(num_candidates, element_size) if tile == "auto" else tile


def contrast(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    objective: Objective,
    *,
    own: Own | None = None,
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
    if own is not None:
        pairs = pairs.with_own(own.embeddings.shape[1])
    if pairs.most_negatives == 0:
        raise ValueError(
            "expected at least one negative, received none for any anchor; "
            "use a batch of two samples or more, or check the masks"
        )
    rows = rows_per_block(tile, pairs.num_candidates, anchors.embeddings.element_size())
    context = make_context(
        anchors,
        candidates,
        pairs,
        own,
        needs_residuals=weighting.needs_residuals,
        posterior_temperature=posterior_temperature,
        gradient=gradient,
        bias=bias,
        tile=rows,
    )
    problem = Problem(
        anchors,
        candidates,
        own,
        context,
        weighting,
        objective,
        temperature,
        products,
        pairs.answered if normaliser is None else normaliser,
        rows,
        torch.is_grad_enabled(),
    )
    loss: Tensor
    shares = weighting.shares(mix, anchors.units)
    others = None if candidates is anchors else candidates.embeddings
    loss, weightless = Contrast.apply(  # type: ignore[no-untyped-call]
        problem, anchors.embeddings, others, shares
    )
    if int(weightless):
        warnings.warn(
            f"{int(weightless)} of {pairs.num_anchors} anchors have only zero weights and "
            "contribute nothing; mass='mean' or another scaling avoids this",
            stacklevel=3,
        )
    return loss
