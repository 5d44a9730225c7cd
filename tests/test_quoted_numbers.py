"""Differences and means quoted on the pages are those of the committed runs."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy import stats

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DIFFERENCE = re.compile(r"([+-]?\d+\.\d+) \[([+-]?\d+\.\d+), ([+-]?\d+\.\d+)\]")
SPREAD = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")

Values = dict[tuple[str, ...], dict[int, float]]  # by setting and measure: percent by seed


def study() -> Values:
    """Runs of the study of weightings; those that chose and those that confirmed are apart."""
    found: Values = defaultdict(dict)
    for line in (ROOT / "studies" / "weighting" / "results.jsonl").read_text().splitlines():
        run = json.loads(line)
        stage = "chosen" if run["seed"] < 100 else "confirmed"
        for kind, measures in run["results"].items():
            for measure in ("knn", "linear.top1"):
                key = (run["data"], stage, measure, kind, run["row"])
                found[key][run["seed"]] = 100 * measures[measure]["value"]
    return found


def reproduced() -> Values:
    """Runs of the paper's tables: every measure of every row."""
    found: Values = defaultdict(dict)
    for line in (ROOT / "reproductions" / "cpu" / "results.jsonl").read_text().splitlines():
        run = json.loads(line)
        setting = re.sub(
            r"--(seed|name) \S+", "", run["command"]
        )  # tables share runs by other names
        for kind, measures in run["results"].items():
            for measure, one in measures.items():
                if "value" in one:
                    found[run["data"], measure, kind, setting][run["seed"]] = 100 * one["value"]
    return found


def differences(found: Values) -> list[tuple[float, float, float]]:
    """Mean and interval of every difference of two settings with equal seeds."""
    groups: dict[tuple[str, ...], list[dict[int, float]]] = defaultdict(list)
    for key, seeds in found.items():
        groups[key[:-2]].append(seeds)  # of the same data and measure
    made = []
    for settings in groups.values():
        for one, other in itertools.permutations(settings, 2):
            shared = sorted(one.keys() & other.keys())
            if len(shared) < 2:
                continue
            paired = [one[seed] - other[seed] for seed in shared]
            reach = stats.t.ppf(0.975, len(shared) - 1) * stdev(paired) / math.sqrt(len(shared))
            made.append((fmean(paired), fmean(paired) - reach, fmean(paired) + reach))
    return made


def near(shown: tuple[str, ...], values: tuple[float, ...]) -> bool:
    """Whether numbers are shown as these values, rounded."""
    for text, value in zip(shown, values, strict=True):
        half = 0.501 * 10 ** -len(text.partition(".")[2])
        if abs(float(text) - value) > half:
            return False
    return True


def section(page: str, end: str = "") -> str:
    text = (DOCS / page).read_text()
    return text.partition(end)[0] if end else text


@pytest.mark.parametrize(
    ("page", "end", "runs"),
    [
        ("results-study.md", "\n## Images: digits", study),
        ("results-paper.md", "", reproduced),
    ],
)
def test_quoted_differences_are_those_of_runs(page: str, end: str, runs: object) -> None:
    possible = differences(runs())  # type: ignore[operator]
    if page == "results-paper.md":  # which also quotes the study
        possible += differences(study())
    quoted = sorted(set(DIFFERENCE.findall(section(page, end))))
    assert len(quoted) > 30
    assert [shown for shown in quoted if not any(near(shown, one) for one in possible)] == []


def test_quoted_means_are_those_of_runs() -> None:
    """On the page of the study; test_docs.py compares the paper's tables line by line."""
    possible = [
        (fmean(seeds.values()), stdev(seeds.values()))
        for seeds in study().values()
        if len(seeds) > 1
    ]
    quoted = sorted(set(SPREAD.findall(section("results-study.md", "\n## Images: digits"))))
    assert len(quoted) > 20
    assert [shown for shown in quoted if not any(near(shown, one) for one in possible)] == []


def test_effective_numbers_are_those_of_runs() -> None:
    """ "93 of 127" on the page of the study."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in (ROOT / "studies" / "weighting" / "results.jsonl").read_text().splitlines():
        run = json.loads(line)
        value = run["metrics"][-1].get("effective_negatives")
        if run["seed"] < 100 and value is not None:
            one_way = "fidelity=paper" in run["row"] or "layout=one-way" in run["row"]
            found[run["row"], 127 if one_way else 254].append(value)
    possible = {(round(fmean(values)), of) for (_, of), values in found.items()}
    shown = re.findall(r"\| (\d+) of (\d+) \|", section("results-study.md"))
    assert len(shown) == 8
    assert {(int(value), int(of)) for value, of in shown} <= possible


def test_verdicts_on_the_paper_quote_its_tables() -> None:
    text = (DOCS / "paper.md").read_text().partition("## Reproduce")[0]
    possible = differences(reproduced()) + differences(study())
    quoted = sorted(set(DIFFERENCE.findall(text)))
    assert len(quoted) >= 10
    assert [shown for shown in quoted if not any(near(shown, one) for one in possible)] == []
