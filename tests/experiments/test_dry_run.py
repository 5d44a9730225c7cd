"""The dry run: what it says about a training that has not begun."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import unremix
from unremix.cli import main
from unremix.console.quantities import amount, duration
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.experiments import dry_run as module
from unremix.experiments.dry_run import (
    Stopwatch,
    affordable_samples,
    count_parameters,
    dry_comparison,
    dry_run,
    epochs_within,
    estimate,
    load_or_imagine,
    memory_in_use,
    rows_of,
    tensor_bytes,
)
from unremix.experiments.plan import Plan
from unremix.frameworks.queue import Queue
from unremix.training.building import build_model

SMALL = TrainConfig(
    limit=160, batch_size=32, epochs=2, head_hidden=(16,), head_output=8, accelerator="cpu",
    backbone="tiny:encoder", threads=1, progress=False, probe_epochs=0,
)  # fmt: skip


@given(seconds=st.floats(0.001, 1e8))
def test_a_duration_reads_as_what_it_is(seconds: float) -> None:
    size = {"years": 365.25 * 86400, "d": 86400, "h": 3600, "min": 60, "s": 1}
    parts = re.findall(r"([\d.e-]+) (\w+)", duration(seconds))
    assert 1 <= len(parts) <= 2
    value = sum(float(number) * size[unit] for number, unit in parts)
    least = size[parts[-1][1]] if seconds >= 60 else 0.1
    assert value == pytest.approx(seconds, rel=0.01, abs=0.51 * least)
    if len(parts) == 2:  # 1 h 60 min is 2 h
        (_, large), (number, small) = parts
        assert float(number) < size[large] / size[small]


@given(count=st.integers(0, 2**50))
def test_an_amount_reads_as_what_it_is(count: int) -> None:
    number, unit = amount(count).split()
    size = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number) * size == pytest.approx(count, abs=0.051 * size)


@given(
    minutes=st.floats(0.1, 1000), epochs=st.integers(1, 50), epoch_seconds=st.floats(1.0, 10_000)
)
def test_epochs_end_with_the_one_in_which_the_time_is_up(
    minutes: float, epochs: int, epoch_seconds: float
) -> None:
    made, clock = 0, 0.0
    while made < epochs and (made == 0 or clock < 60 * minutes):
        made, clock = made + 1, (made + 1) * epoch_seconds
    assert epochs_within(minutes, epochs, epoch_seconds) == made
    assert epochs_within(None, epochs, epoch_seconds) == epochs


def test_the_peak_is_that_of_the_process() -> None:
    before = memory_in_use()
    if before is None:
        pytest.skip("only Linux says")
    block = torch.ones(32 * 2**20)  # 128 MiB, touched
    del block
    peak = module.peak_memory("cpu", before)
    assert peak is not None
    assert peak == pytest.approx(2**27, rel=0.2)
    before = memory_in_use()
    peak = module.peak_memory("cpu", before)
    assert peak is not None
    assert peak < 2**26  # the earlier peak is forgotten


@pytest.mark.parametrize("recipe", ["unremix-moco", "swav", "unremix"])
def test_the_estimate_is_what_a_run_leaves(recipe: str, tmp_path: Path) -> None:
    config = replace(SMALL, recipe=recipe, runs=str(tmp_path / "runs"), name="run")
    found = estimate(config)
    assert not (tmp_path / "runs").exists()
    run = unremix.train(config)
    assert found.samples == 160
    assert found.steps == run.metrics()[-1]["step"] == 2 * 5
    model = build_model(run.config, run.shape)
    total = sum(p.numel() for p in model.parameters())
    assert sum(found.parameters.values()) == total
    assert found.parameters == count_parameters(model)
    # A file has names and a header for each tensor, besides its bytes.
    state = run.load_checkpoint()
    assert tensor_bytes([state["model"], state["optimizer"]]) == found.checkpoint
    assert 0 < run.checkpoint.stat().st_size - found.checkpoint < 150_000
    saved = (run.path / "encoder.safetensors").stat().st_size
    assert 0 < saved - found.encoder < 20_000
    assert found.scale == 1
    assert found.timed == 3
    assert found.seconds == pytest.approx(10 * found.step_seconds)


def test_a_slow_step_is_scaled_from_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "affordable_samples", lambda each, seconds: 16)
    found = estimate(SMALL)
    assert (found.step_samples, found.scale) == (16, 2.0)
    monkeypatch.setattr(module, "affordable_samples", lambda each, seconds: 3)
    found = estimate(SMALL)
    assert (found.step_samples, found.scale) == (8, 4.0)
    shown = rows_of(found, SMALL, "images")
    assert "scaled from 8 images" in shown["time of a step"]
    assert shown["steps in all"] == "10 (2 epochs)"


@given(each=st.floats(1e-6, 100), seconds=st.floats(0.1, 100))
def test_two_steps_fit_into_the_time(each: float, seconds: float) -> None:
    size = affordable_samples(each, seconds)
    assert 2 * size * each <= seconds * 1.000001
    assert 2 * (size + 1) * each > seconds * 0.999999


def test_chunks_stay_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = module.fit

    def watched(prepared: Any, *arguments: Any) -> Any:
        seen.append((prepared.config.batch_size, prepared.config.chunk))
        return original(prepared, *arguments)

    monkeypatch.setattr(module, "fit", watched)
    found = estimate(replace(SMALL, chunk=16))
    assert seen == [(8, 4), (32, 16)]
    assert found.scale == 1


def test_an_epoch_of_one_step_is_not_overrun(tmp_path: Path) -> None:
    found = estimate(replace(SMALL, limit=40, runs=str(tmp_path)))
    assert found.steps == 2
    assert found.timed == 1
    assert not list(tmp_path.iterdir())


class FakeTraining:
    """What the stopwatch asks of a training."""

    steps_per_epoch = 100
    fabric = SimpleNamespace(device=torch.device("cpu"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def __init__(self) -> None:
        self.model = torch.nn.Module()
        self.model.encoder = torch.nn.Linear(2, 3)
        self.model.memory = Queue(5, width=2)


def test_a_late_step_is_enough_once_the_time_is_up() -> None:
    training = FakeTraining()
    with Stopwatch(SMALL, seconds=0.0) as watch:
        watch.stepped(training, 0.0)  # type: ignore[arg-type]  # the one that warms up
        with pytest.raises(module.Enough):
            watch.stepped(training, 0.0)  # type: ignore[arg-type]
    assert len(watch.seconds) == 1


@pytest.mark.parametrize(("seconds", "steps"), [(2.5, 2), (3.5, 3), (9.0, 4)])
def test_no_step_is_begun_that_would_end_too_late(
    seconds: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    training = FakeTraining()
    with Stopwatch(SMALL, seconds=seconds) as watch:
        for clock.now in range(1, steps):
            watch.stepped(training, 0.0)  # type: ignore[arg-type]
        clock.now = steps
        with pytest.raises(module.Enough):
            watch.stepped(training, 0.0)  # type: ignore[arg-type]
    assert watch.total == steps
    assert watch.seconds == [1.0] * (steps - 1)


def test_all_steps_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first few samples took is not there for the others."""
    given = []
    original = module.time_steps

    def watched(*arguments: Any) -> Any:
        watch = original(*arguments)
        given.append((arguments[3], arguments[4], watch.total))
        return watch

    monkeypatch.setattr(module, "time_steps", watched)
    estimate(SMALL, seconds=100.0)
    (few, first, took), (whole, second, _) = given
    assert (few, whole) == (8, SMALL.batch_size)
    assert first == 25.0
    assert second == pytest.approx(100.0 - took)


