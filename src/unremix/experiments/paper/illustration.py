"""Figure 1, computed: what random choice, similarity and UnReMix pick in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import unremix
from unremix.experiments.paper.records import Made, Setting
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


def orders_of(plane: Plane) -> dict[str, Tensor]:
    """The negatives of every point in the order of each way of choosing them, each (N, N - 1)."""
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
        .indices[:, :-1]
        for name, scores in ways.items()
    }


MARKERS = ("^", "P", "p")


def _draw(axes: Axes, plane: Plane, picks: list[int]) -> None:
    for number, marker in enumerate(MARKERS):
        own = plane.labels == number
        axes.scatter(
            plane.first[own, 0], plane.first[own, 1], marker=marker, s=26, color=GRAYS[2],
            edgecolors=GRAYS[0], linewidths=0.5, label=f"digit {DIGITS[number]}",
        )  # fmt: skip
    for which, points, color, name in (
        (picks, plane.second, VERMILION, "picked negatives"),
        ([plane.anchor], plane.second, GREEN, "positive"),
        ([plane.anchor], plane.first, ORANGE, "anchor"),
    ):
        for place, one in enumerate(which):
            axes.scatter(
                float(points[one, 0]), float(points[one, 1]), s=64, color=color,
                marker=MARKERS[int(plane.labels[one])], edgecolors="black", linewidths=0.6,
                label="" if place else name, zorder=3,
            )  # fmt: skip
    axes.plot(0, 0, "+", color=BLUE, ms=7, label="origin")
    axes.set(xticks=[], yticks=[])


def make_illustration(setting: Setting) -> Made:
    """Three panels: random, similarity, UnReMix."""
    plane = make_plane()
    orders = orders_of(plane)
    picks = {name: order[plane.anchor, :PICKS].tolist() for name, order in orders.items()}
    figure = Figure(figsize=(PAGE, 2.7), layout="constrained")
    drawn = figure.subplots(1, 3, sharex=True, sharey=True)
    lines, records = [], []
    own = int(plane.labels[plane.anchor])
    for axes, (name, chosen) in zip(drawn, picks.items(), strict=True):
        _draw(axes, plane, chosen)
        axes.set_title(name)
        classes = [int(plane.labels[one]) for one in chosen]
        false = sum(one == own for one in classes)
        top = plane.labels[orders[name][:, :PICKS]]  # (N, PICKS)
        share = (top == plane.labels[:, None]).float().mean()
        lines.append(
            [name, f"{false} of {PICKS}", str(len(set(classes) - {own})), f"{100 * share:.0f} %"]
        )
        records += [
            {"way": name, "place": place, "point": one, "digit": DIGITS[int(plane.labels[one])]}
            for place, one in enumerate(chosen)
        ]
    everywhere = {name: order[:, :PICKS].tolist() for name, order in orders.items()}
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
            "picks": picks,
            "everywhere": everywhere,
        },
    )
