"""Parts of data: what tells them from others, and what a machine must see of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from pictures import picture, save

import unremix
from unremix.domains.image.model import cut
from unremix.files.fingerprint import fingerprint
from unremix.training.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unremix.train(
        limit=16, batch_size=8, epochs=0, head_hidden=(8,), head_output=4, accelerator="cpu",
        runs=str(tmp_path_factory.mktemp("runs")), progress=False, threads=1,
    )  # fmt: skip


def identity(run: Run, data: Path) -> str:
    return fingerprint(cut(run, str(data), 4).identity)


def test_a_changed_picture_of_the_same_name_makes_other_data(run: Run, tmp_path: Path) -> None:
    for number in range(6):
        save(tmp_path / "one" / f"{number}.png")
    before = identity(run, tmp_path / "one")
    os.rename(tmp_path / "one", tmp_path / "moved")
    assert identity(run, tmp_path / "moved") == before
    changed = tmp_path / "moved" / "3.png"
    since = changed.stat().st_mtime_ns
    save(changed, picture(99))
    os.utime(changed, ns=(since, since + 1))
    assert identity(run, tmp_path / "moved") != before


@pytest.mark.parametrize("changed", ["images", "labels"])
def test_a_changed_array_makes_other_data(run: Run, tmp_path: Path, changed: str) -> None:
    arrays = {"images": np.zeros((6, 8, 8), dtype=np.uint8), "labels": np.arange(6) % 2}
    np.savez(tmp_path / "a.npz", **arrays)
    before = identity(run, tmp_path / "a.npz")
    assert identity(run, tmp_path / "a.npz") == before
    arrays[changed] = 1 - arrays[changed]
    np.savez(tmp_path / "a.npz", **arrays)
    assert identity(run, tmp_path / "a.npz") != before


def test_a_machine_that_does_not_see_the_files_says_so(run: Run, tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "one" / f"{number}.png")
    (piece,) = cut(run, str(tmp_path / "one"), 4).pieces
    os.rename(tmp_path / "one", tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"0\.png on .*storage that all nodes share"):
        piece.embed(run.encoder(), run.shape)
