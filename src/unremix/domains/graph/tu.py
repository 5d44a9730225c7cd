"""Graphs in the raw text format of the TU data sets.

Of a data set NAME there are ``NAME_A.txt`` (an edge per line, two node numbers from 1),
``NAME_graph_indicator.txt`` (the graph of each node, from 1) and, optionally,
``NAME_graph_labels.txt``, ``NAME_node_labels.txt`` and ``NAME_node_attributes.txt``.

Graphs of files train, evaluate and embed without torch_geometric because of this reader, which also
names the file and line of a mistake. torch_geometric's ``read_tu_data`` takes 11 times as long for
PROTEINS, 8 times for DD and 15 times for REDDIT-BINARY, on one thread.
"""

from __future__ import annotations

import io
import re
import warnings
from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from unremix.domains.graph.raw import MIXED, Ints, NodeLabels, RawGraphs, label_codes, without_empty
from unremix.files.archives import Span, Unusable, ZipSpan, zip_members
from unremix.files.bounds import allowance, shorten

REQUIRED = ("A", "graph_indicator")
# The numbers in a line, None for as many as in the first; and whether they are integers.
KINDS: dict[str, tuple[int | None, bool]] = {
    "A": (2, True),
    "graph_indicator": (1, True),
    "graph_labels": (1, True),
    "node_labels": (None, True),
    "node_attributes": (None, False),
}
AGAIN = "download or unpack the data again"
DEPTH = 3  # folders deep to look: PyG keeps the files in NAME/raw

LINE = re.compile(rb"[^\r\n]+")

Files = dict[str, Span | ZipSpan]  # by what stands between NAME_ and .txt


class Table:
    """Numbers of a text file, one row per line that is not blank.

    Args:
        file: Where to read from.
        where: What to call the file in an error.
        most: Bytes that it may have.
        columns: How many numbers are in a line; None for as many as in the first.
        integers: Whether they have to be integers.

    Raises:
        ValueError: If the file cannot be read, or a line is not as expected.
    """

    def __init__(
        self, file: Span | ZipSpan, where: str, most: int, columns: int | None, integers: bool
    ) -> None:
        self.where = where
        try:
            self.text = file.read(most=most)
        except Unusable as error:
            got = f"a file that is {error}"
            raise ValueError(f"expected numbers in {where}, got {got}; {AGAIN}") from error
        if not self.text.strip():
            raise ValueError(f"expected numbers in {where}, got only blank lines; {AGAIN}")
        values = _numbers(self.text, np.int64 if integers else np.float64)
        if values is None or values.shape[1] != (columns or values.shape[1]):
            values = self._parse_lines(columns, integers)
        self.values: NDArray[Any] = values
        if not integers:
            finite = (np.abs(values) <= np.finfo(np.float32).max).all(1)
            self.demand(finite, "numbers that are finite in float32", "remove or replace them")

    def _parse_lines(self, columns: int | None, integers: bool) -> NDArray[Any]:
        """Line by line: some files say 1.0 for 1, have spaces in blank lines, or a wrong line."""
        values = array("d")
        for row, line in enumerate(self._lines()):
            cells = line[0].split(b",")
            columns = columns or len(cells)
            try:
                numbers = [] if b"_" in line[0] else [float(cell) for cell in cells]
            except ValueError:
                numbers = []
            if len(numbers) != columns or (integers and not all(map(_is_whole, numbers))):
                kind = "integer" if integers else "number"
                wanted = f"{columns} {kind}{'s, separated by commas,' if columns > 1 else ''}"
                self.refuse(wanted, row, f"repair the line, or {AGAIN}")
            values.extend(numbers)
        table = np.frombuffer(values).reshape(-1, columns or 1)
        return table.astype(np.int64) if integers else table

    def _lines(self) -> Iterator[re.Match[bytes]]:
        """The lines that are not blank, one at a time: a list would take many times the memory."""
        return (match for match in LINE.finditer(self.text) if match[0].strip())

    def refuse(self, expected: str, row: int, remedy: str) -> NoReturn:
        """Raise ValueError that names the line of a row, counted from 1 as editors do."""
        match = next(islice(self._lines(), row, None))
        before = (0, match.start())
        ends = self.text.count(b"\n", *before) + self.text.count(b"\r", *before)
        line = 1 + ends - self.text.count(b"\r\n", *before)
        received = shorten(match[0][:1000].decode("utf-8", "replace").strip(), 60)
        where = f"{self.where}, line {line}"
        raise ValueError(f"expected {expected} in {where}, got {received!r}; {remedy}")

    def demand(self, holds: NDArray[np.bool_], expected: str, remedy: str = MIXED) -> None:
        """Raise ValueError that names the first line of which something does not hold, (rows,)."""
        if not holds.all():
            self.refuse(expected, int(holds.argmin()), remedy)

    def check_rows(self, nodes: int) -> None:
        """Raise ValueError unless there is a row for each node."""
        if len(self.values) != nodes:
            got = f"one per node, got {len(self.values)}"
            raise ValueError(f"expected {nodes} lines in {self.where}, {got}; {AGAIN}")


def _is_whole(number: float) -> bool:
    return number.is_integer() and abs(number) < 2**53


