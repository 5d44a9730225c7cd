"""Predictions from few labels: the table, the page, and what is wrong with a file of labels."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

import unremix
from unremix.cli import main

NAMES = ["=1+1.png", "-dash.png", "@at.png", "plain.png", "<b>bold</b>.png"]


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty items of three classes, some of their names hostile."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    rows = np.eye(3)[labels] @ rng.normal(size=(3, 8)) + 0.3 * rng.normal(size=(60, 8))
    path = tmp_path_factory.mktemp("classify") / "x.npz"
    names = [*NAMES, *(f"{number}.png" for number in range(5, 60))]
    np.savez(path, embeddings=rows.astype(np.float32), names=np.array(names))
    return path


def labels_file(folder: Path, count: int = 21, heading: str = "name,label\n") -> Path:
    names = [*NAMES, *(f"{number}.png" for number in range(5, 60))]
    path = folder / "labels.csv"
    lines = [f"{names[n]},{'abc'[n % 3]}\n" for n in range(count)]
    path.write_text(heading + "".join(lines), encoding="utf-8-sig")
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_table_is_right_and_runs_no_formula(
    embeddings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predictions.csv"
    labels = labels_file(tmp_path)
    words = ["classify", str(embeddings), "--labels", str(labels), "-o", str(out)]
    assert main(words) == 0
    rows = rows_of(out)
    assert [row["name"] for row in rows[:4]] == ["'=1+1.png", "'-dash.png", "'@at.png", "plain.png"]
    assert [row["predicted"] for row in rows] == ["abc"[n % 3] for n in range(60)]
    assert [row["label"] for row in rows] == ["abc"[n % 3] if n < 21 else "" for n in range(60)]
    for row in rows:
        chances = [float(row[f"probability of {name}"]) for name in "abc"]
        assert sum(chances) == pytest.approx(1, abs=1e-4)
        assert float(row["probability"]) == max(chances)
    # The least certain come first; labeled items are not among them.
    order = sorted((int(row["label_next"]), row) for row in rows if row["label_next"])
    assert [n for n, _ in order] == list(range(1, 40))
    margins = [
        np.sort([float(row[f"probability of {name}"]) for name in "abc"]) for _, row in order
    ]
    gaps = [one[-1] - one[-2] for one in margins]
    np.testing.assert_allclose(gaps, sorted(gaps), atol=2e-6)
    shown = capsys.readouterr().out
    listed = shown.partition("to label next:\n")[2].splitlines()[:10]
    for (_, row), gap, line in zip(order, gaps, listed, strict=False):
        assert float(row["margin"]) == pytest.approx(gap, abs=2e-6)
        second, first = sorted("abc", key=lambda name: float(row[f"probability of {name}"]))[1:]
        assert line == f"  {row['name']}: {first} {gap:.1%} ahead of {second}"
        assert f"{first} {gap:.1%} ahead of {second}" in out.with_suffix(".html").read_text()
    page = out.with_suffix(".html").read_text()
    assert "<b>bold" not in page
    assert "Accuracy 100.00 % [84.54, 100.00] on labeled items that it had not seen" in shown
    assert "most frequent class is right in 33.3 %" in shown
    # The names of its own table, as they are written for spreadsheets, are read again.
    again = tmp_path / "again.csv"
    again.write_text("".join(f"{row['name']}\t{row['predicted']}\n" for row in rows))
    found = unremix.classify(again, str(embeddings))
    assert (found.given >= 0).all()
    assert found.label_next == []
    assert found.predicted == [row["predicted"] for row in rows]


def test_a_label_that_is_wrong_is_named(embeddings: Path, tmp_path: Path) -> None:
    names = np.load(embeddings)["names"].tolist()
    given = {name: "abc"[n % 3] for n, name in enumerate(names)} | {names[30]: "b"}
    found = unremix.classify(given, str(embeddings), output=tmp_path / "p.csv")
    assert found.contradicted == [30]
    assert (tmp_path / "p.csv").exists()
    assert (
        "1 label of yours differs from what it surely predicts: look whether it is"
        in (found.summary()[-1])
    )
    assert "differ from a sure prediction" in (tmp_path / "p.html").read_text()


def test_near_duplicates_in_other_folds_are_counted(tmp_path: Path) -> None:
    """Copies of items that mean nothing are predicted by their copies, and said to be."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 40))
    twice = np.concatenate([rows, rows[:24] + 1e-4 * rng.normal(size=(24, 40))])
    classes = rng.integers(0, 2, 60)
    given = dict(enumerate("ab"[label] for label in [*classes, *classes[:24]]))
    names = [f"item {number}" for number in given]
    np.savez(tmp_path / "x.npz", embeddings=twice.astype(np.float32), names=names)
    found = unremix.classify(dict(zip(names, given.values(), strict=True)), str(tmp_path / "x.npz"))
    fold = np.empty(84, dtype=int)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    truth = [*classes, *classes[:24]]
    for number, (_, tested) in enumerate(folds.split(truth, truth)):
        fold[tested] = number
    leaked = np.zeros(84, dtype=bool)
    for n in range(24):
        leaked[[n, 60 + n]] = fold[n] != fold[60 + n]
    np.testing.assert_array_equal(found.leaked, leaked)
    (said,) = [one for one in found.summary() if "near-duplicate in another fold" in one]
    right = (found.found.held_out.argmax(1) == truth)[~leaked]
    assert said.startswith(f"{leaked.sum()} of these items")
    assert f"{100 * right.mean():.2f} % [" in said
    assert right.mean() + 0.05 < found.accuracy.value


def test_labels_that_are_no_text_are_refused(embeddings: Path) -> None:
    for label in (0, None, float("nan")):
        with pytest.raises(TypeError, match=f"got {label!r} for '5.png'"):
            unremix.classify({"5.png": label}, str(embeddings))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("plain.png,a\nplane.png,b\n6.png,a\nnone,a\n", "'plane.png' in line 2 and 1 more"),
        ("plain.png,a\n6.png,b\nplain.png,b\n", "'plain.png' in lines 1 and 3; leave one"),
        ("plain.png,a\n6.png,a\n", "at least two classes, got 2 of a"),
        ("5.png,a\n6.png,a\n7.png,a\n8.png,b\n", "b has 1; label more of them"),
        ("5.png,a\n6.png\n", "a name and a label in line 2 of"),
        ("", "at least two classes, got 0 of none"),
    ],
)
def test_what_is_wrong_with_labels(
    embeddings: Path, tmp_path: Path, lines: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "labels.csv", tmp_path / "predictions.csv"
    path.write_text(lines)
    assert main(["classify", str(embeddings), "--labels", str(path), "-o", str(out)]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()
