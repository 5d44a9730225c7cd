"""``unremix reproduce graphs``: tables of finished runs, and an experiment in small."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unremix.cli import main
from unremix.data.graph.features import NodeEncoding
from unremix.domains.graph import GraphShape
from unremix.experiments import graphs
from unremix.experiments.graphs import average_ranks, data_rows, ranks, read_results
from unremix.experiments.reproduce import EXPERIMENTS, GraphsConfig
from unremix.training.config import TrainConfig
from unremix.training.run import Run

RECIPES = ("infograph", "infograph-hcl", "infograph-unremix")
ACCURACIES = {
    "MUTAG": {
        "infograph": [0.88, 0.86, 0.90], "infograph-hcl": [0.87, 0.87, 0.91],
        "infograph-unremix": [0.90, 0.89, 0.91],
    },
    "ENZYMES": {"infograph": [0.50, 0.52, 0.51], "infograph-hcl": [0.55, 0.53],
                "infograph-unremix": [0.50, 0.51, 0.50]},
}  # fmt: skip


def finish(folder: Path, recipe: str, seed: int, accuracy: float) -> None:
    """A run that has come to its end."""
    config = TrainConfig(recipe=recipe, seed=seed, name=f"{recipe}-{seed}")
    shape = GraphShape(NodeEncoding("degree", max_degree=3))
    run = Run.create(folder / "runs" / f"{recipe}-{seed}", config, shape)

    def measured(value: float) -> dict[str, Any]:
        return {"features": 96, "svm": {"value": value, "accuracies": [value - 0.1, value + 0.1]}}

    results = {
        "trained": measured(accuracy),
        "untrained": measured(0.4 + seed / 100),
        "summed node features": measured(0.3),
    }
    card = {"epoch": 200, "results": results}
    (run.path / "evaluation.json").write_text(json.dumps(card))
    mix = ",mix_similarity\n200,0.4" if recipe == "infograph-unremix" else "\n200"
    (run.path / "metrics.csv").write_text(f"epoch{mix}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for data, recipes in ACCURACIES.items():
        for recipe, values in recipes.items():
            for seed, value in enumerate(values):
                finish(tmp_path / data, recipe, seed, value)
    (tmp_path / "ENZYMES" / "runs" / "infograph-hcl-2").mkdir()  # begun, not finished
    return tmp_path


def test_tables_of_finished_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "reproduce", "graphs", "--train", "false", "--output", str(folder), "--seeds", "3",
        "--data", "[MUTAG,ENZYMES,PTC_MR]",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "MUTAG" in capsys.readouterr().out
    record = json.loads((folder / "results.json").read_text())
    assert len(record["runs"]) == 17
    first = record["runs"][0]
    assert first["data"] == "MUTAG"
    assert first["folds"] == pytest.approx([0.78, 0.98])
    shares = [run["mix"] for run in record["runs"] if run["recipe"] == RECIPES[2]]
    assert all(mix == {"similarity": 0.4} for mix in shares)
    assert record["command"].startswith("unremix reproduce graphs --train false")
    assert record["settings"]["train"] is False
    assert record["published"]["MUTAG"] == 0.8901
    table = (folder / "table.md").read_text()
    lines = {line.split(" | ")[0].strip("| "): line for line in table.splitlines()}
    differences = np.subtract(ACCURACIES["MUTAG"][RECIPES[2]], ACCURACIES["MUTAG"][RECIPES[0]])
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    shown = f"{100 * differences.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    assert shown in lines["MUTAG"]
    assert "88.0 ± 2.0 (3)" in lines["MUTAG"]
    assert "41.0 ± 1.0 (3)" in lines["MUTAG"]  # untrained, each seed once
    assert "89.0 |" in lines["MUTAG"]
    assert "54.0 ± 1.4 (2)" in lines["ENZYMES"]
    assert "average rank" in lines
    assert "After 200 epochs." in table
    assert "Put together by" in table
    assert "Unfinished: ENZYMES, where not every recipe has 3 runs" in table
    assert "Left out, for want of data or of runs: PTC_MR." in table
    for suffix in ("png", "svg"):
        assert (folder / f"graphs.{suffix}").stat().st_size > 1000


def test_tables_anew_keep_what_made_the_runs(folder: Path) -> None:
    made = {
        "command": "unremix reproduce graphs --epochs 7",
        "versions": {"unremix": "0.0.9", "torch": "2.4.0", "python": "3.10.1"},
        "settings": {"epochs": 7},
    }
    (folder / "results.json").write_text(json.dumps(made))
    arguments = ["--output", str(folder), "--seeds", "2", "--data", "[MUTAG]"]
    assert main(["reproduce", "graphs", "--train", "false", *arguments]) == 0
    record = json.loads((folder / "results.json").read_text())
    assert {key: record[key] for key in made} == made
    assert len(record["runs"]) == 6
    table = (folder / "table.md").read_text()
    assert "Made by\n\n```bash\nunremix reproduce graphs --epochs 7\n" in table
    assert "with unremix 0.0.9, torch 2.4.0, Python 3.10.1" in table


def test_what_is_refused_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> int:
        raise ValueError("expected the same options as before")

    monkeypatch.setattr(graphs, "train_runs", refuse)
    (folder / "results.json").write_text("{}")
    data = folder / "rings.jsonl"
    data.write_text("\n".join(['{"edges": [[0, 1], [1, 2]]}'] * 4))
    arguments = ["--data", f"[{data}]", "--output", str(folder), "--epochs", "3"]
    assert main(["reproduce", "graphs", *arguments]) == 1
    assert "the same options as before" in " ".join(capsys.readouterr().err.split())
    assert (folder / "results.json").read_text() == "{}"


def test_without_runs_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "graphs", "--train", "false", "--output", str(tmp_path / "none")]
    assert main(arguments) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "with a finished run, found none" in said
    assert "leave out --train false" in said


def test_differences_pair_the_seeds_that_both_have(folder: Path) -> None:
    results = read_results(folder / "ENZYMES", "ENZYMES", RECIPES, 3)
    (row,) = data_rows(results, RECIPES)
    found = row.differences["infograph-hcl"]
    assert found.count == 2
    assert found.mean == pytest.approx((0.05 + 0.01) / 2)


def test_average_ranks(folder: Path) -> None:
    results = [
        result
        for data in ACCURACIES
        for result in read_results(folder / data, data, RECIPES, 3)
    ]  # fmt: skip
    found = average_ranks(data_rows(results, RECIPES), RECIPES, 2)
    for recipe in RECIPES:
        expected = np.mean([
            stats.rankdata([-np.mean(values[r]) for r in RECIPES])[RECIPES.index(recipe)]
            for values in ACCURACIES.values()
        ])  # fmt: skip
        assert found[recipe] == pytest.approx(expected)
    values = [0.3, 0.5, 0.5, 0.1]
    assert (
        list(ranks(dict(enumerate(values))).values())
        == stats.rankdata(  # type: ignore[arg-type]
            np.negative(values)
        ).tolist()
    )
    assert average_ranks(data_rows(results[:3], RECIPES), RECIPES, 2) == {}
    assert average_ranks(data_rows(results, RECIPES), RECIPES, 4) == {}  # no set has them all


def test_missing_data_are_named_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "graphs", "--data", "[no-such-set]", "--output", "out"]
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert "no-such-set is left out: expected" in shown.out
    assert shown.err.count("\n") == 1
    assert "UNREMIX_DATA" in shown.err


def test_bad_options_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "graphs", "--output", str(tmp_path / "o")]
    assert main([*command, "--recipes", "[infograf]"]) == 1
    assert "did you mean 'infograph'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--sedes", "3"])
    assert "did you mean 'seeds'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "grapes"])
    assert capsys.readouterr().err.count("\n") == 1


def test_every_experiment_has_options_and_a_summary() -> None:
    assert EXPERIMENTS["graphs"].options is GraphsConfig
    for experiment in EXPERIMENTS.values():
        experiment.options()
        assert experiment.summary


@pytest.mark.slow
def test_an_experiment_in_small(tmp_path: Path) -> None:
    file = tmp_path / "shapes.jsonl"
    rows = []
    for number in range(36):
        size = 4 + number % 5
        ring = [[i, (i + 1) % size] for i in range(size)]
        star = [[0, i] for i in range(1, size)]
        rows.append({"edges": ring if number % 2 else star, "label": number % 2})
    file.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    arguments = [
        "reproduce", "graphs", "--data", f"[{file},no-such-set]", "--seeds", "1", "--epochs", "1",
        "--recipes", "[infograph,infograph-unremix]", "--batch_size", "16", "--jobs", "1",
        "--output", str(out), "--progress", "false", "--threads", "1",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "threads: 1\n" in (out / "shapes" / "comparison.yaml").read_text()
    record = json.loads((out / "results.json").read_text())
    assert [run["recipe"] for run in record["runs"]] == ["infograph", "infograph-unremix"]
    assert all(len(run["folds"]) == 10 for run in record["runs"])
    assert all(math.isfinite(run["accuracy"]) for run in record["runs"])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("evaluation.json")}
    assert main(arguments) == 0  # nothing is done twice
    assert {path: path.stat().st_mtime_ns for path in out.rglob("evaluation.json")} == before
