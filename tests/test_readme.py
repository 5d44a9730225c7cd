"""The README's commands work for a new user: on 70 pictures of ordinary size, graphs and text."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unremix.cli import main

ROOT = Path(__file__).parent.parent
PICTURES = 70
READY = "tiny_nets.py:net"  # in place of the README's ready encoder, whose weights are not here
NET = """
import torch


def net(channels, image_size):
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(channels, 8, 7, 7)
    return torch.nn.Sequential(convolution, torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
"""
# What a command of the README leaves to its defaults and would take too long here.
BRIEF = {
    "explore": [],
    "reproduce": [],
    "train": ["--epochs", "1", "--accelerator", "cpu"],
    "compare": ["--epochs", "1", "--seeds", "1", "--jobs", "1", "--accelerator", "cpu"],
}
BRIEF_IMAGES = ["--width", "4", "--image_size", "64", "--probe_epochs", "1"]
BRIEF_TEXT = ["--sentence.words", "8", "--sentence.units", "8", "--sentence.senteval", "none"]


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("unremix ")]


def write_photos(folder: Path) -> None:
    """Photographs without labels: smooth random colors, 640 × 480 and 480 × 640 pixels."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        size = (640, 480) if number % 3 else (480, 640)
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"IMG_{number:04}.jpg")


def write_graphs(file: Path) -> None:
    """Rings and stars, 40 of each, as a zip of TU's text files."""
    edges, indicator, labels, nodes = [], [], [], 0
    for graph in range(80):
        size = 5 + graph % 4
        pairs = [(0, n) for n in range(1, size)] if graph % 2 else [
            (n, (n + 1) % size) for n in range(size)
        ]  # fmt: skip
        for a, b in pairs:
            edges += [f"{nodes + a + 1}, {nodes + b + 1}", f"{nodes + b + 1}, {nodes + a + 1}"]
        indicator += [str(graph + 1)] * size
        labels.append(str(graph % 2))
        nodes += size
    parts = {"A": edges, "graph_indicator": indicator, "graph_labels": labels}
    with zipfile.ZipFile(file, "w") as archive:
        for name, lines in parts.items():
            archive.writestr(f"{file.stem}/{file.stem}_{name}.txt", "\n".join(lines) + "\n")


def write_books(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(60)]
    for book in ("one", "two"):
        lines = [" ".join(rng.choice(words, 8)) + "." for _ in range(450)]
        (folder / f"{book}.txt").write_text("\n".join(lines) + "\n")


def write_table(file: Path) -> None:
    """Flowers of two species: one is longer."""
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal(5 + species):.2f},{rng.normal(3):.2f},{('setosa', 'virginica')[species]}"
        for species in (0, 1) * 150
    ]
    file.write_text("\n".join(["length,width,species", *rows]) + "\n")


def test_the_readme_has_commands() -> None:
    assert {line.split()[1] for line in commands()} >= {"train", "compare", "explore", "reproduce"}
    assert all(line.split()[1] in BRIEF for line in commands())
    # A scale that takes hours is not run here; tests/experiments reads its options.
    assert [line for line in commands() if line not in RUN] == [
        f"unremix reproduce {name}" for name in ("table1", "sentences", "graphs")
    ]


def test_the_readme_s_numbers_are_those_of_the_results() -> None:
    """The rows of "Does it help?", and what a wrong temperature costs."""
    readme = (ROOT / "README.md").read_text().partition("## Does it help?")[2]
    study = (ROOT / "docs" / "results-study.md").read_text().partition("## The confirmation")[2]
    rows = re.findall(r"^\| ((?:SimCLR|HCL|UnReMix)[^|]*) \|([^\n]*)\|$", readme, re.M)
    assert len(rows) == 4
    for name, cells in rows:
        found = [line.split("|") for line in study.splitlines() if line.startswith(f"| {name} |")]
        tables = [[cell.strip() for cell in line] for line in found[:2]]
        shown = [cell.strip() for cell in cells.split("|")]
        assert shown == [part for line in tables for part in (line[2].split(" ±")[0], line[3])]
    results = (ROOT / "docs" / "results.md").read_text()
    lost = dict(
        re.findall(r"^\| (SimCLR|HCL|UnReMix, as printed) \|.* ([\d.]+) \|$", results, re.M)
    )
    text = " ".join(readme.split())
    assert f"SimCLR loses {lost['SimCLR']} points" in text
    assert f"UnReMix as printed {lost['UnReMix, as printed']}, HCL {lost['HCL']}." in text


RUN = [line for line in commands() if "reproduce" not in line or "--scale" in line]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_runs")
@pytest.mark.parametrize("command", RUN)
def test_a_command_of_the_readme_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos")
    if " compare " in command:  # needs labels
        for number, photo in enumerate(sorted((tmp_path / "photos").glob("*.jpg"))):
            folder = tmp_path / "photos" / f"class {number % 2}"
            folder.mkdir(exist_ok=True)
            photo.rename(folder / photo.name)
    write_graphs(tmp_path / "MUTAG.zip")
    write_books(tmp_path / "books")
    write_table(tmp_path / "table.csv")
    (tmp_path / "tiny_nets.py").write_text(NET)
    words = [
        READY if word.startswith("efficientnet_lite_pytorch:") else word
        for word in shlex.split(command)[1:]
    ]
    words += BRIEF[words[0]]
    if "photos" in words and words[0] != "explore":
        words += BRIEF_IMAGES
    if "books" in words:
        words += BRIEF_TEXT
    assert main(words) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    if words[0] == "explore":
        assert (tmp_path / "explore.html").exists()
        return
    if "--dry_run" in words:
        assert "Measured on cpu" in printed or "Nothing was written" in printed
        return
    assert "Everything is in" in printed
    if words[0] == "train":
        (run,) = (path.parent for path in (tmp_path / "runs").glob("*/config.yaml"))
        card = json.loads((run / "evaluation.json").read_text())
        if "photos" in words:
            assert card["train_images"] == PICTURES
            assert card["batch_size"] == 16  # at least four steps an epoch
        assert (run / "report.html").exists()
