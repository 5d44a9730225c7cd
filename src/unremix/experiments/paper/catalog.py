"""The paper's tables and figures by name: ``experiments.yaml``. Adding one is an entry there.

What the paper reports is in ``published.yaml``, whose tables look like the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from unremix.console.values import make_options
from unremix.experiments.paper.comparison import make_comparison
from unremix.experiments.paper.experiment import Experiment, Made, Published, Row, Setting
from unremix.experiments.paper.illustration import make_illustration
from unremix.experiments.paper.in_a_batch import make_contributions, make_gallery, make_gradients
from unremix.experiments.paper.over_epochs import make_diversity, make_mix, make_probe_curves
from unremix.experiments.paper.scales import read_data

MAKERS: Mapping[str, Callable[[Setting], Made]] = {
    "comparison": make_comparison,
    "contributions": make_contributions,
    "diversity": make_diversity,
    "gallery": make_gallery,
    "gradients": make_gradients,
    "illustration": make_illustration,
    "mix": make_mix,
    "probe_curves": make_probe_curves,
}


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


def _row(values: Mapping[str, Any], prefix: str) -> Row:
    table, row = values.get("published", (None, None))
    published = {} if table is None else TABLES[table].figures(row)
    return make_options(Row, {**values, "published": published}, prefix)


def _experiment(name: str, values: Mapping[str, Any]) -> Experiment:
    rows = [_row(row, f"{name}.rows.") for row in values.get("rows", ())]
    found = {**values, "name": name, "rows": rows, "make": MAKERS[values["make"]]}
    return make_options(Experiment, found, f"{name}.")


EXPERIMENTS = {name: _experiment(name, values) for name, values in read_data("experiments").items()}
