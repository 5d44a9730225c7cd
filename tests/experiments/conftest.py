"""What the tests of experiments share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import TINY

import unremix
from unremix.experiments import compare as compare_module
from unremix.experiments import executors

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run's folder has before its first step."""
    folder = tmp_path_factory.mktemp("template")
    run = unremix.train(replace(TINY, runs=str(folder), epochs=0, probe_epochs=0, progress=False))
    for path in run.path.iterdir():
        if path.suffix not in (".yaml", ".json") or path.name == "evaluation.json":
            subprocess.run(["rm", "-r", str(path)], check=True)
    return run.path


@pytest.fixture
def fake(template: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts the stand-in in the training's place; called with what shall go wrong."""
    program = (str(TESTS / "fake_training.py"), str(template))
    monkeypatch.setattr(executors, "TRAIN", program)
    monkeypatch.setattr(executors, "POLL", 0.01)
    monkeypatch.setattr(compare_module, "learning_curves", lambda *_: None)  # it takes a second

    def behave(**behavior: list[str]) -> None:
        monkeypatch.setenv("FAKE_TRAINING", json.dumps(behavior))

    behave()
    return behave
