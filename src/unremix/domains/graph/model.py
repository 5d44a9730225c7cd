"""From graphs to a model: their shape, encoder and head, batches of views, features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.values import check_types
from unremix.domains.base import Cut, Features, Trained, evaluating
from unremix.domains.graph.dataset import GraphData, load_graphs, store_graphs
from unremix.domains.graph.encoders import GraphEncoder
from unremix.domains.graph.features import NodeEncoding
from unremix.domains.graph.options import GraphOptions
from unremix.domains.graph.store import GraphBatch, GraphSet, GraphStore
from unremix.domains.graph.views import GraphAugmentation, augment
from unremix.domains.options import TrainConfig
from unremix.domains.remembered import recall, remember
from unremix.domains.sampling import read_ahead
from unremix.files.archives import Skipped
from unremix.files.fingerprint import fingerprint
from unremix.frameworks.base import Framework
from unremix.frameworks.heads import projection_head
from unremix.frameworks.randomness import VIEWS, keys

EVALUATION_BATCH = 512
SIZES = "graph.hidden or graph.layers"
MOST_FEATURES = 1 << 20  # of a node


@dataclass(frozen=True)
class GraphShape:
    """What graphs decide about the model."""

    encoding: NodeEncoding  # how nodes become features


def graph_features(encoder: nn.Module, store: GraphStore) -> Tensor:
    """Embeddings of graphs in eval mode, shape (G, F), on the CPU."""
    known: Tensor | None = recall(encoder, store)
    if known is not None:
        return known
    parts = []
    with evaluating(encoder) as (device, dtype):
        for batch in read_ahead(store.batch, torch.arange(len(store)).split(EVALUATION_BATCH)):
            parts.append(encoder(in_dtype(batch.to(device), dtype)).float().cpu())
    return remember(encoder, store, torch.cat(parts))


def in_dtype(batch: GraphBatch, dtype: torch.dtype) -> GraphBatch:
    """The graphs with their features in a precision."""
    return replace(batch, x=batch.x.to(dtype))


def augmentation_of(config: TrainConfig) -> GraphAugmentation:
    """How views of graphs are made."""
    return GraphAugmentation(kinds=config.own.kinds, ratio=config.own.ratio)


def check(config: TrainConfig) -> None:
    """Refuse what can be refused before the data are read."""
    composition, usual = config.composition(), GraphOptions()
    augmentation_of(config)
    if getattr(composition.framework, "takes_views", True):
        return
    for name in ("kinds", "ratio"):
        value = getattr(config.own, name)
        if value != getattr(usual, name):
            raise ValueError(
                f"expected --graph.{name} only with views of graphs, got {value!r} for "
                f"{composition.parts['framework']}, which has none; leave it out or choose a "
                "graphcl recipe"
            )


def load(config: TrainConfig) -> GraphData:
    """The graphs of a run."""
    return load_graphs(
        config.data,
        limit=config.limit,
        use_attributes=config.own.use_attributes,
        progress=config.progress,
    )


def load_for(run: Trained, data: str | None) -> GraphData:
    """The run's own graphs, or others, their nodes encoded alike."""
    return load_graphs(
        run.config.data if data is None else data,
        limit=run.config.limit if data is None else None,
        encoding=run.shape.encoding,
        progress=run.config.progress,
    )


def shape_from(values: dict[str, Any]) -> GraphShape:
    """The same from plain values."""
    encoding = NodeEncoding(**values["encoding"])
    check_types(encoding)
    if not isinstance(encoding.width, int) or not 1 <= encoding.width <= MOST_FEATURES:
        raise ValueError(f"expected features of nodes, got {encoding.width!r} of them")
    return GraphShape(encoding)


def build(config: TrainConfig, shape: GraphShape) -> tuple[nn.Module, nn.Sequential]:
    """Encoder and head."""
    options: GraphOptions = config.own
    encoder = GraphEncoder(shape.encoding.width, hidden=options.hidden, layers=options.layers)
    width = encoder.features
    return encoder, projection_head(width, hidden=(width,), output=width, batch_norm=False)


def describe(config: TrainConfig, shape: GraphShape) -> str:
    """The encoder, in a few words."""
    nodes = f"{shape.encoding.width} node features ({shape.encoding.kind})"
    return f"GIN, {config.own.layers} layers of {config.own.hidden}, {nodes}"


def fingerprint_of(data: GraphData) -> str:
    """Of all nodes, edges and labels."""
    store, labels = data.train.store, data.train.labels
    return fingerprint([store.x, store.edge_index, store.node_starts, store.edge_starts, labels])


def fetch(data: GraphData, indices: Tensor) -> GraphBatch:
    """The graphs as one batch."""
    return data.train.store.batch(indices)


def views(
    fetched: GraphBatch,
    indices: Tensor,
    model: Framework,
    config: TrainConfig,
    shape: GraphShape,
    epoch: int,
    streams: Sequence[int] = VIEWS,
) -> tuple[GraphBatch, ...]:
    """The graphs as they are, or two views of each, as the framework takes them."""
    fetched = in_dtype(fetched.to(indices.device), model.dtype)
    if not model.takes_views:
        return (fetched,)
    settings = augmentation_of(config)
    return tuple(
        augment(fetched, settings, keys(config.seed, epoch, indices, stream)) for stream in streams
    )


def embed(run: Trained, items: Any) -> Tensor:
    """Embeddings of graphs of torch_geometric, shape (n, F)."""
    from torch_geometric.data import Data  # type: ignore[import-untyped]

    if not isinstance(items, (list, tuple)):
        received = type(items).__name__
    else:
        wrong = (type(one).__name__ for one in items if not isinstance(one, Data))
        received = next(wrong, "" if items else "an empty list")
    if received:
        raise ValueError(
            f"expected a list of torch_geometric.data.Data, got {received}; files are "
            "embedded by 'unremix embed'"
        )
    return graph_features(run.encoder(), store_graphs(items, run.shape.encoding))


def features(run: Trained, data: GraphData) -> Features:
    """Embed all graphs."""
    found, graphs = graph_features(run.encoder(), data.train.store), data.train
    return Features(found, list(graphs.names), graphs.labels, graphs.classes)


@dataclass(frozen=True)
class GraphPiece:
    """Graphs with the features of their nodes."""

    graphs: GraphSet

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`unremix.domains.base.Piece`."""
        graphs = self.graphs
        found = graph_features(encoder, graphs.store)
        return Features(found, graphs.names, graphs.labels, graphs.classes), []


def cut(run: Trained, source: Any, rows: int) -> Cut:
    """The graphs of a run, or others, in pieces of at most so many."""
    data = load_for(run, source)
    places = torch.arange(len(data.train)).split(rows)
    pieces = [GraphPiece(data.train.choose(some)) for some in places]
    return Cut(pieces, [fingerprint_of(data)], ())
