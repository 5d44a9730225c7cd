"""One kernel for every weighted contrastive loss and every size.

All statistics are per anchor, so a block of whole rows gives its part of the loss and of all
gradients in one go: scores, weights, loss, gradient to the embeddings and to the mix. Nothing of
size (N, M) is kept; a block stays in cache. The backward pass only multiplies by the incoming
scalar.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unremix import native
from unremix.pairs import Block, Pairs
from unremix.scores import (
    OURS,
    Context,
    Gradient,
    Own,
    Rows,
    Scored,
    Scratch,
    Views,
    inner_products,
    make_context,
    noise,
    normalise_backward,
)
from unremix.weights import (
    Weighting,
    Weights,
    implied_share,
    log_normaliser,
    magnitudes_of,
    mixed_gradient,
    score_gradient,
    share_gradient,
    weigh,
    weight_floor,
)

Tile = int | Literal["auto"] | None
Products = Literal["cosine", "dot"]


@dataclass(frozen=True)
class Rise:
    """φ of the logits x of a block, by which a negative raises the loss.

    Args:
        values: φ(x), shape (B, M).
        slope: φ'(x), shape (B, M); the same array where φ is its own derivative.
        highest: What was taken off the logits first, shape (B,); None: nothing.
    """

    values: Tensor
    slope: Tensor
    highest: Tensor | None = None


@dataclass(frozen=True)
class Sums:
    """The weighted negatives of each anchor, summed up.

    Args:
        total: Σ_j w_j, before the weights are normalised, shape (B,).
        weighted: Σ_j w_j φ_j, likewise, shape (B,).
        known: Logarithm of what both are still to be multiplied by, shape (B,); None: that which
            makes the mean weight 1.
        highest: What was taken off the logits before their exponential, shape (B,).
    """

    total: Tensor
    weighted: Tensor
    known: Tensor | None = None
    highest: Tensor | None = None

    def log_factor(self, block: Block) -> Tensor:
        """Logarithm of what Σ_j w_j φ_j is still to be multiplied by, shape (B,)."""
        log_factor = log_normaliser(self.total, block) if self.known is None else self.known
        return log_factor if self.highest is None else log_factor + self.highest

    def per_negative(self, block: Block) -> Tensor:
        """w/n per unit of w as it stands in the sums, shape (B,)."""
        if self.known is None:
            return self.total.clamp(min=torch.finfo(self.total.dtype).tiny).reciprocal_()
        return self.known.exp() / block.count[:, 0].clamp(min=1)


@dataclass(frozen=True)
class Settled:
    """What an objective makes of the sums.

    Args:
        loss: Per anchor, shape (B,).
        scale: ∂loss/∂(Σ_j w_j φ_j), shape (B,).
        to_positives: ∂loss/∂logits of the positives, shape (P,).
    """

    loss: Tensor
    scale: Tensor
    to_positives: Tensor


class Objective(Protocol):
    """A loss per anchor of the logits of its positives and of Σ_j w_j φ(x_j) over its negatives."""

    @property
    def estimate(self) -> native.Estimate:
        """Which φ."""
        ...

    @property
    def least(self) -> float:
        """The part of φ that counts for nothing: w_j (φ_j - least) is what a negative adds."""
        ...

    @property
    def takes_exponentials(self) -> bool:
        """Whether it makes do with e^logits of the negatives, where they are at hand."""
        ...

    def extreme(self, dtype: torch.dtype) -> bool:
        """Whether the exponentials of a row may span more than numbers can."""
        ...

    def rise(self, logits: Tensor, weights: Weights, rows: Rows) -> Rise:
        """φ and φ' of the logits.

        Args:
            logits: Shape (B, M), filled; may be overwritten.
            weights: Weights of the negatives.
            rows: The block.
        """
        ...

    def settle(self, sums: Sums, positives: Tensor, block: Block) -> Settled:
        """Loss and gradients from the sums.

        Args:
            sums: Of the negatives.
            positives: Logits of the positives, shape (P,).
            block: The rows.
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

    @cached_property
    def compiled(self) -> bool:
        """Whether compiled code serves: for weights that are uniform or a mix, scaled to [0, 1]."""
        weighting = self.weighting
        mixed = (
            weighting.scaling == "minmax"
            and weighting.sharpness is None
            and weighting.similarity_index is None
            and len(weighting.components) <= native.MOST_COMPONENTS
        )
        plain = mixed or not weighting.components
        return plain and self.own is None and native.ready(self.candidates.embeddings)


