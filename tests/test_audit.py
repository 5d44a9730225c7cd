from __future__ import annotations

import math
from dataclasses import replace

import pytest
import reference
import torch
from batches import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

import unremix


@settings(max_examples=25)
@given(
    st.integers(2, 9), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**16),
    st.sampled_from(["both", "one-way"]), st.sampled_from(["minmax", "zscore-exp"]),
)  # fmt: skip
def test_audit_equals_the_loops(
    n: int, classes: int, k: int, seed: int, layout: str, scaling: str
) -> None:
    batch = make_batch(n, seed=seed)
    labels = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed)) * 10 - 7
    found = unremix.importance(*batch.views, layout=layout, scaling=scaling)
    actual = unremix.audit(found, labels, k=k)
    views = labels if layout == "one-way" else labels.repeat(2)
    expected = reference.audit(found.weights, found.negatives, views, views, k)
    assert actual.false_negative_rate == pytest.approx(expected["false_negative_rate"], abs=1e-6)
    assert actual.distinct_class_share == pytest.approx(expected["distinct_class_share"], abs=1e-6)
    assert actual.effective_negatives == pytest.approx(expected["effective_negatives"], rel=1e-6)
    assert actual.decile_false_negative_rate == pytest.approx(
        tuple(expected["decile_false_negative_rate"]), abs=1e-6, nan_ok=True
    )
    same = (views[:, None] == views[None, :]) & found.negatives
    rate = (same.sum(1) / found.negatives.sum(1)).mean()
    assert actual.base_rate == pytest.approx(float(rate), abs=1e-6)
    matched = reference.matched_rate(
        found.similarity, found.weights, found.negatives, views, k, samples=n
    )
    assert actual.matched_false_negative_rate == pytest.approx(matched, abs=1e-6, nan_ok=True)
    for name in ("uncertainty", "similarity", "representativeness", "weights"):
        area = reference.area_under_curve(getattr(found, name), found.negatives, views)
        assert actual.auc[name] == pytest.approx(area, abs=1e-9, nan_ok=True)


def test_labels_per_sample_and_per_view_agree() -> None:
    batch = make_batch(12)
    labels = torch.arange(12) % 3
    found = unremix.importance(*batch.views)
    assert unremix.audit(found, labels, k=5) == unremix.audit(found, labels.repeat(2), k=5)


def test_uniform_weights_have_all_negatives_in_effect() -> None:
    batch = make_batch(6)
    found = unremix.InfoNCELoss().importance(*batch.views)
    audit = unremix.audit(found, torch.arange(6))
    assert audit.effective_negatives == pytest.approx(10)
    assert audit.false_negative_rate == 0
    assert audit.distinct_class_share == pytest.approx(0.5)  # 10 views of 5 samples
    assert not any(math.isnan(rate) for rate in audit.decile_false_negative_rate)


def test_bad_labels() -> None:
    found = unremix.importance(torch.eye(4), torch.eye(4))
    with pytest.raises(ValueError, match=r"shape \(8,\) or \(4,\), got \(3,\)"):
        unremix.audit(found, torch.arange(3))
    with pytest.raises(ValueError, match="k of at least 1, got 0"):
        unremix.audit(found, torch.arange(4), k=0)


def test_preferring_easy_negatives_lowers_the_rate_but_not_the_matched_one() -> None:
    """Two weightings that know nothing but the similarity: the raw rate misleads."""
    torch.manual_seed(0)
    labels = torch.arange(200) % 5
    centers = torch.nn.functional.normalize(torch.randn(5, 16), dim=1)[labels]
    z0, z1 = (centers + 0.5 * torch.randn(2, 200, 16)).unbind()
    found = unremix.importance(z0, z1, components=("similarity",))
    easy = replace(found, weights=torch.where(found.negatives, 2 - found.similarity, 0.0))
    hard_audit, easy_audit = unremix.audit(found, labels), unremix.audit(easy, labels)
    assert easy_audit.false_negative_rate < 0.05 < 0.4 < hard_audit.false_negative_rate
    for each in (hard_audit, easy_audit):
        assert each.false_negative_rate == pytest.approx(each.matched_false_negative_rate, abs=0.01)
    assert easy_audit.auc["weights"] == pytest.approx(1 - easy_audit.auc["similarity"])
    # One that knows the labels, and no similarity, does better than its matches.
    generator = torch.Generator().manual_seed(1)
    clever = torch.rand(400, 400, generator=generator)
    clever[labels.repeat(2)[:, None] == labels.repeat(2)] *= 0.5
    best = unremix.audit(replace(found, weights=clever * found.negatives), labels)
    assert best.false_negative_rate == 0
    assert best.matched_false_negative_rate > 0.1


def test_evidence_is_judged_too() -> None:
    batch, labels = make_batch(12), torch.arange(12) % 3
    plain = unremix.importance(*batch.views)
    assert "evidence" not in unremix.audit(plain, labels).auc
    filtered = unremix.importance(*batch.views, false_negatives="ring")
    auc = unremix.audit(filtered, labels).auc
    assert auc["evidence"] == pytest.approx(auc["similarity"])
