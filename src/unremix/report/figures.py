"""Figures of experiments: learning curves, bars beside a paper's, and differences of settings."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unremix.evaluation.statistics import Difference
from unremix.files.atomic_files import write_whole
from unremix.report.charts import FEW_POINTS, Chart
from unremix.report.style import BLACK, BLUE, LEVELS, PAGE, VERMILION, Look, looks_of


def _draw(axes: Axes, chart: Chart, looks: Mapping[str, Look]) -> None:
    scale = 100 if chart.percent else 1
    for line in chart.drawn:
        look = looks[line.name]
        epochs, values = np.array(line.points).T
        axes.plot(
            epochs, scale * values, color=look.color, linestyle=look.dash, lw=1.5,
            label=line.name, marker=look.marker if len(epochs) <= FEW_POINTS else None,
            ms=4 if look.turn else 3, mfc="white" if look.turn else look.color,
        )  # fmt: skip
        if line.band:
            low, high = scale * np.array(line.band).T
            axes.fill_between(epochs, low, high, color=look.color, alpha=0.13, lw=0)
    for (name, value), (color, dash) in zip(chart.levels.items(), cycle(LEVELS), strict=False):
        axes.axhline(scale * value, color=color, linestyle=dash, lw=1.2, label=name, zorder=1)
    axes.set(title=chart.title, xlabel=chart.unit, ylabel="%" if chart.percent else "")
    if chart.at_least is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, scale * chart.at_least[0]), max(high, scale * chart.at_least[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    axes.grid(alpha=0.3)


def learning_curves(
    charts: Iterable[Chart], rows: int = 1, looks: Mapping[str, Look] | None = None
) -> Figure | None:
    """Charts side by side: a line per recipe, the mean over its seeds, within a band.

    Args:
        charts: What to show; those without points are left out.
        rows: How many rows of charts there are.
        looks: How lines are drawn, by name; by default as the methods of these names.

    Returns:
        The figure; None if there is nothing to draw.
    """
    charts = [chart for chart in charts if chart.drawn]
    if not charts:
        return None
    names = list(dict.fromkeys(line.name for chart in charts for line in chart.lines))
    height = 0.7 + 1.9 * rows + 0.17 * math.ceil((len(names) + 2) / _legend_columns(names))
    figure = Figure(figsize=(PAGE, height), layout="constrained")
    drawn = figure.subplots(rows, math.ceil(len(charts) / rows), squeeze=False).flat
    for axes, chart in zip_longest(drawn, charts):
        if chart is None:
            axes.set_axis_off()
        else:
            _draw(axes, chart, looks_of(names) if looks is None else looks)
    bands = any(chart.has_bands for chart in charts)
    add_legend(figure, "mean ± standard deviation" if bands else None)
    return figure


LETTERS = 96  # of a legend's line, in the width of a page


def _legend_columns(names: Iterable[str]) -> int:
    """Columns of a legend that fit into the width of a page."""
    return max(1, min(4, LETTERS // (max(map(len, names), default=0) + 8)))  # a name and its line


def add_legend(figure: Figure, title: str | None = None) -> None:
    """A legend below the figure with what its panels have, each name once."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, line)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center",
        ncols=_legend_columns(entries), handlelength=3.2, title=title, title_fontsize=8,
    )  # fmt: skip


@dataclass(frozen=True)
class Bars:
    """A bar in each group; all numbers are shares from 0 to 1, or None where there are none."""

    name: str
    cells: Sequence[Mapping[str, Any]]  # mean, deviation, and ours_minus_paper, of each group
    level: bool = False  # whether they are level lines across the group instead: a baseline


FEW_GROUPS = 3  # up to this many groups, each has its own axis
MOST_ABOVE = 1.6  # of the tallest bar: a paper's figures above that would make the bars too small


