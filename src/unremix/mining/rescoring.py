"""Scores of pairs of texts by a cross-encoder, in place of the cosine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unremix.mining.embeddings import Floats, Integers

ScorePairs = Callable[[list[tuple[str, str]]], Any]
"""A cross-encoder: n pairs of texts to n numbers, larger for more similar ones."""


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
