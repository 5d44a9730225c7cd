"""Files behind a URL such as ``s3://…``, by fsspec: kept in a local cache, or read where they are.

Every request is tried several times. What still fails is an error that names the URL and the
reason; what arrives shorter than it should be is not kept.

The cache is the folder that ``UNREMIX_CACHE`` names, by default ``data`` in the user's cache
(:func:`unremix.user_cache.user_cache`). A file is kept while the cache has room:
``UNREMIX_CACHE_BYTES``, or as long as it takes at most half of what is free on its disk, and leaves
10 GiB, or a tenth of a small disk.
Other files are read where they are, again each time. Only streams make room: they remove the files
that were used least recently (:func:`fetch_and_hold`).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from glob import escape, glob
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unremix.files.atomic_files import (
    disk_error,
    hold,
    read_bytes,
    remove_unheld,
    replacing,
    sweep,
    try_lock,
    write_bytes,
)
from unremix.files.bounds import shorten
from unremix.user_cache import user_cache

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt, twice as long before each further one
PATIENCE = 60.0  # seconds without a byte
LEFT_FREE = 10 * 2**30  # bytes of the disk; a tenth of a small one
POLL = 0.05  # seconds between looks at a file that another process is fetching
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
PACKAGES = {"s3": '"unremix[s3]"', "s3a": '"unremix[s3]"', "gs": "gcsfs", "gcs": "gcsfs",
            "hf": '"unremix[hub]"', "abfs": "adlfs", "az": "adlfs"}  # fmt: skip
# What changes when a file does, as file systems call it.
TAGS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "blob_id", "mtime")
Result = TypeVar("Result")


def is_url(data: object) -> bool:
    """Whether data are named by a URL.

    Example:
        >>> is_url("s3://bucket/shard-{000..099}.tar"), is_url("photos/cats")
        (True, False)
    """
    return isinstance(data, str) and URL.match(data) is not None


class RemoteFile(NamedTuple):
    """A file behind a URL as it was when it was found.

    Args:
        url: Where it is.
        size: Its bytes; -1 if the server does not say.
        tag: Changes when the file does; empty if the server gives none.
    """

    url: str
    size: int
    tag: str

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        ImportError: If the package that reads such URLs is not installed.
        ValueError: If nobody reads such URLs.
    """
    protocol = url.partition("://")[0].lower()
    if "::" in url:  # what one file says would decide which others are opened, and how
        raise ValueError(
            f"expected one URL, got a chain of several, {url!r}; name the last of them alone"
        )
    import fsspec  # which comes with torch

    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        options["config_kwargs"] = {
            "read_timeout": PATIENCE,
            "connect_timeout": PATIENCE,
            "retries": {"total_max_attempts": 1},
        }
    elif protocol in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE, sock_read=PATIENCE)
        options["client_kwargs"] = {"timeout": timeout}
    try:
        found, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package = PACKAGES.get(protocol)
        remedy = f"pip install {package}" if package else shorten(error)
        raise ImportError(
            f"expected the package that reads {protocol}://, but it is not installed; {remedy}"
        ) from error
    except Exception as error:  # every file system raises its own
        raise ValueError(
            f"expected a URL that fsspec reads, got {url!r} ({shorten(error)})"
        ) from error
    if protocol in ("s3", "s3a"):
        found.retries = 1  # we repeat requests: its own would multiply the attempts, and the wait
    return found, path


def persist(what: str, call: Callable[[], Result]) -> Result:
    """Try a request until it succeeds, with longer and longer pauses between.

    Args:
        what: The URL.
        call: The request.

    Raises:
        FileNotFoundError: If there is no such file.
        PermissionError: If it may not be read; that is not tried again.
        ConnectionError: If the last attempt failed, too.
    """
    attempts = 0
    while True:
        attempts += 1
        try:
            return call()
        except (PermissionError, ImportError, NotImplementedError):
            raise
        except Exception as error:  # every file system raises its own
            if disk_error(error) is not None:
                raise
            if attempts >= ATTEMPTS:
                missing = isinstance(error, FileNotFoundError)
                reason = "no such file" if missing else shorten(str(error) or type(error).__name__)
                kind = FileNotFoundError if missing else ConnectionError
                raise kind(
                    f"expected to read {what}, got '{reason}' in {attempts} attempts; check the "
                    "URL and the network"
                ) from error
            time.sleep(PAUSE * 2 ** (attempts - 1))