def test_the_queue_is_full_when_steps_are_timed() -> None:
    training = FakeTraining()
    with Stopwatch(SMALL) as watch:
        watch.stepped(training, 0.0)  # type: ignore[arg-type]
    memory = training.model.memory
    assert isinstance(memory, Queue)
    assert len(memory) == 5
    assert memory.samples.tolist() == [-1] * 5


def test_mixtures_are_made_from_the_first_step() -> None:
    config = replace(SMALL, recipe="mochi", epochs=400, mochi={"warmup_epochs": 9})
    composed = module._measuring(config).composition()
    assert composed.make_options("negatives").warmup_epochs == 0
    composed = module._measuring(replace(config, mochi={})).composition()
    assert composed.make_options("negatives").warmup_epochs == 0


def test_absent_data_of_a_setting_are_imagined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    domain = find_domain("image")
    config = TrainConfig(data="cifar-10-python.tar.gz", image_size=32)
    data, real = load_or_imagine(domain, config)
    assert not real
    assert domain.size(data) == 50_000
    batch = domain.fetch(data, torch.arange(5))
    assert batch.shape == (5, 3, 32, 32)
    assert batch.dtype == torch.uint8
    with pytest.raises(FileNotFoundError):
        load_or_imagine(domain, TrainConfig(data="mine.zip", image_size=32))


