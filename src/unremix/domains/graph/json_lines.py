"""Graphs in JSON lines: an object per line and graph.

``{"edges": [[0, 1], [1, 2]], "nodes": 4, "node_labels": ["C", "C", "O", "H"], "label": "acid"}``
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from unremix.domains.graph.features import (
    Floats,
    Ints,
    NodeLabels,
    RawGraphs,
    label_codes,
    without_empty,
)
from unremix.files.archives import Skipped
from unremix.files.atomic_files import write_text
from unremix.files.bounds import FREE, shorten

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
GAPS = 100  # nodes per end of an edge; more of them without an edge are taken for a mistake
KEYS = ("edges", "nodes", "node_labels", "node_features", "label", "name", "directed")
OPTIONAL = ("node_labels", "node_features", "label")  # in every line or in none
LONGEST = 2**25  # characters of a line; as objects of Python they take 25 times the memory
LONGEST_NAME = 1000  # characters of a graph's name
MOST_IGNORED = 20  # unknown keys that a warning names
NODE_BYTES = 64  # memory that a node without edges, labels and features takes
FACTOR = 6  # times the files: memory that the graphs may take, beside a fixed amount


@dataclass(frozen=True)
class Line:
    """One graph, checked on its own.

    Args:
        where: File and line.
        name: Of the graph.
        nodes: Their number.
        edges: Shape (E, 2); both directions, unless the graph is directed.
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


def read_json_lines(name: str, paths: Sequence[Path]) -> RawGraphs:
    """Read graphs from files, in their order; they may be packed by gzip.

    Raises:
        ValueError: If a file or line is not as expected, or lines do not fit to each other.
    """
    ignored: dict[str, tuple[str, int]] = {}
    size = sum(path.stat().st_size for path in paths)
    lines = (line for path in paths for line in _read(path, ignored))
    found = collect(lines, name, size)
    if ignored:
        keys = ", ".join(
            f"{shorten(key, 40)!r} ({where}{f' and {count - 1} more' if count > 1 else ''})"
            for key, (where, count) in sorted(ignored.items())
        )
        warnings.warn(f"ignored {keys}; keys with a meaning are {', '.join(KEYS)}", stacklevel=4)
    return found


def collect(
    lines: Iterable[Line], name: str, size: int, skipped: Sequence[Skipped] = ()
) -> RawGraphs:
    """Graphs one by one as flat arrays.

    Args:
        lines: The graphs.
        name: Of the data.
        size: Bytes of the files, which bounds the memory.
        skipped: What was left out; it may grow while the graphs are read.

    Raises:
        ValueError: If there is none, or they do not fit to each other.
    """
    graphs = _Graphs(FREE + FACTOR * size)
    for line in lines:
        graphs.add(line)
    if not graphs.names:
        raise ValueError(
            f"expected a graph per line in {name}, got no line; give each graph a line like "
            '{"edges": [[0, 1], [1, 2]]}'
        )
    found = graphs.found(name, size)
    return replace(found, skipped=(*found.skipped, *skipped))


def holds(items: Any) -> bool:
    """Whether items in memory are graphs of torch_geometric."""
    listed = isinstance(items, list | tuple) and len(items) > 0
    return listed and all(hasattr(one, "edge_index") and hasattr(one, "num_nodes") for one in items)


def write(items: Any, classes: Sequence[Any] | None, path: Path) -> Path:
    """Write graphs of torch_geometric; their class is ``y`` unless classes are given."""
    rows = []
    for place, graph in enumerate(items):
        row = {
            "edges": graph.edge_index.T.tolist(),
            "nodes": int(graph.num_nodes),
            "directed": True,
        }
        if graph.x is not None:
            row["node_features"] = graph.x.reshape(int(graph.num_nodes), -1).tolist()
        label = classes[place] if classes is not None else getattr(graph, "y", None)
        if label is not None and getattr(label, "numel", lambda: 1)() == 1:
            whole = label.item() if hasattr(label, "item") else label
            row["label"] = int(whole) if isinstance(whole, float) and whole % 1 == 0 else whole
        rows.append(json.dumps(row) + "\n")
    write_text(path.with_suffix(".jsonl"), "".join(rows))
    return path.with_suffix(".jsonl")


