"""Images from the files a user has, as batches of one size.

:func:`load_images` reads every format into the same three steps: find the images and their labels
(``_read_*``), agree on one size and number of channels, and put them into a store that is either
decoded once (:class:`CachedImages`) or on demand (:class:`LazyImages`).
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import pickle
import posixpath
import re
import statistics
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from unremix.data.shards import (
    MAX_FILE_BYTES,
    Skipped,
    Span,
    Unusable,
    ZipSpan,
    expand_braces,
    read_shards,
    zip_members,
)

__all__ = [
    "CachedImages",
    "ImageData",
    "ImageSet",
    "ImageStore",
    "LazyImages",
    "Skipped",
    "load_images",
]

ACCEPTED = (
    "the word 'digits'; a folder of images or a zip of one; CIFAR-10/100 python pickles, as a "
    "folder or .tar.gz; a folder of MNIST-like idx files; an .npz with arrays images (and labels) "
    "or x_train, y_train, x_test, y_test; WebDataset shards, as a .tar, a folder of .tar files or "
    "a pattern like 'shards-{000..099}.tar'. A relative path is also looked up in the folder that "
    "the environment variable UNREMIX_DATA names"
)
# Only formats that Pillow decodes itself: for others, such as EPS, it would start a program.
FORMATS = frozenset(
    [
        *("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO"),
        *("PCX", "PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
    ]
)
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "val", "valid", "validation")
SIZE_SAMPLE = 200
DEFAULT_SIZE_RANGE = (8, 224)
HEADER_BYTES = 65536
CHUNK = 64

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
Result = TypeVar("Result")


class ImageStore(Protocol):
    """Images of one size: n images of C channels, S x S."""

    @property
    def channels(self) -> int:
        """C: 1 (grey) or 3 (RGB)."""

    @property
    def size(self) -> int:
        """S: height and width."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the images.

        Args:
            indices: Which, shape (B,), int64.

        Returns:
            Shape (B, C, S, S), uint8.
        """


@dataclass(frozen=True)
class CachedImages:
    """Images in memory.

    Args:
        images: Shape (n, C, S, S), uint8.
    """

    images: Tensor

    @property
    def channels(self) -> int:
        """C: 1 (grey) or 3 (RGB)."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """S: height and width."""
        return self.images.shape[2]

    def __len__(self) -> int:
        return self.images.shape[0]

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the images: indices of shape (B,) to uint8 of shape (B, C, S, S)."""
        return self.images[indices]


