"""Three scores of every candidate for every anchor, in closed form: s, u and r.

A component is one function ``score(rows, context) -> (B, M)``: it scores all M candidates for a
block of B anchors. To add one, write the function and add a line to :data:`COMPONENTS`, or hand the
function to ``components=`` directly. What it says of candidates that are not negatives is ignored.
Where its rows are lines of a smaller table, it may return that, as :class:`Scored`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from unremix import native
from unremix.pairs import Block, Pairs

Gradient = Literal["pseudo-label", "nt-xent"]

NUMPY = find_spec("numpy") is not None  # torch does without
STAGGER = 272  # numbers between arrays, or all would fall onto the same lines of the cache
KEPT = 16 * 2**20  # bytes of similarities kept from the first pass, δ, to the second, the loss
KEPT_BETWEEN = 64 * 2**20  # bytes of memory kept from one batch to the next, at most
LOG2_E = math.log2(math.e)  # e^x = 2^(x log₂ e), which takes half the time
COLD = 0.05  # e^{s/t} is safe without a maximum taken off down to this t, since |s| ≤ 1
SMALLEST_NORM = 1e-12  # an embedding at most this long has no direction: its unit vector is 0


def noise(dtype: torch.dtype) -> float:
    """The largest value that, beside values of order one, counts as rounding."""
    return 64 * torch.finfo(dtype).eps


def normalise(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors f = z/|z| and lengths |z|, without gradient; a zero vector stays zero.

    Args:
        embeddings: z, shape (..., D).

    Returns:
        f, shape (..., D), and |z|, shape (...), which is 0 for a zero vector.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]]), tensor([5., 0.]))
    """
    embeddings = embeddings.detach()
    if native.serves(embeddings):
        return native.normalise(embeddings, SMALLEST_NORM)
    lengths = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
    if lengths.numel() and not math.isfinite(float(lengths.max())):  # of squares too large
        largest = embeddings.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_NORM)
        lengths = torch.linalg.vector_norm(embeddings / largest, dim=-1, keepdim=True) * largest
    units = embeddings / lengths
    if lengths.numel() and float(lengths.min()) <= SMALLEST_NORM:
        zero = lengths <= SMALLEST_NORM
        units, lengths = units.masked_fill_(zero, 0.0), lengths.masked_fill_(zero, 0.0)
    return units, lengths[..., 0]


def normalise_backward(gradient: Tensor, units: Tensor, lengths: Tensor) -> Tensor:
    """Gradient at z from that at f = z/|z|: (g - (g·f) f)/|z|; 0 for a zero vector.

    Args:
        gradient: g, shape (N, D); overwritten.
        units: f, shape (N, D).
        lengths: |z|, shape (N,).

    Returns:
        Shape (N, D).
    """
    along = torch.linalg.vecdot(gradient, units)
    inverse = lengths.reciprocal().nan_to_num_(nan=math.nan, posinf=0.0)[:, None]
    return gradient.addcmul_(units, along[:, None], value=-1).mul_(inverse)


def row_argmax(values: Tensor, chunk: int | None = None) -> Tensor:
    """Where the maximum of each row stands first; several times faster than ``torch.argmax``.

    NumPy vectorises the search along rows in memory, torch does not. Where NumPy cannot help: the
    maxima of chunks vectorise, so search among these, then within one chunk.

    Args:
        values: Shape (B, M), contiguous or the transpose of such.
        chunk: Columns per chunk; None leaves it to NumPy where that is faster, and is 64 elsewhere.

    Returns:
        Columns, shape (B,).

    Example:
        >>> row_argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]))
        tensor([1, 0])
    """
    if values.is_contiguous():
        known = values.dtype != torch.bfloat16  # to NumPy
        if chunk is None and NUMPY and known and values.device.type == "cpu":
            return torch.from_numpy(values.detach().numpy().argmax(1))
        array, along = values, 1
    else:
        array, along = values.T, 0
    length = array.shape[along]
    chunk = chunk or 64
    whole = length // chunk * chunk
    maxima = array.narrow(along, 0, whole).unflatten(along, (-1, chunk)).amax(along + 1)
    if whole < length:
        rest = array.narrow(along, whole, length - whole).amax(along, keepdim=True)
        maxima = torch.cat([maxima, rest], dim=along)
    best = maxima.argmax(dim=along, keepdim=True)
    steps = torch.arange(chunk, device=values.device)
    place = (best * chunk + (steps if along else steps[:, None])).clamp_(max=length - 1)
    within: Tensor = array.gather(along, place).argmax(dim=along)
    return within.add_(best.squeeze(along), alpha=chunk)