def bar_chart(groups: Sequence[str], rows: Sequence[Bars], axis: str = "%") -> Figure:
    """A group of bars, by its name, for each column of a table; ``axis`` says what they measure.

    The paper's numbers are drawn unless they would make the bars too small.
    """
    numbers = range(len(groups))
    panels = [[number] for number in numbers] if len(groups) <= FEW_GROUPS else [list(numbers)]
    figure = Figure(figsize=(PAGE, 3.1), layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, shown in zip(drawn, panels, strict=True):
        _draw_bars(axes, shown, rows)
        axes.set_xticks(range(len(shown)), [groups[number] for number in shown])
        axes.grid(axis="y")
    drawn[0].set_ylabel(axis)
    add_legend(figure)
    return figure


def _draw_bars(axes: Axes, groups: Sequence[int], rows: Sequence[Bars]) -> None:
    """Some of the groups, by their numbers."""

    def percent(row: Bars, what: str = "mean") -> np.ndarray:
        """Shape (groups,); NaN where there is none."""
        return 100 * np.array([row.cells[group][what] for group in groups], dtype=float)

    bars = [row for row in rows if not row.level]
    papers = {row.name: percent(row) - percent(row, "ours_minus_paper") for row in bars}
    tallest, highest = (
        np.fmax.reduce([0.0, *np.ravel(values)])
        for values in ([percent(row) for row in bars], [*papers.values()])
    )
    looks = looks_of(row.name for row in bars)
    width, middles = 0.84 / max(1, len(bars)), np.arange(len(groups))
    for number, row in enumerate(bars):
        places, published = middles - 0.42 + (number + 0.5) * width, papers[row.name]
        look = looks[row.name]
        axes.bar(
            places, percent(row), width, yerr=percent(row, "deviation"), color=look.color,
            hatch=look.hatch, edgecolor="white", linewidth=0.4, label=row.name, capsize=1.5,
            error_kw={"lw": 0.8, "ecolor": "#333333"},
        )  # fmt: skip
        if highest <= MOST_ABOVE * tallest and not np.isnan(published).all():
            axes.plot(
                places, published, "D", color=BLACK, ms=3.2, mfc="white",
                linestyle="none", label="paper",
            )  # fmt: skip
    levels = (row for row in rows if row.level)
    for row, (color, dash) in zip(levels, cycle(LEVELS), strict=False):
        axes.hlines(
            percent(row), middles - 0.45, middles + 0.45, color=color, linestyle=dash,
            lw=1.2, label=row.name,
        )  # fmt: skip


def interval_chart(
    runs: Mapping[str, Sequence[float]], differences: Mapping[str, Difference | None], *,
    label: str, reference: str, percent: bool,
) -> Figure:  # fmt: skip
    """A line per setting: on the left its runs and their mean, on the right the difference.

    Args:
        runs: A value per run of each setting.
        differences: To the reference; None for the reference itself.
        label: Of the values.
        reference: The setting that others are compared with.
        percent: Whether values are shares.
    """
    scale = 100 if percent else 1
    names = [textwrap.fill(name, 44, break_on_hyphens=False) for name in runs]
    lines = sum(1 + name.count("\n") for name in names)
    figure = Figure(figsize=(PAGE, 1.0 + 0.1 * len(runs) + 0.15 * lines), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (name, shares) in enumerate(runs.items()):
        values = [scale * share for share in shares]
        left.plot(values, [place] * len(values), "o", ms=3.5, color=BLUE, alpha=0.6)
        left.plot(sum(values) / len(values), place, "|", ms=11, mew=2, color="#222222")
        gap = differences[name]
        if gap is None:
            continue
        low, high = (gap.mean if end is None else end for end in (gap.low, gap.high))
        clear = low * high > 0 and gap.low is not None
        right.errorbar(
            scale * gap.mean, place, xerr=[[scale * (gap.mean - low)], [scale * (high - gap.mean)]],
            fmt="D" if clear else "o",  # a second cue, besides the color
            ms=5, lw=1.6, color=VERMILION if clear else "#777777",
        )  # fmt: skip
    right.axvline(0, color="#222222", lw=0.8)
    left.set(xlabel=f"{label}, %" if percent else label)
    right.set(xlabel="difference, 95 % interval")
    figure.supxlabel(f"runs, their mean, and {label} − {reference}", fontsize=8)
    left.set_yticks(range(len(runs)), names, fontsize=7.5)
    left.set_ylim(len(runs) - 0.5, -0.5)  # from the top
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as ``path`` with .png and with .svg; the same data give the same bytes."""
    for format, changing in (("png", ["Software"]), ("svg", ["Date", "Creator"])):
        metadata = dict.fromkeys(changing)
        save = partial(figure.savefig, format=format, dpi=200, metadata=metadata)
        write_whole(path.with_suffix(f".{format}"), save)
