"""A temperature that moves in the course of a training: on a cosine, or learned."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import unremix
from unremix.domains.options import TrainConfig
from unremix.losses import InfoNCELoss


def train(folder: Path, **options: object) -> unremix.Run:
    config = TrainConfig(
        recipe="simclr", limit=96, epochs=2, batch_size=16, width=4, probe_epochs=0,
        head_hidden=(8,), head_output=4, runs=str(folder), progress=False, accelerator="cpu",
        threads=1, **options,
    )  # fmt: skip
    return unremix.train(config)


def test_it_follows_a_cosine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forward = [], InfoNCELoss.forward

    def watched(self: InfoNCELoss, *views: object, **given: object) -> torch.Tensor:
        seen.append(self.temperature)
        return forward(self, *views, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(InfoNCELoss, "forward", watched)
    train(tmp_path, temperature=0.2, highest_temperature=0.8)
    expected = [0.5 + 0.3 * math.cos(10 * math.pi * step / 12) for step in range(12)]
    assert seen == pytest.approx(expected)


def test_it_is_learned(tmp_path: Path) -> None:
    run = train(tmp_path, temperature=0.2, loss={"learnable_temperature": True})
    learned = float(run.restored(run.load_checkpoint()).loss.current_temperature())
    assert learned != pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "swav", "highest_temperature": 1.0},
        {"recipe": "simclr", "temperature": 0.5, "highest_temperature": 0.4},
        {"recipe": "simclr", "highest_temperature": 1.0, "loss": {"learnable_temperature": True}},
    ],
)
def test_a_range_that_would_do_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected highest_temperature above"):
        TrainConfig(**options).composition()
