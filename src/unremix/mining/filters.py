"""Which rows of the corpus must not be taken for negatives of an anchor, and why.

Letters: A anchors, C rows of the corpus, P rows in an anchor's pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.core.precision import noise
from unremix.mining.embeddings import AT_ONCE, Flags, Floats, Integers, unit_rows
from unremix.mining.index import Allowed

REASONS = {
    "positive": "a known positive of the anchor",
    "own_row": "the anchor itself",
    "same_text": "the text of the anchor or of a positive",
    "too_similar": "as similar to the anchor as its positive, up to the margin, or above max_score",
    "near_duplicate": "a near-duplicate of a positive",
    "copy": "a copy of a more similar candidate",
}


@dataclass(frozen=True)
class Lists:
    """A list of rows for each of A anchors, end to end.

    Args:
        rows: Of the first anchor, then of the second and so on, shape (n,).
        starts: Where each list begins, and where the last one ends, shape (A + 1,).
    """

    rows: Integers
    starts: Integers

    @classmethod
    def of(cls, lists: Sequence[Any]) -> Lists:
        """From a list of rows for each anchor."""
        starts = np.cumsum([0, *map(len, lists)])
        return cls(np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, anchors: slice) -> Lists:
        """The lists of some anchors that follow each other."""
        first, last, _ = anchors.indices(len(self))
        starts = self.starts[first : last + 1]
        return Lists(self.rows[starts[0] : starts[-1]], starts - starts[0])

    @property
    def counts(self) -> Integers:
        """The length of each list, shape (A,)."""
        return np.diff(self.starts)

    @property
    def anchors(self) -> Integers:
        """The anchor of each row, shape (n,)."""
        return np.repeat(np.arange(len(self)), self.counts)

    def padded(self, anchors: Integers) -> Integers:
        """The lists of n anchors, shape (n, at least 1); -1 where a list has ended."""
        counts = self.counts[anchors]
        column = np.arange(max(1, int(counts.max(initial=0))))
        place = np.minimum(self.starts[anchors, None] + column, max(0, len(self.rows) - 1))
        inside = column < counts[:, None]
        return np.where(inside, self.rows[place], -1) if len(self.rows) else place - 1


def as_lists(positives: Any, anchors: int, corpus: int) -> Lists:
    """The positives of each anchor, each row once.

    Args:
        positives: One row number per anchor, shape (A,); several, shape (A, p), where -1 stands
            for none; or a sequence of A sequences of row numbers.
        anchors: A.
        corpus: C.

    Raises:
        ValueError: If they are not A, or not rows of the corpus.
    """
    if isinstance(positives, torch.Tensor):
        positives = positives.cpu().numpy()
    in_order = hasattr(positives, "__len__") and not isinstance(positives, (Mapping, Set))
    if not in_order or len(positives) != anchors:
        got = len(positives) if in_order else type(positives).__name__
        raise ValueError(
            f"expected the positives of {anchors} anchors, got {got}; pass the row or the rows of "
            "the corpus for each anchor, an empty list for none"
        )
    lists = [np.unique(np.atleast_1d(np.asarray(one))) for one in positives]
    lists = [one[one != -1] for one in lists]
    for number, one in enumerate(lists):
        if one.size and (one.dtype.kind not in "iu" or one.ndim != 1):
            raise ValueError(
                f"expected row numbers as the positives of anchor {number}, got {one.dtype} of "
                f"shape {one.shape}; look names up first"
            )
        if one.size and (one[0] < 0 or one[-1] >= corpus):
            raise ValueError(
                f"expected positives among the rows 0 … {corpus - 1} of the corpus, got "
                f"{one[0] if one[0] < 0 else one[-1]} for anchor {number}; number them from 0"
            )
    return Lists.of(lists)


def positive_similarity(anchors: Floats, corpus: NDArray[Any], positives: Lists) -> Floats:
    """The similarity of each anchor to its least similar positive, shape (A,); inf without one.

    Anchors (A, D) are of length 1, the corpus (C, D) need not be.
    """
    lowest = np.full(len(anchors), np.inf, dtype=np.float32)
    who = positives.anchors
    step = max(1, AT_ONCE // corpus.shape[1])
    for start in range(0, len(who), step):
        part = slice(start, start + step)
        units = unit_rows(corpus[positives.rows[part]])
        similarity = np.einsum("nd,nd->n", anchors[who[part]], units)
        np.minimum.at(lowest, who[part], similarity)
    return lowest


def highest_similarity(
    positive: Floats,
    *,
    relative_margin: float | None,
    absolute_margin: float | None,
    max_score: float | None,
) -> Floats:
    """The largest similarity that a negative may have: min(p - m |p|, p - a, max_score).

    Args:
        positive: p, the similarity to the least similar positive, shape (A,); inf without one.
        relative_margin: m.
        absolute_margin: a.
        max_score: A bound for all anchors.

    Returns:
        Shape (A,); inf where nothing bounds it.

    Example:
        >>> highest_similarity(
        ...     np.float32([0.5, -0.5]), relative_margin=0.5, absolute_margin=None, max_score=None
        ... )
        array([ 0.25, -0.75], dtype=float32)

    Reference:
        NV-Retriever (Moreira et al. 2024), TopK-PercPos; the minimum over several positives and
        the absolute value are sentence-transformers'.
    """
    highest = np.full_like(positive, np.inf if max_score is None else max_score)
    known = np.isfinite(positive)
    p = positive[known]
    if relative_margin is not None:
        highest[known] = np.minimum(highest[known], p - np.float32(relative_margin) * np.abs(p))
    if absolute_margin is not None:
        highest[known] = np.minimum(highest[known], p - np.float32(absolute_margin))
    return highest


def text_key(text: str) -> str:
    """What two texts share that differ in case and white space only.

    Example:
        >>> text_key("  A man   runs. ")
        'a man runs.'
    """
    return " ".join(str(text).split()).casefold()


@dataclass(frozen=True)
class Forbidden:
    """Pairs of an anchor and a row that are never negatives, whatever their similarity.

    Args:
        positives: The known positives of each anchor.
        own: The anchors' own rows, shape (A,); -1 for those not in the corpus.
        same_text: Further rows with the text of the anchor or of a positive.
    """

    positives: Lists
    own: Integers
    same_text: Lists

    def counts(self) -> dict[str, Integers]:
        """How many rows each reason forbids, each (A,)."""
        own = (self.own >= 0) & ~_is_in(self.own, self.positives)
        return {
            "positive": self.positives.counts,
            "own_row": own.astype(np.int64),
            "same_text": self.same_text.counts,
        }

    def allowed(self, anchors: slice, highest: Floats) -> Allowed:
        """What may be found for B anchors in a row, up to the highest similarity of each (B,)."""
        positives, same, own = self.positives[anchors], self.same_text[anchors], self.own[anchors]
        has_row = np.flatnonzero(own >= 0)
        query = np.concatenate([positives.anchors, same.anchors, has_row])
        row = np.concatenate([positives.rows, same.rows, own[has_row]])
        order = np.argsort(row, kind="stable")
        return Allowed(highest, query[order], row[order])


def _is_in(rows: Integers, lists: Lists) -> Flags:
    listed = np.zeros(len(rows), dtype=bool)
    listed[lists.anchors[lists.rows == rows[lists.anchors]]] = True
    return listed


def forbidden_rows(
    positives: Lists,
    own: Integers,
    anchor_texts: Sequence[str] | None,
    corpus_texts: Sequence[str] | None,
) -> Forbidden:
    """What must not be returned, of known positives, own rows and, where known, texts."""
    if corpus_texts is None:
        return Forbidden(positives, own, Lists.of([[]] * len(own)))
    wanted: list[set[str]] = [set() for _ in own]
    for anchor, row in zip(positives.anchors.tolist(), positives.rows.tolist(), strict=True):
        wanted[anchor].add(text_key(corpus_texts[row]))
    for anchor, row in enumerate(own.tolist()):
        if row >= 0:
            wanted[anchor].add(text_key(corpus_texts[row]))
        if anchor_texts is not None:
            wanted[anchor].add(text_key(anchor_texts[anchor]))
    rows_of: dict[str, list[int]] = {key: [] for keys in wanted for key in keys}
    for row, text in enumerate(corpus_texts):
        key = text_key(text)
        if key in rows_of:
            rows_of[key].append(row)
    same_text = []
    for anchor, keys in enumerate(wanted):
        known = set(positives.rows[positives.starts[anchor] : positives.starts[anchor + 1]])
        known.add(own[anchor])
        same_text.append(sorted({row for key in keys for row in rows_of[key]} - known))
    return Forbidden(positives, own, Lists.of(same_text))


def near_duplicates(pool: Tensor, positives: Tensor, threshold: float) -> Tensor:
    """Which rows of the pools are near-duplicates of a positive, boolean, shape (B, P).

    Pools (B, P, D) and positives (B, p, D) are of length 1; missing positives are 0.
    """
    return torch.bmm(pool, positives.transpose(1, 2)).amax(2) >= threshold


def copies(products: Tensor, valid: Tensor) -> Tensor:
    """Which rows of the pools equal a row before them, boolean, shape (B, P).

    By the products of a pool's rows (B, P, P), among those that are valid (B, P).
    """
    equal = products >= 1 - noise(products)
    return (equal & valid[:, None, :]).tril(-1).any(2) & valid
