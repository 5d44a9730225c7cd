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
    def of_degrees(self) -> bool:
        """Whether nodes are known by their degrees alone."""
        return self.kind in ("degree", "normalized-degree")

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
            remedy = "leave use_attributes out"
            raise ValueError(f"expected node attributes in {found.name}, got none; {remedy}")
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
        needed, size = len(degrees) * self.width * 4, found.file_bytes
        if size is not None and needed > FREE + FACTOR * size:
            raise ValueError(
                f"expected node features of at most {FREE + FACTOR * size:,} bytes for files of "
                f"{found.name}, got labels or degrees that take {needed:,}; use fewer different "
                "node labels, or leave out nodes without edges"
            )
        if self.kind == "degree":
            _warn_of(degrees > self.max_degree, f"degrees above {self.max_degree}")
            return _one_hot(np.minimum(degrees, self.max_degree), self.max_degree + 1)
        if self.kind == "normalized-degree":
            return torch.from_numpy((degrees - self.mean) / self.std).float()[:, None]
        attributes, labels = found.attributes, found.node_labels
        given = {
            "features": (self.attributes, 0 if attributes is None else attributes.shape[1]),
            "node labels": (len(self.labels), 0 if labels is None else len(labels.values)),
        }
        for what, (wanted, columns) in given.items():
            if wanted not in (0, columns):
                got = f"{columns or 'none'} in {found.name}; train an encoder on graphs like these"
                raise ValueError(f"expected {what}, {wanted} per node as in training, got {got}")
        used = attributes is not None and self.attributes
        blocks, unknown = [torch.from_numpy(attributes)] if used else [], degrees < 0
        columns = zip(labels.values, labels.codes.T, strict=True) if labels is not None else ()
        for known, (values, codes) in zip(self.labels, columns, strict=False):
            place = {value: index for index, value in enumerate(known)}
            column = np.array([place.get(value, -1) for value in values])[codes]
            blocks.append(_one_hot(column, len(known)))
            unknown |= column < 0
        _warn_of(unknown, "node labels that were not known where the encoding was made")
        return torch.cat(blocks, dim=1)


def _one_hot(columns: Ints, width: int) -> Tensor:
    """A one per row, at its column; none where it is negative. Shape (n, width)."""
    rows = torch.zeros(len(columns), width)
    known = np.flatnonzero(columns >= 0)
    rows[torch.from_numpy(known), torch.from_numpy(columns[known])] = 1.0
    return rows


def _warn_of(which: NDArray[np.bool_], what: str) -> None:
    if which.any():
        warnings.warn(f"{which.sum()} of {which.size} nodes have {what}", stacklevel=4)