@dataclass(frozen=True)
class LazyImages:
    """Images that are decoded each time they are asked for, by several threads.

    An image whose header was sound at loading may still turn out to be corrupt. It then becomes
    black, and a `UserWarning` names it, once per image; ``failed`` counts them. Training for days
    should not end at one bad file, and a batch must keep its size.

    Args:
        source: Where the images come from.
        names: The name of each, for warnings.
        channels: C, 1 or 3.
        size: S.
        failed: Index and reason of each image that could not be decoded so far.
    """

    source: Source
    names: list[str]
    channels: int
    size: int
    failed: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the images: indices of shape (B,) to uint8 of shape (B, C, S, S)."""
        wanted = [range(len(self))[index] for index in indices.tolist()]
        images = torch.zeros(len(wanted), self.channels, self.size, self.size, dtype=torch.uint8)
        rows = images.numpy()

        def decode(row: int) -> str | None:
            return _decode_into(rows[row], self.source, wanted[row])

        self._report(wanted, _in_parallel(decode, len(wanted)))
        return images

    def _report(self, wanted: list[int], reasons: list[str | None]) -> None:
        new = {
            index: reason
            for index, reason in zip(wanted, reasons, strict=True)
            if reason is not None and index not in self.failed
        }
        if new:
            self.failed.update(new)
            names = [Skipped(self.names[index], reason) for index, reason in new.items()]
            warnings.warn(
                f"{len(self.failed)} of {len(self)} images could not be decoded so far and are "
                f"black; now {_enumerate(names)}",
                stacklevel=3,
            )


@dataclass(frozen=True)
class ImageSet:
    """n images with their names and, where known, labels.

    Args:
        images: The images.
        names: The path of each relative to the data, with ``/``; for arrays e.g. "train/00012".
        labels: The class of each, shape (n,), int64 in 0..k-1; None where unknown.
        classes: Names of the k classes; None where unknown.
    """

    images: ImageStore
    names: list[str]
    labels: Tensor | None
    classes: list[str] | None

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class ImageData:
    """What :func:`load_images` found.

    Args:
        train: Images to learn from.
        test: Images held out; None if the data has no split of its own.
        name: Short name of the data.
        skipped: Name and reason of all files that could not be used.
    """

    train: ImageSet
    test: ImageSet | None
    name: str
    skipped: tuple[Skipped, ...]


def load_images(
    data: str | Path = "digits",
    *,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    cache_bytes: int | None = None,
    progress: bool = False,
) -> ImageData:
    """Load images from any of the accepted formats.

    - ``digits``: the 1,797 handwritten digits of scikit-learn, a quarter of them held out.
    - A folder of images or a zip of one. First-level folders ``train`` (``training``) and ``test``
      (``val``, ``valid``, ``validation``) are a split; of several held-out folders the first with
      class folders counts. If all images of a split lie in at least two sub-folders, these are the
      classes. Folders that wrap everything else are looked through.
    - CIFAR-10 or CIFAR-100 python pickles, as a folder or ``.tar.gz``. Only arrays are unpickled;
      a pickle that asks for anything else is refused.
    - MNIST-like idx files, packed by gzip or not, in one folder.
    - ``.npz`` with ``images`` (and ``labels``), or ``x_train`` (``y_train``, ``x_test``,
      ``y_test``): (n, H, W), (n, H, W, C) or (n, C, H, W), in 0..255 or floats in [0, 1].
    - WebDataset shards: a ``.tar``, a folder of them or a pattern like ``shards-{000..099}.tar``.

    Every image is turned upright by its EXIF tag, reduced to its first frame, laid over white
    where it is transparent, brought to 8 bits (16 bits are divided by 257; other integers and
    floats scale by the smallest of 1, 255 and 65535 that holds their maximum, or else by their
    own range), cropped to its central square and resized to S x S with an antialiased bicubic
    filter. C is 1 if all images looked at are grey, else 3.

    Files that are no images, empty, corrupt or of more pixels than `PIL.Image.MAX_IMAGE_PIXELS`
    are left out; one `UserWarning` names some, and ``skipped`` of the result names all. Hidden
    files are ignored. Names are sorted, so the order is always the same.

    Args:
        data: What to load: a word, a path or a pattern. A path that does not exist is looked up
            in the folder that the environment variable ``UNREMIX_DATA`` names.
        image_size: S. By default the median short side of up to 200 images, within 8..224.
        channels: C, 1 or 3. By default 1 if all images looked at are grey, else 3.
        limit: At most so many images for training and for testing each, drawn with a fixed seed
            before anything is decoded; they stay in sorted order.
        cache_bytes: Memory for decoded images. What does not fit is decoded on demand, where only
            headers are checked now (see :class:`LazyImages`). By default half of the memory that
            is free now; processes that share a machine should share it here too.
        progress: Whether to show a progress bar on the terminal.

    Returns:
        The images for training and, if the data has a split, for testing.

    Raises:
        FileNotFoundError: If the data does not exist.
        ValueError: If the format is not accepted, no image is usable, or an option is not
            positive.

    Example:
        >>> digits = load_images("digits")
        >>> len(digits.train), len(digits.test)
        (1347, 450)
        >>> digits.train.images.batch(torch.tensor([0, 1])).shape
        torch.Size([2, 1, 8, 8])
    """
    _check_positive("image_size", image_size)
    _check_positive("limit", limit)
    if channels not in (None, 1, 3):
        raise ValueError(f"expected channels to be 1 or 3, received {channels}")
    with _quiet_pillow():
        found = _read(data)
    splits = [split.choose(limit) for split in found.splits]
    total = sum(len(split.names) for split in splits) + len(found.skipped)
    budget = _free_memory() // 2 if cache_bytes is None else cache_bytes
    skipped = list(found.skipped)
    sets: list[ImageSet] = []
    with _quiet_pillow():
        shape = _common_shape(splits[0].source, image_size)
        if channels is not None:
            shape = shape._replace(channels=channels)
        for title, split in zip(("train", "test"), splits, strict=False):
            images, bad = _store(split, shape, budget, f"{title} images" if progress else None)
            sets.append(images)
            skipped += bad
            budget -= _bytes(images.images)
    message = f"skipped {len(skipped)} of {total} files: {_enumerate(skipped)}"
    if not len(sets[0]):
        raise ValueError(
            f"expected at least one usable image for training in {data}, received none "
            f"({message if skipped else 'it is empty'}); accepted are {ACCEPTED}"
        )
    if skipped:
        warnings.warn(message, stacklevel=2)
    test = sets[1] if len(sets) > 1 and len(sets[1]) else None
    return ImageData(sets[0], test, found.name, tuple(skipped))


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"expected {name} of at least 1, received {value}; or leave it out")


def _enumerate(skipped: Sequence[Skipped], most: int = 5) -> str:
    """Files and reasons in words; beyond ``most``, only their number."""
    words = ", ".join(f"{name} ({reason})" for name, reason in skipped[:most])
    return words if len(skipped) <= most else f"{words} and {len(skipped) - most} more"


# ---- sources: images of any size and mode ----


class Source(Protocol):
    """Images as they were found, of any size and mode."""

    def __len__(self) -> int: ...

    def header(self, index: int) -> Image.Image:
        """The image with its size and mode, perhaps without pixels."""

    def open(self, index: int) -> Image.Image:
        """The image, whose pixels Pillow loads when they are asked for."""

    def choose(self, indices: Sequence[int]) -> Source:
        """Some of the images."""


@dataclass(frozen=True)
class FileSource:
    """Image files, on their own or in an archive."""

    spans: Sequence[Span | ZipSpan]

    def __len__(self) -> int:
        return len(self.spans)

    def header(self, index: int) -> Image.Image:
        """The image from its first bytes; from all where these do not suffice."""
        try:
            return _open_image(self.spans[index].read(HEADER_BYTES))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise
        except Exception:
            return self.open(index)

    def open(self, index: int) -> Image.Image:
        """The image from all its bytes."""
        return _open_image(self.spans[index].read())

    def choose(self, indices: Sequence[int]) -> FileSource:
        """Some of the files."""
        return FileSource([self.spans[index] for index in indices])


@dataclass(frozen=True)
class ArraySource:
    """Images in one array.

    Args:
        array: Shape (n, H, W) or (n, H, W, C) with C 3 or 4, uint8.
    """

    array: Pixels

    def __len__(self) -> int:
        return len(self.array)

    def header(self, index: int) -> Image.Image:
        """The image."""
        return self.open(index)

    def open(self, index: int) -> Image.Image:
        """The image."""
        return Image.fromarray(np.ascontiguousarray(self.array[index]))

    def choose(self, indices: Sequence[int]) -> ArraySource:
        """Some of the images; all of them without a copy."""
        if len(indices) == len(self):
            return self
        return ArraySource(self.array[list(indices)])

    def ready(self, shape: Shape) -> Tensor | None:
        """All images, shape (n, C, S, S), if they already are of this shape."""
        channels = 1 if self.array.ndim == 3 else self.array.shape[3]
        if (channels, *self.array.shape[1:3]) != (shape.channels, shape.size, shape.size):
            return None
        pixels = self.array.reshape(len(self), shape.size, shape.size, channels)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


@cache
def _formats() -> tuple[str, ...]:
    """The accepted formats that this build of Pillow can open, the common ones first."""
    Image.init()
    common = [name for name in ("JPEG", "PNG") if name in Image.OPEN]
    return (*common, *sorted(FORMATS & set(Image.OPEN) - set(common)))


@cache
def _suffixes() -> frozenset[str]:
    """File name endings of the accepted formats."""
    registered = Image.registered_extensions()
    return frozenset(suffix for suffix, name in registered.items() if name in FORMATS)


def _open_image(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=_formats())
    width, height = image.size
    most = Image.MAX_IMAGE_PIXELS
    # Pillow itself only warns up to twice the maximum.
    if most is not None and width * height > most:
        raise Image.DecompressionBombError
    if width * height == 0:
        raise Unusable("no pixels")
    return image


def _reason(error: Exception) -> str:
    """Why an image could not be used, in few words."""
    if isinstance(error, Unusable):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {Image.MAX_IMAGE_PIXELS} pixels"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return "truncated" if "truncat" in str(error).lower() else "corrupt"


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, which our own single warning replaces.

    Entered in the calling thread only, since filters belong to the whole process. Nothing depends
    on it but the silence: whether a warning is shown, ignored or raised, the file is judged alike.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


# ---- one size and mode for all ----


class Shape(NamedTuple):
    """C and S."""

    channels: int
    size: int


def _common_shape(source: Source, image_size: int | None) -> Shape:
    """The size and channels for all images, from a sample spread over the source."""
    count = min(len(source), SIZE_SAMPLE)
    sample = [index * len(source) // count for index in range(count)]
    headers = _headers(source, sample) or _headers(source, range(len(source)))
    if not headers:
        return Shape(1, DEFAULT_SIZE_RANGE[0])  # every image will be skipped, with its reason
    grey = all(_is_grey(mode) for _, mode in headers)
    low, high = DEFAULT_SIZE_RANGE
    median = int(statistics.median(side for side, _ in headers))
    return Shape(1 if grey else 3, image_size or min(max(median, low), high))


def _headers(source: Source, indices: Sequence[int]) -> list[tuple[int, str]]:
    """Short side and mode of those images that can be opened."""
    headers = []
    for index in indices:
        try:
            image = source.header(index)
        except Exception:
            continue  # met again, and reported, when the image is checked or decoded
        headers.append((min(image.size), image.mode))
    return headers


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")


def _decode_into(row: Pixels, source: Source, index: int) -> str | None:
    """Decode one image into a row of shape (C, S, S); return why it failed, or None."""
    channels, size = row.shape[:2]
    try:
        pixels = np.asarray(_unify(source.open(index), Shape(channels, size)))
    except Exception as error:  # Pillow's decoders raise almost anything on broken files
        return _reason(error)
    row[:] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
    return None


def _unify(image: Image.Image, shape: Shape) -> Image.Image:
    """An image of mode L or RGB, S x S: the central square, upright."""
    short = min(image.size)
    if short >= 4 * shape.size:
        # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the size leaves work for the filter.
        width, height = image.size
        image.draft(None, (2 * shape.size * width // short, 2 * shape.size * height // short))
    image.load()
    with suppress(Exception):  # a broken tag says nothing, and the pixels are sound
        ImageOps.exif_transpose(image, in_place=True)
    sixteen_bits = image.mode.startswith("I;16") or (
        # What Pillow makes of 16 bits in these formats.
        image.mode == "I" and image.format in ("PNG", "PPM")
    )
    # Cropped before it is resized, an image of 20000 x 10 never becomes one of 448000 x 224.
    image = _eight_bits(_central_square(image), 65535 if sixteen_bits else None)
    mode = "L" if shape.channels == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    size = (shape.size, shape.size)
    if image.size == size:
        return image
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def decode_image(item: str | Path | Image.Image, *, channels: int, size: int) -> Tensor:
    """One image as it would be loaded with others.

    Args:
        item: A file, or an image already opened.
        channels: C.
        size: S.

    Returns:
        uint8, shape (C, S, S).

    Raises:
        ValueError: If it is no usable image.
    """
    try:
        opened = item if isinstance(item, Image.Image) else _open_image(Path(item).read_bytes())
        pixels = np.array(_unify(opened, Shape(channels, size)))
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"expected a usable image, received {item} ({_reason(error)}); leave it out"
        ) from error
    decoded = torch.from_numpy(pixels)
    return decoded[None] if channels == 1 else decoded.permute(2, 0, 1)


def _central_square(image: Image.Image) -> Image.Image:
    width, height = image.size
    if width == height:
        return image
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _eight_bits(image: Image.Image, maximum: int | None) -> Image.Image:
    """An image of 8 bits per channel, white where it was transparent."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scale(image, maximum)
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), clear)
    return image


