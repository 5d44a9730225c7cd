"""The graph isomorphism network (GIN) of InfoGraph and GraphCL, and what encoders share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unremix.core.checks import check_positive, checks_on
from unremix.domains.graph.store import GraphBatch


class Neighbors(NamedTuple):
    """For each node, the nodes at the other end of its edges.

    Args:
        nodes: Node after node, shape (E,).
        starts: Where those of each node begin, and E; shape (n + 1,).
    """

    nodes: Tensor
    starts: Tensor

    @classmethod
    def of(cls, ends: Tensor, others: Tensor, count: int) -> Neighbors:
        """From one end of each edge and the other, shape (E,) each, of ``count`` nodes."""
        if not checks_on(None, ends) or not (ends[1:] >= ends[:-1]).all():
            order = _stable_order(ends, count)
            ends, others = ends[order], others[order]
        return cls(others, torch.searchsorted(ends, torch.arange(count + 1, device=ends.device)))


class _Sum(torch.autograd.Function):
    """Sums over neighbors, whose gradient is the sum over neighbors along the reversed edges.

    On the processor ``index_add`` takes 3.0 times as long as these bags of embeddings, and
    torch_geometric's ``GINConv`` 3.3 times: 128 graphs of the standard library, three sums of 32
    features forward and backward (``python benchmarks/handwork.py neighbors``).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, incoming: Neighbors, outgoing: Neighbors) -> Tensor:
        ctx.edges = incoming, outgoing
        nodes, starts = incoming
        return F.embedding_bag(nodes, x, starts, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        incoming, outgoing = ctx.edges
        return sum_neighbors(gradients[0].contiguous(), outgoing, incoming), None, None


def sum_neighbors(x: Tensor, incoming: Neighbors, outgoing: Neighbors) -> Tensor:
    """Σ x_u over the edges (u, v), for each node v: (n, D) to (n, D), 0 for a node without edges.

    Incoming are the sources of the edges to a node; outgoing, for the gradient, the targets of the
    edges from it.

    Example:
        >>> source, target = torch.tensor([[0, 1, 2], [1, 2, 1]])
        >>> incoming, outgoing = Neighbors.of(target, source, 3), Neighbors.of(source, target, 3)
        >>> sum_neighbors(torch.tensor([[1.0], [10.0], [100.0]]), incoming, outgoing)[:, 0]
        tensor([  0., 101.,  10.])
    """
    result: Tensor = _Sum.apply(x, incoming, outgoing)  # type: ignore[no-untyped-call]
    return result


class GINLayer(nn.Module):
    """x_v → bn(relu(V relu(W (x_v + Σ x_u) + b) + c)), u over the edges (u, v)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, incoming: Neighbors, outgoing: Neighbors) -> Tensor:
        """(n, inputs) to (n, hidden)."""
        if self.first.in_features > self.first.out_features:
            # W (x + Σ x) = W x + Σ W x, and there are more columns before W than after.
            x = F.linear(x, self.first.weight)
            x = x + sum_neighbors(x, incoming, outgoing) + self.first.bias
        else:
            x = self.first(x + sum_neighbors(x, incoming, outgoing))
        output: Tensor = self.norm(self.second(x.relu()).relu())
        return output


class GIN(nn.Module):
    """Graph isomorphism network: layers whose outputs are joined, and added up over a graph.

    Each layer adds to every node its neighbors (ε = 0), then applies Linear, ReLU and Linear, then
    ReLU and, last, BatchNorm: the order of InfoGraph; GIN itself has BatchNorm before the ReLU.
    Weights begin as InfoGraph's: Xavier's uniform distribution, biases 0.

    Args:
        in_features: Features of a node.
        hidden: Size of each layer.
        layers: Their number.

    Attributes:
        features: Size of both outputs, hidden · layers.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> gin = GIN(5, hidden=32, layers=3).eval()
        >>> gin.features
        96
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # and a fourth node, a graph alone
        >>> batch = GraphBatch(torch.rand(4, 5), path, torch.tensor([0, 0, 0, 1]), 2)
        >>> nodes, graphs = gin(batch)
        >>> nodes.shape, graphs.shape
        (torch.Size([4, 96]), torch.Size([2, 96]))

    Reference:
        GIN: Xu et al. 2019, Equation 4.1; InfoGraph: Sun et al. 2020.
    """

    def __init__(self, in_features: int, *, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        check_positive(in_features=in_features, hidden=hidden, layers=layers)
        self.features = hidden * layers
        inputs = [in_features, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(GINLayer(size, hidden) for size in inputs)

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Embed the nodes and graphs of a batch.

        Returns:
            Nodes, shape (n, features): the layers' outputs side by side. Graphs, shape
            (G, features): the sum over the nodes of each.
        """
        x, (source, target) = batch.x, batch.edge_index
        incoming = Neighbors.of(target, source, x.shape[0])
        outgoing = Neighbors.of(source, target, x.shape[0])
        outputs = []
        for layer in self.layers:
            x = layer(x, incoming, outgoing)
            outputs.append(x)
        nodes = torch.cat(outputs, dim=1)  # (n, features)
        graphs = nodes.new_zeros(batch.num_graphs, self.features)
        return nodes, graphs.index_add(0, batch.graph, nodes)


def _stable_order(ends: Tensor, count: int) -> Tensor:
    """What sorts the ends, shape (E,), all below ``count``; equal ones stay in order."""
    if ends.device.type == "cpu" and count <= 2**16:
        # NumPy sorts 16 bits by counting, 9 times as fast as torch compares.
        import numpy as np

        return torch.from_numpy(ends.numpy().astype(np.uint16).argsort(kind="stable"))
    return ends.argsort(stable=True)


class GraphEncoder(nn.Module):
    """A :class:`GIN` on batches of graphs, with the same arguments.

    Attributes:
        features: Size of an embedding, hidden · layers.

    Example:
        >>> import torch
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> batch = GraphBatch(torch.rand(3, 5), edges, torch.tensor([0, 0, 1]), 2)
        >>> GraphEncoder(5).eval()(batch).shape
        torch.Size([2, 96])
    """

    def __init__(self, in_features: int, *, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.gin = GIN(in_features, hidden=hidden, layers=layers)
        self.features = self.gin.features

    def nodes_and_graphs(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Embeddings of all nodes, shape (n, F), and of the graphs, shape (G, F)."""
        found: tuple[Tensor, Tensor] = self.gin(batch)
        return found

    def forward(self, batch: GraphBatch) -> Tensor:
        """Embeddings of the graphs, shape (G, F)."""
        return self.nodes_and_graphs(batch)[1]
