"""Projection heads: from an encoder's features to the embeddings that the loss compares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from unremix.core.checks import check_positive


def projection_head(
    features: int,
    *,
    hidden: Sequence[int] = (512,),
    output: int = 128,
    batch_norm: bool = True,
) -> nn.Sequential:
    """Linear, BatchNorm and ReLU per hidden layer, then one linear layer.

    z = W h + b with h = relu(bn(V x)): ``head[-1]`` is the last layer, the one to hand to
    :class:`unremix.UnReMixLoss` as ``last_layer``. A hidden layer has no bias where BatchNorm
    follows, which would remove it.

    Args:
        features: Size of the encoder's output x.
        hidden: Sizes of the hidden layers; empty for a linear head.
        output: Size D of the embeddings z.
        batch_norm: Whether BatchNorm follows each hidden layer.

    Returns:
        The head, from (N, features) to (N, output).

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> head = projection_head(2048)
        >>> head
        Sequential(
          (0): Linear(in_features=2048, out_features=512, bias=False)
          (1): BatchNorm1d(512, ...)
          (2): ReLU(inplace=True)
          (3): Linear(in_features=512, out_features=128, bias=True)
        )

    Reference:
        SimCLR (Chen et al. 2020), Section 4.2; sizes of HCL (Robinson et al. 2021).
    """
    sizes = [features, *hidden]
    check_positive(features=features, hidden=min(hidden, default=None), output=output)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm1d(outputs))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], output))
