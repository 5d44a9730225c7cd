"""Which rows of the corpus must not be taken for negatives of an anchor, and why.

Letters: A anchors, C rows of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unremix.mining.embeddings import Floats, Integers
from unremix.mining.pairs import Lists

REASONS = {
    "positive": "a known positive of the anchor",
    "own_row": "the anchor itself",
    "same_text": "the text of the anchor or of a positive",
    "too_similar": "as similar to the anchor as its positive, up to the margin, or above max_score",
    "near_duplicate": "a near-duplicate of a positive",
    "copy": "a copy of a more similar candidate",
}


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
        if anchor_texts is not None:
            texts |= {(anchor, text_key(text)) for anchor, text in enumerate(anchor_texts)}
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
