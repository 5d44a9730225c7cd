"""What changes over epochs, and with the number of classes: curves, mix and diversity."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unremix.core.scores import PAPER_COMPONENTS
from unremix.evaluation.card import FEATURES
from unremix.evaluation.statistics import summarize
from unremix.experiments.paper.comparison import make_comparison, records_of
from unremix.experiments.paper.records import Made, Row, Setting
from unremix.experiments.paper.scales import Source
from unremix.experiments.results import TRAINED
from unremix.experiments.tables import Grid
from unremix.report.figures import Panel, add_legend, learning_curves, mean_curve
from unremix.report.style import COMPONENT_COLORS, DASHES, GRAYS, PAGE, looks_of

UNTRAINED = "untrained"


def make_probe_curves(setting: Setting) -> Made:
    """Linear accuracy over the probe's epochs, a panel per data set."""
    runs: dict[str, list[list[dict[str, float]]]] = {}
    ends: dict[tuple[str, str], list[float]] = {}  # of the baselines, by data set and kind
    lines, records = [], []
    for row, source, record in setting.finished:
        curves = record.probe_curves
        for kind in (kind for kind in FEATURES if kind != TRAINED):
            ends.setdefault((source.title, kind), []).extend(curves.get(kind, [])[-1:])
        points = list(enumerate(curves.get(TRAINED, []), start=1))
        rows = [{"epoch": float(epoch), source.title: value} for epoch, value in points]
        runs.setdefault(row.name, []).append(rows)
        records += [
            {"row": row.name, "data": source.title, "seed": record.seed,
             "probe_epoch": epoch, "accuracy": value}
            for epoch, value in points
        ]  # fmt: skip
    titles = [source.title for source in setting.sources]
    for name, seeds in runs.items():
        cells = []
        for title in titles:
            curve = mean_curve(seeds, title)
            marks = [] if curve is None else [curve.mean[0], curve.mean[-1]]
            cells.append(" → ".join(f"{100 * value:.1f}" for value in marks) or "–")
        lines.append([name, *cells])
    headings = ["row", *(f"{title}, %, first → last probe epoch" for title in titles)]
    panels = []
    for title in titles:
        levels = {
            FEATURES[kind]: fmean(values)
            for (data, kind), values in ends.items()
            if data == title and values
        }
        panels.append(Panel(title, title, percent=True, levels=levels, axis="probe epoch"))
    figure = learning_curves(runs, panels)
    return Made(
        [("", Grid(headings, lines))],
        records,
        {} if figure is None else {setting.experiment.name: figure},
    )


FIXED = "fixed"  # the row of Table 3 whose three shares are equal and stay so

Shares = dict[str, dict[str, dict[int, list[dict[str, float]]]]]


def _shares(setting: Setting, source: Source) -> Shares:
    """By row, component and seed: the share over the epochs, as rows of metrics."""
    shares: Shares = {}
    for row in setting.rows_on(source):
        for record in setting.records(row, source):
            for component in PAPER_COMPONENTS:
                points = [
                    {"epoch": one["epoch"], "share": one[f"mix_{component}"]}
                    for one in record.metrics
                    if f"mix_{component}" in one
                ]
                shares.setdefault(row.name, {}).setdefault(component, {})[record.seed] = points
    return shares


def make_mix(setting: Setting) -> Made:
    """The three weights over the epochs, and with labels the accuracy of each way of mixing them.

    A panel for each data set and each way of learning them.
    """
    compared = make_comparison(setting) if records_of(setting) else Made((), ())
    headings = ["row", "data", *PAPER_COMPONENTS]
    lines: list[list[str]] = []
    records: list[dict[str, Any]] = []
    learned = [row.name for row in setting.rows if row.name != FIXED]
    figure = Figure(figsize=(PAGE, 0.6 + 1.7 * len(setting.sources)), layout="constrained")
    drawn = figure.subplots(
        len(setting.sources), len(learned), squeeze=False, sharex=True, sharey="row"
    )
    for panels, source in zip(drawn, setting.sources, strict=True):
        for name, components in _shares(setting, source).items():
            axes = None if name == FIXED else panels[learned.index(name)]
            last = []
            for (component, seeds), dash in zip(components.items(), DASHES, strict=False):
                curve = mean_curve(list(seeds.values()), "share")
                if curve is None:
                    last.append("–")
                    continue
                if axes is not None:
                    axes.plot(
                        curve.epochs, curve.mean, color=COMPONENT_COLORS[component], lw=1.5,
                        linestyle=dash, label=component,
                    )  # fmt: skip
                ends = summarize([points[-1]["share"] for points in seeds.values() if points])
                spread = "–" if ends.deviation is None else f"{ends.deviation:.3f}"
                last.append(f"{ends.mean:.3f} ± {spread}")
                records += [
                    {"row": name, "data": source.title, "component": component, "seed": seed,
                     "epoch": point["epoch"], "share": point["share"]}
                    for seed, points in seeds.items()
                    for point in points
                ]  # fmt: skip
            lines.append([name, source.title, *last])
        for axes in panels:
            axes.axhline(1 / len(PAPER_COMPONENTS), color=GRAYS[0], lw=0.8, label=FIXED)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.grid(True)
        panels[0].set_ylabel(f"λ, {source.title}".replace(", ", ",\n"))
    for axes, name in zip(drawn[0], learned, strict=True):
        axes.set_title(name)
    for axes in drawn[-1]:
        axes.set_xlabel("epoch")
    add_legend(figure)
    return replace(
        compared,
        grids=[("λ at the end", Grid(headings, lines)), *compared.grids],
        records=records,
        figures={setting.experiment.name: figure},
    )


def make_diversity(setting: Setting) -> Made:
    """Accuracy against the number of classes that negatives come from."""
    compared = make_comparison(setting)
    (path,) = setting.experiment.measures
    figure = Figure(figsize=(PAGE, 2.7), layout="constrained")
    drawn = figure.subplots(1, len(setting.sources), squeeze=False)[0]
    look = looks_of(["simclr"])["simclr"]
    for axes, source in zip(drawn, setting.sources, strict=True):
        rows = setting.rows_on(source)
        summaries = {
            int(row.options["loss.negative_classes"]): summarize(values)
            for row in rows
            if (values := _values(setting, row, source, TRAINED, path))
        }
        axes.errorbar(
            list(summaries), [one.mean for one in summaries.values()],
            yerr=[one.deviation or 0.0 for one in summaries.values()],
            color=look.color, marker=look.marker, ms=4, lw=1.5, capsize=2, label="SimCLR",
        )  # fmt: skip
        floors = [one for row in rows for one in _values(setting, row, source, UNTRAINED, path)]
        if floors:
            axes.axhline(
                summarize(floors).mean, color=GRAYS[0], linestyle=DASHES[1], lw=1,
                label=FEATURES[UNTRAINED],
            )  # fmt: skip
        axes.set(title=source.title, xlabel="classes that negatives come from")
        axes.set_xticks(list(summaries))
        axes.grid(True)
    drawn[0].set_ylabel("kNN, top 5, %")
    add_legend(figure)
    return replace(compared, figures={setting.experiment.name: figure})


def _values(setting: Setting, row: Row, source: Source, kind: str, path: str) -> list[float]:
    """A measure of a row's finished runs on a data set, in percent."""
    values = [record.measure(path, kind) for record in setting.records(row, source)]
    return [100 * value for value in values if value is not None]
