"""Where the time of a training goes."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
import torch
from small_runs import small
from torch import nn

import unremix
from unremix.training import profile
from unremix.training.profile import STAGES, Profile
from unremix.training.run import Run


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """One whose clock advances by a second whenever it is read."""
    seconds = count()
    monkeypatch.setattr(profile.time, "perf_counter", lambda: float(next(seconds)))
    return Profile(nn.Identity(), torch.device("cpu"), tmp_path / "trace.json")


def test_a_stage_within_another_counts_once(profiled: Profile) -> None:
    with profiled.stage("loss"):  # 1, 2
        with profiled.stage("encoder"):  # 3
            pass
        with profiled.stage("encoder"):
            pass
    with profiled.stage("optimizer"):
        pass
    spent = {name: seconds for name, seconds in profiled.seconds.items() if seconds}
    assert spent == {"loss": 3.0, "encoder": 2.0, "optimizer": 1.0}
    table = profiled.lines()
    assert table[1 + STAGES.index("loss")].split() == ["loss", "3.0", "50.0%", "3000.0"]
    assert table[-1].split()[:3] == ["in", "all", "6.0"]


def test_the_encoder_while_measuring_is_measuring(tmp_path: Path) -> None:
    encoder = nn.Identity()
    found = Profile(encoder, torch.device("cpu"), tmp_path / "trace.json")
    with found.stage("measuring"):
        encoder(torch.ones(1))
    assert found.seconds["encoder"] == 0 < found.seconds["measuring"]
    with found.stage("loss"):
        encoder(torch.ones(1))
    before = found.seconds["encoder"]
    assert before > 0
    found.close()
    encoder(torch.ones(1))
    assert found.seconds["encoder"] == before


def test_a_profiled_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says where the time went, leaves a trace, and trains the same weights."""
    plain = unremix.train(small(tmp_path, name="plain", epochs=2))
    run = unremix.train(small(tmp_path, name="profiled", epochs=2, profile=True, progress=True))
    shown = capsys.readouterr().out
    assert all(f"\n{stage} " in shown for stage in STAGES[1:])
    events = json.loads((run.path / "trace.json").read_text())["traceEvents"]
    assert {"views", "loss", "backward", "optimizer"} <= {event.get("name") for event in events}
    assert "profile:" not in (run.path / "config.yaml").read_text()
    ours, theirs = (Run(one.path).load_checkpoint()["model"] for one in (run, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
