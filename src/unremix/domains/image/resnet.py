"""ResNet-18, 34 and 50 with torchvision's parameter names, and a small network for small images.

torchvision itself is not imported: a checkpoint is a mapping of names to tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from torch import Tensor, nn


def _check_sizes(channels: int, width: int) -> None:
    if channels < 1 or width < 1:
        raise ValueError(
            "expected at least 1 channel and a width of at least 1, "
            f"got channels={channels}, width={width}"
        )


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
        _check_sizes(channels, width)

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


Stem = Literal["cifar", "imagenet"]
Norm = Callable[[int], nn.Module]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size at stride 1; the norm behind it has the bias."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _downsample(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """The projection of the shortcut to the block's output shape; None if the shapes agree."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))


class BasicBlock(nn.Module):
    """y = relu(x' + bn2(conv2(relu(bn1(conv1(x)))))), two 3x3 convolutions; x' is the shortcut.

    x has ``inputs`` channels, both convolutions ``planes``; the first has the stride.
    """

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, planes: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, planes, 3, stride)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv(planes, planes, 3)
        self.bn2 = norm(planes)
        self.downsample = _downsample(inputs, planes, stride, norm)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, S, S) to (B, planes, S/stride, S/stride)."""
        shortcut = images if self.downsample is None else self.downsample(images)
        hidden = self.relu(self.bn1(self.conv1(images)))
        hidden = self.bn2(self.conv2(hidden))
        output: Tensor = self.relu(hidden + shortcut)
        return output


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 beside a shortcut, with four times the channels at the end.

    The stride is in the 3x3 convolution, as in torchvision ("v1.5"); the paper has it in the first.
    The first two convolutions have ``planes`` channels.
    """

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, planes: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = _conv(inputs, planes, 1)
        self.bn1 = norm(planes)
        self.conv2 = _conv(planes, planes, 3, stride)
        self.bn2 = norm(planes)
        self.conv3 = _conv(planes, outputs, 1)
        self.bn3 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inputs, outputs, stride, norm)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, S, S) to (B, 4 planes, S/stride, S/stride)."""
        shortcut = images if self.downsample is None else self.downsample(images)
        hidden = self.relu(self.bn1(self.conv1(images)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        output: Tensor = self.relu(hidden + shortcut)
        return output


DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """ResNet without the classifier: stem, four stages, mean over the image.

    Names and initial values are torchvision's, so that checkpoints move both ways
    (:func:`to_torchvision`).

    Args:
        depth: 18, 34 or 50.
        channels: Channels of the images.
        width: Channels of the first stage; the later ones have 2, 4 and 8 times as many.
        stem: ``cifar``: 3x3 at stride 1 and no max-pool, for images of about 32 pixels;
            ``imagenet``: 7x7 at stride 2 and a 3x3 max-pool at stride 2.
        norm: Makes a normalization layer for so many channels.

    Attributes:
        features: Size of the output: 8 width, and 32 width at depth 50.
        depth, channels, width, stem: As given.

    Raises:
        ValueError: For another depth or stem, or no channel.

    Example:
        >>> import torch
        >>> encoder = ResNet(18, width=8)
        >>> encoder.features
        64
        >>> encoder(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])

    Reference:
        He et al. 2016. The ``cifar`` stem: SimCLR (Chen et al. 2020), Appendix B.9.
    """

    def __init__(
        self,
        depth: int,
        *,
        channels: int = 3,
        width: int = 64,
        stem: Stem = "cifar",
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        if depth not in DEPTHS:
            known = ", ".join(map(str, DEPTHS))
            raise ValueError(f"expected a depth of {known}, got {depth}")
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"expected the stem 'cifar' or 'imagenet', got {stem!r}")
        _check_sizes(channels, width)
        self.depth, self.channels, self.width, self.stem = depth, channels, width, stem
        block, counts = DEPTHS[depth]
        self.features = 8 * width * block.expansion
        small = stem == "cifar"
        self.conv1 = _conv(channels, width, 3) if small else _conv(channels, width, 7, stride=2)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)

        def stage(inputs: int, planes: int, count: int, stride: int) -> nn.Sequential:
            first = block(inputs, planes, stride=stride, norm=norm)
            outputs = planes * block.expansion
            rest = [block(outputs, planes, stride=1, norm=norm) for _ in range(count - 1)]
            return nn.Sequential(first, *rest)

        self.layer1 = stage(width, width, counts[0], stride=1)
        self.layer2 = stage(width * block.expansion, 2 * width, counts[1], stride=2)
        self.layer3 = stage(2 * width * block.expansion, 4 * width, counts[2], stride=2)
        self.layer4 = stage(4 * width * block.expansion, 8 * width, counts[3], stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, S, S) to (B, features)."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        output: Tensor = hidden.mean(dim=(2, 3))
        return output


def to_torchvision(model: ResNet) -> dict[str, Tensor]:
    """A copy of the weights under torchvision's names, in its order, without ``fc``.

    Load it with ``torchvision.models.resnet18().load_state_dict(state, strict=False)``; the only
    names reported missing are then ``fc.weight`` and ``fc.bias``. A model with the ``cifar`` stem
    has a 3x3 ``conv1``, for which torchvision's has to be replaced first.

    Example:
        >>> list(to_torchvision(ResNet(18, width=8)))[:3]
        ['conv1.weight', 'bn1.weight', 'bn1.bias']
    """
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