def _scale(image: Image.Image, maximum: int | None) -> Image.Image:
    """A grey image of many values as mode L, so that ``maximum`` becomes 255.

    Without a maximum it is the smallest of 1 (for floats), 255 and 65535 that holds all values; if
    none does, the image's own range is stretched.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    low, high = 0.0, float(values.max())
    if maximum is None:
        maxima = (1, 255, 65535) if image.mode == "F" else (255, 65535)
        maximum = next((most for most in maxima if high <= most), None)
        if maximum is None or values.min() < 0:
            low, maximum = float(values.min()), None
    span = (high - low if maximum is None else maximum) or 1.0
    return Image.fromarray(np.rint((values - low) * 255 / span).astype(np.uint8))


# ---- stores ----


def _store(
    split: Split, shape: Shape, budget: int, title: str | None
) -> tuple[ImageSet, list[Skipped]]:
    """The images of a split, cached if they fit into the budget; and those that are not usable."""
    images: ImageStore | None = None
    reasons: list[str | None]
    ready = split.source.ready(shape) if isinstance(split.source, ArraySource) else None
    if ready is not None:
        images, reasons = CachedImages(ready), [None] * len(ready)
    elif len(split.source) * shape.channels * shape.size**2 <= budget:
        images, reasons = _decode_all(split.source, shape, title)
    else:
        reasons = _check_all(split.source, title)
    bad = [
        Skipped(name, reason)
        for name, reason in zip(split.names, reasons, strict=True)
        if reason is not None
    ]
    split = split.keep([index for index, reason in enumerate(reasons) if reason is None])
    if images is None:
        images = LazyImages(split.source, split.names, *shape)
    labels = None if split.labels is None else torch.tensor(split.labels, dtype=torch.int64)
    return ImageSet(images, split.names, labels, split.classes), bad


def _decode_all(
    source: Source, shape: Shape, title: str | None
) -> tuple[CachedImages, list[str | None]]:
    """All usable images, and for each image of the source why it is not usable."""
    images = torch.empty(len(source), shape.channels, shape.size, shape.size, dtype=torch.uint8)
    rows = images.numpy()

    def decode(index: int) -> str | None:
        return _decode_into(rows[index], source, index)

    reasons = _in_parallel(decode, len(source), title and f"decoding {title}")
    kept = torch.tensor([i for i, reason in enumerate(reasons) if reason is None], dtype=torch.long)
    if len(kept) < len(source):
        # Close the gaps piece by piece, since there may be no memory for a second copy. A row only
        # ever moves to the front, so nothing is overwritten before it is read.
        for first in range(0, len(kept), CHUNK):
            part = kept[first : first + CHUNK]
            images[first : first + len(part)] = images[part]
    return CachedImages(images[: len(kept)]), reasons


def _check_all(source: Source, title: str | None) -> list[str | None]:
    """For each image why its header is not sound, or None."""

    def check(index: int) -> str | None:
        try:
            source.header(index)
        except Exception as error:  # Pillow's plugins raise almost anything on broken files
            return _reason(error)
        return None

    return _in_parallel(check, len(source), title and f"checking {title}")


def _in_parallel(
    function: Callable[[int], Result], count: int, title: str | None = None
) -> list[Result]:
    """``function`` of 0..count-1, by as many threads as there are processors.

    Pillow decodes and resizes without holding the interpreter's lock.
    """
    workers = _processors()
    # A few chunks per thread balance the load; few calls per chunk would cost more than they do.
    step = max(1, min(CHUNK, count // (4 * workers)))
    chunks = [range(first, min(first + step, count)) for first in range(0, count, step)]
    results: list[Result] = []
    pool = ThreadPoolExecutor(workers)
    try:
        with _progress_bar(title, count) as advance:
            for part in pool.map(lambda chunk: [function(index) for index in chunk], chunks):
                results += part
                advance(len(part))
    finally:
        pool.shutdown(cancel_futures=True)
    return results


@contextmanager
def _progress_bar(title: str | None, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal with the time that remains; nothing without a title."""
    if title is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_memory() -> int:
    """Bytes of memory that are free or can be freed; 4 GiB where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
        return int(re.findall(r"MemAvailable:\s+(\d+) kB", text)[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def _bytes(store: ImageStore) -> int:
    """Memory that the decoded images take."""
    return store.images.numel() if isinstance(store, CachedImages) else 0


# ---- formats: where the images and labels are ----


@dataclass(frozen=True)
class Split:
    """Images of a split before they are decoded.

    Args:
        names: The name of each image.
        source: The images.
        labels: The class of each, in 0..k-1; None where unknown.
        classes: Names of the k classes; None where unknown.
    """

    names: list[str]
    source: Source
    labels: list[int] | None = None
    classes: list[str] | None = None

    def keep(self, indices: Sequence[int]) -> Split:
        """Some of the images."""
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        names = [self.names[index] for index in indices]
        return Split(names, self.source.choose(indices), labels, self.classes)

    def choose(self, limit: int | None) -> Split:
        """At most ``limit`` images, drawn with a fixed seed, in their order here."""
        if limit is None or limit >= len(self.names):
            return self
        order = torch.randperm(len(self.names), generator=torch.Generator().manual_seed(0))
        return self.keep(sorted(order[:limit].tolist()))


@dataclass(frozen=True)
class Found:
    """What a format yields: a split for training, perhaps one for testing."""

    name: str
    splits: list[Split]
    skipped: Sequence[Skipped] = ()


def _read(data: str | Path) -> Found:
    """Recognise the format and find the images."""
    if str(data) == "digits":
        return _read_digits()
    if "{" in str(data) and not Path(data).exists():
        return _read_pattern(str(data))
    path = _locate(data)
    if path.is_dir():
        return _read_folder(path)
    name, suffix = _name_and_suffix(path)
    if suffix == ".zip":
        return _read_tree(name, *_zip_files(path))
    if suffix == ".npz":
        return _read_npz(name, path)
    if suffix in (".tar.gz", ".tgz"):
        return _read_cifar(name, _tar_pickles(path), path)
    if suffix == ".tar":
        return _read_shards(name, [(path.name, path)])
    raise ValueError(f"expected one of: {ACCEPTED}; received the file {path}")


def _locate(data: str | Path) -> Path:
    """The path, or the one of that name below UNREMIX_DATA."""
    candidates = [Path(data).expanduser()]
    root = os.environ.get("UNREMIX_DATA")
    if root and not candidates[0].is_absolute():
        candidates.append(Path(root).expanduser() / data)
    for path in candidates:
        if path.exists():
            return path
    looked = " or ".join(str(path) for path in candidates)
    raise FileNotFoundError(
        f"expected {looked} to exist, received a path to nothing"
        f"{'' if root else ' (UNREMIX_DATA is not set)'}; accepted are {ACCEPTED}"
    )


def _name_and_suffix(path: Path) -> tuple[str, str]:
    for suffix in (".zip", ".npz", ".tar.gz", ".tgz", ".tar"):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)], suffix
    return path.name, ""


def _index_names(split: str, count: int) -> list[str]:
    return [f"{split}/{index:05d}" for index in range(count)]


def _read_digits() -> Found:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), 16 is black ink
    parts = train_test_split(
        np.arange(len(pixels)), test_size=0.25, random_state=0, stratify=digits.target
    )
    classes = [str(digit) for digit in range(10)]
    splits = []
    for title, part in zip(("train", "test"), map(np.sort, parts), strict=True):
        names = _index_names(title, len(part))
        source = ArraySource(pixels[part])
        splits.append(Split(names, source, digits.target[part].tolist(), classes))
    return Found("digits", splits)


def _number(values: Sequence[Sequence[Any] | None]) -> tuple[list[list[int] | None], list[str]]:
    """Labels 0..k-1 for the values of each split, and the k names.

    The sorted values of the first split come first, so that it defines the labels; then those that
    only later splits have.
    """
    classes: list[Any] = []
    for part in values:
        classes += sorted(set(part or ()) - set(classes))
    number = {value: index for index, value in enumerate(classes)}
    labels = [None if part is None else [number[value] for value in part] for part in values]
    return labels, [str(value) for value in classes]


def _labelled(
    splits: Sequence[tuple[list[str], Source]], values: Sequence[Sequence[Any] | None]
) -> list[Split]:
    labels, classes = _number(values)
    return [
        Split(names, source, part, None if part is None else classes)
        for (names, source), part in zip(splits, labels, strict=True)
    ]


# ---- folders and zips of images ----

Files = list[tuple[str, Span | ZipSpan]]


def _read_folder(folder: Path) -> Found:
    """A folder in one of the formats; one that holds nothing but one folder is looked through."""
    name = folder.resolve().name
    inner = folder
    while True:
        entries = sorted(entry for entry in inner.iterdir() if not entry.name.startswith("."))
        files = {entry.name: entry for entry in entries if entry.is_file()}
        if "data_batch_1" in files or {"train", "test", "meta"} <= set(files):
            pickles = {key: files[key].read_bytes() for key in CIFAR_FILES if key in files}
            return _read_cifar(name, pickles, folder)
        if any(IDX_NAME.fullmatch(file) for file in files):
            return _read_idx(name, files)
        shards = [(key, path) for key, path in files.items() if path.suffix.lower() == ".tar"]
        if shards:
            return _read_shards(name, shards)
        if len(entries) != 1 or not entries[0].is_dir():
            return _read_tree(name, *_folder_files(folder))
        inner = entries[0]


def _folder_files(folder: Path) -> tuple[Files, list[Skipped]]:
    """All files below a folder. Links are followed, except those back to where they come from."""
    files: Files = []
    skipped: list[Skipped] = []

    def unreadable(error: OSError) -> None:
        name = Path(error.filename).relative_to(folder).as_posix()
        skipped.append(Skipped(name, _reason(error)))

    for root, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        folders[:] = [name for name in folders if not _is_ignored(Path(root, name))]
        for file in names:
            path = Path(root, file)
            name = path.relative_to(folder).as_posix()
            try:
                status = path.stat()
            except OSError as error:
                skipped.append(Skipped(name, _reason(error)))
                continue
            if S_ISREG(status.st_mode):  # to open a pipe would wait for ever
                files.append((name, Span(str(path), 0, status.st_size)))
            else:
                skipped.append(Skipped(name, "not a file"))
    return files, skipped


def _is_ignored(folder: Path) -> bool:
    """Whether a folder is hidden, or a link to a folder that it lies in."""
    if folder.name.startswith("."):
        return True
    here = folder.parent.resolve()
    return folder.is_symlink() and folder.resolve() in (here, *here.parents)


def _zip_files(path: Path) -> tuple[Files, list[Skipped]]:
    files: Files = []
    skipped: list[Skipped] = []
    for name, span in zip_members(path):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            skipped.append(Skipped(name, "leads out of the zip"))
        else:
            files.append(("/".join(parts), span))
    return files, skipped


def _read_tree(name: str, files: Files, skipped: list[Skipped]) -> Found:
    """A tree of image files: its splits and classes follow from the folders."""
    images: dict[str, Span | ZipSpan] = {}
    for file, span in sorted(files):
        if any(part.startswith(".") or part == "__MACOSX" for part in file.split("/")):
            continue
        if _is_image(file, span):
            images[file] = span
        else:
            skipped.append(Skipped(file, "empty" if span.size == 0 else "not an image"))
    depth = _shared_folders(list(images))
    parts, outside = _split_by_folder(list(images), depth)
    skipped += [Skipped(file, "outside the folders for train and test") for file in outside]
    values: list[list[str] | None] = []
    for names, base in parts:
        # Test images of a single class still have labels if the training images have.
        fewest = 1 if values and values[0] is not None else 2
        values.append(_class_folders(names, base, fewest))
    sources = [(names, FileSource([images[file] for file in names])) for names, _ in parts]
    return Found(name, _labelled(sources, values), skipped)


def _is_image(name: str, span: Span | ZipSpan) -> bool:
    """Judged by the end of the name; by the content where the name has no end."""
    suffix = posixpath.splitext(name)[1].lower()
    if suffix:
        return suffix in _suffixes()
    try:
        FileSource([span]).header(0)
    except Exception as error:
        return _reason(error).startswith("more than")  # an image, to be refused as too large
    return True


def _shared_folders(names: list[str]) -> int:
    """How many folders, from the top, all files have in common."""
    folders = [name.split("/")[:-1] for name in names]
    if not folders:
        return 0
    # What the first and the last in sorted order share, all in between share as well.
    pairs = zip(min(folders), max(folders), strict=False)
    shared = [first == last for first, last in pairs]
    return shared.index(False) if False in shared else len(shared)


def _split_by_folder(names: list[str], depth: int) -> tuple[list[tuple[list[str], int]], list[str]]:
    """Train and test by the folders at ``depth``, each with the depth of what it holds.

    Returns:
        Names and depth of each split, all names as one split if there are no two; and the names
        that belong to none.
    """
    folders: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        folders.setdefault(parts[depth].lower() if len(parts) > depth + 1 else "", []).append(name)
    train = next((folders.pop(key) for key in TRAIN_FOLDERS if key in folders), None)
    held_out = [key for key in TEST_FOLDERS if key in folders]
    if train is None or not held_out:
        return [(names, depth)], []
    classes = [key for key in held_out if _class_folders(folders[key], depth + 1, 2)]
    test = folders.pop((classes or held_out)[0])
    outside = [name for rest in folders.values() for name in rest]
    return [(train, depth + 1), (test, depth + 1)], outside


def _class_folders(names: list[str], depth: int, fewest: int) -> list[str] | None:
    """The folder at ``depth`` of each file, if all have one and there are enough of them."""
    parts = [name.split("/") for name in names]
    if any(len(part) <= depth + 1 for part in parts):
        return None
    folders = [part[depth] for part in parts]
    return folders if len(set(folders)) >= fewest else None


# ---- WebDataset shards ----


def _read_pattern(pattern: str) -> Found:
    """Shards named by a pattern with braces; all must exist."""
    shards = [(Path(name).name, _locate(name)) for name in expand_braces(pattern)]
    name = Path(pattern).name.split("{")[0].rstrip("-_.") or "shards"
    return _read_shards(name, shards)


def _read_shards(name: str, shards: list[tuple[str, Path]]) -> Found:
    samples, skipped = read_shards(shards)
    labels = [sample.label for sample in samples if sample.label is not None]
    if labels and len(labels) < len(samples):
        warnings.warn(
            f"expected all samples of {name} or none to have a label, received "
            f"{len(samples) - len(labels)} of {len(samples)} without; all labels are ignored",
            stacklevel=4,
        )
    source = FileSource([sample.image for sample in samples])
    complete = labels if labels and len(labels) == len(samples) else None
    splits = _labelled([([sample.name for sample in samples], source)], [complete])
    return Found(name, splits, skipped)


# ---- CIFAR pickles ----

CIFAR_TRAIN = ("train", *(f"data_batch_{number}" for number in range(1, 6)))
CIFAR_TEST = ("test", "test_batch")
CIFAR_FILES = (*CIFAR_TRAIN, *CIFAR_TEST, "meta", "batches.meta")


def _tar_pickles(path: Path) -> dict[str, bytes]:
    """The CIFAR files in a compressed tar, read into memory."""
    pickles: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = posixpath.basename(member.name)
                if not member.isreg() or name not in CIFAR_FILES or member.size > MAX_FILE_BYTES:
                    continue
                file = archive.extractfile(member)
                assert file is not None
                pickles[name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(
            f"expected a .tar.gz of CIFAR pickles, received {path} ({error}); download it again"
        ) from error
    return pickles


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, text and numbers, and refuses whatever else a pickle asks for by name."""

    def find_class(self, module: str, name: str) -> Any:
        """The few things that CIFAR's files need."""
        if name == "_reconstruct" and re.fullmatch(r"numpy\._?core\.multiarray", module):
            return np.empty(0).__reduce__()[0]
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _encode_latin1,
            ("builtins", "bytes"): bytes,
            ("__builtin__", "bytes"): bytes,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """How a pickle of protocol 2 writes bytes; no other codec is needed."""
    if codecs.lookup(encoding).name != "iso8859-1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding}, which is not allowed")
    return text.encode("latin1")


