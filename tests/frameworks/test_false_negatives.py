"""Frameworks whose loss leaves out negatives that are probably false."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from building import make_batch, make_model
from torch import nn

import unremix
from unremix import FalseNegatives, InfoNCELoss
from unremix.frameworks.mixing import UnMix
from unremix.frameworks.simclr import SimCLR
from unremix.frameworks.weightings import HCL, Uniform, UnReMix
from unremix.recipes import RECIPES, compose

small = partial(small_runs.small, epochs=2, checkpoint_every=None)


def simclr(**settings: Any) -> SimCLR:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.LazyLinear(6))
    loss = InfoNCELoss(false_negatives=FalseNegatives(**settings))
    return SimCLR(
        encoder, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), loss
    ).double()


def test_the_bank_is_told_the_features_of_both_views() -> None:
    model, batch = simclr(rule="ring", evidence="bank", samples=40), make_batch(5, seed=1)
    model(batch)
    assert model.loss.bank is not None
    features = [nn.functional.normalize(model.encoder(view), dim=1) for view in batch.views[:2]]
    expected = torch.stack(features).mean(0)
    torch.testing.assert_close(model.loss.bank.rows[batch.samples], expected.float())
    assert int(model.loss.bank.known.sum()) == 5
    before = model.loss.bank.rows.clone()
    model.eval()(make_batch(5, seed=2))
    assert torch.equal(model.loss.bank.rows, before)
    assert not model.encoder._forward_hooks


def test_a_queue_knows_the_samples_of_its_keys() -> None:
    for evidence in ("similarity", "bank"):
        settings = FalseNegatives("threshold", evidence, samples=40)  # type: ignore[arg-type]
        model = make_model(loss=InfoNCELoss(false_negatives=settings), queue=11)
        for step in range(2):
            model(make_batch(4, seed=step, first=4 * step)).backward()
            model.after_step()
        assert model.loss.thresholds is not None
        assert model.loss.thresholds.known.nonzero()[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("recipe", "loss"),
    [
        ("unremix-simclr", {"false_negatives": "ring", "evidence": "four-views"}),
        ("hcl", {"false_negatives": "rank", "evidence": "shared-neighbors"}),
        ("moco", {"false_negatives": "threshold", "false_negative_share": 0.2}),
        ("unmix", {"false_negatives": "mixture"}),
    ],
)
def test_training_with_each_rule(tmp_path: Path, recipe: str, loss: dict[str, Any]) -> None:
    plain = unremix.train(small(tmp_path / "plain", recipe=recipe))
    run = unremix.train(small(tmp_path / "filtered", recipe=recipe, loss=loss))
    assert run.metrics()[-1]["loss"] != plain.metrics()[-1]["loss"]
    assert run.metrics()[-1]["effective_negatives"] < plain.metrics()[-1]["effective_negatives"]


def test_a_run_with_memory_resumes_exactly(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "recipe": "simclr", "loss": {"false_negatives": "threshold", "evidence": "bank"},
    }  # fmt: skip
    whole = unremix.train(small(tmp_path / "whole", **options))
    unremix.train(replace(small(tmp_path / "parts", **options), epochs=1))
    parts = unremix.train(resume=str(tmp_path / "parts" / "run"), epochs=2, progress=False)
    one, other = whole.load_checkpoint()["model"], parts.load_checkpoint()["model"]
    assert one["loss.bank.rows"].shape == (96, 256)
    assert one["loss.thresholds.known"].all()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert parts.encoder() is not None  # the state is restored into a new model
    assert unremix.load(parts.path).embed(torch.zeros(2, 1, 8, 8).numpy()).shape[0] == 2


def test_options_become_settings() -> None:
    for kind in (Uniform, HCL, UnReMix):
        made = kind(false_negatives="ring", evidence="bank", false_negative_share=0.3)()
        assert made.weighting.filter == FalseNegatives("ring", "bank", 0.3)
        assert kind()().weighting.filter is None
        with pytest.raises(ValueError, match="false_negatives with evidence, got none"):
            kind(evidence="bank")()
    composed = compose(RECIPES["simclr"], options={"loss": {"false_negatives": "rank"}})
    loss = composed.make_loss()
    assert loss is not None
    assert loss.weighting.filter == FalseNegatives("rank")
    with pytest.raises(ValueError, match="fidelity='paper'"):
        UnReMix(false_negatives="ring", fidelity="paper")()


def test_refusals(tmp_path: Path) -> None:
    bank = {"false_negatives": "ring", "evidence": "bank"}
    four = {"false_negatives": "ring", "evidence": "four-views"}
    with pytest.raises(ValueError, match=r"mixed .*, got 'ring' and 'four-views'"):
        unremix.train(small(tmp_path, recipe="unmix", loss=four))
    with pytest.raises(ValueError, match=r"queue .*, got 'ring' and 'four-views'"):
        unremix.train(small(tmp_path, recipe="moco", loss=four))
    with pytest.raises(ValueError, match="no chunk with evidence"):
        unremix.train(small(tmp_path, recipe="simclr", loss=bank, chunk=8))
    with pytest.raises(ValueError, match="HCL with jsd"):
        unremix.train(domain="graph", recipe="infograph-hcl", loss={"false_negatives": "ring"})
    with pytest.raises(ValueError, match="for sentences, got 'threshold'"):
        unremix.train(domain="sentence", loss={"false_negatives": "threshold"})
    mixed = compose(RECIPES["unmix"], options={"loss": {"false_negatives": "ring"}})
    encoder = nn.Linear(1, 1)
    assert isinstance(mixed.make_framework(encoder, nn.Sequential(nn.Linear(1, 1))).mixing, UnMix)


def test_an_untrained_run_has_a_report_too(tmp_path: Path) -> None:
    """Its memories are empty."""
    loss = {"false_negatives": "threshold", "evidence": "bank"}
    run = unremix.train(replace(small(tmp_path, recipe="simclr", loss=loss), epochs=0))
    assert (run.path / "report.html").exists()
