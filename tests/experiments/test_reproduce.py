"""``unremix reproduce``: what is run, and that tables follow from the runs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import wait_until
from PIL import Image
from rich.console import Console
from scipy import stats

from unremix.cli import commands, main
from unremix.core.scores import PAPER_COMPONENTS
from unremix.evaluation.statistics import summarize
from unremix.experiments import reproduce as module
from unremix.experiments.dry_run import Estimate
from unremix.experiments.laboratory import Laboratory
from unremix.experiments.paper.catalog import EXPERIMENTS
from unremix.experiments.paper.comparison import average_ranks
from unremix.experiments.paper.experiment import Setting, placed
from unremix.experiments.paper.scales import SCALES, ScaleName
from unremix.experiments.plan import Job
from unremix.experiments.reproduce import reproduce, sources_of
from unremix.experiments.results import Record
from unremix.experiments.tables import Cell, Measure, TableRow

pytestmark = pytest.mark.xdist_group("compare")

QUIET = Console(file=io.StringIO(), width=200)


def estimate_of(steps: int, epochs: int = 1) -> Estimate:
    """An estimate of steps of a second each."""
    return Estimate(
        samples=1, steps_per_epoch=steps, epochs=epochs, step_samples=8, step_seconds=1.0, timed=1,
        scale=1.0, memory=None, checkpoint=1, encoder=1, parameters={"encoder": 1}, device="cpu",
    )  # fmt: skip


def setting_of(name: str, scale: ScaleName, folder: Path, seeds: int | None = None) -> Setting:
    """An experiment with the runs that it would have in a folder."""
    experiment = EXPERIMENTS[name]
    sources = tuple(placed(one, folder) for one in sources_of(experiment, scale, ()))
    count = experiment.seeds or seeds or SCALES[scale][experiment.kind].seeds
    return Setting(experiment, scale, sources, count, {}, Laboratory(folder, QUIET))


def note(setting: Setting, *, without: int = 0) -> dict[tuple[str, str, str, int], float]:
    """Write records as if the runs had been made, but for the last few; return their values."""
    generator = np.random.default_rng(0)
    setting.laboratory.path.mkdir(parents=True, exist_ok=True)
    found = {}
    jobs = setting.jobs[: len(setting.jobs) - without]
    kept = {job.name for job in jobs}
    paths = list(setting.experiment.measures) or ["linear.top1"]
    for row in setting.rows:
        for source in setting.sources_of(row):
            for seed in range(setting.seeds):
                job = setting.job(row, source, seed)
                if job.name not in kept or job in setting.laboratory.results:
                    continue
                values = {path: round(float(generator.uniform(0.3, 0.9)), 4) for path in paths}
                found |= {(row.name, source.title, path, seed): v for path, v in values.items()}
                measures = {path: {"value": value, "count": 100} for path, value in values.items()}
                floor = {path: {"value": 0.2 + seed / 100, "count": 100} for path in paths}
                shares = generator.dirichlet([1.0] * len(PAPER_COMPONENTS), size=2).round(4)
                metrics = [
                    {"epoch": float(epoch), "loss": 1.0,
                     **{f"mix_{name}": float(share)
                        for name, share in zip(PAPER_COMPONENTS, row_of, strict=True)}}
                    for epoch, row_of in enumerate(shares, start=1)
                ]  # fmt: skip
                setting.laboratory.results.add(
                    Record(
                        job.name, row.name, seed, epochs=2, loss=1.0,
                        results={"trained": measures, "untrained": floor},
                        probe_curves={"trained": generator.uniform(size=3).round(4).tolist()},
                        metrics=metrics, cpu_seconds=60.0, command="unremix train",
                    )
                )  # fmt: skip
    return found


def lines_of(text: str) -> dict[str, list[str]]:
    """The cells of each line of the first table, by its first cell; the paper's by row before."""
    found: dict[str, list[str]] = {}
    last = ""
    for line in text.split("Differences to")[0].splitlines():
        if line.startswith("| ") and "---" not in line:
            first, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            last = last if first.startswith("·") else first
            found[f"{last} {first}" if first.startswith("·") else first] = cells
    return found


