"""Graph encoders behind one interface."""

from __future__ import annotations

from torch import Tensor, nn

from unremix.data.graph.store import GraphBatch
from unremix.encoders.gin import GIN


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
        found: tuple[Tensor, Tensor] = self.gin(
            batch.x, batch.edge_index, batch.graph, batch.num_graphs
        )
        return found

    def forward(self, batch: GraphBatch) -> Tensor:
        """Embeddings of the graphs, shape (G, F)."""
        return self.nodes_and_graphs(batch)[1]
