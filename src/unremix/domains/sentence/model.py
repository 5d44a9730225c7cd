"""From sentences to a model: their words, two encoders, batches of neighbors, features."""

from __future__ import annotations

import math
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
from unremix.domains.sentence import word_vectors
from unremix.domains.sentence.corpus import EncodedCorpus, SentenceBatch, batches
from unremix.domains.sentence.dataset import encode_sentences, load_sentences
from unremix.domains.sentence.encoders import BagOfWords, TransformerEncoder
from unremix.domains.sentence.gru import GRUEncoder
from unremix.domains.sentence.options import SentenceOptions
from unremix.domains.sentence.pretrained import LIBRARIES, PretrainedShape, find_ready, make_ready
from unremix.domains.sentence.quickthought import TwinEncoder
from unremix.domains.sentence.senteval_files import asked_folder, canonical_name
from unremix.domains.sentence.simcse import SingleEncoder, has_dropout, masked
from unremix.domains.sentence.tokens import Numbering, Vocabulary, encode
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
        outputs = (encoder(tokens.to(device), lengths) for tokens, lengths in batches)
        return torch.cat([output.float().cpu() for output in outputs])


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


def reader(run: Trained, encoder: nn.Module | None = None) -> tuple[nn.Module, AnyShape]:
    """A run's encoder and its shape, with further words where they were asked for."""
    encoder, expand = encoder or run.encoder(), run.config.own.expand
    if expand is None:
        return encoder, run.shape
    encoder, words = word_vectors.expand_encoder(encoder, run.shape.vocabulary, expand)
    return encoder, _shape_of(words, run.shape.single)


