"""From two views' embeddings to anchors, candidates and pairs, in one process or many."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor, nn

from unremix.gather import Share, gather_rows, is_distributed, mean_gradient, share_of, withdraw
from unremix.losses.blockwise import (
    Products,
    Tile,
    full_precision,
    rows_per_block,
    score_rows,
)
from unremix.losses.info_nce import info_nce
from unremix.losses.jsd import jsd
from unremix.losses.options import LAYOUTS, Layout, check_tile, choose, number
from unremix.pairs import Pairs
from unremix.scores import COMPONENTS, Gradient, Own, Rows, Views, make_context, residuals, sketch
from unremix.watch import LastLayer
from unremix.weights import Weighting, weigh

if TYPE_CHECKING:
    pass


V = TypeVar("V", Views, Own)


def _working(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


class TwoViewLoss(nn.Module):
    """What the losses share: two views in, pairs and candidates made, the weighted loss out.

    Args:
        temperature: τ.
        layout: ``both``: all 2N views are anchors and candidates; ``one-way``: first views against
            second views.
        class_prior: τ⁺ of the debiasing.
        gather: Whether the negatives come from all processes.
        tile: Rows per block: ``auto``, a number, or None for all at once.
    """

    def __init__(
        self,
        *,
        temperature: float,
        layout: Layout,
        class_prior: float,
        gather: bool,
        tile: Tile,
    ) -> None:
        super().__init__()
        self.temperature = number("temperature", temperature, above=0)
        self.layout: Layout = choose("layout", layout, LAYOUTS)
        self.class_prior = number("class_prior", class_prior, least=0, below=1)
        self.gather = bool(gather)
        self.tile = check_tile(tile)
        self.weighting = Weighting()
        self.gradient: Gradient = "pseudo-label"
        self.posterior_temperature = 1.0
        self.bias = True
        self.sketch: int | None = None
        self.last_layer: LastLayer | None = None

    def lambdas(self) -> Tensor | None:
        """λ, one number per component, shape (K,), with gradient where it is learned."""
        return None

    def forward(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None = None,
        h1: Tensor | None = None,
        *,
        own: Own | None = None,
    ) -> Tensor:
        """The loss of a batch of N pairs of views.

        Args:
            z0: Embeddings of the first views, not normalised, shape (N, D).
            z1: Embeddings of the second views, shape (N, D).
            h0: Inputs of the last layer for the first views, shape (N, H); used by the uncertainty.
            h1: Likewise for the second views.
            own: Further negatives of each anchor alone: of [z0; z1] with layout ``both``, of z0
                with ``one-way``.

        Returns:
            The loss, a scalar, in float32 or better. With ``gather``, the mean over processes is
            the loss of the joint batch.

        Raises:
            ValueError: For input no loss can be computed from.
        """
        with full_precision(z0.device):
            z0, z1, h0, h1 = self._prepare_together(z0, z1, h0, h1)
            own = None if own is None else self._ready(own)
            loss = self._contrast(*self._arrange(z0, z1, h0, h1, own))
            return _finite(loss, z0, z1, h0, h1)

    def towards(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None = None,
        h1: Tensor | None = None,
        *,
        keys: Tensor,
        shares: Tensor,
        own: Own | None = None,
    ) -> Tensor:
        """The loss of mixed views, each aimed at several second views, by their shares.

        One way: N anchors z0 against candidates z1. The views an anchor is aimed at stand in the
        denominator of one another, so that with uniform weights this is the cross-entropy against
        the shares.

        Args:
            z0: Embeddings of the mixed views, shape (N, D).
            z1: Embeddings of the second views, shape (N, D).
            h0: Inputs of the last layer for the mixed views, shape (N, H).
            h1: Likewise for the second views.
            keys: Which second views each anchor is aimed at, shape (N, P).
            shares: The share of each in its loss, shape (N, P).
            own: Further negatives of each anchor alone.

        Returns:
            The loss, as :meth:`forward`.
        """
        with full_precision(z0.device):
            z0, z1, h0, h1 = self._prepare_together(z0, z1, h0, h1)
            own = None if own is None else self._ready(own)
            arranged = self._arrange(z0, z1, h0, h1, own, aims=(keys, shares))
            loss = self._contrast(*arranged, positives_in_denominator=True)
            return _finite(loss, z0, z1, h0, h1)

    def against(
        self,
        anchors: Views,
        candidates: Views,
        pairs: Pairs,
        *,
        own: Own | None = None,
        positives_in_denominator: bool = False,
        products: Products = "cosine",
        objective: Literal["info-nce", "jsd"] = "info-nce",
    ) -> Tensor:
        """The loss of any anchors, candidates and pairs, such as queries against a queue.

        Args:
            anchors: N views of this process.
            candidates: M views, which all processes hold if there are several.
            pairs: Positives and negatives.
            own: Further negatives of each anchor alone.
            positives_in_denominator: Whether an anchor's other positives stand in the denominator.
            products: ``cosine`` or ``dot``: what the logits are made of.
            objective: InfoNCE, or the Jensen-Shannon estimate, which has neither a class prior nor
                own negatives.

        Returns:
            The loss, as :meth:`forward`.
        """
        with full_precision(anchors.embeddings.device):
            share = None
            if self.gather and is_distributed():
                n, width = anchors.embeddings.shape
                share = share_of(n, width, anchors.embeddings.device)
            return self._contrast(
                self._ready(anchors),
                self._ready(candidates),
                pairs,
                share,
                None if own is None else self._ready(own),
                positives_in_denominator=positives_in_denominator,
                products=products,
                objective=objective,
            )

    def _ready(self, views: V) -> V:
        """In working precision, the inputs of the last layer projected where asked."""
        h = views.inputs
        if h is not None:
            h = _working(h.detach()).to(_working(views.embeddings).dtype)
            h = h if self.sketch is None else sketch(h, self.sketch)
        return replace(views, embeddings=_working(views.embeddings), inputs=h)

    def _contrast(
        self,
        anchors: Views,
        candidates: Views,
        pairs: Pairs,
        share: Share | None,
        own: Own | None,
        *,
        positives_in_denominator: bool = False,
        products: Products = "cosine",
        objective: Literal["info-nce", "jsd"] = "info-nce",
    ) -> Tensor:
        mix = self.lambdas()
        normaliser = None
        if share is not None:
            normaliser = pairs.num_anchors / share.sizes[share.rank] * share.total
            normaliser /= share.processes
            mix = None if mix is None else mean_gradient(mix)
        if objective == "jsd":
            return jsd(
                anchors,
                candidates,
                pairs,
                temperature=self.temperature,
                weighting=self.weighting,
                mix=mix,
                products=products,
                posterior_temperature=self.posterior_temperature,
                gradient=self.gradient,
                bias=self.bias,
                normaliser=normaliser,
                tile=self.tile,
            )
        return info_nce(
            anchors,
            candidates,
            pairs,
            own=own,
            temperature=self.temperature,
            weighting=self.weighting,
            mix=mix,
            class_prior=self.class_prior,
            positives_in_denominator=positives_in_denominator,
            products=products,
            posterior_temperature=self.posterior_temperature,
            gradient=self.gradient,
            bias=self.bias,
            normaliser=normaliser,
            tile=self.tile,
        )

    @torch.no_grad()
    def importance(
        self, z0: Tensor, z1: Tensor, h0: Tensor | None = None, h1: Tensor | None = None
    ) -> Importance:
        """All scores and weights of a batch, for analysis; this process's batch only.

        Takes what :meth:`forward` takes; memory grows with N².
        """
        with full_precision(z0.device):
            z0, z1, h0, h1 = self._prepare(z0, z1, h0, h1, needs_inputs=True)
            _check_finite(z0, z1, h0, h1)
            anchors, candidates, pairs, _, _ = self._arrange(z0, z1, h0, h1, alone=True)
            mix = self.lambdas()
            context = make_context(
                anchors,
                candidates,
                pairs,
                posterior_temperature=self._residual_temperature,
                gradient=self.gradient,
                bias=self.bias,
                tile=rows_per_block(self.tile, pairs.num_candidates, z0.element_size()),
            )
            everything = replace(
                self.weighting, components=(*COMPONENTS, *self.weighting.components)
            )
            (block,) = pairs.blocks(None)
            # In the given order of anchors, whatever order the block has.
            place = torch.argsort(block.anchors)
            rows = Rows(block, block.fill(anchors.units @ candidates.units.T))
            scores = score_rows(rows, context, everything)
            weights = weigh(
                rows, scores[len(COMPONENTS) :], self.weighting.shares(mix, z0), self.weighting
            )
            dense = weights.dense(block, rows.similarity)[place]
            named = {
                name: block.blank(score.values.clone())[place]
                for name, score in zip(COMPONENTS, scores, strict=False)
            }
            return Importance(
                **named,
                weights=dense,
                negatives=pairs.negative_mask(),
                positives=pairs.positive_mask(),
            )

    def _prepare_together(
        self, z0: Tensor, z1: Tensor, h0: Tensor | None, h1: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As :meth:`_prepare`; if it fails here, the other processes are told."""
        try:
            ready = self._prepare(z0, z1, h0, h1)
            unused = ready[2] is not None and not self.weighting.needs_residuals
            # The loss would not show it, or show it to all processes, and none know whose.
            if unused or (self.gather and is_distributed()):
                _check_finite(*ready)
            return ready
        except ValueError:
            if self.gather:
                withdraw(z0.device)
            raise

    @property
    def _residual_temperature(self) -> float:
        return self.temperature if self.gradient == "nt-xent" else self.posterior_temperature

    def _prepare(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None,
        h1: Tensor | None,
        needs_inputs: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        _check_views("z", z0, z1)
        if (h0 is None) != (h1 is None):
            raise ValueError(
                "expected h0 and h1 together, received only "
                f"{'h1' if h0 is None else 'h0'}; hand over both or neither"
            )
        needs = self.weighting.needs_residuals if needs_inputs is None else needs_inputs
        if h0 is None and self.last_layer is not None and needs:
            h0, h1 = self.last_layer.inputs_of(z0, z1)
        if h0 is not None and h1 is not None:
            _check_views("h", h0, h1, rows=z0.shape[0])
        first, second = self._ready(Views(z0, h0)), self._ready(Views(z1, h1))
        return first.embeddings, second.embeddings, first.inputs, second.inputs

    def _arrange(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None,
        h1: Tensor | None,
        own: Own | None = None,
        *,
        aims: tuple[Tensor, Tensor] | None = None,
        alone: bool = False,
    ) -> tuple[Views, Views, Pairs, Share | None, Own | None]:
        """Anchors, candidates and pairs of the layout, across processes where asked.

        With ``aims``, keys and shares (N, P), the layout is one-way, each anchor aimed at its keys.
        """
        n, device = z0.shape[0], z0.device
        first, second = Views(z0, h0), Views(z1, h1)
        both = self.layout == "both" and aims is None
        if alone or not self.gather or not is_distributed():
            if n < 2:
                raise ValueError(
                    "expected a batch of at least 2 pairs, received 1: a single pair has no "
                    "negatives; use a larger batch or drop the last, incomplete one"
                )
            if both:
                views = _stack(first, second)
                return views, views, _both_views(n, 0, n, device), None, own
            pairs = _one_way(n, 0, n, device) if aims is None else Pairs.towards(*aims)
            return first, second, pairs, None, own

        share = share_of(n, z0.shape[1], device, 0 if h0 is None else h0.shape[1])
        where = (n, share.offset, share.total, device)

        def everyones(views: Views) -> Views:
            h = None if views.inputs is None else gather_rows(views.inputs, share)
            return Views(gather_rows(views.embeddings, share), h)

        all_first, all_second = everyones(first), everyones(second)
        if both:
            anchors, candidates = _stack(first, second), _stack(all_first, all_second)
            pairs = aimed_back = _both_views(*where)
        else:
            anchors, candidates = first, all_second
            pairs = aimed_back = _one_way(*where)
            if aims is not None:
                pairs = Pairs.towards(*aims, offset=share.offset, total=share.total)
                aimed_back = Pairs.towards(*aims).transposed().among(share.offset, share.total)
        if not self.weighting.needs_residuals:
            return anchors, candidates, pairs, share, own

        def derived(
            views: Views, classes: Views, pairs: Pairs, own_units: Tensor | None = None
        ) -> Tensor:
            return residuals(
                views.units,
                views.lengths,
                classes.units,
                pairs,
                temperature=self._residual_temperature,
                gradient=self.gradient,
                tile=rows_per_block(self.tile, pairs.num_candidates, z0.element_size()),
                own_units=own_units,
            )

        # Each process derives δ of its own views and hands it to the others.
        if own is None:
            delta = derived(anchors, candidates, pairs)
        else:
            delta = derived(anchors, candidates, pairs.with_own(own.embeddings.shape[1]), own.units)
        if both:
            shared = torch.cat([gather_rows(half, share) for half in delta.split(n)])
        else:
            shared = gather_rows(derived(second, all_first, aimed_back), share)
        if own is not None and self.gradient == "pseudo-label":  # without positive: refused later
            everyone = candidates if both else all_first
            flat, classes = own.against_all(everyone.embeddings.shape[0])
            own = replace(own, residuals=derived(flat, everyone, classes).view_as(own.embeddings))
        anchors, candidates = (
            replace(anchors, residuals=delta),
            replace(candidates, residuals=shared),
        )
        return anchors, candidates, pairs, share, own


# Batches of one size have the same pairs, step after step; made in inference mode, they could not
# be used for training later.
@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _both_views(n: int, offset: int, total: int, device: torch.device) -> Pairs:
    return Pairs.both_views(n, offset=offset, total=total, device=device)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _one_way(n: int, offset: int, total: int, device: torch.device) -> Pairs:
    return Pairs.one_way(n, offset=offset, total=total, device=device)


def _stack(first: Views, second: Views) -> Views:
    h = None
    if first.inputs is not None and second.inputs is not None:
        h = torch.cat([first.inputs, second.inputs])
    return Views(torch.cat([first.embeddings, second.embeddings]), h)


def _check_views(letter: str, first: Tensor, second: Tensor, rows: int | None = None) -> None:
    names = f"{letter}0 and {letter}1"
    size = "D" if letter == "z" else "H"
    if first.dim() == 2 and first.shape == second.shape and 0 in first.shape:
        raise ValueError(
            f"expected {names} with at least one row and one column, received shape "
            f"{tuple(first.shape)}; skip empty batches"
        )
    if first.dim() != 2 or first.shape != second.shape:
        raise ValueError(
            f"expected {names} of one shape (N, {size}), received {tuple(first.shape)} and "
            f"{tuple(second.shape)}; flatten all but the batch dimension"
        )
    if rows is not None and first.shape[0] != rows:
        raise ValueError(
            f"expected {names} with one row per embedding, {rows}, received {first.shape[0]} rows"
        )
    if not first.is_floating_point() or first.dtype != second.dtype:
        raise ValueError(
            f"expected {names} of one floating-point dtype, received {first.dtype} and "
            f"{second.dtype}; convert one with .to()"
        )


def _check_finite(z0: Tensor, z1: Tensor, h0: Tensor | None, h1: Tensor | None) -> None:
    for name, view in zip(("z0", "z1", "h0", "h1"), (z0, z1, h0, h1), strict=True):
        if view is None:
            continue
        bad = int((~view.isfinite()).any(dim=1).sum())
        if bad:
            raise ValueError(
                f"expected finite {name}, received NaN or infinity in {bad} of "
                f"{view.shape[0]} rows; look for a diverged model (lower the learning rate) or "
                "broken input"
            )


def _finite(loss: Tensor, z0: Tensor, z1: Tensor, h0: Tensor | None, h1: Tensor | None) -> Tensor:
    """The loss; NaN or infinity in what it was made of reaches it, and only then is looked for."""
    if not math.isfinite(loss.item()):
        _check_finite(z0, z1, h0, h1)
    return loss


@dataclass(frozen=True)
class Importance:
    """Scores and weights of a batch: A anchors against C candidates, each (A, C).

    With layout ``both`` A = C = 2N, views stacked [z0; z1]; with ``one-way`` A = C = N, anchors z0
    and candidates z1. All are 0 where there is no negative.

    Args:
        uncertainty: u.
        similarity: s.
        representativeness: r.
        weights: w.
        negatives: Which candidates are negatives, boolean.
        positives: Which candidates are positives, boolean.
    """

    uncertainty: Tensor
    similarity: Tensor
    representativeness: Tensor
    weights: Tensor
    negatives: Tensor
    positives: Tensor