def cache_tile(num_candidates: int, element_size: int, budget: int = 4 * 2**20) -> int:
    """Rows per block for which one (B, M) array takes about ``budget`` bytes.

    At least 256: below, the matrix products lose more than the sweeps gain.
    """
    return max(256, budget // max(1, num_candidates * element_size))


def score_rows(
    rows: Rows, context: Context, weighting: Weighting, *, filled: bool = True
) -> list[Scored]:
    """Raw scores of a block.

    Args:
        rows: The block.
        context: What the scores are computed from.
        weighting: Names the components.
        filled: Whether candidates that are not negatives take the score of one that is.
    """
    scores = []
    for component in weighting.resolved:
        score = component.score(rows, context)
        if not isinstance(score, Scored):
            score = Scored(score.contiguous())
        if component not in OURS:
            score = _plain(score, rows)
        if filled and score.lines is None and score.table is not rows.similarity:
            rows.block.fill(score.values)
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
        scored = cosine or bool(weighting.components)  # else nothing looks at unit vectors
        own = None if problem.own is None else problem.own.embeddings
        units = vectors = (anchors, anchors if candidates is None else candidates, own)
        if scored:
            units = (context.anchor_units, context.candidate_units, context.own_units)
        if cosine:
            vectors = units
        flow = None
        if problem.needs_gradient:
            flow = Flow(*vectors, inverse_temperature / problem.normaliser)
        through_units = flow
        if not cosine and similarity_index is not None and problem.needs_gradient:
            through_units = Flow(*units, 1 / problem.normaliser)
        to_mix = implied = None
        if mix is not None and learn_mix:
            to_mix = torch.zeros_like(mix)
            implied = None if problem.compiled else implied_share(mix, weighting)
        loss = torch.zeros((), dtype=torch.float64, device=anchors.device)
        weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)

        scratch = Scratch(slots=8, keep="blocks")
        for block in pairs.blocks(problem.tile):
            if scored:
                similarity = _products(units, block, scratch, "similarity", context.similarity)
            else:
                similarity = _products(vectors, block, scratch, "products")
            if problem.compiled:
                logits = native.Logits(similarity, inverse_temperature)
                if scored and not cosine:
                    lengths = (block.take(problem.anchors.lengths), problem.candidates.lengths)
                    logits = native.Logits(similarity, inverse_temperature, *lengths)
                positives = native.pick(logits, block.positive)
                if any(component not in OURS for component in weighting.resolved):
                    block.fill(similarity)
                rows = Rows(block, similarity, scratch)
                swept = _sweep(problem, rows, logits, mix, differentiate=learn_mix)
            else:
                products = similarity
                if scored and not cosine:
                    products = _dots(similarity, problem, vectors, block, scratch)
                positives = products.view(-1).index_select(0, block.positive)
                positives.mul_(inverse_temperature)
                exponentials = _exponentials(problem, block, scratch)
                rows = Rows(block, block.fill(similarity), scratch, exponentials)
                swept = _sweep_in_torch(problem, rows, products, mix)
            if weighting.mass == "none":  # where it is normalised, such rows became uniform
                weightless += ((swept.sums.total <= 0) & (block.count[:, 0] > 0)).sum()
            settled = problem.objective.settle(swept.sums, positives, block)
            loss += settled.loss.sum(dtype=torch.float64)
            if flow is None or through_units is None:
                continue
            # To the products times 1/τ, which are the logits; the flow knows that factor.
            to_products = swept.slopes.mul_(settled.scale[:, None])
            if problem.own is not None and problem.own.logit_factor != 1:
                to_products[:, -pairs.own :] *= problem.own.logit_factor
            to_products.view(-1).index_copy_(0, block.positive, settled.to_positives)
            if swept.along is not None and to_mix is not None:
                to_mix += swept.along @ settled.scale
            elif swept.weights is not None and mix is not None and differentiate_weights:
                to_mixed = _to_mixed(swept, settled, problem, block)
                scaled = swept.weights.scaled
                assert scaled is not None
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

        scratch.release()
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


@dataclass(frozen=True)
class Swept:
    """What a sweep over the negatives of a block makes.

    Args:
        sums: Per anchor.
        slopes: w_j φ'_j, shape (B, M); 0 where there is no negative.
        along: Σ_j (φ_j - c) C^k_j, shape (K, B): the gradient to λ up to the objective's scale.
        weights: The weights, where the gradient through them is still to be made ...
        rise: ... and φ, shape (B, M), for it.
    """

    sums: Sums
    slopes: Tensor
    along: Tensor | None = None
    weights: Weights | None = None
    rise: Tensor | None = None


