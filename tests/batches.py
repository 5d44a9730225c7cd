"""Batches of two views, gradients of losses, and how close tensors have to be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear


@dataclass
class Batch:
    """Two views through one linear layer, in float64: z = W h + b."""

    z0: Tensor
    z1: Tensor
    h0: Tensor
    h1: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.z0, self.z1, self.h0, self.h1


def make_batch(
    n: int = 4, width: int = 5, inputs: int = 6, *, bias: bool = True, seed: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, offset = draw(width, inputs), draw(width) if bias else None
    h0, h1 = draw(n, inputs), draw(n, inputs)
    z0, z1 = (linear(h, weight, offset).requires_grad_() for h in (h0, h1))
    return Batch(z0, z1, h0, h1, weight, offset)


def leaf(*shape: int) -> Tensor:
    """Random numbers in float64 that gradients are asked of."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


def with_gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The loss, then its gradient at each input."""
    return [loss, *gradients(loss, *inputs)]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
