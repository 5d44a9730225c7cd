"""The code shown in the README and on the pages runs as it stands."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pages import same_figures
from registering import forgetting
from torch import nn

import unremix
from unremix.cli.commands import SUMMARIES
from unremix.cli.parser import parse
from unremix.core.objectives import InfoNCE, JensenShannon
from unremix.experiments.paper import comparison, illustration, in_a_batch, over_epochs
from unremix.experiments.paper.catalog import EXPERIMENTS

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
    name, *rest = words[words.index("unremix") + 1 :]
    assert name in SUMMARIES
    help_only = {"-h", "--help", "--help_all", "--version"} & set(rest)
    assert help_only or isinstance(parse(name, rest), dict)


@pytest.mark.parametrize("code", BLOCKS)
def test_shown_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    encoder = nn.Linear(20, 512)
    names = {
        "torch": torch,
        "nn": nn,
        "unremix": unremix,
        "encoder": encoder,
        "loader": [(torch.randn(8, 20), torch.randn(8, 20)) for _ in range(2)],
        "z0": torch.randn(8, 16, requires_grad=True),
        "z1": torch.randn(8, 16, requires_grad=True),
        "h0": torch.randn(8, 32),
        "h1": torch.randn(8, 32),
        "labels": torch.arange(8) % 2,
    }
    with forgetting():  # a page may add a method or a kind of data; the next one must not see it
        exec(compile(code, "page", "exec"), names)  # the page asserts nothing: it must run
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
def test_linked_parts_are_on_the_api_pages(page: Path) -> None:
    for name, part in re.findall(r"\((api[-\w]*\.md)#([\w.]+)\)", page.read_text()):
        assert f"::: {part}\n" in (ROOT / "docs" / name).read_text()


def test_the_readme_names_every_make_target_it_uses() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert used
    assert used <= targets


def test_the_size_of_blocks_is_that_of_the_code() -> None:
    from unremix.core.problem import BLOCK_ELSEWHERE, BLOCK_ON_CPU

    page = (ROOT / "docs" / "method.md").read_text()
    assert f"{4 * BLOCK_ON_CPU >> 20} MiB per array on a CPU" in page
    assert f"of {4 * BLOCK_ELSEWHERE >> 20} MiB on an accelerator" in page


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


# The pages on results, and what `unremix reproduce` wrote

REPRODUCED = ROOT / "reproductions" / "cpu"
TABLES = (ROOT / "docs" / "results-paper.md").read_text()
GRAPHS = (ROOT / "docs" / "results-graphs.md").read_text()


def lines_of(text: str) -> list[list[str]]:
    """The cells of all lines of tables, without headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"[|\s:-]+", line)]
    headings = {number - 1 for number in rules} | set(rules)
    return [line for number, line in enumerate(cells) if number not in headings]


@pytest.mark.parametrize(
    ("name", "shown"), re.findall(r"^## .*?\(`(\w+)`\)\n(.*?)(?=^## |\Z)", TABLES, re.S | re.M)
)
def test_shown_tables_are_those_of_the_runs(name: str, shown: str) -> None:
    """The columns of a data set are its figures as written, its differences, and the paper's."""
    text = (REPRODUCED / name / "table.md").read_text()
    written: dict[str, list[list[str]]] = {}  # by row: its lines, each with a cell per data set
    row = ""
    for first, *cells in lines_of(text):
        row = row if first.startswith("·") else first
        if first == "· paper":  # without the names of its data sets
            cells = [cell.partition(" (")[0] for cell in cells]
        if first != "· ours − paper":
            written.setdefault(row, []).append(cells)
    for first, *cells in lines_of(shown):
        if name == "mix":  # a line per data set
            assert cells in written[first]
            continue
        ours, *paper, differences = (line[1:] for line in written[first])
        each = [ours, differences, *(paper or [["", ""]] if name != "diversity" else [])]
        assert cells == [column[data] for data in range(2) for column in each]
    (command,) = re.findall(r"```bash\n(.*?)\n```", shown)
    assert command in text


def test_the_cost_of_a_wrong_temperature_is_the_study_s() -> None:
    script = runpy.run_path(str(ROOT / "studies" / "temperature.py"))
    lines = script["table"](script["accuracies"]())
    assert len(lines) == 4
    assert set(lines) <= set((ROOT / "docs" / "results.md").read_text().splitlines())


def test_tables_of_graphs_are_those_of_the_runs() -> None:
    text = (REPRODUCED / "graphs" / "table.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) > 8
    assert set(lines) <= set(GRAPHS.splitlines())


def test_shown_figures_are_those_of_the_runs() -> None:
    shown = sorted((ROOT / "docs" / "results" / "paper").glob("*.svg"))
    pages = TABLES + GRAPHS + (ROOT / "docs" / "paper.md").read_text()
    for path in shown:
        (written,) = REPRODUCED.glob(f"*/{path.name}")
        assert same_figures(path, written)
        assert f"results/paper/{path.name}" in pages
    assert len(shown) > 5


def test_code_named_beside_the_papers_tables_exists() -> None:
    page = (ROOT / "docs" / "paper.md").read_text().partition("## Equations")[0]
    rows = [cells for cells in lines_of(page) if cells[1].startswith("`reproduce")]
    assert len(rows) == 15
    modules = [comparison, over_epochs, illustration, in_a_batch]
    for cells in rows:
        assert cells[1].strip("`").removeprefix("reproduce ") in EXPERIMENTS
        for code in re.findall(r"`(\w+)`", cells[2]):
            assert any(hasattr(module, code) for module in modules)


@pytest.mark.parametrize("of", [unremix.UnReMixLoss, unremix.InfoNCELoss, InfoNCE, JensenShannon])
def test_equations_of_docstrings_are_typeset(of: type) -> None:
    build = SimpleNamespace(**runpy.run_path(str(ROOT / "docs_build.py")))
    text = build.EQUATIONS.sub(build._typeset, inspect.getdoc(of) or "")
    (source,) = re.findall(r"```math\n(.*?)\n```", text, re.DOTALL)
    assert "<msub>" in build.equation(source)
    assert "Σ" not in source
