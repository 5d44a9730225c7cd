"""Three scores of every candidate for every anchor, in closed form: s, u and r.

A component is one function ``score(rows, context) -> (B, M)``: it scores all M candidates for a
block of B anchors. To add one, write the function and add a line to :data:`COMPONENTS`, or hand the
function to ``components=`` directly. What it says of candidates that are not negatives is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from unremix.pairs import Block, Pairs

Gradient = Literal["pseudo-label", "nt-xent"]

SMALLEST_NORM = 1e-12  # an embedding at most this long has no direction: its unit vector is 0


def noise(dtype: torch.dtype) -> float:
    """The largest value that, beside values of order one, counts as rounding."""
    return 64 * torch.finfo(dtype).eps


def normalise(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors f = z/|z| and lengths |z|; a zero vector stays zero and passes no gradient.

    Args:
        embeddings: z, shape (N, D).

    Returns:
        f, shape (N, D), and |z|, shape (N,); |z| carries no gradient and is 0 for a zero vector.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]]), tensor([5., 0.]))
    """
    lengths = torch.linalg.vector_norm(embeddings.detach(), dim=1)
    lengths = lengths.masked_fill(lengths <= SMALLEST_NORM, 0.0)
    zero = (lengths == 0)[:, None]
    # The substitute keeps the norm's gradient finite where the embedding is zero.
    safe = torch.where(zero, torch.ones_like(embeddings), embeddings)
    units = safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True)
    return units.masked_fill(zero, 0.0), lengths


