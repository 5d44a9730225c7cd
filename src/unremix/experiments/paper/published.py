"""What the paper reports: ``published.yaml``, whose tables look like the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from unremix.console.values import make_options
from unremix.experiments.paper import read_data

Percent = tuple[float, float | None]
Published = dict[tuple[str, str], Percent]
"""Figures by data set and measure: mean and, if there is one, standard deviation."""


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    data: tuple[str, ...]  # its columns: each data set ...
    measures: tuple[str, ...]  # ... with each measure
    rows: dict[str, list[str | float]]  # a figure for each column

    def figures(self, row: str) -> Published:
        """The figures of a row.

        Example:
            >>> Table(("CIFAR-10",), ("linear.top1",), {"HCL": ["91.19 ± 0.03"]}).figures("HCL")
            {('CIFAR-10', 'linear.top1'): (91.19, 0.03)}
        """
        columns = product(self.data, self.measures)
        parts = [str(figure).partition(" ± ") for figure in self.rows[row]]
        figures = [(float(mean), float(spread) if spread else None) for mean, _, spread in parts]
        return dict(zip(columns, figures, strict=True))


TABLES: dict[str, Table] = {
    name: make_options(Table, table, f"{name}.") for name, table in read_data("published").items()
}
