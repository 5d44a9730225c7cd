"""Options and files of any size: refused in one line, before memory or time is taken."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from unremix.cli import main
from unremix.console.values import read_yaml

LETTERS = "abcdefghi"


def doubling(form: str) -> str:
    """Ten lines of aliases that stand for 10^9 values."""
    lines = [f"a: &a {form.format('x')}"]
    for before, name in pairwise(LETTERS):
        lines.append(f"{name}: &{name} {form.format(', '.join([f'*{before}'] * 10))}")
    return "\n".join(lines)


BOMBS = {
    "aliases": doubling("[{}]"),
    "merged": "a: &a {x: 1}\n" + "\n".join(
        f"{name}: &{name}\n  <<: [{', '.join([f'*{before}'] * 10)}]"
        for before, name in pairwise(LETTERS)
    ),
    "itself": "&a [*a]",
    "long": "x" * (2**20 + 1),
    "many": "[" + "a," * 300_000,
    "deep": "[" * 5000,
    "number": "a: 1" + ":59" * 200_000,
    "date": "a: 2001-99-99",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_is_read_in_bounded_time(name: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match="expected YAML"):
        read_yaml(BOMBS[name])
    assert time.process_time() - start < 8


def test_few_aliases_are_read() -> None:
    found = read_yaml("a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2")
    assert found == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize("command", ["config", "study", "run", "comparison"])
def test_no_file_of_options_hangs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"run": "config.yaml", "comparison": "comparison.yaml"}
    file = tmp_path / names.get(command, "x.yaml")
    file.write_text(BOMBS["merged"])
    words = {"config": ["train", "--config", str(file)], "study": ["study", str(file)]}
    assert main(words.get(command, ["report", str(tmp_path)])) in (1, 2)
    said = capsys.readouterr().err
    assert "more than 100,000 values" in said
    assert str(file if command != "run" else tmp_path) in said


@pytest.mark.parametrize(
    "words",
    [
        ["--devices", "-1"],
        ["--devices", "0"],
        ["--recipe", "moco", "--moco.queue", "1000000000000"],
        ["--recipe", "moco", "--moco.queue", "9223372036854775807"],
        ["--recipe", "swav", "--swav.queue", "9223372036854775807"],
        ["--recipe", "swav", "--swav.prototypes", "9223372036854775807"],
        ["--name", "../x"],
        ["--name", "a\nb"],
    ],
)
def test_giant_and_negative_options_are_refused_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = time.process_time()
    assert main(["train", "--data", "digits", "--runs", str(tmp_path), *words]) in (1, 2)
    said = capsys.readouterr().err
    assert "expected" in said
    assert "Traceback" not in said
    assert time.process_time() - start < 8  # nothing was filled with zeros
