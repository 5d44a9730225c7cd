"""A page that compares runs: which is ahead, by how much, and which negatives each prefers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from markupsafe import Markup
from torch import Tensor

from unremix.data.atomic_files import write_text
from unremix.data.quantities import duration
from unremix.evaluation.card import in_percent, label_of, measures_of, scale_of
from unremix.evaluation.statistics import Difference, paired_difference, summarize
from unremix.evaluation.verdict import difference
from unremix.report.charts import Chart, Interval, Line, draw, draw_intervals, looks
from unremix.report.page import page_data
from unremix.report.rendering import as_json, render
from unremix.report.storage import Stored
from unremix.training.run import Run

SHOWN = 12  # negatives of an anchor
MOST_PAIRS = 15  # sentences; of more runs, each is compared with the reference alone
PLOTTED = 3  # measures with a plot of their own


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Args:
        name: What to call them.
        runs: By seed.
    """

    name: str
    runs: dict[int, Run]

    def values(self, path: str) -> dict[int, dict[str, Any]]:
        """A measure of the trained encoder, by seed."""
        found = {}
        for seed, run in self.runs.items():
            results = (run.evaluation or {}).get("results") or {}
            measure = measures_of(results.get("trained", {})).get(path)
            if measure is not None:
                found[seed] = measure
        return found


