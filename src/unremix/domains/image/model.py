"""From images to a model: their shape, encoder and head, batches of views, features."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unremix.domains.base import Cut, Features, Ready, Trained, evaluating
from unremix.domains.image.dataset import ImageData, load_images
from unremix.domains.image.decoding import (
    HEIF_SUFFIXES,
    ArraySource,
    Shape,
    Split,
    quiet_pillow,
    suffixes,
)
from unremix.domains.image.encoders import chosen_name, find_ready, make_encoder
from unremix.domains.image.items import read_items
from unremix.domains.image.options import ImageOptions
from unremix.domains.image.reading import find_splits
from unremix.domains.image.stores import CachedImages, ImageSet, StreamedImages, store_images
from unremix.domains.image.views import (
    SETTINGS,
    Augmentation,
    ImageShape,
    augment,
    plain,
    settings_for,
)
from unremix.domains.labeled import Labeled
from unremix.domains.options import TrainConfig, make_head
from unremix.domains.sampling import evenly_spaced, permuted, pinned, ranges, read_ahead, streamed
from unremix.files.archives import Skipped
from unremix.files.atomic_files import read_bytes
from unremix.files.fingerprint import fingerprint
from unremix.files.remote import RemoteFile, cache_folder
from unremix.frameworks.base import Framework
from unremix.frameworks.randomness import CROPS, VIEWS, keys

# Small crops of SwAV: our choice for small images. The paper uses 96 of 224 pixels and 5 to 14 % of
# the area.
CROP_SHARE = 18 / 32
CROP_SCALE = (0.05, 0.25)

# Images that are embedded together, for images of one pixel a side. On a CPU what a layer makes of
# them should stay near its cache: 512 of 32 pixels take up to twice as long as 4 times 128.
AT_ONCE_ON_CPU = 1 << 12  # divided by their side
AT_ONCE = 1 << 21  # divided by their area: layers of large encoders take 500 times that
READ_AT_ONCE = 512  # while those before are embedded
SMALL_IMAGE = 32  # pixels
MOST_PIXELS = 2**30  # values of raw pixels that are measured: 4 GiB; of more images than that, none
SIZES = "width, head_hidden, head_output or the sizes of the framework, such as moco.queue"
FINGERPRINTED = 512  # images, at least
FINGERPRINTED_BYTES = 1 << 28
# Images to train on in the data that the shipped settings name, as published.
PUBLISHED = {
    "cifar-10-python.tar.gz": 50_000,
    "cifar-100-python.tar.gz": 50_000,
    "tiny-imagenet-200.zip": 100_000,
    "imagenet-1k-wds": 1_281_167,
}


def features_of(encoder: nn.Module, images: Tensor, settings: Augmentation) -> Tensor:
    """Features of uint8 images (n, C, S, S) in eval mode, shape (n, F), on the CPU."""
    with evaluating(encoder) as (device, dtype):
        side = images.shape[-1]
        most = AT_ONCE_ON_CPU // side if device.type == "cpu" else AT_ONCE // side**2
        parts = [
            encoder(plain(part.to(device, non_blocking=True), settings).to(dtype)).float().cpu()
            for part in images.split(max(16, min(READ_AT_ONCE, most)))
        ]
    return torch.cat(parts)


def set_features(encoder: nn.Module | None, images: ImageSet, settings: Augmentation) -> Tensor:
    """Features of a data set, shape (n, F); of raw pixels where there is no encoder."""
    # Without images, split gives one empty part, so that the width is known.
    places = torch.arange(len(images)).split(READ_AT_ONCE)
    weights = () if encoder is None else encoder.parameters()  # of an exported file, none
    device = next((one.device for one in weights), torch.device("cpu"))

    def read(number: int) -> Tensor:
        if isinstance(images.images, StreamedImages):
            images.images.expect(torch.cat(places[number : number + 2]))
        found: Tensor = pinned(images.images.batch(places[number]), device)
        return found

    parts = read_ahead(read, range(len(places)))
    if encoder is None:
        return torch.cat([plain(part, settings).flatten(1) for part in parts])
    return torch.cat([features_of(encoder, part, settings) for part in parts])


def check(config: TrainConfig) -> None:
    """Refuse what can be refused before the data are read."""
    options: ImageOptions = config.own
    if options.augmentation not in ("auto", *SETTINGS):
        raise ValueError(
            f"expected augmentation auto or one of {', '.join(SETTINGS)}, got "
            f"{options.augmentation!r}"
        )
    source, colon, _ = options.backbone.partition(":")
    if options.pretrained and (config.init is not None or source != "timm"):
        raise ValueError(
            "expected --pretrained with --backbone timm:NAME and without --init, got "
            f"--backbone {options.backbone} and --init {config.init}; for other weights use --init"
        )
    if config.encoder is not None:
        return  # found when it is loaded, which comes next
    if colon and source and not source.endswith(".py"):
        package = source.partition(".")[0]
        if find_spec(package) is None:
            raise ImportError(
                f"expected {package} to be installed for --backbone {options.backbone}, got none; "
                "install it, or check the spelling"
            )
    elif options.backbone != "auto":
        with torch.random.fork_rng(devices=[]):
            make_encoder(options.backbone, channels=1, image_size=32, width=1, stem=options.stem)


def load(config: TrainConfig, shape: ImageShape | None = None) -> ImageData:
    """The images of a run; in the size and channels of a shape, if it is known."""
    return load_images(
        config.data,
        image_size=config.own.image_size if shape is None else shape.image_size,
        channels=None if shape is None else shape.channels,
        limit=config.limit,
        validation=config.validation,
        stream=config.stream is not None,
        progress=config.progress,
    )


def imagine(config: TrainConfig) -> ImageData | None:
    """Noise, as many images as published; None for data of another name, or of unknown size."""
    size = config.own.image_size
    if config.data not in PUBLISHED or size is None:
        return None
    count = min(PUBLISHED[config.data], config.limit or PUBLISHED[config.data])
    noise = torch.Generator().manual_seed(0)
    one = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=noise)
    images = CachedImages(one.expand(count, -1, -1, -1))  # in the memory of one
    return ImageData(
        ImageSet(images, [""] * count, torch.arange(count) % 10, None), None, config.data, ()
    )


def load_for(run: Trained, data: str | Sequence[str] | None) -> ImageData:
    """The run's own images, or others or a list of files, in the run's size and channels."""
    shape, progress = run.shape, run.config.progress
    if data is None:
        return load(run.config, shape)
    return load_images(
        data, image_size=shape.image_size, channels=shape.channels, progress=progress
    )


def source_of(paths: Sequence[str]) -> str | list[str]:
    """One path, or a list of pictures: several paths, or those that a .txt file lists."""
    suffix = Path(paths[0]).suffix.lower()
    if len(paths) == 1 and suffix == ".txt":
        return _listed(Path(paths[0]))
    if len(paths) > 1 or suffix in suffixes() | HEIF_SUFFIXES:
        return list(paths)
    return paths[0]


def _listed(file: Path) -> list[str]:
    """The paths in a text file; relative ones are looked up here, then beside the file."""
    if not file.is_file():
        raise FileNotFoundError(f"expected a text file of paths at {str(file)!r}, found no file")
    names = read_bytes(file).decode("utf-8", "surrogateescape")  # any name that a file can have
    lines = [line.strip() for line in names.splitlines()]
    beside = [(line, file.parent / line) for line in lines if line]
    return [
        str(path) if path.exists() and not Path(line).exists() else line for line, path in beside
    ]


def shape_of(data: ImageData, config: TrainConfig) -> ImageShape:
    """The shape of images under a configuration."""
    channels, size = data.train.images.channels, data.train.images.size
    name = config.own.augmentation
    return ImageShape(channels, size, settings_for(channels, size) if name == "auto" else name)


def ready(config: TrainConfig) -> Ready:
    """The encoder that ``config.encoder`` names; see :func:`.encoders.find_ready`.

    An image size of the options takes the place of the encoder's own.
    """
    assert config.encoder is not None
    own: ImageOptions = config.own
    network, shape, weights, stated = find_ready(config.encoder, own.width)
    if own.backbone not in ("auto", network):
        raise ValueError(
            f"expected --encoder without --backbone, got --backbone {own.backbone} as well; leave "
            "one of them out"
        )
    side, name = own.image_size or shape.image_size, own.augmentation
    seen = shape.seen * side // shape.image_size
    shape = replace(
        shape,
        image_size=side,
        middle=None if seen == side else seen,
        augmentation=settings_for(shape.channels, seen) if name == "auto" else name,
    )
    resolved = replace(config, own=replace(own, backbone=network, image_size=side))
    said = "" if stated else " (ImageNet's, as the encoder states none)"
    return Ready(resolved, shape, weights, f"images: {shape.preparation}{said}")


def build(config: TrainConfig, shape: ImageShape) -> tuple[nn.Module, nn.Sequential]:
    """Encoder and head."""
    options: ImageOptions = config.own
    encoder = make_encoder(
        options.backbone,
        channels=shape.channels,
        image_size=shape.seen,
        width=options.width,
        stem=options.stem,
    )
    # Channels last: a step of ResNet-18 of width 16 at 32 pixels takes 1/1.3 of the time.
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder, make_head(encoder, config)


def describe(config: TrainConfig, shape: ImageShape) -> str:
    """The encoder, in a few words."""
    return f"backbone {chosen_name(config.own.backbone, shape.seen)}, {shape.seen} px"


def faster(config: TrainConfig, shape: ImageShape) -> list[str]:
    """Options that make a run on a CPU take less time, as they are typed."""
    small = chosen_name(config.own.backbone, shape.image_size) == "small"
    smaller = [f"--image_size {SMALL_IMAGE}"] if shape.image_size > SMALL_IMAGE else []
    return ([] if small else ["--backbone small"]) + smaller


def fingerprint_of(data: ImageData) -> str:
    """Of all names and labels, and of all images or, where these are many, of some.

    Images in shards behind a URL are not read: the shards' tags stand for them.
    """
    images, labels = data.train.images, data.train.labels
    most = max(FINGERPRINTED, FINGERPRINTED_BYTES // (images.channels * images.size**2))
    tags: tuple[str, ...] = ()
    if isinstance(images, StreamedImages):
        tags = images.tags
        most = 0 if tags else FINGERPRINTED
    parts = evenly_spaced(len(images), most).split(512) if most else ()
    pixels = (images.batch(indices) for indices in parts)
    return fingerprint(chain([str(len(images)), labels], data.train.names, tags, pixels))


def indices_of(data: ImageData, config: TrainConfig, step: int) -> Tensor:
    """Which images a step uses, shape (batch_size,)."""
    images = data.train.images
    if config.stream is not None and isinstance(images, StreamedImages):
        return streamed(images.counts, config.batch_size, config.stream, config.seed, step)
    return permuted(len(images), config.batch_size, config.seed, step)


def ahead(data: ImageData, config: TrainConfig) -> int:
    """Steps in which a stream uses up a shard: so long before its use the next is fetched."""
    images = data.train.images
    if config.stream is None or not isinstance(images, StreamedImages):
        return 0
    lane = config.batch_size / min(config.stream, config.batch_size)  # its samples in a step
    return max(1, round(len(images) / len(images.shards) / lane))


def view(images: Tensor, settings: Augmentation, key: Tensor) -> Tensor:
    """One random view of each of some images (N, C, S, S), by their keys (N,)."""
    # In full precision, whatever the model computes in.
    with torch.autocast(device_type=images.device.type, enabled=False):
        return augment(images, settings, key)


def views(
    fetched: Tensor,
    indices: Tensor,
    model: Framework,
    config: TrainConfig,
    shape: ImageShape,
    epoch: int,
    streams: Sequence[int] = VIEWS,
) -> tuple[Tensor, ...]:
    """Two views of each image, and small crops where the framework asks for them."""
    small = replace(shape.settings, crop_scale=CROP_SCALE)
    side = max(4, round(CROP_SHARE * shape.seen))

    def made(stream: int, settings: Augmentation) -> Tensor:
        return view(fetched, settings, keys(config.seed, epoch, indices, stream))

    crops = [
        F.interpolate(made(CROPS + k, small), side, mode="bilinear", antialias=True)
        for k in range(model.crops)
    ]
    whole = [made(stream, shape.settings) for stream in streams]
    return tuple(one.to(model.dtype) for one in (*whole, *crops))


def embed(run: Trained, items: Any) -> Tensor:
    """Features of pictures, shape (n, F); see :func:`.items.read_items`."""
    shape = run.shape
    images = read_items(items, channels=shape.channels, size=shape.image_size)
    return features_of(run.encoder(), images, shape.settings)


@dataclass(frozen=True)
class ImagePiece:
    """Images that are read and decoded where they are embedded."""

    split: Split

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`unremix.domains.base.Piece`.

        Raises:
            FileNotFoundError: If this machine does not see a file.
        """
        for file in dict.fromkeys(self.split.source.files):
            if isinstance(file, str) and not os.path.exists(file):
                raise FileNotFoundError(
                    f"expected {file} on {os.uname().nodename}, found none; put --data on storage "
                    "that all nodes share, or name shards by their URL"
                )
        budget = len(self.split.names) * shape.channels * shape.image_size**2
        with quiet_pillow():
            images, skipped = store_images(
                self.split, Shape(shape.channels, shape.image_size), budget, None
            )
        found = set_features(encoder, images, shape.settings)
        return Features(found, images.names, images.labels, images.classes), skipped


