"""Help and mistakes: short, for the kind of data given, and at once."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature

import pytest

from unremix.cli import main
from unremix.cli.commands import COMMANDS, SUMMARIES
from unremix.cli.parser import parse, usage_of
from unremix.domains.options import option_hints
from unremix.frameworks.parts import described


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
    assert len(lines) < 66
    assert max(map(len, lines)) <= 80
    assert own in shown
    assert foreign not in shown
    assert shown.index("--data") < shown.index(own)  # common options first
    assert "--help_all" in shown


def test_help_all_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help_all"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for name in option_hints():
        assert re.search(rf"--{re.escape(name)}\s", shown)
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
    for name in signature(COMMANDS[command]).parameters:
        assert name == "command" or re.search(rf"^  .*(--{name}|{name[:3].upper()})", shown, re.M)


def test_every_output_states_its_formats_and_default() -> None:
    texts = {name: described(COMMANDS[name]).get("output") for name in OTHERS}
    for name, text in texts.items():
        if text is not None:
            assert "by default" in text, name
            assert re.search(r"\.(html|csv|npz|onnx|json)\b|folder", text), name
    assert ".csv" in str(texts["embed"])
    assert ".html" in str(texts["cluster"])


@pytest.mark.parametrize("command", OTHERS)
def test_the_usage_line_is_what_the_parser_takes(command: str) -> None:
    words = usage_of(command).replace("...", "").replace("[--OPTION VALUE ]", "").split()[1:]
    words = [word for word in words if not word.startswith("[")]
    chosen = parse(words[0], words[1:])
    for word in words[1:]:
        if not word.startswith("--"):
            assert word in str(chosen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "expected a command among .*, got 'trian'; did you mean 'train'"),
        ("train --epochs abc", "expected --epochs to be a whole number, got 'abc'; "),
        ("train --accelerator cuda", "expected --accelerator to be auto, cpu or gpu, got 'cuda'; "),
        ("train --head_hidden x", r"expected --head_hidden to be a list .*, got 'x'"),
        ("train --loss.hardness x", "expected --loss.hardness to be a number, got 'x'; "),
        ("train --sentence.units x", "expected --sentence.units to be a whole number, got 'x'; "),
        ("train --epohcs 3", "got --epohcs 3; did you mean 'epochs'"),
        ("export run --format jpg", "to be safetensors, torchvision or onnx, got 'jpg'; "),
        ("embed", "expected a run's folder or --encoder NAME, got neither; give one of them"),
        (
            "neighbors",
            r"expected --query, got nothing; usage: unremix neighbors \[SOURCE\] --query",
        ),
        ("export", "expected RUN, got nothing; usage: unremix export RUN "),
        (
            "train --trust=false",
            "expected --trust without a value, got --trust=false; leave it out",
        ),
        ("embed --on ray", "expected a run's folder with --on ray, got none; leave --on out"),
        ("embed run --encoder x --on ray", "with --on ray, got --encoder x as well; leave --on "),
        ("embed runs/digits --data", "expected a value for --data, got none"),
        ("embed runs/digits -o", "expected a value for -o, got none"),
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


def test_a_short_option_may_be_typed_without_a_space() -> None:
    for words in (["-opage.html"], ["-o=page.html"], ["-o", "page.html"]):
        assert parse("report", ["runs/digits", *words])["output"] == "page.html"


def imported(words: str) -> set[str]:
    """The packages that a command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "unremix", *words.split()]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100).stderr
    modules = re.findall(r"^import time:.*\| +(\S+)$", told, re.MULTILINE)
    assert "unremix.cli" in modules
    return {module.split(".")[0] for module in modules}


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ("--help", "torch numpy"),
        ("trian", "torch numpy"),
        ("doctor", "scipy sklearn lightning matplotlib"),
        # The nearest option is looked for among those of all parts, which import torch.
        ("train --epohcs 3", "sklearn lightning matplotlib jinja2"),
    ],
)
def test_an_answer_imports_no_more_than_it_needs(words: str, unwanted: str) -> None:
    assert not imported(words) & set(unwanted.split())


@pytest.mark.parametrize("words", [["--version"], ["train", "--help_all"]])
def test_a_reader_that_leaves_is_no_error(words: list[str]) -> None:
    """As with ``| head``, whether the text fits into the buffer or not."""
    command = [sys.executable, "-m", "unremix", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
