"""Charts as inline SVG: colors, dashes and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 14, 34
FEW_POINTS = 30  # up to here every point gets a marker
LEAST_SPAN = 0.2  # of a chart of shares: less would show noise as if it were progress
LONGEST_NAME = 48  # letters of a name that fit above its interval
SERIES = 7  # colors; then they come again, dashed


@dataclass(frozen=True)
class Line:
    """Values over the epochs."""

    name: str
    points: Sequence[tuple[float, float]]  # epoch and value
    band: Sequence[tuple[float, float]] | None = None  # low and high at each point, or None
    look: str | None = None  # a class of the style sheet; by default by its number in the chart


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
        middle = (low + high) / 2
        half = max(LEAST_SPAN, 1.1 * (high - low)) / 2
        low, high = middle - half, middle + half
        if low < 0:
            low, high = 0.0, min(1.0, high - low)
        if high > 1:
            low, high = max(0.0, low - (high - 1)), 1.0
        return low, high
    if chart.from_zero:
        return 0.0, 1.08 * max(high, 1e-9)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def draw(chart: Chart) -> Markup | None:
    """A chart as SVG; None where there is nothing to draw.

    Example:
        >>> svg = draw(Chart("Loss", [Line("loss", [(1, 3.0), (2, 2.5)])]))
        >>> svg.startswith('<svg class="chart"'), "Loss" in svg
        (True, True)
    """
    lines = [line for line in chart.lines if line.points]
    if not lines:
        return None
    low, high = _range(chart)
    epochs = [epoch for line in lines for epoch, _ in line.points]
    first, last = min(epochs), max(epochs)
    if first == last:
        first, last = first - 0.5, last + 0.5

    def x(epoch: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (epoch - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low), 1)

    factor = 100 if chart.percent else 1
    parts = []
    for tick in ticks(factor * low, factor * high):
        at = y(tick / factor)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        shown = f"{tick:g}".replace("-", "−")
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{shown}</text>'
        )
    for tick in ticks(first, last, 7):
        if tick == int(tick):
            parts.append(
                f'<text class="tick" x="{x(tick)}" y="{HEIGHT - BOTTOM + 17}" '
                f'text-anchor="middle">{tick:g}</text>'
            )
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 3}" '
        f'text-anchor="middle">{escape(chart.unit)}</text>'
    )
    for number, (name, value) in enumerate(chart.levels.items()):
        at = y(value)
        parts.append(
            f'<line class="level level-{number % 3}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" '
            f'y2="{at}"><title>{escape(name)}</title></line>'
        )
    for line, (_, look) in zip(lines, looks(chart)[: len(lines)], strict=True):
        if line.band is not None:
            there = [f"{x(e)} {y(b[1])}" for (e, _), b in zip(line.points, line.band, strict=True)]
            back = [f"{x(e)} {y(b[0])}" for (e, _), b in zip(line.points, line.band, strict=True)]
            parts.append(f'<path class="band {look}" d="M{"L".join(there + back[::-1])}z"/>')
        path = "L".join(f"{x(epoch)} {y(value)}" for epoch, value in line.points)
        parts.append(f'<path class="line {look}" d="M{path}"/>')
        if len(line.points) <= FEW_POINTS:
            marks = "".join(
                f"M{x(epoch) - 2.6} {y(value)}a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0"
                for epoch, value in line.points
            )
            parts.append(f'<path class="marks {look}" d="{marks}"/>')
    ends = ", ".join(
        f"{line.name} from {factor * line.points[0][1]:.3g} to {factor * line.points[-1][1]:.3g}"
        for line in lines
    )
    title = escape(f"{chart.title}: {ends}, {chart.unit} {min(epochs):g} to {max(epochs):g}")
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        + "".join(parts)
        + "</svg>"
    )


def looks(chart: Chart) -> list[tuple[str, str]]:
    """Name and class of each line and level, for a legend."""
    lines = [line for line in chart.lines if line.points]
    return [
        (line.name, line.look or f"series-{number % SERIES}" + " again" * (number >= SERIES))
        for number, line in enumerate(lines)
    ] + [(name, f"level level-{number % 3}") for number, name in enumerate(chart.levels)]


Interval = tuple[str, float, float | None, float | None]
"""A name, a difference, and the ends of its interval where they are known."""


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

    parts = []
    for tick in ticks(low, high, 6):
        look, shown = ("zero", "0") if tick == 0 else ("grid", f"{tick:+g}".replace("-", "−"))
        parts.append(
            f'<line class="{look}" x1="{x(tick)}" x2="{x(tick)}" y1="4" y2="{height - 20}"/>'
            f'<text class="tick" x="{x(tick)}" y="{height - 4}" text-anchor="middle">{shown}</text>'
        )
    for number, (name, value, low_end, high_end) in enumerate(intervals):
        at = row * number + 31
        clear = low_end is not None and high_end is not None and (low_end > 0 or high_end < 0)
        name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        parts.append(f'<text class="name" x="2" y="{at - 14}">{escape(name)}</text>')
        if low_end is not None and high_end is not None:
            a, b = x(factor * low_end), x(factor * high_end)
            parts.append(
                f'<path class="whisker{" clear" * clear}" d="M{a} {at}H{b}M{a} {at - 5}v10'
                f'M{b} {at - 5}v10"/>'
            )
        parts.append(
            f'<circle class="point{" clear" * clear}" cx="{x(factor * value)}" cy="{at}" r="5"/>'
        )
    return Markup(
        f'<svg class="chart intervals" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">' + "".join(parts) + "</svg>"
    )
