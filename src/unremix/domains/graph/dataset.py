"""Graphs from the files a user has, as batches without a loop over graphs.

:func:`load_graphs` reads every format into the same steps: find the graphs (``tu.py``,
``json_lines.py``, ``syntax.py``), give their nodes features (``features.py``), and put them side by
side into flat arrays (``store.py``).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

import numpy as np
import torch

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

    @property
    def features(self) -> int:
        """F, features of a node."""
        return self.encoding.width

    @property
    def feature_kind(self) -> str:
        """What the features are; see :class:`NodeEncoding`."""
        return self.encoding.kind


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
        >>> len(data.train), data.feature_kind
        (100, 'node-labels')
        >>> batch = data.train.store.batch(torch.tensor([3, 1, 4]))
        >>> batch.num_graphs, batch.x.shape[1] == data.features
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
        total = len(found.names) + len(found.skipped)
        warnings.warn(
            f"skipped {len(found.skipped)} of {total}: {name_some(found.skipped)}", stacklevel=2
        )
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
    given = [graph.x is not None for graph in graphs]
    if not any(given) and encoding.kind in ("degree", "normalized-degree"):
        from torch_geometric.data import Data

        blank = [
            Data(x=torch.zeros(graph.num_nodes, 1), edge_index=graph.edge_index) for graph in graphs
        ]
        store = GraphStore.of(blank)
        sizes = store.node_starts.diff().numpy()
        found = RawGraphs("the graphs", [""] * len(sizes), sizes, store.edge_index.numpy())
        return _encode(found, encoding, None)[0]
    store = GraphStore.of(graphs)
    if store.features != encoding.width:
        raise ValueError(
            f"expected {encoding.width} features per node ({encoding.kind}), got "
            f"{store.features}; encode the graphs like those that the encoder was trained on"
        )
    return store


def _encode(
    found: RawGraphs, encoding: NodeEncoding | None, use_attributes: bool | None
) -> tuple[GraphStore, NodeEncoding]:
    """The graphs with simple edges and features; and how these were made."""
    edges = simple_edges(found.edges, int(found.sizes.sum()))
    degrees = np.bincount(edges[0], minlength=int(found.sizes.sum()))
    if encoding is None:
        encoding = NodeEncoding.fit(found, degrees, use_attributes)
    elif encoding.kind in ("degree", "normalized-degree"):
        given = []
        if found.node_labels is not None:
            given.append("labels")
        if found.attributes is not None and found.use_attributes:
            given.append("features")
        if given:
            warnings.warn(
                f"the {' and '.join(given)} of nodes in {found.name} are not looked at: the "
                "encoder knows nodes by their degrees",
                stacklevel=3,
            )
    node_starts = np.concatenate([[0], np.cumsum(found.sizes)])
    store = GraphStore(
        x=encoding.encode(found, degrees),
        edge_index=torch.from_numpy(edges),
        node_starts=torch.from_numpy(node_starts),
        edge_starts=torch.from_numpy(np.searchsorted(edges[0], node_starts)),
    )
    return store, encoding


def _find(source: str) -> RawGraphs:
    """Recognize the format and read the graphs."""
    if source == "stdlib-ast":
        return read_syntax_trees()
    if source.startswith("pyg:"):
        folder = _download(source.removeprefix("pyg:"))
        return read_tu(find_tu(folder), folder)
    path = locate(
        source, f"accepted are {ACCEPTED}", folders=("", "tu"), suffixes=("", ".zip", ".jsonl")
    )
    is_zip = path.suffix.lower() == ".zip" and path.is_file()
    files = find_tu(path) if is_zip or path.is_dir() else {}
    if files:
        return read_tu(files, path)
    if path.is_dir():
        lines = sorted(file for file in path.iterdir() if file.is_file() and is_json_lines(file))
        if lines:
            return read_json_lines(path.name, lines)
        raise ValueError(
            f"expected the files of a TU data set or files ending in {', '.join(SUFFIXES)} in the "
            f"folder {path}, got neither; accepted are {ACCEPTED}"
        )
    if not path.is_file():  # opening a pipe would wait forever
        raise ValueError(f"expected a file or a folder, got {path}, which is neither")
    if is_json_lines(path):
        return read_json_lines(path.name.partition(".")[0], [path])
    if holds_molecules(path):
        return read_molecules(path)
    if is_zip:
        raise ValueError(
            f"expected NAME_A.txt and the other files of a TU data set in {path}, got none; "
            "unpack the zip to see its contents"
        )
    raise ValueError(f"expected one of: {ACCEPTED}; got the file {path}")


def recognizes(source: str) -> bool:
    """Whether a path or name is that of graphs: of a TU data set, or of JSON lines."""
    places = candidates(source, folders=("", "tu"), suffixes=("", ".zip"))
    place = next((place for place in places if place.exists()), None)
    if place is None:
        return False
    if place.is_dir():
        return any(place.glob(f"*{TU_FILE}"))
    if not place.is_file():  # opening a pipe would wait forever
        return False
    if place.suffix.lower() == ".zip" and is_zipfile(place):
        return any(name.endswith(TU_FILE) for name, _ in zip_members(place))
    return is_json_lines(place)


def _download(name: str) -> Path:
    """Have torch_geometric fetch a TU data set; the folder with its text files."""
    from torch_geometric.datasets import TUDataset  # type: ignore[import-untyped]

    root = Path(os.environ.get("UNREMIX_DATA") or user_cache()).expanduser() / "pyg"
    try:
        return Path(TUDataset(str(root), name).raw_dir)
    except Exception as error:  # whatever its file systems raise
        raise OSError(
            f"expected torch_geometric to download the TU data set {name!r} into {root}, got "
            f"{type(error).__name__}: {error}; check the name and the connection, or download "
            f"{name}.zip elsewhere and name its path"
        ) from error


@contextmanager
def _sign_of_life(message: str, wanted: bool) -> Iterator[None]:
    """A spinner on the terminal while something is read."""
    if not (wanted and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield
