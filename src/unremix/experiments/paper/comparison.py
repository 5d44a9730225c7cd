"""Rows against columns: our figures, the paper's below them, and differences between the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from unremix.evaluation.card import label_of
from unremix.experiments import tables
from unremix.experiments.paper.experiment import Made, Setting
from unremix.experiments.paper.scales import Source
from unremix.experiments.results import Record
from unremix.experiments.tables import Grid, Measure, TableRow
from unremix.report.figures import Bars, bar_chart

HOW = (
    "In percent: mean ± standard deviation over seeds. The paper's numbers, where it has them, "
    "stand below ours. They come from its own scale and, if a data set is named in brackets, from "
    "that data set. They are subtracted only if the test samples are the same. Differences pair "
    "equal seeds, which share initial weights and the order of the data: mean [95 % interval by "
    "Student's t], not corrected for multiple comparisons."
)


@dataclass(frozen=True)
class Column:
    """A measure on a data set."""

    source: Source
    path: str  # of the measure, on the cards of the runs
    measure: Measure  # its path is that of the merged records


def records_of(setting: Setting) -> list[Record]:
    """A record for each row and seed; its measures are those of all data sets."""
    merged: dict[tuple[str, int], dict[str, dict[str, Mapping[str, Any]]]] = {}
    for row, source, record in setting.finished:
        results = merged.setdefault((row.name, record.seed), {})
        for kind, measures in record.results.items():
            own = results.setdefault(row.floors.get(kind, kind), {})
            own |= {f"{path} on {source.title}": one for path, one in measures.items()}
    return [Record("", *key, results=results) for key, results in merged.items() if results]


def columns_of(setting: Setting, records: Sequence[Record]) -> list[Column]:
    """The columns: the experiment's measures on each data set, or all where none was taken."""
    measures = {measure.path: measure for measure in tables.measures_among(records)}
    labels = setting.experiment.measures
    for paths in (labels, dict.fromkeys(path.partition(" on ")[0] for path in measures)):
        columns = [
            Column(source, path, measures[f"{path} on {source.title}"])
            for source in setting.sources
            for path in paths
            if f"{path} on {source.title}" in measures
        ]
        if columns:
            break
    one_path = len({column.path for column in columns}) == 1

    def heading(column: Column) -> str:
        data = [column.source.title] if one_path or len(setting.sources) > 1 else []
        return ", ".join(data + ([] if one_path else [labels.get(column.path, column.path)]))

    return [replace(one, measure=replace(one.measure, label=heading(one))) for one in columns]


def _record(setting: Setting, row: TableRow, column: Column) -> dict[str, Any]:
    """A cell in full precision beside the paper's; shares are from 0 to 1."""
    own = [] if row.baseline else [one.published for one in setting.rows if one.name == row.name]
    known = own[0].get((column.source.paper, column.path)) if own else None
    paper, spread = (None if one is None else round(one / 100, 6) for one in known or (None, None))
    cell = row.cells.get(column.measure.path)
    ours = None if cell is None else cell.summary.mean
    comparable = ours is not None and paper is not None and column.source.comparable
    return {
        "row": row.name,
        "column": column.measure.label,
        "runs": 0 if cell is None else cell.summary.count,
        "mean": ours,
        "deviation": None if cell is None else cell.summary.deviation,
        "paper": paper,
        "paper_deviation": spread,
        "paper_data": None if paper is None else column.source.paper,
        "ours_minus_paper": (ours or 0.0) - (paper or 0.0) if comparable else None,
        **{name: cell and cell.record()[name] for name in ("difference", "low", "high")},
    }


def _with_paper(
    grid: Grid, records: Sequence[Sequence[Mapping[str, Any]]], columns: Sequence[Column],
    decimals: int,
) -> Grid:  # fmt: skip
    """The table with lines below each row that the paper has: its figure, and the difference.

    There is no difference where the data are not the paper's.
    """

    def figure(record: Mapping[str, Any], column: Column) -> str:
        shares = [record[name] for name in ("paper", "paper_deviation")]
        text = " ± ".join(f"{100 * one:.{decimals}f}" for one in shares if one is not None)
        return text + f" ({column.source.paper})" * bool(text and not column.source.comparable)

    lines = []
    for line, row in zip(grid.lines, records, strict=True):
        figures = [figure(*cell) for cell in zip(row, columns, strict=True)]
        gaps = [record["ours_minus_paper"] for record in row]
        differences = [
            "" if gap is None else column.measure.number(gap, sign=True)
            for gap, column in zip(gaps, columns, strict=True)
        ]
        lines.append(line)
        for name, cells in (("· paper", figures), ("· ours − paper", differences)):
            if any(cells):
                lines.append([name, "", *(cell or "–" for cell in cells)])
    return replace(grid, headings=["", *grid.headings[1:]], lines=lines)


def average_ranks(
    rows: Sequence[TableRow], columns: Sequence[Measure], seeds: int
) -> dict[str, float]:
    """Mean rank of each row over the columns that lack no run; empty where there is none.

    The largest value has rank 1, and equal ones share the mean of their ranks. Baselines do not
    count, nor do columns in which a row has fewer runs than seeds.
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    trained = [row for row in rows if not row.baseline]
    found = [[row.cells.get(column.path) for row in trained] for column in columns]
    complete = [
        [-cell.summary.mean for cell in cells if cell is not None and cell.summary.count >= seeds]
        for cells in found
    ]
    ranked = [rankdata(means) for means in complete if len(means) == len(trained)]
    return {row.name: fmean(ranks) for row, *ranks in zip(trained, *ranked, strict=True) if ranks}


def make_comparison(setting: Setting) -> Made:
    """Tables and a bar chart of an experiment's rows."""
    runs = records_of(setting)
    if not runs:
        raise ValueError("expected runs with measures, got none; accuracy needs data with labels")
    present = list(dict.fromkeys(record.row for record in runs))
    reference = setting.experiment.reference
    reference = reference if reference in present else present[0]
    columns = columns_of(setting, runs)
    measures = [column.measure for column in columns]
    rows = tables.table_rows(runs, reference=reference)
    values, differences = tables.grids(rows, measures, reference=reference, apart=True)
    average = average_ranks(rows, measures, setting.seeds)
    names = setting.experiment.measures
    labels = [names.get(path) or label_of(path) for path in {one.path: one for one in columns}]
    where = f" on {setting.sources[0].title}" if len(setting.sources) == 1 else ""
    notes = [f"Measured: {', '.join(labels)}{where}.", HOW]
    if len(columns) > 1 and average:
        shown = "; ".join(f"{name} {rank:.2f}" for name, rank in average.items())
        notes.append(f"Average rank over the columns: {shown}.")
    records = [[_record(setting, row, column) for column in columns] for row in rows]
    bars = [
        Bars(row.name, cells, level=row.baseline) for row, cells in zip(rows, records, strict=True)
    ]
    decimals = 1 if setting.experiment.kind == "sentences" else 2  # the paper's
    axis = f"{labels[0]}, %" if len(labels) == 1 else "%"
    return Made(
        grids=[
            ("", _with_paper(values, records, columns, decimals)),
            (f"Differences to {reference}", differences),
        ],
        records=[one for cells in records for one in cells if one["mean"] is not None],
        figures={setting.experiment.name: bar_chart([m.label for m in measures], bars, axis)},
        facts={"average_rank": average, "table": tables.row_records(rows)},
        notes=notes,
    )
