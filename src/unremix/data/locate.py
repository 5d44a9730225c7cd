"""Where data are: at a path, or below the folder that UNREMIX_DATA names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def locate(
    data: str | Path,
    accepted: str,
    *,
    folders: Sequence[str] = ("",),
    suffixes: Sequence[str] = ("",),
) -> Path:
    """The path, or what has that name below UNREMIX_DATA.

    Args:
        data: A path or a name.
        accepted: What could have been there, for the error.
        folders: Where to look below UNREMIX_DATA.
        suffixes: What may be missing at the name's end there.

    Raises:
        FileNotFoundError: If there is nothing.
    """
    path, root = Path(data).expanduser(), os.environ.get("UNREMIX_DATA")
    candidates = [path]
    if root and not path.is_absolute():
        base = Path(root).expanduser()
        candidates += [base / below / f"{data}{end}" for below in folders for end in suffixes]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = " or ".join(repr(str(candidate)) for candidate in candidates)
    where = "" if root else f" in {Path.cwd()} (UNREMIX_DATA is not set)"
    raise FileNotFoundError(f"expected data at {looked}, found nothing{where}; {accepted}")
