"""``report.npz``: what a page is made of, in one compact file of the run folder."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unremix.data.atomic_files import write_arrays

NAME = "report.npz"
VERSION = 2
"""Of the file's layout: a file of another version is made again."""


@dataclass(frozen=True)
class Stored:
    """What was collected of a run.

    Args:
        about: Everything that is not an array, as JSON has it.
        arrays: Embeddings, positions, scores, pictures and the like, by name.
    """

    about: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

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
            with np.load(folder / NAME, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            about = json.loads(arrays.pop("about").tobytes())
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
            return None
        return cls(about, arrays) if about.pop("version", None) == VERSION else None
