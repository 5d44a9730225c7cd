"""``unremix reproduce sentences``: tables of finished runs, and what is asked to be trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unremix.cli import main
from unremix.domains.sentence import SentenceShape
from unremix.experiments import record, sentences
from unremix.experiments.plan import CompareConfig
from unremix.experiments.reproduce import EXPERIMENTS, SentencesConfig
from unremix.experiments.sentences import COLUMNS, PAPER, TASKS, reproduce, row_names
from unremix.training.config import TrainConfig
from unremix.training.run import Run

RECIPES = ("quickthought", "quickthought-hcl", "quickthought-unremix")
TREC = {
    "quickthought": [0.60, 0.62, 0.64],
    "quickthought-hcl": [0.58, 0.60],
    "quickthought-unremix": [0.70, 0.69, 0.71],
}


def finish(folder: Path, recipe: str, seed: int, trec: float) -> None:
    """A run that has come to its end."""
    config = TrainConfig(recipe=recipe, seed=seed, name=f"{recipe}-{seed}")
    shape = SentenceShape(("the",), (1,), 0)
    run = Run.create(folder / "runs" / f"{recipe}-{seed}", config, shape)

    def measured(value: float) -> dict[str, Any]:
        return {
            "features": 4,
            "TREC": {"accuracy": {"value": value}},
            "SICK": {"pearson": {"value": value - 0.1}, "mse": {"value": 1.0}},
        }

    results = {"trained": measured(trec), "untrained": measured(0.4 + seed / 100)}
    card = {"epoch": 1, "step": 750, "results": results}
    (run.path / "evaluation.json").write_text(json.dumps(card))
    mix = ",mix_similarity\n1,0.4" if recipe == "quickthought-unremix" else "\n1"
    (run.path / "metrics.csv").write_text(f"epoch{mix}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for recipe, values in TREC.items():
        for seed, value in enumerate(values):
            finish(tmp_path / "gru", recipe, seed, value)
    for seed in range(2):
        finish(tmp_path / "bow", "quickthought", seed, 0.5 + seed / 100)
    (tmp_path / "gru" / "runs" / "quickthought-hcl-2").mkdir()  # begun, not finished
    (tmp_path / "downstream" / "TREC").mkdir(parents=True)
    return tmp_path


def asked(folder: Path, *further: str) -> list[str]:
    return [
        "reproduce", "sentences", "--output", str(folder), "--seeds", "3", "--senteval",
        str(folder / "downstream"), *further,
    ]  # fmt: skip


def test_tables_of_finished_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(folder, "--train", "false")) == 0
    assert "quickthought-unremix, paper" in capsys.readouterr().out
    record = json.loads((folder / "results.json").read_text())
    # 8 runs, one untrained encoder for each of 3 seeds, 2 bags of words, trained and untrained.
    assert len(record["runs"]) == 8 + 3 + 4
    assert record["paper"]["quickthought"]["TREC.accuracy"] == 66.0
    assert [run["mix"] for run in record["runs"] if run["name"] == RECIPES[2]] == [
        {"similarity": 0.4}
    ] * 3
    table = (folder / "table.md").read_text()
    values, differences = table.split("Differences to quickthought:")

    def cells(part: str, name: str) -> list[str]:
        (line,) = [line for line in part.splitlines() if line.startswith(f"| {name} |")]
        return [cell.strip() for cell in line.strip("| ").split("|")][1:]

    trec = list(COLUMNS).index("TREC.accuracy")
    deviation = np.std(TREC["quickthought"], ddof=1)
    assert cells(values, "quickthought")[trec] == f"62.0 ± {100 * deviation:.1f}"
    assert cells(values, "quickthought")[1] == "–"  # CR was not measured
    assert cells(values, "GRU, untrained")[trec] == "41.0 ± 1.0"
    assert "| quickthought-hcl (2 of 3 seeds) |" in values
    assert cells(values, "quickthought-hcl, paper") == [str(v) for v in PAPER["quickthought-hcl"]]
    interval = stats.ttest_rel(TREC["quickthought-unremix"], TREC["quickthought"])
    low, high = interval.confidence_interval()
    assert cells(differences, "quickthought-unremix")[trec] == (
        f"+8.0 [{100 * low:+.1f}, {100 * high:+.1f}]"
    )
    for name in ("sentences.png", "sentences.svg"):
        assert (folder / name).stat().st_size > 1000


def test_rows_are_recipes_and_then_floors(folder: Path) -> None:
    results = sentences.read_results(folder / "gru", RECIPES, 3, {"untrained": "GRU, untrained"})
    assert row_names(results, RECIPES) == [*RECIPES, "GRU, untrained"]
    assert sentences.read_results(folder / "none", RECIPES, 3, {}) == []


def test_what_is_trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[CompareConfig, TrainConfig]] = []

    class Nothing:
        failed: tuple[str, ...] = ("one",)

    def pretend(config: CompareConfig, train: TrainConfig, **_: Any) -> Nothing:
        calls.append((config, train))
        return Nothing()

    monkeypatch.setattr(record, "compare", pretend)
    assert main(asked(folder, "--limit", "1000", "--size", "50", "--progress", "false")) == 1
    assert (folder / "results.json").exists()  # a failed run does not take the others with it
    (gru, gru_train), (bow, bow_train) = calls
    assert (gru.recipes, gru.seeds, gru.reference) == (",".join(RECIPES), 3, "quickthought")
    assert bow.recipes == "quickthought"
    assert (gru_train.sentence.encoder, bow_train.sentence.encoder) == ("gru", "bow")
    for train in (gru_train, bow_train):
        assert (train.limit, train.epochs, train.data) == (1000, 1, "books")
        assert (train.sentence.words, train.sentence.units) == (50, 50)
        assert train.sentence.tasks == TASKS


def test_defaults() -> None:
    config = SentencesConfig()
    assert EXPERIMENTS["sentences"].options is SentencesConfig
    assert (config.size, config.limit, config.seeds, config.epochs) == (300, 300_000, 3, 1)
    assert len(COLUMNS) == 7
    assert all(len(row) == 7 for row in PAPER.values())


def test_what_cannot_be(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = SentencesConfig(
        output=str(tmp_path / "none"), train=False, senteval=str(folder / "downstream"),
        progress=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="at least one finished run"):
        reproduce(none)
    for further, message in (
        (["--recipes", "[quickthought,quickthougt-hcl]"], "quickthought-hcl"),
        (["--senteval", "no-such-folder"], "no-such-folder"),
    ):
        assert main(["reproduce", "sentences", *further, "--output", str(tmp_path / "o")]) == 1
        shown = capsys.readouterr().err
        assert message in shown
        assert shown.count("\n") == 1
        assert not (tmp_path / "o").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # four trainings, each a process
def test_an_experiment_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "TASKS", ("TREC",))
    tasks = tmp_path / "downstream" / "TREC"
    tasks.mkdir(parents=True)
    marks = {"DESC": "why", "HUM": "who", "LOC": "where", "NUM": "many", "ENTY": "what",
             "ABBR": "short"}  # fmt: skip
    for name, count in (("train_5500.label", 120), ("TREC_10.label", 30)):
        kinds = list(marks) * (count // 6)
        lines = [f"{kind}:kind {marks[kind]} is it {n % 7} ?\n" for n, kind in enumerate(kinds)]
        (tasks / name).write_text("".join(lines))
    out = tmp_path / "out"
    arguments = [
        "reproduce", "sentences", "--data", "pydocs", "--limit", "900", "--size", "8", "--seeds",
        "1", "--recipes", "[quickthought,quickthought-unremix]", "--senteval", str(tasks.parent),
        "--output", str(out), "--jobs", "1", "--threads", "1", "--progress", "false",
        "--lr", "0.002",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert Run(out / "gru" / "runs" / "quickthought-0").config.lr == 0.002
    record = json.loads((out / "results.json").read_text())
    names = [run["name"] for run in record["runs"]]
    assert names == [
        "quickthought", sentences.RANDOM, "quickthought-unremix", *sentences.BAG.values()
    ]  # fmt: skip
    assert all(0 <= run["values"]["TREC.accuracy"] <= 1 for run in record["runs"])
    assert [run["steps"] > 0 for run in record["runs"]] == [True, False, True, True, False]
    # A run that is lost is made again, to the same figures; the others stay as they are.
    lost = out / "gru" / "runs" / "quickthought-unremix-0"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("evaluation.json")}
    shutil.rmtree(lost)
    assert main(arguments) == 0
    after = {path: path.stat().st_mtime_ns for path in out.rglob("evaluation.json")}
    assert {path for path in before if before[path] != after[path]} == {lost / "evaluation.json"}
    assert json.loads((out / "results.json").read_text())["runs"] == record["runs"]
