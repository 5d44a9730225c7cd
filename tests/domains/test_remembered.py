"""Features that are kept are those of the weights as they are."""

from __future__ import annotations

import gc
from weakref import ref

import torch
from torch import nn

from unremix.domains.remembered import forget, recall, remember


class Samples:
    """Some samples."""


SPLIT = Samples()


def test_features_are_kept_until_a_weight_changes() -> None:
    encoder, features = nn.Linear(2, 3), torch.ones(4, 3)
    assert recall(encoder, SPLIT) is None
    assert remember(encoder, SPLIT, features) is features
    assert recall(encoder, SPLIT) is features
    assert recall(encoder, Samples()) is None  # another split
    assert recall(encoder, SPLIT, 2) is None  # a part of it
    with torch.no_grad():
        encoder.bias.add_(1)
    assert recall(encoder, SPLIT) is None


def test_a_fused_step_leaves_no_trace_and_is_forgotten() -> None:
    encoder = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(encoder.parameters(), fused=True)
    encoder(torch.ones(1, 2)).sum().backward()
    remember(encoder, SPLIT, encoder(torch.ones(1, 2)).detach())
    optimizer.step()
    forget(encoder)
    assert recall(encoder, SPLIT) is None


def test_the_raw_input_is_not_kept() -> None:
    assert remember(None, SPLIT, torch.ones(1)) is not None
    assert recall(None, SPLIT) is None


def test_samples_and_their_features_are_not_kept_alive() -> None:
    encoder, samples, features = nn.Linear(2, 3), Samples(), torch.ones(4, 3)
    alive = ref(samples), ref(features)
    remember(encoder, samples, features)
    del samples, features
    gc.collect()
    assert [one() for one in alive] == [None, None]
