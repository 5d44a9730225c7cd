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
from unremix.domains.graph.options import KINDS, GraphOptions
from unremix.domains.graph.store import GraphBatch, GraphSet, GraphStore
from unremix.domains.graph.views import augment
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
            parts.append(encoder(batch.to(device, dtype)).float().cpu())
    return remember(encoder, store, torch.cat(parts))


def check(config: TrainConfig) -> None:
    """Refuse what can be refused before the data are read."""
    composition, usual = config.composition(), GraphOptions()
    unknown = [kind for kind in config.own.kinds if kind not in KINDS]
    if unknown or not config.own.kinds:
        got = ", ".join(unknown) or "none"
        raise ValueError(f"expected --graph.kinds among {', '.join(KINDS)}, got {got}; change it")
    for name in ("kinds", "ratio"):
        value = getattr(config.own, name)
        takes_views = getattr(composition.framework, "takes_views", True)
        if not takes_views and value != getattr(usual, name):
            got = f"{value!r} for {composition.parts['framework']}; choose a graphcl recipe"
            raise ValueError(f"expected --graph.{name} only with views of graphs, got {got}")


def load(config: TrainConfig, encoding: NodeEncoding | None = None) -> GraphData:
    """The graphs that options name; their nodes encoded like others, if that is given."""
    options = {"use_attributes": config.own.use_attributes, "progress": config.progress}
    return load_graphs(config.data, limit=config.limit, encoding=encoding, **options)


def load_for(run: Trained, data: str | None) -> GraphData:
    """The run's own graphs, or others, their nodes encoded alike."""
    config = run.config if data is None else replace(run.config, data=data, limit=None)
    return load(config, run.shape.encoding)


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
    fetched = fetched.to(indices.device, model.dtype)
    if not model.takes_views:
        return (fetched,)
    drawn = (keys(config.seed, epoch, indices, stream) for stream in streams)
    return tuple(augment(fetched, config.own, one) for one in drawn)


def embed(run: Trained, items: Any) -> Tensor:
    """Embeddings of graphs of torch_geometric, shape (n, F)."""
    from torch_geometric.data import Data  # type: ignore[import-untyped]

    if not isinstance(items, list | tuple):
        received = type(items).__name__
    else:
        wrong = (type(one).__name__ for one in items if not isinstance(one, Data))
        received = next(wrong, "" if items else "an empty list")
    if received:
        got = f"{received}; files are embedded by 'unremix embed'"
        raise ValueError(f"expected a list of torch_geometric.data.Data, got {got}")
    return graph_features(run.encoder(), store_graphs(items, run.shape.encoding))


def features(run: Trained, data: GraphData) -> Features:
    """Embed all graphs."""
    return GraphPiece(data.train).embed(run.encoder(), run.shape)[0]


@dataclass(frozen=True)
class GraphPiece:
    """Graphs with the features of their nodes."""

    graphs: GraphSet

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """See :class:`unremix.domains.base.Piece`."""
        graphs = self.graphs
        found = graph_features(encoder, graphs.store)
        return Features(found, list(graphs.names), graphs.labels, graphs.classes), []


def cut(run: Trained, source: Any, rows: int) -> Cut:
    """The graphs of a run, or others, in pieces of at most so many."""
    data = load_for(run, source)
    places = torch.arange(len(data.train)).split(rows)
    pieces = [GraphPiece(data.train.choose(some)) for some in places]
    return Cut(pieces, [fingerprint_of(data)], ())
