"""Collects what a page shows of a run: embeddings, neighbors, the map, scores of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unremix.core.contrast import Importance
from unremix.core.precision import normalize
from unremix.core.scores import PAPER_COMPONENTS
from unremix.core.weights import name_of
from unremix.domains.sampling import evenly_spaced
from unremix.domains.shown import Sample
from unremix.evaluation.knn import knn_predict, usual_neighbors
from unremix.losses import HCLLoss, HCLOptions, TwoViewLoss, UnReMixLoss, UnReMixOptions
from unremix.mining.groups import find_clusters, fitting_threshold
from unremix.report.pictures import Atlas, make_atlas, shrunk
from unremix.report.projection import project
from unremix.report.storage import Stored
from unremix.training.run import Run

NEIGHBORS = 8
QUERIES = 10
PAIRS = 12
OUTLIERS = 16
SHARED = 0.5  # of the nearest neighbors in common: probably the same kind of thing
CLUSTERS = 8
SMALL_TILE, LARGE_TILE = 32, 96
FEW_ITEMS = 1500  # up to here all items have large pictures
NAME_LENGTH = 300
MOST_NEIGHBORS_VOTING = 20

SAME_CLASS, DUPLICATE, SAME_NEIGHBORS = 1, 2, 3


def nearest(units: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar other items of each, and their cosines, both (n, k).

    Example:
        >>> nearest(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), 1)[0]
        tensor([[1],
                [0],
                [1]])
    """
    indices, values = [], []
    for start in range(0, len(units), 1024):
        similarity = units[start : start + 1024] @ units.T
        similarity.diagonal(start).fill_(-torch.inf)
        best = similarity.topk(k, dim=1)
        indices.append(best.indices)
        values.append(best.values)
    return torch.cat(indices), torch.cat(values)


def suspects(sample: Sample, neighbors: Tensor, cosines: Tensor, units: Tensor) -> Tensor:
    """Which candidates of the batch are probably no true negatives of which anchors, and why.

    With labels: those of the same class. Without: near-duplicates, and items that are among each
    other's nearest neighbors and have half of these in common.

    Args:
        sample: The items.
        neighbors: The nearest neighbors of all items, shape (n, k).
        cosines: Their similarities, shape (n, k).
        units: Embeddings of unit length, shape (n, F).

    Returns:
        0 for no suspicion, or the reason, uint8, shape (A, A).
    """
    batch = sample.batch
    if sample.labels is not None:
        labels = sample.labels[batch]
        return (labels[:, None] == labels[None, :]).byte() * SAME_CLASS
    reasons = torch.zeros(len(batch), len(batch), dtype=torch.uint8)
    if neighbors.shape[1]:
        near = torch.zeros(len(batch), len(units))
        near.scatter_(1, neighbors[batch], 1.0)
        common = near @ near.T  # (A, A)
        mutual = (near[:, batch] > 0) & (near[:, batch].T > 0)
        reasons[mutual & (common >= SHARED * neighbors.shape[1])] = SAME_NEIGHBORS
        alike = fitting_threshold(cosines[:, 0].numpy())
        reasons[units[batch] @ units[batch].T >= alike] = DUPLICATE
    return reasons


def weighting_of(loss: TwoViewLoss | None) -> dict[str, Any]:
    """How a loss weights negatives, as the page's controls have it.

    Returns:
        ``kind`` (uniform, hcl, unremix or none) and the controls' positions. A loss of another kind
        starts them at UnReMix's defaults: equal shares, minmax, mean.
    """
    usual = UnReMixOptions().settled()
    found: dict[str, Any] = {
        "kind": "none" if loss is None else "uniform",
        "mix": [1 / len(usual.components) for _ in usual.components],
        "scaling": usual.scaling,
        "mass": usual.mass,
        "hardness": HCLOptions().hardness,
        "temperature": usual.temperature if loss is None else float(loss.current_temperature()),
        "over_temperature": True,
        "own_scores": False,
        "filter": loss.false_negatives.rule if loss and loss.false_negatives else None,
    }
    if isinstance(loss, HCLLoss):
        over = loss.weighting.over_temperature
        found |= {"kind": "hcl", "hardness": loss.hardness, "over_temperature": over}
    elif isinstance(loss, UnReMixLoss):
        weighting, mix = loss.weighting, loss.mix
        scaling = "zscore-exp" if weighting.sharpness is not None else weighting.scaling
        found |= {
            "kind": "unremix",
            "mix": [mix.get(name, 0.0) for name in PAPER_COMPONENTS],
            "scaling": scaling,
            "mass": weighting.mass,
            "hardness": found["hardness"] if weighting.sharpness is None else weighting.sharpness,
            "own_scores": any(
                name_of(component) not in PAPER_COMPONENTS for component in weighting.components
            ),
        }
    return found


