"""Files inside archives, read where they are.

No archive is ever unpacked, so no name in it can lead anywhere. Every thread and every process,
forked or spawned, can read at once. No archive is trusted: sizes are bounded before anything
is read, and a header that leads back or never ends is refused.
"""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple, cast

from unremix.files.atomic_files import checked, open_file
from unremix.files.bounds import allowance, shorten, sound
from unremix.files.remote import RemoteFile, fetch, kept, read_range

MAX_FILE_BYTES = 2**30
# A packed file may unpack to SMALL bytes plus USUAL bytes per packed byte.
SMALL, USUAL = 2**24, 8
HEADERS = 2**16  # bytes of headers before a file in a tar
ZIP_HEADER = 30  # bytes, at least, before the data of a zip's member
PIECE = 2**20  # bytes read at a time


class Unusable(Exception):
    """A file that cannot be used; the message is the reason."""


class Skipped(NamedTuple):
    """A file that was left out, and why."""

    name: str
    reason: str


def name_some(skipped: Sequence[Skipped], most: int = 5) -> str:
    """Files and reasons in words; beyond ``most``, only their number."""
    words = ", ".join(f"{shorten(name)} ({shorten(reason)})" for name, reason in skipped[:most])
    return words if len(skipped) <= most else f"{words} and {len(skipped) - most} more"


class Span(NamedTuple):
    """A whole file, or a member of a tar: ``size`` bytes of ``path`` from ``offset`` on."""

    path: str
    offset: int
    size: int

    def read(self, limit: int = MAX_FILE_BYTES, most: int = MAX_FILE_BYTES) -> bytes:
        """The bytes, or the first ``limit`` of them.

        Raises:
            Unusable: If the file is empty, longer than ``most``, or cut off.
        """
        _check_size(self.size, most)
        wanted = min(self.size, limit)
        with open_file(self.path) as file:
            file.seek(self.offset)
            return _exactly(file, wanted)


class RemoteSpan(NamedTuple):
    """A whole file behind a URL, or a member of a tar there.

    Args:
        file: The file.
        offset: Where its bytes begin.
        size: How many there are.
        whole: Whether reading it fetches the file into the cache first, if there is room for it;
            see :mod:`unremix.files.remote`. A file that the cache has is always read there.
    """

    file: RemoteFile
    offset: int
    size: int
    whole: bool = True

    def read(self, limit: int = MAX_FILE_BYTES, most: int = MAX_FILE_BYTES) -> bytes:
        """The bytes, or the first ``limit`` of them.

        Raises:
            Unusable: If the file is empty or longer than ``most``.
            OSError: If it cannot be read in several attempts; a ConnectionError if it is a member
                of a tar that is gone.
        """
        _check_size(self.size, most)
        try:
            path = fetch(self.file) if self.whole else kept(self.file)
            if path is not None:
                with suppress(FileNotFoundError):  # a stream may just have removed it
                    return Span(str(path), self.offset, self.size).read(limit, most)
            return read_range(self.file, self.offset, min(self.size, limit))
        except FileNotFoundError as error:
            if not self.offset:
                raise
            # A shard is gone, with all its members: that is not to be taken for a bad image.
            raise ConnectionError(str(error)) from error


AnySpan = Span | RemoteSpan


class ZipSpan(NamedTuple):
    """A member of a zip, of ``size`` bytes once unpacked and ``packed`` bytes in the zip."""

    path: str
    name: str
    size: int
    packed: int

    def read(self, limit: int = MAX_FILE_BYTES, most: int | None = None) -> bytes:
        """The unpacked bytes, or the first ``limit`` of them.

        By default, the largest size accepted is what pictures of this packed size may have.

        Raises:
            Unusable: As for :meth:`Span.read`; also if encrypted, packed otherwise, or corrupt.
        """
        usual = min(MAX_FILE_BYTES, SMALL + USUAL * self.packed)
        _check_size(self.size, usual if most is None else most)
        wanted = min(self.size, limit)
        with self._open() as file:
            return _exactly(file, wanted)

    def fill(self, content: bytearray) -> None:
        """Read all of the unpacked bytes into an array of their size.

        Raises:
            Unusable: As for :meth:`read`.
        """
        with self._open() as file:
            if fill(file, content) < len(content):
                raise Unusable("truncated")

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            archive = _opened(self.path, os.getpid())
            member = archive.getinfo(self.name)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = member.compress_type
                raise Unusable(f"packed by zip method {method}, not stored or deflated")
            if member.flag_bits & 1:
                raise Unusable("encrypted")
            with archive.open(member) as file:
                yield file
        except EOFError as error:
            raise Unusable("truncated") from error
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError,
                KeyError, OSError) as error:  # fmt: skip
            raise Unusable(f"corrupt: {shorten(error)}") from error


def fill(file: IO[bytes], content: bytearray) -> int:
    """Fill an array from a file; how many bytes there were."""
    place, view = 0, memoryview(content)
    for piece in _pieces(file, len(content)):
        view[place : place + len(piece)] = piece
        place += len(piece)
    return place


def _exactly(file: IO[bytes], wanted: int) -> bytes:
    """The next bytes of a file, so many."""
    data = b"".join(_pieces(file, wanted))
    if len(data) < wanted:
        raise Unusable("truncated")
    return data


