"""A page that compares runs: which is ahead, by how much, and which negatives each prefers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unremix.console.printing import rows_to_csv
from unremix.console.quantities import counted, duration
from unremix.console.values import LARGEST_YAML, read_yaml
from unremix.core.scores import PAPER_COMPONENTS
from unremix.core.weights import Weighting, hard_negatives, weigh
from unremix.domains import DOMAINS
from unremix.domains.options import flat_options
from unremix.evaluation.card import FEATURES, in_percent, judged, label_of, measures_of, scale_of
from unremix.evaluation.statistics import paired_difference, summarize
from unremix.evaluation.verdict import SMALLER_IS_BETTER, difference
from unremix.files.atomic_files import read_text, refuse_link, write_text
from unremix.losses import WeightingOptions
from unremix.report.charts import Chart, draw_intervals, mean_line
from unremix.report.page import page_data
from unremix.report.rendering import as_json, render
from unremix.report.storage import Stored
from unremix.report.words import difference_named, named
from unremix.training.run import Run, reading

SHOWN = 12  # negatives of an anchor
MOST_PAIRS = 15  # sentences; of more runs, each is compared with the reference alone
PLOTTED = 3  # measures with a plot of their own
MOST_WEIGHT = 1e30  # larger weights are shown as this
CONFIDENCE = 0.95
# Options that change neither what is learned nor how it is measured.
INCIDENTAL = (
    "seed", "name", "runs", "resume", "progress", "threads", "given", "accelerator", "devices",
    "num_nodes", "timeout_minutes", "evaluate_every", "audit_every", "checkpoint_every",
    "log_every", "loggers", "trust", "allow_changed_data", "profile", "recipe", "framework",
    "weighting", "mixing", "negatives",
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    name: str
    runs: dict[int, Run]  # by seed
    features: str = "trained"  # of the results of the runs

    @property
    def data(self) -> set[tuple[Any, ...]]:
        """What the encoders were measured on: its name, and how many items it has."""
        cards = [run.evaluation or {} for run in self.runs.values()]
        units = [domain.unit for domain in DOMAINS.values()]
        return {(card.get("data"), *(card.get(f"test_{kind}") for kind in units)) for card in cards}

    @cached_property
    def measures(self) -> dict[str, dict[int, dict[str, Any]]]:
        """The measures of the encoder, by path and seed."""
        by_path: dict[str, dict[int, dict[str, Any]]] = {}
        for seed, run in self.runs.items():
            results = judged((run.evaluation or {}).get("results"))
            for path, measure in measures_of(results.get(self.features, {})).items():
                by_path.setdefault(path, {})[seed] = measure
        return by_path

    @cached_property
    def metrics(self) -> list[list[dict[str, float]]]:
        """The rows of metrics.csv of each run."""
        return [run.metrics() for run in self.runs.values()]

    @cached_property
    def stored(self) -> list[Stored]:
        """What the runs' own pages show, of those that have it."""
        return [stored for run in self.runs.values() if (stored := Stored.read(run.path))]


@dataclass(frozen=True)
class Gap:
    """How far a group is ahead of another in a measure."""

    mean: float  # the mean difference, above 0 if the group is better
    low: float | None  # lower end of the 95 % interval; None if unknown
    high: float | None  # upper end
    seeds: tuple[int, int]  # how many runs of the group, and of the other
    paired: bool = True  # whether runs with the same seed were compared


def stored_weights(stored: Stored) -> Tensor:
    """The weights of a run's own loss in its batch, shape (A, A); 1 of a framework without."""
    how, mix = stored.about["weighting"], list[float]()
    scores = [torch.from_numpy(score.copy()) for score in stored.arrays["scores"]]
    negatives = torch.from_numpy(stored.arrays["negatives"].astype(bool))
    if how["kind"] == "unremix":
        hardness = how["hardness"] if how["scaling"] == "zscore-exp" else None
        options = WeightingOptions(scaling=how["scaling"], mass=how["mass"], hardness=hardness)
        weighting, mix = options.weighting(), how["mix"]
    elif how["kind"] == "hcl":
        weighting = hard_negatives(how["hardness"], over_temperature=how["over_temperature"])
        scores, mix = [scores[PAPER_COMPONENTS.index("similarity")]], [1.0]
    else:
        weighting, scores = Weighting(), []
    count = negatives.sum(1, keepdim=True)
    return weigh(scores, negatives, count, torch.tensor(mix), weighting, how["temperature"])


