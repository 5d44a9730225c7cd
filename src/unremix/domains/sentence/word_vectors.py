"""Word vectors: drawn, read from elsewhere for a vocabulary, or used to enlarge one."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from unremix.core.checks import check_count, check_positive
from unremix.domains.sentence.tokens import Vocabulary, tokenize
from unremix.files.archives import open_maybe_packed
from unremix.files.bounds import sound

INITIAL = 0.1  # bound of the uniform distribution that Quick-Thought draws its weights from
LONGEST = 1 << 20  # bytes of a line; 300 numbers take some three thousand
MOST_WORDS = 400_000  # of a file that enlarges a vocabulary; files begin with frequent words


def word_table(vocabulary_size: int, words: int) -> nn.Embedding:
    """A table of word vectors of size ``words``, uniform in ±0.1; the padding's is 0 and stays so.

    Raises:
        ValueError: If a size is too small.
    """
    check_count("vocabulary_size", vocabulary_size, 2, "count padding and unknown")
    check_positive(words=words)
    table = nn.Embedding(vocabulary_size, words, padding_idx=0)
    with torch.no_grad():
        table.weight[1:].uniform_(-INITIAL, INITIAL)
    return table


def load_word_vectors(path: str | Path, vocabulary: Vocabulary) -> tuple[list[int], Tensor]:
    """Read the vectors of a vocabulary's words from a text file.

    A line is a word and its numbers, separated by spaces, as GloVe, word2vec and fastText write
    them; the latter two begin with a line of two numbers. Words may hold spaces. A file with
    capitals gives a word the vector of its lower-case form or, without one, of the first other
    form. The file is read line by line.

    Args:
        path: ``.txt``, ``.vec``, or either packed by gzip (``.gz``).
        vocabulary: V words.

    Returns:
        The numbers of the words found, and their vectors, float32, shape (n, d).

    Raises:
        ValueError: If the file holds no vectors, or none of a word of the vocabulary.
    """
    number = {word: row for row, word in enumerate(vocabulary.words) if row >= 2}
    words, vectors = _read(Path(path), lambda word: word in number)
    return [number[word] for word in words], vectors


def _read(
    path: Path, wanted: Callable[[str], bool], most: int | None = None
) -> tuple[list[str], Tensor]:
    """Words and their vectors; see :func:`load_word_vectors`. At most so many words, the first."""
    found: dict[str, np.ndarray] = {}
    exact: set[str] = set()
    size, broken = None, 0
    with open_maybe_packed(path, path.name.lower().endswith(".gz")) as file:
        for line_number, line in enumerate(_lines(file, path)):
            text = line.decode("utf-8", errors="replace").rstrip()
            if not text or (line_number == 0 and re.fullmatch(r"\d+\s+\d+", text)):  # a header
                continue
            if size is None:
                size = _size_of(text, path)
            parts = text.rsplit(" ", size)
            same = wanted(parts[0])
            word = parts[0] if same else parts[0].lower()
            if not (same or wanted(word)) or word in exact or (word in found and not same):
                continue
            if word not in found and most is not None and len(found) >= most:
                break
            vector = np.full(1, np.nan, np.float32)
            with suppress(ValueError):
                vector = np.array(parts[1:], dtype=np.float32)
            if vector.shape != (size,) or not np.isfinite(vector).all():
                broken += 1
                continue
            found[word] = vector
            if same:
                exact.add(word)
    if broken:
        said = f"left out {broken} lines of {path} that hold no {size} numbers"
        warnings.warn(said, stacklevel=3)
    if not found:
        remedy = "a line is a word and its numbers, separated by spaces"
        raise ValueError(f"expected vectors of known words in {path}, found none; {remedy}")
    return list(found), torch.from_numpy(np.stack(list(found.values())))


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a file, each of bounded length.

    Raises:
        ValueError: If one is longer, or the file is damaged.
    """
    damaged = (EOFError, OSError, ValueError, zlib.error)
    what = f"a word and its numbers in each line of {path}"
    with sound(what, "a damaged file", "download it again", damaged):
        while line := file.readline(LONGEST):
            if len(line) == LONGEST:
                raise ValueError(f"a line of {LONGEST:,} bytes or more")
            yield line


def _size_of(line: str, path: Path) -> int:
    """How many numbers a line ends in; one word at least comes before."""
    size = 0
    with suppress(ValueError):
        for text in reversed(line.split(" ")[1:]):
            float(text)
            size += 1
    if not size:
        what = f"a word and its numbers in the first line of {path}"
        raise ValueError(f"expected {what}, got {line[:60]!r}")
    return size


def tables_of(encoder: nn.Module) -> Iterator[tuple[nn.Module, nn.Embedding]]:
    """The encoders in an encoder that have a table of words, and their tables."""
    for module in encoder.modules():
        table = getattr(module, "words", None)
        if isinstance(table, nn.Embedding):
            yield module, table


