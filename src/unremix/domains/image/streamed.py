"""Images in WebDataset shards that are read shard by shard, for data larger than memory and disk.

Nothing is decoded before it is asked for. A shard behind a URL is fetched whole while the shards
before it are in use, held in the cache as long as batches use it, and may be removed afterwards.
Which samples a step uses is decided elsewhere: :func:`unremix.domains.sampling.streamed`.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from unremix.domains.image.decoding import FileSource, Shape
from unremix.domains.image.splits import Split
from unremix.domains.image.stores import ImageSet, LazyImages
from unremix.files.archives import RemoteSpan, Span
from unremix.files.remote import RemoteFile, fetch_and_hold

AT_ONCE = 4  # shards that are fetched ahead at a time
DENSE = 1 / 8  # share of a shard in one batch for which it is fetched whole, though not expected


@dataclass(frozen=True)
class Shard:
    """A shard of a split.

    Args:
        file: Where it is: a path, or a file behind a URL.
        count: How many of its samples are used.
    """

    file: str | RemoteFile
    count: int


def stream_split(split: Split) -> Split:
    """The images of a split, to be read from shards that are fetched by :class:`StreamedImages`.

    Raises:
        ValueError: If they are not in shards.
    """
    source = split.source
    spans = source.spans if isinstance(source, FileSource) else ()
    files = {_file(span) for span in spans if isinstance(span, Span | RemoteSpan)}
    if (len(spans) and not 0 < len(files) < len(spans)) or not isinstance(source, FileSource):
        raise ValueError(
            "expected WebDataset shards of several images each for --stream, got images of another "
            "format; pack them into .tar files, or leave out --stream"
        )
    apart = [span._replace(whole=False) if isinstance(span, RemoteSpan) else span for span in spans]
    return replace(split, source=FileSource(apart))


def _file(span: Span | RemoteSpan) -> str | RemoteFile:
    return span.file if isinstance(span, RemoteSpan) else span.path


def shards_of(source: FileSource) -> list[Shard]:
    """The shards of images that lie in them one after the other."""
    files = [_file(span) for span in source.spans if isinstance(span, Span | RemoteSpan)]
    return [Shard(file, len(list(of))) for file, of in groupby(files)]


@dataclass(frozen=True)
class StreamedImages:
    """Images that are decoded each time they are asked for, from shards that come and go.

    Args:
        lazy: The images.
        shards: The shards they lie in, in order.
    """

    lazy: LazyImages
    shards: list[Shard]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _few: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(AT_ONCE), repr=False
    )
    _expected: set[int] = field(default_factory=set, repr=False)
    _held: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def channels(self) -> int:
        """C: 1 (gray) or 3 (RGB)."""
        return self.lazy.channels

    @property
    def size(self) -> int:
        """S: height and width."""
        return self.lazy.size

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Images of each shard."""
        return tuple(shard.count for shard in self.shards)

    @property
    def tags(self) -> tuple[str, ...]:
        """The server's tags of the shards, which change with their contents; empty without."""
        files = [shard.file for shard in self.shards]
        tags = [file.tag for file in files if isinstance(file, RemoteFile)]
        return tuple(tags) if len(tags) == len(files) and all(tags) else ()

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor(self.counts).cumsum(0)

    def __len__(self) -> int:
        return len(self.lazy)

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
        return self.lazy.batch(indices)

    def _remote(self, indices: Tensor) -> dict[int, int]:
        """The shards behind URLs that images lie in, and how many of them do in each."""
        shards = torch.searchsorted(self._ends, indices, right=True)
        found, counts = shards.unique(return_counts=True)
        return {
            shard: count
            for shard, count in zip(found.tolist(), counts.tolist(), strict=True)
            if isinstance(self.shards[shard].file, RemoteFile)
        }

    def _hold(self, shard: int) -> int | None:
        file = self.shards[shard].file
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


def stream_images(split: Split, shape: Shape) -> ImageSet:
    """The images of a split that :func:`stream_split` prepared."""
    source = split.source
    assert isinstance(source, FileSource)
    images = StreamedImages(LazyImages(source, split.names, *shape), shards_of(source))
    return ImageSet.of(split, images)