def _sweep(
    problem: Problem,
    rows: Rows,
    logits: native.Logits,
    mix: Tensor | None,
    *,
    differentiate: bool,
) -> Swept:
    """Scores, weights and sums of a block, in compiled code.

    Args:
        problem: The loss.
        rows: The block; its similarities are overwritten where there is no negative.
        logits: How the logits follow from the similarities.
        mix: λ, shape (K,).
        differentiate: Whether the gradient to λ is wanted.
    """
    block, weighting, objective = rows.block, problem.weighting, problem.objective
    mixture = None
    if mix is not None:
        mixture = native.Mixture(
            tuple(score_rows(rows, problem.context, weighting, filled=False)),
            mix.contiguous(),
            magnitudes_of(weighting, mix),
            noise(mix.dtype),
            weight_floor(mix),
        )
    swept = native.sweep(
        logits,
        block.masked,
        mixture,
        estimate=objective.estimate,
        bounded=objective.takes_exponentials,
        extreme=objective.extreme(rows.similarity.dtype),
        centre=None if weighting.mass == "mean" else objective.least,
        differentiate=differentiate,
        out=rows.empty("values"),
    )
    known = None if weighting.mass == "mean" else torch.zeros_like(swept.total)
    highest = None if objective.takes_exponentials else swept.highest
    sums = Sums(swept.total, swept.weighted, known, highest)
    return Swept(sums, swept.slopes, swept.along)


def _plain(score: Scored, rows: Rows) -> Scored:
    """A score that is not ours, as an array: checked, and to be filled."""
    values, shape = score.values, tuple(rows.similarity.shape)
    if tuple(values.shape) != shape:
        raise ValueError(
            f"expected a score of shape {shape}, one row per anchor and one column per candidate, "
            f"received {tuple(values.shape)}; check the functions in components="
        )
    return Scored(values.to(rows.similarity.dtype).contiguous())


def _sweep_in_torch(problem: Problem, rows: Rows, products: Tensor, mix: Tensor | None) -> Swept:
    """The same in torch, for every device, dtype and weighting.

    Args:
        problem: The loss.
        rows: The block.
        products: The logits times τ, shape (B, M); may be the similarities.
        mix: λ, shape (K,).
    """
    block, weighting, own = rows.block, problem.weighting, problem.own
    weights = weigh(rows, score_rows(rows, problem.context, weighting), mix, weighting)
    if products is not rows.similarity:
        block.fill(products)
    logits = products
    if rows.exponentials is None:  # else they serve in place of the logits
        if products is rows.similarity and weighting.components:  # a score, needed later
            logits = torch.mul(products, 1 / problem.temperature, out=rows.empty("logits"))
        elif problem.temperature != 1:
            logits = products.mul_(1 / problem.temperature)
    if own is not None and own.logit_factor != 1:
        logits[:, -own.embeddings.shape[1] :] *= own.logit_factor
        block.fill(logits)
    rise = problem.objective.rise(logits, weights, rows)
    slopes = rise.slope
    if weights.values is None:
        weighted = block.blank(rise.values)
        if slopes is not rise.values:
            block.blank(slopes)
    else:
        weighted = torch.mul(weights.values, rise.values, out=rows.empty("weighted"))
        slopes = weighted if slopes is rise.values else slopes.mul_(weights.values)
    sums = Sums(weights.total[:, 0], weighted.sum(1), weights.log_factor[:, 0], rise.highest)
    if weights.scaled is None:
        return Swept(sums, slopes)
    return Swept(sums, slopes, None, weights, rise.values)


def _to_mixed(swept: Swept, settled: Settled, problem: Problem, block: Block) -> Tensor:
    """Gradient to the mix Σ_k λ_k C^k, shape (B, M), through the weights; overwrites φ."""
    assert swept.rise is not None
    assert swept.weights is not None
    sums, centre = swept.sums, problem.objective.least
    rise = swept.rise
    if problem.weighting.mass == "mean":  # raising one weight lowers the others
        tiny = torch.finfo(sums.total.dtype).tiny
        rise = rise.sub_((sums.weighted / sums.total.clamp(min=tiny))[:, None])
    elif centre:
        rise = rise.sub_(centre)
    to_weights = block.blank(rise.mul_(settled.scale[:, None]))
    return mixed_gradient(to_weights, swept.weights, problem.weighting)


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


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """The losses compute in the precision of what they are handed, whatever autocast says."""
    with torch.autocast(device_type=device.type, enabled=False):
        yield


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
    with full_precision(anchors.embeddings.device):
        rows = rows_per_block(tile, pairs.num_candidates, anchors.embeddings.element_size())
        scratch = Scratch(slots=2, keep="whole")
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
            scratch=scratch,
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
        shares = weighting.shares(mix, anchors.embeddings)
        others = None if candidates is anchors else candidates.embeddings
        loss, weightless = Contrast.apply(  # type: ignore[no-untyped-call]
            problem, anchors.embeddings, others, shares
        )
    scratch.release()
    if int(weightless):
        warnings.warn(
            f"{int(weightless)} of {pairs.num_anchors} anchors have only zero weights and "
            "contribute nothing; mass='mean' or another scaling avoids this",
            stacklevel=3,
        )
    return loss