def corpus_features(
    encoder: nn.Module, corpus: EncodedCorpus, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Embeddings (n, F) of the first sentences, all by default, and their documents (n,)."""
    total = len(corpus) if count is None else min(count, len(corpus))
    known: tuple[Tensor, Tensor] | None = recall(encoder, corpus, total)
    if known is not None:
        return known
    spans = ranges(total, ENCODED_AT_ONCE)
    parts = read_ahead(lambda span: corpus.batch(span.start, len(span)), spans)
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
    options, encoder, recipe = config.own, config.encoder or "", config.recipe
    named = encoder.partition(":")[0] in LIBRARIES or is_code(encoder)
    pretrained = named or options.encoder == "pretrained"
    wrong = ""
    if named and has_neighbors(config):
        two = f"{recipe}, whose two encoders learn from neighbors in a text"
        wrong = f"--recipe simcse or simcse-unremix with --encoder {encoder}, got {two}; change one"
    elif options.tokens is not None and not pretrained:
        got = f"{options.tokens} with {options.encoder}; use --sentence.max_length"
        wrong = f"--sentence.tokens with a pretrained encoder, got {got}"
    elif named and options.max_length != SentenceOptions().max_length:
        got = f"--sentence.max_length {options.max_length}, which counts words; change it"
        wrong = f"--sentence.tokens with --encoder {encoder}, got {got}"
    elif pretrained and not encoder:
        wrong = f"--encoder NAME, such as {LIBRARIES[0]}:NAME, for a pretrained one, got none"
    elif not has_neighbors(config) and options.output is not None:
        wrong = f"--sentence.output with two encoders, got it with recipe {recipe}; leave it out"
    elif options.views == "dropout" and not pretrained:
        wrong = f"dropout in the encoder for --sentence.views, got {options.encoder}; use mask"
    if wrong:
        raise ValueError(f"expected {wrong}")
    for name in ("word_vectors", "expand"):
        path = getattr(options, name)
        if path is not None and named:
            got = f"it with {encoder}, which has its own words; leave it out"
            raise ValueError(f"expected no --sentence.{name} for a pretrained encoder, got {got}")
        if path is not None and not Path(path).is_file():
            raise FileNotFoundError(f"expected a file for --sentence.{name}, found none at {path}")
    asked_folder(options.senteval)
    for task in options.tasks:
        canonical_name(task)


def load(config: TrainConfig) -> EncodedCorpus:
    """The text of a run, its words numbered; kept beside the runs for the next time."""
    corpus = _encoded(config, Path(config.runs), None)
    alone = has_neighbors(config) and corpus.documents == corpus.sentences
    if alone and config.epochs > 0:
        got = f"{corpus.documents} documents of one sentence each"
        remedy = "put blank lines between documents only, not between sentences"
        raise ValueError(f"expected sentences with neighbors, got {got}; {remedy}")
    return corpus


def load_for(run: Trained, data: str | None) -> EncodedCorpus:
    """The run's own text, or another, in the run's vocabulary."""
    config = run.config if data is None else replace(run.config, data=data, limit=None)
    runs = run.path.parent if run.path.is_dir() else user_cache()
    return _encoded(config, runs, reader(run)[1].vocabulary)


def _encoded(config: TrainConfig, runs: Path, vocabulary: Numbering | None) -> EncodedCorpus:
    options = config.own
    columns = {"text": options.text, "label": options.label}
    text = load_sentences(config.data, format=options.format, limit=config.limit, **columns)
    sizes = {"vocabulary_size": options.vocabulary, "max_length": options.length}
    return encode_sentences(text, runs / ".cache", vocabulary=vocabulary, **sizes)


def shape_of(data: EncodedCorpus, config: TrainConfig) -> SentenceShape:
    """What the text decides about the model: its words."""
    return _shape_of(data.vocabulary, not has_neighbors(config))


def _shape_of(words: Numbering, single: bool) -> SentenceShape:
    return SentenceShape(tuple(words.words[2:]), tuple(words.counts[2:]), words.counts[1], single)


def shape_from(values: dict[str, Any]) -> AnyShape:
    """The same from plain values."""
    if "tokenizer" in values:
        pretrained: PretrainedShape = make_options(PretrainedShape, values)
        return pretrained
    shape: SentenceShape = make_options(SentenceShape, values)
    if min(shape.unknown, *shape.counts, 0) < 0:
        raise ValueError(f"expected counts of words from 0 on, got {shape.unknown!r} and others")
    if len(shape.words) != len(shape.counts):
        raise ValueError(f"expected {len(shape.words)} counts of words, got {len(shape.counts)}")
    return shape


def ready(config: TrainConfig) -> Ready:
    """The pretrained transformer, or the callable, that ``config.encoder`` names."""
    shape, weights = find_ready(config.encoder or "", config.own.tokens)
    own = replace(config.own, encoder="pretrained", tokens=shape.max_length)
    named = {f"inner.{key}": tensor for key, tensor in weights.items()}
    return Ready(replace(config, own=own), shape, named, f"sentences: {shape.describe()}")


def build(config: TrainConfig, shape: AnyShape) -> tuple[nn.Module, nn.Sequential]:
    """Two encoders in one without a head; or one encoder with a linear map as head."""
    output = config.own.output

    def made() -> nn.Module:
        if isinstance(shape, PretrainedShape):
            return make_ready(shape, config.encoder or "")
        return _encoder(config.own, len(shape.vocabulary))

    if shape.single:
        encoder = SingleEncoder(made())
        width = encoder.features
        return encoder, projection_head(width, hidden=(), output=width, batch_norm=False)
    first, second = made(), made()
    maps = None
    if output is not None:
        sizes = [int(one.features) for one in (first, second)]  # type: ignore[arg-type]
        maps = (nn.Linear(sizes[0], output), nn.Linear(sizes[1], output))
    return TwinEncoder(first, second, maps), nn.Sequential()


def fill(model: Framework, config: TrainConfig, shape: AnyShape) -> None:
    """Start from the word vectors that the options name."""
    if config.own.word_vectors is not None:
        assert isinstance(shape, SentenceShape)
        rows, vectors = word_vectors.load_word_vectors(config.own.word_vectors, shape.vocabulary)
        word_vectors.set_word_vectors(model.encoder, rows, vectors)


def _encoder(options: SentenceOptions, vocabulary_size: int) -> nn.Module:
    words = options.words
    if options.encoder == "bow":
        return BagOfWords(vocabulary_size, words=words)
    if options.encoder == "transformer":
        return TransformerEncoder(vocabulary_size, words=words, max_length=options.max_length)
    two_ways = options.bidirectional
    return GRUEncoder(vocabulary_size, words=words, units=options.units, bidirectional=two_ways)


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
    enough = len(data) >= 3  # for a negative
    return math.ceil(len(data) / config.batch_size) if enough else 0


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
) -> tuple[SentenceBatch, ...]:
    """The sentences on their device, or two views of each, as the framework takes them."""
    fetched, seed = fetched.to(indices.device), config.seed
    if not model.takes_views:
        return (fetched,)
    asked = config.own.views
    if asked == "dropout" or (asked == "auto" and has_dropout(model.encoder)):
        numbers = indices.tolist()
        drawn = (scramble(seed, epoch, stream, *numbers) for stream in streams)
        return tuple(replace(fetched, seed=one) for one in drawn)
    share, numbering = config.own.masked, shape.vocabulary
    drawn_keys = (keys(seed, epoch, indices, stream) for stream in streams)
    return tuple(masked(fetched, one, share, numbering) for one in drawn_keys)


def embed(run: Trained, items: Any) -> Tensor:
    """Embeddings of sentences, shape (n, F)."""
    if isinstance(items, str):
        raise ValueError(f"expected a list of sentences, got one string; embed([{items!r}])")
    if not isinstance(items, Iterable):
        got = f"{type(items).__name__} {items!r}"
        raise ValueError(f"expected a list of sentences, got {got}; pass strings")
    items = list(items)
    wrong = [item for item in items if not isinstance(item, str)]
    if wrong:
        raise ValueError(f"expected sentences, got {wrong[0]!r}; each is a string")
    encoder, shape = reader(run)
    return encode_texts(encoder, items, shape.vocabulary, max_length=run.config.own.length)


def features(run: Trained, data: EncodedCorpus) -> Features:
    """Embeddings of a whole text in reading order; names are the sentences, labels the topics.

    A sentence without any word is left out.
    """
    found, documents = corpus_features(reader(run)[0], data)
    labels = documents if data.classes is not None else None
    return Features(found, data.names, labels, data.classes)


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
        inner = ranges(len(some), ENCODED_AT_ONCE)
        batches = [corpus.batch(some.start + one.start, len(one)) for one in inner]
        pieces.append(SentencePiece(names[some.start : some.stop], batches, corpus.classes))
    return Cut(pieces, [fingerprint_of(corpus)], ())