def remote_file(url: str) -> RemoteFile:
    """A file behind a URL.

    Raises:
        OSError: If it cannot be reached; see :func:`persist`.
    """
    files, path = file_system(url)
    return _described(url, persist(url, lambda: files.info(path)))


def _described(url: str, info: dict[str, Any]) -> RemoteFile:
    tags = (info.get(key) for key in TAGS)
    size = info.get("size")
    return RemoteFile(url, -1 if size is None else int(size), str(next(filter(None, tags), "")))


def list_files(url: str) -> list[tuple[str, RemoteFile]]:
    """All files below a URL by their names relative to it, sorted.

    Raises:
        FileNotFoundError: If there are none.
    """
    files, path = file_system(url)
    found: dict[str, dict[str, Any]] = persist(url, lambda: files.find(path, detail=True))
    root, base = path.rstrip("/") + "/", url.rstrip("/")
    names = {name.removeprefix(root): info for name, info in found.items() if name != path}
    if not names:
        raise FileNotFoundError(f"expected files below {url}, found none; check the URL")
    return [(name, _described(f"{base}/{name}", names[name])) for name in sorted(names)]


def cache_folder() -> Path:
    """Where files are kept."""
    named = os.environ.get("UNREMIX_CACHE")
    return Path(named).expanduser() if named else user_cache() / "data"


@lru_cache(maxsize=2**16)  # asked for each sample of a shard
def _kept_at(file: RemoteFile, folder: Path) -> Path:
    """Where a file is kept, if it is."""
    identity = "\0".join(map(str, file)).encode("utf-8", "backslashreplace")
    digest = hashlib.sha256(identity).hexdigest()[:32]
    return folder / digest[:2] / digest / file.name


def kept(file: RemoteFile) -> Path | None:
    """Where the cache has a file; None if it has not."""
    path = _kept_at(file, cache_folder())
    return path if os.path.exists(path) else None


def fetch(file: RemoteFile, *, make_room: bool = False) -> Path | None:
    """A file in the cache, fetched if it is not there; None if the cache has no room for it.

    Processes of one machine that want the same file wait for the first of them.

    Args:
        file: The file.
        make_room: Whether to remove others for it, those used least recently first.

    Raises:
        OSError: If it cannot be read; see :func:`persist`.
    """
    if (present := kept(file)) is not None:
        return present
    path = _kept_at(file, cache_folder())
    with locked(path.parent.name[:2]):
        if path.exists():
            return path
        with _reserved(max(file.size, 0), make_room=make_room) as there_is_room:
            if not there_is_room:
                return None
            sweep(path.parent)
            download(file, path)
    return path


def fetch_or_refuse(file: RemoteFile) -> Path:
    """A file in the cache, fetched if it is not there.

    Raises:
        OSError: If it cannot be read, see :func:`persist`, or the cache has no room for it.
    """
    path = fetch(file)
    if path is None:
        raise OSError(
            f"expected room in the cache for {file.url}, found too little; free some, or name "
            "another folder by UNREMIX_CACHE"
        )
    return path


