"""A configuration that knows what was given, and refuses early and in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import unremix
from unremix.cli import main
from unremix.domains.image import decoding
from unremix.domains.options import (
    TrainConfig,
    config_from_yaml,
    config_to_commented_yaml,
    config_to_yaml,
    make_config,
)
from unremix.frameworks.base import auto_batch
from unremix.training import preparation
from unremix.training.preparation import prepare
from unremix.training.run import Run

SMALL: dict[str, Any] = {
    "limit": 64, "batch_size": 32, "epochs": 0, "accelerator": "cpu", "threads": 1,
    "progress": False, "probe_epochs": 0,
}  # fmt: skip

# As version 0.1.0 wrote it, nulls and options of other domains included.
OLD = """
data: digits
domain: image
recipe: imix
framework: null
weighting: hcl
mixing: null
negatives: null
backbone: auto
image_size: null
width: 64
stem: auto
head_hidden: [512]
head_output: 128
head_batch_norm: true
augmentation: auto
epochs: 3
max_minutes: null
batch_size: 32
optimizer: adam
lr: 0.001
weight_decay: 1.0e-06
warmup_epochs: 0
schedule: constant
clip: null
temperature: null
loss: {components: null, mix: null, scaling: null, mass: null, hardness: 2.0,
  posterior_temperature: null, gradient: null, class_prior: null, similarity_gradient: null,
  sketch: null, layout: null, fidelity: null}
moco: {queue: 64, momentum: null, symmetric: null, group: null}
swav: {prototypes: null, iterations: null, epsilon: null, frozen_epochs: null, queue: null,
  queue_from_epoch: null, crops: null}
mixture: {alpha: null, cutmix: null}
mochi: {hardest: null, pairs: null, queries: null, warmup_epochs: null}
patch: {smallest: null, largest: null, factor: null}
infograph: {objective: null}
quickthought: {reach: null, mask_repeats: null}
graph: {hidden: 32, layers: 3, use_attributes: null, kinds: [nodes, edges, attributes, subgraph],
  ratio: 0.2, classifiers: [rbf], folds: 10, repeats: 1}
sentence: {format: auto, vocabulary: 20000, max_length: 30, encoder: gru, words: 300, units: 300,
  bidirectional: false, output: null, word_vectors: null, expand: null, senteval: auto,
  tasks: [MR, CR, SUBJ, MPQA, TREC, MRPC, SICK]}