def differences_of(text: str) -> dict[str, list[str]]:
    """The cells of each line of the table of differences, by its first cell."""
    lines = text.split("Differences to")[1].split("\n\n")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {first: rest for first, *rest in cells}


TABLES = ["table1", "table2", "table3", "table5", "table6", "sentences", "graphs"]


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_of_a_table_follow_from_the_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lacking", lambda *_: None)  # records take the place of data
    scale: ScaleName = "smoke" if name == "table6" else "cpu"
    setting = setting_of(name, scale, tmp_path, 3)
    values = note(setting)
    assert reproduce(name, scale=scale, seeds=3, output=str(tmp_path), console=QUIET) == 0
    folder = tmp_path / name
    record = json.loads((folder / "results.json").read_text())
    text = (folder / "table.md").read_text()
    cells = lines_of(text)
    columns = [(s, path) for s in setting.sources for path in setting.experiment.measures]
    (reference,) = [row for row in setting.rows if row.name == setting.experiment.reference]
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    means = {}
    for row in setting.rows:
        for place, (source, path) in enumerate(columns):
            data = source.title
            runs = [
                run["results"]["trained"][path]["value"]
                for run in record["runs"]
                if (run["row"], run["data"]) == (row.name, data)
            ]
            expected = [values.get((row.name, data, path, seed)) for seed in range(3)]
            assert None in expected or runs == expected  # shared runs have the first row's values
            means[row.name, data, path] = np.mean(runs)
            shown = f"{100 * np.mean(runs):.1f} ± {100 * np.std(runs, ddof=1):.1f}"
            assert cells[row.name][1 + place] == shown
            if (source.paper, path) in row.published:
                paper, deviation = row.published[source.paper, path]
                digits = 1 if name == "sentences" else 2
                said = f"{paper:.{digits}f}"
                said += "" if deviation is None else f" ± {deviation:.{digits}f}"
                said += "" if source.comparable else f" ({source.paper})"
                assert cells[f"{row.name} · paper"][1 + place] == said
                (line,) = [r for r in rows if r["row"] == row.name and _is(r, setting, data, path)]
                assert line["paper_data"] == source.paper
                assert line["paper_deviation"] == (f"{deviation / 100:g}" if deviation else "")
                expected = 100 * np.mean(runs) - paper
                if source.comparable:
                    difference = float(cells[f"{row.name} · ours − paper"][1 + place])
                    assert difference == pytest.approx(expected, abs=0.051)
                    assert 100 * float(line["ours_minus_paper"]) == pytest.approx(expected)
                else:  # other data: nothing to subtract
                    differences = cells.get(f"{row.name} · ours − paper")
                    assert differences is None or differences[1 + place] == "–"
                    assert line["ours_minus_paper"] == ""
            base = [
                run["results"]["trained"][path]["value"]
                for run in record["runs"]
                if (run["row"], run["data"]) == (reference.name, data)
            ]
            if row != reference and runs != base:
                low, high = stats.ttest_rel(runs, base).confidence_interval()
                (line,) = [r for r in rows if r["row"] == row.name and _is(r, setting, data, path)]
                assert float(line["low"]) == pytest.approx(low)
                assert float(line["high"]) == pytest.approx(high)
                assert float(line["mean"]) == pytest.approx(np.mean(runs))
                apart = np.mean(np.subtract(runs, base))
                assert float(line["difference"]) == pytest.approx(apart)
                shown = f"{100 * apart:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
                assert differences_of(text)[row.name][1 + place] == shown
    if len(columns) > 1:
        said = text.split("Average rank")[1]
        for row in setting.rows:
            better = [
                sum(means[other.name, s.title, path] > means[row.name, s.title, path]
                    for other in setting.rows)
                for s, path in columns
            ]  # fmt: skip
            assert f"{row.name} {1 + np.mean(better):.2f}" in said
    assert cells["untrained encoder"][1] == "21.0 ± 1.0"
    for suffix in ("png", "svg"):
        assert (folder / f"{name}.{suffix}").stat().st_size > 1000
    assert "Unfinished" not in text


