"""Figure 1, computed: what random choice, similarity and UnReMix pick in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import unremix
from unremix.experiments.paper.experiment import Made, Setting
from unremix.experiments.tables import Grid
from unremix.report.figures import add_legend
from unremix.report.style import BLUE, GRAYS, GREEN, ORANGE, PAGE, VERMILION

DIGITS = (3, 8, 9)
PER_CLASS = 16
PICKS = 4
JITTER = 0.15  # deviation of a second view from the first, in units of the points' own


@dataclass(frozen=True)
class Plane:
    """Real points in two dimensions, each with a second view, and an anchor among them."""

    first: Tensor  # first views, shape (N, 2)
    second: Tensor  # second views, shape (N, 2)
    labels: Tensor  # their classes, shape (N,)
    anchor: int  # which point is the anchor


def make_plane() -> Plane:
    """Handwritten digits of three classes, in the plane of their first two principal components.

    The anchor is near the boundary: the point of the first class that is nearest to the others. It
    is at least 1 away from the origin, beside which a second view may have any direction.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.decomposition import PCA  # type: ignore[import-untyped]

    digits = load_digits()
    known = np.isin(digits.target, DIGITS)
    points = PCA(2, svd_solver="full").fit_transform(digits.data[known])
    labels = digits.target[known]
    chosen = np.concatenate([np.flatnonzero(labels == one)[:PER_CLASS] for one in DIGITS])
    first = torch.from_numpy(points[chosen]).float()
    first = (first - first.mean(0)) / first.std(0)
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
    classes = torch.from_numpy(np.searchsorted(DIGITS, labels[chosen]))
    distances = torch.cdist(first, first[classes != 0]).amin(1)
    possible = (classes == 0) & (first.norm(dim=1) >= 1)
    anchor = int(torch.where(possible, distances, torch.inf).argmin())
    return Plane(first, first + JITTER * noise, classes, anchor)


def picks_of(plane: Plane) -> dict[str, Tensor]:
    """The negatives that each way of choosing them picks for every point, each (N, PICKS)."""
    importance = unremix.importance(plane.first, plane.second, layout="one-way")
    generator = torch.Generator().manual_seed(0)
    ways = {
        "random": torch.rand(importance.weights.shape, generator=generator),
        "similarity": importance.similarity,
        "UnReMix": importance.weights,
    }
    return {
        name: scores.masked_fill(~importance.negatives, -torch.inf)
        .sort(dim=1, descending=True)
        .indices[:, :PICKS]
        for name, scores in ways.items()
    }


MARKERS = ("^", "P", "p")


def _draw(axes: Axes, plane: Plane, picks: Tensor) -> None:
    anchor, every = torch.tensor([plane.anchor]), torch.arange(len(plane.labels))
    for which, points, name, size, color, edge in (
        (every, plane.first, "", 26, GRAYS[2], GRAYS[0]),
        (picks, plane.second, "picked negatives", 64, VERMILION, "black"),
        (anchor, plane.second, "positive", 64, GREEN, "black"),
        (anchor, plane.first, "anchor", 64, ORANGE, "black"),
    ):
        for digit, marker in enumerate(MARKERS):
            own = which[plane.labels[which] == digit]
            axes.scatter(
                points[own, 0], points[own, 1], size, color, marker=marker, edgecolors=edge,
                linewidths=0.6, zorder=3 if name else 1,
                label=(name or f"digit {DIGITS[digit]}") * bool(len(own)),
            )  # fmt: skip
    axes.plot(0, 0, "+", color=BLUE, ms=7, label="origin")
    axes.set(xticks=[], yticks=[])


def make_illustration(setting: Setting) -> Made:
    """Three panels: random, similarity, UnReMix."""
    plane = make_plane()
    everywhere = picks_of(plane)
    figure = Figure(figsize=(PAGE, 2.7), layout="constrained")
    drawn = figure.subplots(1, 3, sharex=True, sharey=True)
    lines, records = [], []
    for axes, (name, picks) in zip(drawn, everywhere.items(), strict=True):
        chosen = picks[plane.anchor]
        _draw(axes, plane, chosen)
        axes.set_title(name)
        classes = plane.labels[chosen].tolist()
        own = int(plane.labels[plane.anchor])
        share = (plane.labels[picks] == plane.labels[:, None]).float().mean()
        false, others = classes.count(own), len({*classes} - {own})
        lines.append([name, f"{false} of {PICKS}", str(others), f"{100 * share:.0f} %"])
        records += [
            {"way": name, "place": place, "point": one, "digit": DIGITS[classes[place]]}
            for place, one in enumerate(chosen.tolist())
        ]
    add_legend(figure)
    headings = ["way", "of the anchor's class", "distinct other classes", "same class, all anchors"]
    return Made(
        [("", Grid(headings, lines))],
        records,
        {setting.experiment.name: figure},
        {
            "first": plane.first.tolist(),
            "second": plane.second.tolist(),
            "labels": plane.labels.tolist(),
            "anchor": plane.anchor,
            "picks": {name: picks[plane.anchor].tolist() for name, picks in everywhere.items()},
            "everywhere": {name: picks.tolist() for name, picks in everywhere.items()},
        },
    )
