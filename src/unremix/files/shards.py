"""WebDataset shards behind URLs.

What a shard holds is noted, a few bytes for each sample, so that it is looked through once, even if
the cache has no room for the shard itself. The notes are in the cache, or in the folder that
``UNREMIX_INDEX`` names, a path or a URL. Machines that share that folder share the work, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from unremix.files.archives import RemoteSpan, Sample, Skipped, read_shards
from unremix.files.atomic_files import hold
from unremix.files.remote import (
    RemoteFile,
    cache_folder,
    download,
    fetch,
    locked,
    read_place,
    remote_file,
    write_place,
)

AT_ONCE = 8  # shards that are fetched at a time
NOTES = 1  # version of the notes about a shard


def read_remote_shards(
    shards: Iterable[tuple[str, str | RemoteFile]],
) -> tuple[list[Sample], list[Skipped]]:
    """The samples of shards behind URLs; see :func:`unremix.files.archives.read_shards`.

    Args:
        shards: Name and URL of each, or the file itself, if known.

    Raises:
        OSError: If some cannot be read in several attempts; all of them are named.
    """
    listed = list(shards)
    # Every process begins elsewhere, and finds what the others have noted meanwhile.
    first = zlib.crc32(f"{socket.gethostname()} {os.getpid()}".encode()) % max(1, len(listed))
    order = [*range(first, len(listed)), *range(first)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda number: _attempt(*listed[number]), order)
        found = dict(zip(order, results, strict=True))
    samples: list[Sample] = []
    skipped: list[Skipped] = []
    problems: list[OSError] = []
    for number in range(len(listed)):
        one = found[number]
        if isinstance(one, OSError):
            problems.append(one)
        else:
            samples += one[0]
            skipped += one[1]
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
    identity = "\0".join(map(str, (NOTES, name, *file)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    with locked(f"index-{digest[:2]}"):
        noted = _read_note(digest)
        if noted is None:
            samples, skipped = _look_through(name, file)
            noted = {
                "samples": [
                    (one.name, one.label, one.image.offset, one.image.size) for one in samples
                ],
                "skipped": skipped,
            }
            if file.tag or not skipped:  # else nobody would notice that it is whole now
                write_place(_note(digest), json.dumps(noted).encode())
    found = [
        Sample(sample, RemoteSpan(file, offset, size), label)
        for sample, label, offset, size in noted["samples"]
    ]
    return found, [Skipped(*one) for one in noted["skipped"]]


def _look_through(name: str, file: RemoteFile) -> tuple[list[Sample], list[Skipped]]:
    """The samples of one shard, which is kept if the cache has room for it."""
    kept = fetch(file)
    held = None if kept is None else hold(kept)
    if kept is not None and held is not None:
        try:
            return read_shards([(name, kept)])
        finally:
            os.close(held)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        download(file, Path(folder) / file.name)
        return read_shards([(name, Path(folder) / file.name)])


def _note(digest: str) -> str:
    """The path or URL of the notes about a shard."""
    return f"{os.environ.get('UNREMIX_INDEX') or cache_folder() / '.index'}/{digest}.json"


def _read_note(digest: str) -> dict[str, Any] | None:
    """What is noted about a shard; None if nothing is, or it is damaged."""
    data = read_place(_note(digest))
    try:
        noted: dict[str, Any] | None = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return noted if _is_note(noted) else None


def _is_note(noted: Any) -> bool:
    """Whether something has the form of notes; damaged notes are made again."""
    try:
        return all(
            isinstance(name, str)
            and (label is None or isinstance(label, int))
            and min(offset, size) >= 0
            for name, label, offset, size in noted["samples"]
        ) and all(isinstance(text, str) for one in noted["skipped"] for text in Skipped(*one))
    except (KeyError, TypeError, ValueError):
        return False
