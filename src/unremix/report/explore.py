"""explore.html: embedded data to look at, search and select from, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unremix.console.quantities import counted
from unremix.core.pairs import Pairs
from unremix.core.precision import normalize
from unremix.domains.sampling import drawn
from unremix.domains.shown import BATCH, MOST_ITEMS, Sample, as_views, how_drawn
from unremix.evaluation.health import effective_rank
from unremix.evaluation.knn import knn_predict, leave_one_out_knn, usual_neighbors
from unremix.files.atomic_files import write_text
from unremix.mining.groups import find_clusters, fitting_threshold, usual_clusters
from unremix.report.browse import most_frequent, page_path
from unremix.report.collect import batch_arrays, collect_sample, scores_of, suspects, take_sample
from unremix.report.page import class_table, page_data, shown_batch
from unremix.report.rendering import as_json, render
from unremix.report.sources import Source
from unremix.training.run import Run

BATCHES = 3  # that the explorer of negatives offers
MOST_CLUSTERS = 60
CENTRAL = 8  # items of a cluster that are shown
MOST_VOTING = 20  # neighbors that judge a label
CERTAIN, DOUBTED = 0.5, 0.1  # shares of the vote for another class and for the label itself
MOST_SUSPICIOUS = 60
MOST_NEIGHBORS = 200  # of the kNN accuracy, as a run is measured


def sample_of(source: Source) -> Sample:
    """The items of a page: a run's as its loss sees them, others as they are."""
    if isinstance(source.model, Run):
        return take_sample(source.model, source.data)
    features, total = source.features, len(source.names)
    items = drawn(total, MOST_ITEMS)
    rows = items.tolist()

    pictured = source.thumbnails(rows)  # of a file of embeddings, perhaps not all
    blank = torch.full_like(next(iter(pictured.values())), 128) if pictured else None

    def images(numbers: Sequence[int]) -> Tensor:
        assert blank is not None
        return torch.stack([pictured.get(rows[number], blank) for number in numbers])

    labels = features.labels
    embeddings = features.embeddings[items].float()
    batch = torch.randperm(len(items), generator=torch.Generator().manual_seed(1))[:BATCH]
    return Sample(
        names=[source.names[row] for row in rows],
        features=embeddings,
        total=total,
        how_drawn=how_drawn(items, total),
        labels=None if labels is None else labels[items].long(),
        classes=None if features.classes is None else list(features.classes),
        **_compared(embeddings, batch),
        about_batch=(
            f"A batch of {len(batch)} {source.unit}, drawn at random and compared as they are: "
            "each is an anchor, and all others are its negatives."
        ),
        finding="",
        loss=None,
        images=None if blank is None else images,
    )


def _compared(embeddings: Tensor, batch: Tensor) -> dict[str, Any]:
    """A batch (A,) of embeddings (n, F) that are compared with themselves."""
    views = as_views(embeddings[batch], None)
    pairs = Pairs.one_way(len(batch))
    return {"batch": batch, "anchors": views, "candidates": views, "pairs": pairs}


def write_explore(source: Source, output: str | Path | None = None) -> tuple[Path, list[str]]:
    """Write the page of some embedded data.

    Args:
        source: The data.
        output: The page; by default explore.html in the source's folder.

    Returns:
        The page, and what it says first, a sentence each.
    """
    path = page_path(source, "explore", output)
    sample = sample_of(source)
    stored = collect_sample(sample, source.unit)
    units = normalize(torch.nan_to_num(sample.features.float()))[0]
    neighbors = torch.from_numpy(stored.arrays["neighbors"].astype("int64"))
    cosines = torch.from_numpy(stored.arrays["cosines"])
    # A class alone shows nothing.
    labels = None if stored.about["labels"] is None else sample.labels
    found = find_clusters(units.numpy(), min(MOST_CLUSTERS, usual_clusters(len(units))))
    names = [stored.about["classes"][label] for label in stored.about["labels"] or ()]
    clusters = [
        {"items": rows[:CENTRAL], "holds": most_frequent(names, rows) if names else ""}
        for rows in map(np.ndarray.tolist, found.members)
    ]
    threshold = fitting_threshold(cosines[:, 0].numpy()) if cosines.numel() else 1.0
    suspicious, doubted = _suspicious(units, labels)
    whole = {n: name for n, name in enumerate(sample.names) if name != stored.about["names"][n]}
    stored.about["clusters"] = found.cluster.tolist()
    data = page_data(stored) | {
        "batches": [shown_batch(stored.arrays), *_further(sample, units, neighbors, cosines)],
        "groups": clusters,
        "nearest": {"threshold": threshold},
        "suspicious": suspicious,
        "whole": whole,
    }
    says = _says(source, sample, units, cosines, threshold, doubted, labels)
    page = render(
        "explore.html",
        "explore",
        source=source,
        headline=f"{len(source.names):,} {source.unit}, as {source.by} sees them",
        facts=_facts(source, sample, units),
        says=says,
        about=stored.about | {"batch_size": len(sample.batch)},
        exploring=True,
        batches=len(data["batches"]),
        suspicious=len(suspicious),
        classes=class_table(stored),
        data=as_json(data),
    )
    write_text(path, page)
    return path, says


