"""Config, shape, card and checkpoint with random damage: read or refused, in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzzing import Files, fuzz, hold

import unremix
from unremix.training.run import Run

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"
FILES = ("config.yaml", "shape.json", "evaluation.json", "checkpoints/last.ckpt")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Files:
    run = unremix.train(
        limit=32, batch_size=16, epochs=1, probe_epochs=0, width=4, head_hidden=(8,), head_output=4,
        runs=str(tmp_path_factory.mktemp("runs")), name="run", progress=False, accelerator="cpu",
        threads=1,
    )  # fmt: skip
    return {name: (run.path / name).read_bytes() for name in FILES}


def read_run(path: Path) -> None:
    run = Run(path)
    _ = run.evaluation
    run.load_checkpoint()


def test_a_sound_run_is_read(sound: Files, tmp_path: Path) -> None:
    for name, content in sound.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert hold(read_run, tmp_path) == "read"


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_run_is_read_or_refused(name: str, sound: Files) -> None:
    def read(path: Path) -> None:
        for other, content in sound.items():
            if other != name:
                (path / other).parent.mkdir(exist_ok=True)
                (path / other).write_bytes(content)
        read_run(path)

    counts = fuzz(read, {"run": {name: sound[name]}}, examples=1000 if TORTURE else 40)
    assert counts["refused"] > 0
