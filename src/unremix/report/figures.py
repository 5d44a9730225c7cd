"""Figures of a run, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unremix.report import style  # noqa: F401 (sets matplotlib's options)

Row = dict[str, float]


def curve(
    rows: Sequence[Row], names: dict[str, str], *, title: str, percent: bool = False
) -> str | None:
    """A line per metric over the epochs, as SVG; None if no row has any of them.

    Args:
        rows: Rows of metrics.csv.
        names: Column and what to call it.
        title: Title.
        percent: Whether values are shares.
    """
    figure = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = figure.subplots()
    drawn = False
    for column, label in names.items():
        points = [(row["epoch"], row[column]) for row in rows if column in row]
        if points:
            epochs, values = zip(*points, strict=True)
            shown = [100 * value for value in values] if percent else list(values)
            axes.plot(epochs, shown, marker="o" if len(points) < 30 else None, ms=3, label=label)
            drawn = True
    if not drawn:
        return None
    axes.set(title=title, xlabel="epoch", ylabel="%" if percent else "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(alpha=0.3)
    if len(names) > 1:
        axes.legend(fontsize=8)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def probe_curve(card: dict[str, object]) -> str | None:
    """Accuracy of the linear probe over its epochs, for each kind of features."""
    results = card.get("results")
    if not isinstance(results, dict):
        return None
    rows: dict[int, Row] = {}
    for name, result in results.items():
        for epoch, value in enumerate(result.get("linear", {}).get("curve", ()), start=1):
            rows.setdefault(epoch, {"epoch": epoch})[name] = value
    names = {"trained": "trained", "untrained": "untrained", "pixels": "raw pixels"}
    return curve(list(rows.values()), names, title="Linear probe, accuracy", percent=True)
