"""Graphs: nodes against graphs, or two views of each graph; SVM on the embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unremix.data.fingerprint import fingerprint
from unremix.data.graph.dataset import GraphData, load_graphs, store_graphs
from unremix.data.graph.features import NodeEncoding
from unremix.data.graph.store import GraphBatch, GraphStore
from unremix.domains.base import Features, Trained, evaluating, make_batch
from unremix.domains.outline import outlined, refuse_giant
from unremix.domains.sampling import permuted
from unremix.encoders import projection_head
from unremix.encoders.graph import GraphEncoder
from unremix.frameworks.base import Batch, Framework
from unremix.options.config import GraphOptions, TrainConfig, check_types
from unremix.views.graph import GraphAugmentation, augment
from unremix.views.randomness import keys

EVALUATION_BATCH = 512
SIZES = "graph.hidden or graph.layers"
MOST_FEATURES = 1 << 20  # of a node


@dataclass(frozen=True)
class GraphShape:
    """What graphs decide about the model."""

    encoding: NodeEncoding  # how nodes become features


def graph_features(encoder: nn.Module, store: GraphStore) -> Tensor:
    """Embeddings of graphs in eval mode, shape (G, F), on the CPU."""
    parts = []
    with evaluating(encoder) as (device, dtype):
        for indices in torch.arange(len(store)).split(EVALUATION_BATCH):
            batch = in_dtype(store.batch(indices).to(device), dtype)
            parts.append(encoder(batch).float().cpu())
    return torch.cat(parts)


def in_dtype(batch: GraphBatch, dtype: torch.dtype) -> GraphBatch:
    """The graphs with their features in a precision."""
    return replace(batch, x=batch.x.to(dtype))


def augmentation_of(config: TrainConfig) -> GraphAugmentation:
    """How views of graphs are made."""
    return GraphAugmentation(kinds=config.graph.kinds, ratio=config.graph.ratio)


class GraphDomain:
    """See :class:`unremix.domains.base.Domain`."""

    unit = "graphs"

    def check(self, config: TrainConfig) -> None:
        """Refuse what can be refused before the data are read."""
        composition = config.composition()
        composition.make_loss()
        augmentation_of(config)
        options, usual = config.graph, GraphOptions()
        for name, least in (("folds", 2), ("repeats", 1), ("hidden", 1), ("layers", 1)):
            value = getattr(options, name)
            if value < least:
                raise ValueError(f"expected graph.{name} to be at least {least}, got {value}")
        takes_views = getattr(composition.framework, "takes_views", True)
        for name in ("kinds", "ratio"):
            value = getattr(options, name)
            if not takes_views and value != getattr(usual, name):
                raise ValueError(
                    f"expected --graph.{name} only with views of graphs, got {value!r} for "
                    f"{composition.parts['framework']}, which has none; leave it out or choose a "
                    "graphcl recipe"
                )
        if config.chunk is not None:
            raise ValueError(
                f"expected no --chunk for graphs, got {config.chunk}; a graph's nodes cannot "
                "be split: use a smaller --batch_size"
            )

    def load(self, config: TrainConfig) -> GraphData:
        """The graphs of a run."""
        return load_graphs(
            config.data,
            limit=config.limit,
            use_attributes=config.graph.use_attributes,
            progress=config.progress,
        )

    def load_for(self, run: Trained, data: str | None) -> GraphData:
        """The run's own graphs, or others, their nodes encoded alike."""
        return load_graphs(
            run.config.data if data is None else data,
            limit=run.config.limit if data is None else None,
            encoding=run.shape.encoding,
            progress=run.config.progress,
        )

    def shape(self, data: GraphData, config: TrainConfig) -> GraphShape:
        """What the graphs decide about the model."""
        return GraphShape(data.encoding)

    def shape_from(self, values: dict[str, Any]) -> GraphShape:
        """The same from plain values."""
        encoding = NodeEncoding(**values["encoding"])
        check_types(encoding)
        if not isinstance(encoding.width, int) or not 1 <= encoding.width <= MOST_FEATURES:
            raise ValueError(f"expected features of nodes, got {encoding.width!r} of them")
        return GraphShape(encoding)

    def outline(self, config: TrainConfig, shape: GraphShape) -> Framework | None:
        """The model without its numbers."""
        return outlined(lambda: self._make(config, shape), SIZES)

    def build(self, config: TrainConfig, shape: GraphShape, *, gather: bool = False) -> Framework:
        """The model, initialized from the seed; global randomness is untouched."""
        refuse_giant(self.outline(config, shape), SIZES)
        return self._make(config, shape, gather=gather)

    @staticmethod
    def _make(config: TrainConfig, shape: GraphShape, *, gather: bool = False) -> Framework:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            encoder = GraphEncoder(
                shape.encoding.width, hidden=config.graph.hidden, layers=config.graph.layers
            )
            head = projection_head(
                encoder.features,
                hidden=(encoder.features,),
                output=encoder.features,
                batch_norm=False,
            )
            model = config.composition().make_framework(encoder, head, gather=gather)
        return model.double() if config.precision == "64-true" else model

    def describe(self, config: TrainConfig, shape: GraphShape) -> str:
        """The encoder, in a few words."""
        nodes = f"{shape.encoding.width} node features ({shape.encoding.kind})"
        return f"GIN, {config.graph.layers} layers of {config.graph.hidden}, {nodes}"

    def fingerprint(self, data: GraphData) -> str:
        """Of all nodes, edges and labels."""
        store, labels = data.train.store, data.train.labels
        return fingerprint(
            [store.x, store.edge_index, store.node_starts, store.edge_starts, labels]
        )

    def size(self, data: GraphData) -> int:
        """How many graphs there are to train on."""
        return len(data.train)

    def steps(self, data: GraphData, config: TrainConfig) -> int:
        """Steps per epoch; a last, incomplete batch counts if it has two graphs."""
        return math.ceil((len(data.train) - 1) / config.batch_size)

    def indices(self, data: GraphData, config: TrainConfig, step: int) -> Tensor:
        """Which graphs a step uses, shape (batch_size,), fewer at the end of an epoch."""
        return permuted(
            len(data.train), config.batch_size, config.seed, step, self.steps(data, config)
        )

    def fetch(self, data: GraphData, indices: Tensor) -> GraphBatch:
        """The graphs as one batch."""
        return data.train.store.batch(indices)

    def batch(
        self,
        fetched: GraphBatch,
        indices: Tensor,
        model: Framework,
        config: TrainConfig,
        shape: GraphShape,
        *,
        step: int,
        epoch: int,
    ) -> Batch:
        """The graphs as they are, or two views of each, as the framework takes them."""
        fetched = in_dtype(fetched.to(indices.device), model.dtype)
        views: tuple[GraphBatch, ...] = (fetched,)
        if model.takes_views:
            views = tuple(
                augment(fetched, augmentation_of(config), keys(config.seed, epoch, indices, view))
                for view in (0, 1)
            )
        return make_batch(views, indices, config, step=step, epoch=epoch)

    def embed(self, run: Trained, items: Any) -> Tensor:
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

    def features(self, run: Trained, data: GraphData) -> Features:
        """Embed all graphs."""
        found, graphs = graph_features(run.encoder(), data.train.store), data.train
        return Features(found, list(graphs.names), graphs.labels, graphs.classes)
