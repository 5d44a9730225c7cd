"""Freed memory that a process keeps: faster losses on the CPU, in processes that are ours.

A loss allocates and frees a few arrays of some megabytes in every block. By default glibc returns
such memory to the system at once, and every block pays for fresh pages. Kept, a call at N = 1024
takes 70 ms in place of 81 with ``native``, and 106 in place of 168 with ``eager``.

The setting holds for the whole process, so ``import unremix`` and the losses never make it. The
command ``unremix train`` does; a program of your own may call :func:`keep_freed_memory`.
"""

from __future__ import annotations

import ctypes
import os
import sys

VARIABLE = "UNREMIX_KEEP_MEMORY"
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
KEPT = 2**29  # bytes of freed memory that the process keeps, at most; more gains nothing
LARGEST = 2**25  # bytes of an array that may be kept; older versions refuse more


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 512 MiB of freed memory; returns whether it does.

    Does nothing if ``UNREMIX_KEEP_MEMORY`` is 0, if the environment has settings for malloc (such
    as ``MALLOC_TRIM_THRESHOLD_``), or with another allocator.

    Example:
        >>> os.environ["UNREMIX_KEEP_MEMORY"] = "0"
        >>> keep_freed_memory()
        False
        >>> del os.environ["UNREMIX_KEEP_MEMORY"]
    """
    declined = os.environ.get(VARIABLE) == "0"
    settings = any(name.startswith("MALLOC_") for name in os.environ)
    if declined or settings or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    asked = ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, KEPT))
    return all(mallopt(parameter, value) == 1 for parameter, value in asked)
