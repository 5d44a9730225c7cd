"""Runs repeat exactly, resume exactly, and do not depend on chunks or processes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import crash_at
from small_runs import small
from torch import Tensor

import unremix
from unremix.domains.options import (
    OptimizerName,
    TrainConfig,
    config_from_yaml,
    config_to_yaml,
)
from unremix.domains.sampling import permuted
from unremix.training import checkpoints
from unremix.training.optimizers import make_optimizer
from unremix.training.run import Run

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("training")  # one worker makes the shared run


def state_of(run: Run) -> dict[str, Any]:
    return run.load_checkpoint()


def assert_same_run(first: Run, second: Run) -> None:
    one, other = state_of(first), state_of(second)
    assert one["step"] == other["step"]
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    for key, values in one["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(
                torch.as_tensor(value), torch.as_tensor(other["optimizer"]["state"][key][name])
            )
    assert (first.path / "metrics.csv").read_bytes() == (second.path / "metrics.csv").read_bytes()
    assert first.evaluation is not None
    assert second.evaluation is not None
    assert first.evaluation["results"] == second.evaluation["results"]


def test_a_run_repeats_exactly_and_leaves_everything(tmp_path: Path, whole: Run) -> None:
    before = torch.get_rng_state()
    first = unremix.train(small(tmp_path / "a"))
    assert torch.equal(torch.get_rng_state(), before)  # global randomness is not touched
    assert_same_run(first, whole)
    other = unremix.train(small(tmp_path / "c", seed=1))
    assert other.metrics()[-1]["loss"] != first.metrics()[-1]["loss"]
    for name in ("config.yaml", "metrics.csv", "checkpoints/last.ckpt", "encoder.safetensors",
                 "evaluation.json", "report.html", "figures/loss.svg"):  # fmt: skip
        assert (first.path / name).stat().st_size > 0
    rows = first.metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert {"knn", "spread", "effective_rank", "effective_negatives", "mix_similarity"} <= set(
        rows[-1]
    )
    assert not list(first.path.rglob("*.tmp"))
    page = (first.path / "report.html").read_text()
    assert "<svg" in page
    assert "trained encoder" in page
    assert not re.search(r"(src|href)=.?http|url\(.?http|@import", page)  # it loads nothing


@pytest.mark.parametrize("at", [1, 2, 3, 4, 7])
def test_a_crash_at_any_step_changes_nothing(tmp_path: Path, whole: Run, at: int) -> None:
    with crash_at(at):
        unremix.train(small(tmp_path / "broken"))
    folder = tmp_path / "broken" / "run"
    if at < 2:  # before the first checkpoint: it begins again
        with pytest.raises(FileNotFoundError, match="before its first one: continue it with"):
            Run(folder).load_checkpoint()
    assert_same_run(unremix.train(resume=str(folder), progress=False), whole)


def test_a_full_disk_keeps_the_earlier_checkpoint(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoints.save_file

    def full(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
        if json.loads(metadata["state"])["dict"][2] > ["step", 4]:
            file.write_bytes(b"some of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, file, metadata)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match=r"room on the disk .*intact"):
        unremix.train(small(tmp_path / "full"))
    monkeypatch.setattr(checkpoints, "save_file", save)
    folder = tmp_path / "full" / "run"
    assert state_of(Run(folder))["step"] == 4
    assert not list(folder.rglob("*.tmp"))
    assert_same_run(unremix.train(resume=str(folder), progress=False), whole)


@pytest.mark.parametrize("recipe", ["simclr", "unremix-simclr"])
def test_chunks_give_the_gradient_of_the_whole_batch(tmp_path: Path, recipe: str) -> None:
    options = {"backbone": "tiny:encoder", "head_batch_norm": False, "precision": "64-true",
               "recipe": recipe}  # fmt: skip
    whole = unremix.train(small(tmp_path / "whole", **options))
    parts = unremix.train(small(tmp_path / "parts", chunk=10, **options))
    for name, tensor in state_of(whole)["model"].items():
        torch.testing.assert_close(state_of(parts)["model"][name], tensor, rtol=1e-7, atol=1e-9)
    assert parts.metrics()[-1]["loss"] == pytest.approx(whole.metrics()[-1]["loss"], rel=1e-8)


def test_chunks_move_running_statistics_once(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, chunk=16, epochs=1, checkpoint_every=None))
    counts = [
        t for name, t in state_of(run)["model"].items() if name.endswith("num_batches_tracked")
    ]
    assert counts
    assert {int(count) for count in counts} == {3 * 2 * 2}  # steps × views × chunks


TWICE = """
import sys
from unremix.cli import main
for name, more in (("whole", []), ("chunks", ["--chunk", "5"])):
    assert main(["train", "--name", name, *sys.argv[1:], *more]) == 0
