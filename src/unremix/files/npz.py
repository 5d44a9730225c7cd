"""The arrays of ``.npz`` files, read as data: no pickle, no memory before a header is checked."""

from __future__ import annotations

import io
import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.files.archives import Unusable, ZipSpan, zip_members
from unremix.files.bounds import allowance, shorten, sound

NPY_HEADER = 2**14  # bytes that a header of an array may take
READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path, wanted: Container[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, of numbers or text, within :func:`allowance`.

    Args:
        path: The file.
        wanted: Names of arrays; the others are empty. All by default.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is damaged, holds objects, or is larger inside than its size can justify.
    """
    found: dict[str, NDArray[Any]] = {}
    left = allowance(path.stat().st_size)
    remedy = "write it with numpy.savez, without objects"
    with sound("an .npz of plain arrays", path, remedy):
        for file, span in zip_members(path):
            key = file.removesuffix(".npy")
            needed = wanted is None or key in wanted
            found[key] = _read_array(span, left) if needed else np.empty(0)
            left -= found[key].nbytes
    return found


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether by columns, and type of an array, from the beginning of its ``.npy`` file.

    Raises:
        Unusable: If it is of another version, or holds more than numbers and text.
    """
    version = np.lib.format.read_magic(file)
    if version not in READERS:
        raise Unusable(f"an array of version {version}")
    shape, by_columns, kind = READERS[version](file)
    if kind.hasobject or kind.subdtype is not None or kind.kind not in "biufU":
        raise Unusable(f"an array of {shorten(kind)}, not of plain numbers or names")
    return shape, by_columns, kind


def _read_array(span: ZipSpan, most: int) -> NDArray[Any]:
    """The array of a member, after its header was compared with its size."""
    if span.size > most:
        raise Unusable(
            f"{span.name} unpacks to {span.size:,} bytes, too many for a file of its size; store "
            "it unpacked, with numpy.savez"
        )
    header = io.BytesIO(span.read(NPY_HEADER, most=most))
    shape, by_columns, kind = read_header(header)
    size = math.prod(shape) * kind.itemsize
    if size != span.size - header.tell():
        raise Unusable(
            f"{span.name} promises {size:,} bytes and holds {span.size - header.tell():,}"
        )
    content = bytearray(span.size)
    span.fill(content)
    values = np.frombuffer(content, kind, offset=header.tell())
    return values.reshape(shape, order="F" if by_columns else "C")
