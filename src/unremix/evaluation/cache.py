"""Measurements cached beside the runs: recipes share those of the untrained encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

import unremix
from unremix.files.fingerprint import fingerprint
from unremix.files.seals import read_sealed, write_sealed


def cached(
    runs: Path, options: Sequence[Any], tensors: Iterable[Tensor], measure: Callable[[], Any]
) -> Any:
    """A measurement from the cache, or else a new one, which is cached as JSON.

    It must depend on nothing but the tensors and the options, which are written as JSON, too.
    """
    digest = fingerprint([json.dumps([unremix.__version__, *options]), *tensors])
    path = runs / ".cache" / f"untrained-{digest[:16]}.json"
    kept = read_sealed(path)
    if kept is None:  # none yet, or not as it was written
        kept = json.dumps(measure()).encode()
        write_sealed(path, lambda file: file.write_bytes(kept))
    return json.loads(kept)