def _unpickle(name: str, data: bytes) -> Mapping[str, Any]:
    problem: object
    try:
        content = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a broken pickle can raise anything
        problem = error
    else:
        if isinstance(content, dict):
            return {
                key.decode("latin1") if isinstance(key, bytes) else key: value
                for key, value in content.items()
            }
        problem = f"it holds a {type(content).__name__}"
    raise ValueError(
        f"expected a CIFAR pickle with arrays and labels only, received {name}: {problem}; "
        "download the official python version again"
    )


def _read_cifar(name: str, pickles: Mapping[str, bytes], path: Path) -> Found:
    train = [key for key in CIFAR_TRAIN if key in pickles]
    if not train:
        raise ValueError(
            f"expected CIFAR pickles (data_batch_1 .. data_batch_5 or train), received {path} "
            f"without; accepted are {ACCEPTED}"
        )
    absent = [] if train == ["train"] else [key for key in CIFAR_TRAIN[1:] if key not in pickles]
    classes = _cifar_classes(pickles)
    splits = []
    for title, keys in (("train", train), ("test", [key for key in CIFAR_TEST if key in pickles])):
        batches = [_cifar_batch(key, _unpickle(key, pickles[key])) for key in keys]
        if batches:
            array = np.concatenate([images for images, _ in batches])
            labels = [label for _, part in batches for label in part]
            splits.append(
                Split(_index_names(title, len(array)), ArraySource(array), labels, classes)
            )
    most = max(max(split.labels or [0]) for split in splits)
    if classes is None:
        names = [str(label) for label in range(most + 1)]
        splits = [Split(part.names, part.source, part.labels, names) for part in splits]
    elif most >= len(classes):
        raise ValueError(
            f"expected labels below {len(classes)}, the number of class names in {path}, received "
            f"{most}; the files belong to different data sets"
        )
    return Found(name, splits, [Skipped(key, "missing") for key in absent])


