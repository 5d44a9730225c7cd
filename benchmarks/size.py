"""Lines of code of the package by room: no blank lines, comments or docstrings.

    python benchmarks/size.py [--files] [--update docs/architecture.md]

A room is a folder of src/unremix with what is below it; each kind of data is a room, too, and so
are the files beside the folders. --files counts files instead. --update writes the numbers into
the table of a page, whose rows are ``| `room` | what it holds | number |``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "unremix"
TOP = "top"  # the files beside the folders
DOMAINS = "domains"
ROW = re.compile(r"^(\| `([\w/]+)` \|.*\| *)([\d,]+)( *\|)$", re.MULTILINE)
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """How many lines hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def room_of(file: Path) -> str:
    """The room of a file, by its path below the package."""
    folders = file.parts[:-1]
    if not folders:
        return TOP
    return "/".join(folders[:2]) if folders[0] == DOMAINS else folders[0]


def count(package: Path = PACKAGE, *, files: bool = False) -> dict[str, int]:
    """Lines of code by room, or by file, in alphabetical order."""
    found: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        found[file.as_posix() if files else room_of(file)] += lines_of_code(path.read_text())
    return dict(sorted(found.items()))


def stated(page: str) -> dict[str, int]:
    """The numbers in a page's table, by room."""
    return {room: int(number.replace(",", "")) for _, room, number, _ in ROW.findall(page)}


def updated(page: str, sizes: dict[str, int]) -> str:
    """A page with the numbers of its table brought up to date."""

    def row(match: re.Match[str]) -> str:
        return f"{match[1]}{sizes.get(match[2], 0):,}{match[4]}"

    return ROW.sub(row, page)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of code by room.")
    parser.add_argument("--files", action="store_true", help="by file")
    parser.add_argument("--update", type=Path, help="a page with a table of the rooms")
    options = parser.parse_args()
    sizes = count()
    for name, size in (count(files=True) if options.files else sizes).items():
        print(f"{size:>7,}  {name}")
    print(f"{sum(sizes.values()):>7,}  in all")
    if options.update is not None:
        page = options.update.read_text()
        options.update.write_text(updated(page, sizes))
        missing = sorted(sizes.keys() - stated(page).keys())
        if missing:
            sys.exit(f"expected a row for {', '.join(missing)} in {options.update}, found none")


if __name__ == "__main__":
    main()
