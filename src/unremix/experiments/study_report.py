"""The report of a study: a table and a figure per stage, and who is best at equal tuning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from unremix.data.atomic_files import write_text
from unremix.data.printing import markdown_table
from unremix.experiments import tables
from unremix.experiments.results import Results
from unremix.experiments.study import (
    Arm,
    Stage,
    Study,
    arms_of,
    best_arms,
    final_arms,
    label_of,
    make_job,
    reference_of,
    seeds_of,
    values_of,
)
from unremix.experiments.tables import Measure, Outcome, TableRow
from unremix.report.figures import (
    Compared,
    Panel,
    Row,
    interval_chart,
    learning_curves,
    write_figure,
)


def outcomes_of(study: Study, stage: Stage, arms: Sequence[Arm], results: Results) -> list[Outcome]:
    """The finished runs of some arms of a stage."""
    jobs = [make_job(study, stage, arm, seed) for arm in arms for seed in seeds_of(stage)]
    found = [results.outcome(job) for job in jobs]
    return [outcome for outcome in found if outcome is not None]


def _table(outcomes: Sequence[Outcome], reference: str) -> str:
    rows = tables.table_rows(outcomes, reference=reference)
    grids = tables.grids(rows, tables.measures_among(outcomes), reference=reference)
    return "\n".join(tables.to_markdown(grid) for grid in grids)


def _best_to_the_end(study: Study, name: str, results: Results, keep: int) -> list[Arm]:
    """The best arms of each group of a stage, among those that no rung has dropped."""
    stage, arms = study.stages[name], final_arms(study, name, results)
    return best_arms(
        study, stage, arms, seeds_of(stage), results, within=stage.within, keep=keep
    )  # fmt: skip


def _equal_tuning(study: Study, name: str, arms: Sequence[Arm], results: Results) -> list[str]:
    """Each group's best arm against the reference's, where arms compete within groups."""
    stage = study.stages[name]
    if stage.within is None:
        return []
    best = _best_to_the_end(study, name, results, keep=1)
    home = reference_of(stage, arms).get(stage.within)
    reference = next((label_of(arm) for arm in best if arm.get(stage.within) == home), None)
    if reference is None or len(best) < 2:
        return []
    return [
        f"At equal tuning: the best of each {stage.within} by mean {study.measure}, chosen on "
        "these very seeds, which flatters every row alike.",
        _table(outcomes_of(study, stage, best, results), reference),
    ]


LINEAR_PROBE = "linear.top1"


def _difference(row: TableRow, measure: Measure) -> str:
    cell = row.cells.get(measure.path)
    found = None if cell is None else cell.difference
    if found is None:
        return "–"
    return measure.difference(found) + ("" if found.count == row.runs else f" (n={found.count})")


def _against_every_other(outcomes: Sequence[Outcome], measure: Measure) -> list[str]:
    """The differences of all settings, whichever of them is the reference."""
    names = list(dict.fromkeys(outcome.recipe for outcome in outcomes))
    columns = []
    for name in names:
        rows = tables.table_rows(outcomes, reference=name)
        columns.append([_difference(row, measure) for row in rows if not row.baseline])
    numbers = [str(number) for number in range(1, len(names) + 1)]
    lines = [
        [f"{number}: {name}", *cells]
        for number, name, *cells in zip(numbers, names, *columns, strict=True)
    ]
    return [
        f"Every setting against every other: {measure.heading}, the row minus the column, with the "
        "same seed. The intervals are not adjusted for their number.",
        markdown_table(["setting", *numbers], lines, "--:"),
    ]


def _half_width(rows: Sequence[TableRow], measure: Measure) -> str | None:
    """The widest interval of a difference, as half of its width."""
    widths = [
        (difference.high - difference.low) / 2
        for row in rows
        if not row.baseline and (cell := row.cells.get(measure.path)) is not None
        and (difference := cell.difference) is not None
        and difference.low is not None and difference.high is not None
    ]  # fmt: skip
    return None if not widths else measure.number(max(widths))


AUDITED = {
    "audit_auc_uncertainty": "AUC of u",
    "audit_auc_similarity": "AUC of s",
    "audit_auc_representativeness": "AUC of r",
    "audit_auc_weights": "AUC of the weights",
    "audit_false_negative_rate": "false among the heaviest, %",
    "audit_matched_false_negative_rate": "among equally similar ones, %",
    "audit_distinct_class_share": "distinct classes, %",
    "audit_effective_negatives": "effective negatives",
}
"""Columns of metrics.csv that say what the weights pick, and their headings."""
OF_HEAVIEST = tuple(AUDITED)[4:7]  # say nothing of equal weights, of which none is the heaviest
AUDIT_PANELS = (
    *(
        Panel(column, AUDITED[column], levels={"chance": 0.5}, at_least=(0.45, 0.65))
        for column in tuple(AUDITED)[:3]
    ),
    Panel("audit_false_negative_rate", "heaviest: false", percent=True, at_least=(0, 0.2)),
)
MOST_CURVES = 6  # settings in one figure


def _metrics(
    study: Study, stage: Stage, arms: Sequence[Arm], results: Results
) -> dict[str, list[list[Row]]]:
    """Rows of metrics.csv of the finished runs, by arm and seed."""
    found: dict[str, list[list[Row]]] = {}
    for arm in arms:
        for seed in seeds_of(stage):
            record = results.records.get(make_job(study, stage, arm, seed).name)
            if record is not None:
                found.setdefault(label_of(arm), []).append(
                    [_said(row) for row in record["metrics"]]
                )
    return found


def _said(row: Row) -> Row:
    """A row of metrics.csv without what means nothing."""
    unsaid = OF_HEAVIEST if row.get("audit_spread_weights") == 0 else ()
    return {column: value for column, value in row.items() if column not in unsaid}


def _audited(value: float, heading: str) -> str:
    if heading.endswith("%"):
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if "AUC" in heading else f"{value:.0f}"


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
    last = {  # the latest value of each column
        name: [
            {column: value for row in rows for column, value in row.items() if column in AUDITED}
            for rows in seeds
        ]
        for name, seeds in runs.items()
    }
    columns = [
        column
        for column in AUDITED
        if any(column in values for seeds in last.values() for values in seeds)
    ]
    if not columns:
        return ""
    lines = []
    for name, seeds in last.items():
        cells = []
        for column in columns:
            values = [one[column] for one in seeds if column in one]
            cells.append(_audited(fmean(values), AUDITED[column]) if values else "–")
        lines.append([name, *cells])
    headings = ["setting", *(AUDITED[column] for column in columns)]
    return markdown_table(headings, lines, "--:")


def _audit_parts(
    study: Study, name: str, arms: Sequence[Arm], results: Results, folder: Path
) -> list[str]:
    """What the weights of a stage's settings pick: a table of all, and curves of the best."""
    stage = study.stages[name]
    table = audit_table(_metrics(study, stage, arms, results))
    if not table:
        return []
    parts = [
        "What the weights pick, in the last audit, mean over seeds. AUC: how well a score tells "
        "negatives of the anchor's own class from others; 0.5 is chance. Equal weights are "
        "taken in the order of the batch: where a rule only leaves out some of equally weighted "
        "negatives, the heaviest are a random sample of the rest. Labels serve to look, never to "
        "train.",
        table,
    ]
    shown: Sequence[Arm] = arms
    if len(arms) > MOST_CURVES:
        keep = 1 if stage.within is not None else MOST_CURVES
        shown = _best_to_the_end(study, name, results, keep)[:MOST_CURVES]
    figure = learning_curves(_metrics(study, stage, shown, results), AUDIT_PANELS)
    if figure is None:
        return parts
    write_figure(figure, folder / f"{name}-scores")
    return [*parts, f"![What the scores know over the epochs]({name}-scores.svg)"]


