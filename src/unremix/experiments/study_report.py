"""The report of a study: a table and a figure per stage, and who is best at equal tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from unremix.experiments import tables
from unremix.experiments.results import Record
from unremix.experiments.study import Arm, Standing, group_of, name_of_arm
from unremix.experiments.tables import Grid, Measure
from unremix.files.atomic_files import write_text
from unremix.report.charts import Chart, Row, mean_line
from unremix.report.figures import interval_chart, learning_curves, write_figure

LINEAR_PROBE = "linear.top1"
AUDITED = {
    measure.path: measure
    for measure in (
        Measure("audit_auc_uncertainty", "AUC of u", False, 3),
        Measure("audit_auc_similarity", "AUC of s", False, 3),
        Measure("audit_auc_representativeness", "AUC of r", False, 3),
        Measure("audit_auc_weights", "AUC of the weights", False, 3),
        Measure("audit_false_negative_rate", "false among the heaviest", True, 1),
        Measure("audit_matched_false_negative_rate", "among equally similar ones", True, 1),
        Measure("audit_distinct_class_share", "distinct classes", True, 1),
        Measure("audit_effective_negatives", "effective negatives", False, 0),
    )
}
"""Columns of metrics.csv that say what the weights pick."""
OF_HEAVIEST = tuple(AUDITED)[4:7]  # say nothing of equal weights, of which none is the heaviest
AUDIT_CHARTS = {
    **{
        column: Chart(AUDITED[column].label, [], {"chance": 0.5}, at_least=(0.45, 0.65))
        for column in tuple(AUDITED)[:3]
    },
    "audit_false_negative_rate": Chart("heaviest: false", [], percent=True, at_least=(0, 0.2)),
}
MOST_CURVES = 6  # settings in one figure


def _table(records: Sequence[Record], reference: str) -> str:
    rows = tables.table_rows(records, reference=reference)
    grids = tables.grids(rows, tables.measures_among(records), reference=reference)
    return "\n\n".join(grid.to_markdown() for grid in grids)


def _equal_tuning(standing: Standing, name: str, arms: Sequence[Arm]) -> Iterator[str]:
    """Each group's best arm against the reference's, where arms compete within groups."""
    stage = standing.study.stages[name]
    if stage.within is None:
        return
    best = standing.final_best(name, keep=1)
    home = group_of(stage.reference_among(arms), stage.within)
    among = (name_of_arm(arm) for arm in best if group_of(arm, stage.within) == home)
    reference = next(among, None)
    if reference is not None and len(best) > 1:
        options = stage.within if isinstance(stage.within, str) else " and ".join(stage.within)
        yield (
            f"At equal tuning: the best of each {options} by mean {standing.study.measure}, "
            "chosen on these very seeds, which flatters every row alike."
        )
        yield _table(standing.records(stage, best, stage.seeds_of()), reference)


def _against_every_other(records: Sequence[Record], measure: Measure) -> Iterator[str]:
    """The differences of all settings, whichever of them is the reference."""
    names = list(dict.fromkeys(record.row for record in records))
    columns = [[f"{number}: {name}" for number, name in enumerate(names, 1)]]
    for name in names:
        rows = tables.table_rows(records, reference=name)
        columns.append([tables.difference_in(row, measure) for row in rows if not row.baseline])
    yield (
        f"Every setting against every other: {measure.heading}, the row minus the column, with the "
        "same seed. The intervals are not adjusted for their number."
    )
    headings = ["setting", *(str(number) for number in range(1, len(columns)))]
    yield Grid(headings, list(map(list, zip(*columns, strict=True)))).to_markdown()


def _metrics(records: Sequence[Record]) -> dict[str, list[list[Row]]]:
    """Rows of metrics.csv by arm and seed, without what means nothing."""
    by_arm: dict[str, list[list[Row]]] = {}
    for record in records:
        rows: list[Row] = []
        for row in record.metrics:
            unsaid = OF_HEAVIEST if row.get("audit_spread_weights") == 0 else ()
            rows.append({column: row[column] for column in row if column not in unsaid})
        by_arm.setdefault(record.row, []).append(rows)
    return by_arm


def audit_table(runs: Mapping[str, Sequence[Sequence[Row]]]) -> str:
    """What the weights of each setting pick in its last audit, the mean over seeds, as Markdown.

    Args:
        runs: For each setting, for each of its seeds, the rows of metrics.csv.

    Returns:
        The table; empty where no run was audited.

    Example:
        >>> print(audit_table({"a": [[{"epoch": 1.0, "audit_auc_similarity": 0.5}]]}))
        | setting | AUC of s |
        | --- | --: |
        | a | 0.500 |
    """
    last = {  # the latest value of each column, by seed
        name: [{column: row[column] for row in rows for column in row} for rows in seeds]
        for name, seeds in runs.items()
    }
    every = [values for seeds in last.values() for values in seeds]
    columns = [one for path, one in AUDITED.items() if any(path in values for values in every)]

    def cell(seeds: Sequence[Row], measure: Measure) -> str:
        values = [one[measure.path] for one in seeds if measure.path in one]
        return measure.number(fmean(values)) if values else "–"

    lines = [[name, *(cell(seeds, one) for one in columns)] for name, seeds in last.items()]
    headings = ["setting", *(one.heading for one in columns)]
    return Grid(headings, lines).to_markdown() if columns else ""


def _audit(standing: Standing, name: str, arms: Sequence[Arm], folder: Path) -> Iterator[str]:
    """What the weights of a stage's settings pick: a table of all, and curves of the best."""
    stage = standing.study.stages[name]
    table = audit_table(_metrics(standing.records(stage, arms, stage.seeds_of())))
    if not table:
        return
    yield (
        "What the weights pick, in the last audit, mean over seeds. AUC: how well a score tells "
        "negatives of the anchor's own class from others; 0.5 is chance. Equal weights are "
        "taken in the order of the batch: where a rule only leaves out some of equally weighted "
        "negatives, the heaviest are a random sample of the rest. Labels serve to look, never to "
        "train."
    )
    yield table
    if len(arms) > MOST_CURVES:
        keep = 1 if stage.within is not None else MOST_CURVES
        arms = standing.final_best(name, keep)[:MOST_CURVES]
    runs = _metrics(standing.records(stage, arms, stage.seeds_of()))
    figure = learning_curves(
        replace(chart, lines=[mean_line(name, seeds, column) for name, seeds in runs.items()])
        for column, chart in AUDIT_CHARTS.items()
    )
    if figure is not None:
        write_figure(figure, folder / f"{name}-scores")
        yield f"![What the scores know over the epochs]({name}-scores.svg)"