def _settings(run: Run) -> dict[str, Any]:
    """What a run was trained with, but for its seed; options of a section with a dot between."""
    options = {name: v for name, v in run.config.options().items() if name not in INCIDENTAL}
    return flat_options(options)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in their seed alone, named by their recipe and by the options that differ.

    If two such runs have the same seed, every run is a group, named by its folder.
    """
    settings = [(run.config.composed_name, _settings(run)) for run in runs]
    by_name: dict[str, list[Run]] = {}
    for run, (recipe, values) in zip(runs, settings, strict=True):
        # What differs between recipes alone needs no mention.
        same = [other for name, other in settings if name == recipe]
        mentioned = [o for o in values if len({repr(other.get(o)) for other in same}) > 1]
        name = " ".join([recipe, *(f"{option}={values.get(option)}" for option in mentioned)])
        by_name.setdefault(name, []).append(run)
    if any(len({run.config.seed for run in same}) < len(same) for same in by_name.values()):
        return [Group(run.path.name, {run.config.seed: run}) for run in runs]
    return [Group(name, {run.config.seed: run for run in same}) for name, same in by_name.items()]


def baselines(groups: Sequence[Group]) -> list[Group]:
    """What there is without training, by kind; of runs with the same seed, the first one's."""
    found: dict[str, dict[int, Run]] = {}
    for group in groups:
        for seed, run in group.runs.items():
            for kind in judged((run.evaluation or {}).get("results")):
                found.setdefault(kind, {}).setdefault(seed, run)
    found.pop("trained", None)
    return [Group(FEATURES.get(kind, kind), runs, kind) for kind, runs in found.items()]


def best_baseline(groups: Sequence[Group], path: str) -> Group | None:
    """The best of what there is without training, by a measure."""
    sign = -1 if path.rpartition(".")[2] in SMALLER_IS_BETTER else 1

    def level(group: Group) -> float:
        return sign * fmean(measure["value"] for measure in group.measures[path].values())

    return max((one for one in baselines(groups) if path in one.measures), key=level, default=None)


def gap(group: Group, other: Group, path: str) -> Gap | None:
    """How far a group is ahead; None if they have nothing in common to compare.

    With two or more seeds in common: Student's t over the paired differences. With two or more
    runs each and fewer common seeds: Welch's t. Else the error of the measurement of one run each,
    which knows nothing of other seeds.
    """
    ours, theirs = group.measures.get(path), other.measures.get(path)
    if not ours or not theirs or group.data != other.data:
        return None
    sign = -1 if path.rpartition(".")[2] in SMALLER_IS_BETTER else 1
    first, second = (
        {seed: sign * measure["value"] for seed, measure in measures.items()}
        for measures in (ours, theirs)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) > 1:
        paired = paired_difference([first[s] for s in seeds], [second[s] for s in seeds])
        return Gap(paired.mean, paired.low, paired.high, (len(seeds), len(seeds)))
    if min(len(ours), len(theirs)) > 1:
        from scipy.stats import ttest_ind  # type: ignore[import-untyped]

        values, others = list(first.values()), list(second.values())
        welch = ttest_ind(values, others, equal_var=False).confidence_interval(CONFIDENCE)
        counts = len(values), len(others)
        return Gap(fmean(values) - fmean(others), welch.low, welch.high, counts, paired=False)
    one, another = (seeds * 2) or (next(iter(ours)), next(iter(theirs)))
    known = difference(ours[one], theirs[another])
    if known is None:
        return Gap(first[one] - second[another], None, None, (1, 1))
    mean, *ends = (sign * value for value in known)
    return Gap(mean, min(ends), max(ends), (1, 1))


