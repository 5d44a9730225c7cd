"""Runs that are killed, or whose disk fails, at any operation on a file: nothing is lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FAIL_FROM, FAIL_ONCE, KILLS, Nursery, Outcome, compiler
from same_runs import assert_same
from torture.nursery import OPTIONS, SMALL

from unremix.training.run import Run

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"  # `make torture`
KILLED = 1000 if TORTURE else 20
FAILED = 10_000 if TORTURE else 8  # at most: every operation
PARTS = range(20 if TORTURE else 1)

pytestmark = [
    pytest.mark.slow,
    *([] if TORTURE else [pytest.mark.xdist_group("kills")]),
    pytest.mark.timeout(3600 if TORTURE else 1200),
    pytest.mark.skipif(
        compiler() is None or not sys.platform.startswith("linux"),
        reason="needs a C compiler and a system that loads a library before the C library",
    ),
]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


def words(folder: Path) -> list[str]:
    return ["train", "--runs", str(folder), "--name", "run", *SMALL]


def options(folder: Path) -> dict[str, Any]:
    return {"runs": str(folder), "name": "run", **OPTIONS}


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """The run, never interrupted, and how many operations it takes."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = nursery.run(words(folder), folder)
    assert outcome.code == 0, outcome.output
    return Run(folder / "run"), outcome.operations


def resume(nursery: Nursery, folder: Path, number: int) -> Outcome:
    """Continue by --resume, or by the same name and options."""
    begun = (folder / "run" / "config.yaml").exists()
    again = {"resume": str(folder / "run"), "progress": False}
    return nursery.run(again if begun and number % 2 else options(folder), folder)


def spread(cases: list[Any], count: int) -> list[Any]:
    """Some of the cases, evenly spread."""
    if len(cases) <= count:
        return cases
    return [cases[index * (len(cases) - 1) // (count - 1)] for index in range(count)]


def matrix(operations: int) -> list[tuple[int, str]]:
    """Every write, fsync and rename × before, halfway and after; or some of them."""
    whole = [(operation, mode) for operation in range(1, operations + 1) for mode in KILLS]
    return spread(whole, KILLED - KILLED // 4)


def assert_nothing_lost(nursery: Nursery, folder: Path, number: int, reference: Run) -> None:
    """A run that was killed resumes, and ends as if it had not been."""
    resumed = resume(nursery, folder, number)
    assert resumed.code == 0 or "is finished" in resumed.output, (folder.name, resumed)
    assert_same(Run(folder / "run"), reference)
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", PARTS)
def test_killed_at_any_operation(
    nursery: Nursery, whole: tuple[Run, int], tmp_path: Path, part: int
) -> None:
    reference, operations = whole
    for number, (operation, mode) in [*enumerate(matrix(operations))][part :: len(PARTS)]:
        folder = tmp_path / f"{operation}-{mode}"
        killed = nursery.run(options(folder), folder, operation=operation, mode=KILLS[mode])
        assert killed.code == -9, (operation, mode, killed.output)
        if number % 5 == 4:  # and again while it resumes
            nursery.run(options(folder), folder, operation=1 + operation // 3, mode=KILLS[mode])
        assert_nothing_lost(nursery, folder, number, reference)


@pytest.mark.parametrize("part", PARTS)
def test_killed_at_random_moments(
    nursery: Nursery, whole: tuple[Run, int], tmp_path: Path, part: int
) -> None:
    reference, operations = whole
    for number in range(KILLED - len(matrix(operations)))[part :: len(PARTS)]:
        folder, draw = tmp_path / str(number), random.Random(number)
        for _ in range(1 + number % 3):
            nursery.run(options(folder), folder, kill_after=draw.uniform(0.0, 1.5))
        assert_nothing_lost(nursery, folder, number, reference)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("error", "mode"), [("ENOSPC", FAIL_FROM), ("EIO", FAIL_ONCE)])
def test_the_disk_fails_at_any_operation(
    nursery: Nursery, whole: tuple[Run, int], tmp_path: Path, error: str, mode: int, part: int
) -> None:
    """One line says so, and the run continues from its earlier state once the disk is well."""
    reference, operations = whole
    number = getattr(errno, error)
    for operation in spread(list(range(1, operations + 1)), FAILED)[part :: len(PARTS)]:
        folder = tmp_path / f"{error}-{operation}"
        failed = nursery.run(words(folder), folder, operation=operation, mode=mode, error=number)
        said = [line for line in failed.output.splitlines() if line.startswith("unremix: expected")]
        if failed.code != 0:  # the sync of a folder may fail without harm
            assert failed.code == 1, (operation, failed.output)
            assert len(said) == 1, (operation, failed.output)
            reason = "no space left" if error == "ENOSPC" else os.strerror(number)
            assert reason in said[0], (operation, failed.output)
        assert "Traceback" not in failed.output, (operation, failed.output)
        assert not list(folder.rglob("*.tmp"))
        assert_nothing_lost(nursery, folder, operation, reference)
