"""Where data are: at a path, or below the folder that UNREMIX_DATA names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from unremix.files.atomic_files import checked
from unremix.files.remote import fetch_or_refuse, is_url, remote_file


def candidates(
    data: str | Path, *, folders: Sequence[str] = ("",), suffixes: Sequence[str] = ("",)
) -> list[Path]:
    """Where to look: at the path, then below UNREMIX_DATA.

    Args:
        data: A path or a name.
        folders: Where to look below UNREMIX_DATA.
        suffixes: What may be missing at the name's end there.
    """
    path, root = Path(data).expanduser(), os.environ.get("UNREMIX_DATA")
    if not root or path.is_absolute():
        return [path]
    base = Path(root).expanduser()
    return [path, *(base / below / f"{data}{end}" for below in folders for end in suffixes)]


def locate(
    data: str | Path,
    accepted: str,
    *,
    folders: Sequence[str] = ("",),
    suffixes: Sequence[str] = ("",),
) -> Path:
    """The path, if it exists, or the same name below UNREMIX_DATA; a URL is fetched.

    See :func:`candidates`; the error names what would have been accepted.

    Raises:
        FileNotFoundError: If there is nothing.
        NotAFileError: If it is a pipe or a device.
        OSError: If a URL cannot be read, or there is no room to keep the file.
    """
    if is_url(data):
        return fetch_or_refuse(remote_file(str(data)))
    places = candidates(data, folders=folders, suffixes=suffixes)
    for place in places:
        if place.exists():
            return place if place.is_dir() else checked(place)
    looked = " or ".join(repr(str(place)) for place in places)
    unset = not os.environ.get("UNREMIX_DATA")
    where = f" in {Path.cwd()} (UNREMIX_DATA is not set)" if unset else ""
    raise FileNotFoundError(f"expected data at {looked}, found nothing{where}; {accepted}")
