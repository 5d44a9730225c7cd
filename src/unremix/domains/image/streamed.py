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

from unremix.domains.image.decoding import FileSource
from unremix.domains.image.splits import Split
from unremix.domains.image.stores import LazyImages
from unremix.files.archives import RemoteSpan, ZipSpan
from unremix.files.remote import RemoteFile, fetch_and_hold

AT_ONCE = 4  # shards that are fetched ahead at a time
DENSE = 1 / 8  # share of a shard in one batch for which it is fetched whole, though not expected


def stream_split(split: Split) -> Split:
    """The images of a split, to be read from shards that are fetched by :class:`StreamedImages`.

    Raises:
        ValueError: If they are not in shards.
    """
    source = split.source
    spans = source.spans if isinstance(source, FileSource) else ()
    files = {span.file if isinstance(span, RemoteSpan) else span.path for span in spans}
    zipped = any(isinstance(span, ZipSpan) for span in spans)
    if zipped or len(files) == len(spans) > 0 or not isinstance(source, FileSource):
        raise ValueError(
            "expected WebDataset shards of several images each for --stream, got images of another "
            "format; pack them into .tar files, or leave out --stream"
        )
    apart = [span._replace(whole=False) if isinstance(span, RemoteSpan) else span for span in spans]
    return replace(split, source=FileSource(apart))


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
        assert isinstance(self.source, FileSource)
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
