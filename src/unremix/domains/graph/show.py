"""How graphs are shown on a page: a sample with drawings."""

from __future__ import annotations

from itertools import pairwise

import torch

from unremix.core.pairs import Pairs
from unremix.domains.base import Trained
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.drawings import NodeTypes, draw_graph, packed
from unremix.domains.graph.infograph import InfoGraph
from unremix.domains.graph.model import augmentation_of, graph_features, in_dtype
from unremix.domains.graph.store import GraphBatch
from unremix.domains.graph.views import augment as augment_graphs
from unremix.domains.sample import (
    FIRST_VIEW,
    MOST_ITEMS,
    SECOND_VIEW,
    SHOWN_VIEWS,
    Sample,
    as_views,
    draw_batch,
    how_drawn,
    projecting,
)
from unremix.domains.sampling import drawn
from unremix.frameworks.base import Framework
from unremix.frameworks.randomness import keys
from unremix.losses import TwoViewLoss


def sample(run: Trained, data: GraphData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on graphs; see :class:`unremix.domains.base.Domain`."""
    graphs = data.train
    items = drawn(len(graphs), MOST_ITEMS)
    features = graph_features(run.encoder(), graphs.store)[items]
    batch = draw_batch(len(items))
    fetched = in_dtype(graphs.store.batch(items[batch]), model.dtype)
    types = NodeTypes.fit(graphs.store, run.shape.encoding)
    about, drawn_views = "", []
    marked: dict[int, int] = {}
    if isinstance(model, InfoGraph):
        finding = "nodes find the graph they belong to"
        nodes, whole = model.encoder.nodes_and_graphs(fetched)
        degrees = torch.bincount(fetched.edge_index[0], minlength=len(fetched.x))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), fetched.sizes.cumsum(0)])
        best = [
            start + int(degrees[start:end].argmax()) for start, end in pairwise(starts.tolist())
        ]
        marked = {
            item: node - int(start)
            for item, node, start in zip(batch.tolist(), best, starts[:-1], strict=True)
        }
        anchors = as_views(model.nodes(nodes[best]), nodes[best])
        candidates = as_views(model.graphs(whole), whole)
        about = (
            f"One batch of {len(batch)} graphs: the most connected node of each (circled) is an "
            "anchor, all other graphs are its negatives. Training takes every node as an anchor."
        )
    else:
        finding = "graphs find their own second view"
        model = projecting(model)
        settings = augmentation_of(run.config)
        views = [
            augment_graphs(fetched, settings, keys(run.config.seed, 0, items[batch], view))
            for view in (FIRST_VIEW, SECOND_VIEW)
        ]
        anchors, candidates = (as_views(*model.embed(view)) for view in views)
        about = (
            f"One batch of {len(batch)} graphs: the first view of each is an anchor, the second "
            "views of all others are its negatives."
        )
        drawn_views = [
            [_draw_one(shown, number, types) for shown in (fetched, *views)]
            for number in range(min(len(batch), SHOWN_VIEWS // 2))
        ]

    def draw(item: int) -> dict[str, object]:
        alone = graphs.store.batch(items[item : item + 1])
        return _draw_one(alone, 0, types, marked.get(item))

    return Sample(
        names=[graphs.names[index] for index in items.tolist()],
        features=features.float(),
        total=len(graphs),
        how_drawn=how_drawn(items, len(graphs)),
        labels=None if graphs.labels is None else graphs.labels[items],
        classes=None if graphs.classes is None else list(graphs.classes),
        batch=batch,
        anchors=anchors,
        candidates=candidates,
        pairs=Pairs.one_way(len(batch)),
        about_batch=about,
        finding=finding,
        loss=loss,
        logits="dot" if isinstance(model, InfoGraph) else "cosine",
        draw=draw,
        node_types=types.names,
        drawn_views=drawn_views,
    )


def _draw_one(
    batch: GraphBatch, number: int, types: NodeTypes, marked: int | None = None
) -> dict[str, object]:
    members = (batch.graph == number).nonzero()[:, 0]
    start = int(members[0]) if len(members) else 0
    edges = batch.edge_index[:, batch.graph[batch.edge_index[0]] == number] - start
    return packed(draw_graph(edges, types.of(batch)[members], marked))