"""


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes, with and without chunks."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "twice.py").write_text(TWICE)
    arguments = [
        "--runs", str(folder), "--limit", "96", "--batch_size", "32", "--epochs", "3",
        "--probe_epochs", "0", "--head_hidden", "[16]", "--head_output", "8", "--progress", "false",
        "--accelerator", "cpu", "--checkpoint_every", "2", "--threads", "1", "--backbone",
        "tiny:encoder", "--head_batch_norm", "false", "--precision", "64-true",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
         str(folder / "twice.py"), *arguments],
        check=True, timeout=250, env=environment,
    )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "chunks"])
def test_two_processes_equal_one(tmp_path: Path, in_two: Path, name: str) -> None:
    one = unremix.train(
        small(tmp_path, backbone="tiny:encoder", head_batch_norm=False, precision="64-true")
    )
    two = Run(in_two / name)
    for parameter, tensor in state_of(one)["model"].items():
        torch.testing.assert_close(state_of(two)["model"][parameter], tensor, rtol=1e-7, atol=1e-9)
    assert [row["loss"] for row in two.metrics()] == pytest.approx(
        [row["loss"] for row in one.metrics()], rel=1e-8
    )


def test_the_batches_are_a_function_of_the_step() -> None:
    epoch = torch.cat([permuted(35, 10, 3, step) for step in range(3)])
    assert len(epoch.unique()) == 30
    assert torch.equal(permuted(35, 10, 3, 1), epoch[10:20])
    assert not torch.equal(permuted(35, 10, 3, 3), epoch[:10])
    assert not torch.equal(permuted(35, 10, 4, 0), epoch[:10])


def test_no_epoch_is_the_untrained_encoder(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=0))
    assert run.evaluation is not None
    assert run.evaluation["results"]["trained"] == run.evaluation["results"]["untrained"]
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    assert run.embed(images).shape == (3, run.evaluation["results"]["trained"]["features"])
    with pytest.raises(ValueError, match=r"integers in 0..255 or floats in \[0, 1\]"):
        run.embed(images - 3.0)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "schedule": "cosine", "warmup_epochs": 1},
        {"optimizer": "lars", "lr": 0.1},
        {"optimizer": "adamw", "clip": 0.1},
        {"precision": "bf16-mixed"},
        {"recipe": "hcl", "loss": dict(hardness=2.0)},
        {"recipe": "debiased"},
        {"loss": dict(mix=(0.2, 0.3, 0.5), scaling="zscore-exp", hardness=2.0)},
        {"augmentation": "gray", "head_hidden": (16, 16), "head_output": 4},
    ],
    ids=str,
)
def test_options_change_the_run(tmp_path: Path, whole: Run, options: dict[str, Any]) -> None:
    other = unremix.train(small(tmp_path, epochs=2, **options))
    assert other.metrics()[-1]["loss"] != whole.metrics()[1]["loss"]
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in other.metrics())


def test_tensorboard(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, loggers=("tensorboard",), epochs=1))
    assert list((run.path / "tensorboard").glob("events*"))


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'epochs'"):
        unremix.train(epohcs=3)
    with pytest.raises(ValueError, match="did you mean 'unremix-simclr'"):
        unremix.train(small(tmp_path, recipe="unremix-simcrl"))
    with pytest.raises(ValueError, match=r"'simclr' uses .*got --loss.mix"):
        unremix.train(small(tmp_path, recipe="simclr", loss=dict(mix="fixed")))
    with pytest.raises(ValueError, match=r"batch_size=4096 .*, got 96"):
        unremix.train(small(tmp_path, batch_size=4096))
    with pytest.raises(ValueError, match="augmentation auto or one of"):
        unremix.train(small(tmp_path, augmentation="none"))
    for name, value in (("epochs", -1), ("lr", 0.0), ("chunk", 0), ("name", "a/b")):
        with pytest.raises(ValueError, match=name):
            TrainConfig(**{name: value})
    assert not list(tmp_path.iterdir())  # nothing was written
    unremix.train(small(tmp_path, epochs=0))
    with pytest.raises(FileExistsError, match="choose another --name, or --resume"):
        unremix.train(small(tmp_path, epochs=0))
    with pytest.raises(ValueError, match="--resume alone, got lr"):
        unremix.train(resume=str(tmp_path / "run"), lr=0.5, progress=False)
    with pytest.raises(ValueError, match="--resume alone, got recipe as well"):
        unremix.train(resume=str(tmp_path / "run"), recipe="infograph", progress=False)
    with pytest.raises(FileNotFoundError, match=r"run folder with config\.yaml"):
        unremix.train(resume=str(tmp_path / "nothing"))


def test_the_configuration_survives_yaml() -> None:
    config = TrainConfig(
        head_hidden=(3, 4), loss=dict(mix=(0.5, 0.2, 0.3), components=("similarity",))
    )
    assert config_from_yaml(config_to_yaml(config)) == config
    assert "!!" not in config_to_yaml(config)
    with pytest.raises(ValueError, match="epohcs"):
        config_from_yaml("epohcs: 3")


@pytest.mark.parametrize("batch_size", [32, 96])
def test_effective_negatives_are_those_of_a_batch(batch_size: int, tmp_path: Path) -> None:
    """With equal weights an anchor has both views of every other image of its batch."""
    run = unremix.train(small(tmp_path, recipe="simclr", epochs=1, batch_size=batch_size))
    assert run.metrics()[-1]["effective_negatives"] == pytest.approx(2 * (batch_size - 1))


def test_the_card_says_what_was_measured(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=1, probe_epochs=2))
    card = json.loads((run.path / "evaluation.json").read_text())
    assert card["epoch"] == 1
    assert card["seed"] == 0
    assert "backbone" in card["layer"]
    assert run.config.backbone == "auto"
    assert card["backbone"] == "small"  # what it came to for images of 8 pixels
    for result in card["results"].values():
        assert 0 <= result["knn"]["value"] <= 1
        assert len(result["linear"]["curve"]) == 2
    again = unremix.evaluate(run.path)
    assert json.loads(json.dumps(again))["results"] == card["results"]


def test_sections_may_be_dictionaries(tmp_path: Path) -> None:
    given = small(tmp_path, recipe="hcl", epochs=0)
    run = unremix.train(**given.options() | {"loss": {"hardness": 2.0}})
    settled = {"precision": "32-true", "compile": False}
    expected = replace(given, part_options=run.config.part_options, **settled)
    assert run.config == expected
    assert run.config.loss.hardness == 2.0
    with pytest.raises(ValueError, match=r"got loss\.hardnes; did you mean 'hardness'"):
        unremix.train(loss={"hardnes": 2.0})


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_one_sweep_over_all_parameters_steps_as_torch_does(name: OptimizerName) -> None:
    models = [torch.nn.Linear(4, 3).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = make_optimizer(models[0], [], name=name, lr=0.1, weight_decay=0.01)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    theirs = kind(models[1].parameters(), lr=0.1, weight_decay=0.01, foreach=False, **momentum)
    for step in range(3):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            optimizer.zero_grad()
            model(torch.arange(8.0).view(2, 4).double() + step).pow(2).sum().backward()
            optimizer.step()
    assert ours.param_groups[0]["fused"]
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, other)
