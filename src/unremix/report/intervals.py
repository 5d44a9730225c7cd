"""Every run as a point, and the differences to a reference with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from unremix.report.style import BLUE, VERMILION


@dataclass(frozen=True)
class Interval:
    """One setting.

    Args:
        name: What to call it.
        values: A value per run.
        difference: Mean difference to the reference; None for the reference itself.
        low: Lower end of its interval, where it can be estimated.
        high: Upper end.
    """

    name: str
    values: Sequence[float]
    difference: float | None
    low: float | None
    high: float | None


def interval_chart(
    rows: Sequence[Interval], *, label: str, reference: str, percent: bool
) -> Figure:
    """A line per setting: on the left its runs and their mean, on the right the difference.

    Args:
        rows: The settings, from top to bottom.
        label: What was measured.
        reference: What the differences are to.
        percent: Whether values are shares.
    """
    scale = 100 if percent else 1
    figure = Figure(figsize=(9.0, 1.3 + 0.28 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        values = [scale * value for value in row.values]
        left.plot(values, [place] * len(values), "o", ms=3.5, color=BLUE, alpha=0.6)
        left.plot(sum(values) / len(values), place, "|", ms=11, mew=2, color="#222222")
        if row.difference is None:
            continue
        clear = row.low is not None and row.high is not None and row.low * row.high > 0
        color = VERMILION if clear else "#777777"
        if row.low is not None and row.high is not None:
            right.plot([scale * row.low, scale * row.high], [place, place], color=color, lw=1.6)
        marker = "D" if clear else "o"  # a second cue, besides the color
        right.plot(scale * row.difference, place, marker, ms=5, color=color)
    right.axvline(0, color="#222222", lw=0.8)
    unit = ", %" if percent else ""
    left.set(xlabel=f"{label}{unit}, every run and mean")
    right.set(xlabel=f"{label} − {reference}, 95 % interval")
    left.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    return figure
