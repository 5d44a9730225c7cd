"""Images: views by augmentation, kNN and linear probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unremix.data.fingerprint import fingerprint
from unremix.data.image.dataset import ImageData, ImageSet, StreamedImages, load_images
from unremix.data.image.items import read_items
from unremix.data.subsets import spread
from unremix.domains.base import Features, Trained, evaluating, make_batch
from unremix.domains.outline import outlined, refuse_giant
from unremix.domains.sampling import permuted, streamed
from unremix.encoders import make_encoder, projection_head
from unremix.encoders.registry import chosen_name
from unremix.frameworks.base import Batch, Framework
from unremix.options.config import LARGEST_IMAGE, TrainConfig, check_types
from unremix.views.image import SETTINGS, Augmentation, augment, plain, settings_for
from unremix.views.randomness import keys

CROP_VIEW = 8  # which of a sample's random streams the first small crop takes; see MIXING_VIEW

# Small crops of SwAV: our choice for small images. Published are 96 of 224 pixels and 5 to 14 % of
# the area.
CROP_SHARE = 18 / 32
CROP_SCALE = (0.05, 0.25)

SIZES = "width, head_hidden, head_output or the sizes of the framework, such as moco.queue"
FINGERPRINTED = 512  # images, at least
FINGERPRINTED_BYTES = 1 << 28


@dataclass(frozen=True)
class ImageShape:
    """What images decide about the model."""

    channels: int  # 1 or 3
    image_size: int  # pixels per side
    augmentation: str  # name of the setting in unremix.views.image.SETTINGS

    @staticmethod
    def of(images: ImageSet, config: TrainConfig) -> ImageShape:
        """The shape of a data set under a configuration."""
        channels, size = images.images.channels, images.images.size
        name = config.augmentation
        if name == "auto":
            name = settings_for(channels, size)
        return ImageShape(channels, size, name)

    @property
    def settings(self) -> Augmentation:
        """The augmentation itself."""
        if self.augmentation not in SETTINGS:
            raise ValueError(
                f"expected an augmentation among {', '.join(SETTINGS)}, got {self.augmentation!r}; "
                "use the version that wrote the run, or train a new one"
            )
        return SETTINGS[self.augmentation]


def features_of(
    encoder: nn.Module, images: Tensor, settings: Augmentation, *, batch: int = 512
) -> Tensor:
    """Features of uint8 images (n, C, S, S) in eval mode, shape (n, F), on the CPU."""
    with evaluating(encoder) as (device, dtype):
        parts = [
            encoder(plain(part.to(device), settings).to(dtype)).float().cpu()
            for part in images.split(batch)
        ]
    return torch.cat(parts)


def set_features(
    encoder: nn.Module | None, images: ImageSet, settings: Augmentation, *, batch: int = 512
) -> Tensor:
    """Features of a data set, shape (n, F); of raw pixels where there is no encoder."""
    parts = []
    # Without images, split gives one empty part, so that the width is known.
    places = torch.arange(len(images)).split(batch)
    for number, indices in enumerate(places):
        if isinstance(images.images, StreamedImages):
            images.images.expect(torch.cat(places[number : number + 2]))
        part = images.images.batch(indices)
        if encoder is None:
            parts.append(plain(part, settings).flatten(1))
        else:
            parts.append(features_of(encoder, part, settings))
    return torch.cat(parts)


class ImageDomain:
    """See :class:`unremix.domains.base.Domain`."""

    unit = "images"

    def check(self, config: TrainConfig) -> None:
        """Refuse what can be refused before the data are read."""
        config.composition().make_loss()
        if config.augmentation not in ("auto", *SETTINGS):
            raise ValueError(
                f"expected augmentation auto or one of {', '.join(SETTINGS)}, got "
                f"{config.augmentation!r}"
            )

    def load(self, config: TrainConfig) -> ImageData:
        """The images of a run."""
        return load_images(
            config.data,
            image_size=config.image_size,
            limit=config.limit,
            validation=config.validation,
            stream=config.stream is not None,
            progress=config.progress,
        )

    def load_for(self, run: Trained, data: str | Sequence[str] | None) -> ImageData:
        """The run's own images, or others or a list of files, in the run's size and channels."""
        config, shape = run.config, run.shape
        return load_images(
            config.data if data is None else data,
            image_size=shape.image_size,
            channels=shape.channels,
            limit=config.limit if data is None else None,
            validation=config.validation if data is None else None,
            stream=data is None and config.stream is not None,
            progress=config.progress,
        )

    def shape(self, data: ImageData, config: TrainConfig) -> ImageShape:
        """What the images decide about the model."""
        return ImageShape.of(data.train, config)

    def shape_from(self, values: dict[str, Any]) -> ImageShape:
        """The same from plain values."""
        shape = ImageShape(**values)
        check_types(shape)
        if shape.channels not in (1, 3) or not 1 <= shape.image_size <= LARGEST_IMAGE:
            raise ValueError(f"expected 1 or 3 channels and a size in pixels, got {shape}")
        return shape

    def outline(self, config: TrainConfig, shape: ImageShape) -> Framework | None:
        """The model without its numbers."""
        return outlined(lambda: self._make(config, shape), SIZES)

    def build(self, config: TrainConfig, shape: ImageShape, *, gather: bool = False) -> Framework:
        """The model, initialized from the seed; global randomness is untouched."""
        refuse_giant(self.outline(config, shape), SIZES)
        return self._make(config, shape, gather=gather)

    @staticmethod
    def _make(config: TrainConfig, shape: ImageShape, *, gather: bool = False) -> Framework:
        composition = config.composition()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            encoder = make_encoder(
                config.backbone,
                channels=shape.channels,
                image_size=shape.image_size,
                width=config.width,
                stem=config.stem,
            )
            features = encoder.features
            assert isinstance(features, int)
            head = projection_head(
                features,
                hidden=config.head_hidden,
                output=config.head_output,
                batch_norm=config.head_batch_norm,
            )
            model = composition.make_framework(encoder, head, gather=gather)
        # Channels last: a step of ResNet-18 of width 16 at 32 pixels takes 1/1.3 of the time.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.double() if config.precision == "64-true" else model

    def describe(self, config: TrainConfig, shape: ImageShape) -> str:
        """The encoder, in a few words."""
        backbone = chosen_name(config.backbone, shape.image_size)
        return f"backbone {backbone}, {shape.image_size} px"

    def fingerprint(self, data: ImageData) -> str:
        """Of all names and labels, and of all images or, where these are many, of some.

        Images in shards behind a URL are not read: the shards' tags stand for them.
        """
        images, labels = data.train.images, data.train.labels
        most = max(FINGERPRINTED, FINGERPRINTED_BYTES // (images.channels * images.size**2))
        tags: tuple[str, ...] = ()
        if isinstance(images, StreamedImages):
            tags = images.tags
            most = 0 if tags else FINGERPRINTED
        parts = spread(len(images), most).split(512) if most else ()
        pixels = (images.batch(indices) for indices in parts)
        return fingerprint(chain([str(len(images)), labels], data.train.names, tags, pixels))

    def size(self, data: ImageData) -> int:
        """How many images there are to train on."""
        return len(data.train)

    def steps(self, data: ImageData, config: TrainConfig) -> int:
        """Steps per epoch; an incomplete batch is left out."""
        return len(data.train) // config.batch_size

    def indices(self, data: ImageData, config: TrainConfig, step: int) -> Tensor:
        """Which images a step uses, shape (batch_size,)."""
        images = data.train.images
        if config.stream is not None and isinstance(images, StreamedImages):
            return streamed(images.counts, config.batch_size, config.stream, config.seed, step)
        return permuted(len(images), config.batch_size, config.seed, step)

    def ahead(self, data: ImageData, config: TrainConfig) -> int:
        """Steps in which a stream uses up a shard: so long before its use the next is fetched."""
        images = data.train.images
        if config.stream is None or not isinstance(images, StreamedImages):
            return 0
        lane = config.batch_size / min(config.stream, config.batch_size)  # its samples in a step
        return max(1, round(len(images) / len(images.shards) / lane))

    def expect(self, data: ImageData, indices: Tensor) -> None:
        """Begin to fetch the shards of images that a later step uses, by indices (N,)."""
        assert isinstance(data.train.images, StreamedImages)
        data.train.images.expect(indices)

    def fetch(self, data: ImageData, indices: Tensor) -> Tensor:
        """The images, uint8, shape (N, C, S, S)."""
        return data.train.images.batch(indices)

    def batch(
        self,
        fetched: Tensor,
        indices: Tensor,
        model: Framework,
        config: TrainConfig,
        shape: ImageShape,
        *,
        step: int,
        epoch: int,
    ) -> Batch:
        """Two views of each image, and small crops where the framework asks for them."""

        def view(number: int, settings: Augmentation) -> Tensor:
            # In full precision, whatever the model computes in.
            with torch.autocast(device_type=fetched.device.type, enabled=False):
                return augment(fetched, settings, keys(config.seed, epoch, indices, number))

        settings = shape.settings
        small = replace(settings, crop_scale=CROP_SCALE)
        side = max(4, round(CROP_SHARE * shape.image_size))
        crops = [
            F.interpolate(view(CROP_VIEW + k, small), side, mode="bilinear", antialias=True)
            for k in range(model.crops)
        ]
        views = (view(0, settings), view(1, settings), *crops)
        converted = tuple(images.to(model.dtype) for images in views)
        return make_batch(converted, indices, config, step=step, epoch=epoch)

    def embed(self, run: Trained, items: Any) -> Tensor:
        """Features of pictures, shape (n, F); see :func:`unremix.data.image.items.read_items`."""
        shape = run.shape
        images = read_items(items, channels=shape.channels, size=shape.image_size)
        return features_of(run.encoder(), images, shape.settings)

    def features(self, run: Trained, data: ImageData) -> Features:
        """Embed all images, training images first."""
        encoder = run.encoder()
        parts = [part for part in (data.train, data.test) if part is not None]
        found = torch.cat([set_features(encoder, part, run.shape.settings) for part in parts])
        known = [part.labels for part in parts if part.labels is not None]
        names = [name for part in parts for name in part.names]
        labels = torch.cat(known) if len(known) == len(parts) else None
        return Features(found, names, labels, data.train.classes)
