"""How many mined negatives are false, compared with rows of the same similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unremix.audit import matched_rates
from unremix.mining.embeddings import Floats, open_embeddings, unit_rows
from unremix.mining.filters import forbidden_rows
from unremix.mining.pairs import as_lists, own_rows

ANCHORS_AT_ONCE = 64


@dataclass(frozen=True)
class NegativesAudit:
    """What :func:`audit_negatives` found; all means are over anchors that have a negative.

    Args:
        false_negative_rate: Share of an anchor's negatives that are relevant to it.
        matched_rate: The same share among rows that come nearest to the chosen ones in the order of
            similarity: what other rows as hard as these would have given.
        difference: ``false_negative_rate - matched_rate``. Below 0, the choice avoids false
            negatives; at 0, it avoids no more than its similarity does.
        standard_error: Of the difference, over anchors.
        base_rate: The same share among all rows that are no known positive.
        similarity: Mean cosine of anchor and negative.
        diversity: Mean of 1 - cosine of two negatives of one anchor; NaN if all have a single one.
        anchors: How many were looked at.
    """

    false_negative_rate: float
    matched_rate: float
    difference: float
    standard_error: float
    base_rate: float
    similarity: float
    diversity: float
    anchors: int

    def __str__(self) -> str:
        return (
            f"false negatives {self.false_negative_rate:.1%}, rows of equal similarity "
            f"{self.matched_rate:.1%} (difference {100 * self.difference:+.1f} ± "
            f"{100 * self.standard_error:.1f} points), all rows {self.base_rate:.2%}"
        )


def audit_negatives(
    indices: Any,
    anchors: Any,
    corpus: Any,
    positives: Any,
    *,
    relevant: Any = None,
    anchor_labels: Any = None,
    corpus_labels: Any = None,
    anchor_rows: Any = None,
    window: int = 2,
) -> NegativesAudit:
    """Measure mined negatives with judgements or labels that mining did not see.

    A choice of less similar rows has fewer false negatives for free. So each chosen row is
    compared with the nearest rows in the order of similarity to the anchor, ``window`` on either
    side; see :func:`unremix.audit.matched_rates`. Known positives and the anchor's own row are in
    neither set.

    Args:
        indices: Chosen rows, shape (A, k), -1 for none: ``mined.indices``.
        anchors: Embeddings, shape (A, D).
        corpus: Embeddings, shape (C, D).
        positives: The positives that mining knew, as for :func:`unremix.mine_hard_negatives`.
        relevant: All rows that are relevant to each anchor, in the same form.
        anchor_labels: In place of ``relevant``: the class of each anchor, shape (A,), ...
        corpus_labels: ... and of each row, shape (C,); rows of the anchor's class are relevant.
        anchor_rows: The anchors' own rows, shape (A,), -1 for none.
        window: Rows on either side.

    Returns:
        The rate of false negatives, beside that of the rows that they are compared with.

    Raises:
        ValueError: If shapes do not fit, or neither judgements nor labels are given.

    Example:
        >>> rows = np.float32([[1, 0], [0.99, 0.1], [0.9, 0.5], [0.8, 0.6], [0, 1], [-1, 0]])
        >>> found = audit_negatives([[2]], rows[:1], rows, [0], relevant=[[0, 1, 2]], window=1)
        >>> found.false_negative_rate, found.matched_rate  # rows 1 and 3 are as similar as row 2
        (1.0, 0.5)
    """
    queries = unit_rows(open_embeddings(anchors, "the anchors"))
    rows = open_embeddings(corpus, "the corpus")
    size, total = len(queries), len(rows)
    chosen = np.asarray(indices)
    if chosen.ndim != 2 or len(chosen) != size:
        raise ValueError(
            f"expected indices of shape ({size}, k), got {chosen.shape}; pass mined.indices"
        )
    if (relevant is None) == (anchor_labels is None or corpus_labels is None):
        raise ValueError(
            "expected either relevant, or anchor_labels and corpus_labels, got both or neither; "
            "pass judgements or labels"
        )
    known = as_lists(positives, size, total)
    judged = None if relevant is None else as_lists(relevant, size, total)
    never, _ = forbidden_rows(known, own_rows(anchor_rows, size, total), None, None, total)
    units = unit_rows(rows)
    twin = torch.arange(total + 1)
    by_anchor = []
    for start in range(0, size, ANCHORS_AT_ONCE):
        part = slice(start, min(start + ANCHORS_AT_ONCE, size))
        # One more column, which is never a negative, stands for a missing choice.
        shape = (part.stop - part.start, total + 1)
        similarity = np.zeros(shape, dtype=np.float32)
        np.matmul(queries[part], units.T, out=similarity[:, :-1])
        negatives, false = np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)
        negatives[:, -1] = False
        negatives[never[part].anchors, never[part].rows] = False
        if judged is not None:
            false[judged[part].anchors, judged[part].rows] = True
        else:
            false[:, :-1] = np.asarray(anchor_labels)[part, None] == np.asarray(corpus_labels)
        false &= negatives
        taken = chosen[part]
        matched = matched_rates(
            torch.from_numpy(similarity),
            torch.from_numpy(false),
            torch.from_numpy(negatives),
            twin,
            torch.from_numpy(np.where(taken < 0, total, taken)),
            window,
        )
        for number, its in enumerate(taken):
            its = its[its >= 0]
            if len(its):
                rate = false[number, its].mean()
                base = false[number].sum() / negatives[number].sum()
                similar = similarity[number, its].mean()
                by_anchor.append(
                    (rate, float(matched[number]), base, similar, _diversity(units[its]))
                )
    if not by_anchor:
        raise ValueError("expected at least one negative, got none; mine with a smaller margin")
    rates, matches, bases, similarities, diversities = np.array(by_anchor, dtype=np.float64).T
    difference = rates - matches
    error = np.nanstd(difference, ddof=1) / len(by_anchor) ** 0.5 if len(by_anchor) > 1 else np.nan
    diverse = diversities[~np.isnan(diversities)]
    return NegativesAudit(
        false_negative_rate=float(rates.mean()),
        matched_rate=float(np.nanmean(matches)),
        difference=float(np.nanmean(difference)),
        standard_error=float(error),
        base_rate=float(bases.mean()),
        similarity=float(similarities.mean()),
        diversity=float(diverse.mean()) if len(diverse) else float("nan"),
        anchors=len(by_anchor),
    )


def _diversity(units: Floats) -> float:
    if len(units) < 2:
        return float("nan")
    upper = np.triu_indices(len(units), 1)
    return float(1 - (units @ units.T)[upper].mean())
