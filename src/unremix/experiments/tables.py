"""The results of a comparison as rows, and the rows as CSV, Markdown and on the terminal.

Nothing here knows what was measured: a measure is whatever a run's evaluation card gives in the
form ``{"value": …}``, named by its path in the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unremix.data.printing import markdown_table
from unremix.evaluation.card import FEATURES, label_of
from unremix.evaluation.statistics import Difference, Summary, paired_difference, summarize
from unremix.training.record import versions

TRAINED = "trained"  # the features a run is about; all others on a card are baselines
ASIDE = ("top5",)  # measures that the files list and the table leaves out
FILE_WIDTH = 400  # characters in a line of a table, where no terminal limits them
SIDE_BY_SIDE = 3  # up to so many measures, differences stand beside the values
TWO_DECIMALS = 10_000  # samples measured, from which a hundredth of a percent is no rounding


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    recipe: str
    seed: int
    failure: str | None = None  # why it failed; None if it did not
    epochs: int | None = None  # that it was trained
    loss: float | None = None  # of the last epoch
    # For each kind of features (trained, untrained, …), measures by their path.
    results: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


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

    def shown(self, value: float) -> str:
        """A value with its unit."""
        return self.number(value) + (" %" if self.percent else "")

    def summary(self, found: Summary) -> str:
        """Mean ± standard deviation; a dash where there is only one seed."""
        spread = "–" if found.deviation is None else self.number(found.deviation)
        return f"{self.number(found.mean)} ± {spread}"

    def difference(self, found: Difference) -> str:
        """Mean difference and interval; a dash where there is only one pair."""
        if found.low is None or found.high is None:
            return f"{self.number(found.mean, sign=True)} [–]"
        low, high = (self.number(end, sign=True) for end in (found.low, found.high))
        return f"{self.number(found.mean, sign=True)} [{low}, {high}]"


def measures_among(outcomes: Iterable[Outcome]) -> list[Measure]:
    """The measures that any run has, in the order of the cards."""
    found: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        for measures in outcome.results.values():
            for path, item in measures.items():
                found.setdefault(path, []).append(item)
    columns = []
    for path, items in found.items():
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
        found = self.difference
        return {
            "mean": self.summary.mean,
            "deviation": self.summary.deviation,
            "difference": None if found is None else found.mean,
            "low": None if found is None else found.low,
            "high": None if found is None else found.high,
            "pairs": None if found is None else found.count,
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


def _by_seed(outcomes: Iterable[Outcome], features: str, path: str) -> dict[int, float]:
    """The values of a measure; of several runs with one seed, their mean."""
    values: dict[int, list[float]] = {}
    for outcome in outcomes:
        measure = outcome.results.get(features, {}).get(path)
        if measure is not None:
            values.setdefault(outcome.seed, []).append(measure["value"])
    return {seed: sum(values[seed]) / len(values[seed]) for seed in sorted(values)}


def _cell(values: dict[int, float], reference: dict[int, float] | None) -> Cell:
    seeds = [] if reference is None else [seed for seed in values if seed in reference]
    difference = None
    if reference is not None and seeds:
        difference = paired_difference(
            [values[seed] for seed in seeds], [reference[seed] for seed in seeds]
        )
    return Cell(summarize(list(values.values())), difference)


def table_rows(outcomes: Sequence[Outcome], *, reference: str) -> list[TableRow]:
    """A row per recipe, in their order, then one per baseline.

    A baseline does not depend on the recipe: where several recipes measured it with one seed, their
    mean counts once.

    All are compared with the reference, seed by seed.
    """
    paths = [measure.path for measure in measures_among(outcomes)]
    compared = [outcome for outcome in outcomes if outcome.recipe == reference]
    levels = {path: _by_seed(compared, TRAINED, path) for path in paths}

    def cells(among: Sequence[Outcome], features: str, *, alone: bool) -> dict[str, Cell]:
        values = {path: _by_seed(among, features, path) for path in paths}
        return {
            path: _cell(found, None if alone else levels[path])
            for path, found in values.items()
            if found
        }

    rows = []
    for recipe in dict.fromkeys(outcome.recipe for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.recipe == recipe]
        epochs = [o.epochs for o in own if o.epochs is not None and o.failure is None]
        rows.append(
            TableRow(
                name=recipe,
                baseline=False,
                runs=sum(outcome.failure is None for outcome in own),
                failed=sum(outcome.failure is not None for outcome in own),
                epochs=sum(epochs) / len(epochs) if epochs else None,
                cells=cells(own, TRAINED, alone=recipe == reference),
            )
        )
    kinds = dict.fromkeys(kind for outcome in outcomes for kind in outcome.results)
    for kind in kinds:
        if kind != TRAINED:
            seeds = {outcome.seed for outcome in outcomes if outcome.results.get(kind)}
            rows.append(
                TableRow(
                    name=FEATURES.get(kind, kind),
                    baseline=True,
                    runs=len(seeds),
                    failed=0,
                    epochs=None,
                    cells=cells(outcomes, kind, alone=False),
                )
            )
    return rows


@dataclass(frozen=True)
class Grid:
    """A table as text."""

    headings: list[str]  # of the columns
    lines: list[list[str]]  # cells, a list per row
    baselines: int  # how many of the last rows are baselines


def _runs(row: TableRow) -> str:
    return f"{row.runs} ({row.failed} failed)" if row.failed else str(row.runs)


def _value(row: TableRow, measure: Measure) -> str:
    cell = row.cells.get(measure.path)
    if cell is None:
        return "–"
    short = cell.summary.count != row.runs
    return measure.summary(cell.summary) + (f" (n={cell.summary.count})" if short else "")


def _difference(row: TableRow, measure: Measure, reference: str) -> str:
    if row.name == reference and not row.baseline:
        return "reference"
    cell = row.cells.get(measure.path)
    if cell is None or cell.difference is None:
        return "–"
    short = cell.difference.count != row.runs
    return measure.difference(cell.difference) + (f" (n={cell.difference.count})" if short else "")


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
    shown = in_table(measures)
    head = ["recipe", "runs"] + (["epochs"] if epochs else [])
    starts = [
        [row.name, _runs(row)]
        + (["–" if row.epochs is None else f"{row.epochs:.4g}"] if epochs else [])
        for row in rows
    ]
    baselines = sum(row.baseline for row in rows)

    def grid(columns: list[tuple[str, list[str]]]) -> Grid:
        lines = [
            start + [cells[number] for _, cells in columns] for number, start in enumerate(starts)
        ]
        return Grid(head + [heading for heading, _ in columns], lines, baselines)

    values = [(measure.heading, [_value(row, measure) for row in rows]) for measure in shown]
    differences = [
        (
            f"{measure.label} − {reference}",
            [_difference(row, measure, reference) for row in rows],
        )
        for measure in shown
    ]
    if len(shown) <= SIDE_BY_SIDE and not apart:
        both = [column for pair in zip(values, differences, strict=True) for column in pair]
        return [grid(both)]
    return [grid(values), grid(differences)]


def to_markdown(grid: Grid) -> str:
    """A grid as a Markdown table."""
    return markdown_table(grid.headings, grid.lines, "--:") + "\n"


def made_by(command: str) -> str:
    """Markdown that says by which command and versions something was made."""
    made = versions()
    return (
        f"Made by\n\n```bash\n{command}\n```\n\nwith unremix {made['unremix']}, torch "
        f"{made['torch']}, Python {made['python']}."
    )


def to_rich(grid: Grid, *, title: str | None = None) -> Table:
    """A grid for the terminal."""
    table = Table(title=title)
    for number, heading in enumerate(grid.headings):
        table.add_column(escape(heading), justify="right" if number else "left")
    last_recipe = len(grid.lines) - grid.baselines - 1
    for number, cells in enumerate(grid.lines):
        table.add_row(*map(escape, cells), end_section=number == last_recipe)
    return table


def show(console: Console, shown: Iterable[Table], lines: Iterable[str]) -> None:
    """Print tables and then lines; in a file, nothing is wrapped."""
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in shown:
        console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def run_records(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """A record per run; a baseline's measures carry its name in front."""
    return [
        {
            "recipe": outcome.recipe,
            "seed": outcome.seed,
            "status": "done" if outcome.failure is None else "failed",
            "epochs": outcome.epochs,
            "loss": outcome.loss,
        }
        | {
            path if kind == TRAINED else f"{kind}.{path}": measure["value"]
            for kind, measures in outcome.results.items()
            for path, measure in measures.items()
        }
        for outcome in outcomes
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
