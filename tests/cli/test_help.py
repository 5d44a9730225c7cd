"""Help and mistakes: short, for the kind of data given, and at once."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from dataclasses import fields
from inspect import signature

import pytest

from unremix.cli import main
from unremix.cli.commands import SUMMARIES
from unremix.cli.parser import function_of, make_parser, usage_of
from unremix.frameworks.parts import described
from unremix.options.config import TrainConfig
from unremix.recipes import sections


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("words", "own", "foreign"),
    [
        ([], "--backbone", "--sentence."),
        (["--domain", "graph"], "--graph.hidden", "--backbone"),
        (["--recipe=quickthought"], "--sentence.format", "--moco."),
    ],
)
def test_help_is_short_and_of_the_chosen_domain(
    command: str, words: list[str], own: str, foreign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words, "--help"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80
    assert own in shown
    assert foreign not in shown
    assert shown.index("--data") < shown.index(own)  # common options first
    assert "--help_all" in shown


def test_help_all_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help_all"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    kinds = {**sections(), "graph": None, "sentence": None}
    for its in fields(TrainConfig):
        if its.name in kinds:
            kind = kinds[its.name] or type(getattr(TrainConfig(), its.name))
            for option in fields(kind):
                assert re.search(rf"--{its.name}\.{option.name}\s", shown)
        elif its.name not in ("given", "held"):
            assert re.search(rf"--{its.name}\s", shown)
    assert "4096" in shown  # the defaults of parts


OTHERS = [name for name in SUMMARIES if name not in ("train", "compare")]


@pytest.mark.parametrize("command", OTHERS)
def test_help_of_a_command_is_in_words(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: unremix {command}")
    assert not re.search(r"Union|null,|type:|\[options\]|Literal|tuple\[|None", shown)
    for name in signature(function_of(command)).parameters:
        assert name == "command" or re.search(rf"^  .*(--{name}|{name[:3].upper()})", shown, re.M)


def test_every_output_states_its_formats_and_default() -> None:
    texts = {name: described(function_of(name)).get("output") for name in OTHERS}
    for name, text in texts.items():
        if text is not None:
            assert "by default" in text, name
            assert re.search(r"\.(html|csv|npz|onnx)\b|folder", text), name
    assert ".csv" in str(texts["embed"])
    assert ".html" in str(texts["cluster"])


@pytest.mark.parametrize("command", OTHERS)
def test_the_usage_line_is_what_the_parser_takes(command: str) -> None:
    words = usage_of(command).replace("...", "").replace("[--OPTION VALUE ]", "").split()[1:]
    words = [word for word in words if not word.startswith("[")]
    chosen = make_parser(command).parse_args(words)
    for word in words[1:]:
        if not word.startswith("--"):
            assert word in str(chosen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "expected a command among .*, got 'trian'; did you mean 'train'"),
        ("train --epochs abc", "expected --epochs to be a whole number, got 'abc'; "),
        ("train --accelerator cuda", "expected --accelerator to be auto, cpu or gpu, got 'cuda'; "),
        ("train --head_hidden 3", r"expected --head_hidden to be a list .*; write \"\[3\]\""),
        ("train --loss.hardness x", "expected --loss.hardness to be a number, got 'x'; "),
        ("train --sentence.units x", "expected --sentence.units to be a whole number, got 'x'; "),
        ("train --epohcs 3", "got --epohcs 3; did you mean 'epochs'"),
        ("export run --format jpg", "to be safetensors, torchvision or onnx, got 'jpg'; "),
        ("embed", r"expected RUN, got nothing; usage: unremix embed RUN \[--OPTION VALUE ...\]$"),
        ("neighbors", "expected --query and RUN, .*; usage: unremix neighbors RUN --query QUERY"),
        ("export", "expected RUN, got nothing; usage: unremix export RUN "),
        ("mine -k 3", "expected --anchors and --positives, got nothing; usage: unremix mine --anc"),
    ],
)
def test_mistakes_are_one_sentence(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    told = capsys.readouterr().err
    assert re.match(f"unremix: .*{message}", told)
    assert told.count("\n") == 1


def seconds(*words: str) -> float:
    """Processor time of a process, the least of three: what else runs matters little."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=False, timeout=100)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


@pytest.mark.slow
def test_answers_come_no_later_than_torch() -> None:
    torch = seconds("-c", "import torch")
    for words in (["--help"], ["trian"], ["doctor"]):
        assert seconds("-m", "unremix", *words) <= 1.1 * torch, words  # a tenth for noise
    # The nearest option is looked for among those of all parts, which import torch themselves.
    assert seconds("-m", "unremix", "train", "--epohcs", "3") <= 1.5 * torch
