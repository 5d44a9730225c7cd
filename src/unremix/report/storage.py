"""``report.npz``: what a page is made of, in one compact file of the run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.data.atomic_files import write_arrays
from unremix.data.npz import read_arrays

NAME = "report.npz"
VERSION = 2
"""Of the file's layout: a file of another version is made again."""


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
        """What a run folder holds; None where it holds nothing that this version can read."""
        try:
            arrays = read_arrays(folder / NAME)
            about = json.loads(arrays.pop("about").tobytes())
        except (OSError, KeyError, ValueError, RecursionError):
            return None
        if not isinstance(about, dict) or about.pop("version", None) != VERSION:
            return None
        return cls(about, arrays)
