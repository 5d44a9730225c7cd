"""How graphs are shown on a page: a sample with drawings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from unremix.core.views import Views
from unremix.domains.base import Trained, fixed_views
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.drawings import NodeTypes, draw_graph
from unremix.domains.graph.infograph import InfoGraph
from unremix.domains.graph.model import graph_features, in_dtype
from unremix.domains.graph.store import GraphBatch
from unremix.domains.sampling import drawn
from unremix.domains.shown import MOST_ITEMS, SHOWN_VIEWS, Sample, as_views, two_view_sample
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss


def sample(run: Trained, data: GraphData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on graphs; see :class:`unremix.domains.base.Domain`."""
    store = data.train.store
    items = drawn(len(store), MOST_ITEMS)
    types = NodeTypes.fit(store, run.shape.encoding)
    marked: dict[int, int] = {}

    def nodes_and_graphs(indices: Tensor) -> tuple[Views, Views]:
        """The most connected node of each graph, and the graphs."""
        assert isinstance(model, InfoGraph)
        fetched = in_dtype(store.batch(indices), model.dtype)
        nodes, whole = model.encoder.nodes_and_graphs(fetched)
        degrees = torch.bincount(fetched.edge_index[0], minlength=len(fetched.x))
        starts = [0, *fetched.sizes.cumsum(0).tolist()]
        within = [int(degrees[start:end].argmax()) for start, end in pairwise(starts)]
        marked.update(zip(indices.tolist(), within, strict=True))
        best = torch.tensor(within) + torch.tensor(starts[:-1])
        return as_views(model.nodes(nodes[best]), nodes[best]), as_views(model.graphs(whole), whole)

    def draw(item: int) -> dict[str, object]:
        index = int(items[item])
        return _draw_one(store.batch(items[item : item + 1]), 0, types, marked.get(index))

    def features(graphs: Tensor) -> Tensor:
        return graph_features(run.encoder(), store)[graphs].float()

    if isinstance(model, InfoGraph):
        found = two_view_sample(run, data, model, loss, features, both=nodes_and_graphs)
        about = (
            f"One batch of {len(found.batch)} graphs: the most connected node of each (circled) is "
            "an anchor, all other graphs are its negatives. Training takes every node as an anchor."
        )
        found = replace(
            found, about_batch=about, finding="nodes find the graph they belong to", logits="dot"
        )
    else:
        found = two_view_sample(run, data, model, loss, features)
        few, seen = items[found.batch[: SHOWN_VIEWS // 2]], fixed_views(data, run.shape, run.config)
        shown = [store.batch(few), *(seen(model, few, number) for number in (0, 1))]
        drawings = [[_draw_one(view, at, types) for view in shown] for at in range(len(few))]
        found = replace(found, drawn_views=drawings)
    return replace(found, draw=draw, node_types=types.names)


def _draw_one(
    batch: GraphBatch, number: int, types: NodeTypes, marked: int | None = None
) -> dict[str, object]:
    members = (batch.graph == number).nonzero()[:, 0]
    start = int(members[0]) if len(members) else 0
    edges = batch.edge_index[:, batch.graph[batch.edge_index[0]] == number] - start
    return draw_graph(edges, types.of(batch)[members], marked)
