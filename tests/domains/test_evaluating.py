"""Embedding leaves an encoder in the mode that it had."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unremix.domains.base import evaluating
from unremix.domains.sentence.encoders import BagOfWords
from unremix.domains.sentence.model import encode_texts


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_is_restored(training: bool) -> None:
    encoder = nn.Linear(2, 2).double().train(training)
    with evaluating(encoder) as (device, dtype):
        assert (encoder.training, device.type, dtype) == (False, "cpu", torch.float64)
        assert not encoder(torch.zeros(1, 2, dtype=dtype)).requires_grad
    assert encoder.training == training
    with pytest.raises(RuntimeError), evaluating(encoder):
        encoder(torch.zeros(1, 3, dtype=dtype))
    assert encoder.training == training


def test_no_sentences_leave_the_mode_alone() -> None:
    encoder = BagOfWords(5, words=3).train()
    assert encode_texts(encoder, [], None, max_length=4).shape == (0, 3)  # type: ignore[arg-type]
    assert encoder.training
