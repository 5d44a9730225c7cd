"""Names of files in a form that a terminal only shows; tables in Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins for some spreadsheet
# Control characters, those that turn the direction of writing, and halves of characters.
KINDS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    r"""The text with every control character escaped, except line breaks.

    Example:
        >>> printable("a\x1b[31mb.png")
        'a\\x1b[31mb.png'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode()
        if one != "\n" and unicodedata.category(one) in KINDS
        else one
        for one in text
    )


def one_line(text: str) -> str:
    r"""The text in one line, printable.

    Example:
        >>> one_line("a mistake\n  in two lines")
        'a mistake in two lines'
    """
    return printable(" ".join(text.split()))


def say(console: Console, message: str) -> None:
    """Print a line that may hold names of files; it is not wrapped."""
    console.print(printable(message), highlight=False, markup=False, soft_wrap=True)


def complain(message: str, code: int) -> int:
    """Say in one line, red on a terminal, what is wrong."""
    line = f"unremix: {one_line(message)}"
    print(f"\033[31m{line}\033[0m" if sys.stderr.isatty() else line, file=sys.stderr)
    return code


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "---"
) -> str:
    r"""A table in Markdown.

    ``rule`` aligns the columns after the first: ``---``, or ``--:`` for numbers.

    Example:
        >>> print(markdown_table(["a", "b"], [["x|y", "1"]], "--:"))
        | a | b |
        | --- | --: |
        | x\|y | 1 |
    """
    lines = [headings, ["---", *[rule] * (len(headings) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def guarded(cell: object) -> object:
    """A cell of a table that no spreadsheet runs as a formula: such a text begins with ``'``.

    :func:`unguarded` gives the text back.

    Example:
        >>> guarded("=HYPERLINK(1)"), guarded("a.png"), guarded("-0.5"), guarded(-0.5)
        ("'=HYPERLINK(1)", 'a.png', '-0.5', -0.5)
    """
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(FORMULAS):
        return cell
    with suppress(ValueError):
        if math.isfinite(float(cell)):
            return cell
    return f"'{cell}"


def unguarded(cell: str) -> str:
    """The text that a cell of a table stands for.

    Example:
        >>> unguarded("'=HYPERLINK(1)"), unguarded("'tis"), unguarded("-0.5")
        ('=HYPERLINK(1)', "'tis", '-0.5')
    """
    return cell[1:] if cell[:1] == "'" and cell.lstrip("'").startswith(FORMULAS) else cell


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV; its columns are all keys, in the order they come up.

    Example:
        >>> print(to_csv([{"a": 1}, {"a": 2, "b": None}]), end="")
        a,b
        1,
        2,
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    return rows_to_csv([names, *([record.get(name) for name in names] for record in records)])


def rows_to_csv(rows: Iterable[Sequence[object]], separator: str = ",", end: str = "\n") -> str:
    """Rows as CSV; None is an empty cell, and no cell is a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator=end)
    writer.writerows(map(guarded, row) for row in rows)
    return stream.getvalue()
