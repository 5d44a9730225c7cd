"""Hard negatives for every anchor: search, filter, choose, a block of anchors at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.console.quantities import counted
from unremix.core.checks import check_choice, check_count, check_number
from unremix.core.precision import noise
from unremix.core.scores import COMPONENTS, PAPER_COMPONENTS
from unremix.files.atomic_files import write_arrays
from unremix.files.npz import read_arrays
from unremix.files.seals import is_sealed, write_sealed
from unremix.mining.embeddings import Floats, Integers, digest_of, open_embeddings, unit_rows
from unremix.mining.filters import REASONS, forbidden_rows, highest_similarity
from unremix.mining.index import GROWTH, Advance, Allowed, Index, Kind, make_index
from unremix.mining.pairs import (
    Lists,
    Rescoring,
    ScorePairs,
    as_lists,
    own_rows,
    similarity_of_pairs,
)
from unremix.mining.selection import choose_greedily, choose_largest, pool_scores

Sampling = Literal["importance", "top", "random"]
Block = dict[str, NDArray[Any]]
"""The arrays of :class:`Mined` for some anchors, by name."""

LARGEST_SHARE = 1e6  # of a mix: float32 loses the others beside larger ones
POOL_PER_NEGATIVE = 10
SMALLEST_POOL = 50
ANCHORS_AT_ONCE = 1024  # that a pass over the corpus serves
NUMBERS_AT_ONCE = 2**21  # of pools in memory: 8 MB, which a cache holds


@dataclass(frozen=True)
class Mined:
    """What :func:`mine_hard_negatives` found.

    Args:
        indices: Rows of the corpus, in the order of choice, shape (A, k); -1 where fewer than k
            were found.
        scores: What each was chosen by: the mix of its scaled components, or the similarity;
            shape (A, k), NaN for missing negatives.
        similarity: s, the cosine of anchor and negative, or their score by the cross-encoder;
            shape (A, k). The same holds for the other similarities here.
        uncertainty: u, shape (A, k); NaN if it was no component.
        representativeness: r, shape (A, k); of the first negative over the pool, of the others
            over the negatives chosen before. NaN if it was no component.
        positive_similarity: The cosine of each anchor and its least similar positive, shape (A,);
            inf without a positive.
        highest_similarity: The largest cosine that a negative was allowed, shape (A,).
        left_out: How many rows each reason of :data:`unremix.mining.filters.REASONS` left out,
            each (A,). ``near_duplicate`` and ``copy`` count what was in the pool.
    """

    indices: Integers
    scores: Floats
    similarity: Floats
    uncertainty: Floats
    representativeness: Floats
    positive_similarity: Floats
    highest_similarity: Floats
    left_out: dict[str, Integers] = field(repr=False)

    @property
    def found(self) -> Integers:
        """How many negatives each anchor has, shape (A,)."""
        return np.asarray((self.indices >= 0).sum(1), dtype=np.int64)

    @property
    def short(self) -> Integers:
        """The anchors that have fewer than k negatives, shape (n,)."""
        return np.flatnonzero(self.found < self.indices.shape[1])

    def summary(self) -> list[str]:
        """What was found and what was left out, a sentence each."""
        anchors, k = self.indices.shape
        total = int(self.found.sum())
        lines = [f"{counted(total, 'negative')} for {counted(anchors, 'anchor')}"]
        for reason, counts in self.left_out.items():
            if counts.any():
                lines.append(f"left out: {int(counts.sum()):,} × {REASONS[reason]}")
        if len(self.short):
            few = ", ".join(map(str, self.short[:5].tolist()))
            more = ", …" if len(self.short) > 5 else ""
            lines.append(
                f"fewer than {k} negatives for {counted(len(self.short), 'anchor')} (numbers "
                f"{few}{more}); a smaller margin, a lower min_score or a larger corpus leaves more"
            )
        return lines


@dataclass(frozen=True)
class Choice:
    """How negatives are chosen from a pool; see :func:`mine_hard_negatives` for the options."""

    k: int
    pool: int
    skip: int
    range_max: int
    sampling: Sampling
    components: tuple[str, ...]
    mix: tuple[float, ...]
    posterior_temperature: float
    duplicate_threshold: float
    min_score: float | None
    seed: int


def mine_hard_negatives(
    anchors: Any,
    corpus: Any,
    positives: Any,
    k: int = 10,
    *,
    anchor_rows: Any = None,
    anchor_texts: Sequence[str] | None = None,
    corpus_texts: Sequence[str] | None = None,
    relative_margin: float | None = 0.05,
    absolute_margin: float | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    duplicate_threshold: float = 0.95,
    components: Sequence[str] = PAPER_COMPONENTS,
    mix: Literal["fixed"] | Sequence[float] = "fixed",
    posterior_temperature: float = 0.05,
    sampling: Sampling = "importance",
    pool: int | None = None,
    skip: int = 0,
    range_max: int | None = None,
    include_positives: bool = False,
    cross_encoder: ScorePairs | None = None,
    index: Kind | Index = "exact",
    folder: str | Path | None = None,
    seed: int = 0,
    advance: Advance | None = None,
    each: Each | None = None,
) -> Mined:
    """Find k hard negatives in a corpus for each anchor.

    The pool of an anchor is the most similar rows of the corpus that may be negatives. k of them
    are chosen greedily by a mix of similarity, uncertainty and representativeness; see
    :func:`unremix.mining.selection.choose_greedily`.

    Never returned are the positives, the anchor's own row, rows with the text of either,
    near-duplicates of a positive, and rows more similar to the anchor than the margin allows. If
    these rules leave fewer than k rows of a pool, the pool grows until k remain or the corpus ends.

    Args:
        anchors: Embeddings, shape (A, D): an array, a tensor, or the path of a ``.npy``, ``.npz``
            or ``.parquet`` file. Only directions count.
        corpus: Embeddings, shape (C, D), likewise. A ``.npy`` or ``.npz`` file stays on disk.
        positives: The row of the corpus that is each anchor's positive, shape (A,); or a sequence
            of A sequences of rows.
        k: Negatives per anchor.
        anchor_rows: The row of the corpus that is the anchor itself, shape (A,), -1 for none. By
            default none, and row i for anchor i if ``anchors`` and ``corpus`` are the same object.
        anchor_texts: A texts; rows with the same text are not returned.
        corpus_texts: C texts; rows with the text of the anchor's own row or of a positive are not
            returned. Case and white space are ignored.
        relative_margin: m. A negative's similarity is at most p - m |p|, with p that of the
            anchor's least similar positive. None for no such bound.
        absolute_margin: a. A negative's similarity is at most p - a.
        max_score: The largest similarity of a negative.
        min_score: The smallest.
        duplicate_threshold: The cosine from which a row is a near-duplicate of a positive.
        components: What is mixed: any of uncertainty, similarity and representativeness.
        mix: λ, one per component; ``fixed`` takes equal shares.
        posterior_temperature: t of the pseudo-posterior in the uncertainty.
        sampling: ``importance`` chooses by the mix; ``top`` takes the most similar rows of the
            pool, as :mod:`sentence_transformers` does; ``random`` draws from the pool.
        pool: P, rows to choose from, by default ``range_max``, or else 10 k and at least 50.
        skip: How many of the most similar rows of a pool to pass over.
        range_max: However far the pool grows, it ends with the row of this rank by similarity to
            the anchor. Positives, the anchor and its text have no rank; rows above the margin have.
        include_positives: Whether the positives may be returned too, as a reranker is evaluated:
            neither the margins nor the rule of near-duplicates applies.
        cross_encoder: Takes a list of (anchor text, corpus text) and returns their scores, such as
            ``CrossEncoder(...).predict``. The index finds the pool; within it, these scores stand
            for the similarity in bounds, order and mix. The pool does not grow.
        index: ``exact``, ``flat``, ``ivf`` or ``hnsw``, or an index of this corpus; see
            :func:`unremix.mining.index.make_index`.
        folder: Keeps finished blocks and the index: the same call resumes after an interruption.
        seed: Of ``random``.
        advance: Called with the share of the work that is done.
        each: Mines the blocks elsewhere, such as
            :func:`unremix.cluster.mining.mine_on_ray`; here by default, one after the other.

    Returns:
        The chosen rows, shape (A, k), their scores, and how many rows each rule left out.

    Raises:
        ValueError: If shapes do not fit, or an option is out of range.

    Example:
        >>> import numpy as np, unremix
        >>> corpus = np.float32([[1, 0], [0.9, 0.4], [0.6, 0.8], [0.5, 0.9], [-1, 0]])
        >>> mined = unremix.mine_hard_negatives(corpus[:1], corpus, positives=[[0, 1]], k=2)
        >>> mined.indices
        array([[2, 3]])
        >>> mined.left_out["positive"]
        array([2])
    """
    same = anchors is corpus
    queries = open_embeddings(anchors, "the anchors")
    rows = queries if same else open_embeddings(corpus, "the corpus")
    if queries.shape[1] != rows.shape[1]:
        raise ValueError(
            f"expected anchors and corpus of one size D, got {queries.shape[1]} and "
            f"{rows.shape[1]}; embed both with the same model"
        )
    size, total = len(queries), len(rows)
    check_count("k", k, 1, "ask for one negative or more")
    check_count("skip", skip, 0, "0 passes over nothing")
    if pool is None:
        pool = range_max or max(POOL_PER_NEGATIVE * k, SMALLEST_POOL) + skip
    check_count("pool", pool, k + skip, "it is to hold k + skip rows: enlarge it")
    if range_max is None:
        range_max = total if cross_encoder is None else pool
    check_count("range_max", range_max, 1, "the most similar row has rank 1")
    choice = Choice(
        k=int(k),
        pool=int(pool),
        skip=int(skip),
        range_max=int(range_max),
        sampling=check_choice("sampling", sampling, get_args(Sampling)),
        components=tuple(components),
        mix=_checked_mix(components, mix),
        posterior_temperature=check_number("posterior_temperature", posterior_temperature, above=0),
        duplicate_threshold=check_number("duplicate_threshold", duplicate_threshold, above=0),
        min_score=min_score,
        seed=int(seed),
    )
    for name, bound, least in (
        ("relative_margin", relative_margin, 0),
        ("absolute_margin", absolute_margin, 0),
        ("min_score", min_score, -np.inf),
        ("max_score", max_score, -np.inf),
    ):
        if bound is not None:
            check_number(name, bound, least=least)
    for name, texts, length in (
        ("anchor_texts", anchor_texts, size),
        ("corpus_texts", corpus_texts, total),
    ):
        if texts is not None and len(texts) != length:
            raise ValueError(f"expected {length} {name}, got {len(texts)}; one for each row")
    if anchor_texts is not None and corpus_texts is None:
        raise ValueError("expected corpus_texts with anchor_texts, got none; pass both")
    rescoring = None
    if cross_encoder is not None:
        if anchor_texts is None or corpus_texts is None:
            raise ValueError(
                "expected anchor_texts and corpus_texts with cross_encoder, got none; pass both: "
                "it reads them"
            )
        rescoring = Rescoring(cross_encoder, anchor_texts, corpus_texts)
    known = as_lists(positives, size, total)
    if anchor_rows is None and same:
        anchor_rows = np.arange(size)
    own = own_rows(anchor_rows, size, total)
    units = unit_rows(queries)
    if rescoring is None:
        positive = known.least(similarity_of_pairs(units, rows, known))
    else:
        positive = known.least(rescoring.of(known.anchors, known.rows))
    highest = highest_similarity(
        positive,
        relative_margin=None if include_positives else relative_margin,
        absolute_margin=None if include_positives else absolute_margin,
        max_score=max_score,
    )
    if include_positives:
        known = Lists.of([[]] * size)
    forbidden, counts = forbidden_rows(known, own, anchor_texts, corpus_texts, total)
    where = None if folder is None else Path(folder)
    if isinstance(index, str):
        index = make_index(rows, index, where)
    kept = None
    if where is not None:
        pairs = known.anchors, known.rows, forbidden.anchors, forbidden.rows
        scores = () if rescoring is None else (positive,)  # what tells cross-encoders apart
        digest = digest_of(index.kind, units, rows, *pairs, highest, choice, *scores)
        kept = where / f"mined-{digest}"  # finished blocks, by their first anchor
    miner = Miner(index, units, forbidden, known, highest, choice, rescoring)
    parts = [slice(n, min(n + ANCHORS_AT_ONCE, size)) for n in range(0, size, ANCHORS_AT_ONCE)]
    blocks: dict[int, Block] = {}
    for part in parts:
        if kept is not None and is_sealed(file := kept / f"{part.start}.npz"):
            blocks[part.start] = read_arrays(file)  # others are not mined yet, or damaged
    missing = [part for part in parts if part.start not in blocks]

    def report(done: float) -> None:
        if advance is not None:
            advance((sum(len(block["indices"]) for block in blocks.values()) + done) / size)

    report(0.0)
    for place, block in (each or _one_by_one)(miner, missing, report):
        first = missing[place].start
        if kept is not None:
            write_arrays(kept / f"{first}.npz", block, write=write_sealed)
        blocks[first] = block
        report(0.0)
    in_order = [blocks[part.start] for part in parts]
    arrays = {name: np.concatenate([block[name] for block in in_order]) for name in blocks[0]}
    counts |= {name: arrays.pop(name) for name in REASONS if name in arrays}
    return Mined(
        **arrays,
        positive_similarity=positive,
        highest_similarity=highest,
        left_out=counts,
    )


def _one_by_one(
    miner: Miner, parts: Sequence[slice], report: Advance
) -> Iterator[tuple[int, Block]]:
    for place, part in enumerate(parts):
        size = part.stop - part.start
        yield place, miner.mine(part, lambda share, size=size: report(share * size))  # type: ignore[misc]


def _checked_mix(
    components: Sequence[str], mix: Literal["fixed"] | Sequence[float]
) -> tuple[float, ...]:
    """The shares of the components, which are checked as well."""
    for name in components:
        check_choice("each component", name, tuple(COMPONENTS))
    if not components or len(set(components)) < len(components):
        raise ValueError(
            f"expected different components, at least one, got {tuple(components)}; "
            f"choose from {', '.join(PAPER_COMPONENTS)}"
        )
    if isinstance(mix, str):
        check_choice("mix", mix, ("fixed",))
        return (1 / len(components),) * len(components)
    if len(mix) != len(components):
        raise ValueError(
            f"expected a mix of {len(components)} numbers, one per component, got {len(mix)}; "
            "name the components in the same order"
        )
    shares = tuple(check_number("each share of the mix", share, least=0) for share in mix)
    if not 1 / LARGEST_SHARE <= max(shares) <= LARGEST_SHARE:
        raise ValueError(
            f"expected a mix whose largest share is between {1 / LARGEST_SHARE:g} and "
            f"{LARGEST_SHARE:g}, got {tuple(mix)}; scale it: only the ratios of shares matter"
        )
    return shares


@dataclass(frozen=True)
class Miner:
    """Everything that is the same for all blocks of anchors.

    Args:
        index: The corpus.
        anchors: Of length 1, shape (A, D).
        forbidden: What is never returned.
        positives: Of the A anchors.
        highest: The largest similarity allowed, shape (A,).
        choice: How to choose.
        rescoring: A cross-encoder's scores in place of the similarity.
    """

    index: Index
    anchors: Floats
    forbidden: Lists
    positives: Lists
    highest: Floats
    choice: Choice
    rescoring: Rescoring | None = None

    def mine(self, part: slice, advance: Advance) -> Block:
        """The negatives of a block of anchors: the arrays of :class:`Mined`, by name."""
        anchors, highest = self.anchors[part], self.highest[part]
        # A cross-encoder's bounds say nothing about cosines.
        bound = highest if self.rescoring is None else np.full_like(highest, np.inf)
        forbidden = self.forbidden[part]
        allowed = Allowed(bound, forbidden.anchors, forbidden.rows)
        size, k = len(anchors), self.choice.k
        arrays: Block = {"indices": np.full((size, k), -1, dtype=np.int64)}
        for name in ("scores", *PAPER_COMPONENTS):
            arrays[name] = np.full((size, k), np.nan, dtype=np.float32)
        for name in ("too_similar", "near_duplicate", "copy"):
            arrays[name] = np.zeros(size, dtype=np.int64)
        waiting, width = np.arange(size), self.choice.pool
        widest = min(self.choice.range_max, len(self.index.corpus))
        report: Advance | None = advance
        while len(waiting):
            result = self.index.search(anchors[waiting], width, allowed.of(waiting), report)
            report = None  # further searches are for a few anchors
            arrays["too_similar"][waiting] = result.above
            rank = 1 + result.above[:, None] + np.arange(result.rows.shape[1])
            rows = np.where(rank <= self.choice.range_max, result.rows, -1)
            similarity = result.similarity
            if self.rescoring is not None:
                rows, similarity = self.rescoring.sort(part.start + waiting, rows)
                too_high = (rows >= 0) & (similarity > highest[waiting, None])
                arrays["too_similar"][waiting] = too_high.sum(1)
                rows = np.where(too_high, -1, rows)
            if self.choice.min_score is not None:
                rows = np.where(similarity >= self.choice.min_score, rows, -1)
            # Pools that fit into memory together.
            pool = rows.shape[1]
            step = max(1, NUMBERS_AT_ONCE // (pool * max(pool, anchors.shape[1])))
            for first in range(0, len(waiting), step):
                some = slice(first, first + step)
                who = waiting[some]
                scores = None if self.rescoring is None else torch.from_numpy(similarity[some])
                chosen = self._choose(anchors[who], rows[some], part.start + who, scores)
                for name, values in chosen.items():
                    arrays[name][who] = values
            # Search further for anchors with too few negatives, unless the corpus has no more.
            if width >= widest:
                break
            enough = (arrays["indices"][waiting, -1] >= 0) | (rows[:, -1] < 0)
            waiting = waiting[~enough]
            width = min(width * GROWTH, widest)
        return arrays

    def _choose(
        self, anchors: Floats, rows: Integers, numbers: Integers, rescored: Tensor | None
    ) -> dict[str, Any]:
        """Filter the pools (B, P) of some anchors, and choose from them."""
        choice, corpus = self.choice, self.index.corpus
        pool = torch.from_numpy(_gather(corpus, rows))  # (B, P, D)
        valid = torch.from_numpy(rows >= 0)
        positives = torch.from_numpy(_gather(corpus, self.positives.padded(numbers)))  # (B, p, D)
        near = torch.bmm(pool, positives.transpose(1, 2)).amax(2) >= choice.duplicate_threshold
        duplicate = near & valid
        valid &= ~near
        products = torch.bmm(pool, pool.transpose(1, 2))  # (B, P, P)
        equal = (products >= 1 - noise(products)) & valid[:, None, :]
        copy = equal.tril(-1).any(2) & valid  # of a row before it
        valid &= ~copy
        if choice.skip:
            valid &= valid.cumsum(1) > choice.skip
        queries, similarity = torch.from_numpy(anchors), rescored  # similarity: (B, P)
        if similarity is None:
            similarity = torch.bmm(pool, queries[:, :, None])[:, :, 0]
        if choice.sampling == "importance":
            scores = pool_scores(
                queries, pool, valid, choice.components, temperature=choice.posterior_temperature
            )
            if rescored is not None and "similarity" in scores:
                scores["similarity"] = rescored
            chosen = choose_greedily(scores, products, valid, choice.mix, choice.k)
        else:
            keys = similarity
            if choice.sampling == "random":  # from the anchor's number: blocks change nothing
                draws = [
                    np.random.default_rng((choice.seed, n)).random(len(keys[0])) for n in numbers
                ]
                keys = torch.from_numpy(np.stack(draws))
            chosen = choose_largest(keys, similarity, valid, choice.k)
        some, places = chosen.places >= 0, chosen.places.clamp(min=0)
        found = {
            "indices": np.where(some, np.take_along_axis(rows, places.numpy(), 1), -1),
            "scores": chosen.scores.numpy(),
            "near_duplicate": duplicate.sum(1).numpy(),
            "copy": copy.sum(1).numpy(),
        }
        components = {name: values.numpy() for name, values in chosen.components.items()}
        at_places = torch.where(some, similarity.gather(1, places), torch.nan)
        return found | components | {"similarity": at_places.numpy()}


Each = Callable[[Miner, Sequence[slice], Advance], Iterator[tuple[int, Block]]]
"""Mines blocks of anchors and yields the place of each and its arrays, in any order. It may report
how many anchors of the current block are done."""


def _gather(corpus: NDArray[Any], rows: Integers) -> Floats:
    """Unit vectors of rows (B, n) of the corpus, shape (B, n, D); 0 where the row is -1."""
    units = unit_rows(corpus[rows.clip(0).reshape(-1)])
    units[rows.reshape(-1) < 0] = 0
    return units.reshape(*rows.shape, -1)