def sentence(group: Group, other: Group, found: Gap, measure: Mapping[str, Any], path: str) -> str:
    """A verdict on a pair, in a sentence."""
    (factor, digits), what = scale_of(measure), difference_named(path, measure)
    ours, theirs = found.seeds
    if not found.paired:
        seeds = f"{ours} and {theirs} seeds, not paired"
    else:
        seeds = f"{ours} seeds" if ours > 1 else "one seed each"
    size = f"{factor * abs(found.mean):.{digits}f}"
    if found.low is None or found.high is None:
        if found.mean == 0:
            return f"{group.name} and {other.name} are equal in {named(path, measure)}; {seeds}."
        return f"{group.name} and {other.name} differ by {size} {what}; no interval from {seeds}."
    low, high = factor * found.low, factor * found.high
    if found.low > 0 or found.high < 0:
        ahead, behind = (group, other) if found.mean > 0 else (other, group)
        ends = (low, high) if found.mean > 0 else (-high, -low)
        interval = f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"
        return f"{ahead.name} is ahead of {behind.name} by {size} {interval} {what}; {seeds}."
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]".replace("-", "−")
    value = f"{factor * found.mean:+.{digits}f}".replace("-", "−")
    return (
        f"No clear difference between {group.name} and {other.name}: {value} {interval} {what} "
        f"({group.name} − {other.name}); {seeds}."
    )


def _negatives(groups: Sequence[Group]) -> tuple[dict[str, Any] | None, str | None]:
    """The most weighted negatives of the same anchors under each run; else why there are none."""
    reports = [(group.name, group.stored[0]) for group in groups if group.stored]
    if len(reports) < 2:
        return None, "Fewer than two runs have a report.npz; write it with 'unremix report'."
    first = reports[0][1]
    if any(
        stored.about["names"] != first.about["names"]
        or not np.array_equal(stored.arrays["batch"], first.arrays["batch"])
        for _, stored in reports
    ):
        return None, "The runs were trained on different data: they have no anchors in common."
    data = page_data(first)
    for unused in ("scores", "negatives", "positions", "cosines", "neighbors", "clusters"):
        data.pop(unused, None)
    return data | {"runs": [{"name": name, **_heaviest(stored)} for name, stored in reports]}, None


def _heaviest(stored: Stored) -> dict[str, Any]:
    """The most weighted negatives of each anchor of a run, and its weight on false ones."""
    negatives = torch.from_numpy(stored.arrays["negatives"].astype(bool))
    weights = stored_weights(stored).clamp(max=MOST_WEIGHT)
    ranked = weights.masked_fill(~negatives, -torch.inf)
    top = ranked.sort(dim=1, stable=True, descending=True).indices[:, :SHOWN]
    false = torch.from_numpy(stored.arrays["suspects"]) * negatives
    counts = negatives.sum(1).tolist()  # an anchor with few negatives shows no others

    def rows(values: Tensor) -> list[list[float]]:
        return [row[:count] for row, count in zip(values.tolist(), counts, strict=True)]

    weighting = stored.about["weighting"]
    partly = weighting.get("filter") or weighting.get("own_scores")
    return {
        "top": rows(top),
        "weights": rows(weights.gather(1, top)),
        "suspects": rows(false.gather(1, top)),
        "false": ((weights * (false > 0)).sum(1) / weights.sum(1).clamp(min=1e-12)).tolist(),
        "note": "without its filter and scores of its own" if partly else None,
    }


def _example(groups: Sequence[Group], path: str) -> dict[str, Any]:
    """A measure as one of the runs has it."""
    return next(measure for group in groups for measure in group.measures.get(path, {}).values())


def _interval_plot(groups: Sequence[Group], path: str) -> dict[str, Any] | None:
    """How far the groups are ahead of the first in a measure: a plot, and the same as CSV."""
    first, example = groups[0], _example(groups, path)
    gaps = [(other, ahead) for other in groups[1:] if (ahead := gap(other, first, path))]
    if not gaps:
        return None
    less = path.rpartition(".")[2] in SMALLER_IS_BETTER
    unit = f"{difference_named(path, example)} ahead of {first.name}"
    unit += " (smaller is better)" * less
    factor, _ = scale_of(example)
    rows = [(other.name, ahead.mean, ahead.low, ahead.high) for other, ahead in gaps]
    scaled = [[name, *(value and factor * value for value in values)] for name, *values in rows]
    return {
        "title": label_of(path),
        "drawn": draw_intervals(rows, factor=factor, title=unit),
        "unit": unit[0].upper() + unit[1:],
        "csv": rows_to_csv([["name", unit, "low", "high"], *scaled]),
    }


