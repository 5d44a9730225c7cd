"""A small encoder without BatchNorm, named on the command line as ``tiny:encoder``."""

from __future__ import annotations

from torch import Tensor, nn


class Tiny(nn.Module):
    """Images (n, 1, 8, 8) to features (n, 32)."""

    features = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32)
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


def encoder() -> nn.Module:
    return Tiny()
