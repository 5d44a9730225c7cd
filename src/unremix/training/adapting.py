"""Adapt a ready encoder: which of its layers learn, how fast, and what it keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unremix.core.precision import normalize
from unremix.frameworks.base import Framework

NEIGHBORS = 10


def layers_of(encoder: nn.Module) -> list[nn.Module]:
    """The modules that have parameters of their own, in the order in which they were made."""
    return [
        module
        for module in encoder.modules()
        if next(module.parameters(recurse=False), None) is not None
    ]


def rates_of(encoder: nn.Module, last: float, decay: float) -> list[tuple[nn.Module, float]]:
    """Each layer's share of the learning rate: last · decay^((L - l) / (L - 1)) for layer l of L.

    Args:
        encoder: The encoder.
        last: The last layer's share.
        decay: The first layer's share of that.

    Example:
        >>> layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))
        >>> [round(share, 3) for _, share in rates_of(layers, 0.1, 0.01)]
        [0.001, 0.01, 0.1]

    Reference:
        Layer-wise decay: Howard and Ruder 2018 (ULMFiT); Clark et al. 2020 (ELECTRA).
    """
    if last == decay == 1:
        return []  # one group of parameters, as ever
    layers = layers_of(encoder)
    steps = max(1, len(layers) - 1)
    shares = [last * decay ** ((steps - number) / steps) for number in range(len(layers))]
    return list(zip(layers, shares, strict=True))


def freeze(encoder: nn.Module, share: float) -> None:
    """Freeze the first layers: this share of all."""
    layers = layers_of(encoder)
    for layer in layers[: round(share * len(layers))]:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)


def held_layers(model: Framework, *, statistics: bool) -> list[nn.Module]:
    """The BatchNorm layers that normalize by what they came with, not by a batch.

    Args:
        model: The framework, whose encoder may be frozen in part.
        statistics: Whether all of the encoder do, not only those that are frozen.
    """
    own = batch_norms(model.encoder)
    follower = getattr(model, "key_encoder", None)  # MoCo's, the same network
    theirs = own if follower is None else batch_norms(follower)
    frozen = [one.affine and not one.weight.requires_grad for one in own]
    pairs = zip(own, theirs, frozen, strict=True)
    held = [one for *both, still in pairs if statistics or still for one in both]
    return list(dict.fromkeys(held))  # once each, where there is no follower


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that have running statistics."""
    every = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return [layer for layer in every if layer.track_running_stats]


@torch.no_grad()
def blend(first: nn.Module, last: nn.Module, share: float) -> nn.Module:
    """Make ``first`` the average of two encoders: (1 - share) · first + share · last.

    Numbers that are no floats, such as counts of batches, are those of the last.

    Args:
        first: The encoder as it came; its weights are overwritten.
        last: The same network as it was trained.
        share: Of the last encoder's weights.

    Example:
        >>> first, last = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> for module, value in ((first, 1.0), (last, 3.0)):
        ...     _ = nn.init.constant_(module.weight, value)
        >>> blend(first, last, 0.25).weight.item()
        1.5

    Reference:
        Wortsman et al. 2022 (WiSE-FT).
    """
    trained = last.state_dict()
    for name, tensor in first.state_dict().items():
        if tensor.is_floating_point():
            tensor.lerp_(trained[name].to(tensor), share)
        else:
            tensor.copy_(trained[name])
    return first


def neighbors_kept(first: Tensor, second: Tensor, k: int = NEIGHBORS) -> float:
    """The share of the samples' k nearest neighbors (cosine) that two encoders agree on.

    1 if both find the same ones; about k / n for encoders that have nothing in common. It measures
    how far an encoder has moved, not whether it has improved.

    Args:
        first: Features of the samples, shape (n, F).
        second: Features of the same samples by the other encoder, shape (n, G).
        k: How many neighbors; at most n - 1.

    Example:
        >>> corners = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> neighbors_kept(corners, corners.flip(1), k=1)
        1.0
    """
    k = min(k, len(first) - 1)
    if k < 1:
        return 1.0
    found = []
    for features in (first, second):
        units = normalize(features.float())[0]
        found.append((units @ units.T).fill_diagonal_(-torch.inf).topk(k).indices)
    return float((found[0][:, :, None] == found[1][:, None]).sum() / (k * len(first)))


def views_found(first: Tensor, second: Tensor) -> float:
    """The share of samples whose most similar second view is their own.

    Args:
        first: Features of one view of each sample, shape (n, F).
        second: Of another view of the same samples, shape (n, F).

    Example:
        >>> views_found(torch.eye(3), torch.eye(3)[[0, 2, 1]])
        0.3333333432674408
    """
    units = [normalize(features.float())[0] for features in (first, second)]
    found = (units[0] @ units[1].T).argmax(1) == torch.arange(len(first))
    return float(found.float().mean())
