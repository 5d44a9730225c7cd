"""The examples run, and say how far they are where there is no terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGES = EXAMPLES.parent / "docs" / "tutorials"


@pytest.mark.slow
def test_the_quickstart_writes_progress_to_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        words = [sys.executable, str(EXAMPLES / "quickstart.py"), "--epochs", "10"]
        subprocess.run(words, stdout=file, stderr=file, check=True, timeout=300)
    shown = log.read_text()
    assert re.findall(r"^epoch (\d+)/10, loss \d+\.\d+$", shown, re.M) == ["1", "10"]
    assert "trained encoder (10 epochs" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["audit", "reproduce"])
def test_a_tutorial_runs(page: str) -> None:
    """The one with a ready encoder is run by tests/peers, where that encoder is installed."""
    words = [sys.executable, str(EXAMPLES / "tutorials.py"), "--check", page]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["audit", "photos"])
def test_a_notebook_has_the_code_of_its_page(name: str) -> None:
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = re.findall(
        r"```(?:bash|python|py).*?\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.S
    )
    assert [re.sub(r"^%%.*\n", "", one).strip() for one in code] == [one.strip() for one in blocks]
    assert sum(len(cell.get("outputs", ())) for cell in cells) >= 4
    assert (EXAMPLES / f"{name}.ipynb").stat().st_size < 50_000
