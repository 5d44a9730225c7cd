"""InfoGraph: every node tells its own graph from the others of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from unremix.console.values import Checked
from unremix.core.checks import check_choice, check_number
from unremix.core.gather import JointBatch, find_joint_batch, gather_rows, gather_views
from unremix.core.objectives import ObjectiveName
from unremix.core.pairs import Pairs
from unremix.core.precision import at_least_float32, full_precision
from unremix.core.views import Views
from unremix.domains.graph.encoders import GraphEncoder
from unremix.frameworks.base import Batch, Framework, refuse_nt_xent
from unremix.losses import PRESETS, Fidelity, HCLLoss, TwoViewLoss

INFO_NCE = "--infograph.objective info-nce"


class Discriminator(nn.Module):
    """Three layers of Linear and ReLU, beside a linear shortcut.

    The shortcut is the last layer as the uncertainty sees it: z = W h + b + (what h makes of the
    other path), so the gradient at W is δ hᵀ with h the input.

    Args:
        width: Size of input and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [(nn.Linear(width, width), nn.ReLU()) for _ in range(3)]
        self.block = nn.Sequential(*chain.from_iterable(layers))
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
class InfoGraphOptions(Checked):
    """Options of InfoGraph.

    Args:
        objective: jsd (InfoGraph's) or info-nce.
    """

    objective: ObjectiveName = "jsd"


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
    takes_views = False

    encoder: GraphEncoder

    def __init__(
        self, encoder: GraphEncoder, loss: TwoViewLoss, *, options: InfoGraphOptions | None = None
    ) -> None:
        super().__init__()
        options = options or InfoGraphOptions()
        self.encoder = encoder
        self.loss = loss
        loss.gather = bool(loss.gather)  # equally many graphs have different numbers of nodes
        self.objective = options.objective
        is_hard_jsd = isinstance(loss, HCLLoss) and self.objective == "jsd"
        self.nodes = Discriminator(encoder.features)
        self.graphs = Discriminator(encoder.features)
        if loss.class_prior and not is_hard_jsd:
            got = f"{loss.class_prior}, but its products are not bounded; use HCL with jsd"
            raise ValueError(f"expected class_prior=0 on InfoGraph, got {got}, or leave it out")
        if self.objective == "jsd" and getattr(loss.options.objective, "decoupled", False):
            got = f"True, but it has no denominator; leave it out, or use {INFO_NCE}"
            raise ValueError(f"expected decoupled=False with the objective jsd, got {got}")
        loss.check_evidence("nodes")
        if loss.false_negatives and is_hard_jsd:
            got = f"{loss.false_negatives.rule!r}, but it has its own weights; use {INFO_NCE}"
            raise ValueError(f"expected false_negatives=None for HCL with jsd, got {got}")
        refuse_nt_xent(loss, "on InfoGraph, where a graph has as many positives as nodes")

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch of graphs."""
        (graphs,) = batch.views
        node_inputs, graph_inputs = self.encoder.nodes_and_graphs(graphs)
        anchors, candidates = self.nodes(node_inputs), self.graphs(graph_inputs)
        needs_inputs = self.loss.weighting.needs_gradients
        samples, groups = batch.samples, graphs.graph
        nodes = Views(anchors, node_inputs if needs_inputs else None, samples[groups])
        known = Views(candidates, graph_inputs if needs_inputs else None, samples)
        if self.loss.gathers:  # the graphs of all processes
            joint = find_joint_batch(candidates)
            known, groups = gather_views(known, joint), groups + joint.offset
        if isinstance(self.loss, HCLLoss) and self.objective == "jsd":
            with full_precision(anchors.device):
                logits = at_least_float32(anchors) @ at_least_float32(known.embeddings).T
                logits = logits / self.loss.learned()[1]
            return hard_jsd(
                logits,
                groups,
                hardness=self.loss.hardness,
                class_prior=self.loss.class_prior,
                similarity_gradient=self.loss.weighting.similarity_gradient,
                fidelity=self.loss.fidelity,
                joint=find_joint_batch(anchors) if self.loss.gathers else None,
            )
        pairs = Pairs.membership(groups, len(known.embeddings))
        return self.loss.against(nodes, known, pairs, logits="dot", objective=self.objective)


def hard_jsd(
    logits: Tensor,
    groups: Tensor,
    *,
    hardness: float = 1.0,
    class_prior: float = 0.1,
    similarity_gradient: bool = True,
    fidelity: Fidelity = "sound",
    joint: JointBatch | None = None,
) -> Tensor:
    """Jensen-Shannon estimate, negated, with HCL's hard negatives and debiasing.

    L = 1/N Σ_i ( G_i - log 2 - E⁺(x_ip) ),
    G_i = max( (1/n Σ_j w_ij softplus(x_ij) - τ⁺ softplus(x_ip)) / (1 - τ⁺), 0 ),
    w_ij ∝ e^{2β x_ij/max|x|} over the negatives, of mean 1.

    The debiased sum is kept at or above its least value, 0, as in the contrastive loss of HCL:
    unbounded, it would be made -∞ by scaling up the logits.

    Args:
        logits: x of N members with M groups, shape (N, M).
        groups: The group of each member, its positive, shape (N,).
        hardness: β.
        class_prior: τ⁺; 0.5 in HCL's public code.
        similarity_gradient: Whether gradient flows through w, as published.
        fidelity: ``code`` as HCL's public code, up to a constant: the exponent is negative, so that
            easy negatives count most; the positive stands among the negatives with x = 0; the
            correction is added to the loss in place of being taken away.
        joint: This process's part of the members, where several share a loss: their mean is the
            loss of all.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If there is but one group, so no negative.

    Relations:
        With ``hardness=0`` and ``class_prior=0`` this is InfoGraph's own estimate.

    Example:
        >>> hard_jsd(torch.zeros(3, 2), torch.tensor([0, 0, 1]), class_prior=0.0)
        tensor(0.)

    Reference:
        Robinson et al. 2021, Section 5.2 and its public code.
    """
    check_choice("fidelity", fidelity, tuple(PRESETS))
    check_number("hardness", hardness, least=0)
    check_number("class_prior", class_prior, least=0, below=1)
    count = logits.shape[1] - 1
    if count < 1:
        raise ValueError("expected at least one negative, got one group; use a larger batch")
    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, groups[:, None], True)
    positive = logits.gather(1, groups[:, None])[:, 0]  # (N,)
    negatives = logits.masked_fill(own, 0.0)
    largest = negatives.abs().amax()
    if joint is not None:
        largest = gather_rows(largest[None], joint.divided(joint.processes)).amax()
    largest = largest.clamp(min=torch.finfo(logits.dtype).tiny)
    exponent = 2 * hardness * negatives / largest
    exponent = -exponent if fidelity == "code" else exponent.masked_fill(own, -math.inf)
    shares = exponent.softmax(1)  # (N, M); 0 for the own group, but in the code
    shares = shares if similarity_gradient else shares.detach()
    mean = (shares * softplus(negatives)).sum(1)
    if fidelity == "code":
        mean = mean * ((count + 1) / count)
        rest = (mean + class_prior * softplus(positive)) / (1 - class_prior)
    else:
        rest = ((mean - class_prior * softplus(positive)) / (1 - class_prior)).clamp(min=0)
    loss = rest - math.log(2) - (math.log(2) - softplus(-positive))  # (N,)
    return loss.sum() / (len(loss) if joint is None else joint.total / joint.processes)
