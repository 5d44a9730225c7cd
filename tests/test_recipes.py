"""Every image recipe trains, lowers its loss, resumes exactly, and runs in two processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from crashing import crash_at

import unremix
from unremix.domains.base import make_batch
from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Batch, Framework
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi
from unremix.frameworks.parts import option_fields
from unremix.recipes import PARTS, RECIPES, compose, options_of
from unremix.training import loop
from unremix.training.building import build_model
from unremix.training.loop import Training, fit
from unremix.training.preparation import Prepared, prepare
from unremix.training.progress import Progress

TESTS = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("recipes")  # one worker makes the shared runs

NAMES = [
    "simclr", "debiased", "hcl", "moco", "mochi", "swav", "imix", "patch", "unmix", "unremix",
    "unremix-simclr", "unremix-moco",
]  # fmt: skip
IMAGES, BATCH = 128, 32
STEPS = IMAGES // BATCH


def small(folder: Path, recipe: str, **options: Any) -> TrainConfig:
    config = TrainConfig(
        recipe=recipe, runs=str(folder), name="run", limit=IMAGES, batch_size=BATCH, epochs=3,
        lr=5e-3, backbone="small", head_hidden=(32,), head_output=16, accelerator="cpu", threads=1,
        probe_epochs=0, progress=False, checkpoint_every=3,
    )  # fmt: skip
    if RECIPES[recipe].framework == "moco":
        # Of a length that no number of batches makes full.
        config = replace(config, moco=dict(queue=75, momentum=0.9, group=16))
    if recipe == "mochi":
        config = replace(config, mochi=MoCHi(16, 16, 8, warmup_epochs=1))
    return replace(config, **options)


def without_batch_norm(folder: Path, recipe: str, **options: Any) -> TrainConfig:
    options = {"backbone": "tiny:encoder", "head_batch_norm": False, "precision": "64-true",
               "epochs": 2} | options  # fmt: skip
    return small(folder, recipe, **options)


def trained(
    config: TrainConfig, observe: Callable[..., dict[str, float]] | None = None
) -> Prepared:
    """Train, without evaluation and report."""
    prepared = prepare(config)
    try:
        fit(prepared, observe or (lambda model, epoch: {}), Progress(prepared.config))
    finally:
        prepared.unlock()
    return prepared


def state_of(prepared: Prepared) -> dict[str, Any]:
    return prepared.run.load_checkpoint()


def assert_same_state(found: Prepared, expected: Prepared) -> None:
    one, other = state_of(found), state_of(expected)
    for name in ("step", "losses", "rows"):
        assert one[name] == other[name]
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in other["model"].items():
        assert torch.equal(one["model"][name], tensor), name
    for key, values in other["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(
                torch.as_tensor(one["optimizer"]["state"][key][name]), torch.as_tensor(value)
            )
    assert found.run.metrics() == expected.run.metrics()


@dataclass
class Whole:
    """A run that was never interrupted, and its folder as a crash in mid-epoch would leave it."""

    prepared: Prepared
    broken: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The small run of a recipe."""
    made: dict[str, Whole] = {}
    save = Training.save

    def make(recipe: str) -> Whole:
        if recipe in made:
            return made[recipe]
        folder = tmp_path_factory.mktemp(recipe)

        def saving(self: Training) -> None:
            save(self)
            if self.step == STEPS + 2:
                shutil.copytree(self.run.path, folder / "broken")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "save", saving)
            made[recipe] = Whole(trained(small(folder, recipe)), folder / "broken")
        return made[recipe]

    return make


@torch.no_grad()
def loss_of(model: Framework, prepared: Prepared) -> float:
    """The mean loss of the same batches, each against a queue of the model's own keys.

    The losses of a training cannot be compared where a queue fills: they grow with it.
    """
    domain, config, shape = prepared.run.domain, prepared.config, prepared.run.shape

    def batch(samples: torch.Tensor, step: int) -> Batch:
        fetched = domain.fetch(prepared.data, samples)
        made: Batch = make_batch(
            domain, fetched, samples, model, config, shape, step=step, epoch=config.epochs
        )
        return made

    losses = []
    for step in range(STEPS):
        if isinstance(model, MoCo):
            others = (torch.arange(2 * BATCH) + (step + 1) * BATCH) % IMAGES
            old = batch(others, STEPS + step)
            empty = {"added": torch.tensor(0)}
            model.memory.load_state_dict(model.memory.state_dict() | empty)
            model.memory.add(*model.embed_keys(old.views[1], old.batch_key), others)
        losses.append(float(model(batch(torch.arange(BATCH) + step * BATCH, step))))
    return sum(losses) / STEPS


