"""From sentences to a model: their words, two encoders, batches of neighbors, features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.values import make_options
from unremix.domains.base import Cut, Features, Ready, Trained, evaluating
from unremix.domains.options import TrainConfig, is_code
from unremix.domains.remembered import recall, remember
from unremix.domains.sampling import evenly_spaced, ranges, read_ahead, steps_of
from unremix.domains.sampling import indices_of as permuted_indices
from unremix.domains.sentence.corpus import EncodedCorpus, SentenceBatch, batches
from unremix.domains.sentence.dataset import encode_sentences, load_sentences
from unremix.domains.sentence.encoders import BagOfWords, TransformerEncoder
from unremix.domains.sentence.gru import GRUEncoder
from unremix.domains.sentence.options import SentenceOptions
from unremix.domains.sentence.pretrained import (
    LIBRARIES,
    OWN,
    POOLING,
    OwnEncoder,
    PretrainedShape,
    PretrainedTransformer,
    find_own,
    find_pretrained,
)
from unremix.domains.sentence.quickthought import TwinEncoder
from unremix.domains.sentence.senteval_files import asked_folder, canonical_name
from unremix.domains.sentence.simcse import SentenceView, SingleEncoder, has_dropout, masked
from unremix.domains.sentence.tokens import Numbering, Vocabulary, encode
from unremix.domains.sentence.word_vectors import (
    expand_encoder,
    load_word_vectors,
    set_word_vectors,
)
from unremix.files.archives import Skipped
from unremix.files.fingerprint import fingerprint
from unremix.frameworks.base import Framework
from unremix.frameworks.heads import projection_head
from unremix.frameworks.randomness import VIEWS, keys, scramble
from unremix.frameworks.recipe import find_recipe
from unremix.user_cache import user_cache

ENCODED_AT_ONCE = 512
FINGERPRINTED = 128  # windows, and sentences in each
SIZES = "sentence.words, sentence.units, sentence.output or sentence.max_length"


@dataclass(frozen=True)
class SentenceShape:
    """What a text decides about the model."""

    words: tuple[str, ...]  # the words known, most frequent first, without padding and unknown
    counts: tuple[int, ...]  # how often each occurs in the text
    unknown: int  # how often others do
    single: bool = False  # whether there is one encoder, as for SimCSE, and not two

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        return Vocabulary(list(self.words), list(self.counts), unknown=self.unknown)


AnyShape = SentenceShape | PretrainedShape


def has_neighbors(config: TrainConfig) -> bool:
    """Whether neighbors in the text are positives, as for Quick-Thought."""
    return (config.framework or find_recipe(config.recipe).framework) == "quickthought"


def _embedded(encoder: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Embeddings (n, F) in eval mode, on the CPU, of batches of tokens and lengths."""
    with evaluating(encoder) as (device, _):
        return torch.cat(
            [encoder(tokens.to(device), lengths).float().cpu() for tokens, lengths in batches]
        )


def encode_texts(
    encoder: nn.Module, texts: list[str], vocabulary: Numbering, *, max_length: int | None
) -> Tensor:
    """Embeddings of sentences in eval mode, shape (n, F), on the CPU; short ones together."""
    if not texts:
        return torch.empty(0, int(encoder.features))  # type: ignore[arg-type]
    order = torch.tensor(sorted(range(len(texts)), key=lambda index: len(texts[index])))

    def read(indices: Tensor) -> tuple[Tensor, Tensor]:
        return encode(vocabulary, [texts[i] for i in indices.tolist()], max_length=max_length)

    return _embedded(encoder, read_ahead(read, order.split(ENCODED_AT_ONCE)))[order.argsort()]


def reader(run: Trained, encoder: nn.Module | None = None) -> tuple[nn.Module, Numbering]:
    """A run's encoder and the words it knows, further ones included where they were asked for."""
    encoder, vocabulary = encoder or run.encoder(), run.shape.vocabulary
    expand = run.config.own.expand
    return (encoder, vocabulary) if expand is None else expand_encoder(encoder, vocabulary, expand)


def reader_and_shape(run: Trained) -> tuple[nn.Module, AnyShape]:
    """As :func:`reader`, with the shape of the encoder in place of its words."""
    if run.config.own.expand is None:
        return run.encoder(), run.shape
    encoder, words = reader(run)
    return encoder, _shape_of(words, run.shape.single)


