"""Groups of bars, with the figures of a paper beside them and level lines for baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from unremix.report.style import BLACK, GRAYS, PAGE, looks_of


@dataclass(frozen=True)
class Bars:
    """A bar in each group, as shares from 0 to 1; None where there is none.

    Args:
        name: What to call them.
        means: Their heights.
        deviations: One standard deviation, drawn up and down.
        published: What a paper reports, drawn as a diamond.
        level: Whether they are level lines across the group instead: a baseline.
    """

    name: str
    means: Sequence[float | None]
    deviations: Sequence[float | None]
    published: Sequence[float | None]
    level: bool = False


def _percent(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else 100 * value for value in values]


def bar_chart(groups: Sequence[str], rows: Sequence[Bars], *, label: str = "%") -> Figure:
    """A group of bars for each column of a table.

    Args:
        groups: What to call the groups.
        rows: The bars.
        label: Of the axis.
    """
    drawn = [row for row in rows if not row.level]
    levels = [row for row in rows if row.level]
    looks = looks_of(row.name for row in drawn)
    figure = Figure(figsize=(PAGE, 3.1), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / max(1, len(drawn))
    labeled = False
    for number, row in enumerate(drawn):
        places = [place - 0.42 + (number + 0.5) * width for place in range(len(groups))]
        look = looks[row.name]
        axes.bar(
            places, _percent(row.means), width, yerr=_percent(row.deviations), color=look.color,
            hatch=look.hatch, edgecolor="white", linewidth=0.4, label=row.name, capsize=1.5,
            error_kw={"lw": 0.8, "ecolor": "#333333"},
        )  # fmt: skip
        if any(value is not None for value in row.published):
            axes.plot(
                places, _percent(row.published), "D", color=BLACK, ms=3.2, mfc="white",
                linestyle="none", label="" if labeled else "paper",
            )  # fmt: skip
            labeled = True
    for number, row in enumerate(levels):
        for place, value in enumerate(_percent(row.means)):
            axes.hlines(
                value, place - 0.45, place + 0.45, color=GRAYS[number % 2],
                linestyle=((0, (4, 2)), (0, (1, 1.5)))[number % 2], lw=1.2,
                label="" if place else row.name,
            )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(ylabel=label)
    known = [
        value
        for row in rows
        for value in (*_percent(row.means), *_percent(row.published))
        if math.isfinite(value)
    ]
    if known:
        axes.set_ylim(max(0.0, 10 * math.floor(min(known) / 10 - 0.5)), None)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
