"""A loss of some anchors as plain data, cut into blocks; and the checks of what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unremix.core.gather import Part
from unremix.core.options import Options, Tile
from unremix.core.pairs import Pairs
from unremix.core.precision import normalize
from unremix.core.scores import Block, inner_products
from unremix.core.views import Own, Vectors, Views

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
class Comparison:
    """What a loss compares with what: N anchors with M candidates.

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        own: Further negatives of each anchor alone.
        part: This process's part, where several share a loss: their mean is the loss of all.
        everyone: The anchors of all processes, where all of them hold the same candidates; the
            candidates themselves where every view is both.
    """

    anchors: Views
    candidates: Views
    pairs: Pairs
    own: Own | None = None
    part: Part | None = None
    everyone: Views | None = None


@dataclass(frozen=True)
class Problem:
    """A loss of N anchors, apart from what is differentiated: a comparison as constants.

    Args:
        pairs: Positives and negatives.
        options: How.
        anchors: N views.
        candidates: M views.
        own: The anchors' own candidates, of shape (N, S, ...), where there are any.
        own_factor: Multiplies their logits.
        similarity: f · f of anchors and candidates, shape (N, M), where it is known already.
    """

    pairs: Pairs
    options: Options
    anchors: Vectors
    candidates: Vectors
    own: Vectors | None = None
    own_factor: float = 1.0
    similarity: Tensor | None = None

    def __getitem__(self, anchors: slice) -> Problem:
        """The same for some of the anchors."""
        return replace(
            self,
            pairs=self.pairs[anchors],
            anchors=self.anchors[anchors],
            own=None if self.own is None else self.own[anchors],
            similarity=None if self.similarity is None else self.similarity[anchors],
        )

    def blocks(self) -> Iterator[slice]:
        """The anchors, a block at a time."""
        count, width = self.pairs.num_anchors, self.pairs.num_candidates
        if self.own is not None:
            width += self.own.units.shape[1]
        return blocks(count, width, self.options.tile, self.anchors.units.device)

    def compare(self, anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Block]:
        """The logits before the division by τ, shape (N, M), and what scores are computed from.

        Args:
            anchors: What the logits of the anchors are made of, f or z, shape (N, D).
            candidates: Likewise of the candidates, shape (M, D).
        """
        own, weighting = self.own, self.options.weighting
        logits = similarity = self._products(anchors, candidates)
        if self.options.logits == "dot" and (weighting.components or weighting.filter):
            similarity = self._cosines(anchors, candidates)
        negatives = self.pairs.negatives()
        count = self.pairs.count_of(negatives)
        if own is not None:
            further = negatives.new_ones(own.units.shape[:2])
            negatives, count = torch.cat([negatives, further], dim=1), count + further.shape[1]
            if self.own_factor != 1:
                shared, rest = logits.tensor_split([len(candidates)], dim=1)
                logits = torch.cat([shared, self.own_factor * rest], dim=1)
        return logits, Block(
            anchors=self.anchors,
            candidates=self.candidates,
            own=own,
            negatives=negatives,
            count=count,
            non_negatives=self.pairs.non_negatives,
            similarity=similarity if weighting.similarity_gradient else similarity.detach(),
            bias=self.options.bias,
        )

    def _products(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """f · f, or z · z, as the logits have it, shape (N, M)."""
        own = self.own
        of_own = None if own is None else own.units
        if own is not None and self.options.logits == "dot":
            of_own = own.units * own.lengths[..., None]
        return inner_products(anchors, candidates, of_own)

    def _cosines(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """f · f, shape (N, M), where the logits are z · z."""
        own = None if self.own is None else self.own.units
        if self.options.weighting.similarity_gradient:
            return inner_products(normalize(anchors)[0], normalize(candidates)[0], own)
        if self.similarity is not None:
            return self.similarity
        return inner_products(self.anchors.units, self.candidates.units, own)


def check_pairs(given: Comparison) -> None:
    """Refuse pairs without any positive or any negative; waits for the device."""
    pairs = given.pairs
    if not pairs.has_positives():
        raise ValueError(
            f"expected anchors with a positive, got {pairs.num_anchors} anchors and no positive "
            "pair; check the pairs"
        )
    if given.own is None and not pairs.has_negatives():
        raise ValueError(
            "expected at least one negative, got none for any anchor; "
            "use a batch of two samples or more, or check the masks"
        )


def check_shapes(comparison: Comparison, options: Options) -> None:
    """Refuse tensors that do not fit each other or the pairs."""
    anchors, candidates, pairs = comparison.anchors, comparison.candidates, comparison.pairs
    for each in (anchors, candidates):
        if not isinstance(each, Views):
            raise ValueError(
                f"expected unremix.core.views.Views, got {type(each).__name__}; pass Views(z), "
                "or Views(z, h) with the input h of the last layer"
            )
    given: list[tuple[str, Views | Own, tuple[int, ...]]] = [
        ("anchors", anchors, (pairs.num_anchors,)),
        ("candidates", candidates, (pairs.num_candidates,)),
    ]
    if (own := comparison.own) is not None:
        given.append(("own candidates", own, (pairs.num_anchors, own.embeddings.shape[1])))
    tensors = [each for _, views, _ in given for each in (views.embeddings, views.inputs)]
    dtypes = list(dict.fromkeys(str(each.dtype) for each in tensors if each is not None))
    if len(dtypes) > 1:
        raise ValueError(
            f"expected embeddings and inputs of one dtype, got {' and '.join(dtypes)}; convert "
            "with .to()"
        )
    some = len({views.inputs is None for _, views, _ in given}) > 1
    if some and options.weighting.needs_gradients:  # otherwise h is not used
        raise ValueError(
            "expected the last layer's inputs h for anchors and candidates or for neither, "
            "got them for some; pass all or none"
        )
    for name, views, rows in given:
        for what in ("embeddings", "inputs"):
            tensor, like = getattr(views, what), getattr(candidates, what)
            if tensor is None:
                continue
            expected = (*rows, (tensor if like is None else like).shape[-1])
            if tensor.shape != expected:
                raise ValueError(
                    f"expected {what} of the {name} of shape {expected}, one row per view and of "
                    f"the candidates' width, got {tuple(tensor.shape)}; check the pairs"
                )
