"""Graphs side by side in flat arrays, from which batches are gathered without a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch_geometric.data import Data  # type: ignore[import-untyped]


@dataclass(frozen=True)
class GraphBatch:
    """Graphs of a batch as one graph without edges between them.

    The nodes of a graph lie next to each other, and the graphs in order.

    Args:
        x: Features of all nodes, shape (n, F).
        edge_index: Source and target of every edge, as rows of ``x``, int64, shape (2, E).
        graph: The graph of each node, from 0 and ascending, int64, shape (n,).
        num_graphs: G.
    """

    x: Tensor
    edge_index: Tensor
    graph: Tensor
    num_graphs: int

    @property
    def sizes(self) -> Tensor:
        """Nodes of each graph, shape (G,)."""
        return torch.bincount(self.graph, minlength=self.num_graphs)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> GraphBatch:
        """The batch on a device, its features perhaps in another precision."""
        edge_index, graph = self.edge_index.to(device), self.graph.to(device)
        return GraphBatch(self.x.to(device, dtype), edge_index, graph, self.num_graphs)


@dataclass(frozen=True)
class GraphStore:
    """Many graphs in flat arrays: those of graph i lie from ``starts[i]`` to ``starts[i + 1]``.

    Args:
        x: Features of the nodes of all graphs, shape (n, F).
        edge_index: Source and target of all edges, as rows of ``x``, int64, shape (2, E).
        node_starts: Where the nodes of each graph begin, and n; int64, shape (G + 1,).
        edge_starts: Where the edges of each graph begin, and E; int64, shape (G + 1,).

    Example:
        >>> import torch
        >>> edges = torch.tensor([[0, 1, 2], [1, 0, 2]])  # a pair, and a node of its own
        >>> store = GraphStore(
        ...     torch.eye(3), edges[:, :2], torch.tensor([0, 2, 3]), torch.tensor([0, 2, 2])
        ... )
        >>> batch = store.batch(torch.tensor([1, 0]))
        >>> batch.graph, batch.edge_index
        (tensor([0, 1, 1]), tensor([[1, 2],
                [2, 1]]))
    """

    x: Tensor
    edge_index: Tensor
    node_starts: Tensor
    edge_starts: Tensor

    @classmethod
    def of(cls, graphs: Sequence[Data]) -> GraphStore:
        """Put graphs of torch_geometric side by side; their edges are taken as they are.

        Args:
            graphs: With ``x``, floats of shape (nodes, F), and ``edge_index`` of shape (2, edges).

        Raises:
            ValueError: If there is no graph, or one has no nodes, other features than the rest, or
                an edge to a node that does not exist.
        """
        if not graphs:
            raise ValueError("expected at least one graph, got none")
        for index, graph in enumerate(graphs):
            _check_graph(graph, graphs[0], index)
        node_starts = _starts([graph.x.shape[0] for graph in graphs])
        edge_starts = _starts([graph.edge_index.shape[1] for graph in graphs])
        edge_index = torch.cat([graph.edge_index for graph in graphs], dim=1).long()
        owner = torch.repeat_interleave(edge_starts.diff())  # (E,)
        outside = ((edge_index < 0) | (edge_index >= node_starts.diff()[owner])).any(0)
        if outside.any():
            edge = int(outside.nonzero()[0])
            nodes, graph = int(node_starts.diff()[owner[edge]]), int(owner[edge])
            what = f"edges between the {nodes} nodes of graph {graph}, counted from 0"
            raise ValueError(f"expected {what}, got {edge_index[:, edge].tolist()}")
        x = torch.cat([graph.x for graph in graphs])
        return cls(x, edge_index + node_starts[owner], node_starts, edge_starts)

    def __len__(self) -> int:
        return self.node_starts.shape[0] - 1

    @property
    def features(self) -> int:
        """F, features of a node."""
        return self.x.shape[1]

    def batch(self, indices: Tensor) -> GraphBatch:
        """Some of the graphs, in the order of the indices (B,); one may come several times.

        Raises:
            IndexError: If there is no such graph.
        """
        outside = indices[(indices < 0) | (indices >= len(self))].tolist()
        if outside:
            raise IndexError(f"expected graphs from 0 to {len(self) - 1}, got {outside[0]}")
        node_shift, graph = _spans(self.node_starts, indices)  # (B,), (n,)
        edge_shift, owner = _spans(self.edge_starts, indices)  # (B,), (E,)
        nodes = torch.arange(graph.shape[0], device=graph.device) + node_shift[graph]
        edges = torch.arange(owner.shape[0], device=graph.device) + edge_shift[owner]
        edge_index = self.edge_index.index_select(1, edges) - node_shift[owner]
        return GraphBatch(self.x.index_select(0, nodes), edge_index, graph, indices.shape[0])

    def choose(self, indices: Tensor) -> GraphStore:
        """A store of some of the graphs, in the order of the indices (B,)."""
        batch = self.batch(indices)
        starts = (self.node_starts, self.edge_starts)
        nodes, edges = (_starts(one.diff()[indices]) for one in starts)
        return GraphStore(batch.x, batch.edge_index, nodes, edges)


@dataclass(frozen=True)
class GraphSet:
    """G graphs with their names and, where known, labels.

    Args:
        store: The graphs.
        names: The name of each.
        labels: The class of each, shape (G,), int64 in 0..k-1; None if unknown.
        classes: Names of the k classes; None if unknown.
    """

    store: GraphStore
    names: list[str]
    labels: Tensor | None
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.store)

    def choose(self, indices: Tensor) -> GraphSet:
        """Some of the graphs, in the order of the indices (B,)."""
        names = [self.names[index] for index in indices.tolist()]
        labels = None if self.labels is None else self.labels[indices]
        return GraphSet(self.store.choose(indices), names, labels, self.classes)


def _starts(sizes: Sequence[int] | Tensor) -> Tensor:
    """0 and the running sums of G sizes, shape (G + 1,)."""
    sizes = torch.as_tensor(sizes, dtype=torch.int64)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _spans(starts: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen spans, laid one after the other.

    Returns:
        How far the place of each span's entries here lies before their place in the store, (B,);
        and which span each entry belongs to, shape (entries,).
    """
    first = starts[indices]
    sizes = starts[indices + 1] - first
    ends = sizes.cumsum(0)
    return first - (ends - sizes), torch.repeat_interleave(sizes)


def _check_graph(graph: Data, first: Data, index: int) -> None:
    x, edge_index = graph.x, graph.edge_index
    expected, got, remedy = "", "none", ""
    if x is None or x.dim() != 2 or not x.is_floating_point() or not x.shape[0]:
        expected = "node features x in floating point, of shape (nodes, F) with at least one node"
        got = got if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
    elif x.shape[1] != first.x.shape[1]:
        expected, got = f"{first.x.shape[1]} features per node, as in graph 0", f"{x.shape[1]}"
    elif edge_index is None or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        expected, remedy = "edge_index of shape (2, edges)", "; without edges, its shape is (2, 0)"
        got = got if edge_index is None else f"shape {tuple(edge_index.shape)}"
    if expected:
        raise ValueError(f"expected {expected}, got {got} in graph {index}{remedy}")