chunk: null
precision: 32-true
accelerator: auto
devices: auto
num_nodes: 1
sync_batchnorm: false
threads: null
seed: 0
limit: 64
evaluate_every: null
knn_k: null
knn_temperature: 0.5
probe_epochs: 100
checkpoint_every: null
log_every: null
loggers: []
imports: []
name: old
runs: runs
resume: null
progress: true
"""


def test_an_old_run_folder_loads(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OLD)
    (tmp_path / "shape.json").write_text(
        '{"channels": 1, "image_size": 8, "augmentation": "digits"}'
    )
    config = Run(tmp_path).config
    assert (config.recipe, config.epochs, config.batch_size) == ("imix", 3, 32)
    composition = config.composition()
    assert composition.make_options("weighting").hardness == 2.0
    moco = composition.make_options("framework")
    assert (moco.queue, moco.momentum) == (64, 0.999)  # given, and the recipe's
    again = yaml.safe_load(config_to_yaml(config))
    others = ("graph", "sentence")  # of other kinds of data, at their defaults
    for name, value in yaml.safe_load(OLD).items():
        if name in others:
            continue
        expected = {**again[name], **value} if isinstance(value, dict) else value
        assert again[name] == expected


def test_what_was_given_is_known() -> None:
    config = TrainConfig(epochs=100, recipe="infograph", graph={"hidden": 8})  # type: ignore[arg-type]
    assert config.given == {"epochs", "recipe", "graph"}  # though some are at their defaults
    assert (config.domain, config.data, config.batch_size, config.lr) == (
        "graph", "stdlib-ast", 128, 1e-3,
    )  # fmt: skip
    assert replace(config, seed=3).given == config.given
    assert TrainConfig(moco={"queue": 5}).given == {"moco"}  # type: ignore[call-arg]
    assert TrainConfig().given == set()
    assert config_from_yaml(config_to_yaml(config)) == config
    assert TrainConfig(data=Path("photos")).data == "photos"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "batch", "epochs", "clip", "log_every"),
    [
        ({}, "auto", 100, None, None),
        ({"domain": "graph"}, 128, 20, None, None),
        ({"recipe": "quickthought"}, 400, 30, 5.0, 50),
        ({"recipe": "quickthought", "data": "text"}, 400, 1, 5.0, 50),
    ],
)
def test_one_place_settles(
    options: Any, batch: Any, epochs: int, clip: Any, log_every: Any
) -> None:
    config = TrainConfig(**options)
    found = (config.batch_size, config.epochs, config.clip, config.log_every)
    assert found == (batch, epochs, clip, log_every)


def test_resuming_with_a_default_is_still_a_change(tmp_path: Path) -> None:
    unremix.train(**SMALL | {"lr": 0.01}, runs=str(tmp_path), name="run")
    run = str(tmp_path / "run")
    with pytest.raises(ValueError, match="--resume alone, got lr"):
        unremix.train(resume=run, lr=1e-3)  # the default, but not the run's
    assert unremix.train(resume=run, lr=0.01, progress=False).config.lr == 0.01


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"epochs": "3"}, TypeError, "expected epochs to be a whole number, got '3'; write 3, wit"),
        ({"epochs": 2.5}, TypeError, "expected epochs to be a whole number, got 2.5; "),
        ({"lr": True}, TypeError, "expected lr to be a number, got True; "),
        ({"accelerator": "cuda"}, ValueError, "to be auto, cpu or gpu, got 'cuda'; "),
        ({"domain": "images"}, ValueError, "got 'images'; did you mean 'image'?"),
        ({"head_hidden": 3}, TypeError, "expected head_hidden to be a list"),
        ({"loss": {"hardness": "a"}}, TypeError, "expected loss.hardness to be a number, got 'a'"),
        ({"loss": 3}, TypeError, "expected loss to be a dictionary of options, got 3; "),
        ({"epohcs": 3}, TypeError, "got epohcs; did you mean 'epochs'?"),
        ({"batch_size": 1}, ValueError, "expected batch_size to be at least 2, got 1; "),
    ],
)
def test_wrong_types_are_one_sentence(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as told:
        unremix.train(**options)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("size", "batch"),
    [(5, 16), (70, 16), (127, 16), (128, 32), (1023, 128), (1024, 256), (50_000, 256)],
)
def test_the_batch_adapts_to_small_data(size: int, batch: int) -> None:
    assert auto_batch(size) == batch
    if size >= 64:
        assert size // batch >= 4


def test_the_batch_is_settled_before_the_run_is_recorded(tmp_path: Path) -> None:
    rest = {name: value for name, value in SMALL.items() if name not in ("batch_size", "limit")}
    prepared = prepare(make_config({**rest, "limit": 70, "runs": str(tmp_path)}))
    assert prepared.config.batch_size == 16
    assert yaml.safe_load((prepared.run.path / "config.yaml").read_text())["batch_size"] == 16


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pictures that must not be decoded."""
    for number in range(20):
        picture = Image.fromarray(np.full((8, 8, 3), number, np.uint8))
        picture.save(tmp_path / f"{number}.png")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a picture was decoded")

    monkeypatch.setattr(decoding, "decode_image", never)
    monkeypatch.setattr("unremix.domains.image.model.load_images", never)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "taken"}, "expected a new run's name, got 'taken', which exists"),
        ({"loggers": ["wandb"]}, "expected wandb to be installed for --loggers wandb, got none; "),
        ({"backbone": "resnet81"}, "did you mean 'resnet18'?"),
        ({"backbone": "nosuch:model"}, "expected nosuch to be installed"),
        ({"recipe": "unremix-nt-xent", "framework": "moco"}, "expected gradient='pseudo-label'"),
        ({"recipe": "moco", "moco": {"momentum": 2.0}}, "momentum to be at most 1"),
        ({"recipe": "simclr", "loss": {"mix": "fixed"}}, "which would do nothing"),
        ({"augmentation": "none at all"}, "expected augmentation auto or one of"),
        ({"sentence": {"units": 3}}, "expected --sentence.units only for sentence data, got 3"),
    ],
)
def test_what_can_be_refused_is_refused_before_decoding(
    options: Any, message: str, untouched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (untouched / "runs" / "taken").mkdir(parents=True)
    (untouched / "runs" / "taken" / "config.yaml").touch()
    find = preparation.importlib.util.find_spec
    monkeypatch.setattr(
        preparation.importlib.util,
        "find_spec",
        lambda name: None if name == "wandb" else find(name),
    )
    with pytest.raises((ValueError, OSError, ImportError)) as told:
        unremix.train(data=str(untouched), runs=str(untouched / "runs"), progress=False, **options)
    assert message in str(told.value)


def test_a_folder_is_no_list_of_pictures(tmp_path: Path) -> None:
    run = unremix.train(**SMALL, runs=str(tmp_path), name="run")
    for folder in ("folder", Path("folder")):
        with pytest.raises(ValueError, match=r"list of paths, .* got one string"):
            run.embed(folder)


def test_the_command_line_takes_auto(tmp_path: Path) -> None:
    words = ["--limit", "70", "--batch_size", "auto", "--epochs", "0", "--runs", str(tmp_path)]
    words += ["--accelerator", "cpu", "--threads", "1", "--probe_epochs", "0", "--name", "a"]
    assert main(["train", *words, "--progress", "false"]) == 0
    assert unremix.load(tmp_path / "a").config.batch_size == 16


def test_a_name_that_reads_as_a_number_is_kept(tmp_path: Path) -> None:
    config = TrainConfig(name="1e-3", data="2.5e3")
    assert config_from_yaml(config_to_yaml(config)) == config
    old = yaml.safe_dump({"name": "1e-3", "lr": 1e-6}, sort_keys=False)
    assert "'" not in old
    assert (config_from_yaml(old).name, config_from_yaml(old).lr) == ("1e-3", 1e-6)
    (tmp_path / "options.yaml").write_text(config_to_yaml(config))
    assert main(["train", "--config", str(tmp_path / "options.yaml"), "--print_config"]) == 0


def test_configs_are_hashable_and_a_section_is_replaced_as_a_whole() -> None:
    config = TrainConfig(width=8, moco={"queue": 64})
    assert hash(config) == hash(TrainConfig(width=8, moco={"queue": 64}))
    changed = replace(config, moco={"momentum": 0.5})
    assert (changed.moco.queue, changed.moco.momentum, changed.width) == (None, 0.5, 8)
    graphs = TrainConfig(domain="graph", graph={"hidden": 8})
    assert replace(graphs, graph={"layers": 2}).graph.hidden == graphs.graph.__class__().hidden


@pytest.mark.parametrize("imports", ["evil.py", 5, [5]])
def test_imports_of_a_file_are_a_list_of_names(imports: Any) -> None:
    for trust in (False, True):
        with pytest.raises(TypeError, match="expected imports to be a list"):
            config_from_yaml(yaml.safe_dump({"imports": imports}), trust=trust)


@pytest.mark.parametrize("words", ["--width 8", "--graph.hidden 64", "--sentence.units 3"])
def test_a_resumed_run_of_another_kind_of_data_keeps_its_options(
    tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(domain="graph", runs=str(tmp_path), name="graphs", graph={"hidden": 4})
    Run.create(tmp_path / "graphs", config, _no_shape())
    assert main(["train", "--resume", str(tmp_path / "graphs"), *words.split()]) == 1
    assert "expected --resume alone, got" in capsys.readouterr().err


def _no_shape() -> Any:
    from unremix.domains.graph.features import NodeEncoding
    from unremix.domains.graph.model import GraphShape

    return GraphShape(NodeEncoding("degree", max_degree=3))


@pytest.mark.parametrize("recipe", ["simclr", "unremix-moco", "infograph", "quickthought-unremix"])
def test_the_file_of_a_run_shows_its_own_options_and_what_they_come_to(recipe: str) -> None:
    config = TrainConfig(recipe=recipe, epochs=3)
    text = config_to_commented_yaml(config)
    assert config_from_yaml(text) == config
    found = config.composition()
    assert f"temperature: null  # {found.temperature}" in text
    shown = {line.partition(":")[0] for line in text.splitlines() if line.endswith(":")}
    foreign = {"moco", "swav", "infograph", "quickthought", "mochi", "patch", "mixture"}
    assert not {name for name in foreign if name not in recipe} & shown
    if recipe == "unremix-moco":
        made = vars(found.make_options("framework"))
        assert f"  queue: null  # {made['queue']}" in text
