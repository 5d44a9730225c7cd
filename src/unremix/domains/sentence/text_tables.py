"""Texts from a column of a table, perhaps with labels in another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unremix.domains import rows
from unremix.domains.rows import column
from unremix.files.atomic_files import write_text
from unremix.files.bounds import shorten

TEXTS = ("text", "sentence", "content", "body", "document", "title", "question", "abstract")
LABELS = ("label", "labels", "topic", "target", "class", "category", "intent", "y")


def read_texts(path: Path, text: str | None, label: str | None) -> Iterator[tuple[str, str | None]]:
    """The text of each row and, if there is a column of labels, its label; stripped.

    Args:
        path: A file whose name ends in one of :data:`unremix.domains.rows.SUFFIXES`.
        text: The column of texts; by default the first of ``TEXTS`` that there is.
        label: The column of labels; by default the first of ``LABELS``, if there is one; empty for
            none.

    Raises:
        ValueError: For a column that is not there, or a line that is no row.
    """
    columns: list[str | None] = []
    for where, row in rows.read_rows(path):
        columns = columns or [
            column(row, TEXTS, asked=text, what="texts (--sentence.text)", where=where),
            column(
                row, LABELS, asked=label, what="labels (--sentence.label)", where=where,
                needed=False,
            ),
        ]  # fmt: skip
        cells = [row.get(name) for name in columns if name is not None]
        if any(cell is None or isinstance(cell, list | dict) for cell in cells):
            raise ValueError(
                f"expected {' and '.join(filter(None, columns))} in {where}, got {shorten(row)}; "
                "complete or remove it"
            )
        found = [str(cell).strip() for cell in cells]
        yield found[0], found[1] if len(found) > 1 else None


def recognizes(source: str) -> bool:
    """Whether a path is that of a text, or of a table with a column of texts."""
    path = Path(source)
    if not path.is_file() or path.suffix.lower() not in rows.SUFFIXES:
        return path.is_file() and ".txt" in path.suffixes
    try:
        _, first = next(rows.read_rows(path))
    except (OSError, StopIteration, ValueError):
        return False
    return any(" " in str(first.get(name, "")) for name in TEXTS)


def holds(items: Any) -> bool:
    """Whether items in memory are texts."""
    listed = isinstance(items, list | tuple) and len(items) > 0
    return listed and all(isinstance(one, str) for one in items)


def write(items: Any, classes: Sequence[Any] | None, path: Path) -> Path:
    """Write texts in memory as JSON lines."""
    rows: list[dict[str, str]] = [{"text": text} for text in items]
    for row, label in zip(rows, classes or (), strict=False):
        row["label"] = str(label)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_text(path.with_suffix(".jsonl"), lines)
    return path.with_suffix(".jsonl")
