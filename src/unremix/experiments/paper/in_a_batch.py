"""What weights pick in a real batch: galleries, contributions, an overview, and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from unremix.audit import audit
from unremix.core.contrast import Importance
from unremix.core.pairs import Pairs
from unremix.core.precision import normalize
from unremix.core.scores import COMPONENTS, PAPER_COMPONENTS, output_gradients
from unremix.core.weights import scale
from unremix.domains.sampling import permuted
from unremix.experiments.paper.experiment import Made, Row, Setting
from unremix.experiments.paper.scales import Source
from unremix.experiments.tables import Grid
from unremix.frameworks.contrastive import Contrastive
from unremix.frameworks.randomness import OTHER_VIEWS, keys
from unremix.losses import UnReMixLoss
from unremix.report.figures import add_legend
from unremix.report.style import COMPONENT_COLORS, FRAMES, GRAYS, PAGE, looks_of
from unremix.training.run import Run

FALSE, REDUNDANT, GOOD = FRAMES
MOST_IMAGES = 256  # of a batch that is looked at
OVERVIEW = 12  # negatives of an overview
BINS = 81
MOST_VALUES = 2**22  # of gradients, in a histogram


@dataclass(frozen=True)
class SeenBatch:
    """A batch as a trained model sees it."""

    model: Contrastive  # in eval mode
    images: Tensor  # uint8, shape (N, C, S, S)
    labels: Tensor  # their classes, shape (N,)
    z: tuple[Tensor, Tensor]  # embeddings of both views, each (N, D)
    h: tuple[Tensor, Tensor]  # inputs of the last layer, each (N, H)

    def importance(self) -> Importance:
        """Scores and weights of the batch, with the mix that was learned."""
        return self.model.loss.importance(*self.z, *self.h)


@torch.no_grad()
def look_at(setting: Setting, row: Row, source: Source) -> SeenBatch:
    """A batch of training images through the encoder of a row's first seed."""
    run = Run(setting.laboratory.folder.run(setting.job(row, source, 0)))
    data = run.domain.load_for(run, None)
    model = run.restored(run.load_checkpoint())
    model.eval()
    assert isinstance(model, Contrastive)
    if data.train.labels is None:
        raise ValueError(f"expected images with labels, got {source.title} without; use others")
    count = len(data.train)
    indices = permuted(count, min(MOST_IMAGES, count), seed=0, step=0)
    images = data.train.images.batch(indices)
    (z0, h0), (z1, h1) = (
        model.embed(run.domain.view(images, run.shape, keys(0, 0, indices, stream)).to(model.dtype))
        for stream in OTHER_VIEWS
    )
    return SeenBatch(model, images, data.train.labels[indices], (z0, z1), (h0, h1))


def anchors_of(labels: Tensor, count: int) -> list[int]:
    """The first image of each class, in the order they come up; then further ones.

    Example:
        >>> anchors_of(torch.tensor([3, 3, 1, 3, 1]), 3)
        [0, 2, 1]
    """
    numbered = list(enumerate(labels.tolist()))
    first = sorted({label: number for number, label in reversed(numbered)}.values())
    return (first + [number for number, _ in numbered if number not in first])[:count]


def heaviest(importance: Importance, anchor: int, count: int) -> list[int]:
    """The candidates that weigh most for an anchor."""
    row = importance.weights[anchor].masked_fill(~importance.negatives[anchor], -torch.inf)
    return [int(one) for one in row.sort(descending=True, stable=True).indices[:count]]


def _line(numbers: Sequence[int]) -> str:
    """Numbers in one line of a file, in place of one for each."""
    return " ".join(map(str, numbers))


def frames_of(anchor: int, images: Sequence[int], labels: Tensor) -> list[str]:
    """How each picked negative is framed: false, redundant, or true and diverse.

    Example:
        >>> frames_of(0, [1, 2, 3, 4], torch.tensor([5, 5, 7, 7, 8]))
        ['false negative', 'redundant', 'redundant', 'true and diverse']
    """
    classes = [int(labels[one]) for one in images]
    return [
        FALSE if label == int(labels[anchor]) else REDUNDANT if classes.count(label) > 1 else GOOD
        for label in classes
    ]


