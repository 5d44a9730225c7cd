"""Views of graphs: what they change and what not; chances; independence of the batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import networkx
import pytest
import torch
from building import sample_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.console.values import make_options
from unremix.domains.graph.options import KINDS, GraphOptions
from unremix.domains.graph.store import GraphBatch
from unremix.domains.graph.views import (
    Places,
    _nodes_of,
    _pair,
    augment,
    draw_kinds,
    exchange_edges,
    outside_subgraph,
    pick_nodes,
)

Pairs = set[tuple[int, int]]
NODES, EDGES, ATTRIBUTES, SUBGRAPH, IDENTITY = KINDS


def batch_of(graphs: Sequence[tuple[int, Pairs]]) -> GraphBatch:
    """From the size and the joined pairs of each graph; each node's feature is its own number."""
    edges, graph, start = [], [], 0
    for index, (size, pairs) in enumerate(graphs):
        both = sorted(pairs | {(b, a) for a, b in pairs})
        edges += [(start + a, start + b) for a, b in both]
        graph += [index] * size
        start += size
    x = torch.stack([1.0 + torch.arange(start), torch.ones(start)], dim=1)
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return GraphBatch(x, edge_index, torch.tensor(graph), len(graphs))


def random_graphs(seed: int, count: int = 8, largest: int = 9) -> list[tuple[int, Pairs]]:
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for _ in range(count):
        size = int(torch.randint(1, largest + 1, (), generator=generator))
        density = torch.rand((), generator=generator)
        pairs = {
            pair for pair in combinations(range(size), 2)
            if torch.rand((), generator=generator) < density
        }  # fmt: skip
        graphs.append((size, pairs))
    return graphs


def view_of(
    graphs: Sequence[tuple[int, Pairs]], kind: str, some: Tensor, **options: Any
) -> list[tuple[list[int], Pairs, list[bool]]]:
    """For each graph of a view: which nodes are in it, its joined pairs, and what is masked.

    Nodes are called as in the graph that the view is of.
    """
    batch = batch_of(graphs)
    shares = {name: options.pop(name) for name in ("subgraph",) if name in options}
    view = augment(batch, GraphOptions(kinds=(kind,), **options), some, **shares)
    assert view.num_graphs == len(graphs)
    assert bool((view.graph[1:] >= view.graph[:-1]).all())
    starts = torch.tensor([0, *[size for size, _ in graphs]]).cumsum(0)
    source = torch.where(view.x[:, 1] == 0, 0, view.x[:, 0]).long() - 1  # -1 where masked
    found = []
    for index in range(len(graphs)):
        inside = view.graph == index
        masked = (source[inside] < 0).tolist()
        # Masked nodes do not say who they are, but then no node is missing.
        nodes = source[inside] - starts[index]
        nodes = torch.arange(len(nodes)) if any(masked) else nodes
        place = dict(zip(inside.nonzero()[:, 0].tolist(), nodes.tolist(), strict=True))
        edges = view.edge_index[:, inside[view.edge_index[0]]]
        assert bool(inside[edges].all())
        directed = [(place[a], place[b]) for a, b in edges.T.tolist()]
        assert len(set(directed)) == len(directed)  # no duplicates
        assert all((b, a) in set(directed) for a, b in directed)
        assert all(a != b for a, b in directed)
        found.append((nodes.tolist(), {(a, b) for a, b in directed if a < b}, masked))
    return found


def induced(pairs: Pairs, nodes: Sequence[int]) -> Pairs:
    return {(a, b) for a, b in pairs if a in nodes and b in nodes}


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), ratio=st.sampled_from([0.0, 0.2, 0.5, 0.99]))
def test_dropped_nodes(seed: int, ratio: float) -> None:
    graphs = random_graphs(seed)
    for (size, pairs), (nodes, left, _) in zip(
        graphs, view_of(graphs, NODES, sample_keys(8, seed=seed), ratio=ratio), strict=True
    ):
        assert len(nodes) == size - int(ratio * size) >= 1
        assert nodes == sorted(set(nodes))
        assert left == induced(pairs, nodes)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), ratio=st.sampled_from([0.0, 0.2, 0.5, 0.99]))
def test_masked_attributes(seed: int, ratio: float) -> None:
    graphs = random_graphs(seed)
    for (size, pairs), (nodes, left, masked) in zip(
        graphs, view_of(graphs, ATTRIBUTES, sample_keys(8, seed=seed), ratio=ratio), strict=True
    ):
        assert nodes == list(range(size))
        assert left == pairs
        assert sum(masked) == int(ratio * size)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), ratio=st.sampled_from([0.0, 0.2, 0.5, 0.99]))
