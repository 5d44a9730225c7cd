"""The settings that ship with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from unremix.cli import main
from unremix.cli.parser import parse
from unremix.domains import find_domain
from unremix.domains.image.encoders import make_encoder
from unremix.domains.image.model import PUBLISHED
from unremix.domains.options import make_config, nested_options, option_hints
from unremix.experiments.plan import OWN
from unremix.training.settings import FOLDER, find_config, shipped

NAMES = ("cifar10", "cifar100", "imagenet", "tiny-imagenet")


def options_of(name: str) -> dict[str, object]:
    options: dict[str, object] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return options


def test_there_is_one_per_data_set() -> None:
    assert tuple(shipped()) == NAMES
    assert len({str(options_of(name)["data"]) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_for_every_recipe(name: str) -> None:
    options = options_of(name)
    assert not set(options) & set(OWN)
    assert set(options) <= set(option_hints())
    for recipe in ("simclr", "swav", "mochi", "unremix", "unremix-moco"):
        config = make_config(nested_options(parse("train", ["--config", name, "--recipe", recipe])))
        find_domain("image").check(config)
    parsed = parse("compare", ["--config", name, "--recipes", "simclr,hcl"])
    assert parsed["epochs"] == options["epochs"]


@pytest.mark.parametrize("name", NAMES)
def test_they_are_the_papers(name: str) -> None:
    options = options_of(name)
    assert options["backbone"] == "resnet50"
    assert options["batch_size"] == 256
    assert options["data"] in PUBLISHED
    rows = {"imagenet": (50, 70, "sgd", 0.03, 1e-4)}
    published = rows.get(name, (400, 100, "adam", 1e-3, 1e-6))
    keys = ("epochs", "probe_epochs", "optimizer", "lr", "weight_decay")
    assert tuple(options[key] for key in keys) == published
    size, width, stem = (options[key] for key in ("image_size", "width", "stem"))
    encoder = make_encoder("resnet50", channels=3, image_size=size, width=width, stem=stem)  # type: ignore[arg-type]
    assert encoder.features == 2048


def test_a_path_is_a_path_and_a_typo_names_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar100").mkdir()  # the data may lie here
    assert find_config("cifar100") == str(FOLDER / "cifar100.yaml")
    Path("cifar10").write_text("epochs: 3\n")  # a file of that name is that file
    assert find_config("cifar10") == "cifar10"
    assert parse("train", ["--config", "cifar10"]) == {"epochs": 3}
    assert find_config("some/where.yaml") == "some/where.yaml"
    with pytest.raises(ValueError, match=r"cifar10, .*; did you mean 'imagenet'"):
        find_config("imagnet")
    assert main(["train", "--config", "imagnet"]) == 1
    assert "did you mean 'imagenet'?" in capsys.readouterr().err


def test_options_on_the_command_line_win() -> None:
    parsed = parse("train", ["--config", "cifar10", "--epochs", "7", "--backbone", "resnet18"])
    assert (parsed["epochs"], parsed["backbone"], parsed["batch_size"]) == (7, "resnet18", 256)


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    for name in NAMES:
        assert f" {name} " in shown
