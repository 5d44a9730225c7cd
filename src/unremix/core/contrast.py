"""The whole loss in one function: δ, then block by block scores → weights → objective.

``importance_of`` shows the scores and weights of all negatives at once, for analysis.

All statistics are per anchor, so a block of whole rows gives its part of the loss and of all
gradients in one go. An engine does that for a block: nothing of size (N, M) is kept, and the
backward pass only multiplies by the incoming scalar.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unremix.core.checks import check_temperature, check_views, checks_on, to_device_of
from unremix.core.engines import BlockEngine, eager, find_engine
from unremix.core.engines.eager import rows_loss
from unremix.core.gather import mean_count
from unremix.core.pairs import EVERYTHING, ContrastInput
from unremix.core.precision import full_precision, normalize
from unremix.core.problem import Options, Problem, check_pairs, check_shapes, with_output_gradients
from unremix.core.scores import PAPER_COMPONENTS
from unremix.core.views import Vectors, describe
from unremix.core.weights import mix_or_equal, name_of, raw_scores, weigh


def contrast(
    comparison: ContrastInput,
    options: Options,
    *,
    temperature: Tensor | float = 0.5,
    mix: Tensor | None = None,
) -> Tensor:
    """The mean over anchors of a contrastive loss with weighted negatives.

    For the objective InfoNCE and one positive of each anchor, this is

    L = 1/N Σ_i -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_{j in Neg(i)} w_ij e^{s_ij/τ}) )

    Args:
        comparison: Anchors, candidates, and which are positives and negatives.
        options: Weighting, objective, and how to compute them.
        temperature: τ; gradient flows to it if it is a tensor.
        mix: λ, one number per component, none negative, shape (K,); gradient flows to it. Equal by
            default.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: For shapes that do not fit, and, where checks are made, if no anchor has a
            positive, or none a negative.

    Relations:
        Without components, NT-Xent over the given pairs. With ``weights.hard_negatives(β)``, HCL.
        With ``positives_in_denominator`` and uniform weights, Quick-Thought's cross-entropy.

    Example:
        >>> from unremix.core.pairs import Pairs
        >>> from unremix.core.views import Views
        >>> views = Views(torch.eye(4))
        >>> comparison = ContrastInput(views, views, Pairs.both_views(2))
        >>> contrast(comparison, Options(), temperature=1.0)  # log 3
        tensor(1.0986)

    Reference:
        UnReMix, Eq. 1 and Algorithm 1.
    """
    return _contrast(comparison, options, temperature, mix)[0]


def contrast_both_ways(
    forth: ContrastInput,
    back: ContrastInput,
    options: Options,
    *,
    temperature: Tensor | float = 0.5,
    mix: Tensor | None = None,
) -> list[Tensor]:
    """The losses of anchors against candidates, and of these candidates against these anchors.

    Positives and negatives are the same in both directions, so that δ and small similarities are
    computed once. Equal to two calls of :func:`contrast`, whose arguments these are.
    """
    there, problem = _contrast(forth, options, temperature, mix, keep=True)
    return [there, _contrast(back, options, temperature, mix, opposite=problem)[0]]


def _contrast(
    comparison: ContrastInput,
    options: Options,
    temperature: Tensor | float,
    mix: Tensor | None,
    *,
    keep: bool = False,
    opposite: Problem | None = None,
) -> tuple[Tensor, Problem]:
    """What :func:`contrast` returns, and the problem.

    Args:
        comparison: As there, and so the next three.
        options: How.
        temperature: τ.
        mix: λ.
        keep: Whether the problem is wanted for the opposite direction.
        opposite: The problem of that direction, where it is known.
    """
    check_views(comparison.anchors, comparison.candidates)
    check_shapes(comparison, options)
    like, pairs, joint = comparison.anchors.embeddings, comparison.pairs, comparison.joint
    check_temperature(temperature, options.check)
    if isinstance(temperature, Tensor):
        temperature = to_device_of(like, temperature, "temperature")
    check = checks_on(options.check, like)
    if check:
        check_pairs(comparison)
    with full_precision(like.device):
        lambdas = mix_or_equal(mix, options.weighting, like)
        engine = find_engine(options, like, comparison.extra is not None)
        if opposite is None:
            problem, vectors = make_problem(comparison, options, temperature, engine)
        else:
            problem, vectors = _turned(opposite, comparison)
        if keep and engine.takes_similarity:
            problem = problem.with_small_similarity()
        if torch.compiler.is_compiling():
            total, weightless = _traced(problem, *vectors, lambdas, temperature)
        elif torch._C._are_functorch_transforms_active():  # torch.func.grad: all anchors at once
            total, weightless = rows_loss(problem[EVERYTHING], *vectors, lambdas, temperature)
        else:
            total, weightless = _Blockwise.apply(  # type: ignore[no-untyped-call]
                problem, engine, *vectors, lambdas, temperature
            )
        paired = able = (pairs.shares > 0).any(1)  # anchors with a positive, and with a loss
        if pairs.labels is not None:
            able = torch.cat([(pairs[which].shares > 0).any(1) for which in problem.blocks()])
        total = total / mean_count(able.sum(dtype=total.dtype), joint)
    if check and able is not paired and (alone := int((paired & ~able).sum())):
        warnings.warn(
            f"{alone} of {pairs.num_anchors} anchors have no negatives, since all candidates have "
            "their label: they contribute nothing; use batches of several classes",
            stacklevel=3,
        )
    if check and options.weighting.mass == "none" and int(weightless):
        warnings.warn(
            f"{int(weightless)} of {pairs.num_anchors} anchors have only zero weights: their "
            "negatives contribute nothing; mass='mean' or another scaling avoids this",
            stacklevel=3,
        )
    return total, problem


def make_problem(
    comparison: ContrastInput, options: Options, temperature: Tensor | float, engine: BlockEngine
) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """The problem, and what its logits are made of, with gradient: f or z of both sides.

    ``engine`` derives δ where a component needs it.
    """
    anchors, candidates, extra = comparison.anchors, comparison.candidates, comparison.extra
    units, of_anchors = describe(anchors)
    other_units, of_candidates = units, of_anchors
    if candidates is not anchors:
        other_units, of_candidates = describe(candidates)
    problem = Problem(comparison.pairs, options, of_anchors, of_candidates)
    if extra is not None:
        inputs = None if extra.inputs is None else extra.inputs.detach()
        of_extra = Vectors(*normalize(extra.embeddings.detach()), inputs)
        problem = replace(problem, extra=of_extra, extra_factor=extra.logit_factor)
    if options.weighting.needs_gradients:
        problem = with_output_gradients(problem, comparison, temperature, engine)
    if options.logits == "dot":
        return problem, (anchors.embeddings, candidates.embeddings)
    return problem, (units, other_units)


def _turned(problem: Problem, comparison: ContrastInput) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """As :func:`make_problem`, of a comparison whose opposite direction has this problem."""
    known, anchors, candidates = problem.similarity, comparison.anchors, comparison.candidates
    turned = replace(
        problem,
        pairs=comparison.pairs,
        anchors=problem.candidates,
        candidates=problem.anchors,
        similarity=None if known is None else known.T.contiguous(),
    )
    if problem.options.logits == "dot":
        return turned, (anchors.embeddings, candidates.embeddings)
    return turned, (describe(anchors)[0], describe(candidates)[0])


class _Blockwise(torch.autograd.Function):
    """The sum of the anchors' losses, block by block; the forward pass makes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, engine: BlockEngine, *tensors: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """See :func:`rows_loss` for the tensors: anchors, candidates, mix and temperature."""
        wanted = ctx.needs_input_grad[2:]
        anchors, *others = (each.detach() if isinstance(each, Tensor) else each for each in tensors)
        assert isinstance(anchors, Tensor)
        total = anchors.new_zeros(())
        weightless = torch.zeros((), dtype=torch.int64, device=anchors.device)
        # Allocated before the loop: allocating between blocks would fragment memory.
        whole = [
            torch.zeros_like(each) if want and isinstance(each, Tensor) else None
            for each, want in zip(tensors, wanted, strict=True)
        ]
        for which in problem.blocks():
            leaves = (anchors[which], *others)
            loss, without_weight, gradients = engine.evaluate(leaves, wanted, problem[which])
            total += loss
            weightless += without_weight
            for place, (sums, gradient) in enumerate(zip(whole, gradients, strict=True)):
                if sums is not None and gradient is not None:
                    some = sums[which] if place == 0 else sums  # the anchors' own rows, or all
                    some += gradient
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
        if torch.is_grad_enabled():  # create_graph=True: all anchors at once, for autograd
            # Aliases, since anchors and candidates may be one tensor.
            given: list[Any] = [each if each is None else each.view_as(each) for each in tensors]
            anchors, candidates, mix, temperature = given
            with full_precision(incoming.device):
                temperature = ctx.temperature if temperature is None else temperature
                problem = ctx.problem[EVERYTHING]
                loss, _ = rows_loss(problem, anchors, candidates, mix, temperature)
                inputs = [each for each, want in zip(given, ctx.wanted, strict=True) if want]
                derived = iter(
                    torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
                )
            gradients = [next(derived) if want else None for want in ctx.wanted]
        return (None, None, *(None if each is None else each * incoming for each in gradients))


