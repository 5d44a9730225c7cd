"""Comparisons: what is run, that it resumes, and what the table says."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_training import value_of
from hypothesis import given
from hypothesis import strategies as st
from launching import wait_until
from rich.console import Console
from scipy import stats
from small_runs import TINY

import unremix
from unremix.cli import commands, main
from unremix.cli.parser import parse
from unremix.console.printing import to_csv
from unremix.domains import DOMAINS
from unremix.domains.options import TrainConfig, make_config, nested_options
from unremix.evaluation.card import measures_of
from unremix.evaluation.statistics import paired_difference, summarize
from unremix.experiments import compare as compare_module
from unremix.experiments import executors, tables
from unremix.experiments.compare import CompareConfig, FinishedComparison, compare, path_for
from unremix.experiments.executors import Local, share_out
from unremix.experiments.laboratory import time_left
from unremix.experiments.plan import (
    Job,
    Plan,
    chosen_recipes,
    command_of,
    make_plan,
    shared_options,
    with_budget,
)
from unremix.experiments.results import Folder, Record, Results
from unremix.files.atomic_files import try_lock
from unremix.recipes import RECIPES
from unremix.report.figures import learning_curves
from unremix.training.run import Run, config_from_yaml

TESTS = Path(__file__).parents[1]
pytestmark = [pytest.mark.xdist_group("compare"), pytest.mark.usefixtures("heard")]

values = st.floats(-100, 100)


# Statistics


@given(st.lists(st.tuples(values, values), min_size=2, max_size=8))
def test_statistics_equal_numpy_and_scipy(pairs: list[tuple[float, float]]) -> None:
    x, y = map(list, zip(*pairs, strict=True))
    found = summarize(x)
    assert found.count == len(x)
    assert found.mean == pytest.approx(np.mean(x), abs=1e-9)
    assert found.deviation == pytest.approx(np.std(x, ddof=1), abs=1e-9)
    difference = paired_difference(x, y)
    d = np.subtract(x, y)
    half = stats.sem(d) * stats.t.ppf(0.975, len(d) - 1)
    assert difference.mean == pytest.approx(d.mean(), abs=1e-9)
    if difference.low is None:  # no spread to be told
        assert half <= 1e-9
        return
    assert difference.low == pytest.approx(d.mean() - half, abs=1e-7)
    assert difference.high == pytest.approx(d.mean() + half, abs=1e-7)


def test_statistics_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1; t of 2 degrees of freedom is 4.3027.
    found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.count, found.mean) == (3, 2.0)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    narrow = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], confidence=0.5)
    assert narrow.high == pytest.approx(2 + 0.816497 / math.sqrt(3), abs=1e-6)
    interval = stats.ttest_rel([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_one_seed_has_no_spread() -> None:
    assert summarize([0.5]).deviation is None
    alone = paired_difference([0.5], [0.25])
    assert (alone.mean, alone.low, alone.high) == (0.25, None, None)
    # One image more each time: an interval of no width would say that they differ for certain.
    equal = paired_difference([0.7, 0.4, 0.8], [0.6, 0.3, 0.7])
    assert (equal.low, equal.high) == (None, None)
    assert equal.mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarize([]), "one finite value or more"),
        (lambda: summarize([1.0, math.nan]), "finite"),
        (lambda: paired_difference([1.0], [1.0, 2.0]), "got 1 and 2"),
        (
            lambda: paired_difference([1.0], [1.0], confidence=1.0),
            "confidence to be a number above 0, below 1",
        ),
    ],
)
def test_statistics_refuse(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# The table


def outcome(recipe: str, seed: int, knn: float, **others: float) -> Record:
    results = {"trained": {"knn": {"value": knn, "count": 360}}}
    results |= {name: {"knn": {"value": value}} for name, value in others.items()}
    return Record("", recipe, seed, epochs=3, loss=1.0, results=results)


def test_differences_pair_equal_seeds() -> None:
    records = [
        outcome("a", 0, 0.50, untrained=0.30), outcome("a", 1, 0.60, untrained=0.40),
        Record("", "a", 2, failure="it broke"),
        outcome("b", 0, 0.52, untrained=0.30), outcome("b", 1, 0.63, untrained=0.40),
        outcome("b", 2, 0.99, untrained=0.80),
        Record("", "c", 0, failure="it broke"),
    ]  # fmt: skip
    a, b, c, untrained = tables.table_rows(records, reference="a")
    assert (a.runs, a.failed, b.runs, b.failed, c.runs, c.failed) == (2, 1, 3, 0, 0, 1)
    assert a.cells["knn"].difference is None
    assert b.cells["knn"].summary.mean == pytest.approx((0.52 + 0.63 + 0.99) / 3)
    difference = b.cells["knn"].difference
    assert difference is not None
    assert difference.count == 2  # the third has no partner
    assert difference.mean == pytest.approx(0.025)
    half = 12.7062047 * 0.005  # t of 1 degree of freedom, times s / √2 of 0.02 and 0.03
    assert difference.high == pytest.approx(0.025 + half, abs=1e-6)
    assert c.cells == {}
    assert untrained.name == "untrained encoder"
    assert untrained.runs == 3  # seeds, not runs
    assert untrained.cells["knn"].summary.mean == pytest.approx(0.5)
    (grid,) = tables.grids(
        [a, b, c, untrained], tables.measures_among(records), reference="a", epochs=True
    )
    assert grid.headings == ["recipe", "runs", "epochs", "kNN, %", "kNN − a"]
    assert grid.lines[0] == ["a", "2 (1 failed)", "3", "55.0 ± 7.1", "reference"]
    assert grid.lines[1][3:] == ["71.3 ± 24.6", "+2.5 [-3.9, +8.9] (n=2)"]
    assert grid.lines[2] == ["c", "0 (1 failed)", "–", "–", "–"]


def test_one_seed_shows_dashes() -> None:
    records = [outcome("a", 0, 0.5), outcome("b", 0, 0.75)]
    rows = tables.table_rows(records, reference="a")
    (grid,) = tables.grids(rows, tables.measures_among(records), reference="a")
    assert grid.lines == [["a", "1", "50.0 ± –", "reference"], ["b", "1", "75.0 ± –", "+25.0 [–]"]]


def test_cards_of_any_domain() -> None:
    """Measures are found by their form; many make two tables; not all are shares."""
    card = {
        "sick": {"pearson": {"value": 0.7, "percent": False}, "mse": {"value": 1.5}},
        "mrpc": {"accuracy": {"value": 0.7, "count": 20_000}, "f1": {"value": 0.8}},
        "mr": {"value": 1, "folds": [1, 1]}, "broken": {"value": math.nan}, "words": "none",
    }  # fmt: skip
    measures = measures_of(card)
    assert set(measures) == {"sick.pearson", "sick.mse", "mrpc.accuracy", "mrpc.f1", "mr"}
    records = [
        Record(
            "", recipe, seed, results={"trained": measures, "bag of words": {"mr": {"value": 0.5}}}
        )
        for recipe in ("x", "y")
        for seed in (0, 1)
    ]
    columns = {measure.path: measure for measure in tables.measures_among(records)}
    assert columns["mrpc.accuracy"].number(0.7) == "70.00"  # 20,000 samples carry two decimals
    assert columns["mrpc.f1"].number(0.8) == "80.0"
    assert columns["sick.pearson"].number(0.7) == "0.700"
    assert columns["sick.mse"].number(1.5) == "1.500"
    assert columns["mr"].number(-0.0001) == "0.0"
    signed = [columns["mr"].number(value, sign=True) for value in (-0.0001, 0.0001, 0.0, -0.0)]
    assert signed == ["-0.0", "+0.0", "+0.0", "+0.0"]
    rows = tables.table_rows(records, reference="x")
    assert [row.name for row in rows] == ["x", "y", "bag of words"]
    first, second = tables.grids(rows, list(columns.values()), reference="x")
    assert len(first.headings) == len(second.headings) == 7
    assert "mrpc f1, %" in first.headings
    assert "mrpc f1 − x" in second.headings


def test_csv_holds_full_precision_and_markdown_is_a_table() -> None:
    records = [outcome("a|b", 0, 1 / 3), outcome("a|b", 1, 2 / 3, untrained=0.1)]
    rows = tables.table_rows(records, reference="a|b")
    (first, second) = csv.DictReader(io.StringIO(to_csv(tables.row_records(rows))))
    assert float(first["knn.mean"]) == 0.5
    assert float(first["knn.deviation"]) == pytest.approx(np.std([1 / 3, 2 / 3], ddof=1), rel=1e-15)
    assert first["knn.low"] == ""
    assert float(second["knn.difference"]) == pytest.approx(0.1 - 2 / 3)
    runs = list(csv.DictReader(io.StringIO(to_csv(tables.run_records(records)))))
    assert [float(run["knn"]) for run in runs] == [1 / 3, 2 / 3]
    assert [run["untrained.knn"] for run in runs] == ["", "0.1"]
    (grid,) = tables.grids(rows, tables.measures_among(records), reference="a|b")
    lines = grid.to_markdown().splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}


# The plan


def test_the_plan() -> None:
    plan = make_plan(CompareConfig("simclr,hcl", seeds=2), replace(TINY, recipe="debiased"))
    assert [job.name for job in plan.jobs] == ["simclr-0", "hcl-0", "simclr-1", "hcl-1"]
    assert plan.reference == "simclr"
    assert make_plan(CompareConfig("simclr,hcl", "hcl"), TINY).reference == "hcl"
    assert set(chosen_recipes("all", "image")) <= set(RECIPES)
    assert {"simclr", "hcl"} <= set(chosen_recipes("all", "image"))
    for arguments, message in (
        (("simcrl",), "did you mean 'simclr'"),
        ((" , ",), "commas between"),
        (("simclr", "hcl"), "reference among simclr, got 'hcl'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_plan(CompareConfig(*arguments), TINY)
    for name in ("seeds", "jobs"):
        with pytest.raises(ValueError, match=f"{name} to be at least 1"):
            CompareConfig("simclr", **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 1000 seeds, got 1001"):
        CompareConfig("simclr", seeds=1001)


def test_the_plan_extends_an_earlier_one() -> None:
    earlier = {"recipes": ["simclr", "hcl"], "seeds": 3, "reference": "hcl",
               "train": shared_options(TINY)}  # fmt: skip
    plan = make_plan(CompareConfig("debiased", seeds=2), TINY, earlier)
    assert (plan.recipes, plan.seeds, plan.reference) == (("simclr", "hcl", "debiased"), 3, "hcl")
    assert make_plan(CompareConfig("hcl", "simclr", 5), TINY, earlier).seeds == 5
    other = replace(TINY, lr=0.5, loss=dict(hardness=2.0), threads=2, seed=7)
    with pytest.raises(ValueError, match=r"0\.001 there, 0\.5 here; loss\.hardness None") as told:
        make_plan(CompareConfig("hcl"), other, earlier)
    assert "threads" not in str(told.value)
    # An option that is younger than the folder counts as it was: at its default.
    del earlier["train"]["clip"]  # type: ignore[attr-defined]
    make_plan(CompareConfig("hcl"), TINY, earlier)
    with pytest.raises(ValueError, match=r"clip None there, 1\.0 here"):
        make_plan(CompareConfig("hcl"), replace(TINY, clip=1.0), earlier)
    graphs = replace(TrainConfig(domain="graph"), epochs=1)
    earlier = {**earlier, "recipes": ["infograph"], "reference": "infograph",
               "train": {**shared_options(graphs)}}  # fmt: skip
    del earlier["train"]["graph.repeats"]  # type: ignore[attr-defined]
    make_plan(CompareConfig("infograph"), graphs, earlier)


def test_budgets() -> None:
    default = TrainConfig()
    for text in ("20", "20 epochs", " 20epochs "):
        assert with_budget(default, text) == replace(default, epochs=20)
    assert with_budget(TINY, None) == with_budget(TINY, "epochs") == with_budget(TINY, "1 epoch")
    for unit in ("epochs", "hours"):
        with pytest.raises(ValueError, match=r"budget of at most 1e\+12, got"):
            with_budget(default, f"{'9' * 400} {unit}")
    with pytest.raises(ValueError, match="--budget or --epochs, got '20' and 1"):
        with_budget(TINY, "20")
    graphs = TrainConfig(domain="graph")  # 20 epochs by default
    assert with_budget(graphs, "5 epochs").epochs == 5
    for text in ("time", "0 minutes", "1.5 epochs", "-3", "ten minutes"):
        with pytest.raises(ValueError, match="such as '20 epochs' or '10 minutes'"):
            with_budget(default, text)


@pytest.mark.parametrize(
    ("words", "epochs", "minutes"),
    [
        (["--budget", "20 epochs"], 20, None),
        (["--budget", "20 epochs", "--epochs", "20"], 20, None),
        (["--budget", "10 minutes"], 400, 10.0),
        (["--budget", "10 minutes", "--epochs=7"], 7, 10.0),
        (["--budget", "epochs"], 400, None),
        (["--budget", "20", "--epochs", "30"], None, None),
        (["--budget", "20", "--epochs=100"], None, None),  # though it is the default
    ],
)
def test_a_budget_wins_over_a_file_but_not_over_the_command_line(
    words: list[str], epochs: int | None, minutes: float | None,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    planned = []

    def kept(config: CompareConfig, train: TrainConfig, *_: object, **__: object) -> int:
        planned.append(make_plan(config, train).train)
        return 0

    monkeypatch.setattr(commands, "compare", kept)
    code = main(["compare", "--config", "cifar10", "--recipes", "simclr,hcl", *words])
    if epochs is None:
        assert code == 1
        assert "--budget or --epochs, got '20' and" in capsys.readouterr().err
    else:
        assert code == 0
        assert [(train.epochs, train.max_minutes) for train in planned] == [(epochs, minutes)]
        assert planned[0].backbone == "resnet50"


def test_budgets_of_time() -> None:
    for text, minutes in (("10 minutes", 10), ("30 seconds", 0.5), ("1.5 hours", 90)):
        train = with_budget(TrainConfig(epochs=7), text)
        assert train.epochs == 7
        assert Plan(("simclr",), 1, "simclr", train).minutes == pytest.approx(minutes)


def test_the_machine_is_shared_out() -> None:
    shares = [share_out(runs, cores=8) for runs in (1, 3, 100)]
    assert [(share.jobs, share.threads) for share in shares] == [(1, 8), (3, 2), (8, 1)]
    assert share_out(9, cores=8, jobs=2).threads == 4
    assert share_out(9, cores=8, threads=3).jobs == 2
    assert share_out(9, cores=8, jobs=20).threads == 1
    share = share_out(9, cores=8, gpus=["2", "5", "7"], jobs=4)
    assert [share.environment(place)["CUDA_VISIBLE_DEVICES"] for place in range(4)] == list("2572")
    share = share_out(9, cores=8, gpus=["0", "1", "2", "3", "4"], processes=2)
    assert (share.jobs, share.threads, share.gpus) == (2, 2, (("0", "1"), ("2", "3")))
    assert "CUDA_VISIBLE_DEVICES" not in share_out(2, cores=1).environment(0)


def test_every_run_gets_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = Plan(("simclr", "hcl"), 2, "simclr", replace(TINY, accelerator="auto"))
    assert Local().share(plan.jobs, None).gpus == (("0",), ("1",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,6")
    assert Local().share(plan.jobs, None).gpus == (("3",), ("6",))
    assert Local().share(replace(plan, train=TINY).jobs, 2).gpus == ()  # on the CPU


@given(st.floats(0, 3), st.floats(0.1, 3), st.floats(0.1, 9), st.floats(0, 5))
def test_the_time_left_at_a_constant_pace(
    before: float, done: float, pace: float, rest: float
) -> None:
    now = before + done
    left = time_left(done / pace, before, now, now + rest)
    assert left == pytest.approx(rest / pace, abs=1e-6)
    assert time_left(5.0, before, before, now) is None


def test_the_options_fit_on_one_command_line() -> None:
    """Of the comparison and of the training; the command in the table says the same again."""
    train = replace(
        TINY, precision="32-true", threads=None, loss=dict(mix=(0.5, 0.2, 0.3)), data="a b"
    )
    plan = make_plan(CompareConfig("hcl,simclr", "simclr", 2), train)
    words = shlex.split(command_of(plan, "some where"))
    assert words[:2] == ["unremix", "compare"]
    options = parse("compare", words[2:])
    names = {field.name for field in fields(CompareConfig)} & options.keys()
    config = CompareConfig(**{name: options.pop(name) for name in names})
    assert config == CompareConfig("hcl,simclr", "simclr", 2, output="some where")
    assert make_config(nested_options(options)) == train


# Processes; most tests have a stand-in for the training


def run_compare(
    folder: Path, recipes: str = "simclr,hcl", console: Console | None = None, **options: Any
) -> FinishedComparison:
    own = {field.name for field in fields(CompareConfig)}
    config = {"seeds": 2, "jobs": 2, "output": str(folder), "progress": False}
    config |= {name: value for name, value in options.items() if name in own}
    shared = {name: value for name, value in options.items() if name not in own}
    train = replace(TINY, epochs=2, **shared)
    return compare(CompareConfig(recipes, **config), train, console=console)  # type: ignore[arg-type]


def starts(folder: Path, name: str) -> int:
    return (folder / "logs" / f"{name}.txt").read_text().count("begins at epoch")


def results_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return {name: record[name] for name in ("runs", "table", "reference", "protocol")}


def test_a_comparison_and_its_files(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "learning_curves", learning_curves)
    folder, printed = tmp_path / "c", io.StringIO()
    found = run_compare(folder, console=Console(file=printed))
    assert found.path == folder
    assert not found.failed
    assert [(o.row, o.seed) for o in found.records] == [
        ("simclr", 0), ("simclr", 1), ("hcl", 0), ("hcl", 1),
    ]  # fmt: skip
    # Every figure of the table, from the stand-in's own formula.
    knn = {r: [value_of(r, seed, "knn") for seed in (0, 1)] for r in ("simclr", "hcl")}
    simclr, hcl, untrained = found.rows
    assert simclr.cells["knn"].summary.mean == pytest.approx(np.mean(knn["simclr"]))
    assert hcl.cells["knn"].summary.deviation == pytest.approx(np.std(knn["hcl"], ddof=1))
    difference = hcl.cells["knn"].difference
    assert difference is not None
    interval = stats.ttest_rel(knn["hcl"], knn["simclr"]).confidence_interval()
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert untrained.cells["linear.top1"].summary.mean == pytest.approx(
        np.mean([value_of(seed, "top1") for seed in (0, 1)])
    )
    for name in ("results.csv", "results.json", "table.csv", "table.md", "curves.png",
                 "curves.svg", "comparison.yaml"):  # fmt: skip
        assert (folder / name).stat().st_size > 100
    runs = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [float(run["knn"]) for run in runs] == knn["simclr"] + knn["hcl"]
    text = (folder / "table.md").read_text()
    assert f"| {100 * np.mean(knn['hcl']):.1f} ± " in text
    assert "unremix compare --recipes simclr,hcl --seeds 2" in text
    assert f"unremix {unremix.__version__}" in text
    assert "- kNN: five neighbors" in text
    assert "Two seeds cannot tell" in text
    shown = printed.getvalue()
    for words in ("simclr, seed 0: begins", "hcl, seed 1: done · kNN", "4 of 4 runs done",
                  "untrained encoder", "2 epochs for every run"):  # fmt: skip
        assert words in shown
    assert all(len(line) < 120 for line in shown.splitlines() if "│" in line)
    # Each run had its own options, and the threads that were left to it.
    run = Run(folder / "runs" / "hcl-1")
    assert (run.config.recipe, run.config.seed, run.config.epochs) == ("hcl", 1, 2)
    assert "with 1 threads" in (folder / "logs" / "hcl-1.txt").read_text()
    # Once more: nothing is run again, and the files are the same.
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    run_compare(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    assert starts(folder, "hcl-1") == 1


def test_three_seeds_say_in_words_which_recipes_differ() -> None:
    accuracies = {
        "simclr": (0.50, 0.52, 0.54),
        "hcl": (0.60, 0.63, 0.64),
        "moco": (0.40, 0.41, 0.44),
        "unremix": (0.50, 0.53, 0.53),
    }
    records = [
        Record("", recipe, seed, results={"trained": {"knn": {"value": value, "count": 100}}})
        for recipe, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    rows = tables.table_rows(records, reference="simclr")
    plan = make_plan(CompareConfig(",".join(accuracies), seeds=3), TINY)
    (told,) = compare_module._verdict(plan, rows, tables.measures_among(records))
    assert re.search("kNN .*simclr.* higher: hcl; lower: moco; .*difference: unremix", told)
    alone = make_plan(CompareConfig("simclr", seeds=3), TINY)
    assert compare_module._verdict(alone, rows[:1], tables.measures_among(records)) == []


def test_recipes_and_seeds_can_be_added(tmp_path: Path, fake: Callable[..., None]) -> None:
    run_compare(tmp_path / "c")
    printed = io.StringIO()
    found = run_compare(tmp_path / "c", "debiased", Console(file=printed), seeds=1)
    assert "simclr, hcl, debiased, 2 seeds" in printed.getvalue()
    assert [row.name for row in found.rows[:3]] == ["simclr", "hcl", "debiased"]
    assert [row.runs for row in found.rows] == [2, 2, 2, 2]
    found = run_compare(tmp_path / "c", "simclr", seeds=3, reference="hcl")
    assert [row.runs for row in found.rows] == [3, 3, 3, 3]
    assert found.rows[0].cells["knn"].difference is not None
    assert found.rows[1].cells["knn"].difference is None
    assert starts(tmp_path / "c", "simclr-0") == 1
    run_compare(tmp_path / "whole", "simclr,hcl,debiased", seeds=3, reference="hcl")
    assert results_of(tmp_path / "c") == results_of(tmp_path / "whole")
    text = (tmp_path / "c" / "table.md").read_text()
    assert "--recipes simclr,hcl,debiased --seeds 3 --reference hcl" in text


def test_other_options_need_another_folder(tmp_path: Path, fake: Callable[..., None]) -> None:
    run_compare(tmp_path / "c")
    message = r"in .*/c .*lr 0\.001 there, 0\.1 here.*--output"
    with pytest.raises(ValueError, match=message):
        run_compare(tmp_path / "c", lr=0.1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        run_compare(tmp_path / "other")
    with pytest.raises(ValueError, match="did you mean 'hcl'"):
        run_compare(tmp_path / "new", "hlc")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits", "digits"),
        ("some/cifar-10-python.tar.gz", "cifar-10-python"),
        ("Pictures.TGZ", "Pictures"),
        ("shards-{000..099}.tar", "shards-{000..099}"),
        ("tiny-imagenet-200.zip", "tiny-imagenet-200"),
        ("arrays.npz", "arrays"),
        ("books.txt.gz", "books"),
        ("graphs.jsonl", "graphs"),
        ("photos-v1.2", "photos-v1.2"),
    ],
)
def test_endings_are_no_part_of_the_name(data: str, name: str) -> None:
    assert path_for(data) == Path("comparisons") / name


def test_the_folder_is_named_after_the_data(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DOMAINS, "image", replace(DOMAINS["image"], classes=lambda config: 2))
    train = replace(TINY, data="some/pictures.zip")
    found = compare(
        CompareConfig("simclr", seeds=1, progress=False), train, command="as I typed it"
    )
    assert found.path == Path("comparisons/pictures")
    assert "as I typed it" in (found.path / "table.md").read_text()
    assert "no spread" in (found.path / "table.md").read_text()


def test_a_failing_run_is_told_and_stops_no_other(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake(fail=["simclr-0"])
    printed = io.StringIO()
    found = run_compare(tmp_path / "c", console=Console(file=printed))
    assert [(o.row, o.seed, o.failure) for o in found.failed] == [
        ("simclr", 0, "expected a finite loss, got nan")
    ]
    assert [(row.runs, row.failed) for row in found.rows] == [(1, 1), (2, 0), (2, 0)]
    difference = found.rows[1].cells["knn"].difference
    assert difference is not None
    assert difference.count == 1
    shown = printed.getvalue()
    assert "simclr, seed 0: failed (exit code 1)" in shown
    assert "one line\n    unremix: expected a finite loss, got nan" in shown
    text = (tmp_path / "c" / "table.md").read_text()
    assert "| simclr | 1 (1 failed) |" in text
    assert "simclr, seed 0 failed: expected a finite loss, got nan" in text
    assert "simclr,0,failed,1," in (tmp_path / "c" / "results.csv").read_text()
    # The next start tries again, from the beginning: it had no checkpoint.
    fake()
    assert not run_compare(tmp_path / "c").failed
    run_compare(tmp_path / "whole")
    assert results_of(tmp_path / "c") == results_of(tmp_path / "whole")


def test_a_budget_of_time_is_kept_to(tmp_path: Path, fake: Callable[..., None]) -> None:
    found = run_compare(tmp_path / "c", budget="3 minutes")
    run = Run(found.path / "runs" / "hcl-0")
    assert Plan(("hcl",), 1, "hcl", run.config).minutes == 3
    text = (found.path / "table.md").read_text()
    assert "Budget: 3 min of training" in text
    assert "4 of the runs reached --epochs 2" in text
    assert "| recipe | runs | epochs |" in text
    run_compare(tmp_path / "c", "debiased", budget="180 seconds")
    with pytest.raises(ValueError, match=r"expected 1 threads.*got 2"):
        run_compare(tmp_path / "c", budget="3 minutes", threads=2)
    with pytest.raises(ValueError, match=r"max_minutes 3\.0 there, None here"):
        run_compare(tmp_path / "c")


def test_all_fail(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(fail=["simclr-0", "simclr-1"])
    found = run_compare(tmp_path / "c", "simclr")
    assert len(found.failed) == 2
    assert found.failed
    text = (tmp_path / "c" / "table.md").read_text()
    assert "no run ended well" in text
    assert "interval" not in text
    assert not (tmp_path / "c" / "curves.png").exists()


def is_free(path: Path) -> bool:
    lock = try_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_started_again(
    tmp_path: Path, fake: Callable[..., None], number: signal.Signals
) -> None:
    """In the middle: one run is done, two are at work, one waits."""
    fake(slow=["hcl-0", "simclr-1"])
    folder, printed = tmp_path / "c", io.StringIO()
    handler = signal.getsignal(number)

    def interrupt() -> None:
        wait_until(lambda: all((folder / "runs" / name / "checkpoints" / "last.ckpt").exists()
                               for name in ("hcl-0", "simclr-1")))  # fmt: skip
        os.kill(os.getpid(), number)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        run_compare(folder, console=Console(file=printed))
    watcher.join()
    assert signal.getsignal(number) is handler
    assert "1 of 4 runs done; resume with: unremix compare" in printed.getvalue()
    assert "--jobs 2" in printed.getvalue()
    unfinished = (folder / "table.md").read_text()
    assert "3 of 4 runs to come" in unfinished
    assert "| simclr | 1 |" in unfinished
    locks = [folder / ".locks" / name for name in ("experiment", "hcl-0", "simclr-1")]
    assert all(is_free(lock) for lock in locks)  # nobody is left
    fake()
    printed = io.StringIO()
    run_compare(folder, console=Console(file=printed))
    assert "1 of 4 runs are done already" in printed.getvalue()
    assert "hcl, seed 0: resumes at 50%" in printed.getvalue()
    assert "begins at epoch 1" in (folder / "logs" / "hcl-0.txt").read_text()
    assert "--resume" in (folder / "logs" / "hcl-0.txt").read_text()
    assert starts(folder, "simclr-0") == 1
    run_compare(tmp_path / "whole")
    assert results_of(folder) == results_of(tmp_path / "whole")


def test_a_process_that_does_not_heed_is_killed(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "GRACE", 0.3)
    fake(slow=["simclr-0"], linger=["simclr-0"])
    folder = tmp_path / "c"

    def interrupt() -> None:
        wait_until((folder / "runs" / "simclr-0" / "checkpoints" / "last.ckpt").exists)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        run_compare(folder, "simclr", seeds=1)
    watcher.join()
    assert is_free(folder / ".locks" / "simclr-0")


def test_a_signal_is_named(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(slow=["simclr-0"])
    folder = tmp_path / "c"
    found: list[FinishedComparison] = []
    worker = threading.Thread(target=lambda: found.append(run_compare(folder, "simclr", seeds=1)))
    worker.start()  # signals are left alone where it is not the main thread
    wait_until((folder / "runs" / "simclr-0" / "checkpoints" / "last.ckpt").exists)
    with pytest.raises(BlockingIOError, match="nobody else at work"):
        run_compare(folder, "simclr", seeds=1)
    os.kill(int((folder / "runs" / "simclr-0" / "process").read_text()), signal.SIGKILL)
    worker.join()
    assert [record.failure for record in found[0].failed] == ["SIGKILL"]


def test_a_run_of_an_earlier_start_is_waited_for(
    tmp_path: Path, fake: Callable[..., None], template: Path
) -> None:
    """A killed comparison leaves processes behind; their runs are not begun a second time."""
    folder, gate = tmp_path / "c", tmp_path / "gate"
    place, other = Folder(folder), tmp_path / "other"
    run_compare(other, "simclr", seeds=1)
    (folder / "runs").mkdir(parents=True)
    (folder / "comparison.yaml").write_text((other / "comparison.yaml").read_text())
    job = Job("simclr", 0, "simclr-0", TINY)
    lock = try_lock(place.lock(job))
    assert lock is not None
    # It holds the lock, is in the midst of its run, and finishes it once the gate is open.
    code = (
        f"import os, shutil, time\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"shutil.copytree({str(other / 'runs' / 'simclr-0')!r}, {str(place.run(job))!r})\n"
    )
    left_behind = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,))
    os.close(lock)
    printed = io.StringIO()
    waiting = "simclr, seed 0: still under way from an earlier start"

    def open_gate() -> None:
        end = time.monotonic() + 60
        while waiting not in printed.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        gate.touch()

    opener = threading.Thread(target=open_gate)
    opener.start()
    found = run_compare(folder, "simclr", seeds=1, console=Console(file=printed))
    opener.join()
    assert left_behind.wait() == 0
    assert waiting in printed.getvalue()
    assert not found.failed
    assert not place.log(job).exists()  # no process of ours ran it
    assert results_of(folder) == results_of(other)


def test_a_lock_ends_with_its_last_holder(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "locks" / "one")
    assert lock is not None
    holder = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(lock,)
    )
    os.close(lock)
    assert not is_free(tmp_path / "locks" / "one")
    holder.kill()
    holder.wait()
    assert is_free(tmp_path / "locks" / "one")


def test_the_live_table(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unremix.experiments.laboratory.REFRESH", 0.0)
    fake(fail=["hcl-1"])
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=110, color_system=None)
    run_compare(tmp_path / "c", console=console)
    shown = printed.getvalue()
    for words in ("epoch of 2", "kNN, %", "1 of 2", "running", "left", "hcl, seed 1: failed"):
        assert words in shown
    assert "seed 0: begins" not in shown


def test_on_a_narrow_terminal_differences_have_a_table_of_their_own(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake()
    for width, count in ((80, 2), (200, 1)):
        printed = io.StringIO()
        console = Console(file=printed, force_terminal=True, width=width, color_system=None)
        found = run_compare(tmp_path / "c", "unremix-simclr,simclr", console=console)
        lines = printed.getvalue().rpartition("Comparison on")[2].splitlines()
        assert sum("recipe" in line and "runs" in line for line in lines) == count
        table = [line for line in lines if line.startswith("│")]
        assert max(map(len, table)) <= width
        assert not any("…" in line for line in table)
        knn = tables.Measure("knn", "kNN", percent=True, decimals=1)
        gaps = [row.difference(knn) for row in found.rows]
        said = [knn.difference(gap) for gap in gaps if gap is not None]
        assert len(said) > 1
        assert all(any(one in line for line in table) for one in said)  # on one line each


def test_the_run_of_a_plan_is_one_that_train_understands(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    run_compare(tmp_path / "c", "hcl", seeds=1, loss=dict(hardness=2.0), clip=1.0)
    file = tmp_path / "c" / "logs" / "hcl-0.yaml"
    config = make_config(nested_options(parse("train", ["--config", str(file)])))
    assert config == config_from_yaml(file.read_text())
    assert config == replace(
        TINY, epochs=2, recipe="hcl", seed=0, name="hcl-0", runs=str(tmp_path / "c" / "runs"),
        loss=dict(hardness=2.0), clip=1.0, threads=None, precision="32-true", compile=False,
    )  # fmt: skip


# The real training

REAL = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
from test_compare import run_compare
run_compare(Path({folder!r}), seeds=2, jobs=2, checkpoint_every=2)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_runs_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 of the comparison, then SIGTERM, then to the end: as if nothing had happened."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    found = run_compare(whole, checkpoint_every=2)
    assert not found.failed
    assert {row.name for row in found.rows} == {
        "simclr", "hcl", "untrained encoder", "raw pixels"
    }  # fmt: skip
    assert set(found.rows[0].cells) >= {"knn", "linear.top1"}
    assert (whole / "curves.png").exists()
    code = REAL.format(tests=str(TESTS), here=str(Path(__file__).parent), folder=str(broken))
    checkpoint = broken / "runs" / "simclr-0" / "checkpoints" / "last.ckpt"
    first = subprocess.Popen([sys.executable, "-c", code])
    wait_until(checkpoint.exists)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    second = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: len(list(broken.glob("runs/*-1/config.yaml"))) > 0, seconds=240)
    second.terminate()
    assert second.wait(60) != 0
    assert all(is_free(lock) for lock in (broken / ".locks").iterdir())
    run_compare(broken, checkpoint_every=2)
    assert results_of(broken) == results_of(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("warm_runs")
def test_a_real_run_that_fails(tmp_path: Path) -> None:
    """An option that only one of the two recipes has."""
    found = run_compare(tmp_path, "simclr,hcl", seeds=1, loss=dict(hardness=2.0))
    (failed,) = found.failed
    assert failed.row == "simclr"
    assert failed.failure is not None
    assert "got" in failed.failure
    assert found.rows[1].runs == 1
    assert yaml.safe_load((tmp_path / "comparison.yaml").read_text())["recipes"] == [
        "simclr",
        "hcl",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[", "- 1", "recipes: 3", "recipes: [[1]]\nreference: a", "[" * 5000,
     "recipes: [simclr]\nreference: simclr", "x: !!python/object/apply:os.getcwd []",
     "recipes: [simclr]\nreference: simclr\nseeds: many\nthreads: 1\ntrain: {}"],
)  # fmt: skip
def test_a_damaged_folder_is_told_in_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comparison.yaml").write_text(text)
    words = ["--recipes", "simclr", "--seeds", "1", "--epochs", "1", "--output", str(tmp_path)]
    assert main(["compare", *words]) == 1
    assert "comparison.yaml" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1
    assert "expected " in capsys.readouterr().err


def test_a_folder_cannot_ask_for_a_billion_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = shared_options(TrainConfig(epochs=1))
    record = {"recipes": ["simclr"], "seeds": 10**9, "reference": "simclr", "threads": 1,
              "train": train}  # fmt: skip
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(record))
    words = ["--recipes", "simclr", "--seeds", "1", "--epochs", "1", "--output", str(tmp_path)]
    assert main(["compare", *words]) == 1
    assert f"at most 1000 seeds in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["[]", "{}", "x", '{"name": "a"}', "[" * 10**5,
             '{"name": "a", "epochs": 1, "loss": 1, "results": 3}',
             '{"name": [1], "epochs": 1, "loss": 1, "results": {}}'],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "results.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"in line 1 of .*results\.jsonl, got "):
        Results(tmp_path / "results.jsonl")
