"""The paper's tables and figures by name: ``experiments.yaml``. Adding one is an entry there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unremix.console.values import make_options
from unremix.experiments.paper import read_data
from unremix.experiments.paper.comparison import make_comparison
from unremix.experiments.paper.illustration import make_illustration
from unremix.experiments.paper.negatives import make_contributions, make_gallery, make_gradients
from unremix.experiments.paper.over_epochs import make_diversity, make_mix, make_probe_curves
from unremix.experiments.paper.published import TABLES
from unremix.experiments.paper.records import Experiment, Made, Row, Setting

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


def _row(values: Mapping[str, Any], prefix: str) -> Row:
    table, row = values.get("published", (None, None))
    published = {} if table is None else TABLES[table].figures(row)
    made: Row = make_options(Row, {**values, "published": published}, prefix)
    return made


def _experiment(name: str, values: Mapping[str, Any]) -> Experiment:
    rows = [_row(row, f"{name}.rows.") for row in values.get("rows", ())]
    found = {**values, "name": name, "rows": rows, "make": MAKERS[values["make"]]}
    made: Experiment = make_options(Experiment, found, f"{name}.")
    return made


EXPERIMENTS = {name: _experiment(name, values) for name, values in read_data("experiments").items()}
