"""WebDataset shards, on this machine or behind URLs.

What a shard behind a URL holds is noted, a few bytes for each sample, so that it is looked through
once, even if the cache has no room for the shard itself. The notes are in the cache, or in the
folder that ``UNREMIX_INDEX`` names, a path or a URL. Machines that share that folder share the
work, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from unremix.files.archives import AnySpan, RemoteSpan, Skipped, Span, Unusable, tar_members
from unremix.files.atomic_files import hold
from unremix.files.bounds import shorten
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

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "ppm", "bmp")
LABEL_BYTES = 2**20  # of a file that holds a label
MOST_SHARDS = 1_000_000
AT_ONCE = 8  # shards that are read at a time
NOTES = 1  # version of the notes about a shard

Place = Path | str | RemoteFile
"""Where a shard is: a path, a URL, or the file behind one, if it is known."""


def expand_braces(pattern: str) -> list[str]:
    """All names that a pattern with ``{000..099}`` or ``{a,b}`` stands for, in its order.

    Example:
        >>> expand_braces("shard-{08..10}.tar")
        ['shard-08.tar', 'shard-09.tar', 'shard-10.tar']
        >>> expand_braces("{a,b}-{0..1}.tar")
        ['a-0.tar', 'a-1.tar', 'b-0.tar', 'b-1.tar']

    Raises:
        ValueError: If it stands for more than a million.
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    if prod(map(len, choices)) > MOST_SHARDS:
        raise ValueError(
            f"expected a pattern for at most {MOST_SHARDS:,} files, got {shorten(pattern)}; "
            "name a folder in its place"
        )
    return ["".join(parts) for parts in product(*choices)]


def _choices(braced: str) -> Sequence[str]:
    """What one pair of braces stands for: a range of numbers, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braced)
    if numbers is None:
        return braced.split(",")
    first, last = numbers.groups()
    # A leading zero asks for equal widths, as in the shell.
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    last_of_them = min(int(last), int(first) + MOST_SHARDS)
    return [f"{number:0{width}d}" for number in range(int(first), last_of_them + 1)]


class Sample(NamedTuple):
    """One image of a shard, and its label, if any."""

    name: str
    image: AnySpan
    label: int | None


Samples = tuple[list[Sample], list[Skipped]]
"""The samples of shards; and what was left out: samples without an image, and files that are no tar
or end early."""


def read_shards(shards: Sequence[tuple[str, Place]]) -> Samples:
    """The samples of WebDataset shards, shard by shard and sorted by name in each.

    Args:
        shards: Name and place of each.

    Raises:
        OSError: If some cannot be read in several attempts; all of them are named.
    """
    # Every process begins elsewhere, and finds what the others have noted meanwhile.
    first = zlib.crc32(f"{socket.gethostname()} {os.getpid()}".encode()) % max(1, len(shards))
    order = [*range(first, len(shards)), *range(first)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda number: _attempt(*shards[number]), order)
        known = dict(zip(order, results, strict=True))
    found = [known[number] for number in range(len(shards))]
    problems = [one for one in found if isinstance(one, OSError)]
    if len(problems) > 1:
        reasons = "; ".join(map(str, problems[:5]))
        raise type(problems[0])(f"{len(problems)} shards cannot be read: {reasons}")
    if problems:
        raise problems[0]
    sound = [one for one in found if not isinstance(one, OSError)]
    return [one for part, _ in sound for one in part], [one for _, part in sound for one in part]


def _attempt(name: str, place: Place) -> Samples | OSError:
    try:
        if isinstance(place, Path):
            return _look_through(name, place)
        return _read(name, remote_file(place) if isinstance(place, str) else place)
    except OSError as error:
        return error


def _read(name: str, file: RemoteFile) -> Samples:
    """The samples of one shard behind a URL, whose bytes may stay there."""
    identity = "\0".join(map(str, (NOTES, name, *file)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    note = f"{os.environ.get('UNREMIX_INDEX') or cache_folder() / '.index'}/{digest}.json"
    with locked(f"index-{digest[:2]}"):
        known = _noted(read_place(note), file)
        if known is None:
            known = samples, skipped = _fetched(name, file)
            places = [(one.name, one.label, one.image.offset, one.image.size) for one in samples]
            if file.tag or not skipped:  # else nobody would notice that it is whole now
                write_place(note, json.dumps({"samples": places, "skipped": skipped}).encode())
    return known


def _noted(note: bytes | None, file: RemoteFile) -> Samples | None:
    """What is noted about a shard; None if nothing is, or it is damaged."""
    try:
        noted = json.loads(note or b"")
        samples = [
            Sample(name, RemoteSpan(file, offset, size), label)
            for name, label, offset, size in noted["samples"]
        ]
        skipped = [Skipped(*one) for one in noted["skipped"]]
        places = all(min(one.image.offset, one.image.size) >= 0 for one in samples)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    labels = all(isinstance(one.label, int | None) for one in samples)
    texts = [*(one.name for one in samples), *(text for one in skipped for text in one)]
    sound = places and labels and all(isinstance(text, str) for text in texts)
    return (samples, skipped) if sound else None


def _fetched(name: str, file: RemoteFile) -> Samples:
    """The samples of one shard, which is kept if the cache has room for it."""
    kept = fetch(file)
    held = None if kept is None else hold(kept)
    if kept is not None and held is not None:
        try:
            samples, skipped = _look_through(name, kept)
        finally:
            os.close(held)
    else:
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            download(file, Path(folder) / file.name)
            samples, skipped = _look_through(name, Path(folder) / file.name)
    there = (RemoteSpan(file, one.image.offset, one.image.size) for one in samples)
    return [one._replace(image=at) for one, at in zip(samples, there, strict=True)], skipped


def _look_through(shard: str, path: Path) -> Samples:
    """The samples of a tar.

    The files of a sample share folder and name up to the first dot. The image is its first file of
    an extension in `IMAGE_EXTENSIONS`; the label is the integer in its ``.cls``, or else the
    integer ``label`` in its ``.json``.
    """
    samples: list[Sample] = []
    members, problem = tar_members(path) if path.is_file() else ([], "not a file")
    skipped = [] if problem is None else [Skipped(shard, problem)]
    for key, files in sorted(_group(members).items()):
        extension = next((kind for kind in IMAGE_EXTENSIONS if kind in files), None)
        if extension is None:
            skipped.append(Skipped(f"{shard}/{key}", "no image in the sample"))
        else:
            name, image = files[extension]
            samples.append(Sample(f"{shard}/{name}", image, _label(files)))
    return samples, skipped


def _group(members: Iterable[tuple[str, Span]]) -> dict[str, dict[str, tuple[str, Span]]]:
    """Files by sample, then by extension; hidden files are left out."""
    samples: dict[str, dict[str, tuple[str, Span]]] = {}
    for name, span in members:
        folder, slash, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        if stem:
            samples.setdefault(folder + slash + stem, {})[extension.lower()] = (name, span)
    return samples


def _label(files: dict[str, tuple[str, Span]]) -> int | None:
    """The label of a sample; None if it has no label or no integer."""
    try:
        if "cls" in files:
            return int(files["cls"][1].read(most=LABEL_BYTES))
        if "json" in files:
            label = json.loads(files["json"][1].read(most=LABEL_BYTES))["label"]
            return label if isinstance(label, int) and not isinstance(label, bool) else None
    except (Unusable, ValueError, KeyError, TypeError, RecursionError):
        return None
    return None
