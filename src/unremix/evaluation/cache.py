"""Measurements kept beside the runs: recipes share what is measured on an untrained encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unremix.data.atomic_files import read_text, write_text

if TYPE_CHECKING:
    from hashlib import _Hash


def kept(runs: Path, digest: _Hash, measure: Callable[[], Any]) -> Any:
    """What was measured before, or is measured now.

    Args:
        runs: Folder of the runs.
        digest: Of all that the measurement depends on.
        measure: Measures; what it returns can be written as JSON.
    """
    path = runs / ".cache" / f"untrained-{digest.hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):  # none yet, or a damaged one
        return json.loads(read_text(path))
    found = json.dumps(measure())
    write_text(path, found)
    return json.loads(found)
