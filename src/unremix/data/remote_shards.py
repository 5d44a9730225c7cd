"""WebDataset shards behind URLs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from unremix.data.archives import RemoteSpan, Sample, Skipped, read_shards
from unremix.data.remote import RemoteFile, cache_folder, download, fetch, is_url, remote_file

AT_ONCE = 8  # shards that are fetched at a time


def read_remote_shards(
    shards: Iterable[tuple[str, str | RemoteFile]],
) -> tuple[list[Sample], list[Skipped]]:
    """The samples of shards behind URLs; see :func:`unremix.data.archives.read_shards`.

    Args:
        shards: Name and URL of each, or the file itself where it is known.

    Raises:
        OSError: If some cannot be read in several attempts; all of them are named.
    """
    samples: list[Sample] = []
    skipped: list[Skipped] = []
    problems: list[OSError] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda shard: _attempt(*shard), shards):
            if isinstance(found, OSError):
                problems.append(found)
                continue
            samples += found[0]
            skipped += found[1]
    if len(problems) > 1:
        reasons = "; ".join(map(str, problems[:5]))
        raise type(problems[0])(f"{len(problems)} shards cannot be read: {reasons}")
    if problems:
        raise problems[0]
    return samples, skipped


def _attempt(name: str, place: str | RemoteFile) -> tuple[list[Sample], list[Skipped]] | OSError:
    try:
        return _read(name, remote_file(place) if isinstance(place, str) else place)
    except OSError as error:
        return error


def _read(name: str, file: RemoteFile) -> tuple[list[Sample], list[Skipped]]:
    """The samples of one shard, whose bytes may stay where they are."""
    kept = fetch(file)
    if kept is not None:
        samples, skipped = read_shards([(name, kept)])
    else:  # looked through once, and not kept
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            download(file, Path(folder) / file.name)
            samples, skipped = read_shards([(name, Path(folder) / file.name)])
    return [
        sample._replace(image=RemoteSpan(file, sample.image.offset, sample.image.size))
        for sample in samples
    ], skipped


def read_any_shard(shard: str) -> tuple[list[Sample], list[Skipped]]:
    """The samples of a shard at a URL or a path.

    Raises:
        OSError: If it cannot be read.
    """
    name = os.path.basename(shard)
    if is_url(shard):
        return _read(name, remote_file(shard))
    return read_shards([(name, Path(shard))])
