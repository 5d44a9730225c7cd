"""Pictures that a caller hands over, as one batch: paths, PIL images or arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unremix.domains.image.arrays import image_array
from unremix.domains.image.decoding import decode_image
from unremix.files.atomic_files import write_arrays

ACCEPTED = "a list of paths, PIL images or arrays, or an array of pictures"


def read_items(items: Any, *, channels: int, size: int) -> Tensor:
    """Read pictures the way training reads them: upright, central square, resized once.

    Args:
        items: A list of paths, PIL images or arrays of one picture each, shape (H, W), (H, W, C)
            or (C, H, W); or one array of n pictures, shape (n, H, W), (n, H, W, C) or
            (n, C, H, W). Arrays hold integers in 0..255 or floats in [0, 1], which are rounded to
            8 bits.
        channels: C of the result, 1 or 3.
        size: S of the result.

    Returns:
        uint8, shape (n, C, S, S).

    Raises:
        FileNotFoundError: If a path does not exist.
        ValueError: For anything else that is not a picture.

    Example:
        >>> read_items([np.zeros((9, 12, 3), np.uint8)], channels=1, size=8).shape
        torch.Size([1, 1, 8, 8])
    """
    if isinstance(items, str | Path):
        if Path(items).is_dir():
            got = f"the folder {str(items)!r}; pass sorted(Path({str(items)!r}).glob('*.jpg'))"
        else:
            got = f"one string or path; pass [{str(items)!r}]"
        raise ValueError(f"expected {ACCEPTED}, got {got}")
    if isinstance(items, Image.Image):
        raise ValueError(f"expected {ACCEPTED}, got one PIL image; pass it in a list")
    items = _as_numpy(items)
    if isinstance(items, np.ndarray) and items.dtype.kind not in "OUS":
        if items.dtype == np.uint8 and items.shape[1:] == (channels, size, size):
            return torch.from_numpy(np.ascontiguousarray(items))
        # Three gray pictures, or one in color?
        either = {items.shape[0] if channels > 1 else 0, items.shape[-1]} & {3, 4}
        if items.ndim not in (3, 4) or (items.ndim == 3 and either):
            raise ValueError(
                "expected an array of pictures of shape (n, H, W), (n, H, W, C) or (n, C, H, W), "
                f"got shape {items.shape}; pass one picture in a list, or {len(items)} gray ones "
                "with C = 1"
            )
        items = list(image_array(items, "pictures"))
    elif not isinstance(items, Iterable):
        raise ValueError(f"expected {ACCEPTED}, got {type(items).__name__} {items!r}")
    pictures = [
        decode_image(_opened(item, place), channels=channels, size=size)
        for place, item in enumerate(items)
    ]
    empty = torch.empty(0, channels, size, size, dtype=torch.uint8)
    return torch.stack(pictures) if pictures else empty


def _as_numpy(value: Any) -> Any:
    """A tensor as an array; all else as it is."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _opened(item: Any, place: int) -> str | Path | Image.Image:
    """A path, or an image that may be changed."""
    if isinstance(item, str | Path):
        return item
    if isinstance(item, Image.Image):
        copy = item.copy()  # decoding turns and shrinks an image in place
        copy.format = item.format
        return copy
    item = _as_numpy(item)
    if isinstance(item, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(image_array(item[None], f"picture {place}")[0]))
    raise ValueError(
        f"expected a path, a PIL image or an array at position {place}, got "
        f"{type(item).__name__} {item!r}"
    )


def holds(items: Any) -> bool:
    """Whether items in memory are pictures: PIL images, arrays of them, or one array of all."""
    if isinstance(items, np.ndarray | Tensor):
        return items.ndim in (3, 4)
    first = next(iter(items), None) if isinstance(items, list | tuple) else None
    return isinstance(first, Image.Image) or (
        isinstance(first, np.ndarray | Tensor) and first.ndim in (2, 3)
    )


def write(items: Any, classes: Sequence[Any] | None, path: Path) -> Path:
    """Write pictures in memory: as an .npz, or as files of a folder if their sizes differ."""
    items = _as_numpy(items)
    if not isinstance(items, np.ndarray):
        opened = [_opened(item, place) for place, item in enumerate(items)]
        pictures = [one if isinstance(one, Image.Image) else Image.open(one) for one in opened]
        if len({(one.size, one.mode) for one in pictures}) > 1:
            return _write_files(pictures, classes, path)
        items = np.stack([np.asarray(one) for one in pictures])
    arrays = {"images": image_array(items, "the pictures")}
    if classes is not None:
        arrays["labels"] = np.asarray([str(one) for one in classes])
    write_arrays(path.with_suffix(".npz"), arrays)
    return path.with_suffix(".npz")


def _write_files(
    pictures: Sequence[Image.Image], classes: Sequence[Any] | None, path: Path
) -> Path:
    digits = len(str(len(pictures)))
    for place, picture in enumerate(pictures):
        folder = path if classes is None else path / str(classes[place])
        folder.mkdir(parents=True, exist_ok=True)
        rgb = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
        rgb.save(folder / f"{place:0{digits}d}.png")
    return path
