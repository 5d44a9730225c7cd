"""Learning curves of several recipes in one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unremix.data.atomic_files import write_whole
from unremix.report.style import GRAYS, PAGE, looks_of

Row = dict[str, float]

FEW_POINTS = 30  # up to here every point gets a marker


@dataclass(frozen=True)
class Panel:
    """One measure over the epochs.

    Args:
        column: Its column in metrics.csv.
        title: What to call it.
        percent: Whether its values are shares.
        levels: Values to draw as level lines, by name: what there is without training.
        at_least: What the axis shows at least, so that noise does not fill it.
    """

    column: str
    title: str
    percent: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    at_least: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """A measure over the epochs, over seeds.

    Args:
        epochs: Epochs at which every seed was measured, E of them.
        mean: Means over the seeds, shape (E,).
        deviation: Standard deviations, shape (E,); None for a single seed.
    """

    epochs: list[float]
    mean: np.ndarray
    deviation: np.ndarray | None


def mean_curve(runs: Sequence[Sequence[Row]], column: str) -> Curve | None:
    """The mean curve of several seeds, at the epochs that all of them have.

    Args:
        runs: Rows of metrics.csv, for each seed.
        column: Which measure; seeds without any of it are left out.

    Returns:
        The curve; None if no epoch is common to all.

    Example:
        >>> first = [{"epoch": 1.0, "knn": 0.5}, {"epoch": 2.0, "knn": 0.7}]
        >>> second = [{"epoch": 1.0, "knn": 0.7}]
        >>> curve = mean_curve([first, second], "knn")
        >>> curve.epochs, curve.mean.round(3).tolist(), curve.deviation.round(3).tolist()
        ([1.0], [0.6], [0.141])
    """
    series = [
        {row["epoch"]: row[column] for row in rows if math.isfinite(row.get(column, math.nan))}
        for rows in runs
    ]
    series = [points for points in series if points]
    if not series:
        return None
    epochs = sorted(set.intersection(*(set(points) for points in series)))
    if not epochs:
        return None
    values = np.array([[points[epoch] for epoch in epochs] for points in series])  # (S, E)
    deviation = values.std(0, ddof=1) if len(series) > 1 else None
    return Curve(epochs, values.mean(0), deviation)


def _draw(axes: Axes, panel: Panel, runs: Mapping[str, Sequence[Sequence[Row]]]) -> None:
    scale = 100 if panel.percent else 1
    looks = looks_of(runs)
    for name, seeds in runs.items():
        curve = mean_curve(seeds, panel.column)
        if curve is None:
            continue
        look = looks[name]
        marker = look.marker if len(curve.epochs) <= FEW_POINTS else None
        mean = scale * curve.mean
        axes.plot(
            curve.epochs, mean, color=look.color, linestyle=look.dash, lw=1.5, label=name,
            marker=marker, ms=4 if look.turn else 3, mfc="white" if look.turn else look.color,
        )  # fmt: skip
        if curve.deviation is not None:
            half = scale * curve.deviation
            axes.fill_between(
                curve.epochs, mean - half, mean + half, color=look.color, alpha=0.13, lw=0
            )
    patterns = ((0, (4, 3)), (0, (1, 2)))
    for number, (name, value) in enumerate(panel.levels.items()):
        axes.axhline(
            scale * value, color=GRAYS[number % 2], linestyle=patterns[number % 2], lw=1.2,
            label=name, zorder=1,
        )  # fmt: skip
    axes.set(title=panel.title, xlabel="epoch", ylabel="%" if panel.percent else "")
    if panel.at_least is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, scale * panel.at_least[0]), max(high, scale * panel.at_least[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(alpha=0.3)


def learning_curves(
    runs: Mapping[str, Sequence[Sequence[Row]]], panels: Sequence[Panel]
) -> Figure | None:
    """A line per recipe, the mean over its seeds, within a band of one standard deviation.

    Args:
        runs: For each recipe, for each of its seeds, the rows of metrics.csv.
        panels: What to show, side by side.

    Returns:
        The figure; None if there is nothing to draw.
    """
    panels = [
        panel
        for panel in panels
        if any(mean_curve(seeds, panel.column) is not None for seeds in runs.values())
    ]
    if not panels:
        return None
    columns = 4
    height = 2.6 + 0.17 * math.ceil((len(runs) + 2) / columns)
    figure = Figure(figsize=(PAGE, height), layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    entries: dict[str, Artist] = {}
    for axes, panel in zip(drawn, panels, strict=True):
        _draw(axes, panel, runs)
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, line)
    spread = any(len(seeds) > 1 for seeds in runs.values())
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns,
        handlelength=3.2, title="mean ± standard deviation" if spread else None, title_fontsize=8,
    )  # fmt: skip
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as ``path`` with .png and with .svg; the same data give the same bytes."""
    for format, metadata in (
        ("png", {"Software": None}),
        ("svg", {"Date": None, "Creator": None}),
    ):
        write_whole(
            path.with_suffix(f".{format}"),
            lambda file, format=format, metadata=metadata: figure.savefig(  # type: ignore[misc]
                file, format=format, dpi=150, metadata=metadata
            ),
        )
