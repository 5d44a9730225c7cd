"""What UnReMix is measured against, each written the straightforward way, and the batch they share.

The masks that depend on the batch size alone are made beforehand and count for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from unremix.core.scores import Block, Score
from unremix.core.specification import unremix


@dataclass(frozen=True)
class Batch:
    """N pairs of views of a random two-layer network, and its last layer.

    Args:
        z0: Embeddings of the first views, shape (N, D), leaves that require a gradient.
        z1: Likewise of the second views.
        h0: Inputs of the last layer for the first views, shape (N, H).
        h1: Likewise for the second views.
        weight: W with z = W h + b, shape (D, H).
        bias: b, shape (D,).
    """

    z0: Tensor
    z1: Tensor
    h0: Tensor
    h1: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def size(self) -> int:
        """N."""
        return self.z0.shape[0]

    @cached_property
    def inputs(self) -> Tensor:
        """h of all views, shape (2N, H)."""
        return torch.cat([self.h0, self.h1])

    @cached_property
    def partner(self) -> Tensor:
        """Where each view's other view stands, shape (2N,)."""
        return torch.arange(2 * self.size).roll(self.size)

    @cached_property
    def negative(self) -> Tensor:
        """Which views are negatives of each other, boolean, shape (2N, 2N)."""
        sample = torch.arange(self.size).repeat(2)
        return sample[:, None] != sample[None, :]

    def units(self) -> Tensor:
        """f = z/|z| of all views, shape (2N, D), with gradient."""
        return F.normalize(torch.cat([self.z0, self.z1]), dim=1)


def make_batch(size: int, *, width: int, input_width: int, seed: int) -> Batch:
    """Two noisy views of N random points, sent through a random network with ReLU.

    Args:
        size: N.
        width: D.
        input_width: H.
        seed: Draws points, noise and network.
    """
    generator = torch.Generator().manual_seed(seed)

    def layer(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=generator) * math.sqrt(2 / inputs)

    points = torch.randn(size, 64, generator=generator)
    first, second = layer(input_width, 64), layer(input_width, input_width)
    weight, bias = layer(width, input_width), 0.1 * torch.randn(width, generator=generator)
    inputs, embeddings = [], []
    for _ in range(2):
        view = points + 0.5 * torch.randn(size, 64, generator=generator)
        h = ((view @ first.T).relu() @ second.T).relu()
        inputs.append(h)
        embeddings.append((h @ weight.T + bias).requires_grad_())
    return Batch(embeddings[0], embeddings[1], inputs[0], inputs[1], weight, bias)


def bare_products(batch: Batch) -> Callable[[], None]:
    """The matrix products of UnReMix, forward and backward, and nothing else: the limit.

    With a product of (2N, D) by (D, 2N) as one unit: similarities twice, output gradient, delta
    product, h product (H/D units) and the two products of the gradient; 10 at H = 4 D. Each is one
    large product into memory allocated beforehand.
    """
    units, inputs = batch.units().detach(), batch.inputs
    views = units.shape[0]
    delta = units.flip(0).contiguous()
    square, square_of_inputs = torch.empty(views, views), torch.empty(views, views)
    narrow = torch.empty_like(units)

    def run() -> None:
        torch.mm(units, units.T, out=square)  # similarities
        torch.mm(square, units, out=narrow)  # output gradient
        torch.mm(units, units.T, out=square)  # similarities again
        torch.mm(delta, delta.T, out=square_of_inputs)  # delta product
        torch.mm(inputs, inputs.T, out=square_of_inputs)  # h product
        torch.mm(square, units, out=narrow)  # gradient to the anchors
        torch.mm(square.T, units, out=narrow)  # gradient to the candidates

    return run


def nt_xent(batch: Batch, *, temperature: float) -> Tensor:
    """NT-Xent as one dense cross-entropy (SimCLR)."""
    units = batch.units()
    logits = (units @ units.T / temperature).fill_diagonal_(-math.inf)
    return F.cross_entropy(logits, batch.partner)


def published_hcl(
    batch: Batch, *, temperature: float, hardness: float, class_prior: float
) -> Tensor:
    """HCL's criterion, dense and step by step as published (Robinson et al. 2021, Eq. 4)."""
    out = batch.units()
    out_1, out_2 = out.chunk(2)
    similarity = torch.exp(out @ out.T / temperature)
    negative = similarity.masked_select(batch.negative).view(len(out), -1)  # (2N, 2N - 2)
    positive = torch.exp((out_1 * out_2).sum(-1) / temperature)
    positive = torch.cat([positive, positive])
    count = negative.shape[1]
    importance = (hardness * negative.log()).exp()
    reweighted = (importance * negative).sum(-1) / importance.mean(-1)
    debiased = (-class_prior * count * positive + reweighted) / (1 - class_prior)
    debiased = debiased.clamp(min=count * math.exp(-1 / temperature))
    return (-torch.log(positive / (positive + debiased))).mean()


def defined_unremix(batch: Batch, mix: Tensor, *, temperature: float) -> Tensor:
    """UnReMix as the package specifies it: whole (2N, 2N) arrays, differentiated by autograd.

    Args:
        batch: The batch.
        mix: λ of the components, shape (3,), with gradient.
        temperature: τ.
    """
    return unremix(batch.z0, batch.z1, batch.h0, batch.h1, mix, temperature=temperature)


def per_sample_uncertainty(batch: Batch) -> Score:
    """u by per-sample gradients of the last layer: a score for ``components=``."""

    def uncertainty(block: Block) -> Tensor:
        units, inputs = block.anchors.units, block.anchors.inputs

        def cross_entropy(weight: Tensor, bias: Tensor, h: Tensor, classes: Tensor) -> Tensor:
            unit = F.normalize(weight @ h + bias, dim=0)
            logits = torch.where(classes, units @ unit, -math.inf)
            return F.cross_entropy(logits, logits.argmax())

        differentiate = vmap(grad(cross_entropy, argnums=(0, 1)), in_dims=(None, None, 0, 0))
        by_view = differentiate(batch.weight, batch.bias, inputs, block.negatives)
        gradients = torch.cat([part.flatten(1) for part in by_view], dim=1)  # (2N, D H + D)
        return gradients @ gradients.T

    return uncertainty


def looped_jsd(nodes: Tensor, graphs: Tensor, owner: Tensor) -> Tensor:
    """InfoGraph's objective with dense masks filled node by node, as its public code has them.

    Args:
        nodes: Embeddings of the nodes, shape (n, D).
        graphs: Embeddings of the graphs, shape (G, D).
        owner: The graph of each node, shape (n,).
    """
    count, others = len(nodes), len(graphs) - 1
    positive, negative = torch.zeros(count, len(graphs)), torch.ones(count, len(graphs))
    for node, graph in enumerate(owner):
        positive[node][graph] = 1.0
        negative[node][graph] = 0.0
    products = nodes @ graphs.T
    at_own, elsewhere = products * positive, products * negative
    of_own = math.log(2) - F.softplus(-at_own)  # a masked product of 0 adds exactly 0 to either
    of_others = F.softplus(-elsewhere) + elsewhere - math.log(2)
    return of_others.sum() / (count * others) - of_own.sum() / count
