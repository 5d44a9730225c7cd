"""Text files as lines and sentences, a piece at a time; texts from a column of a table."""

from __future__ import annotations

import codecs
import gzip
import importlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal, TextIO, TypeAlias

from unremix.console.suggestions import needed_for
from unremix.domains import rows
from unremix.files.archives import open_maybe_packed
from unremix.files.atomic_files import write_text
from unremix.files.bounds import shorten, sound
from unremix.files.locate import locate
from unremix.files.walk import walk

Format = Literal["auto", "lines", "prose"]

ACCEPTED = (
    "accepted are the word 'pydocs'; a .txt, .txt.gz or .gz file, or a folder of them, "
    "with one sentence a line and blank lines between documents, or raw prose; a .csv, .tsv "
    "or .jsonl file with a column of texts. A relative path is also looked up in the folder that "
    "the environment variable UNREMIX_DATA names"
)

TEXTS = ("text", "sentence", "content", "body", "document", "title", "question", "abstract")
LABELS = ("label", "labels", "topic", "target", "class", "category", "intent", "y")

LONGEST = 2**20  # characters kept of a line that is a sentence, which is cut far earlier
PARAGRAPH = 2**16  # characters of prose after which sentences are split off without a blank line
LOOK = 400  # lines that decide about the format

_FINAL = re.compile(r"""[.!?…:;]["'”’)\]]*$""")
_INNER = re.compile(r"""\w\w[.!?]["'”’)\]]*\s+["'“‘(]?[A-Z]""")
_CAPITAL = re.compile(r"[A-Z]")


Trouble: TypeAlias = Counter[str]
"""What was wrong with the text of a pass, and how often."""
NOT_UTF8 = "lines with bytes that are not UTF-8, replaced by '\ufffd'"
CUT = f"lines cut after {LONGEST:,} characters"
EMPTY = "files without text"


def find_files(data: str | Path) -> tuple[str, list[Path]]:
    """The name of the data and its files, in order.

    Args:
        data: A file or a folder, which is searched with its sub-folders, sorted by path, hidden
            files left out.

    Raises:
        FileNotFoundError: If something does not exist.
        ValueError: If a file has another ending, or a folder holds no text.
    """
    path = locate(data, ACCEPTED)
    if not path.is_dir():
        if not (_is_text(path) or is_table(path)):
            raise ValueError(f"expected a text file, got {path}; {ACCEPTED}")
        name = re.sub(r"(\.txt|\.[ct]sv|\.jsonl)?(\.gz)?$", "", path.name, flags=re.IGNORECASE)
        return name, [path]
    # A pipe is left out: to open it would wait forever.
    regular = [one.path for one in walk(path) if one.status and S_ISREG(one.status.st_mode)]
    files = sorted(one for one in regular if _is_text(one) and not one.name.startswith("."))
    if not files:
        raise ValueError(f"expected .txt or .gz files in {path}, found none; {ACCEPTED}")
    return path.resolve().name, files


def is_table(path: Path) -> bool:
    """Whether the name says that texts are in a column of a table."""
    return path.suffix.lower() in rows.SUFFIXES


