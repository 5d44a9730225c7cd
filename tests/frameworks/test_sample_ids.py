"""The frameworks tell scores with a memory which samples they see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import fill, make_batch, make_model
from torch import Tensor, nn

from unremix import UnReMixLoss
from unremix.core.scores import Block
from unremix.frameworks.mixing import IMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.simclr import SimCLR


class Recalls(nn.Module):
    """A score that keeps the ids it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, block: Block) -> Tensor:
        assert block.anchors.ids is not None
        assert block.candidates.ids is not None
        self.seen.append((block.anchors.ids, block.candidates.ids))
        return block.similarity


@pytest.mark.parametrize("layout", ["both", "one-way"])
def test_simclr(layout: Any) -> None:
    score, batch = Recalls(), make_batch(4, first=30)
    model = make_model(SimCLR, UnReMixLoss(components=[score], layout=layout))
    model(batch)
    expected = batch.samples.repeat(2 if layout == "both" else 1)
    ((anchors, candidates),) = score.seen
    assert torch.equal(anchors, expected)
    assert torch.equal(candidates, expected)


def test_mixed_views() -> None:
    score, batch = Recalls(), make_batch(4, first=30)
    make_model(SimCLR, UnReMixLoss(components=[score]), mixing=IMix())(batch)
    ((anchors, candidates),) = score.seen
    assert torch.equal(anchors, batch.samples)
    assert torch.equal(candidates, batch.samples)


def test_a_queue() -> None:
    score, batch = Recalls(), make_batch(4, first=30)
    model = make_model(MoCo, UnReMixLoss(components=[score]), queue=6)
    fill(model, 3, first=50)
    model(batch)
    ((anchors, candidates),) = score.seen
    assert torch.equal(anchors, batch.samples)
    assert candidates.tolist() == [30, 31, 32, 33, 50, 51, 52]


def test_the_importance_of_a_batch() -> None:
    score, batch = Recalls(), make_batch(4, first=30)
    model = make_model(SimCLR, UnReMixLoss(components=[score]))
    first, second = (model.embed(view) for view in batch.views)
    assert model.importance(first, second, batch.samples) is not None
    assert torch.equal(score.seen[0][0], batch.samples.repeat(2))