def _traced(problem: Problem, *tensors: Any) -> tuple[Tensor, Tensor]:
    """The same for ``torch.compile`` to trace: few blocks, each recomputed in the backward pass."""

    def block(
        which: slice, anchors: Tensor, candidates: Tensor, mix: Tensor, temperature: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        return rows_loss(problem[which], anchors[which], candidates, mix, temperature)

    slices = list(problem.blocks())
    if len(slices) == 1:
        return block(slices[0], *tensors)
    losses, weightless = zip(
        *(checkpoint(block, which, *tensors, use_reentrant=False) for which in slices), strict=True
    )
    return torch.stack(losses).sum(), torch.stack(weightless).sum()


@dataclass(frozen=True)
class Importance:
    """Scores and weights of a batch: A anchors against C candidates, each (A, C).

    With layout ``both`` A = C = 2N, views stacked [z0; z1]; with ``one-way`` A = C = N, anchors z0
    and candidates z1. All are 0 where there is no negative.

    Args:
        scores: u, s, r and every further component of the loss, by name.
        weights: w.
        negatives: Which candidates are negatives, boolean.
        positives: Which candidates are positives, boolean.
        evidence: How similar samples are, where ``false_negatives`` is set.
        keep: The factor on the weights, likewise.
    """

    scores: dict[str, Tensor]
    weights: Tensor
    negatives: Tensor
    positives: Tensor
    evidence: Tensor | None = None
    keep: Tensor | None = None

    @property
    def uncertainty(self) -> Tensor:
        """u, shape (A, C)."""
        return self.scores["uncertainty"]

    @property
    def similarity(self) -> Tensor:
        """s, shape (A, C)."""
        return self.scores["similarity"]

    @property
    def representativeness(self) -> Tensor:
        """r, shape (A, C)."""
        return self.scores["representativeness"]


@torch.no_grad()
def importance_of(
    comparison: ContrastInput, options: Options, temperature: Tensor | float, mix: Tensor | None
) -> Importance:
    """Scores and weights; the arguments are those of :func:`contrast`.

    Raises:
        ValueError: If weights overflow.
    """
    weighting, filtering = options.weighting, options.weighting.filter
    wanted = {name_of(each): each for each in (*PAPER_COMPONENTS, *weighting.components)}
    everything = replace(weighting, components=tuple(wanted.values()))
    problem, vectors = make_problem(
        comparison, replace(options, weighting=everything), temperature, eager.ENGINE
    )
    _, block = problem.compare(*vectors)
    scores = dict(zip(wanted, raw_scores(block, everything), strict=True))
    keep = None if filtering is None else filtering(block)
    weights = weigh(
        [scores[name_of(each)] for each in weighting.components],
        block.negatives,
        block.count,
        mix_or_equal(mix, weighting, block.similarity),
        weighting,
        temperature,
        keep,
    )
    if checks_on(options.check, weights) and not bool(weights.isfinite().all()):
        raise ValueError(
            "expected finite weights, got NaN or infinity from finite input: numbers overflow; "
            "scale embeddings and inputs down"
        )
    return Importance(
        {name: torch.where(block.negatives, each, 0.0) for name, each in scores.items()},
        weights=weights,
        negatives=block.negatives,
        positives=comparison.pairs.positive_mask(),
        evidence=None if filtering is None else filtering.evidence_of(block),
        keep=keep,
    )
