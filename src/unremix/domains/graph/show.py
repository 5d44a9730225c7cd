"""How graphs are shown on a page: a sample with drawings.

A drawing says where each node lies, which nodes are connected, and the types of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.core.views import Views
from unremix.domains.base import Trained, fixed_views
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.features import NodeEncoding
from unremix.domains.graph.infograph import InfoGraph
from unremix.domains.graph.model import graph_features
from unremix.domains.graph.store import GraphBatch, GraphStore
from unremix.domains.sampling import drawn
from unremix.domains.shown import MOST_ITEMS, SHOWN_VIEWS, Sample, as_views, two_view_sample
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss

MOST_NODES = 120  # of a larger graph, those nearest to its most connected node are drawn
ROUNDS = 40
TYPES = 7  # colors for node types; all rarer ones share another
OTHER = "other"
DEGREES = ("no edge", "1 edge", "2 edges", "3 edges", "4 edges", "5–7 edges", "8 or more edges")


def sample(run: Trained, data: GraphData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on graphs; see :class:`unremix.domains.base.Domain`."""
    store = data.train.store
    items = drawn(len(store), MOST_ITEMS)
    types = NodeTypes.fit(store, run.shape.encoding)
    marked: dict[int, int] = {}

    def nodes_and_graphs(indices: Tensor) -> tuple[Views, Views]:
        """The most connected node of each graph, and the graphs."""
        assert isinstance(model, InfoGraph)
        fetched = store.batch(indices).to(items.device, model.dtype)
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
        finding = "nodes find the graph they belong to"
        found = replace(found, about_batch=about, finding=finding, logits="dot")
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


def hops(edges: NDArray[np.int64], count: int, start: int | None = None) -> NDArray[np.float64]:
    """Lengths of shortest paths between all n nodes (n, n), or from one (n,); inf if there is none.

    Args:
        edges: Source and target, shape (2, E).
        count: n.
        start: Of the paths; all nodes by default.
    """
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import shortest_path  # type: ignore[import-untyped]

    links = coo_matrix((np.ones(edges.shape[1]), edges), shape=(count, count)).tocsr()
    found: NDArray[np.float64]
    found = shortest_path(links, directed=False, unweighted=True, indices=start)
    return found


def layout(edges: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Positions whose distances resemble the graph's: stress majorization from classical scaling.

    Minimizes Σ (|x_i - x_j| - d_ij)² / d_ij² with d the shortest paths, as Kamada and Kawai do.
    A graph of 30 nodes takes 3 ms, one hundredth of networkx's ``kamada_kawai_layout``.

    Args:
        edges: Source and target, shape (2, E).
        count: n, nodes.

    Returns:
        Shape (n, 2).

    Example:
        >>> path = layout(np.array([[0, 1], [1, 2]]), 3)
        >>> ends, step = np.linalg.norm(path[0] - path[2]), np.linalg.norm(path[0] - path[1])
        >>> bool(abs(ends - 2 * step) < 0.01)
        True

    Reference:
        Gansner, Koren and North 2004.
    """
    if count < 2:
        return np.zeros((count, 2))
    distance = hops(edges, count)
    finite = distance[np.isfinite(distance)]
    # Parts that are not connected lie beside each other.
    distance[~np.isfinite(distance)] = finite.max() + 2
    square = distance**2
    centered = -0.5 * (square - square.mean(0) - square.mean(1)[:, None] + square.mean())
    values, vectors = np.linalg.eigh(centered)
    points = vectors[:, -2:] * np.sqrt(np.clip(values[-2:], 0, None))
    # Symmetric nodes start at the same place and would never part.
    points = points + 0.05 * np.random.default_rng(0).standard_normal(points.shape)
    np.fill_diagonal(distance, 1.0)
    weights = distance**-2.0
    np.fill_diagonal(weights, 0.0)
    laplacian = np.diag(weights.sum(1)) - weights
    inverse = np.linalg.pinv(laplacian)
    for _ in range(ROUNDS):
        gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
        np.fill_diagonal(gaps, 1.0)
        pull = -weights * distance / np.maximum(gaps, 1e-6)
        np.fill_diagonal(pull, 0.0)
        np.fill_diagonal(pull, -pull.sum(1))
        points = inverse @ (pull @ points)
    found: NDArray[np.float64] = points
    return found


@dataclass(frozen=True)
class NodeTypes:
    """Which color a node has: by its label or, where it has none, by its degree."""

    names: list[str]  # what each color stands for
    colors: Tensor | None = None  # the color of each label, shape (L,); None where degrees count
    start: int = 0  # the first column of the labels among the features

    @classmethod
    def fit(cls, store: GraphStore, encoding: NodeEncoding) -> NodeTypes:
        """Colors for some graphs; the most frequent labels have one of their own."""
        if not encoding.labels:
            return cls(list(DEGREES))
        first, start = encoding.labels[0], encoding.attributes
        if len(first) <= TYPES + 1:
            return cls(list(first), torch.arange(len(first)), start)
        counts = store.x[:, start : start + len(first)].sum(0)
        order = counts.argsort(descending=True, stable=True)[:TYPES]
        colors = torch.full((len(first),), TYPES)
        colors[order] = torch.arange(TYPES)
        return cls([*(first[index] for index in order.tolist()), OTHER], colors, start)

    def of(self, graphs: GraphStore | GraphBatch) -> Tensor:
        """The color of each node, shape (nodes,)."""
        if self.colors is not None:
            return self.colors[graphs.x[:, self.start : self.start + len(self.colors)].argmax(1)]
        degrees = torch.bincount(graphs.edge_index[0], minlength=len(graphs.x))
        return torch.bucketize(degrees, torch.tensor([0, 1, 2, 3, 4, 7]))


def draw_graph(edges: Tensor, types: Tensor, marked: int | None = None) -> dict[str, object]:
    """Draw a graph on a square of 0 … 100.

    Args:
        edges: Source and target of every edge, shape (2, E).
        types: The color of each node, shape (n,).
        marked: A node that is to stand out; of a large graph, the drawing is centered on it.

    Returns:
        For JSON: ``points``, x and y of each node drawn; ``edges``, pairs of these nodes, each pair
        once; ``types``, the color of each; ``nodes`` of the whole graph; the ``marked`` one. Pairs
        are laid one after the other.
    """
    pairs = edges.numpy()
    count = len(types)
    kept = np.arange(count)
    if count > MOST_NODES:
        center = marked if marked is not None else int(np.bincount(pairs[0]).argmax())
        away = hops(pairs, count, center)
        kept = np.sort(np.argsort(away, kind="stable")[:MOST_NODES])
    place = np.full(count, -1)
    place[kept] = np.arange(len(kept))
    inside = place[pairs]
    inside = inside[:, (inside >= 0).all(0)]
    points = layout(inside, len(kept))
    low, high = points.min(0), points.max(0)
    span = max(float((high - low).max()), 1e-9)
    scaled = np.rint(6 + 88 * ((points - (low + high) / 2) / span + 0.5)).astype(int)
    once = sorted({(min(a, b), max(a, b)) for a, b in inside.T.tolist() if a != b})
    return {
        "points": scaled.ravel().tolist(),
        "edges": [node for pair in once for node in pair],
        "types": types[kept].tolist(),
        "nodes": count,
        "marked": None if marked is None or place[marked] < 0 else int(place[marked]),
    }
