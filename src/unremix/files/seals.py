"""Seals of files that are only safe to read where this user wrote them, such as indexes of faiss.

A checksum finds accidents; a seal finds forgers, too. It is an HMAC with a key that lies in the
user's cache and is never shared, so a file from elsewhere, even a sound one, is not sealed.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from unremix.user_cache import user_cache

SIZE = 32  # bytes of a key and of a seal
AT_ONCE = 1 << 20  # bytes


def seal(path: Path) -> None:
    """Append a seal to a file; nothing happens where no key can be kept."""
    key = _key()
    if key is not None:
        found = _digest(path, path.stat().st_size, key)
        with path.open("ab") as file:
            file.write(found)


def is_sealed(path: Path) -> bool:
    """Whether this user sealed a file, and it is as it was then."""
    if not path.is_file():
        return False
    key, size = _key(), path.stat().st_size - SIZE
    if key is None or size < 0:
        return False
    with path.open("rb") as file:
        file.seek(size)
        return hmac.compare_digest(file.read(), _digest(path, size, key))


def _digest(path: Path, size: int, key: bytes) -> bytes:
    """The seal of the first bytes of a file."""
    found = hmac.new(key, digestmod="sha256")
    with path.open("rb") as file:
        while size > 0 and (part := file.read(min(AT_ONCE, size))):
            found.update(part)
            size -= len(part)
    return found.digest()


def _key() -> bytes | None:
    """The user's key, made when first needed; None if it cannot be kept private."""
    try:
        path = user_cache() / "seal.key"
        if not path.exists():
            _make_key(path)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
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