def fetch_and_hold(file: RemoteFile) -> int | None:
    """Fetch a file, in place of others if need be, and hold it in the cache.

    Returns:
        A descriptor: no process removes the file until it is closed. None if the cache has no room
        beside the files that are held.

    Raises:
        OSError: If it cannot be read; see :func:`persist`.
    """
    for _ in range(ATTEMPTS):
        path = fetch(file, make_room=True)
        if path is None:
            return None
        descriptor = hold(path)
        if descriptor is not None:  # else another process removed it before we had it
            os.utime(path)
            return descriptor
    return None


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of the cache on this machine; wait for other holders.

    Args:
        name: Of the lock.
    """
    if not os.environ.get("UNREMIX_CACHE"):  # private: files may have needed a password
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    while (held := try_lock(cache_folder() / ".locks" / name)) is None:
        time.sleep(POLL)
    try:
        yield
    finally:
        os.close(held)


def download(file: RemoteFile, path: Path) -> None:
    """Write a file whole, or not at all.

    Raises:
        OSError: If it cannot be read; see :func:`persist`.
    """

    def whole() -> None:
        files, remote = file_system(file.url)
        with replacing(path) as temporary:
            files.get_file(remote, str(temporary))
            size = temporary.stat().st_size
            if file.size >= 0 and size != file.size:
                raise ConnectionError(f"{size} of {file.size} bytes")

    persist(file.url, whole)


def read_range(file: RemoteFile, start: int, size: int) -> bytes:
    """Some bytes of a file, read where it is.

    Raises:
        OSError: If they cannot be read; see :func:`persist`.
    """
    files, path = file_system(file.url)

    def some() -> bytes:
        data: bytes = files.cat_file(path, start=start, end=start + size)
        if len(data) != size:
            raise ConnectionError(f"{len(data)} of {size} bytes")
        return data

    return persist(file.url, some)


def read_place(place: str) -> bytes | None:
    """The contents of a small file at a path or URL; None if there is none.

    Raises:
        OSError: If it cannot be read; see :func:`persist`.
    """

    def read() -> bytes | None:
        try:
            data: bytes = files.cat_file(path)
        except FileNotFoundError:
            return None
        return data

    if is_url(place):
        files, path = file_system(place)
        return persist(place, read)
    return read_bytes(Path(place)) if Path(place).exists() else None


def write_place(place: str, data: bytes) -> None:
    """Write a small file at a path or URL, whole or not at all.

    Raises:
        OSError: If it cannot be written; see :func:`persist`.
    """
    if is_url(place):
        files, path = file_system(place)
        persist(place, lambda: files.pipe_file(path, data))
    else:
        write_bytes(Path(place), data)


@contextmanager
def _reserved(size: int, *, make_room: bool) -> Iterator[bool]:
    """Reserve room in the cache for a file about to be fetched; yield whether there is any.

    Args:
        size: Its bytes.
        make_room: Whether to remove files that nobody holds, those used least recently first.
    """
    folder = cache_folder() / ".reserved"
    folder.mkdir(parents=True, exist_ok=True)
    with locked("room"):
        sweep(folder)
        if make_room and not _has_room(size):
            for path, _ in sorted(_files(), key=lambda found: found[1].st_mtime_ns):
                if remove_unheld(path) and _has_room(size):
                    break
        there_is_room = _has_room(size)
        # A file of that size, of which nothing is on the disk; swept if this process is killed.
        place = folder / f".unremix-{os.getpid()}-{secrets.token_hex(8)}.tmp"
        if there_is_room:
            with place.open("wb") as reserved:
                reserved.truncate(size)
    try:
        yield there_is_room
    finally:
        place.unlink(missing_ok=True)


def _has_room(size: int) -> bool:
    """Whether there is room beside the files of the cache and those that are being fetched."""
    waiting = _with_status((cache_folder() / ".reserved").iterdir())
    reserved = sum(status.st_size for _, status in waiting)
    most = os.environ.get("UNREMIX_CACHE_BYTES")
    if most is not None:
        return sum(status.st_size for _, status in _files()) + reserved + size <= int(most)
    disk = shutil.disk_usage(cache_folder())
    free = disk.free - reserved
    return size <= free // 2 and free - size >= min(disk.total // 10, LEFT_FREE)


def _files() -> list[tuple[Path, os.stat_result]]:
    """The files of the cache, without those that are being fetched."""
    # Names that begin with a dot are left out. Pathlib's fails if a folder disappears meanwhile.
    return _with_status(map(Path, glob(f"{escape(str(cache_folder()))}/*/*/*")))


def _with_status(paths: Iterable[Path]) -> list[tuple[Path, os.stat_result]]:
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # another process may just have removed it
            found.append((path, path.stat()))
    return found
