"""SimCLR without negatives of the anchor's own class, as an oracle would have it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import UnMix
from unremix.frameworks.simclr import SimCLR, SimCLROptions
from unremix.losses import HCLLoss, TwoViewLoss

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2, 0])
SAMPLES = torch.tensor([7, 2, 4, 0, 1])


def make(loss: TwoViewLoss, **options: object) -> SimCLR:
    torch.manual_seed(0)
    return SimCLR(
        nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4)), loss,
        options=SimCLROptions(**options),  # type: ignore[arg-type]
    )  # fmt: skip


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = tuple(torch.randn(len(SAMPLES), 5, generator=generator) for _ in range(2))
    return Batch(views, SAMPLES, SAMPLES, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("hardness", [0.0, 2.0])
def test_the_loss_pair_by_pair(hardness: float) -> None:
    """Uniform weights, and exp(β s / τ), among the true negatives alone, by definition."""
    model = make(
        HCLLoss(temperature=0.5, hardness=hardness, class_prior=0.0), same_class="excluded"
    )
    model.read_labels(LABELS)
    given = batch()
    f = torch.cat([nn.functional.normalize(model.embed(view)[0].detach()) for view in given.views])
    classes, total = LABELS[SAMPLES].repeat(2), 0.0
    for i in range(10):
        positive = math.exp(float(f[i] @ f[(i + 5) % 10]) / 0.5)
        close = [float(f[i] @ f[j]) for j in range(10) if classes[j] != classes[i]]
        weights = [math.exp(hardness * s / 0.5) for s in close]
        mean = sum(weights) / len(weights)
        negative = sum(
            weight / mean * math.exp(s / 0.5) for weight, s in zip(weights, close, strict=True)
        )
        total -= math.log(positive / (positive + negative))
    assert float(model(given).detach()) == pytest.approx(total / 10, rel=1e-5)
    negatives = model.pairs(SAMPLES).negatives()
    assert torch.equal(negatives, classes[:, None] != classes[None, :])


def test_what_cannot_be() -> None:
    loss = HCLLoss()
    with pytest.raises(ValueError, match="without mixing"):
        SimCLR(
            nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4)), loss, mixing=UnMix(),
            options=SimCLROptions(same_class="excluded"),
        )  # fmt: skip
    with pytest.raises(ValueError, match="got data without"):
        make(loss, same_class="excluded").read_labels(None)
    make(loss, same_class="negatives").read_labels(None)


def test_the_option_of_a_run() -> None:
    config = TrainConfig(recipe="hcl", loss={"same_class": "excluded"})
    made = config.composition().make_framework(nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4)))
    assert isinstance(made, SimCLR)
    assert made.options.same_class == "excluded"
