"""Files inside archives, read where they are.

No archive is ever unpacked, so no name in it can lead anywhere. Every thread and every process,
forked or spawned, can read at once.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "ppm", "bmp")
MAX_FILE_BYTES = 2**30


class Unusable(Exception):
    """A file that cannot be used; the message is the reason."""


class Skipped(NamedTuple):
    """A file that was left out, and why."""

    name: str
    reason: str


class Span(NamedTuple):
    """A whole file, or a member of a tar: ``size`` bytes of ``path`` from ``offset`` on."""

    path: str
    offset: int
    size: int

    def read(self, limit: int = MAX_FILE_BYTES) -> bytes:
        """The bytes, or the first ``limit`` of them.

        Raises:
            Unusable: If the file is empty, longer than `MAX_FILE_BYTES`, or cut off.
        """
        _check_size(self.size)
        wanted = min(self.size, limit)
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read(wanted)
        if len(data) < wanted:
            raise Unusable("truncated")
        return data


class ZipSpan(NamedTuple):
    """A member of a zip.

    Args:
        path: The zip.
        name: The member's name in it.
        size: Bytes once unpacked.
    """

    path: str
    name: str
    size: int

    def read(self, limit: int = MAX_FILE_BYTES) -> bytes:
        """The unpacked bytes, or the first ``limit`` of them.

        Raises:
            Unusable: As for :meth:`Span.read`; also if encrypted, packed otherwise, or corrupt.
        """
        _check_size(self.size)
        wanted = min(self.size, limit)
        archive = _opened(self.path, os.getpid())
        member = archive.getinfo(self.name)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Unusable(f"packed by zip method {member.compress_type}, not stored or deflated")
        if member.flag_bits & 1:
            raise Unusable("encrypted")
        try:
            with archive.open(member) as file:
                data = file.read(wanted)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise Unusable(f"corrupt: {error}") from error
        except EOFError as error:
            raise Unusable("truncated") from error
        if len(data) < wanted:
            raise Unusable("truncated")
        return data


@lru_cache(maxsize=8)
def _opened(path: str, process: int) -> zipfile.ZipFile:
    """A zip, opened once per process: its threads may share it, a forked process may not."""
    return zipfile.ZipFile(path)


def _check_size(size: int) -> None:
    if size == 0:
        raise Unusable("empty")
    if size > MAX_FILE_BYTES:
        raise Unusable(f"more than {MAX_FILE_BYTES} bytes")


def zip_members(path: Path) -> list[tuple[str, ZipSpan]]:
    """Names and places of the files in a zip, in the zip's order; the last of equal names counts.

    Raises:
        ValueError: If the file is not a zip.
    """
    _opened.cache_clear()  # the file may have been replaced
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"expected a zip file, got {path} ({error}); download or pack it again"
        ) from error
    # Some packers on Windows write backslashes.
    found = {
        member.filename.replace("\\", "/"): ZipSpan(str(path), member.filename, member.file_size)
        for member in members
    }
    return list(found.items())


def tar_members(path: Path) -> tuple[list[tuple[str, Span]], str | None]:
    """Names and places of the files in an uncompressed tar, in the tar's order.

    Returns:
        The files, and what is wrong with the tar: None, or the reason why it was not read on.
    """
    found: dict[str, Span] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isreg():
                    name = member.name.removeprefix("./")
                    found[name] = Span(str(path), member.offset_data, member.size)
    except (tarfile.TarError, OSError) as error:
        return list(found.items()), "truncated" if found else f"not a tar file: {error}"
    return list(found.items()), None


def expand_braces(pattern: str) -> list[str]:
    """All names that a pattern with ``{000..099}`` or ``{a,b}`` stands for, in its order.

    Example:
        >>> expand_braces("shard-{08..10}.tar")
        ['shard-08.tar', 'shard-09.tar', 'shard-10.tar']
        >>> expand_braces("{a,b}-{0..1}.tar")
        ['a-0.tar', 'a-1.tar', 'b-0.tar', 'b-1.tar']
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(parts) for parts in product(*choices)]


def _choices(braced: str) -> list[str]:
    """What one pair of braces stands for: a range of numbers, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braced)
    if numbers is None:
        return braced.split(",")
    first, last = numbers.groups()
    # A leading zero asks for equal widths, as in the shell.
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


class Sample(NamedTuple):
    """One image of a shard, and its label where the shard has one."""

    name: str
    image: Span
    label: int | None


def read_shards(shards: Iterable[tuple[str, Path]]) -> tuple[list[Sample], list[Skipped]]:
    """The samples of WebDataset shards.

    The files of a sample share folder and name up to the first dot. The image is its first file of
    an extension in `IMAGE_EXTENSIONS`; the label is the integer in its ``.cls``, or else the
    integer ``label`` in its ``.json``.

    Args:
        shards: Name and path of each tar.

    Returns:
        The samples, shard by shard and sorted by name in each; and what was left out: samples
        without an image, and tars that end early or are none.
    """
    samples: list[Sample] = []
    skipped: list[Skipped] = []
    for shard, path in shards:
        members, problem = tar_members(path)
        if problem is not None:
            skipped.append(Skipped(shard, problem))
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
    """The label of a sample; None where there is none, or none that is an integer."""
    try:
        if "cls" in files:
            return int(files["cls"][1].read())
        if "json" in files:
            label = json.loads(files["json"][1].read())["label"]
            return label if isinstance(label, int) and not isinstance(label, bool) else None
    except (Unusable, ValueError, KeyError, TypeError, RecursionError):
        return None
    return None
