"""Files behind a URL such as ``s3://…``, by fsspec: kept in a local cache, or read where they are.

Every request is tried several times. What still fails is an error that names the URL and the
reason; what arrives shorter than it should be is not kept.

The cache is the folder that ``UNREMIX_CACHE`` names, ``~/.cache/unremix/data`` by default. A file
is kept while the cache has room: ``UNREMIX_CACHE_BYTES``, or half of what is free on its disk.
Other files are read where they are, again each time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unremix.data.atomic_files import disk_error, replacing, sweep, try_lock
from unremix.data.bounds import shorten
from unremix.data.suggestions import needed_for

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt, twice as long before each further one
PATIENCE = 60.0  # seconds without a byte
POLL = 0.05  # seconds between looks at a file that another process is fetching
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
PACKAGES = {"s3": '"unremix[s3]"', "s3a": '"unremix[s3]"', "gs": "gcsfs", "gcs": "gcsfs",
            "hf": '"unremix[hub]"', "abfs": "adlfs", "az": "adlfs"}  # fmt: skip
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
        size: Its bytes; -1 where the server does not say.
        tag: Changes when the file does, where the server says so.
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
    with needed_for(f"{protocol}://"):
        import fsspec
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        options["config_kwargs"] = {"read_timeout": PATIENCE, "connect_timeout": PATIENCE}
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
    except ValueError as error:
        raise ValueError(f"expected a URL that fsspec reads, got {url!r} ({error})") from error
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
    tags = (info.get(key) for key in ("ETag", "etag", "LastModified", "mtime", "last_modified"))
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
    return Path(named or Path.home() / ".cache" / "unremix" / "data").expanduser()


@lru_cache(maxsize=2**16)  # asked for each sample of a shard
def _kept_at(file: RemoteFile, _: str | None) -> Path:
    """Where a file is kept, if it is, under a value of UNREMIX_CACHE."""
    digest = hashlib.sha256("\0".join(map(str, file)).encode()).hexdigest()[:32]
    return cache_folder() / digest[:2] / digest / file.name


def fetch(file: RemoteFile) -> Path | None:
    """A file in the cache, fetched if it is not there; None if the cache has no room for it.

    Processes of one machine that want the same file wait for the first of them.

    Raises:
        OSError: If it cannot be read; see :func:`persist`.
    """
    path = _kept_at(file, os.environ.get("UNREMIX_CACHE"))
    if os.path.exists(path):
        return path
    lock = cache_folder() / ".locks" / path.parent.name[:2]
    while (held := try_lock(lock)) is None:
        time.sleep(POLL)
    try:
        if path.exists():
            return path
        if not _has_room(max(file.size, 0)):
            return None
        sweep(path.parent)
        download(file, path)
    finally:
        os.close(held)
    return path


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


def _has_room(size: int) -> bool:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    most = os.environ.get("UNREMIX_CACHE_BYTES")
    if most is None:
        return size <= shutil.disk_usage(folder).free // 2
    used = 0
    for path in folder.glob("*/*/*"):
        with suppress(FileNotFoundError):  # another process may just have put it in its place
            used += path.stat().st_size
    return used + size <= int(most)
