"""Graphs in JSON lines: an object per line and graph.

``{"edges": [[0, 1], [1, 2]], "nodes": 4, "node_labels": ["C", "C", "O", "H"], "label": "acid"}``
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from unremix.data.graph.features import (
    Floats,
    FoundGraphs,
    Ints,
    NodeLabels,
    number,
    without_empty,
)

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
GAPS = 100  # nodes without an edge, for each end of an edge, that are taken for no mistake
KEYS = ("edges", "nodes", "node_labels", "node_features", "label", "name", "directed")


@dataclass(frozen=True)
class Line:
    """One graph, checked on its own.

    Args:
        where: File and line.
        name: Of the graph.
        nodes: Their number.
        edges: Shape (2, E); both directions, unless the graph is directed.
        node_labels: One per node.
        node_features: Shape (nodes, A).
        label: Class of the graph.
    """

    where: str
    name: str
    nodes: int
    edges: Ints
    node_labels: list[int | str] | None
    node_features: Floats | None
    label: int | str | None


def is_json_lines(path: Path) -> bool:
    """Whether the name says so."""
    return path.name.lower().endswith(SUFFIXES)


def read_json_lines(name: str, paths: Sequence[Path]) -> FoundGraphs:
    """Read graphs from files, in their order.

    Args:
        name: Short name of the data.
        paths: The files, packed by gzip or not.

    Raises:
        ValueError: If a file or line is not as expected, or lines do not fit to each other.
    """
    ignored: dict[str, tuple[str, int]] = {}
    lines = [line for path in paths for line in _read(path, ignored)]
    if not lines:
        files = ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
        raise ValueError(
            f"expected a graph per line in {files}, received no line; give each graph a line like "
            '{"edges": [[0, 1], [1, 2]]}'
        )
    if ignored:
        keys = ", ".join(
            f"{key!r} ({where}{f' and {count - 1} more' if count > 1 else ''})"
            for key, (where, count) in sorted(ignored.items())
        )
        warnings.warn(f"ignored {keys}; keys with a meaning are {', '.join(KEYS)}", stacklevel=4)
    for key in ("node_labels", "node_features", "label"):
        _check_all_or_none(lines, key)
    sizes = np.array([line.nodes for line in lines], dtype=np.int64)
    names = [line.name for line in lines]
    kept, skipped = without_empty(sizes, names)
    lines = [lines[index] for index in np.flatnonzero(kept)]
    if not lines:
        raise ValueError(f"expected nodes in {name}, received only graphs without any")
    starts = np.cumsum(sizes[kept]) - sizes[kept]
    labels = [line.label for line in lines if line.label is not None]
    codes, classes = number(labels) if labels else (None, None)
    return FoundGraphs(
        name=name,
        names=[line.name for line in lines],
        sizes=sizes[kept],
        edges=np.concatenate(
            [line.edges + start for line, start in zip(lines, starts, strict=True)], axis=1
        ),
        node_labels=_node_labels(lines),
        attributes=_attributes(lines),
        use_attributes=True,  # whoever writes features into their own file wants them used
        labels=codes,
        classes=classes,
        skipped=skipped,
    )


def _node_labels(lines: Sequence[Line]) -> NodeLabels | None:
    if lines[0].node_labels is None:
        return None
    codes, values = number(label for line in lines for label in line.node_labels or ())
    return NodeLabels(codes[:, None], (values,))


def _attributes(lines: Sequence[Line]) -> Floats | None:
    parts = [line.node_features for line in lines if line.node_features is not None]
    if not parts:
        return None
    for line, part in zip(lines, parts, strict=True):
        if part.shape[1] != parts[0].shape[1]:
            raise ValueError(
                f"expected {parts[0].shape[1]} node_features per node, as in {lines[0].where}, "
                f"received {part.shape[1]} in {line.where}; give all nodes the same features"
            )
    return np.concatenate(parts)


def _check_all_or_none(lines: Sequence[Line], key: str) -> None:
    attribute = [getattr(line, key) is not None for line in lines]
    if any(attribute) and not all(attribute):
        given, missing = attribute.index(True), attribute.index(False)
        raise ValueError(
            f"expected {key!r} in every line or in none, received it in {lines[given].where} and "
            f"not in {lines[missing].where} ({len(lines) - sum(attribute)} of {len(lines)} lines "
            "lack it); complete or remove it"
        )


def _read(path: Path, ignored: dict[str, tuple[str, int]]) -> Iterator[Line]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            for count, text in enumerate(file, 1):
                if text.strip():
                    yield _parse(
                        text, f"{path.name}, line {count}", f"{path.name}:{count}", ignored
                    )
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"expected JSON lines in UTF-8 in {path}, received a file that cannot be read to its "
            f"end ({error}); download or write it again"
        ) from error


def _parse(text: str, where: str, name: str, ignored: dict[str, tuple[str, int]]) -> Line:
    def refuse(expected: str, received: Any, remedy: str) -> NoReturn:
        shown = json.dumps(received, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise ValueError(f"expected {expected} in {where}, received {shown}; {remedy}")

    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # without a line number of its own
        raise ValueError(
            f"expected a JSON object in {where}, received something else ({reason}); write one "
            "object per line"
        ) from error
    if not isinstance(graph, dict) or "edges" not in graph:
        refuse("a JSON object with the key 'edges'", graph, 'as in {"edges": [[0, 1], [1, 2]]}')
    for key in graph:
        if key not in KEYS:
            first, count = ignored.get(key, (where, 0))
            ignored[key] = (first, count + 1)
    edges = _array(graph["edges"], np.int64, 2)
    if edges is None:
        refuse("'edges' as pairs of integers", graph["edges"], 'as in {"edges": [[0, 1], [1, 2]]}')
    labels = graph.get("node_labels")
    if labels is not None and not (
        isinstance(labels, list) and all(_is_label(label) for label in labels)
    ):
        refuse("'node_labels' as a list of integers or strings", labels, "name every node's label")
    features = None
    if graph.get("node_features") is not None:
        features = _array(graph["node_features"], np.float32, None)
        if features is None:
            refuse(
                "'node_features' as a list of equally many numbers per node, finite in float32",
                graph["node_features"],
                "repair the line",
            )
    given = {"node_labels": labels, "node_features": features}
    counts = {key: len(part) for key, part in given.items() if part is not None}
    highest = int(edges.max(initial=-1)) + 1
    nodes = graph.get("nodes", next(iter(counts.values()), highest))
    if not counts and "nodes" not in graph and highest > max(1000, GAPS * edges.size):
        refuse(
            "nodes counted from 0 without large gaps",
            highest - 1,
            f'correct the edge, or say that there are so many by {{"nodes": {highest}}}',
        )
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 0:
        refuse("'nodes' as the number of nodes", nodes, "or leave it out")
    for key, count in counts.items():
        if count != nodes:
            refuse(f"{key!r} for each of {nodes} nodes", count, "give one per node")
    if highest > nodes or edges.min(initial=0) < 0:
        wrong = edges[((edges < 0) | (edges >= nodes)).any(1)][0].tolist()
        keys = ("nodes", "node_labels", "node_features")  # the first of them says how many
        by = next((f", or {key!r}" for key in keys if key in graph), "")
        refuse(f"edges between nodes 0 to {nodes - 1}", wrong, f"correct the edge{by}")
    label = graph.get("label")
    if label is not None and not _is_label(label):
        refuse("'label' as an integer or a string", label, "name the class")
    directed = graph.get("directed", False)
    if not isinstance(directed, bool):
        refuse("'directed' as true or false", directed, "or leave it out")
    ends = edges.T if directed else np.concatenate([edges, edges[:, ::-1]]).T
    return Line(where, str(graph.get("name", name)), nodes, ends, labels, features, label)


def _is_label(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _array(value: Any, kind: Any, columns: int | None) -> Any:
    """A matrix of the kind, or None if it is none: ragged, of another kind, or not finite."""
    if value == [] and columns is not None:
        return np.zeros((0, columns), kind)
    try:
        array = np.array(value)
    except ValueError:
        return None
    if array.ndim != 2 or array.dtype.kind not in ("i" if kind == np.int64 else "if"):
        return None
    if columns not in (None, array.shape[1]) or not array.shape[1]:
        return None
    with np.errstate(over="ignore"):  # too large for the kind: not finite
        array = array.astype(kind)
    return array if np.isfinite(array).all() else None
