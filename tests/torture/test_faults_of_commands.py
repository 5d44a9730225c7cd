"""Commands that are killed, or whose disk fails, at any file operation: whole files or none."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small_runs
from faults import FAIL_FROM, FAIL_ONCE, KILLS, Nursery, compiler

from unremix.cli import main
from unremix.experiments.results import Record, Results
from unremix.hub import FILES

TORTURE = os.environ.get("UNREMIX_TORTURE") == "1"
MODES = {**KILLS, "fails": FAIL_ONCE, "is full from there on": FAIL_FROM}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("faults of commands"),
    pytest.mark.timeout(3600 if TORTURE else 600),
    pytest.mark.skipif(
        compiler() is None or not sys.platform.startswith("linux"),
        reason="needs a C compiler and a system that loads a library before the C library",
    ),
]

COMPARED = [
    "--data", "digits", "--recipes", "simclr,unmix", "--seeds", "1", "--limit", "48",
    "--epochs", "1", "--batch_size", "16", "--probe_epochs", "0", "--width", "4",
    "--head_hidden", "[8]", "--head_output", "4", "--accelerator", "cpu", "--jobs", "1",
    "--progress", "false",
]  # fmt: skip

# A command, and what it writes.
COMMANDS = {
    "embed": (["embed", "RUN", "-o", "OUT/e.npz"], ["e.npz"]),
    "embed csv": (["embed", "RUN", "-o", "OUT/e.csv"], ["e.csv"]),
    "export": (["export", "RUN", "-o", "OUT/e.safetensors"], ["e.safetensors"]),
    "mine": (["mine", "--anchors", "OUT/x.npz", "--positives", "OUT/pairs.tsv", "--k", "2",
              "-o", "OUT/t.csv"], ["t.csv", "t.report.json"]),
    "duplicates": (["duplicates", "RUN", "-o", "OUT/d.html"], ["d.csv"]),
    "study": (["study", "OUT/study.yaml", "--output", "OUT/study"], ["study/report.md"]),
    "compare": (["compare", *COMPARED, "--output", "OUT/compared"],
                ["compared/results.csv", "compared/results.json", "compared/table.csv",
                 "compared/table.md", "compared/report.html", "compared/comparison.yaml"]),
    "save_pretrained": (["save_pretrained", "RUN", "OUT/shared"],
                        [f"shared/{name}" for name in (*FILES, "README.md")]),
}  # fmt: skip


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("commands")
    small_runs.digits(root, width=4)
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(root / "x.npz", embeddings=rows)
    (root / "pairs.tsv").write_text("".join(f"{n}\t{(n + 1) % 60}\n" for n in range(60)))
    (root / "study").mkdir()
    (root / "study.yaml").write_text(
        "{stages: {a: {arms: [{recipe: simclr}], seeds: 1}}, train: {epochs: 1}}"
    )
    from unremix.experiments.study import read_study

    study = read_study(root / "study.yaml")
    job = study.job(study.stages["a"], {"recipe": "simclr"}, 0)
    measured = {"trained": {"knn": {"value": 0.5}}}
    Results(root / "study" / "results.jsonl").add(
        Record(job.name, "simclr", 0, epochs=1, loss=1.0, results=measured, cpu_seconds=1.0)
    )
    compared = (
        root / "compared"
    )  # its runs have ended and are noted: what is left is to report them
    assert main(["compare", *COMPARED, "--output", str(compared)]) == 0
    kept = {"comparison.yaml", "results.jsonl", "runs", "logs", ".locks"}
    for path in compared.iterdir():
        if path.name not in kept:
            path.unlink()
    return root


def fresh(sound: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, place)
    return place


def words(command: str, folder: Path) -> list[str]:
    named = {"RUN": str(folder / "digits")}
    return [named.get(one, one.replace("OUT", str(folder))) for one in COMMANDS[command][0]]


@pytest.mark.parametrize("command", COMMANDS)
def test_files_are_whole_or_not_there(
    nursery: Nursery, sound: Path, tmp_path: Path, command: str
) -> None:
    folder, written = tmp_path / "copy", COMMANDS[command][1]
    outcome = nursery.run(words(command, fresh(sound, folder)), folder)
    assert outcome.code == 0, outcome.output
    expected = {name: (folder / name).read_bytes() for name in written}
    assert outcome.operations > 2
    step = 1 if TORTURE else max(1, outcome.operations // 3)
    for operation in range(1, outcome.operations + 1, step):
        for number, (name, mode) in enumerate(MODES.items()):
            if not TORTURE and (operation // step + number) % len(MODES) > 1:
                continue
            about = (command, operation, name)
            error = errno.EIO if mode == FAIL_ONCE else errno.ENOSPC
            failed = nursery.run(
                words(command, fresh(sound, folder)),
                folder,
                operation=operation,
                mode=mode,
                error=error,
            )
            for one, content in expected.items():
                if (folder / one).exists():
                    assert (folder / one).read_bytes() == content, about
            if mode in (FAIL_ONCE, FAIL_FROM):
                assert failed.code in (0, 1), (about, failed.output)  # what only helps may fail
                assert "Traceback" not in failed.output, (about, failed.output)
                if failed.code:
                    assert "unremix: expected" in failed.output, (about, failed.output)
            again = nursery.run(words(command, folder), folder)
            assert again.code == 0, (about, again.output)
            for one, content in expected.items():
                assert (folder / one).read_bytes() == content, about
