"""Corrupted and noisy views: against a slow loop, and the statistics of their marginals."""

from __future__ import annotations

import numpy as np
import torch

from unremix.domains.vectors.views import add_noise, corrupt
from unremix.frameworks.randomness import keys, uniforms


def slow(rows, key, train, column_of, share):
    """Algorithm 1 of SCARF, one row and column at a time."""
    count = len(set(column_of.tolist()))
    replaced = max(1, int(share * count + 1e-9))
    found = rows.clone()
    for i in range(len(rows)):
        numbers = uniforms(key[i : i + 1], 2 * count)[0].tolist()
        smallest = sorted(range(count), key=lambda column: numbers[column])[:replaced]
        for column in smallest:
            donor = int(numbers[count + column] * len(train))
            for feature in range(rows.shape[1]):
                if column_of[feature] == column:
                    found[i, feature] = train[donor, feature]
    return found


def test_corruption_is_that_of_a_slow_loop() -> None:
    column_of = torch.tensor([0, 1, 1, 1, 2, 3, 3])
    train = torch.randn(50, 7)
    for share in (0.1, 0.6, 1.0):
        key = keys(3, 5, torch.arange(20), 1)
        expected = slow(train[:20], key, train, column_of, share)
        assert torch.equal(corrupt(train[:20], key, train, column_of, share), expected)


def test_a_view_does_not_depend_on_the_batch() -> None:
    train, column_of = torch.randn(40, 6), torch.arange(6)
    whole = corrupt(train, keys(0, 1, torch.arange(40), 1), train, column_of, 0.6)
    chosen = torch.tensor([31, 4, 17])
    alone = corrupt(train[chosen], keys(0, 1, chosen, 1), train, column_of, 0.6)
    assert torch.equal(alone, whole[chosen])
    again = corrupt(train, keys(0, 2, torch.arange(40), 1), train, column_of, 0.6)
    assert not torch.equal(again, whole)  # in another epoch


def test_replaced_features_have_the_marginals_of_their_columns() -> None:
    rng = np.random.default_rng(0)
    values = torch.tensor(rng.choice([0.0, 1.0, 5.0], (1000, 5), p=[0.5, 0.3, 0.2]))
    rows = torch.full((20_000, 5), -1.0, dtype=values.dtype)
    seen = corrupt(rows, keys(0, 0, torch.arange(20_000), 1), values, torch.arange(5), 0.6)
    replaced = seen >= 0
    assert (replaced.sum(1) == 3).all()  # ⌊0.6 · 5⌋ in every row
    assert (replaced.double().mean(0) - 0.6).abs().max() < 0.02
    for column in range(5):
        for value in (0.0, 1.0, 5.0):
            share = (seen[replaced[:, column], column] == value).double().mean()
            expected = (values[:, column] == value).double().mean()
            assert abs(share - expected) < 0.02
    # Two columns that are replaced take their values from rows that have nothing to do with each
    # other, also if the columns are equal in the training rows.
    equal = values[:, :1].expand(-1, 5).contiguous()
    seen = corrupt(rows, keys(0, 0, torch.arange(20_000), 1), equal, torch.arange(5), 1.0)
    expected = sum((equal[:, 0] == value).double().mean() ** 2 for value in (0.0, 1.0, 5.0))
    assert abs((seen[:, 0] == seen[:, 1]).double().mean() - expected) < 0.02


def test_noise_has_the_deviation_of_each_feature() -> None:
    rows, deviation = torch.zeros(50_000, 3), torch.tensor([0.5, 2.0, 0.0])
    noise = add_noise(rows, keys(0, 0, torch.arange(50_000), 1), deviation)
    assert noise.isfinite().all()
    assert (noise.std(0) - deviation).abs().max() < 0.03
    assert noise.mean(0).abs().max() < 0.03
    inside = (noise[:, 0].abs() < 0.5).double().mean()  # within one standard deviation
    assert abs(inside - 0.6827) < 0.01
