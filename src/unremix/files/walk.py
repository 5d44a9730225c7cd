"""All files below a folder, in sorted order; links are followed, but never round in circles."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from unremix.files.bounds import shorten

MOST_VISITS = 100  # of one folder, by different links


class Entry(NamedTuple):
    """What was met below a folder.

    Args:
        name: Relative to the folder, with ``/``.
        path: Where it is.
        status: Of a file, or what a link leads to; None if it cannot be read.
        problem: Why not.
    """

    name: str
    path: Path
    status: os.stat_result | None
    problem: OSError | None = None


def walk(folder: Path) -> Iterator[Entry]:
    """The files below a folder and its sub-folders, and the folders that cannot be read.

    Hidden folders are left out. A link to a folder is followed, unless it leads back to a folder
    that it lies in.

    Raises:
        ValueError: If links lead to one folder again and again.
    """
    visits: Counter[tuple[int, int]] = Counter()
    # Folders still to be read, each with the identities of the folders it lies in.
    waiting: list[tuple[str, Path, frozenset[tuple[int, int]]]] = [("", folder, frozenset())]
    while waiting:
        name, place, above = waiting.pop()
        try:
            status = place.stat()
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                continue
            with os.scandir(place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield Entry(name, place, None, error)
            continue
        visits[identity] += 1
        if visits[identity] > MOST_VISITS:
            raise ValueError(
                f"expected a folder without links in circles, got {folder}, where links lead "
                f"to {shorten(place)} more than {MOST_VISITS} times; remove some of the links"
            )
        below, inside = [], above | {identity}
        for entry in entries:
            inner = f"{name}/{entry.name}" if name else entry.name
            path = place / entry.name
            try:
                if entry.is_dir():
                    if not entry.name.startswith("."):
                        below.append((inner, path, inside))
                    continue
                yield Entry(inner, path, path.stat())
            except OSError as error:
                yield Entry(inner, path, None, error)
        waiting += reversed(below)
