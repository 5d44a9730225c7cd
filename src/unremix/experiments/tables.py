"""The results of a comparison as rows, and the rows as CSV, JSON, Markdown and on the terminal.

Nothing here knows what was measured: a measure is whatever a run's evaluation card gives in the
form ``{"value": …}``, named by its path in the card.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import HEAVY_HEAD, Box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from unremix.console.printing import markdown_table, to_csv
from unremix.evaluation.card import FEATURES, label_of
from unremix.evaluation.statistics import Difference, Summary, paired_difference, summarize
from unremix.experiments.results import TRAINED, Record
from unremix.files.atomic_files import write_text
from unremix.training.record import versions

ASIDE = ("top5",)  # measures that the files list and the table leaves out
FILE_WIDTH = 400  # characters in a line of a table, where no terminal limits them
SIDE_BY_SIDE = 3  # up to this many measures, differences stand beside the values
TWO_DECIMALS = 10_000  # samples measured, from which a hundredth of a percent is no rounding


@dataclass(frozen=True)
class Measure:
    """A column of the table."""

    path: str  # its path on the cards
    label: str
    percent: bool  # whether values are shares, to be shown in percent
    decimals: int  # digits after the point

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label}, %" if self.percent else self.label

    def number(self, value: float, *, sign: bool = False) -> str:
        """A value as the table shows it; with a sign, -0.00 is below 0 and +0.00 is not."""
        shown = 100 * value if self.percent else value
        if sign:
            return f"{shown + 0.0:+.{self.decimals}f}"  # + 0.0: zero itself has no minus
        return f"{round(shown, self.decimals) + 0.0:.{self.decimals}f}"

    def summary(self, values: Summary) -> str:
        """Mean ± standard deviation; a dash where there is only one seed."""
        spread = "–" if values.deviation is None else self.number(values.deviation)
        return f"{self.number(values.mean)} ± {spread}"

    def difference(self, gap: Difference) -> str:
        """Mean difference and interval; a dash where there is only one pair."""
        ends = [self.number(end, sign=True) for end in (gap.low, gap.high) if end is not None]
        return f"{self.number(gap.mean, sign=True)} [{', '.join(ends) or '–'}]"


def measures_among(records: Iterable[Record]) -> list[Measure]:
    """The measures that any run has, in the order of the cards."""
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        for measures in record.results.values():
            for path, item in measures.items():
                by_path.setdefault(path, []).append(item)
    columns = []
    for path, items in by_path.items():
        # A value from 0 to 1 is a share unless its card says otherwise.
        percent = all(item.get("percent", 0 <= item["value"] <= 1) for item in items)
        fine = all(item.get("count", 0) >= TWO_DECIMALS for item in items)
        decimals = (2 if fine else 1) if percent else 3
        columns.append(Measure(path, label_of(path), percent, decimals))
    return columns


def in_table(measures: Iterable[Measure]) -> list[Measure]:
    """The measures that the table shows: all but those in :data:`ASIDE`."""
    return [measure for measure in measures if measure.path.split(".")[-1] not in ASIDE]


@dataclass(frozen=True)
class Cell:
    """One measure of one recipe."""

    summary: Summary  # over its seeds
    difference: Difference | None  # to the reference, over the seeds that both have, if any

    def record(self) -> dict[str, float | None]:
        """All of it by name."""
        names = {"difference": "mean", "low": "low", "high": "high", "pairs": "count"}
        return {"mean": self.summary.mean, "deviation": self.summary.deviation} | {
            name: getattr(self.difference, field, None) for name, field in names.items()
        }


@dataclass(frozen=True)
class TableRow:
    """A recipe, or a baseline, in the table."""

    name: str
    baseline: bool
    runs: int  # that ended well; for a baseline, seeds
    failed: int
    epochs: float | None  # mean number of epochs trained
    cells: dict[str, Cell]  # by the measure's path

    def difference(self, measure: Measure) -> Difference | None:
        """To the reference, if there is any."""
        cell = self.cells.get(measure.path)
        return None if cell is None else cell.difference


def _by_seed(records: Iterable[Record], features: str, path: str) -> dict[int, float]:
    """The values of a measure; of several runs with one seed, their mean."""
    values: dict[int, list[float]] = {}
    for record in records:
        value = record.measure(path, features)
        if value is not None:
            values.setdefault(record.seed, []).append(value)
    return {seed: sum(values[seed]) / len(values[seed]) for seed in sorted(values)}


def table_rows(records: Sequence[Record], *, reference: str) -> list[TableRow]:
    """A row per recipe, in their order, then one per baseline.

    A baseline does not depend on the recipe: where several recipes measured it with one seed, their
    mean counts once.

    All are compared with the reference, seed by seed.
    """
    paths = [measure.path for measure in measures_among(records)]
    of_reference = [record for record in records if record.row == reference]
    levels = {path: _by_seed(of_reference, TRAINED, path) for path in paths}

    def cells(among: Sequence[Record], features: str, *, alone: bool = False) -> dict[str, Cell]:
        made = {}
        for path in paths:
            values, level = _by_seed(among, features, path), levels[path]
            if values:
                pairs = [] if alone else [(values[s], level[s]) for s in values if s in level]
                difference = paired_difference(*zip(*pairs, strict=True)) if pairs else None
                made[path] = Cell(summarize(list(values.values())), difference)
        return made

    rows = []
    for name in dict.fromkeys(record.row for record in records):
        own = [record for record in records if record.row == name]
        well = [record for record in own if record.failure is None]
        epochs = [record.epochs for record in well if record.epochs is not None]
        mean = sum(epochs) / len(epochs) if epochs else None
        measured = cells(own, TRAINED, alone=name == reference)
        rows.append(TableRow(name, False, len(well), len(own) - len(well), mean, measured))
    for kind in dict.fromkeys(kind for record in records for kind in record.results):
        if kind != TRAINED:
            seeds = {record.seed for record in records if record.results.get(kind)}
            name = FEATURES.get(kind, kind)
            rows.append(TableRow(name, True, len(seeds), 0, None, cells(records, kind)))
    return rows


@dataclass(frozen=True)
class Grid:
    """A table as text."""

    headings: list[str]  # of the columns
    lines: list[list[str]]  # cells, a list per row
    baselines: int = 0  # how many of the last rows are baselines

    @property
    def width(self) -> int:
        """Characters that a terminal needs to show no cell on two lines."""
        columns = zip(self.headings, *self.lines, strict=True)
        widest = (max(map(len, [*heading.split(), *cells])) for heading, *cells in columns)
        return 1 + sum(3 + characters for characters in widest)

    def to_markdown(self) -> str:
        """The table in Markdown."""
        return markdown_table(self.headings, self.lines, "--:")


def _counted(text: str, count: int, row: TableRow) -> str:
    """A cell; if it is not of all runs of its row, it says of how many."""
    return text if count == row.runs else f"{text} (n={count})"


def difference_in(row: TableRow, measure: Measure) -> str:
    """A row's difference to the reference."""
    gap = row.difference(measure)
    return "–" if gap is None else _counted(measure.difference(gap), gap.count, row)


def _value_in(row: TableRow, measure: Measure) -> str:
    """A row's mean ± standard deviation."""
    cell = row.cells.get(measure.path)
    return "–" if cell is None else _counted(measure.summary(cell.summary), cell.summary.count, row)


def grids(
    rows: Sequence[TableRow],
    measures: Sequence[Measure],
    *,
    reference: str,
    epochs: bool = False,
    apart: bool = False,
) -> list[Grid]:
    """The rows as one table; as two, values and differences, if there are many measures.

    Args:
        rows: The rows.
        measures: The columns; those in :data:`ASIDE` are left out.
        reference: The recipe compared with.
        epochs: Whether to show how many epochs were trained.
        apart: Whether values and differences are two tables in any case.
    """
    fixed = {
        "recipe": [row.name for row in rows],
        "runs": [f"{row.runs}" + f" ({row.failed} failed)" * bool(row.failed) for row in rows],
    }
    if epochs:
        fixed["epochs"] = ["–" if row.epochs is None else f"{row.epochs:.4g}" for row in rows]
    values = [(one.heading, [_value_in(row, one) for row in rows]) for one in in_table(measures)]
    differences = [
        (
            f"{measure.label} − {reference}",
            [
                "reference"
                if row.name == reference and not row.baseline
                else difference_in(row, measure)
                for row in rows
            ],
        )
        for measure in in_table(measures)
    ]
    tables = [values, differences]
    if len(values) <= SIDE_BY_SIDE and not apart:
        tables = [[column for pair in zip(values, differences, strict=True) for column in pair]]
    baselines = sum(row.baseline for row in rows)
    made = []
    for measured in tables:
        headings, cells = zip(*fixed.items(), *measured, strict=True)
        lines = [list(line) for line in zip(*cells, strict=True)]
        made.append(Grid(list(headings), lines, baselines))
    return made


