"""Rows against columns: our figures, the paper's below them, and differences between the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from unremix.evaluation.card import label_of
from unremix.experiments import tables
from unremix.experiments.paper.published import Percent
from unremix.experiments.paper.records import Made, Setting
from unremix.experiments.paper.scales import Source
from unremix.experiments.tables import Grid, Measure, Outcome, TableRow
from unremix.report.figures import Bars, bar_chart

HOW = (
    "In percent: mean ± standard deviation over seeds. The paper's figures stand below ours where "
    "it has them; they come from its own scale, and from its own data where these are named in "
    "brackets. They are subtracted only where the test samples are the same. Differences pair "
    "equal seeds, which share initial weights and the order of the data: mean [95 % interval by "
    "Student's t], not corrected for multiple comparisons."
)


def column_of(source: Source, path: str) -> str:
    """The name of a column: a measure on a data set."""
    return f"{path} on {source.title}"


def path_of(column: Measure) -> str:
    """The measure of a column, by its path on the cards of the runs."""
    return column.path.partition(" on ")[0]


def outcomes_of(setting: Setting) -> list[Outcome]:
    """An outcome for each row and seed; its measures are those of all data sets."""
    found = []
    for row in setting.rows:
        for seed in range(setting.seeds):
            results: dict[str, dict[str, dict[str, Any]]] = {}
            for source in setting.sources_of(row):
                record = setting.engine.results.records.get(setting.job(row, source, seed).name)
                for kind, measures in ({} if record is None else record["results"]).items():
                    name = row.floors.get(kind, kind)
                    results.setdefault(name, {}).update(
                        {column_of(source, path): item for path, item in measures.items()}
                    )
            if results:
                found.append(Outcome(row.name, seed, results=results))
    return found


def columns_of(setting: Setting, outcomes: Sequence[Outcome]) -> list[Measure]:
    """The columns: the experiment's measures on each data set, or all where none was taken."""
    found = {measure.path: measure for measure in tables.measures_among(outcomes)}
    wanted = setting.experiment.measures
    taken = [
        (source, path)
        for source in setting.sources
        for path in wanted
        if column_of(source, path) in found
    ]
    if not taken:
        taken = [
            (source, path)
            for source in setting.sources
            for path in dict.fromkeys(map(path_of, found.values()))
            if column_of(source, path) in found
        ]
    several = len({path for _, path in taken}) > 1
    alone = len(setting.sources) == 1

    def heading(source: Source, path: str) -> str:
        label = wanted.get(path, path)
        return (label if alone else f"{source.title}, {label}") if several else source.title

    return [
        replace(found[column_of(source, path)], label=heading(source, path))
        for source, path in taken
    ]


def labels_of(setting: Setting, columns: Sequence[Measure]) -> dict[str, str]:
    """What each measure of the columns is called."""
    paths = dict.fromkeys(path_of(column) for column in columns)
    wanted = setting.experiment.measures
    return {path: wanted.get(path) or label_of(path) for path in paths}


def paper_figures(setting: Setting) -> dict[str, dict[str, Percent]]:
    """The paper's figures by row and column, in percent."""
    return {
        row.name: {
            column_of(source, path): figure
            for (data, path), figure in row.published.items()
            for source in setting.sources
            if source.paper == data
        }
        for row in setting.rows
    }


def _source_of(setting: Setting, column: str) -> Source:
    title = column.partition(" on ")[2]
    (source,) = [one for one in setting.sources if one.title == title]
    return source


def _other_data(setting: Setting, column: str) -> str | None:
    """The data of the paper's figures in a column; None if its test data are the column's own."""
    source = _source_of(setting, column)
    return None if source.comparable else source.paper


def _printed(mean: float | None, spread: float | None, decimals: int) -> str:
    """A figure with the digits that the paper has."""
    if mean is None:
        return "–"
    return f"{mean:.{decimals}f}" + ("" if spread is None else f" ± {spread:.{decimals}f}")