def cut(run: Trained, source: Any, rows: int) -> Cut:
    """The images of a run, or others, in pieces of at most so many."""
    config = run.config
    found = find_splits(
        config.data if source is None else source,
        limit=config.limit if source is None else None,
        validation=config.validation if source is None else None,
    )
    known = all(split.labels is not None for split in found.splits)
    pieces = []
    for split in found.splits:
        labels = split.labels if known else None
        alike = replace(split, labels=labels, classes=found.splits[0].classes)
        pieces += [ImagePiece(alike.keep(some)) for some in ranges(len(split.names), rows)]
    identity = (one for piece in pieces for one in _identity(piece.split))
    return Cut(pieces, identity, found.skipped)


def _identity(split: Split) -> Iterator[str | Tensor]:
    """What distinguishes these images from others, even those of the same names."""
    yield from split.names
    yield repr((split.labels, split.classes))
    yield from map(_version, dict.fromkeys(split.source.files))
    if isinstance(split.source, ArraySource):
        yield torch.from_numpy(np.ascontiguousarray(split.source.array))


def _version(file: str | RemoteFile) -> str:
    """What changes when a file does, though not if it is moved."""
    if isinstance(file, RemoteFile):
        return f"{file.size} {file.tag}"
    if Path(file).is_relative_to(cache_folder()):
        return Path(file).parent.name  # made of its URL, size and tag
    status = os.stat(file)
    return f"{status.st_size} {status.st_mtime_ns}"


def _facts(run: Trained, data: ImageData) -> dict[str, Any]:
    """What the card of a run on images says beside the counts."""
    size = run.shape.image_size
    backbone = chosen_name(run.config.own.backbone, size)
    return {"skipped_files": len(data.skipped), "backbone": backbone, "image_size": size}


def _raw(run: Trained, data: ImageData) -> tuple[str, str | None]:
    """What is compared with the encoders, if it fits into memory."""
    fits = len(data.train) * run.shape.channels * run.shape.image_size**2 <= MOST_PIXELS
    return "pixels", None if fits else "left out: they would not fit into memory"


LABELED = Labeled(
    encode=lambda encoder, images, shape: set_features(encoder, images, shape.settings),
    layer="backbone output, before the projection head; eval mode; images not augmented",
    facts=_facts,
    raw=_raw,
)
