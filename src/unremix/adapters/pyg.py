"""PyTorch Geometric: GRACE on nodes and graphs with weighted negatives, and PyGCL's call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from unremix import losses
from unremix.adapters import needed_for
from unremix.adapters.weighted import AdapterOptions, Weighted, weighted_loss
from unremix.core.checks import check_choice, check_number
from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.losses import accepts

with needed_for("pyg"):
    from torch_geometric.data import Data  # type: ignore[import-untyped]
    from torch_geometric.nn import global_add_pool  # type: ignore[import-untyped]
    from torch_geometric.utils import dropout_edge, mask_feature  # type: ignore[import-untyped]

Level = Literal["node", "graph"]


@dataclass(frozen=True)
class Options(AdapterOptions):
    """The options of :class:`UnReMixLoss`, with those of :class:`AdapterOptions`.

    Args:
        tau: τ.
    """

    tau: float = 0.5


class UnReMixLoss(Weighted, nn.Module):
    """Negatives weighted by uncertainty, similarity and representativeness, in PyGCL's call.

    As in PyGCL's ``InfoNCE``, every positive of an anchor counts alike, and all of them stand in
    the denominator.

    Its options are those of :class:`Options`.

    Relations:
        With ``components=()`` this equals PyGCL's ``InfoNCE``, value and gradient.

    Example:
        >>> import torch
        >>> loss_fn = UnReMixLoss(tau=0.2)
        >>> same = torch.eye(4)
        >>> loss_fn(torch.randn(4, 8), torch.randn(4, 8), same, 1 - same).shape
        torch.Size([])
    """

    @accepts(Options)
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.weighted = weighted_loss(options, layout="one-way", temperature=options.tau)

    def forward(
        self,
        anchor: Tensor,
        sample: Tensor,
        pos_mask: Tensor,
        neg_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss of anchors against samples.

        Args:
            anchor: Embeddings of the anchors, shape (N, D).
            sample: Embeddings of the samples, shape (M, D).
            pos_mask: Which samples are positives of which anchors, 0 and 1, shape (N, M).
            neg_mask: Which are negatives, shape (N, M); by default all others.

        Returns:
            A scalar.
        """
        positives = pos_mask > 0
        negatives = ~positives if neg_mask is None else neg_mask > 0
        return self.weighted.against(
            Views(anchor),
            Views(sample),
            Pairs.from_masks(positives, negatives),
            positives_in_denominator=True,
        )


class GraphContrast(nn.Module):
    """GRACE: two views with fewer edges and features; a node, or a graph, against all others.

    Works on one graph, on batches of graphs, and on the batches of a ``NeighborLoader``, of which
    only the seed nodes are contrasted: others have incomplete neighborhoods.

    Args:
        encoder: ``encoder(x, edge_index)`` → embeddings of the nodes, (nodes, C).
        head: Makes the embeddings (N, D) that are contrasted.
        loss: ``loss(z0, z1)``; :class:`unremix.UnReMixLoss` with ``last_layer=head[-1]``,
            for example.
        level: ``node``, or ``graph``: node embeddings are summed by graph before the head.
        drop_edges: The share of edges that each view loses.
        mask_features: The share of feature columns that each view has at 0.

    Relations:
        With :class:`unremix.InfoNCELoss` and level ``node``, GRACE's loss (Zhu et al. 2020, Eq. 2).

    Example:
        >>> import torch
        >>> from torch_geometric.nn import GCN
        >>> import unremix
        >>> encoder = GCN(in_channels=5, hidden_channels=16, num_layers=2)
        >>> head = nn.Sequential(nn.Linear(16, 16), nn.ELU(), nn.Linear(16, 8))
        >>> model = GraphContrast(encoder, head, unremix.UnReMixLoss(last_layer=head[-1]))
        >>> edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> model(Data(x=torch.randn(4, 5), edge_index=edges)).shape
        torch.Size([])
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        loss: losses.TwoViewLoss,
        *,
        level: Level = "node",
        drop_edges: tuple[float, float] = (0.2, 0.4),
        mask_features: tuple[float, float] = (0.3, 0.4),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.loss = loss
        self.level: Level = check_choice("level", level, get_args(Level))
        for name, shares in (("drop_edges", drop_edges), ("mask_features", mask_features)):
            for share in shares:
                check_number(f"each of {name}", share, least=0, below=1)
        self.drop_edges = drop_edges
        self.mask_features = mask_features

    def forward(self, data: Data, labels: Tensor | None = None) -> Tensor:
        """The loss of a graph, a batch of graphs, or a batch of sampled neighborhoods.

        Args:
            data: The graph or batch.
            labels: The class of each node or graph that is contrasted, -1 if it is unlabeled, shape
                (N,): those of one class are positives of each other.
        """
        z0, z1 = (self.embed(data, view) for view in (0, 1))
        known = {} if labels is None else {"labels": labels}
        loss: Tensor = self.loss(z0, z1, **known)
        return loss

    def embed(self, data: Data, view: int) -> Tensor:
        """Embeddings of the nodes or graphs in view 0 or 1, shape (N, D)."""
        edges, _ = dropout_edge(data.edge_index, p=self.drop_edges[view], training=self.training)
        features, _ = mask_feature(data.x, p=self.mask_features[view], training=self.training)
        hidden = self.encoder(features, edges)
        if self.level == "graph":
            hidden = global_add_pool(hidden, data.batch)
        elif getattr(data, "input_id", None) is not None:  # of a NeighborLoader
            hidden = hidden[: data.batch_size]
        embeddings: Tensor = self.head(hidden)
        return embeddings