def _is(line: dict[str, str], setting: Setting, data: str, path: str) -> bool:
    """Whether a line of table.csv is about a measure on a data set."""
    label = setting.experiment.measures[path]
    alone = len(setting.sources) == 1
    return line["column"] in (data, f"{data}, {label}", *([label] if alone else []))


def mean_and_deviation(values: list[float], factor: float, digits: int) -> str:
    mean, deviation = factor * np.mean(values), factor * np.std(values, ddof=1)
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def noted(name: str, folder: Path) -> tuple[Setting, str]:
    """An experiment with two seeds of made-up runs, and the text of its tables."""
    setting = setting_of(name, "cpu", folder, 2)
    note(setting)
    assert reproduce(name, seeds=2, output=str(folder), console=QUIET) == 0
    return setting, (folder / name / "table.md").read_text()


def test_the_numbers_of_the_curves_follow_from_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    setting, text = noted("curves", tmp_path)
    cells = lines_of(text)
    assert list(cells)[1:] == [row.name for row in setting.rows]
    for row in setting.rows:
        for place, source in enumerate(setting.sources):
            runs = setting.records(row, source)
            first, _, last = np.mean([run.probe_curves["trained"] for run in runs], axis=0)
            assert cells[row.name][place] == f"{100 * first:.1f} → {100 * last:.1f}"


def test_the_weights_at_the_end_follow_from_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    setting, text = noted("mix", tmp_path)
    assert [row.name for row in setting.rows] == [
        "learned", "learned, as printed", "free", "fixed", "learned, on Un-Mix",
    ]  # fmt: skip
    for row in setting.rows:
        for source in setting.sources:
            last = [run.metrics[-1] for run in setting.records(row, source)]
            shares = [
                mean_and_deviation([one[f"mix_{name}"] for one in last], 1, 3)
                for name in PAPER_COMPONENTS
            ]
            assert f"| {' | '.join([row.name, source.title, *shares])} |" in text


def test_the_numbers_of_diversity_follow_from_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    setting, text = noted("diversity", tmp_path)
    cells = lines_of(text)
    for row in setting.rows:
        for place, source in enumerate(setting.sources):
            runs = setting.records(row, source)
            values = [run.results["trained"]["neighbors.top5"]["value"] for run in runs]
            shown = mean_and_deviation(values, 100, 1) if values else "–"
            assert cells[row.name][1 + place] == shown


def test_the_mix_needs_no_labels(tmp_path: Path) -> None:
    setting = setting_of("mix", "smoke", tmp_path, 1)
    note(setting)
    for name, record in setting.laboratory.results.records.items():
        setting.laboratory.results.records[name] = replace(record, results={})
    made = module.write(setting, "unremix reproduce mix")
    assert [title for title, _ in made.grids] == ["λ at the end"]


