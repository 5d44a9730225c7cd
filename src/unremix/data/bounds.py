"""What a file may make a reader do: bounds of memory, and of what is printed.

Every reader either succeeds or raises a ``ValueError`` that names file, problem and remedy, within
memory of ten times the file plus 1 GiB. Decoded images that are kept come on top of that; see
``cache_bytes`` of :func:`unremix.data.image.dataset.load_images`.
"""

from __future__ import annotations

import reprlib

FREE = 2**29  # bytes that any file may become, however small it is
FACTOR = 4  # and how many for each of its own


def allowance(size: int) -> int:
    """How many bytes a file of ``size`` bytes may become in memory: half of what a reader may take.

    Example:
        >>> allowance(1000)
        536874912
    """
    return FREE + FACTOR * size


def shorten(value: object, most: int = 160) -> str:
    """A value in words for a message, which the value itself must not flood.

    Example:
        >>> shorten("a" * 1000, most=10)
        'aaaaaaa...'
        >>> shorten([1, 2, 3])
        '[1, 2, 3]'
    """
    text = str(value) if isinstance(value, str | BaseException) else reprlib.repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
