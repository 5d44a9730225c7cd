"""Images decoded once and kept in memory, on demand, or shard by shard.

Shards are for data larger than memory and disk: nothing of them is decoded before it is asked for.
A shard behind a URL is fetched whole while the shards before it are in use, held in the cache as
long as batches use it, and may be removed afterwards. Which samples a step uses is decided
elsewhere: :func:`unremix.domains.sampling.streamed`.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from unremix.domains.image.decoding import (
    ArraySource,
    FileSource,
    Shape,
    Source,
    Split,
    decode_into,
)
from unremix.files.archives import RemoteSpan, Skipped, ZipSpan, name_some
from unremix.files.remote import RemoteFile, fetch_and_hold

CHUNK = 64
AT_ONCE = 4  # shards that are fetched ahead at a time
DENSE = 1 / 8  # share of a shard in one batch for which it is fetched whole, though not expected


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
        images, reasons = _decoded(self.source, wanted, Shape(self.channels, self.size))
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
                stacklevel=2,
            )
        return images


@dataclass(frozen=True)
class StreamedImages(LazyImages):
    """Images from shards that come and go, in which they lie one after the other."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _few: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(AT_ONCE), repr=False
    )
    _expected: set[int] = field(default_factory=set, repr=False)
    _held: dict[int, int] = field(default_factory=dict, repr=False)

    @cached_property
    def _runs(self) -> list[tuple[str | RemoteFile, int]]:
        """Each shard, and how many images it has."""
        return [(file, len(list(of))) for file, of in groupby(self.source.files)]

    @cached_property
    def shards(self) -> tuple[str | RemoteFile, ...]:
        """Where the shards are: paths, or files behind URLs."""
        return tuple(file for file, _ in self._runs)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Images of each shard."""
        return tuple(count for _, count in self._runs)

    @property
    def tags(self) -> tuple[str, ...]:
        """The server's tags of the shards, which change with their contents; empty without."""
        tags = [file.tag if isinstance(file, RemoteFile) else "" for file in self.shards]
        return tuple(tags) if all(tags) else ()

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor(self.counts).cumsum(0)

    def expect(self, indices: Tensor) -> None:
        """Begin to fetch the shards of images (B,) that will be asked for.

        Errors are not reported here: the batch that needs the shard tries again, and reports them.
        """
        with self._lock:
            known = self._expected | self._held.keys()
            new = [shard for shard in self._remote(indices) if shard not in known]
            self._expected.update(new)
        for shard in new:
            # A daemon and no pool: the program must not wait for it at its end.
            threading.Thread(target=self._fetch_ahead, args=(shard,), daemon=True).start()

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the images: indices of shape (B,) to uint8 of shape (B, C, S, S).

        Shards that were expected, or of which many images are asked for, are fetched whole. Images
        of others are read by ranges of bytes, unless the cache has the shard.

        Raises:
            OSError: If a shard cannot be read in several attempts.
        """
        touched = self._remote(indices)
        for shard, count in touched.items():
            with self._lock:
                wanted = shard in self._expected or count >= DENSE * self.counts[shard]
                have = shard in self._held
            if wanted and not have:
                descriptor = self._hold(shard)
                self._keep(shard, descriptor)
                if descriptor is None:
                    warnings.warn(
                        f"expected room in the cache for {len(touched)} shards at a time, found "
                        "less; samples are read one by one, which is slow: allow more by "
                        "UNREMIX_CACHE_BYTES, free some disk, or lower --stream",
                        stacklevel=2,
                    )
        with self._lock:
            self._expected.difference_update(touched)
            done = [shard for shard in self._held if shard not in self._expected | touched.keys()]
            for shard in done:
                os.close(self._held.pop(shard))
        return super().batch(indices)

    def _remote(self, indices: Tensor) -> dict[int, int]:
        """The shards behind URLs that images lie in, and how many of them do in each."""
        shards = torch.searchsorted(self._ends, indices, right=True)
        found, counts = shards.unique(return_counts=True)
        return {
            shard: count
            for shard, count in zip(found.tolist(), counts.tolist(), strict=True)
            if isinstance(self.shards[shard], RemoteFile)
        }

    def _hold(self, shard: int) -> int | None:
        file = self.shards[shard]
        assert isinstance(file, RemoteFile)
        return fetch_and_hold(file)

    def _keep(self, shard: int, descriptor: int | None) -> None:
        """Hold a shard until no batch uses it."""
        with self._lock:
            if descriptor is not None and self._held.setdefault(shard, descriptor) != descriptor:
                os.close(descriptor)  # held already

    def _fetch_ahead(self, shard: int) -> None:
        with self._few, suppress(Exception):  # the batch that needs it reports what is wrong
            descriptor = self._hold(shard)
            with self._lock:
                wanted = shard in self._expected
            if wanted:
                self._keep(shard, descriptor)
            elif descriptor is not None:
                os.close(descriptor)


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

    def __len__(self) -> int:
        return len(self.names)


def stream_split(split: Split) -> Split:
    """The images of a split, to be read from shards that are fetched by :class:`StreamedImages`.

    Raises:
        ValueError: If they are not in shards.
    """
    source = split.source
    spans, files = source.spans, set(source.files)
    zipped = any(isinstance(span, ZipSpan) for span in spans)
    if zipped or len(files) == len(spans) > 0 or isinstance(source, ArraySource):
        raise ValueError(
            "expected WebDataset shards of several images each for --stream, got images of another "
            "format; pack them into .tar files, or leave out --stream"
        )
    apart = [span._replace(whole=False) if isinstance(span, RemoteSpan) else span for span in spans]
    return replace(split, source=FileSource(apart))


def store_images(
    split: Split, shape: Shape, budget: int | None, title: str | None
) -> tuple[ImageSet, list[Skipped]]:
    """The images of a split, cached if they fit into the budget; and those that are not usable.

    Without a budget they are streamed, and not checked.
    """
    images: ImageStore | None = None
    count = len(split.source)
    reasons: list[str | None] = [None] * count
    ready = split.source.ready(shape) if isinstance(split.source, ArraySource) else None
    if ready is not None:
        images = CachedImages(ready)
    elif budget is not None and count * shape.channels * shape.size**2 <= budget:
        decoded, reasons = _decoded(split.source, range(count), shape, title)
        kept = torch.tensor([i for i, reason in enumerate(reasons) if reason is None]).long()
        if len(kept) < count:
            # Close the gaps piece by piece, since there may be no memory for a second copy. A row
            # only ever moves to the front, so nothing is overwritten before it is read.
            for first in range(0, len(kept), CHUNK):
                part = kept[first : first + CHUNK]
                decoded[first : first + len(part)] = decoded[part]
        images = CachedImages(decoded[: len(kept)])
    elif budget is not None:
        header = partial(decode_into, None, split.source)
        reasons = _in_parallel(header, count, title and f"checking {title}")
    bad = [
        Skipped(name, reason)
        for name, reason in zip(split.names, reasons, strict=True)
        if reason is not None
    ]
    split = split.keep([index for index, reason in enumerate(reasons) if reason is None])
    if images is None:
        kind = StreamedImages if budget is None else LazyImages
        images = kind(split.source, split.names, *shape)
    labels = None if split.labels is None else torch.tensor(split.labels, dtype=torch.int64)
    return ImageSet(images, split.names, labels, split.classes), bad


def _decoded(
    source: Source, wanted: Sequence[int], shape: Shape, title: str | None = None
) -> tuple[Tensor, list[str | None]]:
    """Images by their numbers, black where they are not usable; and why each of them is not."""
    images = torch.zeros(len(wanted), shape.channels, shape.size, shape.size, dtype=torch.uint8)
    rows = images.numpy()

    def decode(row: int) -> str | None:
        return decode_into(rows[row], source, wanted[row])

    return images, _in_parallel(decode, len(wanted), title and f"decoding {title}")


def _in_parallel(
    function: Callable[[int], str | None], count: int, title: str | None
) -> list[str | None]:
    """``function`` of 0..count-1, by as many threads as torch may use, at most one a processor.

    Pillow decodes and resizes without holding the interpreter's lock.
    """
    from joblib import cpu_count  # type: ignore[import-untyped]

    from unremix.console.progress import showing

    workers = min(cpu_count(), torch.get_num_threads())
    # A few chunks per thread balance the load; few calls per chunk would cost more than they do.
    step = max(1, min(CHUNK, count // (4 * workers)))
    chunks = [range(first, min(first + step, count)) for first in range(0, count, step)]
    results: list[str | None] = []
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
