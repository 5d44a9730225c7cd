"""The committed studies can be read, and the committed tables follow from the committed runs."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from rich.console import Console

from unremix.experiments.reproduce import reproduce
from unremix.experiments.study import read_study

ROOT = Path(__file__).parents[2]
REPRODUCED = ROOT / "reproductions" / "cpu"
STUDIES = ROOT / "studies"
GROUPS = yaml.safe_load((STUDIES / "tiny-imagenet-20.yaml").read_text())


@pytest.mark.parametrize("name", ["weighting", "negatives"])
def test_a_study_can_be_read(name: str) -> None:
    """Every option of every arm exists, and every arm of best_of has an earlier stage."""
    study = read_study(STUDIES / f"{name}.yaml")
    assert study.core_hours is not None
    assert study.core_hours <= 30


def test_the_groups_hold_each_class_once() -> None:
    classes = Counter(one for group in GROUPS.values() for one in group)
    assert len(GROUPS) == 20
    assert len(classes) == 100
    assert set(classes.values()) == {1}


def test_images_are_put_into_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    from coarse_labels import group_of_class, regroup  # type: ignore[import-not-found]

    with ZipFile(tmp_path / "old.zip", "w") as old:
        for split, kind in (("train", "n02190166"), ("train", "n02231487"), ("test", "n02099601")):
            old.writestr(f"folder/{split}/{kind}/1.jpg", f"{split} {kind}")
        old.writestr("folder/README", "no image")
    assert regroup(tmp_path / "old.zip", tmp_path / "new.zip", group_of_class()) == 3
    with ZipFile(tmp_path / "new.zip") as new:
        assert {name: new.read(name).decode() for name in new.namelist()} == {
            "test/dogs/n02099601-1.jpg": "test n02099601",
            "train/insects/n02190166-1.jpg": "train n02190166",
            "train/insects/n02231487-1.jpg": "train n02231487",
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seeds"),
    [("table1", 3), ("table2", 3), ("table3", 3), ("table5", 3), ("curves", 3), ("mix", 3),
     ("diversity", 3), ("graphs", 5)],
)  # fmt: skip
def test_tables_follow_from_the_runs(
    name: str, seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From results.jsonl alone, without data, ``reproduce`` writes what is committed."""
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    shutil.copy(REPRODUCED / "results.jsonl", tmp_path)
    quiet = Console(file=io.StringIO())
    assert reproduce(name, scale="cpu", seeds=seeds, output=str(tmp_path), console=quiet) == 0
    committed, made = REPRODUCED / name, tmp_path / name
    assert (made / "table.csv").read_bytes() == (committed / "table.csv").read_bytes()
    tables = [(folder / "table.md").read_text() for folder in (made, committed)]
    assert tables[0].partition("\nMade by\n")[0] == tables[1].partition("\nMade by\n")[0]