def test_exchanged_edges(seed: int, ratio: float) -> None:
    graphs = random_graphs(seed)
    for (size, pairs), (nodes, left, _) in zip(
        graphs, view_of(graphs, EDGES, sample_keys(8, seed=seed), ratio=ratio), strict=True
    ):
        count = int(ratio * len(pairs))
        free = size * (size - 1) // 2 - len(pairs)
        assert nodes == list(range(size))
        assert len(pairs - left) == count
        assert len(left - pairs) == min(count, free)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.5, 0.8, 1.0]))
def test_subgraphs(seed: int, share: float) -> None:
    graphs = random_graphs(seed)
    for (size, pairs), (nodes, left, _) in zip(
        graphs, view_of(graphs, SUBGRAPH, sample_keys(8, seed=seed), subgraph=share), strict=True
    ):
        whole = networkx.Graph(list(pairs))
        whole.add_nodes_from(range(size))
        part = whole.subgraph(nodes)
        assert networkx.is_connected(part)
        component = networkx.node_connected_component(whole, nodes[0])
        assert len(nodes) == min(max(1, int(share * size)), len(component))
        assert left == induced(pairs, nodes)


def test_identity() -> None:
    batch = batch_of(random_graphs(0))
    view = augment(batch, GraphOptions(kinds=(IDENTITY,)), sample_keys(8))
    assert torch.equal(view.x, batch.x)
    assert torch.equal(view.edge_index, batch.edge_index)
    assert torch.equal(view.graph, batch.graph)


@pytest.mark.parametrize("kinds", [KINDS, *[(kind,) for kind in KINDS]])
def test_a_view_does_not_depend_on_the_batch(kinds: tuple[str, ...]) -> None:
    graphs = random_graphs(5, count=30, largest=15)
    how = GraphOptions(kinds=kinds, ratio=0.3)
    some = sample_keys(30)
    together = augment(batch_of(graphs), how, some)
    starts = torch.tensor([0, *[size for size, _ in graphs]]).cumsum(0)
    for index, graph in enumerate(graphs):
        alone = augment(batch_of([graph]), how, some[index : index + 1])
        inside = together.graph == index
        x = together.x[inside]
        x[:, 0] -= starts[index] * x[:, 1]
        assert torch.equal(alone.x, x)
        edges = together.edge_index[:, inside[together.edge_index[0]]]
        assert torch.equal(alone.edge_index, edges - inside.nonzero()[0])


def test_a_view_depends_on_the_key() -> None:
    graphs = [(12, set(combinations(range(12), 2)) - {(0, 1), (3, 4), (5, 9), (2, 11)})] * 4
    how = GraphOptions()
    one = augment(batch_of(graphs), how, sample_keys(4))
    again = augment(batch_of(graphs), how, sample_keys(4))
    other = augment(batch_of(graphs), how, sample_keys(4, epoch=1))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.edge_index, again.edge_index)
    assert one.x.shape != other.x.shape or not torch.equal(one.x, other.x)


def test_the_batch_stays_as_it_was() -> None:
    batch = batch_of(random_graphs(1))
    copies = batch.x.clone(), batch.edge_index.clone(), batch.graph.clone()
    augment(batch, GraphOptions(kinds=KINDS, ratio=0.5), sample_keys(8))
    assert torch.equal(batch.x, copies[0])
    assert torch.equal(batch.edge_index, copies[1])
    assert torch.equal(batch.graph, copies[2])


def test_one_way_edges_and_self_loops() -> None:
    """Edges without their reverse are dropped like others; self-loops stay."""
    edge_index = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 4, 0, 2]])
    batch = GraphBatch(torch.ones(5, 1), edge_index, torch.zeros(5, dtype=torch.int64), 1)
    places = Places.of(batch, sample_keys(1))
    found = exchange_edges(edge_index, places, torch.tensor([True]), 0.5).T.tolist()
    assert [0, 0] in found
    assert [2, 2] in found
    old = [edge for edge in found if edge in edge_index.T.tolist()]
    new = [edge for edge in found if edge not in old]
    assert len(old) == 4
    assert len(new) == 4  # two pairs, both ways
    how = GraphOptions(kinds=(SUBGRAPH,))
    for seed in range(10):
        view = augment(batch, how, sample_keys(1, seed=seed), subgraph=1.0)
        loops = view.edge_index[0] == view.edge_index[1]
        # From node s all later ones are reached, along the edges.
        assert len(view.graph) == int((~loops).sum()) + 1