def _numbers(text: bytes | memoryview, kind: Any) -> NDArray[Any] | None:
    """The numbers of a text, shape (rows, columns); None if it is not a table of such numbers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy warns of 1.5 read as an integer
            return np.loadtxt(io.BytesIO(text), dtype=kind, delimiter=",", comments=None, ndmin=2)
    except (ValueError, DeprecationWarning):
        return None


def find_tu(path: Path) -> dict[str, Files]:
    """The TU files in a zip, or in a folder at most two folders deep, by the name of the data set.

    Of files with the same name the first counts.
    """
    files: list[tuple[str, Span | ZipSpan]]
    if path.is_dir():
        paths = [one for d in range(DEPTH) for one in sorted(path.glob("*/" * d + "*.txt"))]
        paths = [one for one in paths if one.is_file()]
        files = [(one.name, Span(str(one), 0, one.stat().st_size)) for one in paths]
    else:
        files = [(name.rpartition("/")[2], span) for name, span in zip_members(path)]
    found: dict[str, Files] = {}
    for file, span in files:
        for kind in KINDS:
            name = file.removesuffix(f"_{kind}.txt")
            if name and name != file:
                found.setdefault(name, {}).setdefault(kind, span)
    # NAME_A.txt alone could be any text.
    return {name: kinds for name, kinds in found.items() if set(kinds) != {"A"} or len(found) == 1}


def read_tu(found: Mapping[str, Files], source: Path) -> RawGraphs:
    """Read the one TU data set among the files.

    Args:
        found: Files of each data set, from :func:`find_tu`.
        source: Where they are.

    Raises:
        ValueError: If there are several data sets, a file is missing, or a line is wrong.
    """
    named = source.name.removesuffix(".zip")
    if len(found) > 1 and named not in found:
        several = shorten(", ".join(found))
        got = f"{several}; name the folder or zip of one of them"
        raise ValueError(f"expected the files of one TU data set in {source}, got {got}")
    name = named if named in found else next(iter(found))
    files = {f"{shorten(name, 100)}_{kind}.txt": kind for kind in found[name]}
    missing = [f"{shorten(name, 100)}_{one}.txt" for one in REQUIRED if one not in found[name]]
    if missing:
        got = shorten(", ".join(files))
        raise ValueError(f"expected the file {missing[0]} in {source}, got only {got}; {AGAIN}")
    packed = found[name].values()
    size = sum(file.packed if isinstance(file, ZipSpan) else file.size for file in packed)
    most = allowance(size)
    spans = [(kind, file, found[name][kind]) for file, kind in files.items()]
    tables = {kind: Table(span, file, most, *KINDS[kind]) for kind, file, span in spans}
    labels = tables.get("graph_labels")
    graph = _graphs(tables["graph_indicator"], labels)
    ends = _edges(tables["A"], graph)
    count = int(graph.max()) + 1 if labels is None else len(labels.values)
    sizes = np.bincount(graph, minlength=count)
    if count * (100 + len(name)) > most:
        got = f"{count:,} in files of {size:,} bytes"
        raise ValueError(f"expected fewer graphs in {source}, got {got}; {MIXED}")
    names = [f"{name}/{index}" for index in range(1, count + 1)]
    kept, skipped = without_empty(sizes, names)
    values = {}
    for kind in tables.keys() & {"node_labels", "node_attributes"}:
        tables[kind].check_rows(len(graph))
        values[kind] = tables[kind].values
    if not (graph[1:] >= graph[:-1]).all():
        # The nodes of a graph may be scattered; from here on they lie next to each other.
        order = np.argsort(graph, kind="stable")
        ends = order.argsort()[ends]
        values = {kind: rows[order] for kind, rows in values.items()}
    numbers, node_labels = values.get("node_attributes"), None
    if "node_labels" in values:
        coded = [label_codes(column) for column in values["node_labels"].T]
        columns = np.stack([column for column, _ in coded], axis=1)
        node_labels = NodeLabels(columns, tuple(different for _, different in coded))
    codes, classes = (None, None) if labels is None else label_codes(labels.values[kept, 0])
    return RawGraphs(
        name=name,
        names=[names[index] for index in np.flatnonzero(kept)],
        sizes=sizes[kept],
        edges=ends,
        node_labels=node_labels,
        attributes=None if numbers is None else numbers.astype(np.float32),
        labels=codes,
        classes=classes,
        skipped=skipped,
        file_bytes=size,
    )


def _graphs(indicator: Table, labels: Table | None) -> Ints:
    """The graph of each node, from 0, shape (n,)."""
    graph: Ints = indicator.values[:, 0] - 1
    most, reason = len(graph), "the number of nodes"
    if labels is not None:
        most, reason = len(labels.values), f"the number of lines in {labels.where}"
    known = (graph >= 0) & (graph < most)
    indicator.demand(known, f"the number of a graph, from 1 to {most}, {reason},")
    return graph


def _edges(edges: Table, graph: Ints) -> Ints:
    """Source and target of each edge, from 0, shape (2, E)."""
    ends: Ints = np.subtract(edges.values.T, 1, order="C")
    known = np.all((ends >= 0) & (ends < len(graph)), axis=0)
    edges.demand(known, f"two node numbers from 1 to {len(graph)}, the number of nodes,")
    within = np.equal(*graph[ends])
    first, second = graph[ends[:, within.argmin()]] + 1
    wanted = f"an edge within one graph, not from graph {first} to graph {second},"
    edges.demand(within, wanted, "remove the edge or correct the graph indicator")
    return ends
