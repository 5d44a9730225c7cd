"""A loss of some anchors as plain data: its options, its tensors as constants, cut into blocks.

Among the constants is δ of all views, derived block by block; see
:func:`unremix.core.scores.output_gradients`. The classes of an anchor are its negatives; of a
candidate, the anchors that it is a negative of; of an anchor's extra negative, all anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from unremix.core.checks import check_choice, check_number, checks_on
from unremix.core.gather import gather_rows
from unremix.core.objectives import InfoNCE, Objective
from unremix.core.pairs import EVERYTHING, ContrastInput, Pairs
from unremix.core.precision import normalize
from unremix.core.scores import Block, Gradient, inner_products
from unremix.core.views import ExtraNegatives, Vectors, Views, describe
from unremix.core.weights import Weighting

if TYPE_CHECKING:
    from unremix.core.engines import BlockEngine

Tile = int | Literal["auto"] | None
Logits = Literal["cosine", "dot"]
EngineName = Literal["auto", "eager", "compiled", "native"]


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How a loss is computed; its value does not depend on it.

    Args:
        tile: Anchors per block: ``auto``, a number, or None for all at once.
        engine: ``auto``, ``eager``, ``compiled`` or ``native``; see :mod:`unremix.core.engines`.
        check: Whether to check for NaN and for anchors without weight, which waits for the device;
            None: on the CPU.

    Raises:
        ValueError: For an engine that does not exist, or a tile below 1.
    """

    tile: Tile = "auto"
    engine: EngineName = "auto"
    check: bool | None = None

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(EngineName))
        tile = self.tile
        if not (tile is None or tile == "auto" or (type(tile) is int and tile >= 1)):
            raise ValueError(
                f"expected tile to be 'auto', None or a number from 1, got {tile!r}; leave it out"
            )


@dataclass(frozen=True)
class Options(Computation):
    """Everything about a loss that is not a tensor: what the options of its user come to.

    Args:
        weighting: How negatives are weighted; uniform by default.
        objective: The loss of an anchor.
        logits: ``cosine``: f·f/τ; ``dot``: z·z/τ. The scores always use f.
        posterior_temperature: t of the pseudo-posterior.
        gradient: Which cross-entropy the uncertainty differentiates; ``nt-xent`` uses t = τ.
        bias: Whether the last layer has a bias.

    Raises:
        ValueError: For options that do not exist or contradict each other.
    """

    weighting: Weighting = field(default_factory=Weighting)
    objective: Objective = field(default_factory=InfoNCE)
    logits: Logits = "cosine"
    posterior_temperature: float = 1.0
    gradient: Gradient = "pseudo-label"
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("logits", self.logits, get_args(Logits))
        check_choice("gradient", self.gradient, get_args(Gradient))
        check_number("posterior_temperature", self.posterior_temperature, above=0)
        prior = getattr(self.objective, "class_prior", 0.0)
        check_number("class_prior", prior, least=0, below=1)
        if prior and self.logits == "dot":
            raise ValueError(
                f"expected class_prior=0 with logits='dot', got {prior}; leave it out: the "
                "debiased sum is bounded below only for cosines"
            )


# Numbers in a (B, M) array of a block. On a CPU it and a few more stay near the cores; on an
# accelerator a block should keep it busy; inside torch.compile blocks are unrolled: few are best.
BLOCK_ON_CPU, BLOCK_ELSEWHERE, BLOCK_TRACED = 2**22, 2**24, 2**26


