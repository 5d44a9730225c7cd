"""Images of noise in place of published data that are not there, for a dry run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unremix.domains.image.dataset import ImageData
from unremix.domains.image.stores import ImageSet
from unremix.domains.options import TrainConfig

# Images to train on in the data that the shipped settings name, as published.
PUBLISHED = {
    "cifar-10-python.tar.gz": 50_000,
    "cifar-100-python.tar.gz": 50_000,
    "tiny-imagenet-200.zip": 100_000,
    "imagenet-1k-wds": 1_281_167,
}
CLASSES = 10


@dataclass(frozen=True)
class RandomImages:
    """Images of noise: see :class:`unremix.domains.image.stores.ImageStore`."""

    count: int
    size: int  # S
    channels: int = 3

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor) -> Tensor:
        """As many images as asked for, uint8, shape (B, 3, S, S)."""
        shape = (len(indices), self.channels, self.size, self.size)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def imagine(config: TrainConfig) -> ImageData | None:
    """Images of noise, as many as published; None for data of another name, or of unknown size."""
    size = config.own.image_size
    if config.data not in PUBLISHED or size is None:
        return None
    count = min(PUBLISHED[config.data], config.limit or PUBLISHED[config.data])
    labels = torch.arange(count) % CLASSES
    images = ImageSet(RandomImages(count, size), [""] * count, labels, None)
    return ImageData(images, None, config.data, ())