def stored_weights(stored: Stored) -> Tensor:
    """The weights of a run's own loss in its batch, shape (A, A)."""
    from unremix.report.collect import own_weights  # with it, all that reads data

    scores = [torch.from_numpy(score.copy()) for score in stored.arrays["scores"]]
    negatives = torch.from_numpy(stored.arrays["negatives"].astype(bool))
    return own_weights(scores, negatives, stored.about["weighting"])


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by recipe; by folder, where two runs of a recipe have the same seed."""
    recipes: dict[str, list[Run]] = {}
    for run in runs:
        recipes.setdefault(run.config.composed_name, []).append(run)
    distinct = all(len({r.config.seed for r in same}) == len(same) for same in recipes.values())
    if distinct:
        return [
            Group(name, {run.config.seed: run for run in same}) for name, same in recipes.items()
        ]
    return [Group(run.path.name, {run.config.seed: run}) for run in runs]


def gap(group: Group, other: Group, path: str) -> Difference | None:
    """How far a group is ahead; None where they have nothing in common to compare.

    With two or more seeds in common: Student's t over the paired differences. With one run each:
    the error of the measurement, which knows nothing of other seeds.
    """
    ours, theirs = group.values(path), other.values(path)
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) >= 2:
        ahead, behind = ([values[seed]["value"] for seed in seeds] for values in (ours, theirs))
        return paired_difference(ahead, behind)
    if not ours or not theirs:
        return None
    first, second = (next(iter(values.values())) for values in (ours, theirs))
    if seeds:
        first, second = ours[seeds[0]], theirs[seeds[0]]
    found = difference(first, second)
    if found is None:
        return Difference(1, first["value"] - second["value"], None, None)
    return Difference(1, *found)


def sentence(
    group: Group, other: Group, found: Difference, measure: Mapping[str, Any], path: str
) -> str:
    """A verdict on a pair in words."""
    share = in_percent(measure)
    (factor, digits), unit = scale_of(measure), " points" * share
    what = f"{unit} of {label_of(path)}{' accuracy' * share}"
    seeds = f"{found.count} seeds" if found.count > 1 else "one seed each"
    size = f"{factor * abs(found.mean):.{digits}f}"
    if found.low is None or found.high is None:
        if found.mean == 0:
            return f"{group.name} and {other.name} are equal in {label_of(path)}; {seeds}."
        return (
            f"{group.name} and {other.name} differ by {size}{what}; {seeds}, which tell no error."
        )
    low, high = factor * found.low, factor * found.high
    caution = "" if found.count > 1 else (
        " The interval is the measurement’s error alone: another seed may reverse the order."
    )  # fmt: skip
    if found.low > 0 or found.high < 0:
        ahead, behind = (group, other) if found.mean > 0 else (other, group)
        ends = (low, high) if found.mean > 0 else (-high, -low)
        interval = f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"
        return (
            f"{ahead.name} is ahead of {behind.name} by {size} {interval}{what}; {seeds}.{caution}"
        )
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]".replace("-", "−")
    value = f"{factor * found.mean:+.{digits}f}".replace("-", "−")
    return (
        f"No clear difference between {group.name} and {other.name}: {value} {interval}{what}; "
        f"{seeds}.{caution}"
    )


@dataclass
class Negatives:
    """What the page shows of the negatives.

    Args:
        data: For the script; None where the runs have no items in common.
        why: Why there are none.
    """

    data: dict[str, Any] | None = None
    why: str | None = None
    names: list[str] = field(default_factory=list)


def _negatives(groups: Sequence[Group]) -> Negatives:
    """The most weighted negatives of the same anchors under each run."""
    found = []
    for group in groups:
        stored = next(
            (s for run in group.runs.values() if (s := Stored.read(run.path)) is not None), None
        )
        if stored is not None:
            found.append((group.name, stored))
    if len(found) < 2:
        return Negatives(
            why="Fewer than two runs have a report.npz; write it with 'unremix report'."
        )
    first = found[0][1]

    def same(stored: Stored) -> bool:
        return stored.about["names"] == first.about["names"] and np.array_equal(
            stored.arrays["batch"], first.arrays["batch"]
        )

    if not all(same(stored) for _, stored in found):
        return Negatives(
            why="The runs were trained on different data: they have no anchors in common."
        )
    shown = []
    for name, stored in found:
        negatives = stored.arrays["negatives"].astype(bool)
        weights = stored_weights(stored)
        ranked = weights.masked_fill(~torch.from_numpy(negatives), -torch.inf)
        top = ranked.sort(dim=1, stable=True, descending=True).indices[:, :SHOWN]
        false = torch.from_numpy(stored.arrays["suspects"]) * torch.from_numpy(negatives)
        on_false = (weights * (false > 0)).sum(1) / weights.sum(1).clamp(min=1e-12)
        shown.append(
            {
                "name": name,
                "kind": stored.about["weighting"]["kind"],
                "top": top.tolist(),
                "weights": weights.gather(1, top).tolist(),
                "suspects": false.gather(1, top).tolist(),
                "false": on_false.tolist(),
            }
        )
    data = page_data(first)
    for unused in ("scores", "negatives", "positions", "cosines", "neighbors", "clusters"):
        data.pop(unused, None)
    return Negatives(data | {"runs": shown}, names=[name for name, _ in found])


def _curves(groups: Sequence[Group], columns: Mapping[str, tuple[str, bool, str]]) -> list[Chart]:
    from unremix.report.curves import mean_curve

    charts = []
    for column, (title, percent, good) in columns.items():
        lines = []
        for group in groups:
            curve = mean_curve([run.metrics() for run in group.runs.values()], column)
            if curve is None:
                continue
            points = list(zip(curve.epochs, curve.mean.tolist(), strict=True))
            band = None
            if curve.deviation is not None:
                ends = zip(curve.mean - curve.deviation, curve.mean + curve.deviation, strict=True)
                band = [(float(low), float(high)) for low, high in ends]
            lines.append(Line(group.name, points, band))
        if lines:
            charts.append(Chart(title, lines, percent=percent, good=good))
    return charts


CURVES = {
    "knn": (
        "kNN accuracy, %",
        True,
        "Good: higher. The band is one standard deviation over seeds.",
    ),
    "loss": ("Loss", False, "Each recipe has a loss of its own: compare shapes, not heights."),
    "effective_rank": ("Effective rank", False, "Dimensions that the embeddings use."),
    "effective_negatives": ("Effective negatives", False, "How many negatives share the weight."),
}


def _costs(groups: Sequence[Group]) -> list[list[str]]:
    rows = []
    for group in groups:
        epochs, seconds, parameters = [], [], None
        for run in group.runs.values():
            metrics, stored = run.metrics(), Stored.read(run.path)
            epochs.append(metrics[-1]["epoch"] if metrics else 0.0)
            if stored is not None:
                parameters = stored.about["parameters"]
                seconds.append(stored.about["seconds"] or 0.0)
        time = sum(seconds) / len(seconds) if seconds else None
        trained = sum(epochs) / len(epochs)
        rows.append(
            [
                group.name,
                str(len(group.runs)),
                f"{trained:g}",
                "–" if parameters is None else f"{parameters:,}",
                "–" if time is None else duration(time),
                "–" if not time or not trained else f"{time / trained:.2f} s",
            ]
        )
    return rows


def runs_of_comparison(folder: Path) -> tuple[list[Path], str | None] | None:
    """The finished runs of a comparison's folder and its reference; None if it is none."""
    file = folder / "comparison.yaml"
    if not file.exists():
        return None
    options = yaml.safe_load(file.read_text(encoding="utf-8"))
    found = sorted(path.parent for path in (folder / "runs").glob("*/evaluation.json"))
    order = {name: number for number, name in enumerate(options.get("recipes", ()))}
    found.sort(key=lambda path: order.get(path.name.rpartition("-")[0], len(order)))
    return found, options.get("reference")


def write_comparison_of(folder: Path) -> Path | None:
    """Write ``report.html`` of a comparison's folder; None while fewer than two runs are done.

    Args:
        folder: What ``unremix compare`` has written.
    """
    found = runs_of_comparison(folder)
    if found is None or len(found[0]) < 2:
        return None
    runs, reference = found
    title = f"Comparison on {folder.name}"
    return write_comparison(runs, folder / "report.html", reference=reference, title=title)


