"""Rows of a table by the names of its columns: .csv, .tsv, or an object of JSON on each line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unremix.console.suggestions import did_you_mean
from unremix.files.atomic_files import open_text
from unremix.files.bounds import shorten

SUFFIXES = (".csv", ".tsv", ".jsonl")
LONGEST_LINE = 2**24  # characters


def read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each row stands, in words, and its cells by column.

    Raises:
        ValueError: For a line that is no row.
    """
    return _json_lines(path) if path.suffix.lower() == ".jsonl" else _csv_rows(path)


def column(
    row: Mapping[str, Any],
    usual: Sequence[str],
    *,
    asked: str | None,
    what: str,
    where: str,
    needed: bool = True,
) -> str | None:
    """The name of a column: the one asked for, or the first usual one that there is.

    Args:
        row: A row with all columns.
        usual: Names to look for, without regard to case; an empty ``asked`` looks for none.
        asked: The name that was asked for, if any.
        what: What the column holds, in the plural.
        where: Where the row is.
        needed: Whether there has to be one.

    Raises:
        ValueError: If it is not there.
    """
    known = {str(name).lower(): name for name in reversed(list(row))}
    name: str | None = asked or None
    if asked is None:
        name = next((known[one] for one in usual if one in known), None)
    if (name is None and needed) or (name is not None and name not in row):
        raise ValueError(
            f"expected a column of {what} in {where}, got {shorten(', '.join(map(str, row)), 300)}"
            f"{did_you_mean(name or '', row)}; call it {usual[0]!r}, or name yours"
        )
    return name


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    with open_text(path, "utf-8-sig") as stream:
        first = stream.readline(LONGEST_LINE)
        stream.seek(0)
        reader = csv.DictReader(stream, delimiter=max(",;\t", key=first.count))
        try:
            for row in reader:
                where = f"line {reader.line_num} of {path}"
                if None in row or None in row.values():  # more cells than headings, or fewer
                    raise ValueError(
                        f"expected {len(reader.fieldnames or ())} cells in {where}, got others: "
                        f"{shorten(row)}; put texts with a comma into quotation marks"
                    )
                yield where, row
        except csv.Error as error:
            raise ValueError(
                f"expected a table in {path}, got {error} in line {reader.line_num}; repair it"
            ) from error


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with open_text(path, "utf-8-sig") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), ""), 1):
            where = f"line {number} of {path}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise ValueError(
                    f'expected an object such as {{"text": "…"}} in {where}, got '
                    f"{shorten(line)}; repair or remove it"
                )
            yield where, row
