"""The scales: the paper's own as its appendix gives it, and shards that can be read."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from unremix.domains import find_domain
from unremix.domains.image.dataset import load_images
from unremix.domains.options import TrainConfig
from unremix.experiments import reproduce as module
from unremix.experiments.dry_run import Estimate, Stopwatch, estimate, load_or_imagine
from unremix.experiments.laboratory import Laboratory
from unremix.experiments.paper import scales
from unremix.experiments.paper.catalog import EXPERIMENTS
from unremix.experiments.paper.experiment import Row, Setting
from unremix.experiments.paper.scales import SCALES, write_shards
from unremix.experiments.plan import Job
from unremix.experiments.reproduce import reproduce, sources_of
from unremix.training.loop import Training


def paper(name: str) -> Setting:
    experiment = EXPERIMENTS[name]
    size = SCALES["paper"][experiment.kind]
    laboratory = Laboratory(Path("nowhere"), Console(file=io.StringIO()))
    sources = sources_of(experiment, "paper", ())
    return Setting(experiment, "paper", sources, experiment.seeds or size.seeds, {}, laboratory)


IMAGE_NAMES = ("table1", "curves", "table2", "table3", "table5", "mix", "gallery", "contributions")


@pytest.mark.parametrize("name", [*IMAGE_NAMES, "diversity", "gradients"])
def test_images_as_in_the_appendix(name: str) -> None:
    setting = paper(name)
    assert [source.paper for source in setting.sources] == [
        "CIFAR-10", "CIFAR-100", "Tiny-ImageNet",
    ]  # fmt: skip
    for job in setting.jobs:
        train = job.train
        assert (train.backbone, train.width, train.batch_size) == ("resnet50", 64, 256)
        assert train.epochs == (100 if name == "diversity" else 400)
        assert (train.optimizer, train.lr, train.weight_decay) == ("adam", 1e-3, 1e-6)
        assert (train.probe_epochs, train.head_output) == (100, 128)
    if name in ("table1", "table2", "table3", "table5", "curves", "mix", "diversity"):
        assert setting.seeds == 10


def test_sentences_and_graphs_as_in_the_appendix() -> None:
    for job in paper("sentences").jobs:
        train = job.train
        assert (train.batch_size, train.lr, train.optimizer) == (400, 5e-4, "adam")
        assert (train.epochs, train.sentence.max_length) == (1, 30)
        assert train.sentence.bidirectional
        if train.sentence.encoder == "gru":
            assert (train.sentence.units, train.sentence.words) == (1200, 620)
    setting = paper("graphs")
    assert setting.seeds == 10
    assert len(setting.sources) == 6
    for job in setting.jobs:
        train = job.train
        assert (train.epochs, train.batch_size, train.lr) == (200, 128, 1e-3)
        assert (train.weight_decay, train.graph.layers, train.graph.hidden) == (1e-6, 3, 32)


def test_the_tasks_are_those_of_the_table() -> None:
    for scale in ("cpu", "paper"):
        tasks = SCALES[scale]["sentences"].options["sentence.tasks"]
        measured = [path.partition(".")[0] for path in EXPERIMENTS["sentences"].measures]
        assert tasks == list(dict.fromkeys(measured))


def test_a_misspelled_entry_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got cpu\.images\.sources\.tilte; did you mean 'title'"):
        scales._scale({"seeds": 1, "sources": [{"tilte": "digits"}]}, "cpu.images.")


def test_imagenet_as_in_the_appendix() -> None:
    for job in paper("table6").jobs:
        train = job.train
        assert (train.epochs, train.probe_epochs, train.image_size) == (50, 70, 224)
        assert (train.backbone, train.width) == ("resnet50", 64)
        if "moco" in train.recipe:
            assert (train.temperature, train.moco.queue, train.moco.momentum) == (
                0.2, 65_536, 0.999,
            )  # type: ignore[attr-defined] # fmt: skip


def test_a_dry_run_says_what_the_paper_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def pretend(train: TrainConfig, **_: object) -> Estimate:
        return Estimate(
            samples=1, steps_per_epoch=10, epochs=train.epochs, step_samples=8, step_seconds=2.0,
            timed=1, scale=1.0, memory=None, checkpoint=1, encoder=1, parameters={"encoder": 1},
            device="cpu",
        )  # fmt: skip

    monkeypatch.setattr(module, "estimate", pretend)
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert reproduce("all", scale="paper", dry_run=True, console=console) == 0
    lines = {
        (cells[0], cells[1]): cells
        for line in printed.getvalue().splitlines()
        if len(cells := [cell for cell in line.split("  ") if cell.strip()]) == 9
    }
    lines = {tuple(c.strip() for c in key): [c.strip() for c in v] for key, v in lines.items()}  # type: ignore[misc]
    # 9 methods and 10 seeds; of Table 2 one row is Table 1's, so 4 of 5 are new.
    assert lines["table1", "CIFAR-10"][4:7] == ["400", "90", "90"]
    assert lines["table2", "CIFAR-100"][5] == "40"
    assert ("curves", "CIFAR-10") not in lines  # all of them are Table 1's
    assert lines["table6", "ImageNet-1k"][4] == "50"
    assert lines["graphs", "MUTAG"][5] == "40"
    assert "In all" in printed.getvalue()
    assert not Path("reproductions").exists()


def test_shards_can_be_read(tmp_path: Path) -> None:
    write_shards(tmp_path)
    found = load_images(str(tmp_path), image_size=16)
    assert found.test is not None
    assert (len(found.train), len(found.test)) == (192, 64)
    assert found.train.labels is not None
    assert len(found.train.labels.unique()) == 10


def cases() -> list[tuple[str, Row, int, bool]]:
    """Every different setting of the paper's scale, once; the first of each kind at full width.

    The number is that of the data set: the first, and Table 1's UnReMix also on the others.
    """
    seen: dict[str, tuple[str, Row, int, bool]] = {}
    kinds: set[str] = set()
    for name, experiment in EXPERIMENTS.items():
        setting = paper(name)
        for row in setting.rows:
            job: Job = setting.job(row, setting.sources_of(row)[0], 0)
            if job.name not in seen:
                seen[job.name] = (name, row, 0, experiment.kind not in kinds)
                kinds.add(experiment.kind)
    (unremix,) = [row for row in EXPERIMENTS["table1"].rows if row.name == "UnReMix"]
    return [*seen.values(), ("table1", unremix, 1, False), ("table1", unremix, 2, False)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*only zero weights")  # as printed, with few samples
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "row", "number", "wide"), cases(), ids=lambda one: getattr(one, "name", str(one))
)
def test_two_steps_of_every_run(
    name: str, row: Row, number: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's network and options; few samples a step, random or embedded ones."""
    losses: list[float] = []
    stepped = Stopwatch.stepped

    def watched(self: Stopwatch, training: Training, loss: float) -> None:
        losses.append(float(loss))
        stepped(self, training, loss)

    monkeypatch.setattr(Stopwatch, "stepped", watched)
    setting = paper(name)
    source = setting.sources_of(row)[number]
    train = setting.job(row, source, 0).train
    if source.paper == "Tiny-ImageNet":
        assert train.image_size == 64
    train = replace(train, accelerator="cpu", threads=1, progress=False)
    kind = setting.experiment.kind
    if not wide and kind in ("images", "imagenet"):
        train = replace(train, width=8)
    if not wide and kind == "sentences" and train.sentence.encoder == "gru":
        train = replace(train, sentence=replace(train.sentence, units=32, words=16))
    embedded = {"graphs": "stdlib-ast", "sentences": "pydocs"}.get(kind)
    if embedded is not None:
        train = replace(train, data=embedded, limit=900)
    if kind == "sentences":
        train = replace(train, sentence=replace(train.sentence, senteval="none"))
    if kind == "imagenet":  # as many pixels as a test can wait for
        train = replace(train, image_size=64)
    domain = find_domain(train.domain)
    domain.check(train)
    data, _ = load_or_imagine(domain, replace(train, limit=train.limit or 600))
    found = estimate(train, data, seconds=0.0)
    assert found.parameters["encoder"] > 0
    assert len(losses) >= 2
    assert all(map(math.isfinite, losses))