def made_by(command: str) -> str:
    """Markdown that says by which command and versions something was made."""
    made = versions()
    return (
        f"Made by\n\n```bash\n{command}\n```\n\nwith unremix {made['unremix']}, torch "
        f"{made['torch']}, Python {made['python']}."
    )


def to_rich(
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    texts: int = 1,
    baselines: int = 0,
    box: Box | None = HEAVY_HEAD,
    pad_edge: bool = True,
    no_wrap: bool = False,
) -> Table:
    """A table for the terminal.

    Args:
        headings: Of the columns; none for a table without.
        lines: Cells, a list per row.
        title: Shown above.
        texts: How many of the first columns are aligned to the left.
        baselines: How many of the last rows are baselines, below a line.
        box: The lines around cells.
        pad_edge: Whether there is space around the table.
        no_wrap: Whether cells stay in one line.
    """
    table = Table(title=title, box=box, pad_edge=pad_edge, show_header=bool(headings))
    for number, heading in enumerate(headings or [""] * texts):
        justify: JustifyMethod = "left" if number < texts else "right"
        table.add_column(Text(heading), justify=justify, no_wrap=no_wrap, overflow="fold")
    for number, cells in enumerate(lines, start=1):
        table.add_row(*map(Text, cells), end_section=number == len(lines) - baselines)
    return table


def show(console: Console, shown: Iterable[Table], lines: Iterable[str]) -> None:
    """Print tables and then lines; in a file, nothing is wrapped."""
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in shown:
        console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def run_records(records: Iterable[Record]) -> list[dict[str, Any]]:
    """What ``results.csv`` says of each run; a baseline's measures carry its name in front."""
    return [
        {
            "recipe": record.row,
            "seed": record.seed,
            "status": "done" if record.failure is None else "failed",
            "epochs": record.epochs,
            "loss": record.loss,
        }
        | {
            path if kind == TRAINED else f"{kind}.{path}": measure["value"]
            for kind, measures in record.results.items()
            for path, measure in measures.items()
        }
        for record in records
    ]


def row_records(rows: Iterable[TableRow]) -> list[dict[str, Any]]:
    """A record per row of the table, in full precision; shares stay from 0 to 1."""
    return [
        {"recipe": row.name, "runs": row.runs, "failed": row.failed, "epochs": row.epochs}
        | {
            f"{path}.{name}": value
            for path, cell in row.cells.items()
            for name, value in cell.record().items()
        }
        for row in rows
    ]


def write_tables(
    folder: Path, paragraphs: Iterable[str], records: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any], *, indent: int = 2,
) -> None:  # fmt: skip
    """Write ``table.md`` of paragraphs, ``table.csv`` of records and ``results.json`` of facts."""
    write_text(folder / "table.md", "\n\n".join(paragraphs) + "\n")
    write_text(folder / "table.csv", to_csv(records))
    write_text(folder / "results.json", json.dumps(facts, indent=indent) + "\n")