def _cifar_classes(pickles: Mapping[str, bytes]) -> list[str] | None:
    for key, field_name in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        if key in pickles:
            names = _unpickle(key, pickles[key]).get(field_name)
            if isinstance(names, list) and names:
                return [n.decode("latin1") if isinstance(n, bytes) else str(n) for n in names]
    return None


def _cifar_batch(name: str, batch: Mapping[str, Any]) -> tuple[Pixels, list[int]]:
    """Images of shape (n, 32, 32, 3), and labels."""
    data = batch.get("data")
    labels = batch.get("fine_labels", batch.get("labels"))
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != 3072
        or not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(isinstance(label, int) and label >= 0 for label in labels)
    ):
        raise ValueError(
            f"expected data of shape (n, 3072), uint8, and n labels in {name}, received "
            f"{getattr(data, 'shape', type(data).__name__)} and fields {sorted(map(str, batch))}; "
            "download the official python version again"
        )
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


# ---- idx files ----

IDX_NAME = re.compile(
    r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?"
)


def _read_idx(name: str, files: Mapping[str, Path]) -> Found:
    # In sorted order the unpacked file comes before the packed one, and counts.
    found: dict[tuple[str, str], Path] = {}
    prefixes = set()
    for file, path in files.items():
        match = IDX_NAME.fullmatch(file)
        if match:
            prefixes.add(match["prefix"])
            split = "train" if match["split"] == "train" else "test"
            found.setdefault((split, match["kind"]), path)
    if len(prefixes) > 1 or ("train", "images") not in found:
        raise ValueError(
            "expected the idx files of one data set with train-images-idx3-ubyte, received "
            f"{', '.join(sorted(file for file in files if IDX_NAME.fullmatch(file)))}; put each "
            "data set into a folder of its own"
        )
    splits, values = [], []
    for split in ("train", "test"):
        if (split, "images") in found:
            images = _idx_array(found[split, "images"], 3)
            splits.append((_index_names(split, len(images)), ArraySource(images)))
            values.append(_idx_labels(found.get((split, "labels")), len(images)))
    return Found(name, _labelled(splits, values))


