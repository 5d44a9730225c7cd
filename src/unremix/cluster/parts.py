"""Data cut into parts that can be sent to another machine and embedded there, each on its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from unremix.data.archives import RemoteSpan, Skipped
from unremix.data.graph.store import GraphSet
from unremix.data.image.dataset import find_splits
from unremix.data.image.decoding import ArraySource, FileSource, Shape, quiet_pillow
from unremix.data.image.stores import store_images
from unremix.data.remote import RemoteFile, cache_folder
from unremix.data.sentence.corpus import SentenceBatch
from unremix.data.splits import Split
from unremix.domains.base import Features
from unremix.domains.graph import graph_features
from unremix.domains.image import set_features
from unremix.domains.sentence import ENCODED_AT_ONCE, reader, sentence_features
from unremix.training.run import Run


class Part(Protocol):
    """Some consecutive samples of the data; it is pickled."""

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """Their embeddings, and those that could not be used.

        Args:
            encoder: From :func:`encoder_of`.
            shape: What the run's data decided about its model.
        """
        ...


class Cut(NamedTuple):
    """Data in parts."""

    parts: Sequence[Part]  # in the order of the data
    identity: Iterable[str | Tensor]  # texts and tensors that tell these data from others
    skipped: Sequence[Skipped]  # what was left out when the data were listed


@dataclass(frozen=True)
class ImagePart:
    """Images that are read and decoded where they are embedded."""

    split: Split

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`Part`.

        Raises:
            FileNotFoundError: If this machine does not see a file.
        """
        for file in _files(self.split):
            if isinstance(file, str) and not os.path.exists(file):
                raise FileNotFoundError(
                    f"expected {file} on {os.uname().nodename}, found none; put --data on storage "
                    "that all nodes share, or name shards by their URL"
                )
        budget = len(self.split.names) * shape.channels * shape.image_size**2
        with quiet_pillow():
            images, skipped = store_images(
                self.split, Shape(shape.channels, shape.image_size), budget, None
            )
        found = set_features(encoder, images, shape.settings)
        return Features(found, images.names, images.labels, images.classes), skipped


@dataclass(frozen=True)
class GraphPart:
    """Graphs with the features of their nodes."""

    graphs: GraphSet

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`Part`."""
        graphs = self.graphs
        found = graph_features(encoder, graphs.store)
        return Features(found, graphs.names, graphs.labels, graphs.classes), []


@dataclass(frozen=True)
class SentencePart:
    """Sentences, their words numbered."""

    names: list[str]  # of each sentence
    batches: list[SentenceBatch]  # all of them in turn
    topics: Sequence[str] | None  # the name of each document's topic; None where unknown

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`Part`."""
        found, documents = sentence_features(encoder, self.batches)
        labels = None if self.topics is None else documents
        return Features(found, self.names, labels, self.topics), []


def encoder_of(run: Run) -> nn.Module:
    """The encoder that embeds a run's data, in eval mode."""
    return reader(run)[0] if run.config.domain == "sentence" else run.encoder()


def cut_data(run: Run, source: Any, rows: int) -> Cut:
    """The data of a run, or others, in parts of at most so many rows."""
    cutters: dict[str, Callable[[Run, Any, int], Cut]] = {
        "image": _cut_images,
        "graph": _cut_graphs,
        "sentence": _cut_sentences,
    }
    return cutters[run.config.domain](run, source, rows)


def _cut_images(run: Run, source: Any, rows: int) -> Cut:
    config = run.config
    found = find_splits(
        config.data if source is None else source,
        limit=config.limit if source is None else None,
        validation=config.validation if source is None else None,
    )
    parts = [ImagePart(split) for split in _pieces(found.splits, rows)]
    identity = (one for part in parts for one in _identity(part.split))
    return Cut(parts, identity, found.skipped)


def _files(split: Split) -> dict[str | RemoteFile, None]:
    """The files that images lie in, each once; none if they are in memory."""
    source = split.source
    spans = source.spans if isinstance(source, FileSource) else ()
    return dict.fromkeys(s.file if isinstance(s, RemoteSpan) else s.path for s in spans)


def _identity(split: Split) -> Iterator[str | Tensor]:
    """What tells images from others, also from others of the same names."""
    yield from split.names
    yield repr((split.labels, split.classes))
    yield from map(_version, _files(split))
    if isinstance(split.source, ArraySource):
        yield torch.from_numpy(np.ascontiguousarray(split.source.array))


def _version(file: str | RemoteFile) -> str:
    """What changes when a file does, though not if it is moved."""
    if isinstance(file, RemoteFile):
        return f"{file.size} {file.tag}"
    if Path(file).is_relative_to(cache_folder()):
        return Path(file).parent.name  # made of its URL, size and tag
    status = os.stat(file)
    return f"{status.st_size} {status.st_mtime_ns}"


def _pieces(splits: Sequence[Split], rows: int) -> Iterator[Split]:
    """At most so many images each, those for training first."""
    known = all(split.labels is not None for split in splits)
    for split in splits:
        for some in _ranges(len(split.names), rows):
            piece = split.keep(some)
            labels = piece.labels if known else None
            yield replace(piece, labels=labels, classes=splits[0].classes)


def _cut_graphs(run: Run, source: Any, rows: int) -> Cut:
    data = run.domain.load_for(run, source)
    graphs: GraphSet = data.train
    parts = []
    for some in _ranges(len(graphs), rows):
        within = slice(some.start, some.stop)
        store = graphs.store.choose(torch.arange(some.start, some.stop))
        labels = None if graphs.labels is None else graphs.labels[within]
        parts.append(GraphPart(GraphSet(store, graphs.names[within], labels, graphs.classes)))
    return Cut(parts, [run.domain.fingerprint(data)], ())


def _cut_sentences(run: Run, source: Any, rows: int) -> Cut:
    corpus = run.domain.load_for(run, source)
    names = corpus.names()
    parts = []
    for some in _ranges(len(corpus), rows):
        batches = [
            corpus.batch(some.start + inner.start, len(inner))
            for inner in _ranges(len(some), ENCODED_AT_ONCE)
        ]
        parts.append(SentencePart(names[some.start : some.stop], batches, corpus.topics))
    return Cut(parts, [run.domain.fingerprint(corpus)], ())


def _ranges(count: int, size: int) -> Iterator[range]:
    """0 … count - 1 in ranges of at most so many.

    Example:
        >>> list(_ranges(5, 2))
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return (range(first, min(first + size, count)) for first in range(0, count, size))