def _curves(groups: Sequence[Group]) -> list[Chart]:
    charts = []
    seeds = " The band is one standard deviation over seeds."
    for column, (title, percent, good) in CURVES.items():
        lines = [mean_line(group.name, group.metrics, column) for group in groups]
        from_zero = column.startswith("effective")
        chart = Chart(title, lines, percent=percent, good=good, from_zero=from_zero)
        charts.append(replace(chart, good=good + seeds * chart.has_bands))
    return [chart for chart in charts if chart.drawn]


CURVES = {
    "knn": ("kNN accuracy, %", True, "Good: higher."),
    "loss": ("Loss", False, "Compare shapes, not heights: losses differ."),
    "effective_rank": (
        "Effective rank",
        False,
        "Dimensions in use. Near 1 is a collapse; more is not better by itself.",
    ),
    "effective_negatives": (
        "Effective negatives",
        False,
        "How many share the weight. Below 3, single samples decide.",
    ),
}


def _costs(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What the runs of each group took: epochs and seconds are means over them."""
    rows = []
    for group in groups:
        stored = [one.about for one in group.stored]
        seconds = [one["seconds"] for one in stored if one["seconds"]]
        devices = {one.get("trained", {}).get("device") or "–" for one in stored}
        rows.append(
            {
                "name": group.name,
                "runs": len(group.runs),
                "epochs": fmean(rows[-1]["epoch"] if rows else 0.0 for rows in group.metrics),
                "parameters": stored[-1]["parameters"] if stored else None,
                "seconds": fmean(seconds) if seconds else None,
                "device": "; ".join(sorted(devices)) or "–",
            }
        )
    return rows


def read_comparison(folder: Path) -> dict[str, Any]:
    """What the ``comparison.yaml`` of a folder says.

    Raises:
        ValueError: If it is damaged.
    """
    file = folder / "comparison.yaml"
    with reading(file, "restore a copy, or compare again with another --output"):
        options: dict[str, Any] = read_yaml(
            read_text(file, LARGEST_YAML, inside=folder), as_written=True
        )
        if not all(isinstance(name, str) for name in (options["reference"], *options["recipes"])):
            raise TypeError("recipes that are not names")
        return options


def runs_of_comparison(folder: Path) -> tuple[list[Path], str | None] | None:
    """The finished runs of a comparison and its reference; None for another folder."""
    file = folder / "comparison.yaml"
    if not file.exists():
        return None
    options = read_comparison(folder)
    refuse_link(folder / "runs")
    found = sorted(path.parent for path in (folder / "runs").glob("*/evaluation.json"))
    for run in found:
        refuse_link(run)
    order = {name: number for number, name in enumerate(options["recipes"])}
    found.sort(key=lambda path: order.get(path.name.rpartition("-")[0], len(order)))
    return found, options["reference"]


def write_comparison_of(folder: Path, *, trust: bool = False) -> Path | None:
    """Write ``report.html`` of a comparison's folder; None while fewer than two runs are done.

    ``trust`` is that of :func:`write_comparison`.
    """
    found = runs_of_comparison(folder)
    if found is None or len(found[0]) < 2:
        return None
    runs, reference = found
    return write_comparison(runs, folder / "report.html", reference=reference, trust=trust)


def _mark(runs: Sequence[str | Path]) -> str:
    """A digest of the runs that a page compares; their order does not matter."""
    folders = sorted(str(Path(run).resolve()) for run in runs)
    digest = hashlib.sha256("\0".join(folders).encode("utf-8", "surrogateescape")).hexdigest()
    return digest[:16]


def _check_runs(runs: Sequence[str | Path]) -> None:
    """Refuse fewer than two runs, and one that is named twice."""
    folders = [Path(run).resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ValueError(f"expected runs that differ, got {str(run)!r} twice; name each once")
    if len(runs) < 2:
        raise ValueError(
            f"expected at least two runs to compare, got {len(runs)}; name more run folders"
        )


def comparison_page(runs: Sequence[str | Path]) -> Path:
    """The default page of a comparison: ``comparison.html`` in this folder.

    Raises:
        FileExistsError: If it compares other runs.
        ValueError: For fewer than two runs, or one that is named twice.
    """
    _check_runs(runs)
    page = Path("comparison.html")
    if page.exists() and _mark(runs) not in read_text(page):
        raise FileExistsError(
            f"expected no page of other runs at {page}, got one; name another with -o, or remove it"
        )
    return page


def write_comparison(
    runs: Sequence[str | Path],
    path: str | Path,
    *,
    reference: str | None = None,
    trust: bool = False,
) -> Path:
    """Write a page that compares runs.

    Runs that differ in their seed alone count as one. Differences are paired by seed where both
    have the same seeds. Runs that were measured on different data are not compared.

    Args:
        runs: Run folders, at least two.
        path: The page.
        reference: The recipe that others are compared with; by default the first.
        trust: Whether code may run that a run's folder names.

    Returns:
        The page.

    Raises:
        ValueError: For fewer than two runs, or one that is named twice.
    """
    _check_runs(runs)
    groups = grouped([Run(run, trust=trust) for run in runs])
    groups.sort(key=lambda group: group.name != reference)
    every = dict.fromkeys(path for group in groups for path in group.measures)
    paths = [path for path in every if path.rpartition(".")[2] != "top5"]
    paths.sort(key=lambda one: one != "knn")
    pairs = [(second, first) for first, second in combinations(groups, 2)]
    if len(pairs) > MOST_PAIRS:
        pairs = [(group, groups[0]) for group in groups[1:]]
    plots = [plot for path in paths[:PLOTTED] if (plot := _interval_plot(groups, path)) is not None]
    without = best_baseline(groups, paths[0]) if paths else None
    compared = pairs + ([] if without is None else [(group, without) for group in groups])
    gaps = [(a, b, between) for a, b in compared if paths and (between := gap(a, b, paths[0]))]
    example = _example(groups, paths[0]) if paths else {}
    says = [sentence(a, b, between, example, paths[0]) for a, b, between in gaps]
    different = [f"{a.name} and {b.name}" for a, b in pairs if a.data != b.data]
    if different:
        says.append(f"Measured on different data, and not compared: {'; '.join(different)}.")
    data = {name for group in groups for name, *_ in group.data}
    on = f" on {data.pop()}" if len(data) == 1 and None not in data else ""
    negatives, why = _negatives(groups)
    table, table_csv = _tables([*groups, *baselines(groups)], paths)
    page = render(
        "comparison.html",
        "comparison",
        title=f"{counted(len(groups), 'setting')} compared" + on,
        mark=_mark(runs),
        says=says,
        paired=bool(gaps) and all(between.paired for _, _, between in gaps),
        single=any(between.seeds == (1, 1) for _, _, between in gaps),
        several=any(len(group.runs) > 1 for group in groups),
        plots=plots,
        table=table,
        table_csv=table_csv,
        charts=_curves(groups),
        data=None if negatives is None else as_json(negatives),
        about=negatives,
        why=why,
        costs=_costs(groups),
        duration=duration,
    )
    target = Path(path)
    write_text(target, page)
    return target


def _tables(
    groups: Sequence[Group], paths: Sequence[str]
) -> tuple[tuple[list[str], list[list[str]]], str]:
    """Mean ± standard deviation of each measure, a row per group; and as CSV, in two columns."""
    headings, names = ["Recipe", "Runs"], ["recipe", "runs"]
    shown = [[group.name, str(len(group.runs))] for group in groups]
    numbers: list[list[object]] = [[group.name, len(group.runs)] for group in groups]
    for path in paths:
        values = [group.measures.get(path, {}).values() for group in groups]
        shares = all(in_percent(measure) for measures in values for measure in measures)
        factor, digits = scale_of({"percent": shares})
        headings.append(f"{label_of(path)}{', %' * shares}")
        names += [label_of(path), f"{label_of(path)}, deviation"]
        for cells, record, measures in zip(shown, numbers, values, strict=True):
            short = summarize([one["value"] for one in measures]) if measures else None
            some = [] if short is None else [short.mean, short.deviation]
            said = [f"{factor * value:.{digits}f}" for value in some if value is not None]
            cells.append(" ± ".join(said) or "–")
            record += some or [None, None]
    return (headings, shown), rows_to_csv([names, *numbers])