def test_graphs_without_edges() -> None:
    graphs: list[tuple[int, Pairs]] = [(1, set()), (3, set()), (1, set())]
    assert [len(nodes) for nodes, _, _ in view_of(graphs, SUBGRAPH, sample_keys(3))] == [1, 1, 1]
    assert [pairs for _, pairs, _ in view_of(graphs, EDGES, sample_keys(3))] == [set()] * 3
    assert [len(nodes) for nodes, _, _ in view_of(graphs, NODES, sample_keys(3), ratio=0.5)] == [
        1, 2, 1,
    ]  # fmt: skip


# ---- chances ----

COUNT = 20_000


def share_error(share: float) -> float:
    """Five standard errors of a share of COUNT."""
    return 5 * math.sqrt(share * (1 - share) / COUNT)


def test_kinds_are_equally_likely() -> None:
    counts = torch.bincount(draw_kinds(sample_keys(COUNT), 4), minlength=4) / COUNT
    assert (counts - 0.25).abs().max() < share_error(0.25)


def test_a_kind_named_twice_is_twice_as_likely() -> None:
    batch = batch_of([(2, {(0, 1)})] * COUNT)
    how = GraphOptions(kinds=(NODES, IDENTITY, NODES), ratio=0.5)
    view = augment(batch, how, sample_keys(COUNT))
    assert abs(float((view.sizes == 1).float().mean()) - 2 / 3) < share_error(2 / 3)


def many(size: int, pairs: Pairs) -> tuple[GraphBatch, Places, Tensor]:
    batch = batch_of([(size, pairs)] * COUNT)
    chosen = torch.ones(COUNT, dtype=torch.bool)
    return batch, Places.of(batch, sample_keys(COUNT)), chosen


def test_any_nodes_are_picked_equally_often() -> None:
    _, places, _ = many(5, {(0, 1)})
    picked = pick_nodes(places, 0.4).view(COUNT, 5)
    sets = Counter(tuple(row.nonzero()[:, 0].tolist()) for row in picked)
    assert set(sets) == set(combinations(range(5), 2))
    for count in sets.values():
        assert abs(count / COUNT - 0.1) < share_error(0.1)


def test_any_edges_are_exchanged_equally_often() -> None:
    pairs = {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}
    batch, places, chosen = many(5, pairs)
    edges = exchange_edges(batch.edge_index, places, chosen, 0.2)
    edges = edges[:, edges[0] < edges[1]] % 5
    counts = Counter(map(tuple, edges.T.tolist()))
    for pair in combinations(range(5), 2):
        share = 0.8 if pair in pairs else 0.2  # one of five dropped, one of five added
        assert abs(counts[pair] / COUNT - share) < share_error(share)


def growth(pairs: Pairs, size: int, wanted: int) -> dict[frozenset[int], float]:
    """Chances of each part, if every step takes any edge that leaves it equally often."""
    neighbors = {
        node: [b for a, b in pairs | {(b, a) for a, b in pairs} if a == node]
        for node in range(size)
    }
    chances = {frozenset([node]): 1 / size for node in range(size)}
    for _ in range(wanted - 1):
        after: Counter[frozenset[int]] = Counter()
        for part, chance in chances.items():
            ways = [b for a in part for b in neighbors[a] if b not in part]
            for node in ways:
                after[part | {node}] += chance / len(ways)
        chances = dict(after)
    return chances


def test_subgraphs_grow_over_any_edge_equally_often() -> None:
    pairs = {(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (2, 5)}
    batch, places, chosen = many(6, pairs)
    outside = outside_subgraph(batch.edge_index, places, chosen, 0.5).view(COUNT, 6)
    found = Counter(frozenset((~row).nonzero()[:, 0].tolist()) for row in outside)
    expected = growth(pairs, 6, 3)
    assert set(found) == set(expected)
    for part, chance in expected.items():
        assert abs(found[part] / COUNT - chance) < share_error(chance)


@given(number=st.integers(0, 2**52))
def test_pairs_are_numbered(number: int) -> None:
    low, high = _nodes_of(torch.tensor([number]))
    assert 0 <= int(low) < int(high)
    assert int(_pair(torch.stack([high, low]))) == number
    assert int(high) * (int(high) - 1) // 2 + int(low) == number


def test_the_first_pairs() -> None:
    low, high = _nodes_of(torch.arange(6))
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [
        (0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 1.0}, "ratio to be below 1, got 1.0"),
        ({"ratio": -0.1}, "ratio to be at least 0"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_options(GraphOptions, options)


def test_a_key_per_graph() -> None:
    with pytest.raises(ValueError, match=r"keys of shape \(8,\), .* got \(7,\)"):
        augment(batch_of(random_graphs(0)), GraphOptions(), sample_keys(7))
