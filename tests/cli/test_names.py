"""Files of any name, under any locale: nothing fails midway, and no terminal obeys a name."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import picture

from unremix.cli import main
from unremix.console.printing import complain, one_line, printable
from unremix.training.run import Run

pytestmark = pytest.mark.xdist_group("names")

NAMES = [
    b"\xff\xfe-latin-\xe9.png", b"red\x1b[31m.png", b"[bold]x.png", b"two\nlines.png",
    "caf\u00e9 \u2028\u202e.png".encode(), b"\x9b2J.png", b"plain.png", b"$(touch canary).png",
]  # fmt: skip
SMALL = [
    "--batch_size", "8", "--epochs", "1", "--probe_epochs", "0", "--width", "4", "--image_size",
    "8", "--head_hidden", "[8]", "--head_output", "4", "--accelerator", "cpu", "--threads", "1",
]  # fmt: skip


@pytest.fixture
def pictures(tmp_path: Path) -> bytes:
    """Pictures of odd names in a folder of an odd name; one of them is broken."""
    folder = os.fsencode(tmp_path) + b"/[red]\xff photos"
    os.mkdir(folder)
    for number, name in enumerate(NAMES):
        try:
            with open(folder + b"/" + name, "wb") as file:
                picture(number).save(file, format="png")
        except OSError:
            pytest.skip("this file system takes UTF-8 names only")
    with open(folder + b"/broken\xff\x1b[2J.png", "wb") as file:
        file.write(b"no picture")
    return folder


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_a_run_on_files_of_any_name(pictures: bytes, tmp_path: Path, locale: str) -> None:
    """In ASCII as in UTF-8: training, report, embedding, neighbors, resuming."""
    environment = {
        **os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii" if locale == "C" else "utf-8",
    }  # fmt: skip
    code = "import sys; from unremix.cli import main\n"
    run = tmp_path / "runs" / "[b]run"
    commands: list[list[str | bytes]] = [
        ["train", "--data", pictures, "--runs", str(run.parent), "--name", run.name, *SMALL],
        ["report", str(run)],
        ["embed", str(run), "-o", str(tmp_path / "e.csv")],
        ["embed", str(run), "--data", pictures, "-o", str(tmp_path / "e.npz")],
        ["embed", str(run), "-o", str(tmp_path / "e.parquet")],
        ["neighbors", str(run), "--query", pictures + b"/" + NAMES[0], "-k", "3"],
        ["duplicates", str(run), "--threshold", "0.1"],
        ["cluster", str(run), "--clusters", "2"],
        ["train", "--resume", str(run), "--epochs", "2"],
    ]
    # One process: importing takes longer than the work.
    code += "words, all = [], []\nfor word in [*sys.argv[1:], ';']:\n"
    code += "    all, words = ([*all, words], []) if word == ';' else (all, [*words, word])\n"
    code += "sys.exit(max(main(words) for words in all))"
    typed = [word for command in commands for word in (*command, ";")][:-1]
    done = subprocess.run(
        [sys.executable, "-c", code, *typed], env=environment, capture_output=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output.decode(errors="replace")
    assert b"\x1b" not in output
    assert b"[b]run" in output  # no markup
    found = Run(run)
    assert os.fsencode(found.config.data) == pictures
    assert any("broken" in line for line in found.warnings)
    assert "\x1b" not in (run / "warnings.txt").read_text(encoding="utf-8")
    with (tmp_path / "e.csv").open(encoding="utf-8", newline="") as file:
        names = [row["names"] for row in csv.DictReader(file)]
    assert len(names) == len(NAMES)
    assert "plain.png" in names
    assert np.load(tmp_path / "e.npz")["names"].tolist() == names
    assert not (tmp_path / "canary").exists()


def test_what_is_printed_is_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("caf\u00e9 ± 3\n") == "caf\u00e9 ± 3\n"
    assert printable("a\x1b[31m\u202e\udcff\x9b") == "a\\x1b[31m\\u202e\\udcff\\x9b"
    assert one_line(" two\n lines\r\t") == "two lines"
    complain("a name\x1b]0;owned\x07 in\ntwo lines", 1)
    assert capsys.readouterr().err == "unremix: a name\\x1b]0;owned\\x07 in two lines\n"
    assert main(["report", "no\x1b[2Jwhere"]) == 1
    assert "\x1b" not in capsys.readouterr().err
