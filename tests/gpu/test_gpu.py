"""On a real GPU: ``make test-gpu``. Without one, each test is skipped and says so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import start, train_words
from small_runs import small

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.problem import BLOCK_ELSEWHERE
from unremix.experiments.dry_run import estimate
from unremix.losses import TwoViewLoss
from unremix.training.loop import Training
from unremix.training.run import Run

COUNT = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(COUNT == 0, reason="no CUDA device on this machine")
several = pytest.mark.skipif(COUNT < 2, reason=f"two CUDA devices are needed, {COUNT} found")

LOSSES: dict[str, Any] = {"InfoNCE": InfoNCELoss, "HCL": HCLLoss, "UnReMix": UnReMixLoss}
BY_NAME = pytest.mark.parametrize("name", LOSSES)


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def gradients(
    loss_fn: TwoViewLoss, device: str, numbers: torch.dtype = torch.float32, count: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and its gradient for the first views, on the CPU in float64."""
    made = torch.Generator().manual_seed(0)
    z0, z1, h0, h1 = (
        torch.randn(count, width, generator=made).to(device, numbers) for width in (64, 64, 96, 96)
    )
    z0.requires_grad_()
    loss = loss_fn.to(device)(z0, z1, h0, h1)
    loss.backward()
    assert z0.grad is not None
    return loss.detach().cpu().double(), z0.grad.cpu().double()


@BY_NAME
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_the_loss_of_the_cpu(name: str, engine: Any) -> None:
    expected, slope = gradients(LOSSES[name](engine="eager"), "cpu", torch.float64)
    found, slope_found = gradients(LOSSES[name](engine=engine), "cuda")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slope_found, slope, rtol=1e-3, atol=1e-6)


@BY_NAME
def test_the_loss_of_bfloat16_views(name: str) -> None:
    expected, slope = gradients(LOSSES[name](), "cpu")
    found, slope_found = gradients(LOSSES[name](), "cuda", torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert (slope_found - slope).norm() < 0.05 * slope.norm()


@BY_NAME
@pytest.mark.usefixtures("waiting_is_an_error")
def test_a_loss_waits_for_nothing(name: str) -> None:
    loss_fn = LOSSES[name](engine="eager").to("cuda")
    views = [torch.empty(64, 32, device="cuda").requires_grad_() for _ in range(4)]
    loss_fn(*views).backward()


@pytest.mark.parametrize("recipe", ["simclr", "unremix-simclr", "unremix-moco", "swav"])
def test_a_step_waits_once(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the loss it shows, and for nothing else, from its second step on."""
    shown = Training._mean

    def loss_shown(training: Training, value: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_sync_debug_mode("default")
        return shown(training, value)

    made = Training.training_step

    def step(training: Training, *given: Any) -> None:
        if training.step:
            torch.cuda.set_sync_debug_mode("error")
        made(training, *given)
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Training, "_mean", loss_shown)
    monkeypatch.setattr(Training, "training_step", step)
    run = unremix.train(small(tmp_path, recipe=recipe, epochs=1, accelerator="gpu"))
    assert run.metrics()[-1]["loss"] > 0


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_run_resumes_to_the_same_loss(precision: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"accelerator": "gpu", "precision": precision}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unremix.train(small(tmp_path, name="one", epochs=1, **options))
        resumed = unremix.train(resume=str(tmp_path / "one"), epochs=2, progress=False)
        whole = unremix.train(small(tmp_path, name="two", epochs=2, **options))
    losses = [run.metrics()[-1]["loss"] for run in (resumed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_memory_of_a_loss_is_within_the_bound() -> None:
    """18 arrays of a block and 3 times the views, as docs/benchmarks.md states it."""
    count, width, hidden = 32_768, 128, 512
    z0, z1 = (torch.randn(count, width, device="cuda").requires_grad_() for _ in range(2))
    h0, h1 = (torch.randn(count, hidden, device="cuda") for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    UnReMixLoss(engine="eager").to("cuda")(z0, z1, h0, h1).backward()
    most = 4 * (18 * BLOCK_ELSEWHERE + 3 * 2 * count * (width + hidden))
    assert torch.cuda.max_memory_allocated() - before <= most


def test_the_forecast_of_memory(tmp_path: Path) -> None:
    config = small(tmp_path, epochs=1, accelerator="gpu")
    forecast = estimate(config).memory
    torch.cuda.reset_peak_memory_stats()
    unremix.train(config)
    assert forecast == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.25)


@several
def test_two_ranks_by_nccl(tmp_path: Path) -> None:
    """Two processes make the run of one."""
    for name, devices in (("one", "1"), ("two", "2")):
        words = train_words(tmp_path / name, "--devices", devices)
        words[words.index("--accelerator") + 1] = "gpu"
        process = start(words)
        assert process.wait(timeout=280) == 0
    losses = [Run(tmp_path / name / "run").metrics()[-1]["loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
