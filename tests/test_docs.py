"""The code shown in the README and on the pages runs as it stands."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import unremix
from unremix import recipes
from unremix.cli.parser import make_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name != "using.md"  # its blocks follow each other; test_using.py runs them in a row
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


COMMANDS = sorted(
    {
        line.split("#")[0].strip()
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if "unremix " in line.split("#")[0] and "pip" not in line
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_shown_commands_are_understood(command: str) -> None:
    words = shlex.split(command)
    parsed = make_parser().parse_args(words[words.index("unremix") + 1 :])
    assert parsed.subcommand in command


@pytest.mark.parametrize("code", BLOCKS)
def test_shown_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A page may add a method; the next one must not see it.
    monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))
    parts = {kind: dict(known) for kind, known in recipes.PARTS.items()}
    monkeypatch.setattr(recipes, "PARTS", parts)
    torch.manual_seed(0)
    encoder = nn.Linear(20, 512)
    names = {
        "torch": torch,
        "nn": nn,
        "unremix": unremix,
        "encoder": encoder,
        "loader": [(torch.randn(8, 20), torch.randn(8, 20)) for _ in range(2)],
        "z0": torch.randn(8, 16),
        "z1": torch.randn(8, 16),
        "h0": torch.randn(8, 32),
        "h1": torch.randn(8, 32),
        "labels": torch.arange(8) % 2,
    }
    exec(compile(code, "page", "exec"), names)  # the page itself asserts nothing: it must run
    if "loss" in names:
        assert names["loss"].isfinite()


def test_the_readme_s_code_is_complete() -> None:
    """A reader can paste it: it needs no name that it does not define."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), names)
    loss = names["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()


QUOTES = [
    pytest.param(*quote, id=f"{page.name}-{quote[1]}-{number}")
    for page in PAGES
    for number, quote in enumerate(
        re.findall(r'```py title="(\S+), (\w+)"\n(.*?)```', page.read_text(), re.DOTALL)
    )
]


@pytest.mark.parametrize(("file", "function", "code"), QUOTES)
def test_quoted_code_is_the_source(file: str, function: str, code: str) -> None:
    source = (ROOT / "src" / "unremix" / file).read_text()
    sources = [
        textwrap.dedent(ast.get_source_segment(source, node, padded=True) or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    indented = [textwrap.indent(code, " " * depth) for depth in (4, 8)]
    assert any(each in found + "\n" for each in indented for found in sources)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_parts_are_on_the_api_page(page: Path) -> None:
    described = set(re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert set(re.findall(r"\(api\.md#([\w.]+)\)", page.read_text())) <= described


def test_the_readme_names_every_make_target_it_uses() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert used
    assert used <= targets


def test_every_preset_option_is_in_the_fidelity_table() -> None:
    from dataclasses import fields

    from unremix.losses import PRESETS, Preset

    page = (ROOT / "docs" / "fidelity.md").read_text()
    rows = {
        cells[1].strip().strip("`"): [cell.strip().strip("`") for cell in cells[2:5]]
        for line in page.splitlines()
        if len(cells := line.split("|")) >= 6
    }
    for field in fields(Preset):
        values = [str(getattr(PRESETS[name], field.name)) for name in ("paper", "code", "sound")]
        assert rows[field.name] == values