def _stage(standing: Standing, name: str, folder: Path) -> Iterator[str]:
    """A stage in Markdown; its figure is written to the folder."""
    study, stage, arms = standing.study, standing.study.stages[name], standing.arms(name)
    records = standing.records(stage, arms, stage.seeds_of())
    if not records:
        yield "No run has ended yet."
        return
    present = list(dict.fromkeys(record.row for record in records))
    reference = name_of_arm(stage.reference_among(arms))
    reference = reference if reference in present else present[0]
    measures = {measure.path: measure for measure in tables.measures_among(records)}
    if study.measure not in measures:
        yield f"No run has the study's measure, `{study.measure}`; they have {', '.join(measures)}."
        return
    measure = measures[study.measure]
    rows = [row for row in tables.table_rows(records, reference=reference) if not row.baseline]
    halves = [
        (gap.high - gap.low) / 2
        for row in rows
        if (gap := row.difference(measure)) and gap.low is not None and gap.high is not None
    ]
    wide = measure.number(max(halves, default=0.0))
    widest = f" Widest half-width of {measure.label}: {wide}." * bool(halves)
    changed = "".join(f", {option} {json.dumps(value)}" for option, value in stage.train.items())
    count = len({(record.row, record.seed) for record in records})
    yield (
        f"{count} runs of {len(present)} settings, seeds from {stage.first_seed} on{changed}. "
        f"Differences are to {reference} with the same seed: mean [95 % interval by Student's t], "
        f"not corrected for multiple comparisons.{widest}"
    )
    yield _table(records, reference)
    yield from _equal_tuning(standing, name, arms)
    if stage.best_of:
        for path in dict.fromkeys((study.measure, LINEAR_PROBE)):
            if path in measures:
                yield from _against_every_other(records, measures[path])
    values = {name_of_arm(arm): standing.values(stage, arm, stage.seeds_of()) for arm in arms}
    figure = interval_chart(
        {row.name: values[row.name] for row in rows if values.get(row.name)},
        {row.name: row.difference(measure) for row in rows},
        label=measure.label,
        reference=reference,
        percent=measure.percent,
    )
    write_figure(figure, folder / name)
    yield f"![{measure.label} of every run, and differences]({name}.svg)"
    yield from _audit(standing, name, arms, folder)


def write_report(standing: Standing, folder: Path) -> None:
    """Write ``report.md`` and its figures."""
    study, results = standing.study, standing.results
    limit = "" if study.core_hours is None else f" of {study.core_hours:g} planned"
    paragraphs = [
        f"# {study.title}",
        f"{len(results.records)} runs, {results.core_hours:.1f} core-hours{limit}. Every run is a "
        "line of `results.jsonl`, with its command and versions.",
    ]
    for name in study.stages:
        paragraphs += [f"## {name}", *_stage(standing, name, folder)]
    write_text(folder / "report.md", "\n\n".join(paragraphs) + "\n")
