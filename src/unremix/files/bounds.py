"""Bounds on what a file can make a reader do: of memory, and of messages.

Every reader either succeeds or raises a ``ValueError`` that names file, problem and remedy, within
memory of ten times the file plus 1 GiB. Decoded images that are kept come on top of that; see
``cache_bytes`` of :func:`unremix.domains.image.dataset.load_images`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

FREE = 2**29  # bytes that any file may become in memory
FACTOR = 4  # further bytes per byte of the file
SAFE_TORCH = "2.10"  # below it, weights_only=True does not stop every forged archive


def allowance(size: int) -> int:
    """How many bytes a file of ``size`` bytes may become in memory: half of what a reader may take.

    Example:
        >>> allowance(1000)
        536874912
    """
    return FREE + FACTOR * size


def shorten(value: object, most: int = 160) -> str:
    """A value as text for a message, cut to a bounded length.

    Example:
        >>> shorten("a" * 1000, most=10)
        'aaaaaaa...'
        >>> shorten([1, 2, 3])
        '[1, 2, 3]'
    """
    text = str(value) if isinstance(value, str | BaseException) else reprlib.repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


@contextmanager
def sound(
    what: str,
    got: object,
    remedy: str,
    kind: type[Exception] | tuple[type[Exception], ...] = Exception,
    *,
    alien: bool = False,
) -> Iterator[None]:
    """Turn what a library raises inside for damaged data into one sentence that names them.

    Args:
        what: What was expected.
        got: Where it was expected, such as a path.
        remedy: What to do.
        kind: What it raises; anything, by default.
        alien: Whether only what needs words is turned: no missing package, no error of the
            operating system, which has a number, and no sentence of ours.

    Example:
        >>> with sound("a number", "notes.txt", "write one"):
        ...     float("one")
        Traceback (most recent call last):
        ValueError: expected a number, got notes.txt (could not convert ...); write one
    """
    try:
        yield
    except kind as error:
        ours = isinstance(error, ImportError) or str(error).startswith("expected ")
        if alien and (ours or getattr(error, "errno", None) is not None):
            raise
        raise ValueError(f"expected {what}, got {got} ({shorten(error)}); {remedy}") from error


def check_torch(*, trust: bool = False) -> None:
    """Refuse to read an archive by a torch that a forged one could harm.

    Raises:
        ValueError: If it could, and the archive is not trusted.
    """
    import torch

    if not trust and torch.__version__ < SAFE_TORCH:
        raise ValueError(
            f"an archive of torch, which versions below {SAFE_TORCH} do not read safely, and this "
            f"is {torch.__version__}: upgrade torch, or add --trust if you know who wrote it"
        )