@torch.no_grad()
def set_word_vectors(encoder: nn.Module, rows: list[int], vectors: Tensor) -> None:
    """Put vectors (n, d) into n rows of every table of words in an encoder; others keep theirs.

    Raises:
        ValueError: If the sizes differ.
    """
    size = vectors.shape[1]
    for _, table in tables_of(encoder):
        if size != table.embedding_dim:
            remedy = f"add --sentence.words {size}, or make the encoder with words={size}"
            what = f"vectors of {table.embedding_dim} numbers"
            raise ValueError(f"expected {what}, got {size}; {remedy}")
        table.weight[rows] = vectors.to(table.weight)


@torch.no_grad()
def expand_vocabulary(
    table: Tensor, own_words: Sequence[str], big_vectors: Tensor, big_words: Sequence[str]
) -> tuple[Tensor, list[str]]:
    """Give an encoder vectors for words it was not trained on.

    A map from the big table to the encoder's is fitted on the words that both have, by least
    squares: min Σ |A b_w + c - e_w|². A word that only the big table has gets A b_w + c.

    Args:
        table: The encoder's vectors e, shape (V, d).
        own_words: Their words, padding and unknown included: ``vocabulary.words``.
        big_vectors: Vectors b from elsewhere, shape (M, D).
        big_words: Their words; one that occurs twice counts at its first place.

    Returns:
        The table with the new words' rows below, shape (V + K, d), and the V + K words.

    Raises:
        ValueError: If sizes do not fit, or fewer words are shared than the map has unknowns per
            output, D + 1.

    Example:
        >>> own, big = torch.tensor([[0.0], [0.0], [2.0], [4.0]]), torch.tensor([[1.0], [2], [5]])
        >>> names = ["<pad>", "<unk>", "one", "two"]
        >>> table, words = expand_vocabulary(own, names, big, ["one", "two", "five"])
        >>> words[-1], round(float(table[-1]), 3)
        ('five', 10.0)

    Reference:
        Skip-Thought Vectors (Kiros et al. 2015), Section 2.2.
    """
    for rows, words in ((table, own_words), (big_vectors, big_words)):
        if len(rows) != len(words):
            got = f"{len(rows)} rows and {len(words)} words"
            raise ValueError(f"expected a word for each row, got {got}")
    own = {word: row for row, word in enumerate(own_words) if row >= 2}
    big = {word: row for row, word in reversed([*enumerate(big_words)])}

    def with_one(words: list[str]) -> Tensor:
        return pad(big_vectors[[big[word] for word in words]].double().cpu(), (0, 1), value=1.0)

    shared = [word for word in own if word in big]
    _check_shared(len(shared), big_vectors.shape[1])
    wanted = table[[own[word] for word in shared]].double().cpu()
    mapping = torch.linalg.lstsq(with_one(shared), wanted, driver="gelsd").solution  # (D + 1, d)
    reserved = set(own_words)
    new = [word for word in dict.fromkeys(big_words) if word not in reserved]
    return torch.cat([table, (with_one(new) @ mapping).to(table)]), [*own_words, *new]


def check_expansion(path: str | Path, vocabulary: Vocabulary) -> int:
    """How many words a file shares with a vocabulary, if that is enough to enlarge it.

    Raises:
        ValueError: If it is not.
    """
    rows, vectors = load_word_vectors(path, vocabulary)
    _check_shared(len(rows), vectors.shape[1])
    return len(rows)


def _check_shared(shared: int, size: int) -> None:
    if shared <= size:
        remedy = "train with a larger vocabulary, or take smaller vectors"
        raise ValueError(f"expected more than {size} words in both tables, got {shared}; {remedy}")


def expand_encoder(
    encoder: nn.Module, vocabulary: Vocabulary, path: str | Path
) -> tuple[nn.Module, Vocabulary]:
    """An encoder that knows the words of a file of word vectors as well.

    Every table of words in it is enlarged by :func:`expand_vocabulary`; the vectors of the file may
    have any size. Of a long file the first 400,000 words count, those that a sentence can have.

    Args:
        encoder: Encoders in it have their table under ``words``; it is left as it is.
        vocabulary: The words of these tables.
        path: As for :func:`load_word_vectors`.

    Returns:
        The enlarged encoder and its vocabulary, which begins with the words it had.

    Raises:
        ValueError: If the file shares too few words with the vocabulary.
    """
    big, vectors = _read(Path(path), lambda word: tokenize(word) == [word], MOST_WORDS)
    words, larger = list(vocabulary.words), deepcopy(encoder)
    for module, table in tables_of(larger):
        rows, words = expand_vocabulary(table.weight.detach(), vocabulary.words, vectors, big)
        module.words = nn.Embedding.from_pretrained(rows, padding_idx=table.padding_idx)
    counts = [*vocabulary.counts[2:], *[0] * (len(words) - len(vocabulary))]
    return larger, Vocabulary(words[2:], counts, unknown=vocabulary.counts[1])
