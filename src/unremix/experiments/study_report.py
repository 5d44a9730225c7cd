"""The report of a study: a table and a figure per stage, and who is best at equal tuning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from unremix.data.atomic_files import write_text
from unremix.experiments import tables
from unremix.experiments.results import Results
from unremix.experiments.study import (
    Arm,
    Stage,
    Study,
    arms_of,
    best_arms,
    label_of,
    make_job,
    seeds_of,
)
from unremix.experiments.tables import Measure, Outcome, TableRow
from unremix.report.curves import write_figure
from unremix.report.intervals import Interval, interval_chart


def outcomes_of(study: Study, stage: Stage, arms: Sequence[Arm], results: Results) -> list[Outcome]:
    """The finished runs of some arms of a stage."""
    jobs = [make_job(study, stage, arm, seed) for arm in arms for seed in seeds_of(stage)]
    found = [results.outcome(job) for job in jobs]
    return [outcome for outcome in found if outcome is not None]


def _reference(stage: Stage, arms: Sequence[Arm]) -> str:
    return label_of(stage.reference if stage.reference is not None else arms[0])


def _table(outcomes: Sequence[Outcome], reference: str) -> str:
    rows = tables.table_rows(outcomes, reference=reference)
    grids = tables.grids(rows, tables.measures_among(outcomes), reference=reference)
    return "\n".join(tables.to_markdown(grid) for grid in grids)


def _equal_tuning(study: Study, stage: Stage, arms: Sequence[Arm], results: Results) -> list[str]:
    """Each group's best arm against the reference's, where arms compete within groups."""
    if stage.within is None:
        return []
    best = best_arms(
        study, stage, arms, seeds_of(stage), results, within=stage.within, keep=1
    )  # fmt: skip
    home = (stage.reference or arms[0]).get(stage.within)
    reference = next((label_of(arm) for arm in best if arm.get(stage.within) == home), None)
    if reference is None or len(best) < 2:
        return []
    return [
        f"At equal tuning: the best of each {stage.within} by mean {study.measure}, chosen on "
        "these very seeds, which flatters every row alike.",
        _table(outcomes_of(study, stage, best, results), reference),
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


def stage_parts(study: Study, name: str, results: Results, folder: Path) -> list[str]:
    """A stage in Markdown; its figure is written to the folder."""
    stage, arms = study.stages[name], arms_of(study, name, results)
    outcomes = outcomes_of(study, stage, arms, results)
    if not outcomes:
        return [f"## {name}", "No run has ended yet."]
    labels = [label_of(arm) for arm in arms]
    present = {outcome.recipe for outcome in outcomes}
    reference = _reference(stage, arms)
    if reference not in present:
        reference = next(label for label in labels if label in present)
    rows = tables.table_rows(outcomes, reference=reference)
    measures = {measure.path: measure for measure in tables.measures_among(outcomes)}
    measure = measures[study.measure]
    count = len({(outcome.recipe, outcome.seed) for outcome in outcomes})
    changed = "".join(f", {option} {json.dumps(value)}" for option, value in stage.train.items())
    half = _half_width(rows, measure)
    parts = [
        f"## {name}",
        f"{count} runs of {len(present)} settings, seeds from {stage.first_seed} on{changed}. "
        f"Differences are to {reference} with the same seed: mean [95 % interval by Student's t], "
        "each for itself."
        + ("" if half is None else f" Widest half-width of {measure.label}: {half}."),
        _table(outcomes, reference),
        *_equal_tuning(study, stage, arms, results),
    ]
    shown = [row for row in rows if not row.baseline and study.measure in row.cells]
    figure = interval_chart(
        [
            Interval(
                row.name,
                [
                    outcome.results[tables.TRAINED][study.measure]["value"]
                    for outcome in outcomes
                    if outcome.recipe == row.name
                    and study.measure in outcome.results.get(tables.TRAINED, {})
                ],
                None if difference is None else difference.mean,
                None if difference is None else difference.low,
                None if difference is None else difference.high,
            )
            for row in shown
            for difference in [row.cells[study.measure].difference]
        ],
        label=measure.label,
        reference=reference,
        percent=measure.percent,
    )
    write_figure(figure, folder / name)
    return [*parts, f"![{measure.label} of every run, and differences]({name}.svg)"]


def write_report(study: Study, results: Results, folder: Path) -> None:
    """Write ``report.md`` and its figures.

    Args:
        study: The study.
        results: Its finished runs.
        folder: Where to.
    """
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
