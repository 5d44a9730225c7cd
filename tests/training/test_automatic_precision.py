"""Which numbers a run computes in, and that nothing else depends on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import small
from torch import Tensor

import unremix
from unremix.domains.options import TrainConfig
from unremix.experiments.plan import make_job, train_command
from unremix.training import precision
from unremix.training.building import settled
from unremix.training.export import export_encoder
from unremix.training.precision import FULL, MIXED, VARIABLE, Speed, fast_precision
from unremix.training.run import Run

BOTH = pytest.mark.parametrize("numbers", ["32-true", "bf16-mixed"])
ROUNDING = 2.0**-8  # of one bfloat16


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is fast in bfloat16."""
    monkeypatch.setenv(VARIABLE, MIXED)


def test_a_cpu_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = precision.measure_speed()
    assert min(measured.float32, measured.bfloat16) > 0
    calls = []
    for speed, expected in ((Speed(50.0, 100.0), "bf16-mixed"), (Speed(50.0, 51.0), "32-true")):
        (tmp_path / "unremix" / "speed.json").unlink(missing_ok=True)
        monkeypatch.setattr(precision, "measure_speed", lambda s=speed: calls.append(s) or s)
        for _ in range(2):
            assert fast_precision("cpu") == expected
    assert len(calls) == 2
    (found,) = json.loads((tmp_path / "unremix" / "speed.json").read_text())
    assert torch.__version__ in found
    # What is no note of ours is measured again.
    for text in ("[]", "{", json.dumps({found: {"float32": "x"}}), json.dumps({found: 3})):
        (tmp_path / "unremix" / "speed.json").write_text(text)
        assert fast_precision("cpu") == "32-true"
    assert len(calls) == 6


def test_a_gpu_is_known_by_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    for capability, expected in (((7, 5), "32-true"), ((8, 0), MIXED), ((9, 0), MIXED)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert fast_precision("cuda") == expected
    assert fast_precision("mps") == "32-true"


def test_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bf16")
    with pytest.raises(ValueError, match=r"expected UNREMIX_PRECISION to be .*got 'bf16'"):
        fast_precision("cpu")


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, MIXED),
        ({"precision": "64-true"}, "64-true"),
        ({"recipe": "scarf"}, MIXED),
        ({"recipe": "infograph"}, "32-true"),
        ({"recipe": "quickthought"}, "32-true"),
        ({"recipe": "quickthought", "sentence": {"encoder": "transformer"}}, MIXED),
    ],
    ids=str,
)
def test_auto_asks_the_kind_of_data(options: dict[str, Any], expected: str) -> None:
    assert settled(TrainConfig(accelerator="cpu", **options)).precision == expected


def test_a_run_keeps_what_auto_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, for which auto is another precision, resumes in that of the run."""
    monkeypatch.setenv(VARIABLE, MIXED)
    run = unremix.train(small(tmp_path, epochs=1))
    assert run.config.precision == MIXED
    assert "precision: bf16-mixed" in (run.path / "config.yaml").read_text()
    whole = unremix.train(small(tmp_path, epochs=2, name="whole"))
    monkeypatch.setenv(VARIABLE, "32-true")
    resumed = unremix.train(resume=str(run.path), epochs=2, precision="auto", progress=False)
    assert resumed.config.precision == MIXED
    ours, theirs = (Run(one.path).load_checkpoint()["model"] for one in (resumed, whole))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_an_early_run_says_nothing(whole: Run, tmp_path: Path) -> None:
    text = (whole.path / "config.yaml").read_text()
    for name in ("config.yaml", "shape.json"):
        (tmp_path / name).write_text((whole.path / name).read_text())
    (tmp_path / "config.yaml").write_text(text.replace("precision: 32-true\n", ""))
    assert Run(tmp_path).config.precision == "32-true"


@pytest.mark.usefixtures("mixed")
@BOTH
def test_embeddings_are_in_32_bits(tmp_path: Path, numbers: str) -> None:
    """Mixed embeddings are those of 32 bits, but for rounding, and no others are affected."""
    run = unremix.train(small(tmp_path, epochs=1, precision=numbers))
    images = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    found, settings = run.embed(images), run.shape.settings
    assert found.dtype == torch.float32
    with torch.no_grad():
        exact: Tensor = run.encoder()((images.float() / 255 - settings.mean[0]) / settings.std[0])
    error = ((found - exact).norm() / exact.norm()).item()
    assert (1e-5 < error < 4 * ROUNDING) if numbers == MIXED else error < 1e-5
    exported = unremix.load_exported(export_encoder(str(run.path), "safetensors").path)
    assert torch.allclose(exported.embed(images), found, rtol=0, atol=0.1 * ROUNDING)
    loaded = unremix.load(run.path)
    assert torch.equal(loaded.embed(images), found)


@pytest.mark.usefixtures("mixed")
def test_embeddings_of_a_ready_start_are_in_32_bits(tmp_path: Path) -> None:
    """As those of the encoder used by hand, whatever the training computed in."""
    start = unremix.train(small(tmp_path, epochs=0, precision=FULL))
    run = unremix.train(small(tmp_path, epochs=0, precision=MIXED, init=str(start.path), name="x"))
    images = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(run.embed(images), start.embed(images))
    exported = unremix.load_exported(export_encoder(str(run.path), "safetensors").path)
    assert torch.equal(exported.embed(images), start.embed(images))


def test_a_slow_machine_embeds_in_32_bits(tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, epochs=0, precision=MIXED))
    images = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    exact = unremix.train(small(tmp_path, epochs=0, precision="32-true", name="exact"))
    assert torch.equal(run.embed(images), exact.embed(images))


@pytest.mark.usefixtures("mixed")
def test_the_gradient_in_chunks_is_that_of_the_batch(tmp_path: Path) -> None:
    """Weights that autocast has cast without a graph are not used where there has to be one."""
    free = {"epochs": 1, "head_batch_norm": False, "backbone": "tiny:encoder", "optimizer": "sgd"}
    start, whole, chunked = (
        unremix.train(small(tmp_path, name=name, precision=MIXED, **{**free, **more}))
        for name, more in (("start", {"epochs": 0}), ("whole", {}), ("chunked", {"chunk": 8}))
    )
    weights = [Run(one.path).load_checkpoint()["model"] for one in (start, whole, chunked)]
    for name, before in weights[0].items():
        moved, again = (one[name].double() - before.double() for one in weights[1:])
        assert (moved - again).norm() <= 0.05 * moved.norm(), name


def test_names_of_finished_runs_stay() -> None:
    """A run of 32 bits has the name that it had when they were the default."""
    full, mixed, auto = (
        TrainConfig(recipe="hcl", epochs=5, precision=one) for one in ("32-true", MIXED, "auto")
    )
    assert make_job("hcl", full).name == "hcl-bb58dbb790-0"
    assert len({make_job("hcl", one).name for one in (full, mixed, auto)}) == 3
    assert train_command(full).endswith("--precision 32-true")
