"""Reading of graphs: against PyG's own reader; formats, features, batches and refusals."""

from __future__ import annotations

import ast
import gzip
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import zipped
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.io import read_tu_data
from torch_geometric.transforms import OneHotDegree
from torch_geometric.utils import degree

from unremix.domains.graph import features as node_features
from unremix.domains.graph import syntax as syntax_trees
from unremix.domains.graph.dataset import GraphData, load_graphs, store_graphs
from unremix.domains.graph.features import NodeEncoding
from unremix.domains.graph.store import GraphSet, GraphStore

DATA = Path(os.environ.get("UNREMIX_DATA", "")) / "tu"
needs_data = pytest.mark.skipif(
    "UNREMIX_DATA" not in os.environ or not DATA.is_dir(),
    reason="UNREMIX_DATA names no folder with tu/NAME.zip",
)

# Three graphs: a triangle with a tail, a node alone, and two nodes without an edge.
TINY = {
    "A": ["1, 2", "2, 1", "2, 3", "3, 2", "3, 1", "1, 3", "3, 4", "4, 3"],
    "graph_indicator": ["1", "1", "1", "1", "2", "3", "3"],
    "graph_labels": ["7", "-1", "7"],
    "node_labels": ["5", "5", "2", "9", "2", "9", "5"],
}


def write(folder: Path, files: dict[str, Sequence[str]], name: str = "TINY") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, lines in files.items():
        (folder / f"{name}_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def changed(**files: Any) -> dict[str, Any]:
    both = {**TINY, **files}
    return {kind: lines for kind, lines in both.items() if lines is not None}


def write_lines(path: Path, graphs: Sequence[Any]) -> Path:
    text = "".join(f"{g if isinstance(g, str) else json.dumps(g)}\n" for g in graphs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def load(source: Path | str, **options: Any) -> GraphData:
    return load_graphs(source, progress=False, **options)


def graphs_of(graphs: GraphSet) -> list[Data]:
    """The graphs as torch_geometric has them: ``x``, ``edge_index`` and, where known, ``y``."""
    singles = (graphs.store.batch(torch.tensor([index])) for index in range(len(graphs)))
    labels = [None] * len(graphs) if graphs.labels is None else graphs.labels.split(1)
    return [
        Data(x=one.x, edge_index=one.edge_index, y=label)
        for one, label in zip(singles, labels, strict=True)
    ]


def edges_of(graph: Data) -> list[list[int]]:
    return graph.edge_index.T.tolist()


def theirs(folder: Path, name: str) -> tuple[list[Data], dict[str, int]]:
    """The graphs as PyG reads them."""
    data, slices, sizes = read_tu_data(str(folder), name)
    count = len(slices["edge_index"]) - 1
    graphs = []
    for index in range(count):
        first, last = slices["edge_index"][index : index + 2]
        x = None
        if data.x is not None:
            x = data.x[slices["x"][index] : slices["x"][index + 1]]
        nodes = data._num_nodes[index] if x is None else len(x)
        graphs.append(
            Data(
                x=x,
                edge_index=data.edge_index[:, first:last],
                y=data.y[index : index + 1],
                num_nodes=nodes,
            )
        )
    return graphs, sizes


def assert_same(ours: GraphSet, others: Sequence[Data], features: Callable[[Data], Tensor]) -> None:
    assert len(ours) == len(others)
    for mine, other in zip(graphs_of(ours), others, strict=True):
        assert torch.equal(mine.edge_index, other.edge_index)
        assert torch.equal(mine.y, other.y)
        torch.testing.assert_close(mine.x, features(other))


def used_columns(graphs: Sequence[Data]) -> Tensor:
    """PyG has a column for every integer between the smallest and the greatest label."""
    return torch.stack([graph.x.any(0) for graph in graphs]).any(0)


# ---- TU files ----


def test_tiny(tmp_path: Path) -> None:
    data = load(write(tmp_path / "TINY", TINY))
    assert (data.name, data.encoding.width, data.encoding.kind) == ("TINY", 3, "node-labels")
    assert data.skipped == ()
    assert data.train.names == ["TINY/1", "TINY/2", "TINY/3"]
    assert data.train.classes == ("-1", "7")
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [1, 0, 1]
    first, alone, apart = graphs_of(data.train)
    assert edges_of(first) == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1], [2, 3], [3, 2]]
    assert first.x.tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]  # labels 2, 5, 9
    assert alone.x.tolist() == [[1, 0, 0]]
    assert alone.edge_index.shape == apart.edge_index.shape == (2, 0)
    assert apart.num_nodes == 2
    assert first.x.dtype == torch.float32
    assert first.edge_index.dtype == torch.int64


