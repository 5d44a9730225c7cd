"""Readers of arrays: the embedded digits, idx files and npz."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unremix.domains.image.decoding import Array, ImageSplits, Pixels, labeled, of_array
from unremix.files.archives import Unusable, fill, open_maybe_packed
from unremix.files.bounds import allowance, sound
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


IDX_NAME = re.compile(
    r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?"
)


def read_idx(name: str, files: Mapping[str, Path]) -> ImageSplits:
    """A folder of idx files."""
    # In sorted order the unpacked file comes before the packed one, and counts.
    found: dict[tuple[str, str], Path] = {}
    matches = {file: match for file in files if (match := IDX_NAME.fullmatch(file))}
    for file, match in matches.items():
        split = "train" if match["split"] == "train" else "test"
        found.setdefault((split, match["kind"]), files[file])
    if len({match["prefix"] for match in matches.values()}) > 1 or ("train", "images") not in found:
        raise ValueError(
            "expected the idx files of one data set with train-images-idx3-ubyte, got "
            f"{', '.join(sorted(matches))}; put each data set into a folder of its own"
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
    if not {"images", "x_train"} & arrays.keys():
        raise ValueError(
            "expected an array named images or x_train, got "
            f"{', '.join(sorted(arrays)) or 'none'} in {path}; rename it with numpy.savez"
        )
    keys = [("train", "x_train", "y_train"), ("test", "x_test", "y_test")]
    parts = []
    for split, images_key, labels_key in (
        keys if "x_train" in arrays else [("train", "images", "labels")]
    ):
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
