"""The examples run, and say how far they are where there is no terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_the_quickstart_writes_progress_to_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        words = [sys.executable, str(EXAMPLES / "quickstart.py"), "--epochs", "10"]
        subprocess.run(words, stdout=file, stderr=file, check=True, timeout=300)
    shown = log.read_text()
    assert re.findall(r"^epoch (\d+)/10, loss \d+\.\d+$", shown, re.M) == ["1", "10"]
    assert "trained encoder (10 epochs" in shown