def random_files(seed: int) -> dict[str, list[str]]:
    """Graphs of 1 to 8 nodes with self-loops, duplicates, one-way edges and isolated nodes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, size=12)
    starts = np.cumsum(sizes) - sizes
    edges = [
        f"{start + a + 1}, {start + b + 1}"
        for size, start in zip(sizes, starts, strict=True)
        for a, b in random.integers(0, size, size=(random.integers(0, 12), 2))
    ]
    random.shuffle(edges)
    nodes = int(sizes.sum())
    # The last node has an edge, or PyG would not know of it without labels.
    edges.append(f"{nodes}, {nodes}")
    return {
        "A": edges,
        "graph_indicator": [str(g + 1) for g, size in enumerate(sizes) for _ in range(size)],
        "graph_labels": [str(label) for label in random.choice([-3, 0, 8], size=len(sizes))],
        "node_labels": [str(label) for label in random.integers(-2, 4, size=nodes)],
        "node_attributes": [f"{a:.4f}, {b:.4f}" for a, b in random.normal(size=(nodes, 2))],
    }


@pytest.mark.parametrize("seed", range(5))
def test_equals_pyg_on_random_files(tmp_path: Path, seed: int) -> None:
    folder = write(tmp_path / "TINY", random_files(seed))
    others, sizes = theirs(folder, "TINY")
    used = used_columns(others)
    labels = used.clone()
    labels[: sizes["num_node_attributes"]] = False
    assert_same(load(folder).train, others, lambda graph: graph.x[:, labels])
    attributes = load(folder, use_attributes=True)
    assert attributes.encoding.kind == "attributes+node-labels"
    assert_same(attributes.train, others, lambda graph: graph.x[:, used])


@pytest.mark.parametrize("seed", range(3))
def test_degrees_equal_pyg(tmp_path: Path, seed: int) -> None:
    files = random_files(seed)
    del files["node_labels"], files["node_attributes"]
    folder = write(tmp_path / "TINY", files)
    others, _ = theirs(folder, "TINY")
    data = load(folder)
    assert data.encoding.kind == "degree"
    one_hot = OneHotDegree(data.encoding.width - 1)
    assert_same(data.train, others, lambda graph: one_hot(graph.clone()).x)


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        "MUTAG",
        "PTC_MR",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("ENZYMES", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI", "NCI1", "DD")
        ),
    ],
)
def test_real_data_equal_pyg(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    others, sizes = theirs(tmp_path / name, name)
    data = load(name)
    if sizes["num_node_labels"]:
        used = used_columns(others)
        labels = used.clone()
        labels[: sizes["num_node_attributes"]] = False
        assert_same(data.train, others, lambda graph: graph.x[:, labels])
        if sizes["num_node_attributes"]:
            attributes = load(name, use_attributes=True)
            assert_same(attributes.train, others, lambda graph: graph.x[:, used])
    else:
        one_hot = OneHotDegree(data.encoding.width - 1)
        assert_same(data.train, others, lambda graph: one_hot(graph.clone()).x)


@needs_data
def test_large_degrees_are_standardized() -> None:
    data = load("REDDIT-BINARY")
    assert (len(data.train), data.encoding.width, data.encoding.kind) == (
        2000,
        1,
        "normalized-degree",
    )
    assert data.train.store.x.shape == (859254, 1)
    assert data.train.store.edge_index.shape == (2, 1991016)
    source, target = data.train.store.edge_index
    degrees = degree(source, 859254, dtype=torch.float64)
    assert int(degrees.max()) > 1000
    expected = (degrees - degrees.mean()) / degrees.std()
    torch.testing.assert_close(data.train.store.x[:, 0], expected.float())
    assert torch.equal(torch.bincount(source), torch.bincount(target))


def test_the_threshold_of_degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "TINY", changed(node_labels=None))
    monkeypatch.setattr(node_features, "LARGEST_DEGREE", 3)
    assert load(folder).encoding.kind == "degree"
    monkeypatch.setattr(node_features, "LARGEST_DEGREE", 2)
    data = load(folder)
    assert data.encoding.kind == "normalized-degree"
    degrees = np.array([2, 2, 3, 1, 0, 0, 0])
    expected = (degrees - degrees.mean()) / degrees.std(ddof=1)
    np.testing.assert_allclose(data.train.store.x[:, 0], expected, rtol=1e-6)


def test_scattered_nodes_blank_lines_and_line_ends(tmp_path: Path) -> None:
    order = [5, 0, 6, 2, 4, 1, 3]  # where each node is listed first, second, ...
    number = {node + 1: order.index(node) + 1 for node in range(7)}
    files = {
        "A": ["", *(f"{number[int(a)]},{number[int(b)]}" for a, b in
              (edge.split(", ") for edge in TINY["A"])), " "],
        "graph_indicator": [TINY["graph_indicator"][node] for node in order],
        "graph_labels": ["7.0\r", "-1\r", "7\r"],
        "node_labels": [TINY["node_labels"][node] for node in order],
    }  # fmt: skip
    mixed = load(write(tmp_path / "a" / "TINY", files))
    plain = load(write(tmp_path / "b" / "TINY", TINY))
    assert mixed.train.classes == plain.train.classes
    assert torch.equal(mixed.train.labels, plain.train.labels)
    for ours, other in zip(graphs_of(mixed.train), graphs_of(plain.train), strict=True):
        assert sorted(ours.x.tolist()) == sorted(other.x.tolist())
        ends = [sorted((ours.x @ torch.arange(3.0))[edge].tolist()) for edge in ours.edge_index.T]
        expected = [
            sorted((other.x @ torch.arange(3.0))[edge].tolist()) for edge in other.edge_index.T
        ]
        assert sorted(ends) == sorted(expected)


def test_several_columns_of_node_labels(tmp_path: Path) -> None:
    lines = [f"{label}, {place % 2}" for place, label in enumerate(TINY["node_labels"])]
    data = load(write(tmp_path / "TINY", changed(node_labels=lines)))
    assert data.encoding.width == 5
    assert data.encoding.labels == (("2", "5", "9"), ("0", "1"))
    assert data.train.store.x[:2].tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]


def test_attributes_are_used_only_on_request(tmp_path: Path) -> None:
    lines = [f"{place}.5, -1e-3" for place in range(7)]
    folder = write(tmp_path / "TINY", changed(node_attributes=lines, node_labels=None))
    assert load(folder).encoding.kind == "degree"
    data = load(folder, use_attributes=True)
    assert data.encoding.kind == "attributes"
    torch.testing.assert_close(graphs_of(data.train)[1].x, torch.tensor([[4.5, -1e-3]]))
    with pytest.raises(ValueError, match="node attributes in TINY, got none"):
        load(write(tmp_path / "plain", TINY), use_attributes=True)


def test_labels_are_optional(tmp_path: Path) -> None:
    data = load(write(tmp_path / "TINY", changed(graph_labels=None)))
    assert data.train.labels is None
    assert data.train.classes is None
    assert graphs_of(data.train)[0].y is None


def test_graphs_without_nodes_are_left_out(tmp_path: Path) -> None:
    indicator = ["2", "2", "2", "2", "4", "5", "5"]
    files = changed(graph_indicator=indicator, graph_labels=["3", "7", "3", "-1", "7", "3"])
    with pytest.warns(UserWarning, match=r"skipped 3 of 6: TINY/1 \(no nodes\), TINY/3"):
        data = load(write(tmp_path / "TINY", files))
    assert data.train.names == ["TINY/2", "TINY/4", "TINY/5"]
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.train.classes == ("-1", "7")
    assert len(data.skipped) == 3
    assert data.train.store.edge_starts.tolist() == [0, 8, 8, 8]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (changed(A=None), r"expected the file TINY_A\.txt"),
        (changed(graph_indicator=None), r"expected the file TINY_graph_indicator\.txt"),
        (changed(A=[]), r"TINY_A\.txt, got a file that is empty"),
        (changed(graph_labels=["", " "]), r"TINY_graph_labels\.txt, got only blank lines"),
        (changed(A=["1, 2", "", "2"]), r"2 integers.* in TINY_A\.txt, line 3, got '2'"),
        (changed(A=["1, 2", "2, 1, 1"]), r"TINY_A\.txt, line 2, got '2, 1, 1'"),
        (changed(A=["1", "2"]), r"TINY_A\.txt, line 1, got '1'"),
        (changed(A=["1, 2", "x, 1"]), r"TINY_A\.txt, line 2, got 'x, 1'"),
        (changed(A=["1, 2", "1.5, 1"]), r"TINY_A\.txt, line 2, got '1\.5, 1'"),
        (changed(A=["1, 2", "inf, 1"]), r"TINY_A\.txt, line 2, got 'inf, 1'"),
        (changed(A=["1, 2", "1, 1e30"]), r"TINY_A\.txt, line 2, got '1, 1e30'"),
        (changed(A=["1, 2", "9" * 20 + ", 1"]), r"TINY_A\.txt, line 2, got '9"),
        (changed(A=["1, 2", "1_0, 1"]), r"TINY_A\.txt, line 2, got '1_0, 1'"),
        (changed(A=["1, 2", "0, 1"]), r"from 1 to 7, .* TINY_A\.txt, line 2, got '0, 1'"),
        (changed(A=["1, 2", "", "8, 1"]), r"from 1 to 7, .*line 3, got '8, 1'"),
        (changed(A=["1, 2", "4, 5"]), r"from graph 1 to graph 2, .*got '4, 5'"),
        (
            changed(graph_indicator=["1", "1", "1", "1", "2", "3", "4"]),
            r"from 1 to 3, .*TINY_graph_labels\.txt, .*line 7, got '4'",
        ),
        (
            changed(graph_indicator=["1"] * 6 + ["999999999999"], graph_labels=None),
            r"from 1 to 7, .*nodes, .*line 7",
        ),
        (changed(graph_indicator=["0"] * 7), r"TINY_graph_indicator\.txt, line 1, got '0'"),
        (changed(graph_labels=["1", "one", "2"]), r"1 integer in TINY_graph_labels\.txt, line 2"),
        (changed(graph_labels=["1", "1, 2", "2"]), r"TINY_graph_labels\.txt, line 2"),
        (changed(node_labels=["1"] * 6), r"7 lines in TINY_node_labels\.txt.*got 6"),
        (changed(node_labels=["1"] * 6 + ["1,2"]), r"TINY_node_labels\.txt, line 7"),
        (changed(node_attributes=["0.5"] * 8), r"7 lines in TINY_node_attributes\.txt"),
        (changed(node_attributes=["0.5"] * 6 + ["nan"]), r"finite in float32 .*line 7"),
        (changed(node_attributes=["0.5"] * 6 + ["1e39"]), r"finite in float32 .*line 7"),
        (changed(node_attributes=["0.5"] * 3 + ["a" * 99] * 4), r"line 4, got 'a{57}\.\.\.'"),
    ],
)
def test_wrong_files_are_named_with_their_line(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path / "TINY", files))


# ---- where data are found ----


@pytest.mark.parametrize("wrap", ["", "TINY/", "TINY//", "a/b/", "TINY\\"])
def test_zips(tmp_path: Path, wrap: str) -> None:
    folder = write(tmp_path / "TINY", TINY)
    path = zipped(folder, tmp_path / "some.zip")
    if wrap:
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.writestr(wrap + file.name, file.read_bytes())
    data = load(path)
    assert data.name == "TINY"
    assert torch.equal(data.train.store.edge_index, load(folder).train.store.edge_index)


def test_broken_zips(tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_bytes(b"PK and nothing else")
    with pytest.raises(ValueError, match=r"expected a zip file, got .*no\.zip"):
        load(tmp_path / "no.zip")
    path = zipped(write(tmp_path / "TINY", TINY), tmp_path / "TINY.zip", wrap="TINY/")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("TINY/TINY_A.txt")
    place = member.header_offset + 30 + len(member.filename) + 3
    content[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"TINY_A\.txt, got .* corrupt"):
        load(path)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"a TU data set in .*other\.zip"):
        load(tmp_path / "other.zip")


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNREMIX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"TINY., found.*UNREMIX_DATA"):
        load("TINY")
    root = tmp_path / "root"
    monkeypatch.setenv("UNREMIX_DATA", str(root))
    with pytest.raises(FileNotFoundError, match=r"tu/TINY\.zip"):
        load("TINY")
    folder = write(tmp_path / "elsewhere" / "TINY" / "raw", TINY)  # as PyG keeps it
    assert load("elsewhere/TINY").name == "TINY"
    zipped(folder, root / "tu" / "TINY.zip", wrap="TINY/")
    assert load("TINY").name == "TINY"
    assert load("tu/TINY.zip").name == "TINY"
    shutil.copytree(folder, root / "MORE")
    assert load("MORE").name == "TINY"
    write(root / "MORE", TINY, name="OTHER")
    with pytest.raises(ValueError, match=r"in .*MORE, got OTHER, TINY"):
        load("MORE")
    (root / "MORE").rename(root / "OTHER")
    assert load("OTHER").name == "OTHER"


def test_what_is_no_graph_data(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(ValueError, match=r"got neither; .*'stdlib-ast'"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"got the file .*notes\.md"):
        load(tmp_path / "notes.md")
    with pytest.raises(ValueError, match=r"limit .* at least 1"):
        load("stdlib-ast", limit=0)


def test_download_by_pyg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNREMIX_DATA", str(tmp_path / "root"))

    def download(self: TUDataset) -> None:
        write(Path(self.raw_dir), TINY, name=self.name)

    monkeypatch.setattr(TUDataset, "download", download)
    data = load("pyg:TINY")
    assert data.name == "TINY"
    assert len(data.train) == 3
    assert (tmp_path / "root" / "pyg" / "TINY" / "raw" / "TINY_A.txt").exists()

    def fail(self: TUDataset) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(TUDataset, "download", fail)
    with pytest.raises(OSError, match=r"'NONE' into .*ConnectionError: no route"):
        load("pyg:NONE")


def test_a_terminal_shows_that_something_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "TINY", TINY)
    load_graphs(folder)
    assert capsys.readouterr().err == ""  # not a terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "500")
    load_graphs(folder)
    assert "reading" in capsys.readouterr().err


def test_nothing_is_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "TINY", TINY)
    before = sorted(tmp_path.rglob("*"))
    load(folder)
    assert sorted(tmp_path.rglob("*")) == before


# ---- JSON lines ----

PATH = {"edges": [[0, 1], [1, 2]], "label": "path"}


def test_json_lines(tmp_path: Path) -> None:
    graphs = [
        {**PATH, "node_labels": ["b", "a", 10], "name": "first"},
        "",
        {"edges": [[1, 0], [0, 1], [2, 2]], "nodes": 4, "node_labels": [10] * 4, "label": "pair"},
        {"edges": [], "node_labels": ["a"], "label": "path"},
    ]
    data = load(write_lines(tmp_path / "mine.jsonl", graphs))
    assert (data.name, data.encoding.kind) == ("mine", "node-labels")
    assert data.train.names == ["first", "mine.jsonl:3", "mine.jsonl:4"]
    assert data.train.classes == ("pair", "path")
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.encoding.labels == (("10", "a", "b"),)
    first, second, third = graphs_of(data.train)
    assert edges_of(first) == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert first.x.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert edges_of(second) == [[0, 1], [1, 0]]
    assert second.num_nodes == 4
    assert (third.num_nodes, third.num_edges) == (1, 0)


def test_json_lines_may_be_directed_packed_and_many(tmp_path: Path) -> None:
    write_lines(tmp_path / "all" / "b.jsonl.gz", [{**PATH, "directed": True, "label": 10}])
    write_lines(tmp_path / "all" / "a.ndjson", [{**PATH, "label": 9}])
    data = load(tmp_path / "all")
    assert data.name == "all"
    assert data.train.names == ["a.ndjson:1", "b.jsonl.gz:1"]
    assert data.train.classes == ("9", "10")  # by size, not by letter
    assert edges_of(graphs_of(data.train)[1]) == [[0, 1], [1, 2]]
    assert data.encoding.kind == "degree"
    # A node of degree 2 at most; the directed path has degrees 1, 1, 0.
    assert data.train.store.x.argmax(1).tolist() == [1, 2, 1, 1, 1, 0]


def test_json_features_are_used_unless_refused(tmp_path: Path) -> None:
    graph = {**PATH, "node_features": [[1, 2.5], [3, 4], [5, 6]], "node_labels": [1, 1, 0]}
    path = write_lines(tmp_path / "a.jsonl", [graph])
    data = load(path)
    assert data.encoding.kind == "attributes+node-labels"
    assert data.train.store.x[0].tolist() == [1, 2.5, 0, 1]
    assert load(path, use_attributes=False).encoding.kind == "node-labels"


def test_json_without_labels(tmp_path: Path) -> None:
    data = load(write_lines(tmp_path / "a.jsonl", [{"edges": [[0, 1]]}]))
    assert data.train.labels is None


def test_unknown_keys_are_said(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        [{**PATH, "smiles": "C"}, {**PATH, "lable": 1}, {**PATH, "smiles": "O"}],
    )
    with pytest.warns(
        UserWarning,
        match=r"'lable' .*line 2\), 'smiles' .*line 1 and 1 more\)",
    ):
        load(path)


def test_json_graphs_without_nodes_are_left_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [PATH, {"edges": [], "label": "none"}])
    with pytest.warns(UserWarning, match=r"skipped 1 of 2: a\.jsonl:2 \(no nodes\)"):
        assert load(path).train.classes == ("path",)
    with pytest.raises(ValueError, match="got only graphs without any"):
        load(write_lines(tmp_path / "b.jsonl", [{"edges": []}]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a JSON object in a\.jsonl, line 2, .*\(Expect[^:]*\);"),
        ([1, 2], r"key 'edges' in a\.jsonl, line 2, got \[1, 2\]"),
        ({"nodes": 3}, r"key 'edges' in a\.jsonl, line 2"),
        ({**PATH, "edges": [[0, 1], [1]]}, r"'edges' as pairs .* in a\.jsonl, line 2"),
        ({**PATH, "edges": [[0, 1.5]]}, r"'edges' as pairs"),
        ({**PATH, "edges": [["0", "1"]]}, r"'edges' as pairs"),
        ({**PATH, "edges": [0, 1]}, r"'edges' as pairs"),
        ({**PATH, "edges": [[0, 1, 2]]}, r"'edges' as pairs"),
        ({**PATH, "nodes": 2}, r"nodes 0 to 1 .* line 2, got \[1, 2\]; .* or 'nodes'$"),
        ({**PATH, "edges": [[0, -1]]}, r"nodes 0 to 0 in .* got \[0, -1\]; [^']*$"),
        ({**PATH, "edges": [[0, 10**9]]}, r"large gaps in .* line 2, got 1000000000; .*nodes"),
        ({**PATH, "nodes": "3"}, r"'nodes' as the number of nodes"),
        ({**PATH, "nodes": -1}, r"'nodes' as the number of nodes"),
        ({**PATH, "node_labels": [1, 2]}, r"nodes 0 to 1 .* or 'node_labels'"),
        ({**PATH, "nodes": 3, "node_labels": [1, 2]}, r"for each of 3 nodes .*got 2;"),
        ({**PATH, "node_labels": [1, 2, None]}, r"'node_labels' as a list"),
        ({**PATH, "node_labels": "abc"}, r"'node_labels' as a list"),
        ({**PATH, "node_features": [[1], [2], [3, 4]]}, r"'node_features' as a list"),
        ({**PATH, "node_features": [[1], [2], [float("nan")]]}, r"per node, finite in float32"),
        ({**PATH, "node_features": [[1], [2], [1e39]]}, r"per node, finite in float32"),
        ({**PATH, "label": [1]}, r"'label' as an integer or a string"),
        ({**PATH, "label": True}, r"'label' as an integer or a string"),
        ({**PATH, "directed": 1}, r"'directed' as true or false"),
        ({"edges": [[0, 1]]}, r"'label' in every line .*not in a\.jsonl, line 2"),
        ({**PATH, "node_labels": [1, 1, 1]}, r"'node_labels' in every line"),
    ],
)  # fmt: skip
def test_wrong_json_lines_are_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(write_lines(tmp_path / "a.jsonl", [PATH, line]))


def test_wrong_json_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in a, got no line"):
        load(write_lines(tmp_path / "a.jsonl", []))
    packed = write_lines(tmp_path / "b.jsonl.gz", [PATH] * 100)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"b\.jsonl\.gz, got .* cannot be read"):
        load(packed)
    (tmp_path / "c.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"c\.jsonl\.gz, got .* cannot be read"):
        load(tmp_path / "c.jsonl.gz")
    (tmp_path / "d.jsonl").write_bytes(b'{"edges": [], "name": "\xff"}')
    with pytest.raises(ValueError, match=r"JSON lines in UTF-8 in .*d\.jsonl"):
        load(tmp_path / "d.jsonl")
    first = {**PATH, "node_features": [[1], [2], [3]]}
    second = {**PATH, "node_features": [[1, 2], [2, 3], [3, 4]]}
    with pytest.raises(ValueError, match=r"e\.jsonl, line 1, got 2 in e\.jsonl, line 2"):
        load(write_lines(tmp_path / "e.jsonl", [first, second]))


# ---- syntax trees ----


@pytest.fixture(scope="module")
def syntax() -> GraphData:
    return load("stdlib-ast")


def test_syntax_trees(syntax: GraphData) -> None:
    train = syntax.train
    assert syntax.name == "stdlib-ast"
    assert syntax.encoding.kind == "node-labels"
    assert 2000 < len(train) <= 4000
    assert train.classes == tuple(sorted(syntax_trees.PACKAGES))
    counts = torch.bincount(train.labels)
    assert 100 < int(counts.min()) <= int(counts.max()) <= 400
    sizes = train.store.node_starts.diff()
    assert 10 <= int(sizes.min()) <= int(sizes.max()) <= 200
    # Trees: one edge fewer than nodes, both ways.
    assert torch.equal(train.store.edge_starts.diff(), 2 * (sizes - 1))
    assert len(set(train.names)) > 0.99 * len(train)  # a few are defined twice, under an if
    for index in range(0, len(train), 97):
        assert train.names[index].startswith(train.classes[int(train.labels[index])] + "/")


def test_a_syntax_tree_is_the_function(syntax: GraphData) -> None:
    names = syntax.encoding.labels[0]
    for index in range(0, len(syntax.train), 211):
        file, _, function = syntax.train.names[index].partition(":")
        library = Path(ast.__file__).parent
        if syntax.train.names.count(syntax.train.names[index]) > 1:
            continue
        node: Any = ast.parse((library / file).read_bytes())
        for part in function.split("."):
            node = next(
                child
                for child in ast.walk(node)
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and child.name == part
            )

        def parts(node: ast.AST) -> list[tuple[str, str]]:
            pairs = []
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr_context):
                    pairs += [(type(node).__name__, type(child).__name__), *parts(child)]
            return pairs

        graph = graphs_of(syntax.train)[index]
        types = [names[code] for code in graph.x.argmax(1).tolist()]
        ours = [(types[a], types[b]) for a, b in edges_of(graph) if a < b]
        assert sorted(ours) == sorted(parts(node))


def test_syntax_trees_do_not_depend_on_chance(syntax: GraphData) -> None:
    syntax_trees.read_syntax_trees.cache_clear()
    again = load("stdlib-ast")
    assert again.train.names == syntax.train.names
    assert torch.equal(again.train.store.edge_index, syntax.train.store.edge_index)
    assert torch.equal(again.train.store.x, syntax.train.store.x)


def test_a_library_without_sources(tmp_path: Path) -> None:
    read = syntax_trees.read_syntax_trees.__wrapped__
    with pytest.raises(FileNotFoundError, match="sources of the standard library"):
        read(tmp_path)
    body = "\n    ".join(["x = 1"] * 9)
    for package in ("email", "http"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text(f"def f():\n    {body}\n")
    (tmp_path / "http" / "b.py").write_text("def :")
    found = read(tmp_path)
    assert found.names == ["email/a.py:f", "http/a.py:f"]
    assert [name for name, _ in found.skipped] == [
        "asyncio", "encodings", "http/b.py", "importlib", "logging", "multiprocessing", "unittest",
        "urllib", "xml",
    ]  # fmt: skip


# ---- limits and encodings ----


def test_limit(syntax: GraphData) -> None:
    few = load("stdlib-ast", limit=50)
    assert len(few.train) == len(few.train.names) == len(few.train.labels) == 50
    assert few.encoding.width == syntax.encoding.width
    assert few.train.classes == syntax.train.classes
    assert few.train.names == load("stdlib-ast", limit=50).train.names
    places = [syntax.train.names.index(name) for name in few.train.names]
    assert places == sorted(places)
    for name, graph in zip(few.train.names, graphs_of(few.train), strict=True):
        if syntax.train.names.count(name) == 1:
            other = graphs_of(syntax.train)[syntax.train.names.index(name)]
            assert torch.equal(graph.x, other.x)
            assert torch.equal(graph.edge_index, other.edge_index)
    assert len(load("stdlib-ast", limit=10**6).train) == len(syntax.train)


def test_an_encoding_serves_other_data(tmp_path: Path) -> None:
    first = load(write(tmp_path / "a", changed()))
    again = NodeEncoding(**json.loads(json.dumps(vars(first.encoding))))
    assert again == first.encoding
    labels = ["5", "5", "1", "1", "9", "9", "9"]
    with pytest.warns(UserWarning, match=r"2 of \d+ nodes have node labels"):
        other = load(write(tmp_path / "b", changed(node_labels=labels)), encoding=again)
    assert other.encoding.width == 3
    assert other.train.store.x.sum(1).tolist() == [1, 1, 0, 0, 1, 1, 1]
    assert other.train.store.x[0].tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match=r"labels, 1 per node .*, got none in TINY"):
        load(write(tmp_path / "c", changed(node_labels=None)), encoding=again)
    numbers = NodeEncoding("attributes", attributes=2)
    with pytest.raises(ValueError, match=r"features, 2 per node .*, got none in TINY"):
        load(tmp_path / "a", encoding=numbers)
    with pytest.warns(UserWarning, match=r"1 of \d+ nodes have degrees above 2"):
        degrees = load(tmp_path / "c", encoding=NodeEncoding("degree", max_degree=2))
    assert degrees.train.store.x.argmax(1).tolist() == [2, 2, 2, 1, 0, 0, 0]


def test_graphs_in_memory(tmp_path: Path) -> None:
    data = load(write(tmp_path / "TINY", changed(node_labels=None)))
    bare = [
        Data(edge_index=torch.cat([g.edge_index, g.edge_index], 1), num_nodes=g.num_nodes)
        for g in graphs_of(data.train)
    ]
    assert torch.equal(store_graphs(bare, data.encoding).x, data.train.store.x)
    store = store_graphs(graphs_of(data.train), data.encoding)
    assert torch.equal(store.x, data.train.store.x)
    assert torch.equal(store.edge_index, data.train.store.edge_index)
    with pytest.raises(ValueError, match=r"3 features per node \(node-labels\), got"):
        store_graphs(graphs_of(data.train), NodeEncoding("node-labels", labels=(("a", "b", "c"),)))
    with pytest.raises(ValueError, match=r"got none in graph 0"):
        store_graphs(bare, NodeEncoding("node-labels", labels=(("a", "b", "c"),)))


# ---- batches ----


def random_graphs(count: int = 9, seed: int = 0) -> list[Data]:
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for index in range(count):
        nodes = 1 + index % 4
        edges = torch.randint(nodes, (2, 3 * (index % 3)), generator=generator)
        graphs.append(Data(x=torch.randn(nodes, 5, generator=generator), edge_index=edges))
    return graphs


@given(indices=st.lists(st.integers(0, 8), min_size=1, max_size=12))
def test_batches_equal_pyg(indices: list[int]) -> None:
    graphs = random_graphs()
    batch = GraphStore.of(graphs).batch(torch.tensor(indices))
    other = Batch.from_data_list([graphs[index] for index in indices])
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.edge_index, other.edge_index)
    assert torch.equal(batch.graph, other.batch)
    assert batch.num_graphs == other.num_graphs
    assert batch.sizes.tolist() == [graphs[index].num_nodes for index in indices]


def test_batch_of_graphs() -> None:
    graphs = random_graphs()
    batch = GraphStore.of(graphs).batch(torch.arange(len(graphs))).to("cpu")
    other = Batch.from_data_list(graphs)
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.edge_index, other.edge_index)
    assert torch.equal(batch.graph, other.batch)


def test_batches_of_a_loaded_set_equal_pyg(syntax: GraphData) -> None:
    indices = torch.tensor([5, 3000, 17, 5])
    batch = syntax.train.store.batch(indices)
    other = Batch.from_data_list([graphs_of(syntax.train)[index] for index in indices])
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.edge_index, other.edge_index)
    assert torch.equal(syntax.train.labels[indices], other.y)


@pytest.mark.parametrize("indices", [[-1], [9], [0, 12]])
def test_there_is_no_such_graph(indices: list[int]) -> None:
    with pytest.raises(IndexError, match="expected graphs from 0 to 8"):
        GraphStore.of(random_graphs()).batch(torch.tensor(indices))


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([], "at least one graph"),
        ([Data(edge_index=torch.zeros(2, 0).long())], "got none in graph 0"),
        ([Data(x=torch.ones(2, 1).long(), edge_index=torch.zeros(2, 0).long())], "torch.int64"),
        ([Data(x=torch.ones(0, 1), edge_index=torch.zeros(2, 0).long())], r"shape \(0, 1\)"),
        ([Data(x=torch.ones(2, 1))], r"\(2, edges\), got none in graph 0"),
        ([Data(x=torch.ones(2, 1), edge_index=torch.zeros(3, 2).long())], r"got shape \(3, 2"),
        ([*random_graphs(1), Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())],
         "5 features per node, .*got 1 in graph 1"),
        ([*random_graphs(1), Data(x=torch.ones(2, 5), edge_index=torch.tensor([[0], [2]]))],
         r"2 nodes of graph 1, .*got \[0, 2\]"),
    ],
)  # fmt: skip
def test_graphs_that_cannot_be_batched(graphs: list[Data], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphStore.of(graphs)


def test_molecules_say_what_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    path = tmp_path / "molecules.smi"
    path.write_text("CCO ethanol\n")
    with pytest.raises(ImportError, match=r"rdkit .*unremix\[molecules\]"):
        load_graphs(path)
