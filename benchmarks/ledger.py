"""Results kept as they come, and the table of paired differences that is made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unremix.evaluation.statistics import paired_difference, summarize
from unremix.files.atomic_files import write_whole

FOLDER = Path(__file__).parents[1] / "docs" / "results"


class Ledger:
    """A list of results in docs/results; what is there need not be computed again.

    Args:
        name: Of the file.
        keys: What tells one result from another.
    """

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.path, self.keys = FOLDER / name, tuple(keys)
        self.results: list[dict[str, Any]] = []
        if self.path.exists():
            self.results = json.loads(self.path.read_text())

    def __contains__(self, wanted: tuple[Any, ...]) -> bool:
        return any(tuple(one[key] for key in self.keys) == wanted for one in self.results)

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result, and write the file."""
        self.results.append(result)
        text = json.dumps(self.results, indent=1)
        write_whole(self.path, lambda file: file.write_text(text))

    def values(self, measure: str, **where: Any) -> dict[int, float]:
        """A measure by seed, of the results that are as ``where`` says."""
        return {
            one["seed"]: one[measure]
            for one in self.results
            if all(one[key] == value for key, value in where.items())
        }


def cell(values: dict[int, float]) -> str:
    """Mean ± deviation (seeds)."""
    if not values:
        return "–"
    found = summarize(list(values.values()))
    spread = "" if found.deviation is None else f" ± {found.deviation:.1f}"
    return f"{found.mean:.1f}{spread} ({found.count})"


def gap(values: dict[int, float], reference: dict[int, float]) -> str:
    """Mean difference of equal seeds [95 % interval]."""
    shared = sorted(values.keys() & reference.keys())
    if not shared:
        return "–"
    found = paired_difference([values[n] for n in shared], [reference[n] for n in shared])
    interval = "" if found.low is None else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean:+.1f}{interval}"


def to_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = [headings, ["---"] + ["--:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