def stage_parts(study: Study, name: str, results: Results, folder: Path) -> list[str]:
    """A stage in Markdown; its figure is written to the folder."""
    stage, arms = study.stages[name], arms_of(study, name, results)
    outcomes = outcomes_of(study, stage, arms, results)
    if not outcomes:
        return [f"## {name}", "No run has ended yet."]
    labels = [label_of(arm) for arm in arms]
    present = {outcome.recipe for outcome in outcomes}
    reference = label_of(reference_of(stage, arms))
    if reference not in present:
        reference = next(label for label in labels if label in present)
    measures = {measure.path: measure for measure in tables.measures_among(outcomes)}
    if study.measure not in measures:
        return [
            f"## {name}",
            f"No run has the study's measure, `{study.measure}`; they have {', '.join(measures)}.",
        ]
    measure = measures[study.measure]
    rows = tables.table_rows(outcomes, reference=reference)
    count = len({(outcome.recipe, outcome.seed) for outcome in outcomes})
    changed = "".join(f", {option} {json.dumps(value)}" for option, value in stage.train.items())
    half = _half_width(rows, measure)
    parts = [
        f"## {name}",
        f"{count} runs of {len(present)} settings, seeds from {stage.first_seed} on{changed}. "
        f"Differences are to {reference} with the same seed: mean [95 % interval by Student's t], "
        "not corrected for multiple comparisons."
        + ("" if half is None else f" Widest half-width of {measure.label}: {half}."),
        _table(outcomes, reference),
        *_equal_tuning(study, name, arms, results),
    ]
    if stage.best_of:
        for path in dict.fromkeys((study.measure, LINEAR_PROBE)):
            parts += _against_every_other(outcomes, measures[path]) if path in measures else []
    values = {label_of(arm): values_of(study, stage, arm, seeds_of(stage), results) for arm in arms}
    figure = interval_chart(
        [
            Compared(row.name, values[row.name], row.cells[study.measure].difference)
            for row in rows
            if values.get(row.name) and not row.baseline
        ],
        label=measure.label,
        reference=reference,
        percent=measure.percent,
    )
    write_figure(figure, folder / name)
    return [
        *parts,
        f"![{measure.label} of every run, and differences]({name}.svg)",
        *_audit_parts(study, name, arms, results, folder),
    ]


def write_report(study: Study, results: Results, folder: Path) -> None:
    """Write ``report.md`` and its figures."""
    limit = "" if study.core_hours is None else f" of {study.core_hours:g} planned"
    parts = [
        f"# {study.title}",
        f"{len(results.records)} runs, {results.core_hours:.1f} core-hours{limit}. Every run is a "
        "line of `results.jsonl`, with its command and versions.",
    ]
    for name in study.stages:
        parts += stage_parts(study, name, results, folder)
    text = "\n\n".join(part.rstrip() for part in parts) + "\n"
    write_text(folder / "report.md", text)
