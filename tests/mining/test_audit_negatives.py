"""False negatives among mined ones, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unremix.mining import audit as module
from unremix.mining.audit import audit_negatives


def problem() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((6, 8))
    labels = generator.integers(6, size=150)
    corpus = (centers[labels] + generator.standard_normal((150, 8))).astype(np.float32)
    indices = np.stack([generator.choice(np.arange(20, 150), 4, replace=False) for _ in range(20)])
    indices[3, 2:] = -1
    indices[7] = -1  # nothing found
    positives = [[int(n) + 20] for n in range(20)]
    for number in range(20):
        indices[number][indices[number] == number + 20] = 149 if number != 129 else 148
    return {
        "indices": indices, "anchors": corpus[:20], "corpus": corpus, "positives": positives,
        "anchor_labels": labels[:20], "corpus_labels": labels, "anchor_rows": np.arange(20),
    }  # fmt: skip


def by_hand(given: dict[str, Any], window: int) -> list[tuple[float, float, float]]:
    found = []
    units = given["corpus"] / np.linalg.norm(given["corpus"], axis=1, keepdims=True)
    for number, chosen in enumerate(given["indices"]):
        chosen = [int(row) for row in chosen if row >= 0]
        if not chosen:
            continue
        own = {number, *given["positives"][number]}
        label = given["anchor_labels"][number]
        rows = [row for row in range(len(units)) if row not in own]
        rows.sort(key=lambda row: -float(units[number] @ units[row]))
        rates = []
        for row in chosen:
            at = rows.index(row)
            reach = min(window, at, len(rows) - 1 - at)
            near = rows[at - reach : at] + rows[at + 1 : at + 1 + reach] or [row]
            rates.append(np.mean([given["corpus_labels"][other] == label for other in near]))
        false = np.mean([given["corpus_labels"][row] == label for row in chosen])
        base = np.mean([given["corpus_labels"][row] == label for row in rows])
        found.append((float(false), float(np.mean(rates)), float(base)))
    return found


@pytest.mark.parametrize("window", [1, 10])
@pytest.mark.parametrize("at_once", [3, 64])
def test_equals_plain_loops(window: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANCHORS_AT_ONCE", at_once)
    given = problem()
    found = audit_negatives(**given, window=window)
    false, matched, base = np.array(by_hand(given, window)).T
    assert found.anchors == 19
    assert found.false_negative_rate == pytest.approx(false.mean())
    assert found.matched_rate == pytest.approx(matched.mean())
    assert found.difference == pytest.approx((false - matched).mean())
    assert found.standard_error == pytest.approx((false - matched).std(ddof=1) / 19**0.5)
    assert found.base_rate == pytest.approx(base.mean())
    assert "false negatives" in str(found)


@pytest.mark.parametrize("rows", [np.arange(19), np.arange(20) + 131, np.arange(20.0)])
def test_own_rows_that_are_none_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="expected anchor_rows"):
        audit_negatives(**problem() | {"anchor_rows": rows})


def test_judgements_say_the_same_as_labels() -> None:
    given = problem()
    by_label = audit_negatives(**given)
    labels = given.pop("corpus_labels"), given.pop("anchor_labels")
    relevant = [np.flatnonzero(labels[0] == label) for label in labels[1]]
    assert audit_negatives(**given, relevant=relevant) == by_label


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": np.zeros(20, int)}, r"indices of shape \(20, k\), got \(20,\)"),
        ({"corpus_labels": None}, "relevant, or anchor_labels and corpus_labels"),
        ({"indices": np.full((20, 2), -1)}, "at least one negative, got none"),
    ],
)
def test_mistakes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit_negatives(**(problem() | change))