class _Graphs:
    """Graphs in flat arrays of ``most`` bytes: one object each would take many times the memory."""

    def __init__(self, most: int) -> None:
        self.most, self.used, self.nodes = most, 0, 0
        self.names: list[str] = []
        self.sizes, self.edges, self.features = array("q"), array("q"), array("f")
        self.width: tuple[int, str] | None = None  # features of a node, and where that was said
        self.node_labels: dict[int | str, int] = {}  # numbered as they come
        self.codes = array("q")
        self.labels: list[int | str] = []
        self.missing = dict.fromkeys(OPTIONAL, 0)  # lines without it
        # By optional key: the first line that has it, and the first that lacks it.
        self.first_with: dict[str, str] = {}
        self.first_without: dict[str, str] = {}

    def add(self, line: Line) -> None:
        """Add a graph.

        Raises:
            ValueError: If it does not fit to the others, or takes too much memory.
        """
        for key in OPTIONAL:
            lacks = getattr(line, key) is None
            self.missing[key] += lacks
            (self.first_without if lacks else self.first_with).setdefault(key, line.where)
        self.used += NODE_BYTES * line.nodes + line.edges.nbytes + 2 * len(line.name) + 200
        if line.node_features is not None:
            self._add_features(line.node_features, line.where)
        if self.used > self.most:
            raise ValueError(
                f"expected graphs that take at most {self.most:,} bytes of memory, for files of "
                f"their size, got more with the {line.nodes:,} nodes in {line.where}; remove "
                "nodes without edges, or write the graphs to larger files that are not packed"
            )
        self.names.append(line.name)
        self.sizes.append(line.nodes)
        self.edges.frombytes((line.edges + self.nodes).tobytes())
        self.nodes += line.nodes
        if not line.nodes:
            return
        if line.node_labels is not None:
            place = self.node_labels
            self.codes.extend([place.setdefault(each, len(place)) for each in line.node_labels])
        if line.label is not None:
            self.labels.append(line.label)

    def _add_features(self, features: Floats, where: str) -> None:
        if not len(features):
            return
        if self.width is None:
            self.width = (features.shape[1], where)
        if features.shape[1] != self.width[0]:
            raise ValueError(
                f"expected {self.width[0]} node_features per node, as in {self.width[1]}, got "
                f"{features.shape[1]} in {where}; give all nodes the same features"
            )
        self.used += features.nbytes
        self.features.frombytes(np.ascontiguousarray(features).tobytes())

    def found(self, name: str, size: int) -> RawGraphs:
        """All graphs together.

        Raises:
            ValueError: If only some have labels or features, or none has a node.
        """
        for key in OPTIONAL:
            if key in self.first_with and key in self.first_without:
                raise ValueError(
                    f"expected {key!r} in every line or in none, got it in {self.first_with[key]} "
                    f"and not in {self.first_without[key]} ({self.missing[key]} of "
                    f"{len(self.names)} lines lack it); complete or remove it"
                )
        sizes: Ints = np.frombuffer(self.sizes, np.int64)
        kept, skipped = without_empty(sizes, self.names)
        if not kept.any():
            raise ValueError(f"expected nodes in {name}, got only graphs without any")
        codes, classes = label_codes(self.labels) if self.labels else (None, None)
        node_labels = None
        if self.node_labels:
            place, values = label_codes(self.node_labels)
            node_labels = NodeLabels(place[np.frombuffer(self.codes, np.int64)][:, None], (values,))
        return RawGraphs(
            name=name,
            names=[each for each, keep in zip(self.names, kept, strict=True) if keep],
            sizes=sizes[kept],
            edges=np.frombuffer(self.edges, np.int64).reshape(-1, 2).T,
            node_labels=node_labels,
            attributes=None
            if self.width is None
            else np.frombuffer(self.features, np.float32).reshape(-1, self.width[0]),
            use_attributes=True,  # features in a file of one's own are meant to be used
            labels=codes,
            classes=classes,
            skipped=skipped,
            file_bytes=size,
        )


def _read(path: Path, ignored: dict[str, tuple[str, int]]) -> Iterator[Line]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            count = 0
            while text := file.readline(LONGEST + 1):
                count += 1
                where = f"{shorten(path.name)}, line {count}"
                if len(text) > LONGEST:
                    raise ValueError(
                        f"expected a graph of at most {LONGEST:,} characters in {where}, got "
                        "more; divide the graph, or leave it out"
                    )
                if text.strip():
                    yield _parse(text, where, f"{path.name}:{count}", ignored)
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"expected JSON lines in UTF-8 in {path}, got a file that cannot be read to its "
            f"end ({error}); download or write it again"
        ) from error


def _parse(text: str, where: str, name: str, ignored: dict[str, tuple[str, int]]) -> Line:
    def refuse(expected: str, got: Any, remedy: str) -> NoReturn:
        got = got[:60] if isinstance(got, str) else got
        shown = got if isinstance(got, list | dict) else json.dumps(got)
        raise ValueError(f"expected {expected} in {where}, got {shorten(shown, 60)}; {remedy}")

    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # without a line number of its own
        raise ValueError(
            f"expected a JSON object in {where}, got something else ({reason}); write one "
            "object per line"
        ) from error
    if not isinstance(graph, dict) or "edges" not in graph:
        refuse("a JSON object with the key 'edges'", graph, 'as in {"edges": [[0, 1], [1, 2]]}')
    for key in graph:
        if key not in KEYS and (key in ignored or len(ignored) < MOST_IGNORED):
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
            f'correct the edge, or give the number of nodes by {{"nodes": {highest}}}',
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
    named = graph.get("name", name)
    if not _is_label(named) or len(str(named)) > LONGEST_NAME:
        refuse(f"'name' as text of at most {LONGEST_NAME:,} characters", named, "shorten it")
    ends = edges if directed else np.concatenate([edges, edges[:, ::-1]])
    return Line(where, str(named), nodes, ends, labels, features, label)


def _is_label(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _array(value: Any, kind: Any, columns: int | None) -> Any:
    """A finite matrix of the kind; None if the value is ragged, not finite or of another kind."""
    if value == [] and columns is not None:
        return np.zeros((0, columns), kind)
    try:
        # As objects first: text among numbers would make all of them as wide as the longest.
        matrix = np.array(value, dtype=object)
        kinds = set(map(type, matrix.flat))
        if matrix.ndim != 2 or not kinds <= ({int} if kind == np.int64 else {int, float}):
            return None
        if columns not in (None, matrix.shape[1]) or not matrix.shape[1]:
            return None
        with np.errstate(over="ignore"):  # too large for the kind: not finite
            matrix = matrix.astype(kind)
    except (ValueError, OverflowError):
        return None
    return matrix if np.isfinite(matrix).all() else None
