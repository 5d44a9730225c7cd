"""Audits during training: what they write, and that training does not notice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
import small_runs
import torch
from batches import make_batch

import unremix
from unremix.evaluation.audit_columns import PREFIX, audit_columns, gradient_columns
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("training")

small = partial(small_runs.small, epochs=2, checkpoint_every=None)


def test_columns_are_those_of_the_audit() -> None:
    batch, labels = make_batch(9), torch.arange(9) % 3
    found = unremix.importance(*batch.views, false_negatives="rank")
    columns, audit = audit_columns(found, labels, k=4), unremix.audit(found, labels, k=4)
    for name in (
        "false_negative_rate", "matched_false_negative_rate", "base_rate", "distinct_class_share",
        "effective_negatives",
    ):  # fmt: skip
        assert columns[f"audit_{name}"] == getattr(audit, name)
    assert columns["audit_auc_evidence"] == audit.auc["evidence"]
    for name in ("uncertainty", "similarity", "representativeness", "evidence", "weights"):
        score = getattr(found, name)
        loops = mean(
            pstdev(float(score[i, j]) for j in range(18) if found.negatives[i, j])
            for i in range(18)
        )
        assert columns[f"audit_spread_{name}"] == pytest.approx(loops)


def test_gradients_are_those_of_each_part() -> None:
    model = torch.nn.Module()
    model.encoder, model.head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    model.encoder(torch.randn(4, 3)).square().sum().backward()
    parts = [model.encoder.weight.grad, model.encoder.bias.grad]
    norm = float(torch.cat([part.flatten() for part in parts if part is not None]).norm())
    assert gradient_columns(model) == {"audit_gradient_encoder": pytest.approx(norm)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recipe": "unremix-moco", "moco": {"queue": 64}},
        {"recipe": "simclr", "loss": {"false_negatives": "threshold", "evidence": "bank"}},
    ],
    ids=["simclr", "moco", "bank"],
)
def test_training_does_not_notice(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = unremix.train(small(tmp_path / "plain", **options))
    audited = unremix.train(small(tmp_path / "audited", audit_every=1, **options))
    one, other = plain.load_checkpoint(), audited.load_checkpoint()
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    for key, values in one["optimizer"]["state"].items():
        for name, value in values.items():
            again = other["optimizer"]["state"][key][name]
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(again))
    for row, more in zip(plain.metrics(), audited.metrics(), strict=True):
        assert row == {name: value for name, value in more.items() if not name.startswith(PREFIX)}
        rate = more["audit_matched_false_negative_rate"]
        assert 0 <= rate <= 1
        assert more["audit_gradient_encoder"] > 0
        assert 0 < more["audit_auc_similarity"] < 1


def test_audits_happen_when_asked(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, audit_every=2))
    assert isinstance(run, Run)
    assert ["audit_base_rate" in row for row in run.metrics()] == [False, True]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="negatives for --audit_every"):
        unremix.train(small(tmp_path, recipe="swav", audit_every=1))
    with pytest.raises(ValueError, match="audit_every to be at least 1"):
        small(tmp_path, audit_every=0)
    from PIL import Image

    for number in range(40):
        folder = tmp_path / "pictures"
        folder.mkdir(exist_ok=True)
        Image.new("L", (8, 8), number).save(folder / f"{number}.png")
    with pytest.raises(ValueError, match="with labels for --audit_every"):
        unremix.train(small(tmp_path / "runs", data=str(folder), audit_every=1))
    assert not (tmp_path / "runs" / "run").exists()