def blocks(count: int, width: int, tile: Tile, device: torch.device) -> Iterator[slice]:
    """Cut ``count`` rows of ``width`` numbers into blocks.

    Args:
        count: Rows.
        width: Numbers in a row.
        tile: Rows per block; None for all at once, ``auto`` by what suits the device.
        device: Where they are.
    """
    if tile == "auto":
        size = BLOCK_ON_CPU if device.type == "cpu" else BLOCK_ELSEWHERE
        size = BLOCK_TRACED if torch.compiler.is_compiling() else size
        tile = max(64, size // max(width, 1))
    step = count if tile is None else min(tile, count)
    return (slice(first, min(first + step, count)) for first in range(0, count, max(step, 1)))


@dataclass(frozen=True)
class Problem:
    """A loss of N anchors, apart from what is differentiated: a comparison as constants.

    Args:
        pairs: Positives and negatives.
        options: How.
        anchors: N views.
        candidates: M views.
        extra: The anchors' extra negatives, of shape (N, S, ...), where there are any.
        extra_factor: Multiplies their logits.
        similarity: f · f of anchors and candidates, shape (N, M), where it is known already.
    """

    pairs: Pairs
    options: Options
    anchors: Vectors
    candidates: Vectors
    extra: Vectors | None = None
    extra_factor: float = 1.0
    similarity: Tensor | None = None

    def __getitem__(self, anchors: slice) -> Problem:
        """The same for some of the anchors."""
        return replace(
            self,
            pairs=self.pairs[anchors],
            anchors=self.anchors[anchors],
            extra=None if self.extra is None else self.extra[anchors],
            similarity=None if self.similarity is None else self.similarity[anchors],
        )

    def blocks(self) -> Iterator[slice]:
        """The anchors, a block at a time."""
        count, width = self.pairs.num_anchors, self.pairs.num_candidates
        if self.extra is not None:
            width += self.extra.units.shape[1]
        return blocks(count, width, self.options.tile, self.anchors.units.device)

    def with_small_similarity(self) -> Problem:
        """The same with f · f of all, where these fit into one block; they are kept with it."""
        if self.similarity is not None or self.extra is not None or len(list(self.blocks())) != 1:
            return self
        return replace(self, similarity=self.anchors.units @ self.candidates.units.T)

    def compare(self, anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Block]:
        """The logits before the division by τ, shape (N, M), and what scores are computed from.

        Args:
            anchors: What the logits of the anchors are made of, f or z, shape (N, D).
            candidates: Likewise of the candidates, shape (M, D).
        """
        extra, weighting = self.extra, self.options.weighting
        own = None if extra is None else extra.units
        by_z, scored = self.options.logits == "dot", weighting.components or weighting.filter
        longer = extra.units * extra.lengths[..., None] if by_z and extra is not None else own
        if self.similarity is None or by_z or torch.is_grad_enabled():
            logits = inner_products(anchors, candidates, longer)
        else:  # known, and nothing differentiates it
            logits = self.similarity
        if not (by_z and scored):
            similarity = logits
        elif weighting.similarity_gradient:
            similarity = inner_products(normalize(anchors)[0], normalize(candidates)[0], own)
        elif self.similarity is not None:
            similarity = self.similarity
        else:
            similarity = inner_products(self.anchors.units, self.candidates.units, own)
        negatives = self.pairs.negatives()
        count = self.pairs.count_of(negatives)
        if extra is not None:
            further = negatives.new_ones(extra.units.shape[:2])
            negatives, count = torch.cat([negatives, further], dim=1), count + further.shape[1]
            if self.extra_factor != 1:
                shared, rest = logits.tensor_split([len(candidates)], dim=1)
                logits = torch.cat([shared, self.extra_factor * rest], dim=1)
        return logits, Block(
            anchors=self.anchors,
            candidates=self.candidates,
            extra=extra,
            negatives=negatives,
            count=count,
            non_negatives=self.pairs.non_negatives,
            similarity=similarity if weighting.similarity_gradient else similarity.detach(),
            bias=self.options.bias,
        )


def check_pairs(given: ContrastInput) -> None:
    """Refuse pairs without any positive or any negative; waits for the device."""
    pairs = given.pairs
    if pairs.labels is not None:  # a batch of one class has no loss
        return
    if not pairs.has_positives():
        raise ValueError(
            f"expected positives, got no positive pair of {pairs.num_anchors} anchors; check them"
        )
    if given.extra is None and not pairs.has_negatives():
        raise ValueError(
            "expected at least one negative, got none for any anchor; "
            "use a batch of two samples or more, or check the masks"
        )


def check_shapes(comparison: ContrastInput, options: Options) -> None:
    """Refuse tensors that do not fit each other or the pairs."""
    anchors, candidates, pairs = comparison.anchors, comparison.candidates, comparison.pairs
    given: list[tuple[str, Views | ExtraNegatives, tuple[int, ...]]] = [
        ("anchors", anchors, (pairs.num_anchors,)),
        ("candidates", candidates, (pairs.num_candidates,)),
    ]
    if (extra := comparison.extra) is not None:
        given.append(("extra negatives", extra, (pairs.num_anchors, extra.embeddings.shape[1])))
    known = {views.inputs is None for _, views, _ in given}
    if len(known) > 1 and options.weighting.needs_gradients:  # otherwise h is not used
        raise ValueError(
            "expected the last layer's inputs h for anchors and candidates or for neither, "
            "got them for some; pass all or none"
        )
    for name, views, rows in given:
        for what in ("embeddings", "inputs"):
            tensor, like = getattr(views, what), getattr(candidates, what)
            if tensor is None:
                continue
            if tensor.dtype != candidates.embeddings.dtype:
                raise ValueError(
                    f"expected embeddings and inputs of one dtype, got {tensor.dtype} and "
                    f"{candidates.embeddings.dtype}; convert with .to()"
                )
            expected = (*rows, (tensor if like is None else like).shape[-1])
            if tensor.shape != expected:
                raise ValueError(
                    f"expected {what} of the {name} of shape {expected}, one row per view and of "
                    f"the candidates' width, got {tuple(tensor.shape)}; check the pairs"
                )


Posterior = tuple[Tensor, Tensor | None]  # logits and, for nt-xent, the target; both (B, M)


def with_output_gradients(
    problem: Problem, comparison: ContrastInput, temperature: Tensor | float, engine: BlockEngine
) -> Problem:
    """The problem with δ of anchors (N, D), of candidates (M, D) and of extra negatives (N, S, D).

    Where processes share a loss, each computes δ of its part of the candidates and gathers the
    rest. ``nt-xent`` takes the temperature τ as t.
    """
    options, joint, everyone = problem.options, comparison.joint, comparison.everyone
    if options.gradient == "pseudo-label":
        temperature = options.posterior_temperature
    elif problem.extra is not None:
        raise ValueError(
            "expected a positive for every view with gradient='nt-xent', got extra negatives, "
            "which have none; use gradient='pseudo-label'"
        )
    elif isinstance(temperature, Tensor):
        temperature = temperature.detach()
    shared = comparison.candidates is comparison.anchors
    anchors = _at_last_layer(comparison.anchors, problem.anchors)
    candidates = anchors if shared else _at_last_layer(comparison.candidates, problem.candidates)
    there = replace(problem, anchors=anchors, candidates=candidates)
    posteriors = Posteriors(there, temperature, engine)
    there = there.with_small_similarity()
    if there.similarity is not None:
        posteriors = replace(posteriors, known=replace(posteriors, problem=there).logits())
    extra = None if problem.extra is None else problem.extra.units
    delta = others = posteriors.derive(anchors, candidates.units, posteriors.of_anchors, extra)
    classes = anchors.units  # of candidates: the anchors of all processes
    if everyone is None or joint is None:
        if not shared:
            others = posteriors.derive(candidates, classes, posteriors.of_candidates)
    elif everyone is comparison.candidates:  # all first views of all processes, then the second
        classes = candidates.units
        others = torch.cat([gather_rows(half, joint) for half in delta.chunk(2)])
    else:
        all_anchors = _at_last_layer(everyone, describe(everyone)[1])
        classes, pairs = all_anchors.units, replace(problem.pairs, non_negatives=None)
        pairs = pairs.map_anchors(lambda rows: gather_rows(rows, joint))
        work = joint.divided(len(candidates.units))
        whole = replace(there, anchors=all_anchors, pairs=pairs, similarity=None)
        posteriors = Posteriors(whole, temperature, engine, first=work.offset)
        here = posteriors.derive(candidates[work.here], classes, posteriors.of_candidates)
        others = gather_rows(here, work)
    of_extra = problem.extra
    if of_extra is not None:
        views = Vectors(of_extra.units.flatten(0, 1), of_extra.lengths.flatten())
        scaled = views.units / temperature
        delta_of_extra = posteriors.derive(
            views, classes, lambda which: (scaled[which] @ classes.T, None)
        )
        of_extra = replace(of_extra, output_gradients=delta_of_extra.view_as(of_extra.units))
    same = anchors is problem.anchors and candidates is problem.candidates
    return replace(
        problem,
        anchors=replace(problem.anchors, output_gradients=delta),
        candidates=replace(problem.candidates, output_gradients=others),
        extra=of_extra,
        similarity=there.similarity if same else None,
    )


@dataclass(frozen=True)
class Posteriors:
    """The pseudo-posteriors of anchors and candidates, and δ by them.

    Args:
        problem: Anchors and candidates, as they come from the last layer.
        temperature: t.
        engine: What derives δ.
        first: The candidate from which candidates are counted.
        known: What :meth:`logits` returns for all, where it fits into one block.
    """

    problem: Problem
    temperature: Tensor | float
    engine: BlockEngine
    first: int = 0
    known: Tensor | None = None

    def logits(self, anchors: slice = EVERYTHING, candidates: slice = EVERYTHING) -> Tensor:
        """f · f / t of anchors and candidates, -∞ where they are no classes of each other."""
        if self.known is not None:
            return self.known[anchors, candidates]
        some = self.problem[anchors]
        similarity, pairs = some.similarity, some.pairs
        if similarity is None:
            similarity = some.anchors.units @ some.candidates.units[candidates].T
        is_class = pairs.negatives(candidates=candidates)
        if some.options.gradient == "nt-xent":
            is_class = is_class | pairs.positive_mask(candidates)
        return torch.where(is_class, similarity, -torch.inf).div_(self.temperature)

    def of_anchors(self, which: slice) -> Posterior:
        """Over their negatives; with ``nt-xent`` over their positives too, which are the target."""
        some, logits, target = self.problem[which], self.logits(which), None
        if some.options.gradient == "nt-xent":
            _check_positives(some.pairs.shares.sum(1), some.options)
            target = some.pairs.targets(logits.dtype)
        if some.extra is not None:
            of_extra = torch.einsum("bd,bsd->bs", some.anchors.units, some.extra.units)
            logits = torch.cat([logits, of_extra / self.temperature], dim=1)
        return logits, target

    def of_candidates(self, which: slice) -> Posterior:
        """Over the anchors that they are negatives of; with ``nt-xent`` likewise."""
        columns, target = slice(self.first + which.start, self.first + which.stop), None
        logits = self.logits(candidates=columns).T.contiguous()  # softmax over rows
        if self.problem.options.gradient == "nt-xent":
            positive = self.problem.pairs.positive_mask(columns).T.to(logits.dtype)
            count = positive.sum(1, keepdim=True)
            _check_positives(count, self.problem.options)
            target = positive / count.clamp(min=1)
        return logits, target

    def derive(
        self,
        views: Vectors,
        classes: Tensor,
        posterior_of: Callable[[slice], Posterior],
        extra: Tensor | None = None,
    ) -> Tensor:
        """δ of N views, shape (N, D), by M shared classes (M, D) and S of each view (N, S, D)."""
        width = len(classes) + (0 if extra is None else extra.shape[1])
        parts = []
        for which in blocks(len(views.units), width, self.problem.options.tile, classes.device):
            logits, target = posterior_of(which)
            own = None if extra is None else extra[which]
            known = views.units[which], views.lengths[which], classes, logits
            parts.append(
                self.engine.output_gradients(
                    *known, temperature=self.temperature, target=target, extra=own
                )
            )
        return torch.cat(parts)


def _at_last_layer(views: Views, known: Vectors) -> Vectors:
    """What is known of the views, or of the last layer's output for them, where that is another."""
    if views.outputs is None:
        return known
    outputs = views.outputs.detach().to(views.embeddings.dtype)
    return describe(replace(views, embeddings=outputs))[1]


def _check_positives(shares: Tensor, options: Options) -> None:
    """Refuse ``nt-xent`` where a view has no positive, given the sum of each view's shares."""
    lacking = int((shares == 0).sum()) if checks_on(options.check, shares) else 0
    if lacking:
        raise ValueError(
            f"expected a positive for every view with gradient='nt-xent', got {lacking} views "
            "without one (old keys of a queue have none); use gradient='pseudo-label'"
        )
