"""Writing files so that nothing already saved is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of ``path`` once it is written whole.

    Raises:
        OSError: If the disk is full; what stood at ``path`` before stands there still.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # some writers make private files
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if _is_full(error):
            kept = "; the earlier one is intact" if path.exists() else ""
            raise OSError(
                errno.ENOSPC,
                f"expected room on the disk for {path}, received 'no space left'{kept}; free some "
                "space and go on with --resume",
            ) from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _is_full(error: BaseException | None) -> bool:
    # torch.save reports a failed write as a RuntimeError around or without the OSError.
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    if isinstance(error, RuntimeError) and (
        "No space left" in str(error) or "PytorchStreamWriter failed" in str(error)
    ):
        return True
    return error is not None and error.__cause__ is not None and _is_full(error.__cause__)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file through ``write(temporary path)``, then put it in its place."""
    with replacing(path) as temporary:
        write(temporary)
