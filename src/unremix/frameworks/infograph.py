"""InfoGraph: every node tells its own graph from the others of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unremix.encoders.graph import GraphEncoder
from unremix.frameworks.base import Batch, Framework
from unremix.gather import is_distributed, share_of
from unremix.losses.jsd import hard_jsd
from unremix.losses.modules import HCLLoss
from unremix.losses.options import choose
from unremix.losses.two_views import TwoViewLoss
from unremix.pairs import Pairs
from unremix.scores import Views

Objective = Literal["jsd", "info-nce"]


class Discriminator(nn.Module):
    """Three layers of Linear and ReLU, beside a linear shortcut.

    The shortcut is the last layer as the uncertainty sees it: z = W h + b + (what h makes of the
    other path), so the gradient at W is δ hᵀ with h the input.

    Args:
        width: Size of input and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(module for _ in range(3) for module in (nn.Linear(width, width), nn.ReLU()))
        )
        self.shortcut = nn.Linear(width, width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings of inputs, both of shape (N, F)."""
        both: Tensor = self.block(inputs) + self.shortcut(inputs)
        return both


@dataclass(frozen=True)
class InfoGraphOptions:
    """Options of InfoGraph.

    Args:
        objective: jsd (InfoGraph's) or info-nce.
    """

    objective: Objective = "jsd"

    def __post_init__(self) -> None:
        choose("objective", self.objective, ("jsd", "info-nce"))


class InfoGraph(Framework):
    """Anchors are nodes, candidates are graphs; a node's positive is its own graph.

    x_ij = z_i · z_j / τ of node i and graph j. The scores behind the weights use z/|z|, and h is
    the input of the discriminators: the encoder's embedding. Of several processes each holds
    whole graphs, and its nodes have the negatives that it holds; every node of all counts alike.

    Args:
        encoder: Embeds nodes and graphs.
        loss: Weights the negatives.
        options: The objective.

    Raises:
        ValueError: For a loss that does not go with the objective.

    Reference:
        Sun et al. 2020; its prior on the embeddings, off by default there, is left out.
    """

    summary = "InfoGraph: nodes against graphs"
    section = "infograph"
    Options = InfoGraphOptions
    domains = ("graph",)

    encoder: GraphEncoder

    def __init__(
        self,
        encoder: GraphEncoder,
        loss: TwoViewLoss,
        *,
        options: InfoGraphOptions | None = None,
    ) -> None:
        super().__init__()
        options = options or InfoGraphOptions()
        self.encoder = encoder
        self.loss = loss
        self.objective = options.objective
        self.nodes = Discriminator(encoder.features)
        self.graphs = Discriminator(encoder.features)
        if loss.class_prior and not (isinstance(loss, HCLLoss) and self.objective == "jsd"):
            raise ValueError(
                "expected class_prior=0 on InfoGraph, whose products are not bounded, received "
                f"{loss.class_prior}; leave it out, or use HCL with the objective jsd"
            )
        if loss.gradient == "nt-xent" and loss.weighting.needs_residuals:
            raise ValueError(
                "expected gradient='pseudo-label' on InfoGraph, received 'nt-xent': a graph has "
                "as many positives as nodes, not one"
            )

    @property
    def mix(self) -> dict[str, float]:
        """The learned share of each component of the weights, if any."""
        mix: dict[str, float] = getattr(self.loss, "mix", {})
        return mix

    def undecayed(self) -> list[nn.Parameter]:
        """The learned mix."""
        return list(self.loss.parameters())

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch of graphs."""
        (graphs,) = batch.views
        node_inputs, graph_inputs = self.encoder.nodes_and_graphs(graphs)
        anchors, candidates = self.nodes(node_inputs), self.graphs(graph_inputs)
        if isinstance(self.loss, HCLLoss) and self.objective == "jsd":
            logits = anchors @ candidates.T / self.loss.temperature
            normaliser = None
            if self.loss.gather and is_distributed():
                share = share_of(anchors.shape[0], anchors.shape[1], anchors.device)
                normaliser = share.total / share.processes
            return hard_jsd(
                logits.to(torch.promote_types(logits.dtype, torch.float32)),
                graphs.graph,
                hardness=self.loss.hardness,
                class_prior=self.loss.class_prior,
                similarity_gradient=self.loss.weighting.similarity_gradient,
                fidelity=self.loss.fidelity,
                normaliser=normaliser,
            )
        needs_inputs = self.loss.weighting.needs_residuals
        return self.loss.against(
            Views(anchors, node_inputs if needs_inputs else None),
            Views(candidates, graph_inputs if needs_inputs else None),
            Pairs.membership(graphs.graph, graphs.num_graphs),
            products="dot",
            objective=self.objective,
        )
