"""A corpus of numbered words in files, from which any run of sentences is read by itself."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unremix.console.suggestions import expecting
from unremix.core.checks import check_positive
from unremix.domains.sentence.tokens import Numbering, tokenize
from unremix.files.atomic_files import open_file, read_text, sweep, write_text
from unremix.files.fingerprint import feed, fingerprint

ABOUT = "corpus.json"
COLUMNS = ("tokens", "offsets", "documents", "texts")
NAME_LENGTH = 200  # characters of a sentence that serve as its name


class Sentence(NamedTuple):
    """A sentence and the document it stands in."""

    text: str
    document: int


@dataclass(frozen=True)
class SentenceBatch:
    """n consecutive sentences.

    Args:
        tokens: Numbers of the words, padded with 0 to the longest, int64, shape (n, L).
        lengths: Words of each, at least 1, int64, shape (n,).
        documents: The document each stands in, int64, shape (n,); ascending.
        texts: A number for the text of each, equal for sentences of the same words (before
            unknown ones and long ends are dropped), int64, shape (n,).
        seed: Draws the dropout of a random view; None for none.
    """

    tokens: Tensor
    lengths: Tensor
    documents: Tensor
    texts: Tensor
    seed: int | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def to(self, device: torch.device) -> SentenceBatch:
        """The batch on a device; the lengths stay, since recurrent networks read them here."""
        rows = (self.tokens, self.documents, self.texts)
        tokens, documents, texts = (one.to(device, non_blocking=True) for one in rows)
        return SentenceBatch(tokens, self.lengths, documents, texts, self.seed)


@dataclass(frozen=True)
class EncodedCorpus:
    """Numbered sentences in a folder of files.

    A batch is read from the files when it is asked for. Nothing of the corpus stays in memory, and
    no file stays open, so it can be handed to other processes.

    Args:
        folder: Where the files are.
        source: The text that they come from.
        vocabulary: What the numbers mean.
        name: Short name of the text.
        sentences: How many there are; those without a token are left out.
        documents: How many documents these stand in.
        tokens: Tokens kept.
        unknown: How many of the tokens kept are unknown words.
        classes: Names of the documents, which are topics then, if any.
    """

    folder: Path
    source: Iterable[Sentence]
    vocabulary: Numbering
    name: str
    sentences: int
    documents: int
    tokens: int
    unknown: int
    classes: tuple[str, ...] | None = None

    @classmethod
    def open(cls, folder: Path, source: Iterable[Sentence], vocabulary: Numbering) -> EncodedCorpus:
        """Open the corpus that :func:`write_corpus` wrote of a text.

        Raises:
            ValueError: If the folder holds none, or files of it are not as they were written.
        """
        with expecting(f"an encoded corpus in {folder}", "remove the folder to have it made again"):
            about = json.loads(read_text(folder / ABOUT, inside=folder))
            as_written = about.pop("sha256") == _digest(about)
            if not as_written or about.pop("files") != _digests_of(folder):
                raise ValueError("other files than those as they were written")
            classes = about.pop("classes")
            return cls(folder, source, vocabulary, **about, classes=classes and tuple(classes))

    def __len__(self) -> int:
        return self.sentences

    @property
    def labels(self) -> Tensor | None:
        """The topic of each sentence, shape (n,); None where the documents have no names."""
        if self.classes is None:
            return None
        return torch.from_numpy(self._read("documents", np.int64, 0, len(self)))

    @property
    def train(self) -> EncodedCorpus:
        """The sentences one by one, as other kinds of data have their samples."""
        return self

    def texts(self) -> list[str]:
        """The whole text of each sentence, read from disk each time."""
        return [sentence.text for sentence in self.source if tokenize(sentence.text)]

    @property
    def names(self) -> list[str]:
        """The text of each sentence, long ones cut; read from disk each time.

        Raises:
            ValueError: If the text has changed since it was numbered.
        """
        texts = self.texts()
        if len(texts) != len(self):
            got = f"{len(texts)}: {self.name} has changed since"
            raise ValueError(f"expected the same {len(self)} sentences, got {got}; start again")
        most = NAME_LENGTH
        return [text if len(text) <= most else f"{text[: most - 1]}…" for text in texts]

    def batch(self, start: int, count: int) -> SentenceBatch:
        """Read ``count`` consecutive sentences; the first is number ``start``, from 0.

        Raises:
            ValueError: If the corpus does not have them all.
        """
        if count < 1 or not 0 <= start <= self.sentences - count:
            got = f"{count} from number {start}"
            raise ValueError(f"expected a run within the {len(self)} sentences, got {got}")
        offsets = self._read("offsets", np.int64, start, count + 1)
        kind = _token_type(len(self.vocabulary))
        flat = self._read("tokens", kind, int(offsets[0]), int(offsets[-1] - offsets[0]))
        lengths = np.diff(offsets)
        tokens = np.zeros((count, int(lengths.max())), np.int64)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
        rows = [self._read(name, np.int64, start, count) for name in ("documents", "texts")]
        documents, texts = map(torch.from_numpy, rows)
        return SentenceBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), documents, texts)

    def choose(self, indices: Tensor) -> SentenceBatch:
        """Read any sentences, by their numbers (n,)."""
        parts = [self.batch(number, 1) for number in indices.tolist()]
        tokens = pad_sequence([one.tokens[0] for one in parts], batch_first=True)
        columns = zip(*((one.lengths, one.documents, one.texts) for one in parts), strict=True)
        lengths, documents, texts = map(torch.cat, columns)
        return SentenceBatch(tokens, lengths, documents, texts)

    def _read(self, name: str, kind: Any, start: int, count: int) -> np.ndarray:
        # Read and not mapped: pages of a map that were once touched count as this process's memory.
        size = np.dtype(kind).itemsize
        return np.fromfile(self.folder / f"{name}.bin", kind, count, offset=start * size)


@lru_cache(maxsize=2)
def batches(num: int, batch_size: int, *, seed: int, epoch: int) -> Tensor:
    """Where the batches of an epoch start, in an order that depends on nothing but the arguments.

    The sentences are cut into runs of the batch size, and the runs are shuffled. All have the same
    size: if it does not divide the number of sentences, the last run begins earlier and shares
    some sentences with the one before.

    Args:
        num: Sentences of the corpus.
        batch_size: Sentences of a batch; all if there are fewer.
        seed: Of the run.
        epoch: Counted from 0.

    Returns:
        The first sentence of each step's batch, int64, shape (steps,).

    Raises:
        ValueError: If a number is not positive.

    Example:
        >>> sorted(batches(10, 4, seed=0, epoch=0).tolist())
        [0, 4, 6]
    """
    check_positive(num=num, batch_size=batch_size)
    starts = torch.arange(0, num, batch_size).clamp(max=max(0, num - batch_size))
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return starts[torch.randperm(len(starts), generator=generator)]


def _digest(about: Mapping[str, Any]) -> str:
    return fingerprint([json.dumps(about, sort_keys=True)])


def _digests_of(folder: Path) -> dict[str, str]:
    found = {}
    for name in COLUMNS:
        with open_file(folder / f"{name}.bin", inside=folder) as file:
            found[name] = feed(hashlib.sha256(), file).hexdigest()
    return found


def _token_type(vocabulary_size: int) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if vocabulary_size <= 2**16 else np.int32


def _text_number(tokens: Sequence[str]) -> int:
    """64 bits that differ for different sentences."""
    digest = hashlib.blake2b(" ".join(tokens).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def write_corpus(
    sentences: Iterable[Sentence],
    folder: Path,
    vocabulary: Numbering,
    max_length: int,
    known: Mapping[str, Any],
) -> bool:
    """Write sentences so that :class:`EncodedCorpus` can read them.

    The folder appears once it is whole. If another process made it in the meantime, that one
    stays. Known are its name and classes; see :class:`EncodedCorpus`.

    Returns:
        Whether there was any sentence; if not, nothing is written.
    """
    sweep(folder.parent)
    temporary = folder.with_name(f".unremix-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    temporary.mkdir(parents=True)
    try:
        about = _write_files(sentences, temporary, vocabulary, max_length)
        if not about["sentences"]:
            return False
        about |= {**known, "files": _digests_of(temporary)}
        write_text(temporary / ABOUT, json.dumps({**about, "sha256": _digest(about)}, indent=1))
        try:
            os.rename(temporary, folder)
        except OSError:
            if not (folder / ABOUT).exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _write_files(
    sentences: Iterable[Sentence], folder: Path, vocabulary: Numbering, max_length: int
) -> dict[str, Any]:
    code = "H" if _token_type(len(vocabulary)) is np.uint16 else "i"
    counts, last = {"sentences": 0, "documents": 0, "tokens": 0, "unknown": 0}, -1
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.bin").open("wb")) for name in COLUMNS]
        tokens, offsets, documents, texts = files
        offsets.write(array("q", [0]))
        for text, document in sentences:
            words = tokenize(text)
            if words:
                numbers = vocabulary.numbered(text, words, max_length)
                counts["sentences"] += 1
                counts["documents"] += document != last
                counts["tokens"] += len(numbers)
                counts["unknown"] += numbers.count(vocabulary.unknown)
                tokens.write(array(code, numbers))
                offsets.write(array("q", [counts["tokens"]]))
                documents.write(array("q", [document]))
                texts.write(array("q", [_text_number(words)]))
                last = document
    return counts
