"""Readers against files made to harm them: each is read or refused, within time and memory."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from data_attacks import attacks
from data_seeds import formats
from fuzzing import fuzz, hold, in_child, write_files

ATTACKS = attacks()


def size_of(path: Path) -> int:
    if path.is_dir():
        return sum(size_of(inner) for inner in path.iterdir() if not inner.is_symlink())
    return path.stat().st_size


SLOW = (
    "80 million",
    "that grow",
    "again and again",
    "gigabyte",
    "megabytes",
    "without nodes",
    "million values",
)
LONGEST = "lines that unpack to gigabytes"


def marks(name: str) -> list[pytest.MarkDecorator]:
    if LONGEST in name:
        absent = os.environ.get("UNREMIX_TORTURE") != "1"
        return [pytest.mark.slow, pytest.mark.skipif(absent, reason="for `make torture`")]
    return [pytest.mark.slow] if any(part in name for part in SLOW) else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ATTACKS])
def test_an_attack_is_refused_or_does_no_harm(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]()
    target = attack.make(tmp_path / "data")

    def work() -> None:
        outcome = hold(attack.read, target)
        if attack.message is None:
            assert outcome == "read"
        else:
            assert attack.message in outcome, outcome

    start = time.monotonic()
    size = 0 if "deep" in name else size_of(tmp_path)
    code, said = in_child(work, file_bytes=size, seconds=280)
    # Python's own removal of folders recurses, and would fail for the deep one.
    subprocess.run(["rm", "-rf", str(tmp_path / "data")], check=True)
    assert code == 0, f"exit code {code} after {time.monotonic() - start:.0f} s: {said}"


@pytest.mark.parametrize("name", formats())
def test_damaged_files_are_read_or_refused(name: str) -> None:
    form = formats()[name]
    counts = fuzz(form.read, form.seeds, examples=60, name=form.name)
    assert sum(counts.values()) >= 50


@pytest.mark.parametrize("name", formats())
def test_the_sound_files_are_read(name: str, tmp_path: Path) -> None:
    form = formats()[name]
    for which, files in form.seeds.items():
        folder = write_files(tmp_path / which, files)
        assert hold(form.read, folder / form.name if form.name else folder) == "read"
