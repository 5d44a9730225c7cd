from __future__ import annotations

import math

import pytest
import reference
import torch
from conftest import make_batch
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
    with pytest.raises(ValueError, match=r"shape \(8,\) or \(4,\), received \(3,\)"):
        unremix.audit(found, torch.arange(3))
    with pytest.raises(ValueError, match="k of at least 1, received 0"):
        unremix.audit(found, torch.arange(4), k=0)
