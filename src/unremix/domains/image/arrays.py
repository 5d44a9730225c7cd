"""Readers of arrays: the embedded digits, CIFAR pickles, idx files and npz."""

from __future__ import annotations

import math
import posixpath
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unremix.domains.image.decoding import Array, Pixels
from unremix.domains.image.pickles import read_pickle
from unremix.domains.image.splits import ACCEPTED, ImageSplits, labeled, of_array
from unremix.files.archives import Skipped, Unusable, fill, open_maybe_packed, open_tar
from unremix.files.bounds import allowance, shorten, sound
from unremix.files.npz import read_arrays

PIECE = 2**20  # bytes read at a time
MEANT = ("images", "labels", "x_train", "y_train", "x_test", "y_test")  # arrays of an .npz
SMALLEST = 4  # pixels, of an image's height and width


def read_digits() -> ImageSplits:
    """The embedded digits, a quarter of them held out."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), 16 is black ink
    parts = train_test_split(
        np.arange(len(pixels)), test_size=0.25, random_state=0, stratify=digits.target
    )
    splits = [
        of_array(title, pixels[part], digits.target[part].tolist())
        for title, part in zip(("train", "test"), map(np.sort, parts), strict=True)
    ]
    return ImageSplits("digits", labeled(splits))


CIFAR_TRAIN = ("train", *(f"data_batch_{number}" for number in range(1, 6)))
CIFAR_TEST = ("test", "test_batch")
MOST_CLASSES = 10_000  # CIFAR has 10 or 100
CIFAR_FILES = (*CIFAR_TRAIN, *CIFAR_TEST, "meta", "batches.meta")


def tar_pickles(path: Path) -> dict[str, bytes]:
    """The CIFAR files in a compressed tar, read into memory."""
    pickles: dict[str, bytes] = {}
    most = allowance(path.stat().st_size)
    expected = sound("a .tar.gz of CIFAR pickles", path, "download it again")
    with expected, open_tar(path, packed=True) as archive:
        for member in archive.files():
            name = posixpath.basename(member.name)
            if name in CIFAR_FILES:
                pickles[name] = archive.read(member, most - sum(map(len, pickles.values())))
    return pickles


def _unpickle(name: str, data: bytes) -> Mapping[str, Any]:
    try:
        return read_pickle(data)
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(
            f"expected a CIFAR pickle with arrays and labels only, got {name}: "
            f"{shorten(error)}; download the official python version again"
        ) from error


def read_cifar(name: str, pickles: Mapping[str, bytes], path: Path) -> ImageSplits:
    """CIFAR-10 or CIFAR-100 from its python pickles."""
    train = [key for key in CIFAR_TRAIN if key in pickles]
    if not train:
        raise ValueError(
            f"expected CIFAR pickles (data_batch_1 .. data_batch_5 or train), got {path} "
            f"without; accepted are {ACCEPTED}"
        )
    absent = [] if train == ["train"] else [key for key in CIFAR_TRAIN[1:] if key not in pickles]
    splits = []
    for title, keys in (("train", train), ("test", [key for key in CIFAR_TEST if key in pickles])):
        batches = [_cifar_batch(key, _unpickle(key, pickles[key])) for key in keys]
        if batches:
            labels = [label for _, labels in batches for label in labels]
            splits.append(of_array(title, np.concatenate([some for some, _ in batches]), labels))
    most = max((label for split in splits for label in split.labels or ()), default=0)
    classes = _cifar_classes(pickles) or [str(label) for label in range(most + 1)]
    if most >= len(classes):
        raise ValueError(
            f"expected labels below {len(classes)}, the number of class names in {path}, got "
            f"{most}; the files belong to different data sets"
        )
    splits = [replace(split, classes=classes) for split in splits]
    return ImageSplits(name, splits, [Skipped(key, "missing") for key in absent])


def _cifar_classes(pickles: Mapping[str, bytes]) -> list[str] | None:
    for key, field_name in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        names = _unpickle(key, pickles[key]).get(field_name) if key in pickles else None
        if names is None:
            continue
        few = isinstance(names, list) and 0 < len(names) <= MOST_CLASSES
        if not few or not all(isinstance(name, str | bytes) for name in names):
            raise ValueError(
                f"expected {field_name} in {key} as a list of at most {MOST_CLASSES:,} names, "
                f"got {shorten(names)}; download the official python version again"
            )
        return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]
    return None


def _cifar_batch(name: str, batch: Mapping[str, Any]) -> tuple[Pixels, list[int]]:
    """Images of shape (n, 32, 32, 3), and labels."""
    data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    if (
        not isinstance(data, np.ndarray)
        or not isinstance(labels, list)
        or data.shape != (len(labels), 3072)
        or not all(type(label) is int and 0 <= label < MOST_CLASSES for label in labels)
    ):
        fields = shorten(", ".join(sorted(batch)))
        raise ValueError(
            f"expected data of shape (n, 3072), uint8, and n labels below {MOST_CLASSES:,} in "
            f"{name}, got {getattr(data, 'shape', type(data).__name__)} and fields {fields}; "
            "download the official python version again"
        )
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


IDX_NAME = re.compile(
    r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?"
)


def read_idx(name: str, files: Mapping[str, Path]) -> ImageSplits:
    """A folder of idx files."""
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
            "expected the idx files of one data set with train-images-idx3-ubyte, got "
            f"{', '.join(sorted(file for file in files if IDX_NAME.fullmatch(file)))}; put each "
            "data set into a folder of its own"
        )
    parts = []
    for split in ("train", "test"):
        if (split, "images") in found:
            images, where = _idx_array(found[split, "images"], 3), found.get((split, "labels"))
            labels = None if where is None else _idx_array(where, 1).tolist()
            if labels is not None and len(labels) != len(images):
                raise ValueError(
                    f"expected {len(images)} labels in {where}, one for each image, got "
                    f"{len(labels)}; download the files again"
                )
            parts.append(of_array(split, images, labels))
    return ImageSplits(name, labeled(parts))


def _idx_array(path: Path, dimensions: int) -> Pixels:
    """The array in an idx file of bytes, shape (n, H, W) or (n,)."""
    expected = sound(f"an idx file of bytes in {dimensions} dimensions", path, "download it again")
    with expected, open_maybe_packed(path, path.suffix == ".gz") as file:
        magic, sizes = file.read(4), file.read(4 * dimensions)
        if magic != bytes((0, 0, 8, dimensions)):
            raise Unusable(f"it begins with {magic.hex()}")
        shape = struct.unpack(f">{dimensions}I", sizes)
        wanted = math.prod(shape)
        if wanted > allowance(path.stat().st_size):
            raise Unusable(f"{shape} promises {wanted:,} bytes, too many for a file of its size")
        content = bytearray(wanted)
        received = fill(file, content)
        if received < wanted or file.read(1):
            raise Unusable(f"it holds {'less' if received < wanted else 'more'} than {shape}")
    array = np.frombuffer(content, dtype=np.uint8).reshape(shape)
    if dimensions > 1:
        _check_pixels(array, str(path))
    return array


def _check_pixels(array: Array, where: str) -> None:
    """Refuse images of shape (n, H, W, ...) so small that their names would outweigh them."""
    if min(array.shape[1:3]) < SMALLEST:
        raise ValueError(
            f"expected images of at least {SMALLEST} x {SMALLEST} pixels in {where}, got "
            f"shape {array.shape}; enlarge them first, or reshape the array"
        )


def read_npz(name: str, path: Path) -> ImageSplits:
    """An .npz of images, perhaps with labels and a split."""
    arrays = read_arrays(path, MEANT)
    if "x_train" in arrays:
        keys = [("train", "x_train", "y_train"), ("test", "x_test", "y_test")]
    elif "images" in arrays:
        keys = [("train", "images", "labels")]
    else:
        raise ValueError(
            "expected an array named images or x_train, got "
            f"{', '.join(sorted(arrays)) or 'none'} in {path}; rename it with numpy.savez"
        )
    parts = []
    for split, images_key, labels_key in keys:
        if images_key in arrays:
            images = image_array(arrays[images_key], images_key)
            _check_pixels(images, f"{images_key} of {path}")
            values = _label_values(arrays.get(labels_key), labels_key, len(images))
            parts.append(of_array(split, images, values))
    return ImageSplits(name, labeled(parts))


def image_array(array: Array, key: str) -> Pixels:
    """Any accepted array as uint8 of shape (n, H, W) or (n, H, W, C) with C 3 or 4."""
    depths = (1, 3, 4)
    if array.ndim == 4 and array.shape[3] not in depths and array.shape[1] in depths:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in depths):
        raise ValueError(
            f"expected {key} of shape (n, H, W), (n, H, W, C) or (n, C, H, W) with C 1, 3 or 4, "
            f"got {array.shape}; reshape it"
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
            f"expected {key} with integers in 0..255 or floats in [0, 1], got {received}; "
            "scale it first"
        )
    scaled = np.empty(array.shape, np.uint8)
    step = max(1, PIECE // max(1, array[0].size))
    for first in range(0, len(array), step):  # floats take eight times the memory of bytes
        part = array[first : first + step]
        scaled[first : first + step] = np.rint(part * 255.0) if unit else part
    return scaled


def _label_values(labels: Array | None, key: str, count: int) -> list[Any] | None:
    if labels is None:
        return None
    if labels.size != count or labels.shape[0] != count or labels.dtype.kind not in "iubU":
        raise ValueError(
            f"expected {key} with {count} integers or names, one for each image, got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    values: list[Any] = labels.reshape(-1).tolist()
    return values