def row_argmax(values: Tensor, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Maximum of each row and where it stands first; several times faster than ``torch.max``.

    The maxima of chunks vectorise, an index search does not: so search among the chunks' maxima,
    then within one chunk.

    Args:
        values: Shape (B, M).
        chunk: Columns per chunk.

    Returns:
        Maxima and columns, both of shape (B,).
    """
    whole = values.shape[1] // chunk * chunk
    maxima = values[:, :whole].unflatten(1, (-1, chunk)).amax(2) if whole else values[:, :0]
    if whole < values.shape[1]:
        maxima = torch.cat([maxima, values[:, whole:].amax(1, keepdim=True)], dim=1)
    highest, best = maxima.max(dim=1)
    columns = (best[:, None] * chunk + torch.arange(chunk, device=values.device)).clamp_(
        max=values.shape[1] - 1
    )
    within = (values.gather(1, columns) == highest[:, None]).int().argmax(dim=1)
    return highest, best * chunk + within


class Scratch:
    """Arrays (B, M) that one block after the other writes into, by their names.

    Fresh memory costs more than a sweep over memory in cache, so a block takes over the arrays of
    the block before it. All lie in one piece: an allocator keeps one large piece for the next call
    where it would give many small ones back.

    Args:
        slots: How many names to expect.
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        self._places: dict[str, int] = {}
        self._piece: Tensor | None = None

    def take(self, name: str, shape: tuple[int, int], like: Tensor) -> Tensor:
        """An array of arbitrary content, valid until its name is taken again.

        Args:
            name: Which.
            shape: (B, M); B must not grow from one block to the next.
            like: Gives dtype and device.
        """
        place = self._places.setdefault(name, len(self._places))
        if self._piece is None:
            self._piece = like.new_empty(self._slots, *shape)
        if place >= self._slots:
            return like.new_empty(shape)
        return self._piece[place, : shape[0]]


def residuals(
    units: Tensor,
    lengths: Tensor,
    class_units: Tensor,
    pairs: Pairs,
    *,
    temperature: float,
    gradient: Gradient = "pseudo-label",
    tile: int | None = None,
) -> Tensor:
    """δ: gradient at z of the cross-entropy of a view's pseudo-posterior against its label.

    p = softmax over classes k of f·f_k / t;  y = argmax p;
    d = (Σ_k p_k f_k - f_y) / t;  δ = (d - (d·f) f) / |z|.

    The classes of a view are its negatives in ``pairs``, constants. For ``nt-xent`` they include
    its positives, which are the label in place of the argmax. A view without class, or without
    direction (z = 0), has δ = 0, and so has one whose d is zero up to rounding.

    Args:
        units: f of the views, shape (N, D).
        lengths: |z| of the views, shape (N,).
        class_units: f of the classes, shape (M, D).
        pairs: Which classes each view has.
        temperature: t.
        gradient: Which cross-entropy.
        tile: Rows at a time.

    Returns:
        δ, shape (N, D).

    Reference:
        UnReMix, Eq. 2 and 3; Ash et al. 2020 (BADGE).
    """
    labels = pairs
    if gradient == "nt-xent":
        pairs = pairs.with_positives_as_negatives()
        share = labels.share.to(units.dtype)[:, None] * class_units[labels.positives.candidate]
        label_units = torch.zeros_like(units).index_add_(0, labels.positives.anchor, share)
    never = torch.finfo(units.dtype).min
    result = torch.empty_like(units)
    scratch = Scratch()
    for block in pairs.blocks(tile):
        f = units[block.anchors]
        posterior = scratch.take("posterior", (f.shape[0], class_units.shape[0]), f)
        block.blank(torch.mm(f, class_units.T, out=posterior), never)  # (B, M)
        if gradient == "nt-xent":
            highest, label = posterior.amax(1), label_units[block.anchors]
        else:
            highest, most_confident = row_argmax(posterior)
            label = class_units[most_confident]
        posterior.sub_(highest[:, None]).mul_(1 / temperature).exp_()
        expected = (posterior @ class_units).div_(posterior.sum(1, keepdim=True))
        d = expected.sub_(label)
        delta = d - (d * f).sum(1, keepdim=True) * f
        length = lengths[block.anchors][:, None]
        nothing = (
            (torch.linalg.vector_norm(delta, dim=1, keepdim=True) <= noise(delta.dtype))
            | (length == 0)
            | (block.count == 0)
        )
        result[block.anchors] = (delta / (temperature * length)).masked_fill_(nothing, 0.0)
    return result


@dataclass(frozen=True)
class Views:
    """Embeddings of some views, and what is known of the layer that made them.

    Args:
        embeddings: z, shape (N, D).
        inputs: h with z = W h + b, shape (N, H), if known.
        residuals: δ, shape (N, D), if computed already.
    """

    embeddings: Tensor
    inputs: Tensor | None = None
    residuals: Tensor | None = None

    @cached_property
    def _normalised(self) -> tuple[Tensor, Tensor]:
        return normalise(self.embeddings)

    @property
    def units(self) -> Tensor:
        """F = z/|z|, shape (N, D), with gradient."""
        return self._normalised[0]

    @property
    def lengths(self) -> Tensor:
        """|z|, shape (N,)."""
        return self._normalised[1]


def sketch(inputs: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Project h to ``size`` dimensions so that inner products are kept on average.

    h' = sqrt(H/size) Qᵀ h with Q a random orthonormal (H, size): E[h'_i · h'_j] = h_i · h_j over
    draws of Q. At ``size`` ≥ H nothing is projected.

    Args:
        inputs: h, shape (N, H).
        size: Dimensions kept.
        seed: Draws Q; the same seed gives the same Q.

    Returns:
        Shape (N, min(size, H)).
    """
    width = inputs.shape[1]
    if size >= width:
        return inputs
    return inputs @ _projection(width, size, seed).to(inputs)


@lru_cache(maxsize=8)
def _projection(width: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(gaussian)
    # Signs make the factorisation unique, so that Q is uniformly distributed.
    scaled: Tensor = basis * triangle.diagonal().sign() * math.sqrt(width / size)
    return scaled


@dataclass(frozen=True)
class Context:
    """What the scores of any block of anchors are computed from; nothing here carries gradient.

    Args:
        pairs: Positives and negatives.
        anchor_units: f of the anchors, shape (N, D).
        candidate_units: f of the candidates, shape (M, D).
        anchor_residuals: δ of the anchors, shape (N, D), where a component needs it.
        candidate_residuals: δ of the candidates, shape (M, D).
        anchor_inputs: h of the anchors, shape (N, H), where a last layer is known.
        candidate_inputs: h of the candidates, shape (M, H).
        bias: Whether that layer has a bias.
    """

    pairs: Pairs
    anchor_units: Tensor
    candidate_units: Tensor
    anchor_residuals: Tensor | None = None
    candidate_residuals: Tensor | None = None
    anchor_inputs: Tensor | None = None
    candidate_inputs: Tensor | None = None
    bias: bool = True

    @cached_property
    def apartness(self) -> Tensor:
        """f_j · f_j - f_j · T with T the sum of all candidates' f: -Σ over j' ≠ j, shape (M,)."""
        candidates = self.candidate_units
        return (candidates * candidates).sum(1) - candidates @ candidates.sum(0)

    @cached_property
    def twins_are_candidates(self) -> bool:
        """Whether the two candidates masked for a pair of twin anchors are these anchors."""
        if not self.pairs.twins:
            return False
        first, second = self.anchor_units.chunk(2)
        masked = self.pairs.masked.candidate.view(-1, 2)[: first.shape[0]]
        return torch.equal(self.candidate_units[masked], torch.stack([first, second], dim=1))


def make_context(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    *,
    needs_residuals: bool = True,
    posterior_temperature: float = 1.0,
    gradient: Gradient = "pseudo-label",
    bias: bool = True,
    tile: int | None = None,
) -> Context:
    """Gather what the scores need; δ is computed where the views do not bring it.

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives.
        needs_residuals: Whether a component needs δ and h.
        posterior_temperature: t of the pseudo-posterior.
        gradient: ``pseudo-label`` or ``nt-xent``.
        bias: Whether the last layer has a bias.
        tile: Rows at a time.

    Raises:
        ValueError: For ``nt-xent`` where a view has no positive.
    """
    anchor_units, candidate_units = anchors.units.detach(), candidates.units.detach()
    if not needs_residuals:
        return Context(pairs, anchor_units, candidate_units)
    if (anchors.inputs is None) != (candidates.inputs is None):
        raise ValueError(
            "expected the last layer's inputs h for anchors and candidates or for neither, "
            "received them for one; hand over both or none"
        )

    def made(views: Views, classes: Views, pairs: Pairs) -> Tensor:
        if views.residuals is not None:
            return views.residuals.detach()
        if gradient == "nt-xent" and bool((pairs.positive_count == 0).any()):
            raise ValueError(
                "expected a positive for every view with gradient='nt-xent', received "
                f"{int((pairs.positive_count == 0).sum())} views without one (old keys of a queue "
                "have none); use gradient='pseudo-label'"
            )
        return residuals(
            views.units.detach(),
            views.lengths,
            classes.units.detach(),
            pairs,
            temperature=posterior_temperature,
            gradient=gradient,
            tile=tile,
        )

    anchor_residuals = made(anchors, candidates, pairs)
    if anchors is candidates:
        candidate_residuals = anchor_residuals
    else:
        candidate_residuals = made(candidates, anchors, pairs.transposed())
    return Context(
        pairs,
        anchor_units,
        candidate_units,
        anchor_residuals,
        candidate_residuals,
        None if anchors.inputs is None else anchors.inputs.detach(),
        None if candidates.inputs is None else candidates.inputs.detach(),
        bias,
    )


@dataclass(frozen=True)
class Rows:
    """A block of anchors and its similarities to all candidates.

    Args:
        block: Which anchors.
        similarity: s, shape (B, M).
        scratch: Memory to write into.
    """

    block: Block
    similarity: Tensor
    scratch: Scratch = field(default_factory=Scratch)

    def empty(self, name: str) -> Tensor:
        """An array (B, M) of arbitrary content, valid until its name is taken again."""
        rows, columns = self.similarity.shape
        return self.scratch.take(name, (rows, columns), self.similarity)


Score = Callable[[Rows, Context], Tensor]


def similarity(rows: Rows, context: Context) -> Tensor:
    """s_ij = f_i · f_j, shape (B, M)."""
    return rows.similarity


def uncertainty(rows: Rows, context: Context) -> Tensor:
    """u_ij = <g_i, g_j> = (δ_i · δ_j)(h_i · h_j + 1), shape (B, M).

    The 1 belongs to the bias; without a known layer u_ij = δ_i · δ_j.

    Raises:
        ValueError: If the context holds no δ.
    """
    anchors = rows.block.anchors
    if context.anchor_residuals is None or context.candidate_residuals is None:
        raise ValueError(
            "expected a context with residuals for the uncertainty, received none; "
            "make it with unremix.scores.make_context"
        )
    delta = torch.mm(
        context.anchor_residuals[anchors], context.candidate_residuals.T, out=rows.empty("delta")
    )
    if context.anchor_inputs is None or context.candidate_inputs is None:
        return delta
    features = torch.mm(
        context.anchor_inputs[anchors], context.candidate_inputs.T, out=rows.empty("temporary")
    )
    return delta.addcmul_(delta, features) if context.bias else delta.mul_(features)


def representativeness(rows: Rows, context: Context) -> Tensor:
    """r_ij = mean over j' in Neg(i), j' ≠ j, of (1 - f_j · f_j'), shape (B, M); 0 for one negative.

    Without a loop: with T = Σ_j' f_j' over all candidates, the sum over the other negatives is
    f_j·T - f_j·f_j - Σ over the masked j' of f_j·f_j'.
    """
    block, candidates, column = rows.block, context.candidate_units, context.apartness
    others = (block.count - 1).to(column.dtype)  # (B, 1)
    if context.twins_are_candidates:
        # The masked candidates of i and i' are these two themselves, whose rows are at hand.
        half = others.shape[0] // 2
        distance = rows.empty("distance")
        first = torch.add(rows.similarity[:half], rows.similarity[half:], out=distance[:half])
        first.add_(column).mul_(1 / others[:half].clamp(min=1)).add_(1)
        distance[half:] = first
    else:
        excluded = block.masked_row, block.masked - block.masked_row * column.numel()
        members = torch.sparse_coo_tensor(
            torch.stack(excluded),
            torch.ones_like(block.masked, dtype=column.dtype),
            (others.shape[0], column.numel()),
            check_invariants=True,
        )
        masked_sum = members @ candidates  # (B, D)
        distance = torch.mm(masked_sum, candidates.T, out=rows.empty("distance")).add_(column)
        distance = distance.mul_(1 / others.clamp(min=1)).add_(1)
    return distance.mul_(others > 0) if bool((others <= 0).any()) else distance


@dataclass(frozen=True)
class Component:
    """A score and what it takes to use it.

    Args:
        score: The function.
        magnitude: Size of the values it is the small difference of: a row that varies by less than
            rounding of this size counts as constant. None: the row's own largest value.
        needs_residuals: Whether the context must hold δ and h.
    """

    score: Score
    magnitude: float | None = None
    needs_residuals: bool = False


COMPONENTS: dict[str, Component] = {
    "uncertainty": Component(uncertainty, needs_residuals=True),
    "similarity": Component(similarity, magnitude=1.0),
    "representativeness": Component(representativeness, magnitude=1.0),
}