@pytest.mark.parametrize("recipe", NAMES)
def test_training_lowers_the_loss(recipe: str, whole: Callable[[str], Whole]) -> None:
    prepared = whole(recipe).prepared
    state = state_of(prepared)
    assert state["step"] == 3 * STEPS
    assert [row["epoch"] for row in prepared.run.metrics()] == [1, 2, 3]
    model = build_model(prepared.config, prepared.run.shape)
    before = loss_of(model, prepared)
    model.load_state_dict(state["model"])
    after = loss_of(model, prepared)
    # Patches of one's own image, a new one for each tile, are hard to tell from it.
    enough = 0.99 if recipe == "patch" else 0.98
    assert after < enough * before, (before, after)


@pytest.mark.parametrize("recipe", NAMES)
def test_a_crash_changes_nothing(recipe: str, whole: Callable[[str], Whole]) -> None:
    """In mid-epoch; queue, mix and key encoder included."""
    found = whole(recipe)
    resumed = prepare(TrainConfig(resume=str(found.broken), progress=False))
    assert resumed.state is not None
    assert resumed.state["step"] == STEPS + 2
    fit(resumed, lambda model, epoch: {}, Progress(resumed.config))
    assert_same_state(resumed, found.prepared)


def test_the_queue_is_part_of_the_checkpoint(whole: Callable[[str], Whole]) -> None:
    model = state_of(whole("unremix-moco").prepared)["model"]
    assert int(model["memory.added"]) == 3 * IMAGES
    assert model["memory.embeddings"].shape == (75, 16)
    assert model["memory.inputs"].shape == (75, 32)
    assert model["memory.sample_ids"].max() < IMAGES
    assert "memory.inputs" in state_of(whole("moco").prepared)["model"]
    assert "loss.mix_parameters" in model
    assert not torch.equal(model["key_head.0.weight"], model["head.0.weight"])


@pytest.mark.parametrize("recipe", ["mochi", "imix", "unmix", "unremix-moco"])
def test_chunks_give_the_gradient_of_the_whole_batch(recipe: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "limit": 64}
    if recipe == "mochi":
        options["mochi"] = MoCHi(16, 16, 8, warmup_epochs=0)
    whole = trained(without_batch_norm(tmp_path / "whole", recipe, **options))
    parts = trained(without_batch_norm(tmp_path / "parts", recipe, chunk=5, **options))
    for name, tensor in state_of(whole)["model"].items():
        torch.testing.assert_close(state_of(parts)["model"][name], tensor, rtol=1e-7, atol=1e-9)
    assert parts.run.metrics()[-1]["loss"] == pytest.approx(
        whole.run.metrics()[-1]["loss"], rel=1e-9
    )


@pytest.mark.parametrize("name", RECIPES)
def test_the_options_shown_are_those_of_the_parts_made(name: str) -> None:
    recipe = RECIPES[name]
    composition = compose(recipe)
    shown = {one.option: one.value for one in options_of(recipe)}
    assert len(shown) == sum(
        len(option_fields(PARTS[kind][part]))
        for kind, part in recipe.parts.items()
        if part != "none"
    )
    loss: Any = composition.make_loss()
    if loss is not None:
        assert float(shown["--loss.class_prior"]) == loss.class_prior
        assert shown.get("--loss.layout", loss.layout) == loss.layout
    if recipe.weighting == "hcl":
        assert float(shown["--loss.hardness"]) == loss.hardness
    if recipe.weighting == "unremix":
        assert shown["--loss.components"] == f'"[{", ".join(loss.component_names)}]"'
        assert shown["--loss.mix"] == loss.mix_kind
        assert shown["--loss.gradient"] == loss.options.gradient
        assert shown["--loss.scaling"] == loss.weighting.scaling
        assert shown["--loss.mass"] == loss.weighting.mass
        assert float(shown["--loss.posterior_temperature"]) == loss.options.posterior_temperature
    if "--loss.similarity_gradient" in shown:
        through = loss.weighting.similarity_gradient
        assert shown["--loss.similarity_gradient"] == str(through).lower()
    if recipe.framework == "moco":
        head = torch.nn.Sequential(torch.nn.Linear(4, 4))
        model: Any = composition.make_framework(torch.nn.Linear(4, 4), head)
        assert float(shown["--moco.momentum"]) == model.options.momentum
        assert int(shown["--moco.queue"]) == model.memory.size
        assert int(shown["--moco.group"]) == model.options.group


