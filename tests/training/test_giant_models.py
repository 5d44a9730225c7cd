"""Options and shapes that no model is built of, in a run's folder or typed, are refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
import yaml
from archives import write_archive
from fuzzing import hold, in_child
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import unremix
import unremix.report
import unremix.training.export
import unremix.training.loop
from unremix.cli import main
from unremix.training.checkpoints import read_checkpoint
from unremix.training.export import export_encoder

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("giants"), pytest.mark.timeout(600)]

MAKERS: dict[str, Callable[[Path], Any]] = {
    "simclr": lambda folder: small_runs.digits(folder, width=4, name="simclr"),
    "moco": lambda folder: small_runs.digits(
        folder, width=4, name="moco", recipe="unremix-moco", moco={"queue": 64}
    ),
    "graphs": small_runs.graphs,
    "sentences": small_runs.sentences,
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("simclr", {"width": 10**9}),
    ("simclr", {"width": 10**30}),
    ("simclr", {"width": 3000}),  # less than memory has, more than the checkpoint
    ("simclr", {"head_hidden": [1] * 2000}),
    ("simclr", {"head_output": 10**9}),
    ("moco", {"moco": {"queue": 10**8}}),
    ("graphs", {"graph": {"hidden": 10**5}}),
    ("graphs", {"graph": {"layers": 10**9}}),
    ("sentences", {"sentence": {"units": 10**5}}),
    ("sentences", {"sentence": {"words": 10**8}}),
]
COMMANDS = (
    ["embed", "RUN"],
    ["evaluate", "RUN"],
    ["export", "RUN"],
    ["neighbors", "RUN", "--query", "0"],
    ["train", "--progress", "false", "--epochs", "2", "--resume", "RUN"],
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: make(folder).path for name, make in MAKERS.items()}


def changed(run: Path, place: Path, options: dict[str, Any]) -> Path:
    copy = place / run.name
    shutil.copytree(run, copy)
    written = yaml.safe_load((copy / "config.yaml").read_text())
    for name, value in options.items():
        written[name] = {**written[name], **value} if isinstance(value, dict) else value
    (copy / "config.yaml").write_text(yaml.safe_dump(written))
    return copy


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("parts", ["all", "encoder"])
def test_a_run_of_a_gigantic_model(
    runs: dict[str, Path], tmp_path: Path, name: str, options: dict[str, Any], parts: str
) -> None:
    run = changed(runs[name], tmp_path, options)
    if parts == "encoder":  # as from the Hub
        shutil.rmtree(run / "checkpoints")

    def attack() -> None:
        if parts == "encoder" and next(iter(options)) in ("head_output", "moco"):
            # Of a head that is not there, only the memory of the machine says anything.
            return
        for command in COMMANDS:
            words = [str(run) if word == "RUN" else word for word in command]
            if parts == "encoder" and "--resume" in command:
                continue
            assert main(words) == 1, words
        said = hold(lambda path: unremix.load.from_pretrained(path).encoder(), run)
        assert said != "read"

    code, said = in_child(attack, file_bytes=0, seconds=300)
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.startswith("unremix: ")]
    assert all("expected" in line and "got" in line for line in lines), said
    assert "enough memory" not in said  # nothing had to be allocated to find out


TYPED = [
    ["--width", "1000000000"],
    ["--width", "9" * 40],
    ["--head_output", "1000000000000"],
    ["--image_size", "1000000"],
    ["--threads", "1000000"],
    ["--devices", "1000"],
    ["--recipe", "moco", "--moco.queue", "1000000000000"],
    ["--recipe", "infograph", "--graph.hidden", "100000000"],
    ["--recipe", "infograph", "--graph.layers", "100000000"],
    ["--recipe", "quickthought", "--sentence.units", "100000000"],
]


@pytest.mark.parametrize("options", TYPED, ids=str)
@pytest.mark.parametrize("dry", [(), ("--dry_run",)])
def test_a_typed_giant(tmp_path: Path, options: list[str], dry: tuple[str, ...]) -> None:
    if dry and "--devices" in options:
        pytest.skip("a dry run measures one process")
    common = ["--runs", str(tmp_path / "runs"), "--progress", "false", "--limit", "64"]

    def attack() -> None:
        assert main(["train", *common, *options, *dry]) in (1, 2)  # 2: no such number

    code, said = in_child(attack, file_bytes=0, seconds=120)
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("unremix: expected")]
    assert "got" in line
    left = [path.name for path in (tmp_path / "runs").glob("*")]
    assert set(left) <= {".cache"}


def test_a_checkpoint_that_shows_one_number_as_many(runs: dict[str, Path], tmp_path: Path) -> None:
    run = changed(runs["simclr"], tmp_path, {"head_output": 10**8})
    (run / "encoder.safetensors").unlink()
    state = read_checkpoint(run / "checkpoints" / "last.ckpt")
    for name in ("head.3.weight", "head.3.bias"):
        shape = (10**8, *state["model"][name].shape[1:])
        state["model"][name] = torch.zeros(1).expand(shape)
    write_archive(state, run / "checkpoints" / "last.ckpt")
    assert (run / "checkpoints" / "last.ckpt").stat().st_size < 10**6
    code, said = in_child(lambda: main(["embed", str(run)]), file_bytes=0, seconds=120)
    assert code == 0, said
    assert "weights of a model of 1,7" in said


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("simclr", {"encoder": {"width": 10**9}}),
        ("simclr", {"encoder": {"width": 10**4}}),
        ("simclr", {"encoder": {"width": 10**30}}),
        ("simclr", {"size": 10**9}),
        ("simclr", {"channels": 10**9}),
        ("simclr", {"size": "large"}),
        ("graphs", {"encoder": {"hidden": 10**9}}),
        ("graphs", {"encoder": {"layers": 10**9}}),
        ("sentences", {"encoder": {"units": 10**5}}),
        ("sentences", {"encoder": {"words": 10**8}}),
    ],
    ids=str,
)
def test_an_export_of_a_gigantic_network(
    runs: dict[str, Path], tmp_path: Path, name: str, facts: dict[str, Any]
) -> None:
    path = export_encoder(runs[name], "safetensors", tmp_path / "encoder.safetensors").path
    with safe_open(path, framework="pt") as file:
        texts = file.metadata()
    for fact, value in facts.items():
        old = json.loads(texts[fact])
        texts[fact] = json.dumps({**old, **value} if isinstance(value, dict) else value)
    save_file(load_file(path), path, metadata=texts)

    def attack() -> None:
        assert hold(unremix.load_exported, path) != "read"

    code, said = in_child(attack, file_bytes=0, seconds=120)
    assert code == 0, said


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("graphs", {"encoding": {"kind": "evil"}}),
        ("sentences", {"unknown": None}),
        ("sentences", {"unknown": -5}),
    ],
)
def test_a_shape_of_other_values(
    runs: dict[str, Path], tmp_path: Path, name: str, facts: dict[str, Any]
) -> None:
    run = changed(runs[name], tmp_path, {})
    shape = json.loads((run / "shape.json").read_text())
    for key, value in facts.items():
        shape[key] = {**shape[key], **value} if isinstance(value, dict) else value
    (run / "shape.json").write_text(json.dumps(shape))
    with pytest.raises(ValueError, match="expected a run folder of unremix"):
        unremix.load(run).encoder()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "gpu"}, "expected a GPU"),
        ({"devices": 999}, "processes on this machine"),
        ({"loggers": ["wandb"]}, "expected wandb to be installed"),
    ],
)
def test_a_resumed_run_says_what_the_machine_lacks(
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name)
    )
    run = changed(runs["simclr"], tmp_path, options)
    for _ in range(2):  # from its checkpoint, and from step 0
        assert main(["train", "--resume", str(run), "--epochs", "2", "--progress", "false"]) == 1
        assert message in capsys.readouterr().err
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def test_metrics_without_epochs(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed(runs["simclr"], tmp_path, {})
    (run / "metrics.csv").write_text("loss\n1\n")
    assert main(["report", str(run), str(runs["moco"]), "-o", str(tmp_path / "c.html")]) == 1
    assert "metrics.csv as unremix wrote it, got " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mean", "std"])
def test_an_export_whose_preprocessing_has_other_channels(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    path = export_encoder(runs["simclr"], "safetensors", tmp_path / "encoder.safetensors").path
    with safe_open(path, framework="pt") as file:
        texts = file.metadata()
    texts[name] = "[1, 2, 3]"
    del texts["facts_sha256"]  # as a stranger would, or an earlier version
    save_file(load_file(path), path, metadata=texts)
    with pytest.raises(ValueError, match=f"a {name} of 1 channel, got one of 3"):
        unremix.load_exported(path)