def _is_text(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith((".txt", ".gz")) and not name.endswith(".tar.gz")


def read_lines(path: Path, trouble: Trouble, *, keep_all: bool = False) -> Iterator[str]:
    """The lines of a text file, stripped, in memory that does not depend on its size.

    Lines may end in LF, CRLF or CR. A byte order mark is dropped.

    Args:
        path: A text file; one that ends in ``.gz`` is unpacked on the way.
        trouble: Counts what is wrong with the text.
        keep_all: What becomes of very long lines: divided at a space, or else cut.

    Raises:
        ValueError: If it is UTF-16, no text at all, or cannot be unpacked.
    """
    blank = True
    with (
        sound("a whole gzip file", path, "copy it again", (EOFError, gzip.BadGzipFile, zlib.error)),
        open_maybe_packed(path, path.name.lower().endswith(".gz")) as stream,
    ):
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            remedy = "convert it with: iconv -f UTF-16 -t UTF-8"
            raise ValueError(f"expected text in UTF-8, got UTF-16 in {path}; {remedy}")
        stream.seek(0)
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape")
        for line in _bounded_lines(text, trouble, keep_all):
            try:
                line.encode()
            except UnicodeEncodeError:
                if "\0" in line:
                    got = f"{path} with zero bytes, which no text has; leave it out or unpack it"
                    raise ValueError(f"expected text in UTF-8, got {got}") from None
                line = line.encode(errors="surrogateescape").decode(errors="replace")
                trouble[NOT_UTF8] += 1
            line = line.strip()
            blank = blank and not line
            yield line
    if blank:
        trouble[EMPTY] += 1


def _bounded_lines(text: TextIO, trouble: Trouble, keep_all: bool) -> Iterator[str]:
    """Lines of at most twice LONGEST characters; longer ones are divided at spaces, or cut."""
    rest = ""
    while line := text.readline(LONGEST):
        line = rest + line
        rest = ""
        if len(line) < LONGEST or line.endswith("\n"):
            yield line
        elif keep_all:
            middle = line.rfind(" ") + 1 or len(line)
            yield line[:middle]
            rest = line[middle:]
        else:
            yield line
            end = text.readline(LONGEST)
            if end not in ("", "\n"):
                trouble[CUT] += 1
            while end and not end.endswith("\n"):
                end = text.readline(LONGEST)
    if rest:
        yield rest


def guess_format(lines: Iterable[str]) -> Literal["lines", "prose"]:
    """Whether text has one sentence a line or is prose, from its first stripped lines.

    It is prose if many lines hold more than one sentence, or go on in small letters where the line
    before ended without a full stop, though the text has capitals.

    Example:
        >>> guess_format(["He came. She left.", "It rained. Nobody knew why."])
        'prose'
        >>> guess_format(["He came.", "She left.", "", "It rained."])
        'lines'
        >>> guess_format(["It was raining, and nobody who", "came in knew why it did", "so."])
        'prose'
    """
    kept = list(islice((line for line in lines if line), LOOK))
    inner = sum(bool(_INNER.search(line)) for line in kept)
    cased = any(_CAPITAL.search(line) for line in kept)
    pairs = pairwise(kept if cased else [])
    broken = sum(not _FINAL.search(line) and after[:1].islower() for line, after in pairs)
    return "prose" if max(inner, broken) > 0.3 * len(kept) else "lines"


def split_prose(lines: Iterable[str]) -> Iterator[str]:
    """The sentences of prose, stripped lines whose paragraphs are separated by blank ones.

    Raises:
        ImportError: If sentencex is not installed.
    """
    with needed_for("splitting prose into sentences", "give text with one sentence a line"):
        segment = importlib.import_module("sentencex").segment

    def clean(pieces: Iterable[str]) -> Iterator[str]:
        return filter(None, (" ".join(piece.split()) for piece in pieces))

    paragraph = ""
    for line in chain(lines, [""]):
        if not line:
            yield from clean(segment("en", paragraph))
            paragraph = ""
            continue
        paragraph = f"{paragraph} {line}" if paragraph else line
        if len(paragraph) > PARAGRAPH:
            *whole, paragraph = segment("en", paragraph)  # the last may be unfinished
            if not whole:
                whole, paragraph = [paragraph], ""
            yield from clean(whole)


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
            rows.column(row, TEXTS, asked=text, what="texts (--sentence.text)", where=where),
            rows.column(
                row, LABELS, asked=label, what="labels (--sentence.label)", where=where,
                needed=False,
            ),
        ]  # fmt: skip
        cells = [row.get(name) for name in columns if name is not None]
        if any(cell is None or isinstance(cell, list | dict) for cell in cells):
            what = " and ".join(filter(None, columns))
            got = f"{shorten(row)}; complete or remove it"
            raise ValueError(f"expected {what} in {where}, got {got}")
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
    written: list[dict[str, str]] = [{"text": text} for text in items]
    for row, label in zip(written, classes or (), strict=False):
        row["label"] = str(label)
    lines = "".join(json.dumps(row) + "\n" for row in written)
    write_text(path.with_suffix(".jsonl"), lines)
    return path.with_suffix(".jsonl")