def test_the_command_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    arguments = [
        "train", "--dry_run", "--config", "cifar10", "--recipe", "moco", "--backbone", "resnet18",
        "--width", "4", "--batch_size", "16", "--threads", "1", "--accelerator", "cpu",
        "--loggers", "[tensorboard]", "--checkpoint_every", "1",
    ]  # fmt: skip
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for text in ("50,000, 16 a step", "3,125", "1,250,000 (400 epochs)", "encoder", "further",
                 "time of a step", "training", "disk", "random images", "nothing was written",
                 "cpu, 1 thread,"):  # fmt: skip
        assert text in shown
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry_run", "--resume", "runs/x"]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--dry_run", "--epochs", "0"]) == 1
    assert "at least 1 epoch" in capsys.readouterr().err
    assert main(["train", "--dry_run", "--limit", "8"]) == 1
    assert "batch_size" in capsys.readouterr().err


def test_a_comparison_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = replace(SMALL, loss=dict(layout="both"))
    plan = Plan(("simclr", "moco", "unremix-simclr"), 3, "simclr", train)
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as captured:
        found = dry_comparison(plan, 2, console)
    assert list(found) == ["simclr", "unremix-simclr"]
    shown = captured.get()
    assert "moco cannot be run" in shown  # layout is SimCLR's
    total = 3 * sum(one.seconds for one in found.values())
    assert f"In all {duration(total)} of training" in shown
    assert f"{duration(total / 2)} with 2 at a time" in shown
    assert not list(tmp_path.iterdir())
    broken = replace(plan, recipes=("moco",))
    with pytest.raises(ValueError, match="moco cannot be run"):
        dry_comparison(broken, 2, console)


def test_a_budget_of_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"checkpoint": 5, "encoder": 2, "parameters": {"encoder": 3}, "device": "cpu"}
    watch = SimpleNamespace(seconds=[0.01], total=0.01, peak=10, facts=facts)
    slow = SimpleNamespace(seconds=[30.0], total=30.0, peak=10, facts=facts)
    monkeypatch.setattr(
        module, "time_steps", lambda *given: watch if given[3] < SMALL.batch_size else slow
    )
    config = replace(SMALL, epochs=100, max_minutes=6)  # an epoch of 5 steps takes 2.5 minutes
    found = estimate(config)
    assert (found.epochs, found.seconds) == (3, 3 * 150)
    shown = rows_of(found, config, "images")
    assert shown["steps in all"] == "15 (3 epochs, until 6 min are over)"
    assert found.disk == 3 * 5 + 2  # the last checkpoint, the one before, the next one; encoder


def test_graphs_are_estimated_alike(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    config = TrainConfig(
        recipe="infograph", limit=64, batch_size=16, epochs=1, accelerator="cpu", threads=1
    )
    dry_run(config)
    shown = capsys.readouterr().out
    assert "64, 16 a step" in shown
    assert "graphs" in shown