def test_seeds_of_the_mix_are_those_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is missing, the seeds of the others stay their own."""
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    setting = setting_of("mix", "cpu", tmp_path, 2)
    note(setting)
    (row,) = [row for row in setting.rows if row.name == "free"]
    del setting.laboratory.results.records[setting.job(row, setting.sources[0], 0).name]
    found = module.write(setting, "unremix reproduce mix").records
    own = [one for one in found if (one["row"], one["data"]) == ("free", setting.sources[0].title)]
    assert {one["seed"] for one in own} == {1}


@pytest.mark.parametrize(
    "given",
    [
        ("a/photos", "b/photos", "dogs on photos"),
        ("old/photos", "photos"),
        ("photos", "Photos", "photos (2)", "a/photos"),
    ],
)
def test_data_sets_of_one_name_are_kept_apart(
    given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    experiment = EXPERIMENTS["table5"]
    sources = sources_of(experiment, "smoke", given)
    assert len({one.slug for one in sources}) == len({one.title for one in sources}) == len(given)
    assert sources[0].title == "photos"
    setting = Setting(experiment, "smoke", sources, 1, {}, Laboratory(tmp_path, QUIET))
    values = note(setting)
    made = module.write(setting, "unremix reproduce table5")
    (found,) = [line for line in made.grids[0][1].lines if line[0] == "NT-Xent"]
    for place, source in enumerate(sources):
        value = values["NT-Xent", source.title, "linear.top1", 0]
        assert found[2 + place] == f"{100 * value:.1f} ± –"


def pictures(folder: Path, classes: int) -> str:
    """A few images in a folder per class, or in one folder."""
    for number in range(12):
        place = folder / str(number % classes) if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(place / f"{number}.png")
    return str(folder)


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("table5", 0, "expected labels, which table5 needs, found none"),
        ("curves", 0, "expected labels, which curves needs, found none"),
        ("diversity", 3, "expected at least 10 classes, found 3"),
    ],
)
def test_data_that_an_experiment_cannot_use_are_refused_before_training(
    name: str, classes: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "estimate", lambda *_, **__: estimate_of(1))
    data = pictures(tmp_path / "photos", classes)
    printed = io.StringIO()
    console = Console(file=printed, width=300)
    out = str(tmp_path / "out")
    with pytest.raises(ValueError, match="at least one data set"):
        reproduce(name, scale="smoke", data=(data,), output=out, console=console)
    assert message in printed.getvalue()
    assert (
        reproduce(name, scale="smoke", data=(data,), output=out, dry_run=True, console=console) == 0
    )
    assert printed.getvalue().count(message) == 2
    assert not Path(out).exists()


def test_finished_runs_need_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    note(setting_of("table5", "cpu", tmp_path / "out", 1))
    assert reproduce("table5", seeds=1, output="out", console=QUIET) == 0
    assert "Tiny-ImageNet" in (tmp_path / "out" / "table5" / "table.md").read_text()


def test_diversity_on_data_of_ones_own(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["diversity"]
    sources = sources_of(experiment, "cpu", ("photos",))
    setting = Setting(experiment, "cpu", sources, 1, {}, Laboratory(tmp_path, QUIET))
    classes = [job.train.loss.negative_classes for job in setting.jobs]  # type: ignore[attr-defined]
    assert classes == [1, 2, 4, 6, 8, 10]


def test_a_dry_run_does_not_count_what_it_cannot_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    console = Console(file=printed, width=300)
    assert reproduce("sentences", scale="paper", dry_run=True, console=console) == 0
    assert "15 runs of unknown cost" in printed.getvalue()
    assert "bookcorpus was not found" in printed.getvalue()


def test_a_dry_run_takes_the_mean_of_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = setting_of("table5", "smoke", tmp_path, 4)
    note(setting, without=6)
    records = setting.laboratory.results.records
    for number, (name, record) in enumerate(records.items()):
        records[name] = replace(record, cpu_seconds=10.0 + number)
    monkeypatch.setattr(module, "estimate", None)
    printed = io.StringIO()
    module.show_cost([setting], Console(file=printed, width=300))
    mean = np.mean(10.0 + np.arange(6))
    assert f"In all {module.duration(6 * mean)}, one run at a time." in printed.getvalue()


def test_nothing_is_subtracted_from_digits() -> None:
    """No data of the smoke scale are the paper's; of the paper's scale all are."""
    for kind in SCALES["smoke"].values():
        assert not any(one.comparable for one in kind.sources if one.paper != one.title)
    assert all(one.comparable for kind in SCALES["paper"].values() for one in kind.sources)


def test_unremix_has_two_rows_in_every_table() -> None:
    """UnReMix stands in every table twice: as printed, and with our defaults."""
    for name in TABLES:
        rows = {row.name: row.options for row in EXPERIMENTS[name].rows}
        (printed,) = [row for row in rows if row.endswith(", as printed")]
        ours = rows[printed.removesuffix(", as printed")]
        assert rows[printed] == {**ours, "loss.fidelity": "paper"}


def test_equal_options_are_one_run(tmp_path: Path) -> None:
    names = {
        (name, row.name): setting.job(row, setting.sources[0], 0).name
        for name in ("table1", "table2", "table3", "table5")
        for setting in [setting_of(name, "cpu", tmp_path)]
        for row in setting.rows
    }
    assert names["table1", "HCL"] == names["table2", "similarity (HCL)"]
    assert names["table2", "all"] == names["table3", "learned"] == names["table5", "pseudo-label"]
    assert len(set(names.values())) == 9 + 4 + 3 + 1
    mix = setting_of("mix", "cpu", tmp_path, 3)
    assert {job.name for job in mix.jobs} < {
        job.name
        for name in ("table1", "table3")
        for job in setting_of(name, "cpu", tmp_path, 3).jobs
    }


def test_missing_data_are_named_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10-images.zip").touch()
    monkeypatch.setenv("UNREMIX_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    setting = setting_of("table2", "cpu", tmp_path / "out", 2)
    note(replace(setting, sources=setting.sources[:1]))
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert reproduce("table2", seeds=2, output=str(tmp_path / "out"), console=console) == 0
    assert "Tiny-ImageNet, 100 classes: tiny-imagenet-100.zip" in printed.getvalue()
    assert "cs231n.stanford.edu" in printed.getvalue()
    assert "CIFAR-10 (JPEG), %" in (tmp_path / "out" / "table2" / "table.md").read_text()


def test_without_any_data_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "graphs", "--output", "out"]) == 1
    shown = capsys.readouterr()
    assert "MUTAG was not found; get it from https://" in shown.out
    assert "UNREMIX_DATA" in shown.out
    assert shown.err.count("\n") == 1
    assert not Path("out").exists()
    assert main(["reproduce", "sentences", "--output", "out", "--data", "pydocs"]) == 1
    assert "SentEval" in capsys.readouterr().out


def test_what_cannot_be_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["tabel2"], "did you mean 'table2'"),
        (["table13"], "or a number of the paper"),
        (["illustration", "--data", "digits"], "expected no --data for illustration"),
        (["illustration", "--output", __file__], "expected a folder, got the file"),
        (["all", "--data", "digits"], "for one table or figure"),
        (["table2", "--data", "[digits, digits]"], "got 'digits' twice"),
        (["table2", "--seeds", "0"], "seeds to be at least 1"),
        (["table2", "--seeds", "1000000000"], "at most 1000 seeds, got 1000000000; use fewer"),
        (["table2", "--jobs", "-1"], "jobs to be at least 1"),
        (["table2", "--options", "{epochs: many}"], "expected epochs to be a whole number"),
        (["table2", "--options", "{epoch: 3}"], "did you mean 'epochs'"),
    ):
        assert main(["reproduce", *words]) == 1
        shown = capsys.readouterr().err
        assert message in shown
        assert shown.count("\n") == 1
    for words, message in (
        (["--scale", "huge"], "smoke, cpu or paper"),
        (
            ["--options", "epochs=5"],
            'expected --options to be options by name, such as "{epochs: 5}"',
        ),
    ):
        assert main(["reproduce", "table2", *words]) == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_places_in_the_paper_are_names_too() -> None:
    names = {
        f"{kind}{number}": [one.name for one in module.chosen(f"{kind}{number}")]
        for kind, count in (("table", 6), ("figure", 12))
        for number in range(1, count + 1)
    }
    assert names["table4"] == [one.name for one in module.chosen("Table 4")] == ["sentences"]
    assert names["figure4"] == ["gallery", "contributions"]
    assert {name for found in names.values() for name in found} == set(EXPERIMENTS)


def test_an_experiment_without_runs_asks_for_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    assert reproduce("illustration", output="out", console=Console(file=printed, width=200)) == 0
    assert "not found" not in printed.getvalue()
    record = json.loads((tmp_path / "out" / "illustration" / "results.json").read_text())
    assert (record["seeds"], record["data"]) == (0, {})


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("illustration", "paper", "illustration needs no training."),
        ("table6", "cpu", "there are no data for it at the scale cpu"),
    ],
)
def test_a_dry_run_without_runs_says_why(
    name: str, scale: ScaleName, message: str, tmp_path: Path
) -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=300)
    assert reproduce(name, scale=scale, output=str(tmp_path), dry_run=True, console=console) == 0
    assert message in printed.getvalue()


def test_a_dry_run_names_missing_data_also_where_runs_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    note(setting_of("table2", "cpu", tmp_path / "out", 1), without=3)
    printed = io.StringIO()
    console = Console(file=printed, width=300)
    assert reproduce("table2", output="out", seeds=1, dry_run=True, console=console) == 0
    assert "cifar10-images.zip was not found" in printed.getvalue()


def test_the_command_line_names_every_experiment() -> None:
    (text,) = re.findall(r"name: Which: (.*?)\.\n", commands.reproduce.__doc__ or "", re.S)
    named = re.split(r",\s+(?:or )?", " ".join(text.split()))
    assert set(named) == {*EXPERIMENTS, "all"}


def test_other_data_keep_the_figures_of_the_paper(tmp_path: Path) -> None:
    given = sources_of(EXPERIMENTS["table1"], "cpu", ("/some/cifar-100-python.tar.gz", "mine.zip"))
    assert [(one.paper, one.title) for one in given] == [
        ("CIFAR-100", "CIFAR-100"), ("", "mine"),
    ]  # fmt: skip
    assert given[0].data == "/some/cifar-100-python.tar.gz"


def test_data_of_the_scale_keep_their_options(tmp_path: Path) -> None:
    """Named one by one, the paper's data sets give the runs that they give together."""
    usual = setting_of("table1", "paper", tmp_path, 1)
    for source in usual.sources:
        named = replace(usual, sources=sources_of(usual.experiment, "paper", (source.data,)))
        assert {job.name for job in named.jobs} == {
            usual.job(row, source, 0).name for row in usual.rows
        }


