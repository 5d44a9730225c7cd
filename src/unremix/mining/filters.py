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

from unremix.mining.embeddings import AT_ONCE, Floats, Integers, unit_rows

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
    """The same for texts that differ only in case and white space.

    Example:
        >>> text_key("  A man   runs. ")
        'a man runs.'
    """
    return " ".join(str(text).split()).casefold()


def forbidden_rows(
    positives: Lists,
    own: Integers,
    anchor_texts: Sequence[str] | None,
    corpus_texts: Sequence[str] | None,
    corpus: int,
) -> tuple[Lists, dict[str, Integers]]:
    """The rows that are never negatives of an anchor, whatever their similarity.

    Args:
        positives: The known positives of A anchors.
        own: The anchors' own rows, shape (A,); -1 for those not in the corpus.
        anchor_texts: Where known, A texts.
        corpus_texts: Where known, C texts. Further rows with the text of the anchor or of a
            positive are forbidden, too.
        corpus: C.

    Returns:
        The rows, and how many each reason forbids, each (A,): the first that applies.
    """
    here = np.flatnonzero(own >= 0)
    reasons = {  # pairs of an anchor and a row as one number
        "positive": positives.anchors * corpus + positives.rows,
        "own_row": here * corpus + own[here],
        "same_text": np.empty(0, dtype=np.int64),
    }
    if corpus_texts is not None:
        known = np.concatenate([reasons["positive"], reasons["own_row"]]).tolist()
        texts = {(pair // corpus, text_key(corpus_texts[pair % corpus])) for pair in known}
        texts |= {(anchor, text_key(text)) for anchor, text in enumerate(anchor_texts or ())}
        rows_of: dict[str, list[int]] = {key: [] for _, key in texts}
        for row, text in enumerate(corpus_texts):
            if (key := text_key(text)) in rows_of:
                rows_of[key].append(row)
        same = [anchor * corpus + row for anchor, key in texts for row in rows_of[key]]
        reasons["same_text"] = np.array(same, dtype=np.int64)
    pairs, counts = np.empty(0, dtype=np.int64), {}
    for reason, some in reasons.items():
        further = np.setdiff1d(some, pairs)
        counts[reason] = np.bincount(further // corpus, minlength=len(own))
        pairs = np.union1d(pairs, further)
    return Lists(pairs // corpus, pairs % corpus, len(own)), counts