def corpus_features(
    encoder: nn.Module, corpus: EncodedCorpus, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Embeddings (n, F) of the first sentences, all by default, and their documents (n,)."""
    total = len(corpus) if count is None else min(count, len(corpus))
    known: tuple[Tensor, Tensor] | None = recall(encoder, corpus, total)
    if known is not None:
        return known

    def read(start: int) -> SentenceBatch:
        return corpus.batch(start, min(ENCODED_AT_ONCE, total - start))

    parts = read_ahead(read, range(0, total, ENCODED_AT_ONCE))
    return remember(encoder, corpus, sentence_features(encoder, parts), total)


def sentence_features(
    encoder: nn.Module, batches: Iterable[SentenceBatch]
) -> tuple[Tensor, Tensor]:
    """Embeddings (n, F) of the sentences of some batches in eval mode, and their documents (n,)."""
    documents: list[Tensor] = []

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            documents.append(batch.documents)
            yield batch.tokens, batch.lengths

    return _embedded(encoder, read()), torch.cat(documents)


def check(config: TrainConfig) -> None:
    """Refuse what can be refused before the data are read."""
    options, encoder = config.own, config.encoder or ""
    named = encoder.partition(":")[0] in LIBRARIES or is_code(encoder)
    if named and has_neighbors(config):
        raise ValueError(
            f"expected --recipe simcse or simcse-unremix with --encoder {config.encoder}, got "
            f"{config.recipe}, whose two encoders learn from neighbors in a text; change one"
        )
    if options.tokens is not None and options.encoder != "pretrained" and not named:
        raise ValueError(
            f"expected --sentence.tokens with a pretrained encoder, got {options.tokens} with "
            f"{options.encoder}; use --sentence.max_length"
        )
    if named and options.max_length != SentenceOptions().max_length:
        raise ValueError(
            f"expected --sentence.tokens with --encoder {config.encoder}, got "
            f"--sentence.max_length {options.max_length}, which counts words; change it"
        )
    if options.encoder == "pretrained" and config.encoder is None:
        raise ValueError(
            f"expected --encoder NAME for a pretrained transformer, such as {LIBRARIES[0]}:NAME, "
            "got none; add it"
        )
    if not has_neighbors(config) and options.output is not None:
        raise ValueError(
            f"expected --sentence.output with two encoders, got it with recipe {config.recipe}; "
            "leave it out"
        )
    if options.views == "dropout" and not named and options.encoder != "pretrained":
        raise ValueError(
            f"expected dropout in the encoder for --sentence.views dropout, got {options.encoder}, "
            "which has none; use mask"
        )
    for name in ("word_vectors", "expand"):
        if named and getattr(options, name) is not None:
            raise ValueError(
                f"expected --sentence.{name} without a pretrained encoder, which has words of its "
                f"own, got it with {config.encoder}; leave it out"
            )
    asked_folder(config.own.senteval)
    for task in config.own.tasks:
        canonical_name(task)
    for option in ("word_vectors", "expand"):
        path = getattr(config.own, option)
        if path is not None and not Path(path).is_file():
            raise FileNotFoundError(
                f"expected a file of word vectors for --sentence.{option}, found none at {path}"
            )


def load(config: TrainConfig) -> EncodedCorpus:
    """The text of a run, its words numbered; kept beside the runs for the next time."""
    corpus = _encoded(config, Path(config.runs), config.data, config.limit, None)
    alone = has_neighbors(config) and corpus.documents == corpus.sentences
    if alone and config.epochs > 0:
        raise ValueError(
            f"expected sentences with neighbors, got {corpus.documents} documents of one "
            "sentence each in the text; put sentences that follow each other on lines that "
            "follow each other, with blank lines between documents only"
        )
    return corpus


def load_for(run: Trained, data: str | None) -> EncodedCorpus:
    """The run's own text, or another, in the run's vocabulary."""
    config = run.config
    source = config.data if data is None else data
    limit = config.limit if data is None else None
    runs = run.path.parent if run.path.is_dir() else user_cache()
    return _encoded(config, runs, source, limit, reader(run)[1])


def _encoded(
    config: TrainConfig,
    runs: Path,
    source: str,
    limit: int | None,
    vocabulary: Numbering | None,
) -> EncodedCorpus:
    options = config.own
    text = load_sentences(
        source, format=options.format, limit=limit, text=options.text, label=options.label
    )
    return encode_sentences(
        text,
        runs / ".cache",
        vocabulary=vocabulary,
        vocabulary_size=options.vocabulary,
        max_length=options.length,
    )


def shape_of(data: EncodedCorpus, config: TrainConfig) -> SentenceShape:
    """What the text decides about the model: its words."""
    return _shape_of(data.vocabulary, not has_neighbors(config))


def _shape_of(words: Numbering, single: bool) -> SentenceShape:
    return SentenceShape(tuple(words.words[2:]), tuple(words.counts[2:]), words.counts[1], single)


def shape_from(values: dict[str, Any]) -> AnyShape:
    """The same from plain values."""
    if "tokenizer" in values:
        pretrained: PretrainedShape = make_options(PretrainedShape, values)
        if pretrained.pooling not in (*POOLING, OWN) or pretrained.max_length < 1:
            raise ValueError(
                f"expected a pooling among {', '.join(POOLING)} and max_length of at least 1, got "
                f"{pretrained.pooling!r} and {pretrained.max_length}; restore shape.json"
            )
        return pretrained
    shape: SentenceShape = make_options(SentenceShape, values)
    if min(shape.unknown, *shape.counts, 0) < 0:
        raise ValueError(f"expected counts of words from 0 on, got {shape.unknown!r} and others")
    if len(shape.words) != len(shape.counts):
        raise ValueError(f"expected {len(shape.words)} counts of words, got {len(shape.counts)}")
    return shape


def ready(config: TrainConfig) -> Ready:
    """The pretrained transformer, or the callable, that ``config.encoder`` names."""
    library, _, name = (config.encoder or "").partition(":")
    if library in LIBRARIES:
        shape, weights = find_pretrained(library, name, config.own.tokens)
    else:
        shape, weights = find_own(config.encoder or "", config.own.tokens)
    own = replace(config.own, encoder="pretrained", tokens=shape.max_length)
    named = {f"inner.{key}": tensor for key, tensor in weights.items()}
    return Ready(replace(config, own=own), shape, named, f"sentences: {shape.describe()}")


def build(config: TrainConfig, shape: AnyShape) -> tuple[nn.Module, nn.Sequential]:
    """Two encoders in one without a head; or one encoder with a linear map as head."""
    options = config.own
    if isinstance(shape, PretrainedShape) or shape.single:
        if not isinstance(shape, PretrainedShape):
            encoder = SingleEncoder(_encoder(config, len(shape.vocabulary)))
        elif shape.pooling == OWN:
            encoder = SingleEncoder(_own_encoder(config))
        else:
            encoder = SingleEncoder(PretrainedTransformer(shape))
        width = encoder.features
        return encoder, projection_head(width, hidden=(), output=width, batch_norm=False)
    encoders = [_encoder(config, len(shape.vocabulary)) for _ in range(2)]
    maps = None
    if options.output is not None:
        sizes = [int(encoder.features) for encoder in encoders]  # type: ignore[arg-type]
        maps = (nn.Linear(sizes[0], options.output), nn.Linear(sizes[1], options.output))
    return TwinEncoder(encoders[0], encoders[1], maps), nn.Sequential()


def _own_encoder(config: TrainConfig) -> nn.Module:
    """The module of the callable that the options name, as no file of weights does.

    Raises:
        ValueError: If they name none.
    """
    if not is_code(config.encoder or ""):
        raise ValueError(
            "expected the name of the callable that makes this encoder, got none: a file of "
            "weights must not decide which code runs; use the run's folder with --trust"
        )
    return OwnEncoder(str(config.encoder))


def fill(model: Framework, config: TrainConfig, shape: AnyShape) -> None:
    """Start from the word vectors that the options name."""
    options = config.own
    if options.word_vectors is None:
        return
    assert isinstance(shape, SentenceShape)
    table, known = load_word_vectors(options.word_vectors, shape.vocabulary)
    for one in model.encoder.modules():
        words = getattr(one, "words", None)
        if isinstance(words, nn.Embedding):
            set_word_vectors(words, table, known)


def _encoder(config: TrainConfig, vocabulary_size: int) -> nn.Module:
    options = config.own
    if options.encoder == "bow":
        return BagOfWords(vocabulary_size, words=options.words)
    if options.encoder == "transformer":
        return TransformerEncoder(
            vocabulary_size, words=options.words, max_length=options.max_length
        )
    return GRUEncoder(
        vocabulary_size,
        words=options.words,
        units=options.units,
        bidirectional=options.bidirectional,
    )


def describe(config: TrainConfig, shape: AnyShape) -> str:
    """The encoder, in a few words."""
    options = config.own
    if isinstance(shape, PretrainedShape):
        return shape.describe()
    size = f"words of {options.words}"
    if options.encoder == "gru":
        size += f", {'2 × ' if options.bidirectional else ''}{options.units} units"
    kind = "GRU" if options.encoder == "gru" else options.encoder
    encoders = f"one {kind} encoder" if shape.single else f"two {kind} encoders"
    return f"{encoders} ({size}), {len(shape.words):,} words known"


def fingerprint_of(data: EncodedCorpus) -> str:
    """Of all words and how often they occur, and of windows of sentences all over the text."""
    known, width = data.vocabulary, min(FINGERPRINTED, len(data))
    starts = evenly_spaced(len(data) - width + 1, FINGERPRINTED).tolist()
    windows = (data.batch(start, width) for start in starts)
    counts = torch.tensor([len(data), data.documents, *known.counts])
    numbers = (part for one in windows for part in (one.tokens, one.lengths, one.documents))
    return fingerprint(chain([counts], known.words, numbers))


def steps(data: EncodedCorpus, config: TrainConfig) -> int:
    """Steps per epoch."""
    if not has_neighbors(config):
        return steps_of(data, config)
    if len(data) < 3:  # no negative
        return 0
    return len(batches(len(data), config.batch_size, seed=config.seed, epoch=0))


def indices_of(data: EncodedCorpus, config: TrainConfig, step: int) -> Tensor:
    """Which sentences a step uses, shape (batch_size,): consecutive ones for Quick-Thought."""
    if not has_neighbors(config):
        return permuted_indices(data, config, step)
    epoch, within = divmod(step, steps(data, config))
    start = batches(len(data), config.batch_size, seed=config.seed, epoch=epoch)[within]
    return start + torch.arange(min(config.batch_size, len(data)))


def fetch(data: EncodedCorpus, indices: Tensor) -> SentenceBatch:
    """The sentences."""
    consecutive = bool((indices.diff() == 1).all())
    return data.batch(int(indices[0]), len(indices)) if consecutive else data.choose(indices)


def views(
    fetched: SentenceBatch,
    indices: Tensor,
    model: Framework,
    config: TrainConfig,
    shape: AnyShape,
    epoch: int,
    streams: Sequence[int] = VIEWS,
) -> tuple[SentenceBatch] | tuple[SentenceView, ...]:
    """The sentences on their device, or two views of each, as the framework takes them."""
    fetched, seed = fetched.to(indices.device), config.seed
    if not model.takes_views:
        return (fetched,)
    asked = config.own.views
    if asked == "dropout" or (asked == "auto" and has_dropout(model.encoder)):
        numbers = indices.tolist()
        drawn = (scramble(seed, epoch, stream, *numbers) for stream in streams)
        return tuple(SentenceView(fetched.tokens, fetched.lengths, one) for one in drawn)
    share, numbering = config.own.masked, shape.vocabulary
    return tuple(
        masked(fetched, keys(seed, epoch, indices, stream), share, numbering) for stream in streams
    )


def embed(run: Trained, items: Any) -> Tensor:
    """Embeddings of sentences, shape (n, F)."""
    if isinstance(items, str):
        raise ValueError(f"expected a list of sentences, got one string; embed([{items!r}])")
    if not isinstance(items, Iterable):
        raise ValueError(
            f"expected a list of sentences, got {type(items).__name__} {items!r}; pass strings"
        )
    items = list(items)
    wrong = [item for item in items if not isinstance(item, str)]
    if wrong:
        raise ValueError(f"expected sentences, got {wrong[0]!r}; each is a string")
    encoder, vocabulary = reader(run)
    return encode_texts(encoder, items, vocabulary, max_length=run.config.own.length)


def features(run: Trained, data: EncodedCorpus) -> Features:
    """Embeddings of a whole text in reading order; names are the sentences, labels the topics.

    A sentence without any word is left out.
    """
    found, documents = corpus_features(reader(run)[0], data)
    labels = documents if data.topics is not None else None
    return Features(found, data.names, labels, data.topics)


@dataclass(frozen=True)
class SentencePiece:
    """Sentences, their words numbered."""

    names: list[str]  # of each sentence
    batches: list[SentenceBatch]  # all of them in turn
    topics: Sequence[str] | None  # the name of each document's topic; None where unknown

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`unremix.domains.base.Piece`."""
        found, documents = sentence_features(encoder, self.batches)
        labels = None if self.topics is None else documents
        return Features(found, self.names, labels, self.topics), []


def cut(run: Trained, source: Any, rows: int) -> Cut:
    """The sentences of a run, or others, in pieces of at most so many."""
    corpus = load_for(run, source)
    names = corpus.names
    pieces = []
    for some in ranges(len(corpus), rows):
        batches = [
            corpus.batch(some.start + inner.start, len(inner))
            for inner in ranges(len(some), ENCODED_AT_ONCE)
        ]
        pieces.append(SentencePiece(names[some.start : some.stop], batches, corpus.topics))
    return Cut(pieces, [fingerprint_of(corpus)], ())