def _further(
    sample: Sample, units: Tensor, neighbors: Tensor, cosines: Tensor
) -> list[dict[str, Any]]:
    """Further batches for the explorer of negatives, of items that are compared as they are."""
    if sample.loss is not None or sample.anchors is not sample.candidates:
        return []  # a run has its own batch
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(1))
    made = []
    for batch in order.split(BATCH)[1:BATCHES]:
        if len(batch) < BATCH:
            break
        one = replace(sample, **_compared(sample.features, batch))
        arrays = batch_arrays(one, scores_of(one), suspects(one, neighbors, cosines, units))
        made.append(shown_batch(arrays))
    return made


def _suspicious(units: Tensor, labels: Tensor | None) -> tuple[list[dict[str, Any]], int]:
    """Items (n, F) with labels (n,) that most of the vote of their neighbors contradicts.

    The vote is that of 20 neighbors, of fewer where there are few items.

    Returns:
        Those that the page shows, the most doubtful first, and how many there are.
    """
    if labels is None:
        return [], 0
    used, numbers = labels.unique(return_inverse=True)
    k = max(5, min(MOST_VOTING, len(labels) // 7))
    shares = knn_predict(units, numbers, k=k, temperature=0.1)
    share, taken = shares.max(1)
    own = shares.gather(1, numbers[:, None])[:, 0]
    doubted = ((share >= CERTAIN) & (own <= DOUBTED) & (taken != numbers)).nonzero()[:, 0]
    order = doubted[(own - share)[doubted].argsort(stable=True)][:MOST_SUSPICIOUS]
    shown = [
        {"item": item, "taken": int(used[taken[item]]), "share": float(share[item])}
        for item in order.tolist()
    ]
    return shown, len(doubted)


def _says(
    source: Source,
    sample: Sample,
    units: Tensor,
    cosines: Tensor,
    threshold: float,
    suspicious: int,
    labels: Tensor | None,
) -> list[str]:
    """What was found, a sentence each."""
    says = []
    if sample.how_drawn:
        says.append(
            f"The page shows {len(units):,} {source.unit}, {sample.how_drawn}. All are looked at "
            "by 'unremix duplicates' and 'unremix cluster'."
        )
    if labels is not None:
        labels = labels.unique(return_inverse=True)[1]
        k = usual_neighbors(labels, MOST_NEIGHBORS)
        accuracy = leave_one_out_knn(units, labels, k=k)
        others = f"{k} nearest others" if k > 1 else "nearest other"
        guess = 100 * int(labels.bincount().max()) / len(labels)
        says.append(
            f"kNN accuracy {accuracy}: each of {len(labels):,} {source.unit} by its {others}. "
            f"To guess the most frequent class is right in {guess:.1f} %."
        )
    near = int((cosines[:, 0] >= threshold).sum()) if cosines.numel() else 0
    says.append(
        f"{near:,} {source.unit} have a near-duplicate: a cosine of {threshold:.7g} or more to "
        "another, which is hardly reached by chance here."
    )
    if suspicious:
        shown = f"; the {MOST_SUSPICIOUS} most doubtful are shown" * (suspicious > MOST_SUSPICIOUS)
        says.append(
            f"{counted(suspicious, 'label')} contradict{'s' * (suspicious == 1)} the neighbors: "
            f"look whether {'it is' if suspicious == 1 else 'they are'} wrong{shown}."
        )
    return says


def _facts(source: Source, sample: Sample, units: Tensor) -> list[tuple[str, str]]:
    """What is known about data and encoder."""
    model, classes = source.model, sample.labels
    count = "no labels" if classes is None else f"{len(classes.unique()):,} classes"
    how = getattr(model, "description", None)
    if isinstance(model, Run):
        how = model.domain.describe(model.config, model.shape)
    facts = [("Data", f"{source.place or source.of}, {len(source.names):,} {source.unit}, {count}")]
    facts.append(("Encoder", source.by + (f"; {how}" if how else "")))
    size, rank = units.shape[1], effective_rank(units)
    facts.append(("Embeddings", f"{size:,} numbers; effective rank {rank:.0f}, dimensions in use"))
    return facts
