"""Curves over the epochs, and charts of them as inline SVG.

Colors, dashes and fonts come from the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from unremix.console.printing import rows_to_csv
from unremix.report.rendering import fill

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 48, WIDTH - 14, 14, HEIGHT - 34  # edges of what is drawn
FEW_POINTS = 30  # up to here every point gets a marker
LEAST_SPAN = 0.2  # of a chart of shares: less would show noise as if it were progress
SERIES = 7  # colors; then they come again, dashed


Row = Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """Values over the epochs."""

    name: str
    points: Sequence[tuple[float, float]]  # epoch and value
    band: Sequence[tuple[float, float]] | None = None  # low and high at each point, or None
    look: str | None = None  # a class of the style sheet; by default by its number in the chart

    def edge(self, end: int) -> list[tuple[float, float]]:
        """Epoch and value of the lower (0) or upper (1) end of the band."""
        pairs = zip(self.points, self.band or (), strict=True)
        return [(epoch, ends[end]) for (epoch, _), ends in pairs]


def points_of(rows: Iterable[Row], column: str) -> dict[float, float]:
    """The finite values of a column of metrics.csv, by epoch."""
    return {row["epoch"]: row[column] for row in rows if math.isfinite(row.get(column, math.nan))}


def mean_line(name: str, runs: Iterable[Sequence[Row]], column: str) -> Line:
    """The mean of several seeds, in a band of one standard deviation, at the epochs all have.

    Args:
        name: What it is called.
        runs: Rows of metrics.csv, for each seed.
        column: Which measure; seeds without any of it are left out.

    Example:
        >>> first = [{"epoch": 1.0, "knn": 0.5}, {"epoch": 2.0, "knn": 0.7}]
        >>> mean_line("hcl", [first, [{"epoch": 1.0, "knn": 0.7}]], "knn").points
        [(1.0, 0.6)]
    """
    seeds = [found for rows in runs if (found := points_of(rows, column))]
    epochs = sorted(set.intersection(*map(set, seeds))) if seeds else []
    values = np.array([[found[epoch] for epoch in epochs] for found in seeds])  # (S, E)
    if not epochs:
        return Line(name, [])
    mean = values.mean(0)
    points = list(zip(epochs, mean.tolist(), strict=True))
    if len(seeds) == 1:
        return Line(name, points)
    deviation = values.std(0, ddof=1)
    return Line(name, points, np.stack([mean - deviation, mean + deviation], 1).tolist())


@dataclass(frozen=True)
class Chart:
    """What is drawn."""

    title: str
    lines: Sequence[Line]
    levels: Mapping[str, float] = field(default_factory=dict)  # what there is without training
    percent: bool = False  # whether values are shares
    good: str = ""  # a line that says what is good
    from_zero: bool = False  # whether the axis begins at 0
    unit: str = "epoch"  # of the horizontal axis
    at_least: tuple[float, float] | None = None  # range that a figure covers, so noise looks small

    @property
    def drawn(self) -> list[Line]:
        """The lines that have points."""
        return [line for line in self.lines if line.points]

    @property
    def has_bands(self) -> bool:
        """Whether a line has a band."""
        return any(line.band for line in self.lines)

    @property
    def looks(self) -> list[tuple[str, str]]:
        """Name and class of each line and level, for a legend."""
        return [
            (line.name, line.look or f"series-{number % SERIES}" + " again" * (number >= SERIES))
            for number, line in enumerate(self.drawn)
        ] + [(name, f"level level-{number % 3}") for number, name in enumerate(self.levels)]

    @property
    def svg(self) -> Markup:
        """The chart for a page.

        Example:
            >>> svg = Chart("Loss", [Line("loss", [(1, 3.0), (2, 2.5)])]).svg
            >>> svg.startswith('<svg class="chart"'), "Loss" in svg
            (True, True)
        """
        low, high = _range(self)
        epochs = [epoch for line in self.drawn for epoch, _ in line.points]
        first, last = min(epochs), max(epochs)
        if first == last:
            first, last = first - 0.5, last + 0.5

        def x(epoch: float) -> float:
            return round(LEFT + (RIGHT - LEFT) * (epoch - first) / (last - first), 1)

        def y(value: float) -> float:
            return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

        factor = 100 if self.percent else 1
        ends = ", ".join(
            f"{line.name} from {factor * line.points[0][1]:.3g} to "
            f"{factor * line.points[-1][1]:.3g}"
            for line in self.drawn
        )
        return fill(
            "chart.svg",
            title=f"{self.title}: {ends}, {self.unit} {min(epochs):g} to {max(epochs):g}",
            chart=self,
            lines=[(line, look) for line, (_, look) in zip(self.drawn, self.looks, strict=False)],
            vertical=ticks(factor * low, factor * high),
            horizontal=ticks(first, last, 7),
            factor=factor,
            few=FEW_POINTS,
            size={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM},
            x=x,
            y=y,
        )

    @property
    def csv(self) -> str:
        """Its values: a row per epoch, a column per line and per end of its band.

        Example:
            >>> print(Chart("Loss", [Line("loss", [(1, 3.0), (2, 2.5)])]).csv, end="")
            epoch,loss
            1,3.0
            2,2.5
        """
        columns: dict[str, dict[float, float]] = {}
        for line in self.lines:
            columns[line.name] = dict(line.points)
            for end, name in enumerate(("low", "high") if line.band else ()):
                columns[f"{line.name} {name}"] = dict(line.edge(end))
        epochs = sorted({epoch for values in columns.values() for epoch in values})
        rows = ([f"{epoch:g}", *(c.get(epoch, "") for c in columns.values())] for epoch in epochs)
        return rows_to_csv([[self.unit, *columns], *rows])


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a range.

    Example:
        >>> ticks(0.13, 0.92)
        [0.2, 0.4, 0.6, 0.8]
    """
    span = max(high - low, 1e-12)
    power = 10 ** math.floor(math.log10(span / most))
    step = next(power * f for f in (1, 2, 2.5, 5, 10, 20) if span / (power * f) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(step * n, 12) + 0.0 for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(chart: Chart) -> tuple[float, float]:
    values = [value for line in chart.lines for _, value in line.points]
    values += [end for line in chart.lines for pair in line.band or () for end in pair]
    values += list(chart.levels.values())
    low, high = min(values), max(values)
    if chart.percent:
        span = max(LEAST_SPAN, 1.1 * (high - low))
        low = min(max(0.0, (low + high - span) / 2), max(0.0, 1 - span))
        return low, min(1.0, low + span)
    if chart.from_zero:
        return 0.0, 1.08 * max(high, 1e-9)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


Interval = tuple[str, float, float | None, float | None]
"""A name, a difference, and the ends of its interval, if known."""


def draw_intervals(intervals: Sequence[Interval], *, factor: float, title: str) -> Markup:
    """Differences as points with bars, one below the other, around a line at 0.

    Args:
        intervals: What to draw.
        factor: Multiplies the values: 100 for shares shown in points.
        title: What it shows, for those who do not see it.
    """
    width, row, edge = 360, 44, 12
    height = row * len(intervals) + 26
    ends = [0.0] + [one for _, *numbers in intervals for one in numbers if one is not None]
    low, high = factor * min(ends), factor * max(ends)
    pad = 0.08 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return round(edge + (width - 2 * edge) * (value - low) / (high - low), 1)

    return fill(
        "intervals.svg",
        title=title,
        intervals=intervals,
        ticks=ticks(low, high, 6),
        factor=factor,
        width=width,
        height=height,
        row=row,
        x=x,
    )
