"""Images as a reader finds them, in splits; and one of any size and mode as bytes of one size."""

from __future__ import annotations

import io
import statistics
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Condition
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from unremix.files.archives import RemoteSpan, Skipped, Span, Unusable, ZipSpan
from unremix.files.atomic_files import read_bytes
from unremix.files.remote import RemoteFile

# Only formats that Pillow decodes itself: for others, such as EPS, it would start a program.
FORMATS = frozenset(
    [
        *("AVIF", "BMP", "DIB", "GIF", "HEIF", "ICO", "JPEG", "JPEG2000", "MPO"),
        *("PCX", "PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
    ]
)
SIZE_SAMPLE = 200
GRAY = frozenset(["1", "L", "LA", "La", "I", "F"])  # modes of Pillow; those of 16 bits come on top
DEFAULT_SIZE_RANGE = (8, 224)
HEADER_BYTES = 65536
PIXEL_BYTES = 10  # memory that decoding takes for each pixel, at most
STRIP = 2**20  # pixels that are converted at a time
HEIF_SUFFIXES = frozenset([".heic", ".heif", ".hif"])
HEIF_BRANDS = frozenset([b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"])
NEEDS_HEIF = "HEIC needs a plugin of Pillow: pip install pillow-heif"
ACCEPTED = (
    "the word 'digits'; a folder of images or a zip of one; CIFAR-10/100 python pickles, as a "
    "folder or .tar.gz; a folder of MNIST-like idx files; an .npz with arrays images (and labels) "
    "or x_train, y_train, x_test, y_test; WebDataset shards, as a .tar, a folder of .tar files or "
    "a pattern like 'shards-{000..099}.tar'. A relative path is also looked up in the folder that "
    "the environment variable UNREMIX_DATA names"
)

IMAGES = (
    "accepted are digits, a folder or zip of images, CIFAR or idx files, .npz and WebDataset shards"
)
Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FileSource:
    """Image files, on their own or in an archive."""

    spans: Sequence[Span | RemoteSpan | ZipSpan]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def files(self) -> list[str | RemoteFile]:
        """The file or archive that each lies in."""
        return [one.file if isinstance(one, RemoteSpan) else one.path for one in self.spans]

    def header(self, index: int) -> Image.Image:
        """The image from its first bytes, or from all if those are not enough."""
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
    spans: ClassVar[tuple[()]] = ()
    files: ClassVar[tuple[()]] = ()

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


Source = FileSource | ArraySource
"""Images as they were found, of any size and mode."""


@dataclass(frozen=True)
class Split:
    """Images of a split before they are decoded.

    Args:
        names: The name of each image.
        source: The images.
        labels: The class of each, in 0..k-1, or as :func:`labeled` takes it; None if unknown.
        classes: Names of the k classes; None if unknown.
    """

    names: list[str]
    source: Source
    labels: Sequence[Any] | None = None
    classes: list[str] | None = None

    def keep(self, indices: Sequence[int]) -> Split:
        """Some of the images."""
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        names = [self.names[index] for index in indices]
        return Split(names, self.source.choose(indices), labels, self.classes)

    def divided(self, share: float) -> list[Split]:
        """These images without a share of them, drawn with a fixed seed, and that share."""
        order = torch.randperm(len(self.names), generator=torch.Generator().manual_seed(1))
        cut = round(share * len(self.names))
        return [self.keep(sorted(order[cut:].tolist())), self.keep(sorted(order[:cut].tolist()))]


@dataclass(frozen=True)
class ImageSplits:
    """The splits of a data set: one for training, perhaps one for testing."""

    name: str
    splits: list[Split]
    skipped: Sequence[Skipped] = ()


def of_array(title: str, images: Pixels, labels: Sequence[Any] | None = None) -> Split:
    """Images in an array, which are named by their numbers."""
    names = [f"{title}/{index:05d}" for index in range(len(images))]
    return Split(names, ArraySource(images), labels)


def labeled(splits: Sequence[Split]) -> list[Split]:
    """Splits whose labels, any values that can be sorted, become 0..k-1 through all of them.

    The sorted values of the first split come first, so that it defines the labels; then those that
    only later splits have.
    """
    classes: list[Any] = []
    for split in splits:
        classes += sorted(set(split.labels or ()) - set(classes))
    number = {value: index for index, value in enumerate(classes)}
    names = [str(value) for value in classes]
    return [
        split
        if split.labels is None
        else replace(split, labels=[number[value] for value in split.labels], classes=names)
        for split in splits
    ]


@cache
def _register_plugins() -> None:
    """Let Pillow know its own formats, and HEIC where pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()


@cache
def _formats() -> tuple[str, ...]:
    """The accepted formats that this installation of Pillow can open, the common ones first."""
    _register_plugins()
    common = [name for name in ("JPEG", "PNG") if name in Image.OPEN]
    return (*common, *sorted(FORMATS & set(Image.OPEN) - set(common)))


@cache
def suffixes() -> frozenset[str]:
    """File name endings of the accepted formats."""
    _register_plugins()
    registered = Image.registered_extensions()
    return frozenset(suffix for suffix, name in registered.items() if name in FORMATS)


def _open_image(data: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError as error:
        if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS and "HEIF" not in Image.OPEN:
            raise Unusable(NEEDS_HEIF) from error
        raise
    width, height = image.size
    most = Image.MAX_IMAGE_PIXELS
    # Pillow itself only warns up to twice the maximum.
    if most is not None and width * height > most:
        raise Image.DecompressionBombError
    if width * height == 0:
        raise Unusable("no pixels")
    return image


def reason_for(error: Exception) -> str:
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
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, which our own single warning replaces.

    Entered in the calling thread only, since filters belong to the whole process. It only
    silences: whether a warning is shown, ignored or raised, the file is judged the same way.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


class Shape(NamedTuple):
    """C and S."""

    channels: int
    size: int


def common_shape(source: Source, image_size: int | None) -> Shape:
    """The size and channels for all images, from a sample spread over the source."""
    count = min(len(source), SIZE_SAMPLE)
    sample = [index * len(source) // count for index in range(count)]
    headers = _headers(source, sample) or _headers(source, range(len(source)))
    if not headers:
        return Shape(1, DEFAULT_SIZE_RANGE[0])  # every image will be skipped, with its reason
    gray = all(mode in GRAY or mode.startswith("I;16") for _, mode in headers)
    low, high = DEFAULT_SIZE_RANGE
    median = int(statistics.median(side for side, _ in headers))
    return Shape(1 if gray else 3, image_size or min(max(median, low), high))


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


def decode_into(row: Pixels | None, source: Source, index: int) -> str | None:
    """Decode one image into a row of shape (C, S, S); return why it failed, or None.

    Without a row, only its header is read.

    Raises:
        ConnectionError: If it lies behind a URL that cannot be read in several attempts.
    """
    try:
        if row is None:
            source.header(index)
        else:
            row[:] = _pixels(source.open(index), Shape(*row.shape[:2]))
    except ConnectionError:  # the image may be sound; its reader should try again later
        raise
    except Exception as error:  # Pillow's decoders raise almost anything on broken files
        return reason_for(error)
    return None


class Gate:
    """Lets threads work on as many images at once as memory allows; one at least.

    Args:
        most: Bytes that all of them may take.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.changed = Condition()

    @contextmanager
    def admit(self, size: int) -> Iterator[None]:
        """Wait until there is memory for ``size`` bytes, or until nobody else has any."""
        with self.changed:
            self.changed.wait_for(lambda: not self.used or self.used + size <= self.most)
            self.used += size
        try:
            yield
        finally:
            with self.changed:
                self.used -= size
                self.changed.notify_all()


GATE = Gate(2**29)


def _pixels(image: Image.Image, shape: Shape) -> Pixels:
    """An opened image as (C, S, S); a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size."""
    width, height = image.size
    short, size = min(width, height), shape.size
    if short >= 4 * size:  # twice the size leaves work for the filter
        image.draft(None, (2 * size * width // short, 2 * size * height // short))
    with GATE.admit(PIXEL_BYTES * image.width * image.height):
        pixels = np.array(_unify(image, shape))
    return pixels[None] if shape.channels == 1 else pixels.transpose(2, 0, 1)


def _unify(image: Image.Image, shape: Shape) -> Image.Image:
    """An image of mode L or RGB, S x S: the central square, upright, white where transparent."""
    image.load()
    with suppress(Exception):  # a broken tag says nothing, and the pixels are sound
        ImageOps.exif_transpose(image, in_place=True)
    sixteen_bits = image.mode.startswith("I;16") or (
        # What Pillow makes of 16 bits in these formats.
        image.mode == "I" and image.format in ("PNG", "PPM")
    )
    # Cropped before it is resized, an image of 20000 x 10 never becomes one of 448000 x 224.
    width, height = image.size
    side = min(width, height)
    if width != height:
        left, top = (width - side) // 2, (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _scale(image, 65535 if sixteen_bits else None)
    elif image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        image = _over_white(image)
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
        opened = item if isinstance(item, Image.Image) else _open_image(read_bytes(Path(item)))
        return torch.from_numpy(_pixels(opened, Shape(channels, size)))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"expected a picture at {str(item)!r}, found no file") from error
    except Exception as error:
        reason = reason_for(error)
        remedy = "" if reason == NEEDS_HEIF else "; leave it out"
        raise ValueError(f"expected a usable image, got {item} ({reason}){remedy}") from error


def _over_white(image: Image.Image) -> Image.Image:
    """A transparent image on white, as RGB; a strip at a time, since four copies are needed."""
    width, height = image.size
    canvas = Image.new("RGB", image.size)
    step = max(1, STRIP // width)
    for top in range(0, height, step):
        box = (0, top, width, min(top + step, height))
        strip = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        canvas.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return canvas


def _scale(image: Image.Image, maximum: int | None) -> Image.Image:
    """A gray image of many values as mode L, so that ``maximum`` becomes 255.

    Without a maximum it is the smallest of 1 (for floats), 255 and 65535 that holds all values; if
    none does, the image's own range is stretched.
    """
    raw = np.asarray(image)
    step = max(1, STRIP // raw.shape[1])  # rows at a time: floats take many times the memory

    def strips() -> Iterator[tuple[slice, Array]]:
        for first in range(0, len(raw), step):
            rows = slice(first, first + step)
            yield rows, np.nan_to_num(raw[rows].astype(np.float64), posinf=0.0, neginf=0.0)

    low, high = 0.0, max(float(values.max()) for _, values in strips())
    if maximum is None:
        maxima = (1, 255, 65535) if image.mode == "F" else (255, 65535)
        maximum = next((most for most in maxima if high <= most), None)
        least = min(float(values.min()) for _, values in strips())
        if maximum is None or least < 0:
            low, maximum = least, None
    span = (high - low if maximum is None else maximum) or 1.0
    scaled = np.empty(raw.shape, np.uint8)
    for rows, values in strips():
        scaled[rows] = np.rint((values - low) * 255 / span)
    return Image.fromarray(scaled)