def _show(axes: Axes, image: Tensor, color: str | None = None) -> None:
    axes.imshow(np.asarray(image.expand(3, -1, -1).permute(1, 2, 0)), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    dash = "--" if color == FRAMES[REDUNDANT] else "-"  # a second cue
    axes.spines[:].set(visible=color is not None, edgecolor=color, linewidth=1.8, linestyle=dash)


def make_gallery(setting: Setting) -> Made:
    """The heaviest negatives of some anchors, each row of the experiment above the next."""
    figures, records, lines, everywhere = {}, [], [], []
    for source in setting.sources:
        count, most = (7, 6) if source.paper == "Tiny-ImageNet" else (5, 8)
        looks = {row.name: look_at(setting, row, source) for row in setting.rows}
        importances = {name: seen.importance() for name, seen in looks.items()}
        picks = {  # of every anchor
            name: [heaviest(importance, one, count) for one in range(len(importance.weights))]
            for name, importance in importances.items()
        }
        first = next(iter(looks.values()))
        labels, anchors = first.labels, anchors_of(first.labels, most)
        blocks = (len(anchors) + 1) // 2
        height = PAGE * blocks * (len(looks) + 0.35) / (2 * count + 4.8)
        figure = Figure(figsize=(PAGE, 0.35 + height), layout="constrained")
        shown: Counter[tuple[str, str]] = Counter()
        for block, anchor in zip(
            figure.subfigures(blocks, 2, squeeze=False).flat, anchors, strict=False
        ):
            drawn = block.subplots(len(looks), 1 + count, squeeze=False)
            for axes in drawn[1:, 0]:
                axes.set_axis_off()
            _show(drawn[0, 0], first.images[anchor], GRAYS[0])
            for axes_of_row, (name, importance) in zip(drawn, importances.items(), strict=True):
                picked = picks[name][anchor]
                images = [one % len(labels) for one in picked]
                frames = frames_of(anchor, images, labels)
                axes_of_row[1].set_ylabel(name, size=6)
                for place, (image, frame) in enumerate(zip(images, frames, strict=True)):
                    _show(axes_of_row[1 + place], first.images[image], FRAMES[frame])
                    shown[name, frame] += 1
                    records.append(
                        {
                            "data": source.title, "row": name, "anchor": anchor,
                            "anchor_class": int(labels[anchor]), "place": place,
                            "image": image, "class": int(labels[image]),
                            "weight": float(importance.weights[anchor, picked[place]]),
                            "frame": frame,
                        }
                    )  # fmt: skip
        for frame, color in FRAMES.items():
            dash = "--" if frame == REDUNDANT else "-"
            drawn[0, 0].plot([], [], dash, color=color, lw=2, label=frame)
        add_legend(figure)
        figures[f"{setting.experiment.name}-{source.slug}"] = figure
        for name, importance in importances.items():
            everywhere.append(
                {
                    "data": source.title, "row": name, "labels": _line(labels.tolist()),
                    "heaviest": [_line(picked) for picked in picks[name]],
                }
            )  # fmt: skip
            found = audit(importance, labels, k=count)
            rates = (found.false_negative_rate, found.base_rate, found.distinct_class_share)
            counts = (str(shown[name, frame]) for frame in FRAMES)
            lines.append([name, source.title, *counts, *(f"{100 * rate:.1f}" for rate in rates)])
    headings = [
        "row", "data", *FRAMES, "false among the heaviest, %", "false among all, %",
        "distinct classes, %",
    ]  # fmt: skip
    return Made(
        [("", Grid(headings, lines))],
        records,
        figures,
        {"everywhere": everywhere},
        (
            f"Frames are counted over the anchors shown: the first images of different classes in "
            f"a fixed batch of {len(labels)} training images. A false negative has the "
            "anchor's class; a redundant one shares its class with another of those shown, or is "
            "the other view of the same image. The last three columns are over all anchors of that "
            "batch. Labels decide the anchors, frames and these columns; the training did not use "
            "them.",
        ),
    )


def contributions_of(loss: UnReMixLoss, importance: Importance) -> dict[str, Tensor]:
    """What each component adds to the weights, each (A, C); together they are the weights.

    Args:
        loss: A loss whose weights are a sum: scaled by minmax or not at all.
        importance: Scores and weights of a batch.

    Raises:
        ValueError: If the weights are exponentials, which are no sum.
    """
    weighting = loss.weighting
    if weighting.sharpness is not None:
        raise ValueError(
            "expected weights that are a sum of components, got exponentials of them; use "
            "scaling='minmax' or 'none'"
        )
    count = importance.negatives.sum(1, keepdim=True)
    mix = loss.mix
    contributions = {}
    for name in PAPER_COMPONENTS:
        magnitude = COMPONENTS[name].magnitude
        scaled = scale(
            importance.scores[name], importance.negatives, count, weighting.scaling, magnitude
        )
        contributions[name] = torch.where(importance.negatives, mix.get(name, 0.0) * scaled, 0.0)
    total = torch.stack(list(contributions.values())).sum(0)
    factor = torch.where(total > 0, importance.weights / torch.where(total > 0, total, 1.0), 0.0)
    return {name: factor * part for name, part in contributions.items()}


def make_contributions(setting: Setting) -> Made:
    """Bars of the three components for an anchor's five heaviest negatives, and an overview.

    The overview has the method for the same anchor: some of its negatives, spaced evenly from the
    heaviest to the lightest, the parts of each one's weight, and their sum.
    """
    row = setting.rows[0]
    figures: dict[str, Figure] = {}
    records: list[dict[str, Any]] = []
    lines: list[list[str]] = []
    for source in setting.sources:
        seen = look_at(setting, row, source)
        importance = seen.importance()
        assert isinstance(seen.model.loss, UnReMixLoss)
        parts = contributions_of(seen.model.loss, importance)
        anchor = anchors_of(seen.labels, 1)[0]
        ranked = heaviest(importance, anchor, int(importance.negatives[anchor].sum()))
        picked = ranked[:5]
        for name, part in parts.items():
            values = part[anchor, picked].tolist()
            lines.append([name, source.title, *(f"{value:.3f}" for value in values)])
            records += [
                {"data": source.title, "component": name, "place": place, "candidate": one,
                 "contribution": value, "weight": float(importance.weights[anchor, one])}
                for place, (one, value) in enumerate(zip(picked, values, strict=True))
            ]  # fmt: skip
        figure = _bars_below(seen, anchor, picked, {"part of the weight": parts}, PAGE / 1.4)
        figure.suptitle(f"anchor, and its heaviest negatives ({source.title})", size=9)
        add_legend(figure)
        figures[f"{setting.experiment.name}-{source.slug}"] = figure
        places = torch.linspace(0, len(ranked) - 1, OVERVIEW).round().long().tolist()
        bars = {f"part of the weight: {name}": {name: part} for name, part in parts.items()}
        bars["weight"] = {"weight": importance.weights}
        figure = _bars_below(seen, anchor, [ranked[place] for place in places], bars, PAGE)
        positive = float(normalize(seen.z[0])[0][anchor] @ normalize(seen.z[1])[0][anchor])
        figure.suptitle(
            f"{source.title}: anchor (its positive has similarity {round(positive, 2) + 0.0:.2f}) "
            "and negatives by falling weight", size=9,
        )  # fmt: skip
        figures[f"overview-{source.slug}"] = figure
    headings = ["component", "data", *(f"negative {place}" for place in range(1, 6))]
    note = "The parts of a negative add up to its weight; a weight of 1 is the average."
    return Made([("", Grid(headings, lines))], records, figures, notes=(note,))


def _bars_below(
    seen: SeenBatch, anchor: int, candidates: Sequence[int],
    rows: Mapping[str, Mapping[str, Tensor]], width: float,
) -> Figure:  # fmt: skip
    """Images of an anchor and candidates; below each candidate, for each title, bars by name."""
    count = len(candidates)
    figure = Figure(figsize=(width, 1.4 + 0.75 * len(rows)), layout="constrained")
    grid = figure.add_gridspec(1 + len(rows), 1 + count)
    for place, one in enumerate([anchor, *candidates]):
        image = seen.images[one % len(seen.labels)]
        _show(figure.add_subplot(grid[0, place]), image, None if place else GRAYS[0])
    for line, (title, bars) in enumerate(rows.items(), 1):
        axes = figure.add_subplot(grid[line, 1:])
        for number, (name, values) in enumerate(bars.items()):
            middles = np.arange(count) + 0.8 * ((number + 0.5) / len(bars) - 0.5)
            color = COMPONENT_COLORS.get(name, GRAYS[0])
            own = values[anchor, candidates].tolist()
            axes.bar(middles, own, 0.75 / len(bars), color=color, label=name)
        axes.set_title(title, loc="left")
        axes.set(xlim=(-0.5, count - 0.5), xticks=[])
        axes.axhline(0, color="black", lw=0.6)
        axes.grid(axis="y")
    return figure


def gradients_of(seen: SeenBatch, kind: str, temperature: float) -> Tensor:
    """g of views of the batch: gradients of their cross-entropy by the last layer's weights.

    ``kind`` is ``pseudo-label`` or ``nt-xent``, ``temperature`` that of the posterior.

    Returns:
        The gradients, shape (V, D, H): of all 2N views, or of as many as fit into
        ``MOST_VALUES``, spaced evenly over both views.
    """
    units, lengths = normalize(torch.cat(seen.z))
    h = torch.cat(seen.h)
    pairs = Pairs.both_views(len(seen.labels))
    negatives, target = pairs.negatives(), None
    if kind == "nt-xent":
        target = pairs.targets(dtype=units.dtype)
        negatives = negatives | pairs.positive_mask()
    logits = torch.where(negatives, units @ units.T / temperature, -torch.inf)
    delta = output_gradients(units, lengths, units, logits, temperature=temperature, target=target)
    fits = min(len(h), max(1, MOST_VALUES // (delta.shape[1] * h.shape[1])))
    some = torch.linspace(0, len(h) - 1, fits).round().long()
    return torch.einsum("vd,vh->vdh", delta[some], h[some])


def make_gradients(setting: Setting) -> Made:
    """Histograms of the gradients of negatives under both losses, each with its own encoder."""
    figure = Figure(figsize=(PAGE, 2.5 * len(setting.sources)), layout="constrained")
    drawn = figure.subplots(len(setting.sources), 2, squeeze=False, sharey="row")
    looks = looks_of(row.name for row in setting.rows)
    lines, records, sizes = [], [], []
    views = []
    for line, source in zip(drawn, setting.sources, strict=True):
        gradients_by_row: dict[str, np.ndarray] = {}
        for row in setting.rows:
            seen = look_at(setting, row, source)
            options = seen.model.loss.options
            own = seen.model.loss.temperature
            t = own if options.gradient == "nt-xent" else options.posterior_temperature
            gradients = gradients_of(seen, options.gradient, t)
            some, every = len(gradients), 2 * len(seen.labels)
            views.append(f"{some} of the {every} views" if some < every else f"all {every} views")
            gradients_by_row[row.name] = gradients.flatten().numpy()
        limit = max(
            float(np.percentile(np.abs(values), 99.9)) for values in gradients_by_row.values()
        )
        edges = np.linspace(-limit, limit, BINS + 1)
        line[0].set_ylabel("share of values")
        for axes, (name, values) in zip(line, gradients_by_row.items(), strict=True):
            counts, _ = np.histogram(values, edges)
            axes.stairs(counts / len(values), edges, fill=True, color=looks[name].color)
            axes.set(title=f"{name}, {source.title}", yscale="log", xlabel="gradient")
            axes.grid(axis="y")
            size = {
                "standard_deviation": float(values.std()),
                "mean_size": float(np.abs(values).mean()),
            }
            sizes.append({"row": name, "data": source.title, **size})
            lines.append([name, source.title, *(f"{value:.3g}" for value in size.values())])
            records += [
                {"row": name, "data": source.title, "low": low, "high": high, "count": int(count)}
                for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
            ]
    headings = ["row", "data", "standard deviation", "mean size"]
    shown = " or ".join(dict.fromkeys(views))
    note = (
        f"Values of the gradients by the last layer's weights, of {shown} of a fixed "
        "batch; histograms cover 99.9 % of them."
    )
    return Made(
        [("", Grid(headings, lines))],
        records,
        {setting.experiment.name: figure},
        {"sizes": sizes},
        (note,),
    )
