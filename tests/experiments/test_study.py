"""Studies: what is run, that halving keeps the best and the budget holds, what the report says."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shlex
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from scipy import stats

from unremix.cli import main
from unremix.cli.parser import parse
from unremix.domains.options import TrainConfig, make_config, nested_options
from unremix.experiments import laboratory
from unremix.experiments.plan import DEFAULTS, FIRST_DEFAULTS, shared_options, train_command
from unremix.experiments.results import RESULTS, Record, Results
from unremix.experiments.study import (
    BestOf,
    Stage,
    Standing,
    Study,
    name_of_arm,
    read_study,
)
from unremix.experiments.study_report import AUDITED, write_report
from unremix.experiments.study_runs import run_study
from unremix.losses import PRESETS
from unremix.recipes import RECIPES as RECIPES_BY_NAME

pytestmark = pytest.mark.xdist_group("compare")

TRAIN = {
    "limit": 128, "batch_size": 32, "epochs": 2, "probe_epochs": 1, "head_hidden": [16],
    "head_output": 8, "accelerator": "cpu", "threads": 1,
}  # fmt: skip
OLD = (
    "epochs", "batch_size", "optimizer", "lr", "weight_decay", "schedule", "warmup_epochs", "width",
    "head_hidden", "head_output", "head_batch_norm", "augmentation", "precision", "knn_temperature",
    "loss.mix", "loss.scaling", "loss.components", "loss.hardness", "loss.class_prior",
    "loss.fidelity", "temperature", "probe_epochs",
)  # fmt: skip
ARMS = [{"recipe": "simclr"}]
RECIPES = ["simclr", "hcl", "moco", "unremix-simclr"]


def write(path: Path, **options: Any) -> Path:
    file = path / "study.yaml"
    file.write_text(yaml.safe_dump({"train": TRAIN, **options}, sort_keys=False))
    return file


def run(file: Path, **options: Any) -> tuple[Path, str]:
    printed = io.StringIO()
    folder = run_study(file, jobs=1, console=Console(file=printed, width=200), **options)
    return folder, printed.getvalue()


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]


def with_values(study: Study, stage: Stage, values: dict[tuple[str, int], float]) -> Results:
    """Results as if every arm had been run with every seed that has a value."""
    results = Results(Path("nowhere"))
    for arm in stage.own_arms:
        for seed in stage.seeds_of():
            if (name_of_arm(arm), seed) in values:
                job = study.job(stage, arm, seed)
                value = values[name_of_arm(arm), seed]
                results.records[job.name] = Record(
                    job.name, job.row, seed, epochs=1, loss=1.0,
                    metrics=[{"epoch": 1, **dict.fromkeys(AUDITED, 0.5)}],
                    results={"trained": {"knn": {"value": value}}},
                )  # fmt: skip
    return results


# Arms and jobs


def test_arms_are_all_combinations_and_the_list() -> None:
    stage = Stage(
        factors={"recipe": ["simclr", "hcl"], "temperature": [0.1, 0.5]},
        arms=({"recipe": "moco"},),
    )
    arms = [(arm["recipe"], arm.get("temperature")) for arm in stage.own_arms]
    slow = [(r, t) for r in ("simclr", "hcl") for t in (0.1, 0.5)]
    assert arms == [*slow, ("moco", None)]


def test_the_command_makes_the_same_run() -> None:
    study = Study({}, train=TRAIN)
    arm = {
        "recipe": "unremix-simclr", "temperature": 0.2, "loss.scaling": "zscore-exp",
        "loss.components": ["similarity"], "loss.hardness": 0.5, "validation": 0.25,
    }  # fmt: skip
    train = study.job(Stage(), arm, 7).train
    typed = shlex.split(train_command(train))[1:]
    typed_config = make_config(nested_options(parse("train", typed[1:])))
    assert shared_options(typed_config) == shared_options(train)
    assert (typed_config.recipe, typed_config.seed) == ("unremix-simclr", 7)


def test_equal_options_are_one_run_and_others_are_not() -> None:
    study = Study({}, train=TRAIN)
    stage, later = Stage(), Stage(first_seed=0, train={"temperature": 0.2})
    name = study.job(stage, {"recipe": "hcl", "temperature": 0.2}, 0).name
    assert study.job(later, {"recipe": "hcl"}, 0).name == name
    others = [
        study.job(stage, {"recipe": "hcl", "temperature": 0.3}, 0),
        study.job(stage, {"recipe": "hcl", "temperature": 0.2}, 1),
        study.job(stage, {"recipe": "simclr", "temperature": 0.2}, 0),
        study.job(stage, {"recipe": "hcl", "temperature": 0.2, "loss.hardness": 2.0}, 0),
        study.job(stage, {"recipe": "hcl", "temperature": 0.2, "mixing": "unmix"}, 0),
    ]
    assert len({name, *(job.name for job in others)}) == 6


def test_a_changed_default_is_another_run() -> None:
    """Names count what differs from the defaults. If this fails, raise plan.DEFAULTS, then this."""
    kept: dict[str, Any] = {"presets": repr(PRESETS)}
    for recipe in RECIPES:
        options = {**shared_options(TrainConfig(recipe=recipe)), **FIRST_DEFAULTS}
        kept[recipe] = [RECIPES_BY_NAME[recipe].temperature, {name: options[name] for name in OLD}]
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:10]
    assert (DEFAULTS, digest) == (1, "09798b350f")


# Halving


def test_halving_keeps_the_better_half_of_every_group() -> None:
    stage = Stage(
        factors={"recipe": ["simclr", "hcl"], "temperature": [0.1, 0.2, 0.3, 0.5]},
        seeds=(2, 4, 5), within="recipe",
    )  # fmt: skip
    study = Study({"s": stage}, train=TRAIN)
    rng = np.random.default_rng(0)
    values = {
        (name_of_arm(arm), seed): float(rng.random()) for arm in stage.own_arms for seed in range(5)
    }
    results = with_values(study, stage, values)
    left = stage.own_arms
    for rung, seeds in enumerate([2, 4, 5]):
        found = Standing(study, results).arms_at("s", rung)
        assert [name_of_arm(arm) for arm in found] == [name_of_arm(arm) for arm in left]
        kept = []
        for recipe in ("simclr", "hcl"):  # the slow way: sort each group's means
            own = [arm for arm in left if arm["recipe"] == recipe]
            means = {
                name_of_arm(arm): statistics.fmean(
                    values[name_of_arm(arm), s] for s in range(seeds)
                )
                for arm in own
            }
            order = sorted(own, key=lambda arm: -means[name_of_arm(arm)])
            kept += order[: -(-len(own) // 2)]
        left = [arm for arm in left if arm in kept]


def test_the_reference_is_never_dropped() -> None:
    reference = {"recipe": "simclr"}
    stage = Stage(factors={"recipe": RECIPES}, seeds=(1, 2), reference=reference)
    study = Study({"s": stage}, train=TRAIN)
    values = {(recipe, 0): float(number) for number, recipe in enumerate(RECIPES)}
    found = Standing(study, with_values(study, stage, values)).arms_at("s", 1)
    assert [arm["recipe"] for arm in found] == ["simclr", "moco", "unremix-simclr"]


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (BestOf("first"), ["hcl temperature=0.2"]),
        (BestOf("first", keep=2), ["simclr temperature=0.1", "hcl temperature=0.2"]),
        (BestOf("first", within="recipe"), ["simclr temperature=0.1", "hcl temperature=0.2"]),
        (BestOf("first", within="recipe", other_than_reference=True),
         ["simclr temperature=0.2", "hcl temperature=0.2"]),
        (BestOf("first", within=("recipe", "temperature")),
         ["simclr temperature=0.1", "simclr temperature=0.2", "hcl temperature=0.1",
          "hcl temperature=0.2"]),
        (BestOf("first", within="temperature", other_than_reference=True),
         ["hcl temperature=0.1", "hcl temperature=0.2"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reference", [None, {"recipe": "simclr", "temperature": 0.1}])
def test_the_best_of_a_stage_go_on(
    best: BestOf, expected: list[str], reference: dict[str, Any] | None
) -> None:
    first = Stage(
        factors={"recipe": ["simclr", "hcl"], "temperature": [0.1, 0.2]}, seeds=1,
        reference=reference,
    )  # fmt: skip
    second = Stage(best_of=(best,), seeds=2, first_seed=10)
    study = Study({"first": first, "second": second}, train=TRAIN)
    values = {
        ("simclr temperature=0.1", 0): 0.3, ("simclr temperature=0.2", 0): 0.2,
        ("hcl temperature=0.1", 0): 0.1, ("hcl temperature=0.2", 0): 0.6,
    }  # fmt: skip
    results = with_values(study, first, values)
    assert [name_of_arm(arm) for arm in Standing(study, results).arms("second")] == expected
    jobs = [(job.row, job.seed) for job in Standing(study, results).jobs("second", 0)]
    assert jobs == [(label, seed) for seed in (10, 11) for label in expected]
    nothing = with_values(study, first, {})
    assert Standing(study, nothing).arms("second") == []


def test_what_halving_dropped_is_not_the_best(tmp_path: Path) -> None:
    """Not even if its one seed is above the mean of those that went on."""
    stage = Stage(
        factors={"recipe": ["simclr", "hcl"], "temperature": [0.1, 0.2, 0.3, 0.5]},
        seeds=(1, 2), within="recipe", keep=0.25,
    )  # fmt: skip
    study = Study({"pick": stage}, train=TRAIN)
    values = {(name_of_arm(arm), 0): 0.6 for arm in stage.own_arms}
    for recipe in ("simclr", "hcl"):
        values |= {(f"{recipe} temperature=0.2", 0): 0.7, (f"{recipe} temperature=0.2", 1): 0.4}
    write_report(Standing(study, with_values(study, stage, values)), tmp_path)
    report = (tmp_path / "report.md").read_text()
    tuned = report.partition("At equal tuning")[2].partition("![kNN")[0]
    curves = (tmp_path / "pick-scores.svg").read_text()
    for arm in stage.own_arms:
        kept = arm["temperature"] == 0.2
        assert (f"| {name_of_arm(arm)} |" in tuned) == kept
        assert (name_of_arm(arm) in curves) == kept


def test_a_complete_stage_is_planned_as_such() -> None:
    """Also where the reference is kept beside the better half, and is one arm more."""
    stage = Stage(factors={"recipe": RECIPES}, seeds=(1, 2), reference={"recipe": "simclr"})
    study = Study({"s": stage}, train=TRAIN)
    values = {(recipe, 0): float(number) for number, recipe in enumerate(RECIPES)}
    results = with_values(study, stage, values)
    assert Standing(study, results).planned() == [("s", 4, 4, 0), ("s", 3, 6, 3)]
    values |= {(recipe, 1): 1.0 for recipe in RECIPES if recipe != "hcl"}
    results = with_values(study, stage, values)
    assert Standing(study, results).planned() == [("s", 4, 4, 0), ("s", 3, 6, 0)]
    del values["hcl", 0]  # an arm that was added later
    results = with_values(study, stage, values)
    assert Standing(study, results).planned() == [("s", 4, 4, 1), ("s", 2, 4, 2)]
    assert not Standing(study, results).is_complete("s")


# Running


def test_a_study_and_its_report(tmp_path: Path, fake: Callable[..., None]) -> None:
    file = write(
        tmp_path,
        stages={
            "pick": {"factors": {"recipe": RECIPES}, "seeds": [2, 4]},
            "confirm": {"best_of": {"stage": "pick"}, "seeds": 3, "first_seed": 50,
                        "arms": [{"recipe": "simclr"}], "reference": {"recipe": "simclr"}},
        },
    )  # fmt: skip
    planned = Standing(read_study(file), Results(tmp_path / "none")).planned()
    assert [counts for _, *counts in planned] == [[4, 8, 8], [2, 8, 4], [2, 6, 6]]
    folder, _ = run(file)
    found = records(folder)
    pick = [one for one in found if one["seed"] < 50]

    def mean(recipe: str, seeds: int) -> float:
        return statistics.fmean(
            one["results"]["trained"]["knn"]["value"]
            for one in pick
            if one["row"] == recipe and one["seed"] < seeds
        )

    best = sorted(RECIPES, key=lambda recipe: -mean(recipe, 2))[:2]
    assert {one["row"] for one in pick if one["seed"] >= 2} == set(best)
    winner = max(best, key=lambda recipe: mean(recipe, 4))
    assert sorted({one["seed"] for one in found}) == [0, 1, 2, 3, 50, 51, 52]
    assert all(one["cpu_seconds"] > 0 and one["versions"]["torch"] for one in found)
    report = (folder / "report.md").read_text()
    # One difference of the report, computed again from the lines.
    confirmed = {one["row"] for one in found if one["seed"] >= 50}
    assert confirmed == {"simclr", winner}
    by_seed = {
        (one["row"], one["seed"]): one["results"]["trained"]["knn"]["value"] for one in found
    }
    for champion in confirmed - {"simclr"}:
        differences = [100 * (by_seed[champion, s] - by_seed["simclr", s]) for s in (50, 51, 52)]
        half = stats.sem(differences) * stats.t.ppf(0.975, 2)
        center = statistics.fmean(differences)
        assert f"{center:+.1f} [{center - half:+.1f}, {center + half:+.1f}]" in report
    assert (folder / "pick.svg").exists()
    assert (folder / "pick.png").exists()


def test_a_confirmation_compares_every_setting_with_every_other(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    recipes = ["simclr", "hcl", "moco"]
    stages = {
        "pick": {"factors": {"recipe": recipes}, "seeds": 1},
        "confirm": {"best_of": {"stage": "pick", "keep": 3}, "seeds": 3, "first_seed": 50},
    }
    folder, _ = run(write(tmp_path, stages=stages))
    before, first, second = (folder / "report.md").read_text().split("Every setting against every")
    assert "## confirm" in before
    confirmed = [one for one in records(folder) if one["seed"] >= 50]
    for path, part in (("knn", first), ("linear.top1", second)):
        found = {
            (one["row"], one["seed"]): one["results"]["trained"][path]["value"] for one in confirmed
        }
        heading = {"knn": "kNN, %", "linear.top1": "linear probe, %"}[path]
        assert part.startswith(f" other: {heading}")
        assert "| setting | 1 | 2 | 3 |" in part
        for number, row in enumerate(recipes, start=1):
            cells = [f"{number}: {row}"]
            for column in recipes:
                if row == column:
                    cells.append("–")
                    continue
                differences = [found[row, seed] - found[column, seed] for seed in (50, 51, 52)]
                center = 100 * statistics.fmean(differences)
                half = 100 * stats.sem(differences) * stats.t.ppf(0.975, 2)
                cells.append(f"{center:+.1f} [{center - half:+.1f}, {center + half:+.1f}]")
            assert f"| {' | '.join(cells)} |" in part


def test_a_measure_that_no_run_has_ends_the_study(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    stages = {
        "pick": {"factors": {"recipe": RECIPES}, "seeds": [1, 2], "within": "recipe"},
        "confirm": {"best_of": {"stage": "pick"}},
    }
    file = write(tmp_path, stages=stages, measure="accuracy")
    message = "measure 'accuracy' .*, got knn, linear.top1 of simclr"
    with pytest.raises(ValueError, match=message):
        run(file)
    folder = tmp_path / "study"
    assert len(records(folder)) == 1  # the first run tells
    report = (folder / "report.md").read_text()
    assert "`accuracy`; they have knn, linear.top1" in report
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=message):
            run(file, dry_run=dry_run)
    assert len(records(folder)) == 1


def test_the_report_says_what_the_weights_pick(tmp_path: Path, fake: Callable[..., None]) -> None:
    file = write(
        tmp_path, stages={"pick": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 2}}
    )  # fmt: skip
    folder, _ = run(file)
    assert "What the weights pick" not in (folder / "report.md").read_text()  # none was audited
    path = folder / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for one in lines:
        for row in one["metrics"]:
            uniform = one["row"] == "simclr"
            row |= {
                "audit_auc_similarity": 0.6 + 0.1 * one["seed"],
                "audit_false_negative_rate": 0.2 + 0.1 * one["seed"],
                "audit_spread_weights": 0.0 if uniform else 0.5,
            }
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    write_report(Standing(read_study(file), Results(path)), folder)
    report = (folder / "report.md").read_text()
    assert "| hcl | 0.650 | 25.0 |" in report  # means over seeds 0 and 1
    assert "| simclr | 0.650 | – |" in report  # of equal weights none is the heaviest
    assert (folder / "pick-scores.svg").exists()


def test_the_best_of_an_unfinished_stage_is_not_taken(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    stages = {
        "pick": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 2},
        "other": {"arms": [{"recipe": "moco"}], "seeds": 1},
        "confirm": {
            "best_of": [{"stage": "pick"}, {"stage": "other"}], "seeds": 1, "first_seed": 9,
        },
    }  # fmt: skip
    file = write(tmp_path, stages=stages)
    run(file, stage="other")
    with pytest.raises(ValueError, match="'pick' to be complete before 'confirm'"):
        run(file, stage="confirm")
    folder, _ = run(file)
    confirmed = {one["row"] for one in records(folder) if one["seed"] == 9}
    assert len(confirmed) == 2  # the better of two, and the only one of the other stage
    assert "moco" in confirmed


def test_what_is_noted_is_not_run_again(tmp_path: Path, fake: Callable[..., None]) -> None:
    stages = {"one": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 2}}
    folder, _ = run(write(tmp_path, stages=stages))
    before = (folder / RESULTS).read_bytes()
    shutil.rmtree(folder / "runs")
    run(write(tmp_path, stages=stages))
    assert (folder / RESULTS).read_bytes() == before
    assert not (folder / "runs").exists()
    stages["one"]["seeds"] = 3  # more seeds: only these are run
    run(write(tmp_path, stages=stages))
    assert [one["seed"] for one in records(folder)] == [0, 0, 1, 1, 2, 2]


def test_the_budget_ends_the_study(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every run costs the same, however busy the machine is.
    monkeypatch.setattr(
        laboratory, "replace", lambda record, cpu_seconds: replace(record, cpu_seconds=60.0)
    )
    stages = {"one": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 4}}
    # Three runs of the expected cost fit; real ones are far cheaper, but one is enough to see that.
    file = write(tmp_path, stages=stages, core_hours=1e-9, core_minutes=1.0)
    folder, printed = run(file)
    assert not (folder / RESULTS).exists()
    assert "8 of 8 runs are missing (the budget is spent)" in printed
    folder, _ = run(write(tmp_path, stages=stages, core_hours=1.0, core_minutes=1.0))
    spent = sum(one["cpu_seconds"] for one in records(folder)) / 3600
    assert len(records(folder)) == 8
    more = {"one": {"factors": {"recipe": RECIPES}, "seeds": 4}}
    folder, printed = run(write(tmp_path, stages=more, core_hours=1.3 * spent))
    assert len(records(folder)) == 10  # 8 and what 0.3 of their cost allows: 2
    assert "6 of 16 runs are missing" in printed


def test_a_failed_run_is_told_and_made_again(tmp_path: Path, fake: Callable[..., None]) -> None:
    stages = {"one": {"factors": {"recipe": ["simclr", "hcl"]}, "seeds": 1}}
    file = write(tmp_path, stages=stages)
    study = read_study(file)
    bad = Standing(study, Results(tmp_path / "none")).jobs("one", 0)[1].name
    fake(fail=[bad])
    folder, printed = run(file)
    assert [one["row"] for one in records(folder)] == ["simclr"]
    assert "1 of 2 runs are missing (1 runs failed" in printed
    fake()
    run(file)
    assert [one["row"] for one in records(folder)] == ["simclr", "hcl"]


def test_a_dry_run_only_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer = {"factors": {"recipe": RECIPES}, "seeds": 1, "core_minutes": 45.0, "first_seed": 9}
    stages = {"one": {"factors": {"recipe": RECIPES}, "seeds": [2, 4]}, "longer": longer}
    file = write(tmp_path, stages=stages, core_minutes=30, core_hours=3)
    assert main(["study", str(file), "--dry_run"]) == 0
    printed = capsys.readouterr().out
    # 8 runs, then two more seeds of the better two arms: 12 runs of half an hour; 4 of 45 minutes.
    assert "9.0 to come of 3 allowed" in printed
    assert "The budget ends before" in printed
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": {"one": {}}}, "factors, arms or best_of"),
        ({"stages": {"one": {"factor": {}}}}, r"stages\.one\.factor; did you mean 'factors'"),
        ({"stages": {"one": {"factors": {"temprature": [1]}}}}, "temprature"),
        ({"stages": {"one": {"factors": {"recipe": ["hcl"]}, "seeds": [4, 2]}}}, "growing"),
        ({"stages": {"one": {"best_of": {"stage": "two"}}}}, "earlier stage"),
        ({"stages": {"one": {"factors": {"recipe": ["hcl"]}, "reference": {"recipe": "moco"}}}},
         "among its arms"),
        ({"stage": {}}, "expected stages by name"),
        ({"stages": {"one": {"arms": ARMS, "seeds": 10**9}}}, "at most 1000 seeds in stage 'one'"),
        ({"stages": {"one": {"arms": ARMS, "seeds": [1, 1001]}}}, "at most 1000 seeds"),
        ({"stages": {"one": {"factors": {name: list(range(1, 101)) for name in
                                         ("epochs", "width", "batch_size", "head_output",
                                          "warmup_epochs", "limit")}}}},
         "at most 10000 runs .*, got 3000000000000"),
        ({"stages": {name: {"arms": ARMS * 10, "seeds": 1000} for name in "ab"}},
         "at most 10000 runs in .*, got 20000"),
        ({"stages": {"one": {"arms": ARMS, "first_seed": "x"}}}, "first_seed .*whole number"),
        ({"stages": {"one": {"arms": ARMS, "first_seed": 10**30}}}, "first_seed .*whole number"),
        ({"stages": {"one": {"arms": ARMS, "keep": "half"}}}, "keep .*a number"),
        ({"stages": {"one": {"arms": ARMS, "keep": 1.5}}}, r"stages\.one\.keep to be at most 1"),
        ({"stages": {"one": {"arms": ARMS}}, "core_hours": math.inf}, "core_hours to be below inf"),
        ({"stages": {"one": {"arms": ARMS}, "two": {"best_of": {"stage": "one", "keep": "x"}}}},
         r"stages\.two\.best_of\.keep to be a whole number"),
        ({"stages": {"one": {"arms": ARMS},
                     "two": {"best_of": {"stage": "one", "other_than_reference": "no"}}}},
         r"stages\.two\.best_of\.other_than_reference"),
        ({"stages": {"one": {"arms": ARMS}}, "core_hours": "many"}, "core_hours"),
        ({"stages": {"one": {"arms": ARMS, "within": 3}}}, r"stages\.one\.within to be text"),
        ({"stages": {"one": {"arms": ARMS}}, "measure": ["knn"]}, "measure to be text"),
        ({"stages": {"one": {"arms": ARMS}}, "core_minutes": 0}, "core_minutes .*above 0"),
        ({"stages": {"one": {"factors": {"recipe": "simclr"}}}}, "a list of values of recipe"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_study(write(tmp_path, **options))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / RESULTS
    record = {"name": "a", "epochs": 1, "loss": 0.5, "results": {}}
    file.write_text(json.dumps(record) + '\n{"na\n')
    with pytest.raises(ValueError, match="line 2 of"):
        Results(file)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": "x"},
        {"loss": "x"},
        {"cpu_seconds": float("inf")},
        {"cpu_seconds": -1},
        {"cpu_seconds": "x"},
        {"results": {"trained": 3}},
        {"results": {"trained": {"knn": 0.5}}},
        {"results": {"trained": {"knn": {"value": "x"}}}},
        {"name": ["a"]},
    ],
)
def test_a_record_of_no_numbers_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / RESULTS
    record = {"name": "a", "epochs": 1, "loss": 0.5, "cpu_seconds": 1.0,
              "results": {"trained": {"knn": {"value": 0.5}}}}  # fmt: skip
    file.write_text(json.dumps(record))
    assert Results(file).core_hours == 1 / 3600
    file.write_text(json.dumps(record | change))
    with pytest.raises(ValueError, match="line 1 of"):
        Results(file)


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "nothing.yaml"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_a_study_names_no_code_unasked(tmp_path: Path) -> None:
    """Nor in the options of a stage that has no arms but the best of another."""
    code = {"imports": [str(tmp_path / "evil.py")]}
    (tmp_path / "evil.py").write_text("raise SystemExit")
    first = {"arms": [{"recipe": "simclr"}], "seeds": 1}
    best = {"best_of": {"stage": "first"}, "seeds": 1}
    for stages in (
        {"first": first, "second": {**best, "train": code}},
        {"first": first, "second": {**best, "train": {"backbone": "evil:encoder"}}},
        {"first": {**first, "arms": [{"recipe": "simclr", **code}]}},
        {"first": {**first, "factors": {"imports": [code["imports"]]}}},
    ):
        with pytest.raises(ValueError, match=r"to name no code, got .*evil"):
            read_study(write(tmp_path, stages=stages))


@pytest.mark.parametrize(
    "text",
    [
        "stages: [",
        "stages: {a: [1]}",
        "stages: {a: {factors: [recipe]}}",
        "stages: {a: {arms: [simclr]}}",
        "stages: {a: {arms: [{recipe: simclr}], seeds: many}}",
        "stages: {a: {arms: [{recipe: [simclr]}]}}",
        "train: 3\nstages: {a: {arms: [{recipe: simclr}]}}",
        "stages: " + "[" * 5000,
        "data: !!python/object/apply:os.getcwd []",
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"expected .*study"):
        read_study(path)


def test_names_of_a_study_are_neither_markup_nor_orders_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = {"[red]a": {"arms": [{"recipe": "simclr"}], "seeds": 1}}
    file = write(tmp_path, stages=stages, title="[b]t\x1b[2J")
    assert main(["study", str(file), "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "[b]t\\x1b[2J" in said
    assert "[red]a" in said
    file = write(tmp_path, stages={"a\x1b[2J": stages["[red]a"]})
    assert main(["study", str(file), "--dry_run"]) == 1
    assert "the name of a stage" in capsys.readouterr().err
