"""Encodings of nodes as features."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unremix.domains.graph.raw import Ints, RawGraphs
from unremix.files.bounds import FREE

LARGEST_DEGREE = 1000  # beyond it, one column per degree would be too many
FACTOR = 6  # times the files: memory that the features may take, beside a fixed amount

FeatureKind = Literal[
    "node-labels", "degree", "normalized-degree", "attributes", "attributes+node-labels"
]


@dataclass(frozen=True)
class NodeEncoding:
    """How nodes become feature vectors; learned from one data set, applicable to others.

    Args:
        kind: ``node-labels``: one-hot, a block of columns per label; ``degree``: one-hot, from 0 to
            ``max_degree``; ``normalized-degree``: (degree - mean) / std; ``attributes``: numbers
            from the data; ``attributes+node-labels``: both, in this order.
        attributes: Number of attributes.
        labels: The labels that have a column, block by block.
        max_degree: The greatest degree with a column of its own.
        mean: Of the degrees.
        std: Their standard deviation.

    Example:
        >>> NodeEncoding("node-labels", labels=(("C", "N", "O"),)).width
        3
    """

    kind: FeatureKind
    attributes: int = 0
    labels: tuple[tuple[str, ...], ...] = ()
    max_degree: int = 0
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        # Read back from YAML or JSON, tuples are lists.
        object.__setattr__(self, "labels", tuple(tuple(column) for column in self.labels))

    @property
    def width(self) -> int:
        """F, the number of features."""
        if self.kind == "degree":
            return self.max_degree + 1
        if self.kind == "normalized-degree":
            return 1
        return self.attributes + sum(len(column) for column in self.labels)

    @classmethod
    def fit(
        cls, found: RawGraphs, degrees: Ints, use_attributes: bool | None = None
    ) -> NodeEncoding:
        """The encoding that suits these graphs, given the out-degree of each node, shape (n,).

        Whether attributes are features is left to the format by default.

        Raises:
            ValueError: If there are no attributes to use.
        """
        if use_attributes and found.attributes is None:
            raise ValueError(
                f"expected node attributes in {found.name}, got none; leave use_attributes out"
            )
        wanted = found.use_attributes if use_attributes is None else use_attributes
        labels = () if found.node_labels is None else found.node_labels.values
        if wanted and found.attributes is not None:
            kind: FeatureKind = "attributes+node-labels" if labels else "attributes"
            return cls(kind, attributes=found.attributes.shape[1], labels=labels)
        if labels:
            return cls("node-labels", labels=labels)
        if degrees.max() <= LARGEST_DEGREE:
            return cls("degree", max_degree=int(degrees.max()))
        spread = float(degrees.std(ddof=1))  # by n - 1, as in torch and PyG's benchmarks
        return cls("normalized-degree", mean=float(degrees.mean()), std=spread or 1.0)

    def encode(self, found: RawGraphs, degrees: Ints) -> Tensor:
        """Features of all nodes, shape (n, F), given the out-degree of each, shape (n,).

        A label without a column becomes zeros, and a degree above the greatest becomes the
        greatest; a `UserWarning` counts both.

        Raises:
            ValueError: If the data lack the labels or attributes that the encoding needs, or the
                features would take too much memory.
        """
        _check_memory(found, len(degrees) * self.width * 4)
        if self.kind == "degree":
            _warn_of(degrees > self.max_degree, f"degrees above {self.max_degree}")
            return _one_hot(np.minimum(degrees, self.max_degree), self.max_degree + 1)
        if self.kind == "normalized-degree":
            return torch.from_numpy((degrees - self.mean) / self.std).float()[:, None]
        blocks = []
        if self.attributes:
            columns = 0 if found.attributes is None else found.attributes.shape[1]
            if found.attributes is None or columns != self.attributes:
                raise ValueError(
                    f"expected features, {self.attributes} per node as in training, got "
                    f"{columns or 'none'} in {found.name}; give every node such features, or train "
                    "an encoder on graphs like these"
                )
            blocks.append(torch.from_numpy(found.attributes))
        if self.labels:
            blocks += self._encode_labels(found)
        return torch.cat(blocks, dim=1)

    def _encode_labels(self, found: RawGraphs) -> list[Tensor]:
        labels = found.node_labels
        columns = 0 if labels is None else len(labels.values)
        if labels is None or columns != len(self.labels):
            raise ValueError(
                f"expected node labels, {len(self.labels)} per node as in training, got "
                f"{columns or 'none'} in {found.name}; give every node such labels, or train an "
                "encoder on graphs like these"
            )
        blocks, unknown = [], np.zeros(len(labels.codes), dtype=bool)
        for known, values, codes in zip(self.labels, labels.values, labels.codes.T, strict=True):
            place = {value: index for index, value in enumerate(known)}
            lookup = np.array([place.get(value, -1) for value in values])
            blocks.append(_one_hot(lookup[codes], len(known)))
            unknown |= lookup[codes] < 0
        _warn_of(
            unknown,
            "node labels that the encoding does not know; labels mean what they meant "
            "where it was made",
        )
        return blocks


def _check_memory(found: RawGraphs, needed: int) -> None:
    """Refuse features far larger than the files."""
    if found.file_bytes is not None and needed > FREE + FACTOR * found.file_bytes:
        raise ValueError(
            f"expected node features of at most {FREE + FACTOR * found.file_bytes:,} bytes for the "
            f"files of {found.name}, got nodes whose labels or degrees take {needed:,}; use "
            "fewer different node labels, or leave out nodes without edges"
        )


def _one_hot(columns: Ints, width: int) -> Tensor:
    """A one per row, at its column; none where it is negative. Shape (n, width)."""
    rows = torch.zeros(len(columns), width)
    known = np.flatnonzero(columns >= 0)
    rows[torch.from_numpy(known), torch.from_numpy(columns[known])] = 1.0
    return rows


def _warn_of(which: NDArray[np.bool_], what: str) -> None:
    if which.any():
        warnings.warn(f"{which.sum()} of {which.size} nodes have {what}", stacklevel=5)
