"""Checkpoints with a valid checksum that hold anything: read, or refused in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from archives import write_archive
from fuzzing import in_child
from torch import Tensor, nn

import unremix.report
from unremix.cli import main
from unremix.training.checkpoints import read_checkpoint, write_checkpoint
from unremix.training.optimizers import make_optimizer, restore_optimizer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forged"), pytest.mark.timeout(600)]

State = dict[str, Any]
VALUES = (3, "x", None, [3], [{"a": {}}], {"a": 1}, float("nan"), -1, 10**30, 10**400)
NAMES = ("step", "rows", "losses", "seconds", "record", "optimizer", "precision", "version")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.digits(tmp_path_factory.mktemp("runs"), width=4).path


def forge(sound: Path, place: Path, change: Callable[[State], object]) -> Path:
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(sound, run)
    for name in ("encoder.safetensors", "report.npz"):
        (run / name).unlink()
    state = read_checkpoint(run / "checkpoints" / "last.ckpt")
    change(state)
    for name in ("last", "previous"):
        path = run / "checkpoints" / f"{name}.ckpt"
        try:
            write_checkpoint(state, path)
        except (RuntimeError, NotImplementedError):  # only archives hold such tensors
            write_archive(state, path)
    return run


def answers(run: Path, command: str) -> tuple[int, str]:
    """A command's exit code and output; a crash or a traceback fails."""
    words = {
        "embed": ["embed", str(run), "-o", str(run / "e.npz")],
        "report": ["report", str(run)],
        "resume": ["train", "--resume", str(run), "--epochs", "2", "--progress", "false"],
    }[command]
    code, said = in_child(lambda: print(f"ended with {main(words)}"), file_bytes=10**8, seconds=200)
    assert code == 0, said
    assert "ended with 0" in said or "ended with 1" in said, said
    return int("ended with 1" in said), said


@pytest.mark.parametrize("name", NAMES)
def test_values_of_another_type(sound: Path, tmp_path: Path, name: str) -> None:
    for value in VALUES:
        answers(forge(sound, tmp_path, lambda state: state.update({name: value})), "resume")  # noqa: B023


@pytest.mark.parametrize("row", [{}, {"epoch": "x"}, {"epoch": float("inf")}, {"epoch": None}])
def test_rows_without_an_epoch(sound: Path, tmp_path: Path, row: State) -> None:
    run = forge(sound, tmp_path, lambda state: state.update(rows=[row]))
    assert answers(run, "resume")[0] == 1


def first(state: State) -> str:
    """The encoder's first weights."""
    return next(name for name in state["model"] if name.startswith("encoder."))


def with_weights(change: Callable[[Tensor], Tensor]) -> Callable[[State], None]:
    def change_first(state: State) -> None:
        state["model"][first(state)] = change(state["model"][first(state)])

    return change_first


@pytest.mark.parametrize(
    "change",
    [
        Tensor.to_sparse,
        lambda one: one.to("meta"),
        lambda one: torch.nested.nested_tensor([one]),
        Tensor.int,  # all zeros, were they converted
        Tensor.half,
        Tensor.double,
        lambda one: one.to(torch.complex64),
    ],
)
@pytest.mark.parametrize("command", ["embed", "resume"])
@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_kind_are_refused(
    sound: Path, tmp_path: Path, change: Callable[[Tensor], Tensor], command: str
) -> None:
    code, said = answers(forge(sound, tmp_path, with_weights(change)), command)
    assert code == 1
    assert "unremix: expected a " in said


def test_embeddings_that_overflow_are_not_written(sound: Path, tmp_path: Path) -> None:
    run = forge(sound, tmp_path, with_weights(lambda one: one * 1e38))
    code, said = answers(run, "embed")
    assert code == 1
    assert "expected finite embeddings, got NaN" in said
    assert not (run / "e.npz").exists()
    with pytest.raises(ValueError, match="expected finite embeddings"):
        unremix.load(run).embed(np.full((2, 1, 8, 8), 255, np.uint8))


def test_a_collapsed_encoder_has_a_report(sound: Path, tmp_path: Path) -> None:
    """All embeddings are equal: t-SNE would divide by their spread, and end the process."""
    run = forge(sound, tmp_path, with_weights(torch.zeros_like))
    code, said = answers(run, "report")
    assert (code, (run / "report.html").exists()) == (0, True), said


def of_state(change: Callable[[State], object]) -> Callable[[State], None]:
    def change_all(optimizer: State) -> None:
        for values in optimizer["state"].values():
            change(values)

    return change_all


OPTIMIZERS: dict[str, Callable[[State], object]] = {
    "too short": of_state(lambda values: values.update(exp_avg=torch.ones(2))),
    "too long": of_state(lambda values: values.update(exp_avg_sq=torch.ones(10**6))),
    "sparse": of_state(lambda values: values.update(exp_avg=values["exp_avg"].to_sparse())),
    "whole numbers": of_state(lambda values: values.update(exp_avg=values["exp_avg"].long())),
    "no step": of_state(lambda values: values.pop("step")),
    "a word": of_state(lambda values: values.update(step="x")),
    "many steps": of_state(lambda values: values.update(step=torch.ones(9))),
    "more": of_state(lambda values: values.update(more=torch.ones(9))),
    "another parameter": lambda optimizer: optimizer["state"].update({999: {}}),
    "no groups": lambda optimizer: optimizer["param_groups"].clear(),
    "other groups": lambda optimizer: optimizer["param_groups"][0].update(params=[0]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_does_not_fit_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    run = forge(sound, tmp_path, lambda state: OPTIMIZERS[name](state["optimizer"]))
    code, said = answers(run, "resume")
    assert code == 1
    assert "last.ckpt as unremix wrote it, got " in said


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lars"])
def test_an_optimizer_continues_as_if_it_had_never_stopped(name: Any) -> None:
    """Whatever options its file names; numbers that a file shows as many are written out."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, make_optimizer(model, [], name=name, lr=0.1, weight_decay=0.01)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 2, 3, 3)).square().sum().backward()
        optimizer.step()

    whole, optimizer = make()
    step(whole, optimizer)
    again, restored = make()
    again.load_state_dict(whole.state_dict())
    state = deepcopy(optimizer.state_dict())
    state["param_groups"][0] |= {"lr": 99.0, "weight_decay": 99.0}
    restore_optimizer(restored, state)
    step(whole, optimizer)
    step(again, restored)
    for expected, found in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(found, expected)
    shown = restored.state_dict()
    for values in shown["state"].values():
        for key, value in values.items():
            if value.dim():
                values[key] = torch.ones(1).expand(value.shape)
    restore_optimizer(restored, shown)
    for parameter, values in restored.state.items():
        for value in values.values():
            assert value.dim() == 0 or value.stride() == parameter.stride()
