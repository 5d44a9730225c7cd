"""The folder for this user's cached files, which can all be made again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/unremix``, by default ``~/.cache/unremix``.

    A relative path in the variable is ignored, as the XDG specification asks.

    Raises:
        RuntimeError: If there is no home folder.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict(os.environ, XDG_CACHE_HOME="/scratch"):
        ...     str(user_cache())
        '/scratch/unremix'
    """
    root = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "unremix"
