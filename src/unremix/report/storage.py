"""``report.npz``: the data behind a page, in one compact file of the run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.files.atomic_files import checked, write_arrays
from unremix.files.npz import read_arrays

NAME = "report.npz"
VERSION = 3
"""Of the file's layout: a file of another version is made again, but for the one before."""


@dataclass(frozen=True)
class Stored:
    """What was collected of a run."""

    about: dict[str, Any]  # everything that is not an array, as JSON has it
    arrays: dict[str, NDArray[Any]]  # embeddings, positions, scores, pictures and the like, by name

    def write(self, folder: Path) -> Path:
        """Write the file into a run folder."""
        text = json.dumps({"version": VERSION, **self.about}).encode()
        arrays = {"about": np.frombuffer(text, np.uint8), **self.arrays}
        write_arrays(folder / NAME, arrays, compressed=True)
        return folder / NAME

    @classmethod
    def read(cls, folder: Path) -> Stored | None:
        """What a run folder holds; None if this version can read nothing there."""
        try:
            arrays = read_arrays(checked(folder / NAME, inside=folder))
            about = json.loads(arrays.pop("about").tobytes())
        except (OSError, KeyError, ValueError, RecursionError):
            return None
        version = about.pop("version", None) if isinstance(about, dict) else None
        if version == VERSION - 1:  # said less of how items are shown
            shown = {"atlases": "thumbnail", "drawings": "drawing"}
            about["shown_as"] = next((shown[name] for name in shown if name in about), "text")
            about["finding"] = f"{about['unit']} find their positive"
        elif version != VERSION:
            return None
        return cls(about, arrays)
