"""Graphs in JSON lines: an object per line and graph.

``{"edges": [[0, 1], [1, 2]], "nodes": 4, "node_labels": ["C", "C", "O", "H"], "label": "acid"}``
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unremix.domains.graph import raw
from unremix.domains.graph.raw import Floats, Ints, RawGraphs
from unremix.files.archives import Skipped
from unremix.files.atomic_files import write_text
from unremix.files.bounds import FREE, shorten, sound

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
GAPS = 100  # nodes per end of an edge; more of them without an edge are taken for a mistake
KEYS = ("edges", "nodes", "node_labels", "node_features", "label", "name", "directed")
OPTIONAL = ("node_labels", "node_features", "label")  # in every line or in none
EXAMPLE = '{"edges": [[0, 1], [1, 2]]}'
LONGEST = 2**25  # characters of a line; as objects of Python they take 25 times the memory
LONGEST_NAME = 1000  # characters of a graph's name
MOST_IGNORED = 20  # unknown keys that a warning names
NODE_BYTES = 48  # memory that a node without edges, labels and features takes
LINE_BYTES = 400  # likewise a graph
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
    found = collect((line for path in paths for line in _read(path, ignored)), name, size)
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
    graphs: list[Line] = []
    known: dict[int | str, int] = {}  # labels of nodes, numbered as they come
    codes: list[Ints] = []
    most, used = FREE + FACTOR * size, 0
    for line in lines:
        labels, features = line.node_labels, line.node_features
        used += LINE_BYTES + NODE_BYTES * line.nodes + line.edges.nbytes + 2 * len(line.name)
        used += 0 if features is None else features.nbytes
        if used > most:
            raise ValueError(
                f"expected graphs of at most {most:,} bytes of memory for files of {size:,}, got "
                f"more with the {line.nodes:,} nodes in {line.where}; remove nodes without edges, "
                "or write larger files that are not packed"
            )
        if labels is not None:
            codes.append(np.array([known.setdefault(each, len(known)) for each in labels], int))
        graphs.append(replace(line, node_labels=labels and []))  # as numbers, they are smaller
    if not graphs:
        raise ValueError(f"expected a graph per line in {name}, got no line; write {EXAMPLE}")
    _check_alike(graphs)
    sizes: Ints = np.array([line.nodes for line in graphs])
    kept, empty = raw.without_empty(sizes, [line.name for line in graphs])
    if not kept.any():
        raise ValueError(f"expected nodes in {name}, got only graphs without any")
    graphs, sizes = [line for line in graphs if line.nodes], sizes[kept]
    starts = (np.cumsum(sizes) - sizes).tolist()
    edges = [line.edges + start for line, start in zip(graphs, starts, strict=True)]
    numbers = [line.node_features for line in graphs if line.node_features is not None]
    named = [line.label for line in graphs if line.label is not None]
    classes: tuple[Any, Any] = raw.label_codes(named) if named else (None, None)
    node_labels = None
    if known:
        place, values = raw.label_codes(list(known))
        node_labels = raw.NodeLabels(place[np.concatenate(codes)][:, None], (values,))
    return RawGraphs(
        name=name,
        names=[line.name for line in graphs],
        sizes=sizes,
        edges=np.concatenate(edges).T,
        node_labels=node_labels,
        attributes=np.concatenate(numbers) if numbers else None,
        use_attributes=True,  # features in such a file are there to be used
        labels=classes[0],
        classes=classes[1],
        skipped=(*empty, *skipped),
        file_bytes=size,
    )


def holds(items: Any) -> bool:
    """Whether items in memory are graphs of torch_geometric."""
    listed = isinstance(items, list | tuple) and len(items) > 0
    return listed and all(hasattr(one, "edge_index") and hasattr(one, "num_nodes") for one in items)


def write(items: Any, classes: Sequence[Any] | None, path: Path) -> Path:
    """Write graphs of torch_geometric; their class is ``y`` unless classes are given."""
    rows = []
    for place, graph in enumerate(items):
        nodes, edges = int(graph.num_nodes), graph.edge_index.T.tolist()
        row = {"edges": edges, "nodes": nodes, "directed": True}
        if graph.x is not None:
            row["node_features"] = graph.x.reshape(nodes, -1).tolist()
        label = classes[place] if classes is not None else getattr(graph, "y", None)
        if label is not None and getattr(label, "numel", lambda: 1)() == 1:
            whole = label.item() if hasattr(label, "item") else label
            row["label"] = int(whole) if isinstance(whole, float) and whole % 1 == 0 else whole
        rows.append(json.dumps(row) + "\n")
    write_text(path.with_suffix(".jsonl"), "".join(rows))
    return path.with_suffix(".jsonl")


def _check_alike(graphs: Sequence[Line]) -> None:
    """Refuse labels or features that only some graphs have, and features of different widths."""
    for key in OPTIONAL:
        having = [line.where for line in graphs if getattr(line, key) is not None]
        if 0 < len(having) < len(graphs):
            lacking = [line.where for line in graphs if getattr(line, key) is None]
            less = f"{lacking[0]} ({len(lacking)} of {len(graphs)} lines lack it); complete it"
            got = f"it in {having[0]} and not in {less}"
            raise ValueError(f"expected {key!r} in every line or in none, got {got}")
    first = graphs[0].node_features
    for line in graphs:
        wide = line.node_features
        if first is not None and wide is not None and wide.shape[1] != first.shape[1]:
            what = f"{first.shape[1]} node_features per node, as in {graphs[0].where}"
            raise ValueError(f"expected {what}, got {wide.shape[1]} in {line.where}; repair it")


def _read(path: Path, ignored: dict[str, tuple[str, int]]) -> Iterator[Line]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    broken = (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)
    what, got = f"JSON lines in UTF-8 in {path}", "a file that cannot be read to its end"
    with (
        sound(what, got, "download or write it again", broken),
        opened(path, "rt", encoding="utf-8-sig") as file,
    ):
        for count, text in enumerate(iter(lambda: file.readline(LONGEST + 1), ""), start=1):
            where = f"{shorten(path.name)}, line {count}"
            if len(text) > LONGEST:
                what = f"a graph of at most {LONGEST:,} characters in {where}"
                raise ValueError(f"expected {what}, got more; divide the graph, or leave it out")
            if text.strip():
                yield _parse(text, where, f"{path.name}:{count}", ignored)


def _parse(text: str, where: str, name: str, ignored: dict[str, tuple[str, int]]) -> Line:
    def demand(holds: bool, expected: str, got: Any, remedy: str) -> None:
        if not holds:
            got = got[:60] if isinstance(got, str) else got
            shown = got if isinstance(got, list | dict) else json.dumps(got)
            raise ValueError(f"expected {expected} in {where}, got {shorten(shown, 60)}; {remedy}")

    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # without a line number of its own
        what = f"a JSON object in {where}"
        raise ValueError(f"expected {what}, got none ({reason}); write {EXAMPLE}") from error
    has_edges = isinstance(graph, dict) and "edges" in graph
    demand(has_edges, "a JSON object with the key 'edges'", graph, f"as in {EXAMPLE}")
    for key in graph:
        if key not in KEYS and (key in ignored or len(ignored) < MOST_IGNORED):
            first, count = ignored.get(key, (where, 0))
            ignored[key] = (first, count + 1)
    edges = _array(graph["edges"], np.int64, 2)
    demand(edges is not None, "'edges' as pairs of integers", graph["edges"], f"as in {EXAMPLE}")
    labels, given = graph.get("node_labels"), graph.get("node_features")
    are_labels = isinstance(labels, list) and all(map(_is_label, labels))
    wanted = "'node_labels' as a list of integers or strings"
    demand(labels is None or are_labels, wanted, labels, "name every node's label")
    features = None if given is None else _array(given, np.float32, None)
    wanted = "'node_features' as a list of equally many numbers per node, finite in float32"
    demand(given is None or features is not None, wanted, given, "repair the line")
    parts = {"node_labels": labels, "node_features": features}
    counts = {key: len(part) for key, part in parts.items() if part is not None}
    highest = int(edges.max(initial=-1)) + 1
    nodes = graph.get("nodes", next(iter(counts.values()), highest))
    is_count = isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 0
    is_likely = bool(counts) or "nodes" in graph or highest <= max(1000, GAPS * edges.size)
    remedy = f'correct the edge, or give the number of nodes by {{"nodes": {highest}}}'
    demand(is_likely, "nodes counted from 0 without large gaps", highest - 1, remedy)
    demand(is_count, "'nodes' as the number of nodes", nodes, "or leave it out")
    for key, count in counts.items():
        demand(count == nodes, f"{key!r} for each of {nodes} nodes", count, "give one per node")
    wrong = edges[((edges < 0) | (edges >= nodes)).any(1)][:1].tolist()
    keys = ("nodes", "node_labels", "node_features")  # the first of them says how many
    by = next((f", or {key!r}" for key in keys if key in graph), "")
    got = wrong[0] if wrong else None
    demand(not wrong, f"edges between nodes 0 to {nodes - 1}", got, f"correct the edge{by}")
    label, directed = graph.get("label"), graph.get("directed", False)
    is_label = label is None or _is_label(label)
    demand(is_label, "'label' as an integer or a string", label, "name the class")
    demand(isinstance(directed, bool), "'directed' as true or false", directed, "or leave it out")
    named = graph.get("name", name)
    is_name = _is_label(named) and len(str(named)) <= LONGEST_NAME
    demand(is_name, f"'name' as text of at most {LONGEST_NAME:,} characters", named, "shorten it")
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
