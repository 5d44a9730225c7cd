"""Measurements kept beside the runs: recipes share what is measured on an untrained encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

import unremix
from unremix.files.atomic_files import read_text, write_text
from unremix.files.fingerprint import fingerprint


def cached(
    runs: Path, options: Sequence[Any], tensors: Iterable[Tensor], measure: Callable[[], Any]
) -> Any:
    """What was measured before, or is measured now; it can be written as JSON.

    Options, as JSON has them, and tensors are all that the measurement depends on.
    """
    digest = fingerprint([json.dumps([unremix.__version__, *options]), *tensors])
    path = runs / ".cache" / f"untrained-{digest[:16]}.json"
    with suppress(OSError, ValueError):  # none yet, or a damaged one
        return json.loads(read_text(path))
    found = json.dumps(measure())
    write_text(path, found)
    return json.loads(found)
