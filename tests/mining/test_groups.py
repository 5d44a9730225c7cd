"""Duplicates and clusters."""

from __future__ import annotations

import numpy as np
import pytest

from unremix.mining import groups as module
from unremix.mining.embeddings import unit_rows
from unremix.mining.groups import find_clusters, find_duplicates, fitting_threshold
from unremix.mining.index import ExactIndex


def test_duplicates_are_the_components_of_the_graph_of_near_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 16)
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((60, 6)).astype(np.float32)
    rows[50] = rows[3] * 2
    rows[51] = rows[50] + 0.01
    rows[10:13] = rows[20]
    units = unit_rows(rows)
    found = find_duplicates(ExactIndex(units), units, 0.99)
    # The components by hand: merge what is near until nothing changes.
    near = units @ units.T >= 0.99
    label = np.arange(60)
    for _ in range(60):
        label = np.array([label[near[n]].min() for n in range(60)])
    expected = [np.flatnonzero(label == one).tolist() for one in np.unique(label)]
    expected = sorted(
        (one for one in expected if len(one) > 1), key=lambda one: (-len(one), one[0])
    )
    assert [group.tolist() for group in found.groups] == expected
    assert [10, 11, 12, 20] in expected
    others = units @ units.T - 2 * np.eye(60)
    np.testing.assert_allclose(found.similarity, others.max(1), atol=1e-6)


@pytest.mark.parametrize("full", [20_000, 10])  # all at once, or in mini-batches
def test_clusters_find_what_was_put_in(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_KMEANS", full)
    generator = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [50, 30, 20])
    units = unit_rows(10 * np.eye(3)[truth] + generator.standard_normal((100, 3)))
    found = find_clusters(units, 3)
    assert found.cluster.tolist() == truth.tolist()  # the largest has number 0
    assert [len(one) for one in found.members] == [50, 30, 20]
    for number, members in enumerate(found.members):
        center = units[truth == number].mean(0)
        order = np.argsort(-(units[members] @ center), kind="stable")
        assert order[0] == 0
        assert (np.diff(found.similarity[members]) <= 0).all()
    again = find_clusters(units, 3)
    assert (again.cluster == found.cluster).all()


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 to 4 clusters .*, got 5;"):
        find_clusters(np.eye(4, dtype=np.float32), 5)


def test_copies_in_more_clusters_than_there_are_different_rows_are_no_warning() -> None:
    rows = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]]
    found = find_clusters(rows, 3)
    assert [len(members) for members in found.members] == [2, 2]


def test_a_cosine_above_one_is_refused() -> None:
    units = np.eye(3, dtype=np.float32)
    with pytest.raises(ValueError, match=r"threshold .* above -1, at most 1, got 1\.5"):
        find_duplicates(ExactIndex(units), units, 1.5)


@pytest.mark.parametrize(("count", "classes"), [(60, 1), (60, 8), (400, 8), (2000, 20)])
def test_the_threshold_of_the_data_finds_planted_pairs_and_no_others(
    count: int, classes: int
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(classes, 64))[rng.integers(classes, size=count)]
        rows = rows + rng.normal(size=rows.shape)
        alone = unit_rows(rows.astype(np.float32))
        assert find_duplicates(ExactIndex(alone), alone).groups == []
        first = rng.choice(count, max(3, count // 20), replace=False)
        copies = rows[first] + 0.1 * rng.normal(size=(len(first), 64))
        units = unit_rows(np.vstack([rows, copies]).astype(np.float32))
        found = find_duplicates(ExactIndex(units), units)
        assert sorted(map(tuple, found.groups)) == sorted(
            (one, count + n) for n, one in enumerate(first.tolist())
        )


def test_thresholds_of_copies_and_of_a_lattice() -> None:
    assert fitting_threshold(np.ones(9, np.float32)) == 1 - 1e-6  # most rows have a copy
    assert fitting_threshold(np.zeros(9, np.float32)) == 0.5  # all equally far apart
    units = np.eye(9, dtype=np.float32)
    assert find_duplicates(ExactIndex(units), units).groups == []
