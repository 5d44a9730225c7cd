"""Graphs from the files a user has, as batches without a loop over graphs.

:func:`load_graphs` reads every format into the same steps: find the graphs (``tu.py``,
``json_lines.py``, ``syntax.py``), give their nodes features (``features.py``), and put them side by
side into flat arrays (``store.py``).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

import numpy as np
import torch

from unremix.console.suggestions import expecting
from unremix.core.checks import check_positive
from unremix.domains.graph.features import NodeEncoding
from unremix.domains.graph.json_lines import SUFFIXES, is_json_lines, read_json_lines
from unremix.domains.graph.molecules import holds_molecules, read_molecules
from unremix.domains.graph.raw import RawGraphs, simple_edges
from unremix.domains.graph.store import GraphSet, GraphStore
from unremix.domains.graph.syntax import read_syntax_trees
from unremix.domains.graph.tu import find_tu, read_tu
from unremix.domains.sampling import drawn
from unremix.files.archives import Skipped, name_some, zip_members
from unremix.files.locate import candidates, locate
from unremix.user_cache import user_cache

if TYPE_CHECKING:
    from torch_geometric.data import Data  # type: ignore[import-untyped]

TU_FILE = "_graph_indicator.txt"  # every TU data set has one, and nothing else

ACCEPTED = (
    "the word 'stdlib-ast'; a folder or zip with the text files of a TU data set (NAME_A.txt, "
    "NAME_graph_indicator.txt, ...); a .jsonl or .jsonl.gz file with a graph per line, or a folder "
    "of such files; a .csv, .tsv or .smi file of molecules as SMILES; 'pyg:NAME' to download a TU "
    "data set with torch_geometric. A relative path or a bare name such as MUTAG is also looked up "
    "in the folder that the environment variable UNREMIX_DATA names, and in its sub-folder tu"
)


@dataclass(frozen=True)
class GraphData:
    """Graphs that :func:`load_graphs` read.

    Args:
        name: Short name of the data.
        train: The graphs. There is no test split: graph data are judged by cross-validation.
        encoding: How nodes became features; hand it to :func:`load_graphs` to treat other graphs
            alike.
        skipped: Name and reason of everything that could not be used.
    """

    name: str
    train: GraphSet
    encoding: NodeEncoding
    skipped: tuple[Skipped, ...]


def load_graphs(
    source: str | Path = "stdlib-ast",
    *,
    limit: int | None = None,
    use_attributes: bool | None = None,
    encoding: NodeEncoding | None = None,
    progress: bool = True,
) -> GraphData:
    """Load graphs from any of the accepted formats.

    - ``stdlib-ast``: functions of the standard library as syntax trees, with the package as class
      (:func:`~unremix.domains.graph.syntax.read_syntax_trees`).
    - A TU data set: a folder or zip with ``NAME_A.txt``, ``NAME_graph_indicator.txt`` and, if
      there, ``NAME_graph_labels.txt``, ``NAME_node_labels.txt``, ``NAME_node_attributes.txt``.
    - ``pyg:NAME``: the same, downloaded by torch_geometric into ``pyg`` below ``UNREMIX_DATA``, or
      below the user's cache where that is not set. Nothing else is ever written.
    - Molecules: SMILES in a column ``smiles`` of a ``.csv`` or ``.tsv`` file, perhaps with a column
      ``label``, or on the lines of a ``.smi`` file, with names behind them; RDKit reads them. A
      node is an atom, labeled by its element, without hydrogens; an edge is a bond.
    - JSON lines: ``{"edges": [[0, 1], [1, 2]]}`` per graph, nodes counted from 0, an edge listed
      once for both directions unless ``"directed": true``. Optional keys: ``nodes`` (their number,
      where the last ones have no edges), ``node_labels`` (integers or strings), ``node_features``
      (numbers per node), ``label`` (of the graph, an integer or string), ``name``.

    Self-loops and duplicate edges are removed, as PyG's ``TUDataset`` does; GIN adds a node to its
    neighbors anyway. In TU files an edge counts in the directions it is listed in. Nodes without
    edges stay. A graph without nodes is left out, and a `UserWarning` says so.

    Features of a node, the first that applies: its attributes, if ``use_attributes``; its labels,
    one-hot, a column per label that occurs; its degree, one-hot up to 1000; its degree,
    standardized over all nodes. The degree counts the edges that leave a node.

    Args:
        source: What to load: a word or a path. See above where a path is looked up.
        limit: At most this many graphs, drawn with a fixed seed; they stay in order. Features are
            those of the whole data.
        use_attributes: Whether node attributes are features, with the one-hot labels behind them.
            None: not for TU data sets, as InfoGraph and PyG have it; for JSON lines, yes.
        encoding: How to make features, from other data; None to derive it from these.
        progress: Whether to show progress on the terminal.

    Returns:
        The graphs, and how their nodes were encoded.

    Raises:
        FileNotFoundError: If the data do not exist.
        ValueError: If the format is not accepted or a file is wrong; file and line are named.

    Example:
        >>> import torch
        >>> data = load_graphs("stdlib-ast", limit=100)
        >>> len(data.train), data.encoding.kind
        (100, 'node-labels')
        >>> batch = data.train.store.batch(torch.tensor([3, 1, 4]))
        >>> batch.num_graphs, batch.x.shape[1] == data.encoding.width
        (3, True)
    """
    check_positive(limit=limit)
    with _sign_of_life(f"reading {source}", progress):
        found = _find(str(source))
        store, encoding = _encode(found, encoding, use_attributes)
        labels = None if found.labels is None else torch.from_numpy(found.labels)
        graphs = GraphSet(store, found.names, labels, found.classes)
        if limit is not None and limit < len(graphs):
            graphs = graphs.choose(drawn(len(graphs), limit))
    if found.skipped:
        count, total = len(found.skipped), len(found.names) + len(found.skipped)
        warnings.warn(f"skipped {count} of {total}: {name_some(found.skipped)}", stacklevel=2)
    return GraphData(found.name, graphs, encoding, found.skipped)


def store_graphs(graphs: Sequence[Data], encoding: NodeEncoding) -> GraphStore:
    """Graphs given in memory, to be treated like those that an encoding is from.

    Graphs that have features ``x`` keep them, and their edges as they are. Graphs without are given
    features by their degrees, if this is what the encoding does; self-loops and duplicate edges are
    removed first, as in :func:`load_graphs`.

    Args:
        graphs: Of torch_geometric, all with ``x`` or all without.
        encoding: Of the data that the encoder was trained on.

    Raises:
        ValueError: If features are missing or not of the encoding's size.

    Example:
        >>> from torch_geometric.data import Data
        >>> star = Data(edge_index=torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]]), num_nodes=3)
        >>> store_graphs([star], NodeEncoding("degree", max_degree=3)).x
        tensor([[0., 0., 1., 0.],
                [0., 1., 0., 0.],
                [0., 1., 0., 0.]])
    """
    by_degree = all(graph.x is None for graph in graphs) and encoding.of_degrees
    if by_degree:
        from torch_geometric.data import Data

        blank = [torch.zeros(graph.num_nodes, 1) for graph in graphs]
        pairs = zip(blank, graphs, strict=True)
        graphs = [Data(x=x, edge_index=graph.edge_index) for x, graph in pairs]
    store = GraphStore.of(graphs)
    if by_degree:
        sizes = store.node_starts.diff().numpy()
        found = RawGraphs("the graphs", [""] * len(sizes), sizes, store.edge_index.numpy())
        return _encode(found, encoding, None)[0]
    if store.features != encoding.width:
        wanted = f"{encoding.width} features per node ({encoding.kind})"
        got = f"{store.features}; encode the graphs like those that the encoder was trained on"
        raise ValueError(f"expected {wanted}, got {got}")
    return store


def _encode(
    found: RawGraphs, encoding: NodeEncoding | None, use_attributes: bool | None
) -> tuple[GraphStore, NodeEncoding]:
    """The graphs with simple edges and features; and how these were made."""
    edges = simple_edges(found.edges, int(found.sizes.sum()))
    degrees = np.bincount(edges[0], minlength=int(found.sizes.sum()))
    if encoding is None:
        encoding = NodeEncoding.fit(found, degrees, use_attributes)
    elif encoding.of_degrees:
        given = ["labels"] if found.node_labels is not None else []
        given += ["features"] if found.attributes is not None and found.use_attributes else []
        if given:
            what = f"{' and '.join(given)} of nodes in {found.name}"
            why = "the encoder knows nodes by their degrees"
            warnings.warn(f"the {what} are not looked at: {why}", stacklevel=3)
    node_starts = np.concatenate([[0], np.cumsum(found.sizes)])
    arrays = (edges, node_starts, np.searchsorted(edges[0], node_starts))
    return GraphStore(encoding.encode(found, degrees), *map(torch.from_numpy, arrays)), encoding


def _find(source: str) -> RawGraphs:
    """Recognize the format and read the graphs."""
    if source == "stdlib-ast":
        return read_syntax_trees()
    if source.startswith("pyg:"):
        folder = _download(source.removeprefix("pyg:"))
        return read_tu(find_tu(folder), folder)
    suffixes = ("", ".zip", ".jsonl")
    path = locate(source, f"accepted are {ACCEPTED}", folders=("", "tu"), suffixes=suffixes)
    is_zip = path.suffix.lower() == ".zip" and path.is_file()
    files = find_tu(path) if is_zip or path.is_dir() else {}
    if files:
        return read_tu(files, path)
    among = path.iterdir() if path.is_dir() else [path]
    lines = sorted(file for file in among if file.is_file() and is_json_lines(file))
    if lines:
        return read_json_lines(path.name if path.is_dir() else path.name.partition(".")[0], lines)
    if path.is_file() and holds_molecules(path):
        return read_molecules(path)
    if path.is_dir() or is_zip:
        others = "" if is_zip else f"or files ending in {', '.join(SUFFIXES)} "
        got = "got none; unpack it to see its contents" if is_zip else "got neither"
        what = f"the files of a TU data set {others}in {path}"
        raise ValueError(f"expected {what}, {got}; accepted are {ACCEPTED}")
    raise ValueError(f"expected one of: {ACCEPTED}; got the file {path}")


def recognizes(source: str) -> bool:
    """Whether a path or name is that of graphs: of a TU data set, or of JSON lines."""
    places = candidates(source, folders=("", "tu"), suffixes=("", ".zip"))
    place = next((place for place in places if place.exists()), None)
    if place is None:
        return False
    if place.is_dir():
        return any(place.glob(f"*{TU_FILE}"))
    # A pipe is never opened: that would wait forever.
    if place.is_file() and place.suffix.lower() == ".zip" and is_zipfile(place):
        return any(name.endswith(TU_FILE) for name, _ in zip_members(place))
    return place.is_file() and is_json_lines(place)


def _download(name: str) -> Path:
    """Have torch_geometric fetch a TU data set; the folder with its text files."""
    from torch_geometric.datasets import TUDataset  # type: ignore[import-untyped]

    root = Path(os.environ.get("UNREMIX_DATA") or user_cache()).expanduser() / "pyg"
    what = f"torch_geometric to download the TU data set {name!r} into {root}"
    remedy = f"check name and connection, or download {name}.zip elsewhere and name its path"
    with expecting(what, remedy, OSError):
        return Path(TUDataset(str(root), name).raw_dir)


def _sign_of_life(message: str, wanted: bool) -> AbstractContextManager[object]:
    """A spinner on the terminal while something is read."""
    if not (wanted and sys.stderr.isatty()):
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(message)