def _with_paper(
    grid: Grid, setting: Setting, rows: Sequence[TableRow], columns: Sequence[Measure]
) -> Grid:
    """The table with lines below each row that the paper has: its figure, and the difference.

    There is no difference where the data are not the paper's.
    """
    known = paper_figures(setting)
    lines = []
    for row, line in zip(rows, grid.lines, strict=True):
        lines.append(line)
        paper = {} if row.baseline else known[row.name]
        if any(column.path in paper for column in columns):
            figures, differences = [], []
            for column in columns:
                mean, spread = paper.get(column.path, (None, None))
                decimals = 1 if setting.experiment.kind == "sentences" else 2
                other = _other_data(setting, column.path)
                told = "" if mean is None or other is None else f" ({other})"
                figures.append(_printed(mean, spread, decimals) + told)
                cell = row.cells.get(column.path)
                differences.append(
                    "–"
                    if mean is None or cell is None or other is not None
                    else column.number(cell.summary.mean - mean / 100, sign=True)
                )
            lines.append(["· paper", "", *figures])
            if set(differences) != {"–"}:
                lines.append(["· ours − paper", "", *differences])
    return Grid(["", *grid.headings[1:]], lines, grid.baselines)


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The rank of each, 1 for the largest; equals share the mean of their ranks.

    Example:
        >>> ranks({"a": 0.7, "b": 0.9, "c": 0.7})
        {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    return dict(zip(values, rankdata([-value for value in values.values()]).tolist(), strict=True))


def average_ranks(
    rows: Sequence[TableRow], columns: Sequence[Measure], seeds: int
) -> dict[str, float]:
    """Mean rank of each row over the columns that lack no run; empty where there is none.

    Baselines do not count, nor do columns in which a row has fewer runs than seeds.
    """
    trained = [row for row in rows if not row.baseline]
    found = [
        ranks({row.name: row.cells[column.path].summary.mean for row in trained})
        for column in columns
        if all(
            column.path in row.cells and row.cells[column.path].summary.count >= seeds
            for row in trained
        )
    ]
    return {row.name: fmean(one[row.name] for one in found) for row in trained if found}


def make_comparison(setting: Setting) -> Made:
    """Tables and a bar chart of an experiment's rows."""
    outcomes = outcomes_of(setting)
    if not outcomes:
        raise ValueError("expected runs with measures, got none; accuracy needs data with labels")
    present = [row.name for row in setting.rows if any(o.recipe == row.name for o in outcomes)]
    reference = setting.experiment.reference
    reference = reference if reference in present else present[0]
    columns = columns_of(setting, outcomes)
    rows = tables.table_rows(outcomes, reference=reference)
    values, differences = tables.grids(rows, columns, reference=reference, apart=True)
    average = average_ranks(rows, columns, setting.seeds)
    labels = labels_of(setting, columns)
    where = f" on {setting.sources[0].title}" if len(setting.sources) == 1 else ""
    notes = [f"Measured: {', '.join(labels.values())}{where}.", HOW]
    if len(columns) > 1 and average:
        shown = "; ".join(f"{name} {rank:.2f}" for name, rank in average.items())
        notes.append(f"Average rank over the columns: {shown}.")
    return Made(
        grids=[
            ("", _with_paper(values, setting, rows, columns)),
            (f"Differences to {reference}", differences),
        ],
        records=_records(setting, rows, columns),
        figures={setting.experiment.name: _bars(setting, rows, columns)},
        facts={"average_rank": average, "table": tables.row_records(rows)},
        notes=notes,
    )


def _records(
    setting: Setting, rows: Sequence[TableRow], columns: Sequence[Measure]
) -> list[dict[str, Any]]:
    """A record per row and column, in full precision; shares stay from 0 to 1."""
    published = paper_figures(setting)
    records = []
    for row in rows:
        for column in columns:
            cell = row.cells.get(column.path)
            if cell is None:
                continue
            figure = published.get(row.name, {}).get(column.path, (None, None))
            paper, spread = (None if one is None else round(one / 100, 6) for one in figure)
            minus = None
            if paper is not None and _other_data(setting, column.path) is None:
                minus = cell.summary.mean - paper
            found = cell.record()
            of_rows = {name: found[name] for name in ("difference", "low", "high")}
            records.append(
                {
                    "row": row.name,
                    "column": column.label,
                    "runs": cell.summary.count,
                    "mean": cell.summary.mean,
                    "deviation": cell.summary.deviation,
                    "paper": paper,
                    "paper_deviation": spread,
                    "paper_data": None if paper is None else _source_of(setting, column.path).paper,
                    "ours_minus_paper": minus,
                    **of_rows,
                }
            )
    return records


def _bars(setting: Setting, rows: Sequence[TableRow], columns: Sequence[Measure]) -> Figure:
    paper = paper_figures(setting)
    groups = []
    for row in rows:
        cells = [row.cells.get(column.path) for column in columns]
        figures = {} if row.baseline else paper[row.name]
        groups.append(
            Bars(
                row.name,
                [None if cell is None else cell.summary.mean for cell in cells],
                [None if cell is None else cell.summary.deviation for cell in cells],
                [
                    figures[column.path][0] / 100
                    if column.path in figures and _other_data(setting, column.path) is None
                    else None
                    for column in columns
                ],
                level=row.baseline,
            )
        )
    labels = list(labels_of(setting, columns).values())
    axis = f"{labels[0]}, %" if len(labels) == 1 else "%"
    return bar_chart([column.label for column in columns], groups, axis)
