"""Words of a sentence, and the vocabulary that numbers them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from unremix.core.checks import check_positive
from unremix.files.atomic_files import write_text

if TYPE_CHECKING:
    from unremix.domains.sentence.pretrained import Subwords

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")  # never tokens themselves: the tokenizer sets "<" apart
TOKENS_VERSION = 1  # raise it when the same text gives other tokens: caches are keyed by it

_TOKENS = re.compile(
    r"n't\b|'(?:s|m|d|re|ve|ll)\b"  # do n't, it 's
    r"|\d+(?:[.,]\d+)+"  # 2.5 and 1,000
    r"|(?:[^\W\d_]\.){2,}"  # u.s.
    r"|[^\W_]+"  # letters and digits
    r"|\.{2,}|-{2,}|[^\w\s]"  # an ellipsis, a dash, any other sign by itself
)
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "…": "..."})


def tokenize(text: str) -> list[str]:
    """Split a sentence into lower-case words and punctuation.

    Raw text and text that was tokenized before (in the manner of the Penn Treebank, as SentEval's
    files are) give the same tokens. Underscores are dropped. Made for languages that put spaces
    between words. No token holds white space.

    Example:
        >>> tokenize("“It doesn’t cost $2.50,” he said -- well-meaning.")
        ['"', 'it', 'does', "n't", 'cost', '$', '2.50', ',', '"', 'he', 'said', '--', 'well', '-', \
'meaning', '.']
        >>> tokenize("it does n't") == tokenize("it does n 't") == tokenize("It doesn't")
        True
    """
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.translate(_PLAIN))
    if "'" in text or "`" in text:
        text = text.replace("n 't", "n't").replace("n't", " n't")
        text = text.replace("``", '"').replace("''", '"').replace("`", "'")
    return _TOKENS.findall(text)


Numbering: TypeAlias = "Vocabulary | Subwords"
"""What numbers the tokens of sentences: a vocabulary, or a pretrained encoder's tokenizer."""


def encode(
    numbering: Numbering, sentences: Sequence[str], *, max_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Tokenize and number sentences.

    A sentence without any token, such as an empty one, becomes one unknown word, so that every
    length is at least 1 and every sentence has a vector.

    Args:
        numbering: What numbers the tokens.
        sentences: n of them.
        max_length: How many tokens to keep of each; all if None.

    Returns:
        Numbers padded with 0, shape (n, L), and lengths, shape (n,), both int64. L is the
        largest length.

    Raises:
        ValueError: If there is no sentence, or ``max_length`` is not positive.
    """
    if isinstance(sentences, str) or not len(sentences):
        raise ValueError(f"expected a list of sentences, got {sentences!r}")
    check_positive(max_length=max_length)
    found = (numbering.numbered(text, tokenize(text), max_length) for text in sentences)
    rows = [torch.tensor(numbers or [numbering.unknown]) for numbers in found]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


class Vocabulary:
    """The words that an encoder knows, each with a number.

    Number 0 is padding and 1 stands for every unknown word, which a masked one becomes as well.

    Args:
        words: The known words, without the two special ones, none twice; the first gets number 2.
        counts: How often each occurred in the text it was built from; 0 if None.
        unknown: How many tokens of that text are unknown.

    Attributes:
        words: ``words[number]`` is the word; the first two are ``<pad>`` and ``<unk>``.
        counts: ``counts[number]``, likewise.
        unknown: The number of an unknown word.
        mask: The number that stands in for a masked word.
        marks: Numbers that are not of the text.

    Raises:
        ValueError: If a word occurs twice or holds white space, or counts do not fit.

    Example:
        >>> vocabulary = Vocabulary.from_counts(Counter("a rose is a rose".split()), size=2)
        >>> vocabulary.words, vocabulary.counts
        (('<pad>', '<unk>', 'a', 'rose'), (0, 1, 2, 2))
        >>> vocabulary.encode(["A rose by any name", "rose"])
        (tensor([[2, 3, 1, 1, 1],
                 [3, 0, 0, 0, 0]]), tensor([5, 1]))
    """

    unknown = mask = UNKNOWN
    marks = frozenset({PADDING})

    def __init__(
        self, words: Iterable[str], counts: Sequence[int] | None = None, *, unknown: int = 0
    ) -> None:
        self.words = (*SPECIAL, *words)
        self._number = {word: number for number, word in enumerate(self.words)}
        if len(self._number) < len(self.words):
            twice = [word for word, times in Counter(self.words).items() if times > 1]
            raise ValueError(f"expected every word once, got {twice[0]!r} more than once")
        broken = next((word for word in self.words if word.split() != [word]), None)
        if broken is not None:
            raise ValueError(f"expected words without white space, got {broken!r}")
        if counts is None:
            counts = [0] * (len(self.words) - len(SPECIAL))
        self.counts = (0, unknown, *counts)
        if len(self.counts) != len(self.words):
            count = len(self.words) - len(SPECIAL)
            raise ValueError(f"expected a count for each of {count} words, got {len(counts)}")

    @classmethod
    def from_counts(cls, counts: Counter[str], size: int, *, unknown: int = 0) -> Vocabulary:
        """The most frequent words; those that are equally frequent in alphabetical order.

        Args:
            counts: How often each word occurs.
            size: How many words to keep at most. The paper's 50,001 are
                50,000 words and the unknown one.
            unknown: Tokens that ``counts`` does not hold.

        Raises:
            ValueError: If the size is not positive, or there is no word.
        """
        check_positive(size=size)
        if not counts:
            raise ValueError("expected at least one word to build a vocabulary from, got none")
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words, known = zip(*ordered[:size], strict=True)
        return cls(words, known, unknown=unknown + sum(counts.values()) - sum(known))

    def __len__(self) -> int:
        """Rows of an embedding table: the words and the two special ones."""
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def numbered(self, text: str, words: list[str], most: int | None = None) -> list[int]:
        """The numbers of at most so many tokens of a sentence.

        Its words are handed over as well: who has a text has mostly split it before.
        """
        return [self._number.get(word, UNKNOWN) for word in words[:most]]

    def read(self, text: str) -> list[str]:
        """The words of a sentence, unknown ones as an ellipsis."""
        return [word if word in self._number else "…" for word in tokenize(text)]

    def encode(
        self, sentences: Sequence[str], *, max_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokenize and number sentences; see :func:`encode`."""
        return encode(self, sentences, max_length=max_length)

    def save(self, path: str | Path) -> None:
        """Write one ``word<tab>count`` a line, in order, the special ones first."""
        pairs = zip(self.words, self.counts, strict=True)
        write_text(Path(path), "".join(f"{word}\t{count}\n" for word, count in pairs))

    @classmethod
    def parse(cls, text: str, path: str | Path) -> Vocabulary:
        """Read what :meth:`save` wrote, the text of a file.

        Raises:
            ValueError: If it has another form.
        """
        try:
            pairs = [line.split("\t") for line in text.split("\n") if line]
            words = [word for word, _ in pairs]
            counts = [int(count) for _, count in pairs]
            if tuple(words[:2]) != SPECIAL:
                raise ValueError
        except ValueError:
            what = f"'word<tab>count' lines in {path}, those of <pad> and <unk> first"
            raise ValueError(f"expected {what}, got others; remove the file") from None
        return cls(words[2:], counts[2:], unknown=counts[UNKNOWN])
