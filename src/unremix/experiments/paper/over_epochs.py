"""What changes over epochs, and with the number of classes: curves, mix and diversity."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from unremix.core.scores import PAPER_COMPONENTS
from unremix.evaluation.card import FEATURES
from unremix.evaluation.statistics import summarize
from unremix.experiments.paper.comparison import make_comparison, records_of
from unremix.experiments.paper.experiment import Made, Setting
from unremix.experiments.results import TRAINED
from unremix.experiments.tables import Grid, Measure
from unremix.report.charts import Chart, Line, mean_line, points_of
from unremix.report.figures import learning_curves
from unremix.report.style import COMPONENT_COLORS, Look

UNTRAINED = "untrained"
FIXED = "fixed"  # the row of Table 3 whose three shares are equal and stay so
SHARE = Measure("share", "λ", percent=False, decimals=3)


def make_probe_curves(setting: Setting) -> Made:
    """Linear accuracy over the probe's epochs, a panel per data set."""
    finished = setting.finished
    records = [
        {"row": row.name, "data": source.title, "seed": record.seed,
         "probe_epoch": epoch, "accuracy": value}
        for row, source, record in finished
        for epoch, value in enumerate(record.probe_curves.get(TRAINED, []), start=1)
    ]  # fmt: skip
    names = dict.fromkeys(row.name for row, _, _ in finished)
    charts = []
    for source in setting.sources:
        here = [(row.name, run.probe_curves) for row, data, run in finished if data == source]
        lines = []
        for name in names:
            curves = [by_kind.get(TRAINED, []) for row, by_kind in here if row == name]
            runs = [[{"epoch": e, "top1": v} for e, v in enumerate(curve, 1)] for curve in curves]
            lines.append(mean_line(name, runs, "top1"))
        levels = {}
        for kind, name in FEATURES.items():
            ends = [by_kind[kind][-1] for _, by_kind in here if by_kind.get(kind)]
            if kind != TRAINED and ends:
                levels[name] = fmean(ends)
        charts.append(Chart(source.title, lines, levels, percent=True, unit="probe epoch"))

    def ends_of(line: Line) -> str:
        ends = [*line.points[:1], *line.points[-1:]]
        return " → ".join(f"{100 * value:.1f}" for _, value in ends) or "–"

    cells = zip(names, *([ends_of(line) for line in chart.lines] for chart in charts), strict=True)
    headings = ["row", *(f"{chart.title}, %, first → last probe epoch" for chart in charts)]
    figure = learning_curves(charts)
    return Made(
        [("", Grid(headings, list(map(list, cells))))],
        records,
        {} if figure is None else {setting.experiment.name: figure},
    )


def make_mix(setting: Setting) -> Made:
    """The three weights over the epochs, and with labels the accuracy of each way of mixing them.

    A panel for each data set and each way of learning them.
    """
    compared = make_comparison(setting) if records_of(setting) else Made((), ())
    lines, records, charts = [], [], []
    for source in setting.sources:
        for row in setting.rows_on(source):
            runs = setting.records(row, source)
            cells = []
            for component in PAPER_COMPONENTS:
                shares = {run.seed: points_of(run.metrics, f"mix_{component}") for run in runs}
                ends = [[*points.values()][-1] for points in shares.values() if points]
                cells.append(SHARE.summary(summarize(ends)) if ends else "–")
                records += [
                    {"row": row.name, "data": source.title, "component": component, "seed": seed,
                     "epoch": epoch, "share": share}
                    for seed, points in shares.items()
                    for epoch, share in points.items()
                ]  # fmt: skip
            if runs:
                lines.append([row.name, source.title, *cells])
            if row.name != FIXED:
                metrics = [run.metrics for run in runs]
                drawn = [mean_line(name, metrics, f"mix_{name}") for name in PAPER_COMPONENTS]
                charts.append(Chart(f"λ: {row.name}\n{source.title}", drawn, {FIXED: 1 / 3}))
    looks = {name: Look(COMPONENT_COLORS[name], turn) for turn, name in enumerate(PAPER_COMPONENTS)}
    figure = learning_curves(charts, rows=len(setting.sources), looks=looks)
    return replace(
        compared,
        grids=[("λ at the end", Grid(["row", "data", *PAPER_COMPONENTS], lines)), *compared.grids],
        records=records,
        figures={} if figure is None else {setting.experiment.name: figure},
    )


def make_diversity(setting: Setting) -> Made:
    """Accuracy against the number of classes that negatives come from."""
    compared = make_comparison(setting)
    ((path, label),) = setting.experiment.measures.items()
    charts = []
    for source in setting.sources:
        points, band, floors = [], [], list[float]()
        for row in setting.rows_on(source):
            runs = setting.records(row, source)
            values = [value for run in runs if (value := run.measure(path)) is not None]
            floors += [v for run in runs if (v := run.measure(path, UNTRAINED)) is not None]
            if values:
                found = summarize(values)
                spread = found.deviation or 0.0
                points.append((row.options["loss.negative_classes"], found.mean))
                band.append((found.mean - spread, found.mean + spread))
        levels = {FEATURES[UNTRAINED]: fmean(floors)} if floors else {}
        line = Line("SimCLR", points, band if any(low < high for low, high in band) else None)
        unit = "classes that negatives come from"
        charts.append(Chart(f"{label}, {source.title}", [line], levels, percent=True, unit=unit))
    figure = learning_curves(charts)
    assert figure is not None  # a comparison has runs
    return replace(compared, figures={setting.experiment.name: figure})