@pytest.mark.parametrize("recipe", ["swav", "unremix-moco"])
def test_a_run_is_measured_and_reported(recipe: str, tmp_path: Path) -> None:
    run = unremix.train(small(tmp_path, recipe, epochs=1))
    assert run.evaluation is not None
    (row,) = run.metrics()
    assert ("effective_negatives" in row) == ("mix_uncertainty" in row) == (recipe != "swav")
    assert (run.path / "report.html").stat().st_size > 0


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "unremix-moco", "negatives": "patch", "mixing": "unmix"},
        {"recipe": "mochi", "weighting": "unremix", "mixing": "imix"},
        {"recipe": "unremix", "negatives": "patch"},
    ],
    ids=str,
)
def test_mixed_precision(options: dict[str, Any], tmp_path: Path) -> None:
    """Compositions of the command line, under autocast."""
    free = {"precision": "bf16-mixed", "epochs": 1, "limit": 64, **options}
    if options["recipe"] == "mochi":
        free["mochi"] = MoCHi(16, 16, 8, warmup_epochs=0)
    found = trained(without_batch_norm(tmp_path, free.pop("recipe"), **free))
    assert state_of(found)["step"] == 2
    for tensor in state_of(found)["model"].values():
        assert tensor.isfinite().all()
        assert tensor.dtype in (torch.float32, torch.int64)


# A limit of time.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that training reads: each step takes ten seconds."""
    now = [0.0]
    step = Training.training_step

    def stepping(self: Training, batch: Any, number: int) -> None:
        now[0] += 10
        step(self, batch, number)

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Training, "training_step", stepping)
    return now


def test_time_ends_the_training_at_an_epochs_end(tmp_path: Path, clock: list[float]) -> None:
    def observe(model: Framework, epoch: int) -> dict[str, float]:
        clock[0] += 1000  # measuring is not training
        return {}

    config = without_batch_norm(tmp_path, "simclr", epochs=9, max_minutes=70 / 60)
    limited = trained(config, observe)
    state = state_of(limited)
    assert state["step"] == 2 * STEPS  # 40 seconds, then 80
    assert state["stopped"]
    assert (limited.run.path / "encoder.safetensors").exists()
    # Finished is finished.
    again = trained(TrainConfig(resume=str(limited.run.path), progress=False, trust=True), observe)
    assert_same_state(again, limited)
    assert state_of(again)["seconds"] == state["seconds"] == 80
    # Epochs, where they end first.
    early = trained(without_batch_norm(tmp_path / "early", "simclr", max_minutes=5), observe)
    assert state_of(early)["step"] == 2 * STEPS
    assert not state_of(early)["stopped"]


@pytest.mark.parametrize("at", [STEPS, STEPS + 2])
def test_time_is_kept_over_a_crash(tmp_path: Path, clock: list[float], at: int) -> None:
    """Also that of the steps before a checkpoint in mid-epoch."""
    config = without_batch_norm(
        tmp_path, "simclr", epochs=9, max_minutes=70 / 60, checkpoint_every=1
    )
    with crash_at(at):
        trained(config)
    clock[0] += 10_000  # the time between does not count
    resumed = trained(TrainConfig(resume=str(tmp_path / "run"), progress=False, trust=True))
    assert state_of(resumed)["step"] == 2 * STEPS
    assert state_of(resumed)["seconds"] == 80


# Two processes.

# Where the number of processes changes nothing but the order of sums, without BatchNorm. Elsewhere
# it does: the partners of i-Mix and Un-Mix come from the process's own part of the batch, and the
# very first batch of MoCo, before there is a queue, has the process's own keys as negatives. From
# then on MoCo's queue is the same: see frameworks/test_two_processes.py.
JOINT = ("simclr", "debiased", "hcl", "swav", "unremix-simclr")

SCRIPT = """
import sys
from pathlib import Path
import torch
from test_recipes import trained, without_batch_norm
from unremix.training.loop import Training
folder, save = Path(sys.argv[1]), Training.save
def saving(self):
    name = f"{self.config.recipe}-{self.fabric.global_rank}.pt"
    torch.save(self.model.state_dict(), folder / name)
    save(self)
Training.save = saving
for recipe in sys.argv[2:]:
    trained(without_batch_norm(folder / recipe, recipe, limit=64))
"""


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
         str(folder / "script.py"), str(folder), *NAMES],
        check=True, timeout=250, env=environment,
    )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", NAMES)
def test_two_processes(recipe: str, in_two: Path, tmp_path: Path) -> None:
    first, second = (torch.load(in_two / f"{recipe}-{rank}.pt") for rank in range(2))
    for name, tensor in first.items():  # queues, key encoders and mixes stay together
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=0, msg=name)
        assert tensor.isfinite().all()
    two = prepare(TrainConfig(resume=str(in_two / recipe / "run"), trust=True))
    assert state_of(two)["step"] == 4
    if recipe in JOINT:
        one = trained(without_batch_norm(tmp_path, recipe, limit=64))
        for name, tensor in state_of(one)["model"].items():
            torch.testing.assert_close(first[name], tensor, rtol=1e-7, atol=1e-9)
        assert [row["loss"] for row in two.run.metrics()] == pytest.approx(
            [row["loss"] for row in one.run.metrics()], rel=1e-8
        )
