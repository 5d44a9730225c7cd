"""Seals of files that are read only where this user wrote them: caches, indexes of faiss.

A checksum finds accidents; a seal finds forgers, too. It is an HMAC of a file's name and bytes with
a key that lies in the user's cache and is never shared, so a file from elsewhere, even a sound one,
is not sealed, and none can take the place of another.
"""

from __future__ import annotations

import hmac
import io
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from unremix.files.atomic_files import READ, open_file, write_whole
from unremix.files.fingerprint import feed
from unremix.user_cache import user_cache

SIZE = 32  # bytes of a key and of a seal


def write_sealed(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file through ``write(temporary path)``, with a seal at its end.

    Where no key can be kept there is no seal, and the file is made again each time.
    """

    def write_and_seal(temporary: Path) -> None:
        write(temporary)
        key = _key()
        if key is not None:
            with temporary.open("rb+") as file:
                file.write(_seal(file, os.fstat(file.fileno()).st_size, path.name, key))

    write_whole(path, write_and_seal)


def is_sealed(path: Path) -> bool:
    """Whether this user wrote a file under this name, and it is as it was then."""
    try:
        with open_file(path, inside=path.parent) as file:
            return _matches(file, os.fstat(file.fileno()).st_size, path.name)
    except OSError:
        return False


def read_sealed(path: Path) -> bytes | None:
    """What this user wrote to a file; None if there is nothing, or it is not as it was then."""
    try:
        with open_file(path, inside=path.parent) as file:
            data = file.read()
    except OSError:
        return None
    return data[:-SIZE] if _matches(io.BytesIO(data), len(data), path.name) else None


def _matches(file: BinaryIO, size: int, name: str) -> bool:
    """Whether the last bytes of a file are its seal."""
    key = _key()
    if key is None or size < SIZE:
        return False
    made = _seal(file, size - SIZE, name, key)
    return hmac.compare_digest(file.read(), made)


def _seal(file: BinaryIO, size: int, name: str, key: bytes) -> bytes:
    """The seal of the first bytes of a file; the file stands behind them."""
    file.seek(0)
    return feed(hmac.new(key, os.fsencode(name) + b"\0", "sha256"), file, size).digest()


def _key() -> bytes | None:
    """The user's key, made when first needed; None if it cannot be kept private."""
    try:
        path = user_cache() / "seal.key"
        if not path.exists():
            _make_key(path)
        descriptor = os.open(path, READ | getattr(os, "O_NOFOLLOW", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            key = file.read(SIZE + 1)
    except (OSError, RuntimeError):  # or no home folder
        return None
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    private = not stat.S_IMODE(status.st_mode) & 0o077
    return key if own and private and len(key) == SIZE else None


def _make_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # for this user alone
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
