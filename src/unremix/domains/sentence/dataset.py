"""Ordered sentences from the text a user has, streamed and ready to train on.

Three steps, each a pass over the text in memory that does not grow with it: find the sentences
(:func:`load_sentences`), count their words (:func:`build_vocabulary`) and write their numbers to
files that any batch can be read from (:func:`encode_sentences`). The last two are kept in a folder
and not repeated for the same text.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import get_args

from unremix.core.checks import check_choice, check_positive
from unremix.domains.sentence import pydocs, text_files
from unremix.domains.sentence.corpus import ABOUT, EncodedCorpus, Sentence, write_corpus
from unremix.domains.sentence.text_files import Format, Trouble, is_table, read_lines, read_texts
from unremix.domains.sentence.tokens import TOKENS_VERSION, Numbering, Vocabulary, tokenize
from unremix.files.seals import read_sealed, write_sealed

EMBEDDED = "pydocs"
MOST_WORDS = 2**22  # different words held while counting; beyond it the rarest are forgotten


@dataclass(frozen=True)
class SentenceData:
    """Ordered sentences that are read again each time they are iterated over.

    Iterating yields :class:`Sentence`; documents are numbered from 0 in reading order. A pass that
    comes to the end warns, once, of bytes that are not UTF-8 and the like.

    Args:
        name: Short name of the data.
        files: Where the text stands, in order; empty for the embedded one.
        format: ``lines`` or ``prose``, for each file.
        limit: How many sentences to read, from the first; None for all.
        topics: The names of the labels, if there are any: of the embedded text's documents, or in
            a table's column. Consecutive rows of a label are a document.
        columns: Of tables, those of texts and labels.
        trouble: What was wrong with the text in the last whole pass.
    """

    name: str
    files: tuple[Path, ...]
    format: tuple[Format, ...] = ()
    limit: int | None = None
    topics: tuple[str, ...] | None = None
    columns: tuple[str | None, str | None] = (None, None)
    trouble: Trouble = field(default_factory=Counter, compare=False)

    def __iter__(self) -> Iterator[Sentence]:
        trouble: Trouble = Counter()
        yield from islice(self._sentences(trouble), self.limit)
        if trouble and not self.trouble:
            said = "; ".join(f"{count:,} {what}" for what, count in trouble.items())
            warnings.warn(f"the text of {self.name} has {said}", stacklevel=2)
        self.trouble.clear()
        self.trouble.update(trouble)

    def _sentences(self, trouble: Trouble) -> Iterator[Sentence]:
        number = 0
        for topic, texts in self._documents(trouble):
            text = None
            for text in texts:
                yield Sentence(text, number if topic is None else topic)
            number += text is not None

    def _documents(self, trouble: Trouble) -> Iterator[tuple[int | None, Iterable[str]]]:
        """The topic and the sentences of each document, which may turn out to have none."""
        if not self.files:
            yield from enumerate(map(pydocs.prose, pydocs.topics().values()))
        number = {topic: place for place, topic in enumerate(self.topics or ())}
        for file, kind in zip(self.files, self.format, strict=True):
            if is_table(file):
                for label, rows in groupby(read_texts(file, *self.columns), lambda row: row[1]):
                    yield None if label is None else number[label], (text for text, _ in rows)
            elif kind == "prose":
                yield None, text_files.split_prose(read_lines(file, trouble, keep_all=True))
            else:
                blocks = groupby(read_lines(file, trouble), bool)  # bool: whether it has text
                yield from ((None, lines) for filled, lines in blocks if filled)

    def key(self, **options: object) -> str:
        """A short name for this text, as it is now, and some options: it differs if they do."""
        stats = [(file.resolve(), file.stat()) for file in self.files]
        identity: dict[str, object] = {
            "files": [(str(path), one.st_size, one.st_mtime_ns) for path, one in stats],
            "format": self.format,
            "limit": self.limit,
            "tokens": TOKENS_VERSION,
            # They differ between versions of Python.
            "topics": None if self.files or not self.topics else pydocs.topics(),
            "options": options,
            "columns": self.columns,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _nothing(data: SentenceData) -> ValueError:
    where = ", ".join(str(file) for file in data.files[:3]) + ("…" if len(data.files) > 3 else "")
    return ValueError(f"expected at least one sentence in {data.name} ({where}), got none; add one")


def load_sentences(
    data: str | Path = EMBEDDED,
    *,
    format: Format = "auto",
    limit: int | None = None,
    text: str | None = None,
    label: str | None = None,
) -> SentenceData:
    """Find ordered text; nothing but the beginning of each file is read yet.

    - ``pydocs``: the prose of Python's ``help()`` topics, from the standard library. A topic is a
      document.
    - ``lines``: one sentence a line, blank lines between documents.
    - ``prose``: paragraphs separated by blank lines, split into sentences by sentencex (the extra
      ``text``). A file is a document.
    - tables: a ``.csv``, ``.tsv`` or ``.jsonl`` file with a column of texts, which are taken as
      they are, and perhaps one of labels, which are their topics.

    Text is UTF-8; other bytes are replaced and counted in a warning. No document crosses files.

    Args:
        data: A word, a ``.txt``, ``.txt.gz`` or ``.gz`` file, or a folder of them (with its
            sub-folders, sorted by path). A path that does not exist is looked up in the
            folder that the environment variable ``UNREMIX_DATA`` names.
        format: ``lines``, ``prose``, or ``auto``: decided for each file by its first lines.
        limit: How many sentences to use, from the first; all if None.
        text: A table's column of texts; by default ``text`` or another usual name.
        label: A table's column of labels; by default ``label`` or another usual name, if there is
            one; ``none`` for no labels.

    Returns:
        The text, to be iterated over as often as needed.

    Raises:
        FileNotFoundError: If the data does not exist.
        ValueError: If it is of another kind, a folder holds no text, a file cannot be read, or an
            option is out of range.

    Example:
        >>> data = load_sentences("pydocs", limit=2)
        >>> [sentence.document for sentence in data], data.topics[0]
        ([0, 0], 'assert')
    """
    check_choice("format", format, get_args(Format))
    check_positive(limit=limit)
    if data == EMBEDDED:
        return SentenceData(EMBEDDED, (), limit=limit, topics=tuple(pydocs.topics()))
    name, files = text_files.find_files(data)
    formats: tuple[Format, ...] = (format,) * len(files)
    if is_table(files[0]):
        if format != "auto":
            raise ValueError(f"expected no format for {files[0]}, got {format!r}; leave it out")
        topics, column = _topics(files[0], text, label)
        return SentenceData(name, tuple(files), formats, limit, topics, (text, column))
    if format == "auto":
        formats = tuple(text_files.guess_format(read_lines(file, Counter())) for file in files)
    return SentenceData(name, tuple(files), formats, limit)


def _topics(
    table: Path, text: str | None, label: str | None
) -> tuple[tuple[str, ...] | None, str | None]:
    """The names of all labels in a table, and the column they are in.

    Raises:
        ValueError: If some rows have none, or most one of their own.
    """
    wanted = "" if label == "none" else label
    labels = Counter(found for _, found in read_texts(table, text, wanted))
    rows, names = labels.total(), sorted(one for one in labels if one is not None)
    without = "" in labels or None in labels
    if names and (without or 2 * len(names) > max(4, rows)):
        some = "rows without" if without else f"{len(names)} in {rows} rows"
        remedy = "complete them, or name another column with --sentence.label, or none"
        raise ValueError(f"expected a label for each text in {table}, got {some}; {remedy}")
    return tuple(names) or None, wanted


def build_vocabulary(
    data: SentenceData, *, size: int = 20_000, cache: str | Path | None = None
) -> Vocabulary:
    """Count the words of a text and keep the most frequent ones.

    Args:
        data: The text.
        size: How many words to keep, without padding and unknown.
        cache: A folder to keep the vocabulary in and to take it from next time, as long as the
            files' size and time of change and the options are the same; None for none.

    Raises:
        ValueError: If the text has no words, or the size is not positive.

    Example:
        >>> vocabulary = build_vocabulary(load_sentences("pydocs"), size=1000)
        >>> len(vocabulary), vocabulary.words[2]
        (1002, 'the')
    """
    check_positive(size=size)
    path = None if cache is None else Path(cache) / f"vocabulary-{data.key(vocabulary=size)}.txt"
    kept = None if path is None else read_sealed(path)
    if kept is not None and path is not None:
        return Vocabulary.parse(kept.decode(), path)
    counts: Counter[str] = Counter()
    forgotten, rarest = 0, 0
    for sentence in data:
        counts.update(tokenize(sentence.text))
        while len(counts) > MOST_WORDS:
            rarest += 1
            rare = [word for word, count in counts.items() if count <= rarest]
            forgotten += sum(counts.pop(word) for word in rare)
    if not counts:
        raise _nothing(data)
    vocabulary = Vocabulary.from_counts(counts, size, unknown=forgotten)
    if path is not None:
        write_sealed(path, vocabulary.save)
    return vocabulary


def encode_sentences(
    data: SentenceData,
    cache: str | Path,
    *,
    vocabulary: Numbering | None = None,
    vocabulary_size: int = 20_000,
    max_length: int = 30,
) -> EncodedCorpus:
    """Number the words of a text and write them to files that any batch can be read from.

    A sentence without any token is left out and counted.

    Args:
        data: The text.
        cache: The folder to keep the files in, and to take them from next time.
        vocabulary: The words to know; built from the text if None.
        vocabulary_size: How many words to keep if it is built.
        max_length: Tokens kept of a sentence.

    Raises:
        ValueError: If no sentence has a token, or an option is out of range.
    """
    check_positive(max_length=max_length)
    if vocabulary is None:
        vocabulary = build_vocabulary(data, size=vocabulary_size, cache=cache)
    words = hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()
    folder = Path(cache) / f"corpus-{data.key(words=words, max_length=max_length, verified=3)}"
    known = {"name": data.name, "classes": data.topics}
    written = (folder / ABOUT).exists() or write_corpus(data, folder, vocabulary, max_length, known)
    if not written:
        raise _nothing(data)
    return EncodedCorpus.open(folder, data, vocabulary)