def _mark(runs: Sequence[str | Path]) -> str:
    """A digest by which a page tells which runs it compares, whatever their order."""
    folders = sorted(str(Path(run).resolve()) for run in runs)
    digest = hashlib.sha256("\0".join(folders).encode("utf-8", "surrogateescape")).hexdigest()
    return digest[:16]


def _check_runs(runs: Sequence[str | Path]) -> None:
    """Refuse fewer than two runs, and one that is named twice."""
    folders = [Path(run).resolve() for run in runs]
    twice = [run for run, folder in zip(runs, folders, strict=True) if folders.count(folder) > 1]
    if twice:
        raise ValueError(
            f"expected runs that differ, got {str(twice[0])!r} twice; name each run once"
        )
    if len(runs) < 2:
        raise ValueError(
            f"expected at least two runs to compare, got {len(runs)}; name more run folders"
        )


def comparison_page(runs: Sequence[str | Path]) -> Path:
    """The page of a comparison whose user named none: ``comparison.html`` in this folder.

    Args:
        runs: The run folders.

    Raises:
        FileExistsError: If it compares other runs.
        ValueError: For fewer than two runs, or one that is named twice.
    """
    _check_runs(runs)
    page = Path("comparison.html")
    if page.exists() and _mark(runs) not in page.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(
            f"expected no page of other runs at {page}, got one; name another with -o, or remove it"
        )
    return page


def write_comparison(
    runs: Sequence[str | Path],
    path: str | Path,
    *,
    reference: str | None = None,
    title: str | None = None,
) -> Path:
    """Write a page that compares runs.

    Runs of one recipe with different seeds count as one. Differences are paired by seed.

    Args:
        runs: Run folders, at least two.
        path: The page.
        reference: The recipe that others are compared with; by default the first.
        title: What to call it.

    Returns:
        The page.

    Raises:
        ValueError: For fewer than two runs, or one that is named twice.
    """
    _check_runs(runs)
    groups = grouped([Run(run) for run in runs])
    groups.sort(key=lambda group: group.name != reference)
    paths = list(dict.fromkeys(p for g in groups for run in g.runs.values() for p in _paths(run)))
    paths.sort(key=lambda one: one != "knn")
    says, plots = [], []
    pairs = list(combinations(groups, 2))
    if len(pairs) > MOST_PAIRS:
        pairs = [(groups[0], group) for group in groups[1:]]
    for measure in paths[:PLOTTED]:
        example = next(iter(m for g in groups for m in g.values(measure).values()))
        share = in_percent(example)
        gaps = [(other, found) for other in groups[1:] if (found := gap(other, groups[0], measure))]
        if gaps:
            unit = f"{'points of ' * share}{label_of(measure)}, difference to {groups[0].name}"
            intervals = [Interval(o.name, f.mean, f.low, f.high) for o, f in gaps]
            plots.append(
                (label_of(measure), draw_intervals(
                    intervals, factor=100 if share else 1, unit=unit, title=unit
                ))
            )  # fmt: skip
        if measure == paths[0]:
            says = [
                sentence(a, b, found, example, measure)
                for a, b in pairs
                if (found := gap(a, b, measure)) is not None
            ]
    charts = _curves(groups, CURVES)
    negatives = _negatives(groups)
    page = render(
        "comparison.html",
        "comparison",
        title=title or f"{len(groups)} recipes compared",
        mark=_mark(runs),
        groups=groups,
        says=says,
        plots=plots,
        table=_table(groups, paths),
        charts=[(c, Markup(svg), looks(c)) for c in charts if (svg := draw(c)) is not None],
        data=None if negatives.data is None else as_json(negatives.data),
        about=negatives.data,
        why=negatives.why,
        costs=_costs(groups),
    )
    target = Path(path)
    write_text(target, page)
    return target


def _paths(run: Run) -> list[str]:
    results = (run.evaluation or {}).get("results") or {}
    return [p for p in measures_of(results.get("trained", {})) if p.rpartition(".")[2] != "top5"]


def _table(groups: Sequence[Group], paths: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Mean ± standard deviation of each measure, a row per group."""
    headings, columns = ["Recipe", "Runs"], []
    for path in paths:
        values = [[m["value"] for m in group.values(path).values()] for group in groups]
        shares = all(in_percent(m) for g in groups for m in g.values(path).values())
        factor, digits = scale_of({"percent": shares})
        headings.append(f"{label_of(path)}{', %' * shares}")
        cells = []
        for found in values:
            if not found:
                cells.append("–")
                continue
            short = summarize(found)
            spread = "" if short.deviation is None else f" ± {factor * short.deviation:.{digits}f}"
            cells.append(f"{factor * short.mean:.{digits}f}{spread}")
        columns.append(cells)
    rows = [
        [group.name, str(len(group.runs)), *(cells[number] for cells in columns)]
        for number, group in enumerate(groups)
    ]
    return headings, rows