def _pieces(file: IO[bytes], wanted: int) -> Iterator[bytes]:
    """This many bytes, or all if there are fewer."""
    while wanted > 0 and (piece := file.read(min(wanted, PIECE))):
        wanted -= len(piece)
        yield piece


@lru_cache(maxsize=8)
def _opened(path: str, process: int) -> zipfile.ZipFile:
    """A zip, opened once per process: its threads may share it, a forked process may not."""
    return zipfile.ZipFile(path)


def _check_size(size: int, most: int) -> None:
    if size <= 0:
        raise Unusable("empty")
    if size > most:
        raise Unusable(f"more than {most} bytes")


def zip_members(path: Path) -> list[tuple[str, ZipSpan]]:
    """Names and places of the files in a zip, in the zip's order; the last of equal names counts.

    Raises:
        ValueError: If the file is not a zip, or its members overlap.
    """
    _opened.cache_clear()  # the file may have been replaced
    remedy = "download or pack it again"
    with sound("a zip file", path, remedy), zipfile.ZipFile(checked(path)) as archive:
        _check_overlaps(archive)
        members = [member for member in archive.infolist() if not member.is_dir()]
    # Some packers on Windows write backslashes.
    found = {
        member.filename.replace("\\", "/"): ZipSpan(
            str(path), member.filename, member.file_size, member.compress_size
        )
        for member in members
    }
    return list(found.items())


def _check_overlaps(archive: zipfile.ZipFile) -> None:
    """Refuse members that share bytes: a few of them could stand for any amount of data."""
    end, name = 0, ""
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise zipfile.BadZipFile(
                f"its members {shorten(name, 60)} and {shorten(member.filename, 60)} overlap"
            )
        end, name = member.header_offset + ZIP_HEADER + member.compress_size, member.filename
    if end > archive.start_dir:
        raise zipfile.BadZipFile(f"its member {shorten(name, 60)} is longer than the zip")


class Endless(tarfile.ReadError):
    """Headers of a tar that lead back, or do not end."""


class _Guarded:
    """An unpacked tar of at most ``end`` bytes, whose headers are read a few bytes at a time."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self.file = file
        self.end = end
        self.left = HEADERS  # of the headers before the next member
        self.tell = file.tell

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= self.left:
            raise Endless(f"headers of more than {HEADERS} bytes")
        self.left -= count
        return self.file.read(count)

    def seek(self, place: int) -> int:
        if not 0 <= place <= self.end:
            raise Endless(f"members beyond {self.end} bytes")
        return self.file.seek(place)


class BoundedTar:
    """The files of a tar, in its order.

    Args:
        file: The tar, unpacked.
        end: Where it ends at the latest.

    Raises:
        tarfile.TarError: If it is no tar; or, as any other exception, if it is broken.
    """

    def __init__(self, file: IO[bytes], end: int) -> None:
        self.guard = _Guarded(file, end)
        self.archive = tarfile.TarFile(fileobj=self.guard, mode="r")  # type: ignore[arg-type]

    def files(self) -> Iterator[tarfile.TarInfo]:
        """The regular files; those with holes are left out."""
        last = -1
        while (member := self.archive.next()) is not None:
            if member.size < 0 or member.offset <= last:
                raise Endless("a member that leads back")
            last = member.offset
            self.guard.left = HEADERS
            vars(self.archive)["members"] = []  # else it keeps them all
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
                yield member

    @property
    def has_end(self) -> bool:
        """Whether the tar, once read, ends with the mark that every writer puts there."""
        self.guard.file.seek(self.archive.offset)
        return bool(self.guard.file.read(1))

    def read(self, member: tarfile.TarInfo, most: int) -> bytes:
        """The bytes of a file.

        Raises:
            Unusable: If it is longer than ``most``, empty, or cut off.
        """
        _check_size(member.size, most)
        self.guard.file.seek(member.offset_data)
        return _exactly(self.guard.file, member.size)


def open_maybe_packed(path: Path, packed: bool) -> IO[bytes]:
    """Open a file, unpacking it if it is packed by gzip."""
    return cast(IO[bytes], gzip.open(checked(path))) if packed else open_file(path)


@contextmanager
def open_tar(path: Path, *, packed: bool) -> Iterator[BoundedTar]:
    """Open a tar, or one packed by gzip, which may unpack to a bounded size."""
    end = allowance(path.stat().st_size) if packed else sys.maxsize
    with open_maybe_packed(path, packed) as file:
        yield BoundedTar(file, end)


def tar_members(path: Path) -> tuple[list[tuple[str, Span]], str | None]:
    """Names and places of the files in an uncompressed tar, in the tar's order.

    Returns:
        The files, and what is wrong with the tar: None, or why reading stopped.
    """
    found: dict[str, Span] = {}
    problem = None
    try:
        with open_tar(path, packed=False) as archive:
            for member in archive.files():
                name = member.name.removeprefix("./")
                found[name] = Span(str(path), member.offset_data, member.size)
            if not archive.has_end:  # cut off between two members, where nothing else shows it
                problem = "truncated: no mark of its end"
    except Endless as error:
        problem = f"not read on: {error}"
    except Exception as error:  # broken headers raise almost anything
        problem = "truncated" if found else f"not a tar file: {shorten(error)}"
    return list(found.items()), problem
