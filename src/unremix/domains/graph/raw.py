"""Graphs as readers find them, without features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unremix.files.archives import Skipped

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MOST_EMPTY = 100_000  # graphs without nodes that are left out one by one
MIXED = "the files may be of different data sets, or one of them cut off"


@dataclass(frozen=True)
class NodeLabels:
    """Discrete labels of nodes, in C columns.

    Args:
        codes: Index of each label in the values of its column, shape (n, C).
        values: The different labels of each column.
    """

    codes: Ints
    values: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RawGraphs:
    """G graphs as they are in the files, the nodes of each next to each other.

    Args:
        name: Short name of the data.
        names: The name of each graph.
        sizes: Nodes of each graph, none of them 0, shape (G,).
        edges: Source and target, counted through all graphs, within one graph each, shape (2, E).
        node_labels: Labels of the n nodes.
        attributes: Further numbers of each node, shape (n, A).
        use_attributes: Whether the attributes are meant as features, unless told otherwise.
        labels: Class of each graph, in 0..k-1, shape (G,).
        classes: Names of the k classes.
        skipped: What was left out, and why.
        file_bytes: Size of the files, which bounds the memory of the features; None for no bound.
    """

    name: str
    names: list[str]
    sizes: Ints
    edges: Ints
    node_labels: NodeLabels | None = None
    attributes: Floats | None = None
    use_attributes: bool = False
    labels: Ints | None = None
    classes: tuple[str, ...] | None = None
    skipped: tuple[Skipped, ...] = ()
    file_bytes: int | None = None


def simple_edges(edges: Ints, nodes: int) -> Ints:
    """Edges (2, E) without self-loops and duplicates, sorted by source and target.

    The two directions of an edge count as two, and none is added: what PyG's ``TUDataset`` does.
    """
    code = edges[0] * nodes
    code += edges[1]
    code = code[edges[0] != edges[1]]
    if not (code[1:] > code[:-1]).all():
        code.sort()
        code = code[np.concatenate([[True], code[1:] != code[:-1]])] if len(code) else code
    simple: Ints = np.empty((2, len(code)), np.int64)
    np.divmod(code, nodes, out=(simple[0], simple[1]))
    return simple


def label_codes(values: Ints | Sequence[int | str]) -> tuple[Ints, tuple[str, ...]]:
    """Indices 0..k-1 of the values, and the k different ones in order: of size if all are integers.

    Example:
        >>> label_codes([10, -1, 9])
        (array([2, 0, 1]), ('-1', '9', '10'))
    """
    if not isinstance(values, np.ndarray):
        are_texts = any(isinstance(value, str) for value in values)
        values = np.array([str(one) if are_texts else one for one in values], dtype=object)
    different, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), tuple(str(value) for value in different.tolist())


def without_empty(
    sizes: Ints, names: Sequence[str]
) -> tuple[NDArray[np.bool_], tuple[Skipped, ...]]:
    """Which graphs have nodes, shape (G,), and the others with the reason why they are left out.

    Raises:
        ValueError: If so many have none that something must be wrong.
    """
    empty = int((sizes == 0).sum())
    if empty > MOST_EMPTY:
        got = f"{empty:,} of {len(sizes):,} without any, such as {names[int(np.argmin(sizes))]}"
        raise ValueError(f"expected graphs with nodes, got {got}; {MIXED}")
    without = np.flatnonzero(sizes == 0).tolist()
    return sizes > 0, tuple(Skipped(names[index], "no nodes") for index in without)
