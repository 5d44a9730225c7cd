"""A small convolutional encoder for tiny images."""

from __future__ import annotations

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three blocks of 3x3 convolution, BatchNorm and ReLU, then the mean over the image.

    The second and third block halve the image: 8 pixels become 2, and each of these four places
    sees 9x9 pixels, that is, a whole digit.

    Args:
        channels: Channels of the images.
        width: Channels of the first block; the others have 2 and 4 times as many.

    Attributes:
        features: Size of the output, 4 width.
        width: As given.

    Raises:
        ValueError: For no channel.

    Example:
        >>> import torch
        >>> encoder = SmallCNN(channels=1, width=16)
        >>> encoder.features
        64
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 64])
    """

    def __init__(self, *, channels: int = 1, width: int = 64) -> None:
        super().__init__()
        if channels < 1 or width < 1:
            raise ValueError(
                "expected at least 1 channel and a width of at least 1, "
                f"got channels={channels}, width={width}"
            )

        def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

        self.width, self.features = width, 4 * width
        self.blocks = nn.Sequential(
            block(channels, width, stride=1),
            block(width, 2 * width, stride=2),
            block(2 * width, 4 * width, stride=2),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, S, S) to (B, features)."""
        output: Tensor = self.blocks(images).mean(dim=(2, 3))
        return output
