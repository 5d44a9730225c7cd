"""What a page shows of a run's data: sampled items, and one batch as the loss sees it.

The choice of items depends on the data alone, not on the seed or the recipe, so that runs on the
same data show the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unremix.core.pairs import Pairs
from unremix.core.problem import Logits
from unremix.core.views import Views
from unremix.domains.base import Trained, find_domain, fixed_views
from unremix.domains.sampling import drawn
from unremix.frameworks.base import Framework, Projecting
from unremix.losses import TwoViewLoss

MOST_ITEMS = 10_000  # on the map
BATCH = 256  # anchors and candidates of the explorer
SHOWN_VIEWS = 8
EMBEDDED_AT_ONCE = 128


@dataclass(frozen=True)
class Sample:
    """Some items of a run's data."""

    names: list[str]  # what each of n items is called
    features: Tensor  # their embeddings by the encoder, shape (n, F)
    total: int  # items in the whole data
    how_drawn: str  # how they were drawn from it, in words; empty if they are all
    labels: Tensor | None  # the class of each item, where known; shape (n,)
    classes: list[str] | None  # names of the classes, where known
    batch: Tensor  # the items that are compared with each other, as numbers of items, shape (A,)
    anchors: Views  # embeddings of their first views, A of them
    candidates: Views  # embeddings of their second views, A of them
    pairs: Pairs  # which candidates are positives and negatives of which anchors
    about_batch: str  # a sentence about what is compared with what
    finding: str  # who finds what among the batch, such as "images find their own second view"
    loss: TwoViewLoss | None  # what weights the negatives; None if the framework has none
    logits: Logits = "cosine"  # what the loss compares anchors and candidates by
    passages: Tensor | None = None  # of a text: equal for items that stand together, shape (n,)
    # Reads the images of some items, uint8 (k, C, S, S), if there are any.
    images: Callable[[Sequence[int]], Tensor] | None = None
    # Draws an item, if items are drawn: points, edges, types, nodes and the marked one, for JSON.
    draw: Callable[[int], Mapping[str, Any]] | None = None
    # The cells of an item with their names, if items are rows.
    table: Callable[[int], Sequence[tuple[str, str]]] | None = None
    node_types: list[str] = field(default_factory=list)  # names of the colors in drawings
    views: Tensor | None = None  # pairs of views as the encoder sees them: uint8 (k, 2, C, S, S)
    # For graphs: the graph and its two views, drawn.
    drawn_views: Sequence[Sequence[Mapping[str, Any]]] = ()
    # For sentences: a text, and its words as the encoder knows them.
    read_as: list[tuple[str, list[str]]] = field(default_factory=list)


def how_drawn(items: Tensor, total: int) -> str:
    """How items (n,) were drawn from the total, in words."""
    return f"drawn at random from {total:,}" if len(items) < total else ""


def as_views(z: Tensor, h: Tensor | None) -> Views:
    """Embeddings (A, D) and the last layer's input (A, H), in single precision."""
    return Views(z.float(), None if h is None else h.float())


def two_view_sample(
    run: Trained,
    data: Any,
    model: Framework,
    loss: TwoViewLoss | None,
    features: Callable[[Tensor], Tensor],
    *,
    draw: Callable[[Any], Tensor] | None = None,
    both: Callable[[Tensor], tuple[Views, Views]] | None = None,
    parts: Sequence[Any] = (),
    read: Callable[[Tensor], Any] | None = None,
) -> Sample:
    """Samples, of which some to train on find their own second view among those of the others.

    Args:
        run: The run.
        data: Its data, with a split ``train`` that has names, labels and classes.
        model: Its model.
        loss: Its loss.
        features: Embeddings (n, F) of samples by their numbers (n,), training samples first.
        draw: Images, uint8 (k, C, S, S), of samples as they are read or of their views; None if
            they are shown by name.
        both: Anchors and candidates of samples, by indices (A,); two views of each by default.
        parts: The splits that are shown, ``train`` first; it alone by default.
        read: Samples as they are stored, by their numbers; they are fetched by default.

    Raises:
        ValueError: If the views have to be made by a framework without a projection head.
    """
    domain, train, parts = find_domain(run.config.domain), data.train, parts or [data.train]
    total = sum(map(len, parts))
    items = drawn(total, MOST_ITEMS)
    to_train_on = int((items < len(train)).sum())
    batch = torch.randperm(to_train_on, generator=torch.Generator().manual_seed(1))[:BATCH]
    seen = fixed_views(data, run.shape, run.config)
    if both is None:
        if not isinstance(model, Projecting):
            raise ValueError(
                f"expected a framework with a projection head, got {type(model).__name__}; derive "
                "it from unremix.frameworks.base.Projecting"
            )
        sides = []
        for number in (0, 1):
            some = items[batch].split(EMBEDDED_AT_ONCE)
            embedded = [model.embed(seen(model, one, number)) for one in some]
            sides.append(as_views(*(torch.cat(each) for each in zip(*embedded, strict=True))))
        anchors, candidates = sides
    else:
        anchors, candidates = both(items[batch])

    pairs, others = Pairs.one_way(len(batch)), "all others"
    if train.labels is not None and run.config.composition().labels:
        classes = train.labels[items[batch]]
        pairs, others = pairs.labeled(classes, classes), "samples of other classes"

    def images(numbers: Sequence[int]) -> Tensor:
        assert draw is not None
        rows = items[torch.as_tensor(numbers, dtype=torch.long)]
        return draw(domain.fetch(data, rows) if read is None else read(rows))

    views = None
    if draw is not None:
        few = items[batch[:SHOWN_VIEWS]]
        views = torch.stack([draw(seen(model, few, number)) for number in (0, 1)], 1)
    names = [name for part in parts for name in part.names]
    known = [part.labels for part in parts if part.labels is not None]
    return Sample(
        names=[names[item] for item in items.tolist()],
        features=features(items),
        total=total,
        how_drawn=how_drawn(items, total),
        labels=torch.cat(known)[items] if len(known) == len(parts) else None,
        classes=None if train.classes is None else list(train.classes),
        batch=batch,
        anchors=anchors,
        candidates=candidates,
        pairs=pairs,
        about_batch=(
            f"One batch of {len(batch)} training {domain.unit}: the first view of each is an "
            f"anchor, the second views of {others} are its negatives."
        ),
        finding=f"{domain.unit} find their own second view",
        loss=loss,
        images=None if draw is None else images,
        views=views,
    )