def _idx_labels(path: Path | None, count: int) -> list[int] | None:
    if path is None:
        return None
    labels: list[int] = _idx_array(path, 1).tolist()
    if len(labels) != count:
        raise ValueError(
            f"expected {count} labels in {path}, one for each image, received {len(labels)}; "
            "download the files again"
        )
    return labels


def _idx_array(path: Path, dimensions: int) -> Pixels:
    """The array in an idx file of bytes, shape (n, H, W) or (n,)."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            data = file.read()
    except (OSError, EOFError, struct.error) as error:
        magic, shape, data = b"", (), str(error).encode()
    if magic != bytes((0, 0, 8, dimensions)) or len(data) != int(np.prod(shape, dtype=object)):
        raise ValueError(
            f"expected an idx file of bytes in {dimensions} dimensions, received {path}, whose "
            f"header {magic.hex() or 'cannot be read'} and shape {shape} do not match its length; "
            "download it again"
        )
    # Of a bytearray, since the array of immutable bytes could not be written to.
    return np.frombuffer(bytearray(data), dtype=np.uint8).reshape(shape)


# ---- npz ----


def _read_npz(name: str, path: Path) -> Found:
    arrays = _npz_arrays(path)
    if "x_train" in arrays:
        keys = [("train", "x_train", "y_train"), ("test", "x_test", "y_test")]
    elif "images" in arrays:
        keys = [("train", "images", "labels")]
    else:
        raise ValueError(
            "expected an array named images or x_train, received "
            f"{', '.join(sorted(arrays)) or 'none'} in {path}; rename it with numpy.savez"
        )
    splits, values = [], []
    for split, images_key, labels_key in keys:
        if images_key in arrays:
            images = _image_array(arrays[images_key], images_key)
            splits.append((_index_names(split, len(images)), ArraySource(images)))
            values.append(_label_values(arrays.get(labels_key), labels_key, len(images)))
    return Found(name, _labelled(splits, values))


def _npz_arrays(path: Path) -> dict[str, Array]:
    wanted = {"images", "labels", "x_train", "y_train", "x_test", "y_test"}
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no zip of arrays")
        with np.load(path, allow_pickle=False) as file:
            # The others are only named in an error, and not read.
            return {key: np.asarray(file[key] if key in wanted else ()) for key in file.files}
    except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(
            f"expected an .npz of plain arrays, received {path} ({error}); write it with "
            "numpy.savez, without objects"
        ) from error


def _image_array(array: Array, key: str) -> Pixels:
    """Any accepted array as uint8 of shape (n, H, W) or (n, H, W, C) with C 3 or 4."""
    depths = (1, 3, 4)
    if array.ndim == 4 and array.shape[3] not in depths and array.shape[1] in depths:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in depths):
        raise ValueError(
            f"expected {key} of shape (n, H, W), (n, H, W, C) or (n, C, H, W) with C 1, 3 or 4, "
            f"received {array.shape}; reshape it"
        )
    return _bytes_of(array, key)


def _bytes_of(array: Array, key: str) -> Pixels:
    """Values in 0..255, or truth values and floats in [0, 1] times 255, as uint8."""
    if array.dtype == np.uint8 or not array.size:
        return array.astype(np.uint8, copy=False)
    unit = array.dtype.kind in "bf"
    numbers = array.dtype.kind in "biuf"
    # Written so that NaN fails as well.
    if not (numbers and array.min() >= 0 and array.max() <= (1 if unit else 255)):
        received = f"{array.dtype} from {array.min()} to {array.max()}" if numbers else array.dtype
        raise ValueError(
            f"expected {key} with integers in 0..255 or floats in [0, 1], received {received}; "
            "scale it first"
        )
    scaled: Pixels = (np.rint(array * 255.0) if unit else array).astype(np.uint8)
    return scaled


def _label_values(labels: Array | None, key: str, count: int) -> list[Any] | None:
    if labels is None:
        return None
    if labels.size != count or labels.shape[0] != count or labels.dtype.kind not in "iubU":
        raise ValueError(
            f"expected {key} with {count} integers or names, one for each image, received "
            f"{labels.dtype} of shape {labels.shape}"
        )
    values: list[Any] = labels.reshape(-1).tolist()
    return values