def scores_of(sample: Sample) -> Importance:
    """The three scores of every negative of the batch, with the run's own options."""
    loss = sample.loss
    options: dict[str, Any] = {}
    if loss is not None:
        options = {
            "temperature": float(loss.current_temperature()),
            "posterior_temperature": loss.options.posterior_temperature,
            "gradient": loss.options.gradient if isinstance(loss, UnReMixLoss) else "pseudo-label",
            "bias": loss.options.bias,
            "sketch": loss.sketch,
        }
    plain = UnReMixLoss(mix="fixed", layout="one-way", check=False, **options)
    return plain.importance_against(sample.anchors, sample.candidates, sample.pairs)


def found_own(sample: Sample, importance: Importance) -> tuple[float, float]:
    """How often anchors are most similar to a positive of theirs, among all candidates.

    Returns:
        The share of anchors that are, and what it would be by chance.
    """
    first, second = sample.anchors.embeddings, sample.candidates.embeddings
    if sample.logits == "cosine":
        first, second = normalize(first)[0], normalize(second)[0]
    compared = importance.negatives | importance.positives
    best = (first @ second.T).masked_fill(~compared, -torch.inf).argmax(1, keepdim=True)
    able = importance.positives.any(1)
    if not able.any():
        return 0.0, 0.0
    found = importance.positives.gather(1, best)[able].float().mean()
    chance = (importance.positives.sum(1) / compared.sum(1))[able].mean()
    return float(found), float(chance)


def _queries(sample: Sample) -> list[int]:
    """Items whose neighbors are shown: one of each class, or some without labels."""
    if sample.labels is None:
        return evenly_spaced(len(sample.names), QUERIES).tolist()
    first = [int((sample.labels == label).nonzero()[0]) for label in sample.labels.unique()]
    return [first[index] for index in evenly_spaced(len(first), QUERIES).tolist()]


def _closest(neighbors: Tensor, cosines: Tensor) -> list[dict[str, Any]]:
    """The most similar pairs, each once."""
    alike = fitting_threshold(cosines[:, 0].numpy())
    pairs: dict[tuple[int, int], float] = {}
    for item in cosines[:, 0].argsort(descending=True, stable=True).tolist():
        other = int(neighbors[item, 0])
        pairs.setdefault((min(item, other), max(item, other)), float(cosines[item, 0]))
        if len(pairs) == PAIRS:
            break
    return [
        {"items": pair, "cosine": cosine, "duplicate": cosine >= alike}
        for pair, cosine in pairs.items()
    ]


def take_sample(run: Run, data: Any) -> Sample:
    """Some items of a run's data, and one batch as its loss sees it."""
    model = run.framework()
    loss = getattr(model, "loss", None)
    with torch.no_grad():
        return run.domain.sample(run, data, model, loss if isinstance(loss, TwoViewLoss) else None)


def shown_as(sample: Sample) -> str:
    """How a page shows an item: as a thumbnail, a drawing, a table, or by its name as text."""
    if sample.images is not None:
        return "thumbnail"
    if sample.draw is not None:
        return "drawing"
    return "table" if sample.table is not None else "text"


def collect(run: Run, data: Any) -> Stored:
    """What a page shows of a run; takes seconds for thousands of items."""
    sample, state = take_sample(run, data), run.facts()
    stored = collect_sample(sample, run.domain.unit)
    about = stored.about | {
        "parameters": sum(parameter.numel() for parameter in run.encoder().parameters()),
        "step": int(state["step"]),
        "seconds": state.get("seconds"),
        "trained": {name: state.get(name) for name in ("device", "date", "version")},
        "data": data.name,
    }
    return Stored(about, stored.arrays)


