"""The embedded text: the prose of Python's own documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

_UNDERLINE = re.compile(r"^\s*([*=\-~^\"'])\1{2,}\s*$")
_BULLET = re.compile(r"^\s*(?:[*+-]|\d+\.|\[\d+\])\s+")
_BOUNDARY = re.compile(r"(?<=[.!?])\s+(?=[“(]?[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf)|\b[A-Z])\.$")
_EMPHASIS = re.compile(r"\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}")
_FOOTNOTE = re.compile(r"\s*\[\d+\]")
_LETTERS = re.compile(r"[^\W\d_]")


def topics() -> dict[str, str]:
    """The topics of ``help()`` in the running Python, by name in alphabetical order.

    Example:
        >>> "assignment" in topics()
        True
    """
    from pydoc_data.topics import topics as found

    return dict(sorted(found.items()))


def prose(text: str) -> Iterator[str]:
    r"""The sentences of a topic, without headings, tables, grammar, code and markup.

    A sentence has at least three words, begins with a capital, ends in a full stop or the like and
    consists mostly of letters; that leaves out what is not prose, wherever it stands.

    Example:
        >>> list(prose("Lists\n*****\n\nA *list* is\nmutable. It grows.\n\n   x = [1]\n"))
        ['A list is mutable.']
    """
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        if any(_UNDERLINE.match(line) for line in lines) or "::=" in block:
            continue
        if lines[0].lstrip().startswith(("+-", "|", ">>>", "...")):
            continue
        joined = ""
        for line in lines:
            joined = joined.removesuffix(" ") if joined.endswith("- ") else joined
            joined += _BULLET.sub("", line).strip() + " "
        joined = _FOOTNOTE.sub("", _EMPHASIS.sub(r"\1", joined)).replace('"', "").strip()
        held = ""
        for piece in _BOUNDARY.split(joined):
            held = f"{held} {piece}".strip()
            if _ABBREVIATION.search(held):
                continue
            if _is_sentence(held):
                yield " ".join(held.split())
            held = ""


def _is_sentence(text: str) -> bool:
    words = text.split()
    return (
        len(words) >= 3
        and text.lstrip("“(")[:1].isupper()
        and text.rstrip("”)").endswith((".", "!", "?", ":"))
        and len(_LETTERS.findall(text)) >= 0.75 * sum(map(len, words))
    )
