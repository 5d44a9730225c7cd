"""Decoded images: once, in memory, or on demand."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from unremix.domains.image.decoding import ArraySource, Shape, Source, decode_into, reason_for
from unremix.domains.image.splits import Split
from unremix.files.archives import Skipped, name_some

CHUNK = 64
Result = TypeVar("Result")


@dataclass(frozen=True)
class CachedImages:
    """Images in memory.

    Args:
        images: Shape (n, C, S, S), uint8.
    """

    images: Tensor

    @property
    def channels(self) -> int:
        """C: 1 (gray) or 3 (RGB)."""
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
            return decode_into(rows[row], self.source, wanted[row])

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
                f"black; now {name_some(names)}",
                stacklevel=3,
            )


ImageStore = CachedImages | LazyImages
"""Images of one size: n images of C channels, S x S."""


@dataclass(frozen=True)
class ImageSet:
    """n images with their names and, where known, labels.

    Args:
        images: The images.
        names: The path of each relative to the data, with ``/``; for arrays e.g. "train/00012".
        labels: The class of each, shape (n,), int64 in 0..k-1; None if unknown.
        classes: Names of the k classes; None if unknown.
    """

    images: ImageStore
    names: list[str]
    labels: Tensor | None
    classes: list[str] | None

    @classmethod
    def of(cls, split: Split, images: ImageStore) -> ImageSet:
        """The images of a split with its names, labels and classes."""
        labels = None if split.labels is None else torch.tensor(split.labels, dtype=torch.int64)
        return cls(images, split.names, labels, split.classes)

    def __len__(self) -> int:
        return len(self.names)


def store_images(
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
    return ImageSet.of(split, images), bad


def _decode_all(
    source: Source, shape: Shape, title: str | None
) -> tuple[CachedImages, list[str | None]]:
    """All usable images, and for each image of the source why it is not usable."""
    images = torch.empty(len(source), shape.channels, shape.size, shape.size, dtype=torch.uint8)
    rows = images.numpy()

    def decode(index: int) -> str | None:
        return decode_into(rows[index], source, index)

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
        except ConnectionError:
            raise
        except Exception as error:  # Pillow's plugins raise almost anything on broken files
            return reason_for(error)
        return None

    return _in_parallel(check, len(source), title and f"checking {title}")


def _in_parallel(
    function: Callable[[int], Result], count: int, title: str | None = None
) -> list[Result]:
    """``function`` of 0..count-1, by as many threads as torch may use, at most one a processor.

    Pillow decodes and resizes without holding the interpreter's lock.
    """
    from joblib import cpu_count  # type: ignore[import-untyped]

    from unremix.console.progress import showing

    workers = min(cpu_count(), torch.get_num_threads())
    # A few chunks per thread balance the load; few calls per chunk would cost more than they do.
    step = max(1, min(CHUNK, count // (4 * workers)))
    chunks = [range(first, min(first + step, count)) for first in range(0, count, step)]
    results: list[Result] = []
    pool = ThreadPoolExecutor(workers)
    try:
        with showing(title) if title and count else nullcontext(lambda _: None) as advance:
            for part in pool.map(lambda chunk: [function(index) for index in chunk], chunks):
                results += part
                advance(len(results) / count)
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def free_memory() -> int:
    """Bytes of memory that are free or can be freed; 4 GiB if the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
        return int(re.findall(r"MemAvailable:\s+(\d+) kB", text)[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30