def collect_sample(sample: Sample, unit: str) -> Stored:
    """What a page shows of some items, which are called ``unit`` in the plural."""
    if sample.labels is None or len(sample.labels.unique()) < 2:  # a single class shows nothing
        sample = replace(sample, labels=None, classes=None)
    units = normalize(torch.nan_to_num(sample.features.float()))[0]
    neighbors, cosines = nearest(units, max(0, min(NEIGHBORS, len(units) - 1)))
    importance, how_weighted = scores_of(sample), weighting_of(sample.loss)
    positions, how = project(units.numpy())
    found, chance = found_own(sample, importance)
    arrays: dict[str, Any] = {
        "embeddings": units.half().numpy(),
        "positions": positions,
        "neighbors": neighbors.numpy().astype(np.uint32),
        "cosines": cosines.numpy(),
        **batch_arrays(sample, importance, suspects(sample, neighbors, cosines, units)),
    }
    about: dict[str, Any] = {
        "shown_as": shown_as(sample),
        "unit": unit,
        "names": [_cut(name) for name in sample.names],
        "labels": None if sample.labels is None else sample.labels.tolist(),
        "classes": None if sample.classes is None else [_cut(name) for name in sample.classes],
        "clusters": None,
        "passages": None if sample.passages is None else sample.passages.tolist(),
        "projection": how,
        "weighting": how_weighted,
        "found_own": found,
        "found_by_chance": chance,
        "queries": _queries(sample),
        "closest": [],
        "outliers": [],
        "node_types": [_cut(name) for name in sample.node_types],
    }
    for name in ("finding", "total", "how_drawn", "about_batch", "read_as"):
        about[name] = getattr(sample, name)
    if neighbors.shape[1]:
        about["closest"] = _closest(neighbors, cosines)
        about["outliers"] = cosines.mean(1).argsort(stable=True)[:OUTLIERS].tolist()
    if sample.labels is None:
        count = max(1, min(CLUSTERS, len(units) // 8))
        about["clusters"] = find_clusters(units.numpy(), count).cluster.tolist()
    else:
        used, numbers = sample.labels.unique(return_inverse=True)
        about["voting"] = usual_neighbors(sample.labels, MOST_NEIGHBORS_VOTING)
        shares = knn_predict(units, numbers, k=about["voting"], temperature=0.1)
        arrays["predicted"] = used[shares.argmax(1)].numpy().astype(np.int32)
    shown = sorted(
        {
            *sample.batch.tolist(),
            *about["outliers"],
            *(item for pair in about["closest"] for item in pair["items"]),
            *about["queries"],
            *neighbors[about["queries"]].flatten().tolist(),
        }
    )
    if sample.images is not None:
        _add_pictures(sample, shown, about, arrays)
    if sample.draw is not None:
        about["drawings"] = {str(item): sample.draw(item) for item in shown}
        about["drawn_views"] = sample.drawn_views
    if sample.table is not None:
        about["tables"] = {str(item): sample.table(item) for item in shown}
    return Stored(about, arrays)


def batch_arrays(sample: Sample, importance: Importance, suspected: Tensor) -> dict[str, Any]:
    """What the explorer shows of a batch: its items (A,), scores (3, A, A) and flags (A, A)."""
    scores = [importance.scores[name].float() for name in PAPER_COMPONENTS]
    return {
        "batch": sample.batch.numpy().astype(np.uint32),
        "scores": torch.stack(scores).numpy(),
        "negatives": importance.negatives.numpy(),
        "suspects": suspected.numpy(),
    }


def _cut(name: str) -> str:
    name = str(name) if str(name).strip() else "(no name)"
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def _add_pictures(
    sample: Sample, shown: Sequence[int], about: dict[str, Any], arrays: dict[str, Any]
) -> None:
    """Atlases of all items, of those shown large, and of the views."""
    assert sample.images is not None
    count = len(sample.names)
    few = count <= FEW_ITEMS
    parts = torch.arange(count).split(256)
    small = torch.cat([shrunk(sample.images(part.tolist()), LARGE_TILE) for part in parts])
    atlases: dict[str, Atlas] = {"items": make_atlas(small, LARGE_TILE if few else SMALL_TILE)}
    if small.shape[-1] > SMALL_TILE and not few:
        atlases["large"] = make_atlas(small[torch.tensor(shown)], LARGE_TILE)
        about["large"] = list(shown)
    if sample.views is not None:
        atlases["views"] = make_atlas(sample.views.flatten(0, 1), LARGE_TILE)
        about["views"] = sample.batch[: len(sample.views)].tolist()
    about["atlases"] = {}
    for name, atlas in atlases.items():
        arrays[f"atlas_{name}"] = np.frombuffer(atlas.data, np.uint8)
        kept = {"kind": atlas.kind, "tile": atlas.tile, "columns": atlas.columns}
        about["atlases"][name] = kept