_between_batches = threading.local()  # memory that this thread keeps, by name


class Scratch:
    """Arrays (B, M) that one block after the other writes into, by their names.

    Fresh memory costs more than a sweep over memory in cache, so a block takes over the arrays of
    the block before it, and on the CPU one batch those of the batch before. All lie in one piece.

    Args:
        slots: How many names to expect.
        keep: Under which name this thread keeps the memory for the next; None: it does not.
    """

    def __init__(self, slots: int = 1, *, keep: str | None = None) -> None:
        self._slots = slots
        self._keep = keep
        self._size = 0
        self._whole: Tensor | None = None
        self._pieces: dict[str, Tensor] = {}

    def _memory(self, size: int, like: Tensor) -> Tensor:
        """A piece of at least ``size`` numbers."""
        if torch.compiler.is_compiling():
            return like.new_empty(size)
        kept: Tensor | None = _between_batches.__dict__.pop(self._keep or "", None)
        if (
            kept is not None
            and kept.numel() >= size
            and (kept.dtype, kept.device) == (like.dtype, like.device)
        ):
            return kept
        return like.new_empty(size + (size >> 3))  # batches of graphs differ a little in size

    def release(self) -> None:
        """Keep the memory for the next batch; no array taken from here is valid from now on."""
        whole, self._whole, self._pieces = self._whole, None, {}
        if torch.compiler.is_compiling():
            return
        if (
            self._keep is not None
            and whole is not None
            and whole.device.type == "cpu"
            and whole.nbytes <= KEPT_BETWEEN
            and not whole.is_inference()
        ):
            _between_batches.__dict__[self._keep] = whole

    def take(self, name: str, shape: tuple[int, int], like: Tensor) -> Tensor:
        """An array of arbitrary content, valid until its name is taken again.

        Args:
            name: Which.
            shape: (B, M); B must not grow from one block to the next.
            like: Gives dtype and device.
        """
        piece = self._pieces.get(name)
        if piece is None:
            place = len(self._pieces)
            if self._whole is None:
                self._size = math.prod(shape) + STAGGER
                self._whole = self._memory(self._slots * self._size, like)
            if place < self._slots:
                piece = self._whole.as_strided(shape, (shape[1], 1), place * self._size)
            else:
                piece = like.new_empty(shape)
            self._pieces[name] = piece
        return piece if piece.shape[0] == shape[0] else piece[: shape[0]]


