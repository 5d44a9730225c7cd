"""Word vectors from elsewhere: read for a vocabulary, or used to enlarge one."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from unremix.data.sentence_tokens import Vocabulary


def load_word_vectors(path: str | Path, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Read the vectors of a vocabulary's words from a text file.

    A line is a word and its numbers, separated by spaces, as GloVe, word2vec and fastText write
    them; the latter two begin with a line of two numbers. Words may hold spaces. A file with
    capitals gives a word the vector of its lower-case form or, where there is none, of the first
    other form. The file is read line by line.

    Args:
        path: ``.txt``, ``.vec``, or either packed by gzip (``.gz``).
        vocabulary: V words.

    Returns:
        The vectors, float32, shape (V, d), zero for words not found; and which were found, bool,
        shape (V,).

    Raises:
        ValueError: If the file holds no vectors, or none of a word of the vocabulary.
    """
    path = Path(path)
    number = {word: row for row, word in enumerate(vocabulary.words) if row >= 2}
    found: dict[int, np.ndarray] = {}
    exact: set[int] = set()
    size, broken = None, 0
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        for line_number, line in enumerate(file):
            text = line.decode("utf-8", errors="replace").rstrip()
            if not text or (line_number == 0 and _is_header(text)):
                continue
            if size is None:
                size = _size_of(text, path)
            parts = text.rsplit(" ", size)
            word = parts[0]
            row = number.get(word, number.get(word.lower(), -1))
            if row < 0 or row in exact or (row in found and word not in number):
                continue
            try:
                vector = np.array(parts[1:], dtype=np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            if vector.shape != (size,) or not np.isfinite(vector).all():
                broken += 1
                continue
            found[row] = vector
            if word in number:
                exact.add(row)
    if size is None or not found:
        raise ValueError(
            f"expected vectors of words of the vocabulary in {path}, found none; a line is a word "
            "and its numbers, separated by spaces"
        )
    if broken:
        warnings.warn(
            f"left out {broken} lines of {path} that hold no {size} numbers", stacklevel=2
        )
    table = torch.zeros(len(vocabulary), size)
    rows = torch.tensor(list(found))
    table[rows] = torch.from_numpy(np.stack(list(found.values())))
    mask = torch.zeros(len(vocabulary), dtype=torch.bool)
    mask[rows] = True
    return table, mask


def _is_header(line: str) -> bool:
    parts = line.split()
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _size_of(line: str, path: Path) -> int:
    """How many numbers a line ends in; one word at least comes before."""
    parts = line.split(" ")
    size = 0
    while size < len(parts) - 1:
        try:
            float(parts[-1 - size])
        except ValueError:
            break
        size += 1
    if not size:
        raise ValueError(
            f"expected a word and its numbers in the first line of {path}, received {line[:60]!r}"
        )
    return size


@torch.no_grad()
def set_word_vectors(table: nn.Embedding, vectors: Tensor, found: Tensor) -> None:
    """Put vectors into a table of words; rows not found keep theirs.

    Args:
        table: V rows of size d.
        vectors: From :func:`load_word_vectors`, shape (V, d).
        found: Shape (V,).

    Raises:
        ValueError: If the sizes differ.
    """
    if vectors.shape != table.weight.shape:
        raise ValueError(
            f"expected vectors of shape {tuple(table.weight.shape)}, received "
            f"{tuple(vectors.shape)}; make the encoder with words={vectors.shape[-1]}"
        )
    table.weight[found] = vectors[found].to(table.weight)


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
    if len(table) != len(own_words) or len(big_vectors) != len(big_words):
        raise ValueError(
            f"expected a word for each row, received {len(table)} rows and {len(own_words)} words, "
            f"and {len(big_vectors)} rows and {len(big_words)} words of the big table"
        )
    own = {word: row for row, word in enumerate(own_words) if row >= 2}
    big: dict[str, int] = {}
    for row, word in enumerate(big_words):
        big.setdefault(word, row)
    shared = [word for word in own if word in big]
    if len(shared) <= big_vectors.shape[1]:
        raise ValueError(
            f"expected more than {big_vectors.shape[1]} words in both tables, received "
            f"{len(shared)}; train with a larger vocabulary, or take smaller vectors"
        )
    known = _with_one(big_vectors[[big[word] for word in shared]].double())
    wanted = table[[own[word] for word in shared]].double()
    mapping = torch.linalg.lstsq(known.cpu(), wanted.cpu(), driver="gelsd").solution  # (D + 1, d)
    reserved = set(own_words)
    new = [word for word in big if word not in reserved]
    added = _with_one(big_vectors[[big[word] for word in new]].double().cpu()) @ mapping
    return torch.cat([table, added.to(table)]), [*own_words, *new]


def _with_one(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1)
