"""Pairs of an anchor and a row of the corpus, and how similar they are.

Letters: A anchors, C rows of the corpus, P rows in an anchor's pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unremix.mining.embeddings import AT_ONCE, Floats, Integers, unit_rows

ScorePairs = Callable[[list[tuple[str, str]]], Any]
"""A cross-encoder: n pairs of texts to n numbers, larger for more similar ones."""


@dataclass(frozen=True)
class Lists:
    """A list of rows for each of A anchors, as pairs of an anchor and a row.

    Args:
        anchors: The anchor of each pair, ascending, shape (n,).
        rows: Its row, shape (n,).
        size: A.
    """

    anchors: Integers
    rows: Integers
    size: int

    @classmethod
    def of(cls, lists: Sequence[Any]) -> Lists:
        """From a list of rows for each anchor."""
        rows = np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64)
        return cls(np.repeat(np.arange(len(lists)), list(map(len, lists))), rows, len(lists))

    def __getitem__(self, anchors: slice) -> Lists:
        """The lists of some anchors that follow each other."""
        first, last, _ = anchors.indices(self.size)
        some = slice(*np.searchsorted(self.anchors, (first, last)))
        return Lists(self.anchors[some] - first, self.rows[some], last - first)

    def least(self, values: Floats) -> Floats:
        """The least of the values (n,) of each anchor's pairs, shape (A,); inf without a pair."""
        least = np.full(self.size, np.inf, dtype=np.float32)
        np.minimum.at(least, self.anchors, values)
        return least

    def padded(self, anchors: Integers) -> Integers:
        """The lists of n anchors, shape (n, at least 1); -1 where a list has ended."""
        ends = np.searchsorted(self.anchors, anchors, side="right")[:, None]
        starts = np.searchsorted(self.anchors, anchors)[:, None]
        places = starts + np.arange(max(1, int((ends - starts).max(initial=0))))
        return np.append(self.rows, -1)[np.where(places < ends, places, -1)]


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


def own_rows(anchor_rows: Any, anchors: int, corpus: int) -> Integers:
    """The anchors' own rows, shape (A,), -1 for none; ``anchor_rows`` as given, None for no row.

    Raises:
        ValueError: If they are not A, or not rows of the corpus.
    """
    if anchor_rows is None:
        return np.full(anchors, -1, dtype=np.int64)
    own = np.asarray(anchor_rows)
    if own.shape != (anchors,) or own.dtype.kind not in "iu":
        raise ValueError(
            f"expected anchor_rows as {anchors} whole numbers, got {own.dtype} of shape "
            f"{own.shape}; -1 for an anchor that the corpus does not hold"
        )
    if own.min() < -1 or own.max() >= corpus:
        raise ValueError(
            f"expected anchor_rows among -1 … {corpus - 1}, got {own.min()} to {own.max()}; "
            "number the corpus from 0"
        )
    return own.astype(np.int64)


def similarity_of_pairs(anchors: Floats, corpus: NDArray[Any], pairs: Lists) -> Floats:
    """The similarity of the anchor and the row of each pair, shape (n,).

    Anchors (A, D) are of length 1, the corpus (C, D) need not be.
    """
    found = np.empty(len(pairs.rows), dtype=np.float32)
    step = max(1, AT_ONCE // corpus.shape[1])
    for start in range(0, len(found), step):
        part = slice(start, start + step)
        units = unit_rows(corpus[pairs.rows[part]])
        np.einsum("nd,nd->n", anchors[pairs.anchors[part]], units, out=found[part])
    return found


@dataclass(frozen=True)
class Rescoring:
    """A cross-encoder and the texts it reads.

    Args:
        score: The cross-encoder.
        anchors: A texts.
        corpus: C texts.
    """

    score: ScorePairs
    anchors: Sequence[str]
    corpus: Sequence[str]

    def of(self, anchors: Integers, rows: Integers) -> Floats:
        """The scores of pairs of an anchor and a row, each (n,).

        Raises:
            ValueError: If the cross-encoder does not give a finite number for each pair.
        """
        if not len(rows):
            return np.empty(0, dtype=np.float32)
        numbers = zip(anchors.tolist(), rows.tolist(), strict=True)
        found = self.score([(self.anchors[anchor], self.corpus[row]) for anchor, row in numbers])
        scores: Floats = torch.as_tensor(found).detach().float().cpu().numpy()
        if scores.shape != rows.shape or not np.isfinite(scores).all():
            raise ValueError(
                f"expected a finite score for each of {len(rows)} pairs from the cross-encoder, "
                f"got shape {scores.shape}, {np.isfinite(scores).sum()} of them finite; use a "
                "model with one output, without NaN"
            )
        return scores

    def sort(self, anchors: Integers, rows: Integers) -> tuple[Integers, Floats]:
        """The pools (B, P) of B anchors with the highest score first, and the scores.

        Missing rows, -1, come last, with a score of 0.
        """
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        query, place = np.nonzero(rows >= 0)
        scores[query, place] = self.of(anchors[query], rows[query, place])
        order = np.argsort(-scores, axis=1, kind="stable")
        scores = np.take_along_axis(scores, order, 1)
        return np.take_along_axis(rows, order, 1), np.where(np.isfinite(scores), scores, 0)