def lower_strips(count: int, number: int = 2) -> Iterator[tuple[slice, slice]]:
    """Cut the lower triangle of a (count, count) array into strips: their rows and their columns.

    Two strips spare a quarter of the work on what is symmetric; more spare more, in smaller pieces.
    """
    step = -(-count // number)
    for first in range(0, count, step):
        yield slice(first, count), slice(first, min(first + step, count))


def mirror(values: Tensor, columns: slice) -> None:
    """Write what lies opposite to a strip of a symmetric array, shape (N, N), in place."""
    values[columns, columns.stop :] = values[columns.stop :, columns].T


def inner_products(
    anchors: Tensor, candidates: Tensor, own: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Of each anchor with all candidates and, to their right, with those of its own.

    Args:
        anchors: Shape (B, D).
        candidates: Shape (M, D).
        own: Shape (B, S, D), if there are any.
        out: Shape (B, M + S), to write into.

    Returns:
        Shape (B, M + S).
    """
    if own is not None:
        inner = torch.einsum("bd,bsd->bs", anchors, own)
        return torch.cat([anchors @ candidates.T, inner], dim=1, out=out)
    return torch.mm(anchors, candidates.T, out=out)


def residuals(
    units: Tensor,
    lengths: Tensor,
    class_units: Tensor,
    pairs: Pairs,
    *,
    temperature: float,
    gradient: Gradient = "pseudo-label",
    tile: int | None = None,
    similarity: Tensor | None = None,
    posterior: Posterior | None = None,
    own_units: Tensor | None = None,
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
        similarity: f·f_k, shape (N, M), where it is at hand.
        posterior: p of the views, where at hand.
        own_units: f of the classes of one view alone, shape (N, S, D), where ``pairs`` has any.

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
    count = class_units.shape[0]
    result = torch.empty_like(units)
    scratch = Scratch()
    for block in pairs.blocks(tile):
        f = block.take(units)
        own = None if own_units is None else block.take(own_units)
        if posterior is None:
            room = scratch.take("posterior", (f.shape[0], pairs.num_candidates), f)
            if similarity is None:
                products = inner_products(f, class_units, own, out=room)
            else:
                products = block.take(similarity)
            p = make_posterior(products, block, temperature, out=room)
        else:
            p = posterior.of(block)
        values, length = p.values, block.take(lengths)  # (B, M), up to a factor per row, and (B,)
        plain = own is None and gradient == "pseudo-label"
        if plain and native.serves(f, length, class_units, p.total):
            delta = native.residual(
                values @ class_units,
                f,
                length,
                class_units,
                p.total,
                p.label,
                temperature=temperature,
                noise=noise(f.dtype),
            )
            if block.whole:
                return delta
            result[block.anchors] = delta
            continue
        total = p.total[:, None].clamp(min=torch.finfo(units.dtype).tiny)
        if gradient == "pseudo-label":  # p_y - 1 in place of p_y: then one product gives d
            most_confident = p.label[:, None]
            largest = values.gather(1, most_confident)
            values.scatter_(1, most_confident, largest - total)
        if own is None:
            d = values @ class_units  # all of this times Σ posterior, until the end
        else:
            d = values[:, :count] @ class_units
            d += torch.einsum("bs,bsd->bd", values[:, count:], own)
        if gradient == "nt-xent":
            d.addcmul_(total, block.take(label_units), value=-1)
        elif posterior is not None:
            values.scatter_(1, most_confident, largest)
        delta = d.addcmul_((d * f).sum(1, keepdim=True), f, value=-1)
        nothing = torch.linalg.vector_norm(delta, dim=1, keepdim=True) <= noise(delta.dtype) * total
        if block.fewest == 0:
            nothing |= block.count == 0
        # 1/(t |z|), and 0 in place of 1/0.
        scale = torch.div(1 / temperature, length[:, None] * total)
        scale.nan_to_num_(nan=math.nan, posinf=0.0).masked_fill_(nothing, 0.0)
        delta.mul_(scale)
        if block.whole:
            return delta
        result[block.anchors] = delta
    return result


@dataclass(frozen=True)
class Posterior:
    """Pseudo-posteriors of some views over their classes, each up to a factor.

    Args:
        values: e^{s/t}, 0 where there is no class, shape (N, M).
        known: Sum and first place of the maximum of each row, shapes (N,), where they came along.
    """

    values: Tensor
    known: tuple[Tensor, Tensor] | None = None

    @cached_property
    def total(self) -> Tensor:
        """Σ_k e^{s_k/t}, shape (N,)."""
        return self.values.sum(1) if self.known is None else self.known[0]

    @cached_property
    def label(self) -> Tensor:
        """y, the most probable class, shape (N,)."""
        return row_argmax(self.values) if self.known is None else self.known[1]

    def of(self, block: Block) -> Posterior:
        """The rows of a block."""
        if block.whole:
            return self
        known = self.known and (block.take(self.known[0]), block.take(self.known[1]))
        return Posterior(block.take(self.values), known)


def make_posterior(
    similarity: Tensor, block: Block, temperature: float, *, out: Tensor
) -> Posterior:
    """The pseudo-posteriors of a block.

    Args:
        similarity: s, cosines, shape (B, M).
        block: The rows.
        temperature: t.
        out: Shape (B, M), to write into; may be ``similarity`` itself.
    """
    if native.serves(similarity, out):
        total, label, _, _ = native.posterior(
            similarity, block.masked, temperature, bounded=temperature >= COLD, out=out
        )
        return Posterior(out, (total, label))
    return Posterior(exponentiate(similarity, block, temperature, out=out))


def make_posteriors(
    similarity: Tensor, pairs: Pairs, temperature: float, *, shared: bool, out: Tensor
) -> tuple[Posterior, Posterior]:
    """The pseudo-posteriors of anchors and of candidates, of the same exponentials.

    Args:
        similarity: s, cosines, shape (N, M).
        pairs: Who is whose class.
        temperature: t, not below :data:`COLD`.
        shared: Whether anchors and candidates are the same.
        out: Shape (N, M), to write into.
    """
    (whole,) = pairs.blocks(None)
    if shared or not native.serves(similarity):
        one = make_posterior(similarity, whole, temperature, out=out)
        return one, one if shared else Posterior(out.T)
    total, label, column_total, column_label = native.posterior(
        similarity, whole.masked, temperature, bounded=True, out=out, columns=True
    )
    assert column_total is not None
    assert column_label is not None
    return Posterior(out, (total, label)), Posterior(out.T, (column_total, column_label))


def exponentiate(similarity: Tensor, block: Block, temperature: float, *, out: Tensor) -> Tensor:
    """e^{s/t} up to a factor per row, 0 where there is no negative.

    Where t is small the row maximum is taken off first; else |s| ≤ 1 keeps it in bounds.

    Args:
        similarity: s, cosines, shape (B, M).
        block: The rows.
        temperature: t.
        out: Shape (B, M), to write into; may be ``similarity`` itself.
    """
    exponent = torch.mul(similarity, LOG2_E / temperature, out=out)
    if temperature < COLD:
        exponent.sub_(block.fill(exponent).amax(1, keepdim=True))
    return block.blank(exponent.exp2_())


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
        """F = z/|z|, shape (N, D), without gradient."""
        return self._normalised[0]

    @property
    def lengths(self) -> Tensor:
        """|z|, shape (N,)."""
        return self._normalised[1]


@dataclass(frozen=True)
class Own:
    """S further candidates of each anchor, all of them negatives of that anchor alone.

    Such as mixtures of its hardest negatives, or patches of its own image. No gradient reaches
    them.

    Args:
        embeddings: z, shape (N, S, D).
        inputs: h with z = W h + b, shape (N, S, H), if known.
        logit_factor: Multiplies their logits.
        residuals: δ, shape (N, S, D), if computed already.

    Raises:
        ValueError: For embeddings of another shape.
    """

    embeddings: Tensor
    inputs: Tensor | None = None
    logit_factor: float = 1.0
    residuals: Tensor | None = None

    def __post_init__(self) -> None:
        if self.embeddings.dim() != 3 or 0 in self.embeddings.shape:
            raise ValueError(
                "expected own candidates of shape (N, S, D), none of them 0, received "
                f"{tuple(self.embeddings.shape)}; hand over None where there are none"
            )

    @cached_property
    def _normalised(self) -> tuple[Tensor, Tensor]:
        return normalise(self.embeddings)

    @property
    def units(self) -> Tensor:
        """F = z/|z|, shape (N, S, D)."""
        return self._normalised[0]

    @property
    def lengths(self) -> Tensor:
        """|z|, shape (N, S)."""
        return self._normalised[1]

    def against_all(self, num_anchors: int) -> tuple[Views, Pairs]:
        """All N S of them as views, and pairs in which every anchor is a class of each."""
        known = self.residuals
        known = None if known is None else known.flatten(0, 1)
        flat = Views(self.embeddings.flatten(0, 1), residuals=known)
        none = torch.zeros(0, dtype=torch.long, device=self.embeddings.device)
        return flat, Pairs.build(flat.embeddings.shape[0], num_anchors, (none, none))


def sketch(inputs: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Project h to ``size`` dimensions so that inner products are kept on average.

    h' = sqrt(H/size) Qᵀ h with Q a random orthonormal (H, size): E[h'_i · h'_j] = h_i · h_j over
    draws of Q. At ``size`` ≥ H nothing is projected.

    Args:
        inputs: h, shape (..., H).
        size: Dimensions kept.
        seed: Draws Q; the same seed gives the same Q.

    Returns:
        Shape (..., min(size, H)).
    """
    width = inputs.shape[-1]
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
        anchors: N views.
        candidates: M views.
        own: Each anchor's own candidates, if there are any.
        anchor_residuals: δ of the anchors, shape (N, D), where a component needs it.
        candidate_residuals: δ of the candidates, shape (M, D).
        own_residuals: δ of own candidates, shape (N, S, D).
        bias: Whether the last layer has a bias.
        similarity: f·f of all anchors and candidates, shape (N, M), where it is at hand.
        exponentials: e^{f·f / t}, 0 where there is no negative, shape (N, M), where at hand.
        posterior_temperature: t.
    """

    pairs: Pairs
    anchors: Views
    candidates: Views
    own: Own | None = None
    anchor_residuals: Tensor | None = None
    candidate_residuals: Tensor | None = None
    own_residuals: Tensor | None = None
    bias: bool = True
    similarity: Tensor | None = None
    exponentials: Tensor | None = None
    posterior_temperature: float = 1.0

    @property
    def anchor_units(self) -> Tensor:
        """F of the anchors, shape (N, D)."""
        return self.anchors.units

    @property
    def candidate_units(self) -> Tensor:
        """F of the candidates, shape (M, D)."""
        return self.candidates.units

    @property
    def own_units(self) -> Tensor | None:
        """F of each anchor's own candidates, shape (N, S, D), if there are any."""
        return None if self.own is None else self.own.units

    @cached_property
    def anchor_inputs(self) -> Tensor | None:
        """H of the anchors, shape (N, H), where a last layer is known."""
        return None if self.anchors.inputs is None else self.anchors.inputs.detach()

    @cached_property
    def candidate_inputs(self) -> Tensor | None:
        """H of the candidates, shape (M, H), where a last layer is known."""
        return None if self.candidates.inputs is None else self.candidates.inputs.detach()

    @cached_property
    def own_inputs(self) -> Tensor | None:
        """H of own candidates, shape (N, S, H), where a last layer is known."""
        return None if self.own is None or self.own.inputs is None else self.own.inputs.detach()

    @cached_property
    def apartness(self) -> Tensor:
        """f_j · f_j - f_j · T with T the sum of all candidates' f: -Σ over j' ≠ j, shape (M,)."""
        candidates = self.candidate_units
        squares: Tensor = torch.linalg.vector_norm(candidates, dim=1).square_()
        return squares.sub_(candidates @ candidates.sum(0))

    @cached_property
    def without(self) -> Tensor:
        """r of each candidate j where k alone is masked, at [k, j], filled, shape (M, M)."""
        candidates, count = self.candidate_units, self.pairs.num_candidates
        if count <= 2:
            return candidates.new_zeros(count, count)
        products = candidates @ candidates.T
        if native.serves(products):
            return native.without(products)
        table = products.add_(self.apartness).div_(count - 2).add_(1)
        table.diagonal()[1:] = table[1:, 0]
        table[0, 0] = table[0, 1]
        return table

    @cached_property
    def twins_are_candidates(self) -> bool:
        """Whether the two candidates masked for a pair of twin anchors are these anchors."""
        if not self.pairs.twins:
            return False
        if self.anchor_units is self.candidate_units:
            return True
        first, second = self.anchor_units.chunk(2)
        masked = self.pairs.masked.candidate.view(-1, 2)[: first.shape[0]]
        return torch.equal(self.candidate_units[masked], torch.stack([first, second], dim=1))


def _check_shapes(anchors: Views, candidates: Views, own: Own | None, pairs: Pairs) -> None:
    """Compiled code takes shapes on trust, and torch resizes what it writes into."""
    width, inputs = candidates.embeddings.shape[-1:], candidates.inputs
    everything = [
        tensor
        for views in (anchors, candidates, own)
        if views is not None
        for tensor in (views.embeddings, views.inputs, views.residuals)
        if tensor is not None
    ]
    dtypes = list(dict.fromkeys(str(tensor.dtype) for tensor in everything))
    if len(dtypes) > 1:
        raise ValueError(
            "expected embeddings, inputs and residuals of one dtype, received "
            f"{' and '.join(dtypes)}; convert with .to()"
        )
    count = pairs.num_anchors
    for name, views, rows in (
        ("anchors", anchors, (count,)),
        ("candidates", candidates, (pairs.num_candidates - pairs.own,)),
        ("own candidates", own, (count, pairs.own)),
    ):
        if views is None:
            continue
        for what, given, last in (
            ("embeddings", views.embeddings, width),
            ("residuals", views.residuals, width),
            ("inputs", views.inputs, None if inputs is None else inputs.shape[-1:]),
        ):
            if given is not None and given.shape != (*rows, *(last or given.shape[-1:])):
                expected = (*rows, *(last or given.shape[-1:]))
                raise ValueError(
                    f"expected {what} of the {name} of shape {expected}, one row per view and of "
                    f"the candidates' width, received {tuple(given.shape)}; check the pairs"
                )


def make_context(
    anchors: Views,
    candidates: Views,
    pairs: Pairs,
    own: Own | None = None,
    *,
    needs_residuals: bool = True,
    posterior_temperature: float = 1.0,
    gradient: Gradient = "pseudo-label",
    bias: bool = True,
    tile: int | None = None,
    scratch: Scratch | None = None,
) -> Context:
    """Gather what the scores need; δ is computed where the views do not bring it.

    Args:
        anchors: N views.
        candidates: M views; the same object as ``anchors`` where every view is both.
        pairs: Positives and negatives; those of ``own`` included.
        own: Further candidates of each anchor alone. Their classes are all anchors.
        needs_residuals: Whether a component needs δ and h.
        posterior_temperature: t of the pseudo-posterior.
        gradient: ``pseudo-label`` or ``nt-xent``.
        bias: Whether the last layer has a bias.
        tile: Rows at a time.
        scratch: Memory for what is at hand for all anchors, while the context is in use.

    Raises:
        ValueError: For shapes that do not fit, or ``nt-xent`` where a view has no positive.
    """
    _check_shapes(anchors, candidates, own, pairs)
    if not needs_residuals:
        return Context(pairs, anchors, candidates, own)
    own_units = None if own is None else own.units
    known = [views.inputs is not None for views in (anchors, candidates, own) if views is not None]
    if len(set(known)) > 1:
        raise ValueError(
            "expected the last layer's inputs h for anchors and candidates or for neither, "
            "received them for one; hand over both or none"
        )

    def made(
        views: Views,
        classes: Views,
        pairs: Pairs,
        *,
        similarity: Tensor | None = None,
        posterior: Posterior | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        if views.residuals is not None:
            return views.residuals.detach()
        if gradient == "nt-xent" and bool((pairs.positive_count == 0).any()):
            raise ValueError(
                "expected a positive for every view with gradient='nt-xent', received "
                f"{int((pairs.positive_count == 0).sum())} views without one (old keys of a queue "
                "have none); use gradient='pseudo-label'"
            )
        return residuals(
            views.units,
            views.lengths,
            classes.units,
            pairs,
            temperature=posterior_temperature,
            gradient=gradient,
            tile=tile,
            similarity=similarity,
            posterior=posterior,
            own_units=own,
        )

    similarity = posterior = back = None
    scratch = scratch or Scratch(slots=2)
    shape = (pairs.num_anchors, pairs.num_candidates)
    size = math.prod(shape) * anchors.units.element_size()
    kept = own is None and (tile is None or size <= KEPT)  # multiply once for both passes
    shared = anchors is candidates
    bounded = gradient == "pseudo-label" and posterior_temperature >= COLD
    unknown = anchors.residuals is None and candidates.residuals is None
    together = native.fit(candidates.units) and native.serves(anchors.units, candidates.units)
    if kept and bounded and unknown and together and not shared:
        room = scratch.take("similarity", shape, anchors.units)
        (whole,) = pairs.blocks(None)
        both = native.residuals(
            anchors.units,
            anchors.lengths,
            candidates.units,
            candidates.lengths,
            whole.masked,
            temperature=posterior_temperature,
            noise=noise(room.dtype),
            similarity=room,
        )
        return Context(pairs, anchors, candidates, None, *both, bias=bias, similarity=room)
    if kept:
        room = scratch.take("similarity", shape, anchors.units)
        similarity = inner_products(anchors.units, candidates.units, None, out=room)
    if similarity is not None and bounded:  # the same for both sides, and of use to the loss
        room = scratch.take("posterior", shape, similarity)
        posterior, back = make_posteriors(
            similarity, pairs, posterior_temperature, shared=shared, out=room
        )
    anchor_residuals = made(
        anchors, candidates, pairs, similarity=similarity, posterior=posterior, own=own_units
    )
    candidate_residuals = anchor_residuals
    if not shared:
        across = None if similarity is None else similarity.T
        candidate_residuals = made(
            candidates, anchors, pairs.transposed(), similarity=across, posterior=back
        )
    own_residuals = None
    if own is not None:
        flat, everyone = own.against_all(pairs.num_anchors)
        own_residuals = made(flat, anchors, everyone).view_as(own.embeddings)
    return Context(
        pairs,
        anchors,
        candidates,
        own,
        anchor_residuals,
        candidate_residuals,
        own_residuals,
        bias,
        similarity,
        None if posterior is None else posterior.values,
        posterior_temperature,
    )


@dataclass(frozen=True)
class Rows:
    """A block of anchors and its similarities to all candidates.

    Args:
        block: Which anchors.
        similarity: s, shape (B, M).
        scratch: Memory to write into.
        exponentials: e^logits, 0 where there is no negative, shape (B, M), where at hand; may be
            overwritten.
    """

    block: Block
    similarity: Tensor
    scratch: Scratch = field(default_factory=Scratch)
    exponentials: Tensor | None = None

    def empty(self, name: str) -> Tensor:
        """An array (B, M) of arbitrary content, valid until its name is taken again."""
        rows, columns = self.similarity.shape
        return self.scratch.take(name, (rows, columns), self.similarity)


@dataclass(frozen=True)
class Scored(native.Part):
    """A score of a block and the extremes of its rows: an array, a product, or lines of a table.

    What is never asked for is never made.

    Args:
        table: Shape (B, M); or (T, M), of which row i of the block takes one line. Overwritten.
        lines: Which line each row takes, shape (B,).
        times: The score is ``table × (times + plus)``, shape (B, M); None: it is the table.
        plus: See ``times``.
        room: Where to write the rows if lines are taken, shape (B, M).
    """

    room: Tensor | None = None

    @cached_property
    def values(self) -> Tensor:
        """The score itself, shape (B, M)."""
        table = native.array(self.table)
        if self.lines is not None:
            return torch.index_select(table, 0, self.lines, out=self.room)
        if self.times is None:
            return table
        return multiply(table, native.array(self.times), self.plus)

    @cached_property
    def low(self) -> Tensor:
        """Least value of each row, shape (B, 1)."""
        if self.lines is None:
            return self.values.amin(1, keepdim=True)
        return native.array(self.table).amin(1, keepdim=True)[self.lines]

    @cached_property
    def high(self) -> Tensor:
        """Largest value of each row, shape (B, 1)."""
        if self.lines is None:
            return self.values.amax(1, keepdim=True)
        return native.array(self.table).amax(1, keepdim=True)[self.lines]


Score = Callable[[Rows, Context], Tensor | Scored]


def similarity(rows: Rows, context: Context) -> Tensor:
    """s_ij = f_i · f_j, shape (B, M)."""
    return rows.similarity


def uncertainty(rows: Rows, context: Context) -> Scored:
    """u_ij = <g_i, g_j> = (δ_i · δ_j)(h_i · h_j + 1), shape (B, M).

    The 1 belongs to the bias; without a known layer u_ij = δ_i · δ_j.

    Raises:
        ValueError: If the context holds no δ.
    """
    if context.anchor_residuals is None or context.candidate_residuals is None:
        raise ValueError(
            "expected a context with residuals for the uncertainty, received none; "
            "make it with unremix.scores.make_context"
        )
    block, out = rows.block, rows.empty("uncertainty")
    residuals, inputs = block.take(context.anchor_residuals), context.anchor_inputs
    if residuals is context.candidate_residuals and context.own_residuals is None:
        room = rows.empty("temporary")
        for part, strip in lower_strips(residuals.shape[0]):  # u is symmetric
            values = torch.mm(residuals[part], residuals[strip].T, out=out[part, strip])
            if inputs is not None:
                inner = torch.mm(inputs[part], inputs[strip].T, out=room[part, strip])
                multiply(values, inner, float(context.bias))
            mirror(out, strip)
        return Scored(out)
    table: Tensor | native.Inner
    features: Tensor | native.Inner | None = None
    if context.own_residuals is None:
        table = native.Inner(residuals, context.candidate_residuals, out)
    else:
        own = block.take(context.own_residuals)
        table = inner_products(residuals, context.candidate_residuals, own, out=out)
    if inputs is not None and context.candidate_inputs is not None:
        room, vectors = rows.empty("features"), (block.take(inputs), context.candidate_inputs)
        if context.own_inputs is None:
            features = native.Inner(*vectors, room)
        else:
            features = inner_products(*vectors, block.take(context.own_inputs), out=room)
    return Scored(table, times=features, plus=float(context.bias))


def multiply(values: Tensor, times: Tensor, plus: float) -> Tensor:
    """``values × (times + plus)``, in place; all of one shape."""
    if plus == 1:
        return values.addcmul_(values, times)
    return values.mul_(times + plus if plus else times)


def representativeness(rows: Rows, context: Context) -> Tensor | Scored:
    """r_ij = mean over j' in Neg(i), j' ≠ j, of (1 - f_j · f_j'), shape (B, M); 0 for one negative.

    Without a loop: with T = Σ_j' f_j' over all candidates, the sum over the other negatives is
    f_j·T - f_j·f_j - Σ over the masked j' of f_j·f_j'.
    """
    block, candidates = rows.block, context.candidate_units
    if _alone(rows, context):
        which = block.masked - block.masked_row * context.pairs.num_candidates
        return Scored(context.without, which, room=rows.empty("distance"))
    column = context.apartness
    if context.twins_are_candidates:
        # The masked candidates of i and i' are these two themselves, whose rows are at hand.
        scale = 1 / max(context.pairs.num_candidates - 3, 1)
        distance = rows.empty("distance")
        first, second = distance.chunk(2)
        torch.add(*rows.similarity.chunk(2), out=second)
        torch.add(column * scale + 1, second, alpha=scale, out=first)
        second.copy_(first)
    else:
        width = context.pairs.num_candidates
        excluded = block.masked_row, block.masked - block.masked_row * width
        members = torch.sparse_coo_tensor(
            torch.stack(excluded),
            torch.ones_like(block.masked, dtype=column.dtype),
            (block.count.shape[0], column.numel()),
            check_invariants=True,
        )
        left_out = members @ candidates  # (B, D): what T counts too much
        if context.own_units is None:
            distance = torch.mm(left_out, candidates.T, out=rows.empty("distance")).add_(column)
        else:
            own = block.take(context.own_units)
            left_out -= own.sum(1)
            to_own = torch.einsum("bd,bsd->bs", left_out - candidates.sum(0), own)
            to_own += torch.einsum("bsd,bsd->bs", own, own)
            distance = torch.cat(
                [(left_out @ candidates.T).add_(column), to_own], dim=1, out=rows.empty("distance")
            )
        distance = distance.mul_(1 / (block.count - 1).clamp(min=1).to(column.dtype)).add_(1)
    return distance if block.fewest > 1 else distance.mul_(block.count > 1)


def _alone(rows: Rows, context: Context) -> bool:
    """Whether each row has one masked candidate, and there are few: a table of all is cheaper."""
    width = context.pairs.num_candidates
    if context.own_units is not None or rows.similarity.shape[0] < width:
        return False
    return context.pairs.one_masked


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
OURS = tuple(COMPONENTS.values())  # these look only at negatives, whatever stands elsewhere