def test_equal_values_share_a_rank() -> None:
    values = {"a": 0.3, "b": 0.5, "c": 0.5, "d": 0.1}
    rows = [
        TableRow(name, False, 3, 0, None, {"knn": Cell(summarize([value] * 3), None)})
        for name, value in values.items()
    ]
    columns = [Measure("knn", "kNN", percent=True, decimals=1)]
    assert average_ranks(rows, columns, 3) == {"a": 3, "b": 1.5, "c": 1.5, "d": 4}
    assert average_ranks(rows, columns, 4) == average_ranks([], [], 3) == {}


@pytest.mark.parametrize("known", [10.0, None])
def test_a_dry_run_counts_what_would_be_done(
    known: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs whose encoders are gone are to be made again where these are needed, and only once."""
    names = ("table1", "curves", "gallery", "table6")
    settings = [setting_of(name, "smoke", tmp_path) for name in names]
    for setting in settings:
        note(setting)
        for name, record in setting.laboratory.results.records.items():
            setting.laboratory.results.records[name] = replace(record, cpu_seconds=known)
    monkeypatch.setattr(module, "estimate", lambda *_, **__: estimate_of(5))
    printed = io.StringIO()
    module.show_cost(settings, Console(file=printed, width=300))
    shown = [line.split() for line in printed.getvalue().splitlines()]
    to_do = {line[0]: line[-5] for line in shown if line and line[0] in EXPERIMENTS}
    assert to_do == {"table1": "0", "gallery": "2", "table6": "0"}
    assert "No further runs for curves." in printed.getvalue()
    assert "gallery, digits: 2 runs again" in printed.getvalue()
    assert f"In all {module.duration(2 * (known or 5.0))}, one run at a time." in printed.getvalue()


def test_made_up_data_have_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run knows the runs of a real one, and writes no data."""
    monkeypatch.setattr(module, "show_cost", lambda settings, _: planned.extend(settings[0].jobs))
    planned: list[Job] = []
    reproduce("table6", scale="smoke", output=str(tmp_path), dry_run=True, console=QUIET)
    assert [job.name for job in planned] == [
        job.name for job in setting_of("table6", "smoke", tmp_path).jobs
    ]
    assert not list(tmp_path.iterdir())


def test_what_an_experiment_cannot_use_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs without labels have no measures; a table of an earlier call is not shown as theirs."""
    monkeypatch.setattr(module, "lacking", lambda *_: None)
    setting = setting_of("table5", "cpu", tmp_path, 1)
    note(setting)
    for record in list(setting.laboratory.results.records.values()):
        setting.laboratory.results.add(replace(record, results={}))
    (tmp_path / "table5").mkdir()
    (tmp_path / "table5" / "table.md").write_text("earlier")
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert reproduce("table5", seeds=1, output=str(tmp_path), console=console) == 1
    assert "table5 is left out: " in printed.getvalue()
    assert "earlier" not in printed.getvalue()


def test_what_is_to_do_and_what_it_costs_is_said_first(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake()
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert reproduce("table5", scale="smoke", output=str(tmp_path), console=console) == 0
    assert printed.getvalue().startswith("3 runs to do, --dry_run estimates the time")
    setting = setting_of("table2", "smoke", tmp_path)
    for record in list(setting.laboratory.results.records.values()):
        setting.laboratory.results.add(replace(record, cpu_seconds=60.0))
    assert reproduce("table2", scale="smoke", output=str(tmp_path), console=console) == 0
    assert "3 runs to do, about 3 min" in printed.getvalue()


def test_a_single_encoder_has_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "show_cost", lambda *_: None)
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    reproduce(
        "gallery", scale="smoke", seeds=3, output=str(tmp_path), dry_run=True, console=console
    )
    assert "one seed in place of 3" in printed.getvalue()


# Stopped and started again; a stand-in takes the training's place


@pytest.mark.usefixtures("heard")
def test_stopped_and_started_again_gives_the_same_table(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def run(folder: Path, console: Console = QUIET) -> int:
        return reproduce("table2", scale="smoke", output=str(folder), jobs=2, console=console)

    jobs = setting_of("table2", "smoke", broken).jobs
    fake(slow=[jobs[2].name, jobs[3].name])

    def interrupt() -> None:
        wait_until((broken / "runs" / jobs[3].name / "checkpoints" / "last.ckpt").exists)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    printed = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run(broken, Console(file=printed, width=200))
    watcher.join()
    assert "2 of 5 runs done; resume with: unremix reproduce" in printed.getvalue()
    assert "3 of 5 runs to come" in (broken / "table2" / "table.md").read_text()
    fake()
    assert run(broken) == 0
    assert run(whole) == 0

    def kept(folder: Path) -> dict[str, Any]:
        record = json.loads((folder / "table2" / "results.json").read_text())
        for one in record["runs"]:
            del one["cpu_seconds"]
        return {name: record[name] for name in ("runs", "table", "average_rank")}

    assert kept(broken) == kept(whole)
    for name in ("table.csv", "table.md", "table2.png"):
        assert (broken / "table2" / name).read_bytes() == (whole / "table2" / name).read_bytes()


def test_a_failed_run_is_told(tmp_path: Path, fake: Callable[..., None]) -> None:
    jobs = setting_of("table2", "smoke", tmp_path).jobs
    fake(fail=[jobs[1].name])
    assert reproduce("table2", scale="smoke", output=str(tmp_path), console=QUIET) == 1
    text = (tmp_path / "table2" / "table.md").read_text()
    assert "1 of 5 runs to come" in text
    assert "| all |" in text


# The real training


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("warm_runs")
def test_every_name_in_smoke(tmp_path: Path) -> None:
    """All of them, on data that come with the package; stopped runs and records are shared."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert reproduce("all", scale="smoke", output=str(tmp_path), console=console) == 0
    runs = {path.name for path in (tmp_path / "runs").glob("[!.]*")}
    planned = {
        job.name
        for name in EXPERIMENTS
        for job in setting_of(name, "smoke", tmp_path).jobs
    }  # fmt: skip
    assert runs == planned
    for name in EXPERIMENTS:
        folder = tmp_path / name
        for file in ("table.md", "table.csv", "results.json"):
            assert (folder / file).stat().st_size > 50, (name, file)
        assert "Unfinished" not in (folder / "table.md").read_text()
        for suffix in ("png", "svg"):
            assert list(folder.glob(f"*.{suffix}")), name
    # Frames agree with the labels of the images that are shown.
    record = json.loads((tmp_path / "gallery" / "results.json").read_text())
    for row in ("HCL", "UnReMix"):
        for anchor in {one["anchor"] for one in record["records"]}:
            shown = [
                one for one in record["records"] if (one["row"], one["anchor"]) == (row, anchor)
            ]
            classes = [one["class"] for one in shown]
            assert len(shown) == 5
            for one in shown:
                false = one["class"] == one["anchor_class"]
                assert (one["frame"] == "false negative") == false
                redundant = not false and classes.count(one["class"]) > 1
                assert (one["frame"] == "redundant") == redundant
    # Columns over all anchors follow from the heaviest negatives of each.
    cells = lines_of((tmp_path / "gallery" / "table.md").read_text())
    for one in record["everywhere"]:
        labels = one["labels"].split()
        count = len(labels)
        picked = [[labels[int(c) % count] for c in line.split()] for line in one["heaviest"]]
        own = [labels[anchor % count] for anchor in range(2 * count)]
        false = np.mean([[c == o for c in p] for p, o in zip(picked, own, strict=True)])
        among = np.mean([(labels.count(o) - 1) / (count - 1) for o in own])
        distinct = np.mean([len(set(p)) / len(p) for p in picked])
        shown = [f"{100 * value:.1f}" for value in (false, among, distinct)]
        assert cells[one["row"]][-3:] == shown
    # Parts of a weight add up to it.
    with (tmp_path / "contributions" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    for place in "01234":
        parts = [float(one["contribution"]) for one in rows if one["place"] == place]
        (weight,) = {one["weight"] for one in rows if one["place"] == place}
        assert sum(parts) == pytest.approx(float(weight), rel=1e-4)
    cells = lines_of((tmp_path / "contributions" / "table.md").read_text())
    for name in PAPER_COMPONENTS:
        own = {one["place"]: one["contribution"] for one in rows if one["component"] == name}
        assert cells[name][1:] == [f"{float(own[place]):.3f}" for place in "01234"]
    # Deviations of gradients agree with their histograms, but for what these leave out.
    record = json.loads((tmp_path / "gradients" / "results.json").read_text())
    cells = lines_of((tmp_path / "gradients" / "table.md").read_text())
    for one in record["sizes"]:
        bins = [line for line in record["records"] if line["row"] == one["row"]]
        counts = np.array([line["count"] for line in bins])
        middles = np.array([(line["low"] + line["high"]) / 2 for line in bins])
        deviation = np.sqrt(np.average(middles**2, weights=counts))
        assert one["standard_deviation"] == pytest.approx(deviation, rel=0.1)
        assert cells[one["row"]][1] == f"{one['standard_deviation']:.3g}"
    # Without the runs' folders only those that need encoders are trained again.
    for path in (tmp_path / "runs").glob("[!.]*"):
        path.rename(tmp_path / f"gone-{path.name}")
    assert reproduce("table5", scale="smoke", output=str(tmp_path), console=console) == 0
    assert not list((tmp_path / "runs").glob("[!.]*"))
    assert reproduce("contributions", scale="smoke", output=str(tmp_path), console=console) == 0
    assert len(list((tmp_path / "runs").glob("[!.]*"))) == 1
