"""From rows to a model: encoder and head, batches of views, features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unremix.domains.base import Trained, evaluating
from unremix.domains.labeled import Labeled
from unremix.domains.options import TrainConfig, make_head
from unremix.domains.vectors.dataset import VectorData, VectorSet, load_vectors
from unremix.domains.vectors.encoding import VectorShape
from unremix.domains.vectors.files import Columns, as_column
from unremix.domains.vectors.views import add_noise, corrupt
from unremix.files.bounds import shorten
from unremix.files.fingerprint import fingerprint
from unremix.frameworks.base import Framework
from unremix.frameworks.randomness import OTHER_VIEWS, VIEWS, keys

EVALUATION_BATCH = 4096
SECOND_VIEWS = (VIEWS[1], OTHER_VIEWS[1])
SIZES = "vectors.hidden, vectors.layers, head_hidden or head_output"


class MLP(nn.Module):
    """Linear layers, each followed by ReLU.

    Args:
        inputs: Features of a row.
        hidden: Size of each layer.
        layers: How many.
    """

    def __init__(self, inputs: int, *, hidden: int, layers: int) -> None:
        super().__init__()
        self.features = hidden
        pairs = pairwise([inputs, *[hidden] * layers])
        layered = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairs]
        self.layers = nn.Sequential(*chain.from_iterable(layered))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, hidden) of rows (N, inputs)."""
        found: Tensor = self.layers(x)
        return found


def load(config: TrainConfig, shape: VectorShape | None = None) -> VectorData:
    """The rows that options name; encoded like others, if their shape is given."""
    limit, validation = config.limit, config.validation
    return load_vectors(config.data, config.own, limit=limit, validation=validation, shape=shape)


def load_for(run: Trained, data: str | None) -> VectorData:
    """The run's own rows, or others, encoded alike."""
    config = run.config
    if data is not None:
        config = replace(config, data=data, limit=None, validation=None)
    return load(config, run.shape)


def build(config: TrainConfig, shape: VectorShape) -> tuple[nn.Module, nn.Sequential]:
    """Encoder and head."""
    encoder = MLP(shape.inputs, hidden=config.own.hidden, layers=config.own.layers)
    return encoder, make_head(encoder, config)


def describe(config: TrainConfig, shape: VectorShape) -> str:
    """The encoder and its columns, in a few words."""
    return f"MLP, {config.own.layers} layers of {config.own.hidden}, {shape.describe()}"


def fingerprint_of(data: VectorData) -> str:
    """Of all features and labels."""
    return fingerprint([data.train.x, data.train.labels])


def views(
    fetched: VectorData,
    indices: Tensor,
    model: Framework,
    config: TrainConfig,
    shape: VectorShape,
    epoch: int,
    streams: Sequence[int] = VIEWS,
) -> tuple[Tensor, ...]:
    """The rows as they are, for first views, and changed, for second ones."""
    options, train, places = config.own, fetched.train, indices.cpu()  # where the rows are
    noisy = options.views == "noise" or (options.views == "auto" and shape.are_dimensions)
    rows = train.x[places]

    def view(stream: int) -> Tensor:
        drawn = keys(config.seed, epoch, places, stream)
        if stream not in SECOND_VIEWS:
            return rows
        if noisy:
            return add_noise(rows, drawn, options.noise * train.spread)
        return corrupt(rows, drawn, train.x, shape.column_of, options.corruption)

    return tuple(view(stream).to(indices.device, model.dtype) for stream in streams)


def encode(encoder: nn.Module | None, x: Tensor) -> Tensor:
    """Embeddings (n, F) of encoded rows, on the CPU; without an encoder, the rows."""
    if encoder is None:
        return x
    with evaluating(encoder) as (device, dtype):
        parts = [encoder(p.to(device, dtype)).float().cpu() for p in x.split(EVALUATION_BATCH)]
    return torch.cat(parts)


def embed(run: Trained, items: Any) -> Tensor:
    """Embeddings of rows in memory, shape (n, F); see :func:`columns_of`."""
    return encode(run.encoder(), run.shape.encode(columns_of(items, run.shape)))


def columns_of(items: Any, shape: VectorShape) -> Columns:
    """Rows in memory by column.

    Args:
        items: An array, tensor or list of rows (n, columns) with the columns of the training data
            that are features, in their order; or dictionaries by column, or a data frame.
        shape: The encoding.

    Raises:
        ValueError: For anything else.
    """
    names = [one.name for one in shape.columns]
    if hasattr(items, "to_dict"):  # a data frame
        items = items.to_dict("records")
    items = items if isinstance(items, list | tuple) else np.asarray(items)
    rows = list(items) if isinstance(items, list | tuple) or items.ndim else []
    if rows and all(isinstance(row, Mapping) for row in rows):
        known = [name for name in names if all(name in row for row in rows)]
        return {name: as_column(row[name] for row in rows) for name in known}
    if rows and all(np.shape(row) == (len(names),) for row in rows):
        by_column = items.T if isinstance(items, np.ndarray) else zip(*rows, strict=True)
        return {name: as_column(one) for name, one in zip(names, by_column, strict=True)}
    found = f"shape {items.shape}" if isinstance(items, np.ndarray) else shorten(items)
    what = f"rows of {len(names)} columns ({shorten(', '.join(names), 60)})"
    remedy = "pass an array (n, columns) or dictionaries; files are embedded by 'unremix embed'"
    raise ValueError(f"expected {what}, got {found}; {remedy}")


def parts_of(data: VectorData) -> list[VectorSet]:
    """All rows, those for training first."""
    return [data.train] if data.test is None else [data.train, data.test]


LABELED = Labeled(
    encode=lambda encoder, rows, shape: encode(encoder, rows.x),
    layer="encoder's output, before the projection head; eval mode; rows not changed",
    facts=lambda run, data: {"input_features": run.shape.describe()},
    raw=lambda run, data: ("raw columns", None),
)
