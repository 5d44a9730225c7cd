"""SimCLR with negatives from the first few classes only."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import unremix
from unremix.domains.image.dataset import load_images
from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import UnMix
from unremix.frameworks.simclr import SimCLR, SimCLROptions
from unremix.losses import InfoNCELoss


def make(classes: int | None) -> SimCLR:
    torch.manual_seed(0)
    return SimCLR(
        nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4)), InfoNCELoss(temperature=0.5),
        options=SimCLROptions(negative_classes=classes),
    )  # fmt: skip


def batch(samples: Tensor) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = tuple(torch.randn(len(samples), 5, generator=generator) for _ in range(2))
    return Batch(views, samples, samples, torch.zeros(1, dtype=torch.int64))


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2, 0])
SAMPLES = torch.tensor([7, 2, 4, 0, 1])


def slow_loss(model: SimCLR, given: Batch, labels: Tensor, classes: int) -> float:
    """Pair by pair, from the definition."""
    z = [model.embed(view)[0].detach() for view in given.views]
    f = [nn.functional.normalize(each, dim=1) for each in z]
    count, total = len(given.samples), 0.0
    for view in range(2):
        for i in range(count):
            positive = math.exp(float(f[view][i] @ f[1 - view][i]) / 0.5)
            negative = sum(
                math.exp(float(f[view][i] @ f[other][j]) / 0.5)
                for other in range(2)
                for j in range(count)
                if j != i and int(labels[given.samples[j]]) < classes
            )
            total -= math.log(positive / (positive + negative))
    return total / (2 * count)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_loss_has_negatives_of_these_classes_only(classes: int) -> None:
    model, given = make(classes), batch(SAMPLES)
    model.read_labels(LABELS)
    assert float(model(given).detach()) == pytest.approx(
        slow_loss(model, given, LABELS, classes), rel=1e-5
    )
    negatives = model.pairs(SAMPLES).negatives()
    allowed = (LABELS[SAMPLES] < classes).repeat(2)
    assert not negatives[:, ~allowed].any()
    same = torch.eye(5, dtype=torch.bool).repeat(2, 2)
    assert torch.equal(negatives, allowed[None] & ~same)


def test_all_classes_are_plain_simclr() -> None:
    restricted, plain, given = make(3), make(None), batch(SAMPLES)
    restricted.read_labels(LABELS)
    assert float(restricted(given).detach()) == pytest.approx(
        float(plain(given).detach()), rel=1e-6
    )


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="got data without"):
        make(2).read_labels(None)
    with pytest.raises(ValueError, match="read_labels"):
        make(2)(batch(SAMPLES))
    with pytest.raises(ValueError, match="without mixing"):
        SimCLR(
            nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4)), InfoNCELoss(), mixing=UnMix(),
            options=SimCLROptions(negative_classes=2),
        )  # fmt: skip
    make(None).read_labels(None)  # nobody else needs labels


def test_importance_has_negatives_of_these_classes_only() -> None:
    model, given = make(1), batch(SAMPLES)
    embedded = [model.embed(view) for view in given.views]
    everywhere = model.importance(*embedded, SAMPLES)
    model.read_labels(LABELS)
    found = model.importance(*embedded, SAMPLES)
    assert found is not None
    assert everywhere is not None
    assert torch.equal(found.negatives, everywhere.negatives & (LABELS[SAMPLES] < 1).repeat(2))
    assert torch.equal(found.weights > 0, found.negatives)
    others = torch.nonzero(LABELS > 0).flatten()[: len(SAMPLES)]  # none of the first class
    assert model.importance(*embedded, others) is None


def test_a_training_restricts_them(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = load_images("digits", limit=96).train.labels
    assert labels is not None
    seen, watched_ones = [], []
    pairs = SimCLR.pairs

    def watched(self: SimCLR, samples: Tensor) -> object:
        found = pairs(self, samples)
        of_these = labels[samples].repeat(2)[found.negatives().any(0)]
        (seen if self.training else watched_ones).append(of_these)
        return found

    monkeypatch.setattr(SimCLR, "pairs", watched)
    config = TrainConfig(
        recipe="simclr", loss={"negative_classes": 3}, limit=96, epochs=1, batch_size=32, width=4,
        probe_epochs=0, head_hidden=(8,), head_output=4, runs=str(tmp_path), progress=False,
        accelerator="cpu", threads=1,
    )  # fmt: skip
    unremix.train(config)
    assert len(seen) == 3
    assert set(torch.cat(seen).tolist()) == {0, 1, 2}
    assert set(torch.cat(watched_ones).tolist()) == {0, 1, 2}  # as the reports show them
