"""The paper's tables and figures: what they are stands in YAML, how they are made in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unremix.console.values import read_yaml


def read_data(name: str) -> Any:
    """What one of this folder's YAML files says.

    Example:
        >>> list(read_data("scales"))
        ['smoke', 'cpu', 'paper']
    """
    return read_yaml((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))
