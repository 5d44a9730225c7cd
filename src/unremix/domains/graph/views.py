"""Random views of graphs, a batch at a time: GraphCL's augmentations.

Nodes dropped, edges exchanged, attributes masked, or a connected part kept: one of these is
applied to each graph. Nothing loops over graphs, nodes or edges, and every number drawn is a
function of the graph's key and of a place within the graph. So a view does not depend on what else
is in the batch.

Node features are not recomputed: a degree among them stays that of the whole graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unremix.domains.graph.options import GraphOptions
from unremix.domains.graph.store import GraphBatch
from unremix.frameworks.randomness import uniforms

KEPT = 0.8  # share of nodes in a subgraph; GraphCL changes a fifth, its code keeps only a fifth

# Numbers of a graph are distinguished by their purpose, in steps of one odd constant, and by their
# place, in steps of another; `uniforms` itself goes in steps of a third.
_KIND, _NODE, _DROPPED, _ADDED, _START, _EDGE = range(6)
_PURPOSE_STEP = 0x0851F42D4C957F2D
_PLACE_STEP = 0x2545F4914F6CDD1D
_HALF_STEP = 2.0**-25  # numbers are multiples of 2⁻²⁴


class Places(NamedTuple):
    """Where the nodes of a batch are.

    Args:
        keys: Of each graph, shape (G,).
        sizes: Nodes of each graph, shape (G,).
        graph: The graph of each node, ascending, shape (n,).
        node: Place of each node within its graph, from 0, shape (n,).
    """

    keys: Tensor
    sizes: Tensor
    graph: Tensor
    node: Tensor

    @classmethod
    def of(cls, batch: GraphBatch, keys: Tensor) -> Places:
        """The places of a batch."""
        return cls(keys, batch.sizes, batch.graph, _places(batch.graph, batch.sizes))


def augment(
    batch: GraphBatch, options: GraphOptions, keys: Tensor, *, subgraph: float = KEPT
) -> GraphBatch:
    """A random view of every graph; each depends on its graph and its key alone.

    Each of ``options.kinds`` is equally likely; one named twice is twice as likely:

    - ``nodes``: a share of the nodes is dropped, with their edges;
    - ``edges``: a share of the edges is dropped, and as many are added between nodes that had none,
      as far as there are such;
    - ``attributes``: the features of a share of the nodes become 0;
    - ``subgraph``: from a random node, the part grows along random edges until it has a share of
      the nodes, or its whole component;
    - ``identity``: nothing.

    ``options.ratio`` is the share of nodes or edges that is changed, rounded down. No graph loses
    all its nodes. An edge and its reverse stay or go together.

    Args:
        batch: The graphs.
        options: What to draw from.
        keys: From :func:`unremix.frameworks.randomness.keys`, shape (G,).
        subgraph: The share of nodes that ``subgraph`` keeps, rounded down, but at least one.

    Returns:
        The views, in the order of the graphs. Edges added come last.

    Raises:
        ValueError: If the keys do not match.

    Example:
        >>> from unremix.frameworks.randomness import keys
        >>> pair = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        >>> batch = GraphBatch(torch.ones(4, 1), pair, torch.tensor([0, 0, 1, 1]), 2)
        >>> options = GraphOptions(kinds=("nodes",), ratio=0.5)
        >>> augment(batch, options, keys(0, 0, torch.arange(2), view=0)).graph
        tensor([0, 1])

    Reference:
        GraphCL: You et al. 2020, Table 1.
    """
    if keys.shape != (batch.num_graphs,):
        got = f"{tuple(keys.shape)}; draw them with unremix.frameworks.randomness.keys"
        raise ValueError(f"expected keys of shape ({batch.num_graphs},), one per graph, got {got}")
    places = Places.of(batch, keys)
    kind = draw_kinds(keys, len(options.kinds))

    def gets(name: str) -> Tensor:
        """Which graphs are changed this way, shape (G,)."""
        wanted = [index for index, other in enumerate(options.kinds) if other == name]
        return torch.isin(kind, torch.tensor(wanted, dtype=kind.dtype, device=kind.device))

    x, edge_index = batch.x, batch.edge_index
    dropped = torch.zeros_like(batch.graph, dtype=torch.bool)  # (n,)
    if {"attributes", "nodes"} & {*options.kinds}:
        picked = pick_nodes(places, options.ratio)
        x = x.masked_fill((picked & gets("attributes")[batch.graph])[:, None], 0.0)
        dropped = picked & gets("nodes")[batch.graph]
    if "subgraph" in options.kinds:
        dropped |= outside_subgraph(edge_index, places, gets("subgraph"), subgraph)
    if "edges" in options.kinds:
        edge_index = exchange_edges(edge_index, places, gets("edges"), options.ratio)
    view = GraphBatch(x, edge_index, batch.graph, batch.num_graphs)
    return keep_nodes(view, ~dropped) if dropped.any() else view


def draw_kinds(keys: Tensor, count: int) -> Tensor:
    """One of 0..count-1 per graph, shape (G,)."""
    return (_numbers(keys, _KIND, torch.zeros_like(keys)) * count).long()


def pick_nodes(places: Places, ratio: float) -> Tensor:
    """Pick exactly ⌊ratio · size⌋ nodes of every graph at random: a boolean of shape (n,)."""
    numbers = _numbers(places.keys[places.graph], _NODE, places.node)
    wanted = _share(places.sizes, ratio)
    return _ranks(numbers, places.graph, places.node) < wanted[places.graph]


def keep_nodes(batch: GraphBatch, kept: Tensor) -> GraphBatch:
    """The graphs with the kept nodes alone, a boolean of shape (n,), in their order."""
    place = kept.cumsum(0) - 1  # (n,)
    edges = batch.edge_index[:, kept[batch.edge_index].all(0)]
    return GraphBatch(batch.x[kept], place[edges], batch.graph[kept], batch.num_graphs)


def exchange_edges(edge_index: Tensor, places: Places, chosen: Tensor, ratio: float) -> Tensor:
    """Drop ⌊ratio · pairs⌋ of a graph's pairs of joined nodes, and join as many others.

    Fewer are joined where fewer are free. The free ones are cut into as many equal parts as are
    wanted and one is drawn from each part, so that no two are the same. The r-th free pair has the
    number r plus that of joined pairs before it, which bisection finds. Both directions are added.
    Self-loops stay. Graphs that are not chosen, a boolean of shape (G,), stay as they are.

    Returns:
        Shape (2, E'): the edges that stay, in their order, then the new ones.
    """
    concerned = chosen[places.graph[edge_index[0]]] & (edge_index[0] != edge_index[1])
    concerned = concerned.nonzero()[:, 0]
    graph = places.graph[edge_index[0, concerned]]
    sizes = torch.where(chosen, places.sizes, 0)
    most = sizes * (sizes - 1) // 2  # pairs of each graph, joined or free
    # Joined pairs of all graphs, ascending; and which of them each edge is.
    firsts = most.cumsum(0) - most
    pair = firsts[graph] + _pair(places.node[edge_index[:, concerned]])
    pair, pair_of = pair.unique(return_inverse=True)
    owner = torch.bucketize(pair, firsts + most, right=True)  # (P,)
    joined = torch.bincount(owner, minlength=len(sizes))  # (G,)
    index, pair = _places(owner, joined), pair - firsts[owner]
    wanted = _share(joined, ratio)

    numbers = _numbers(places.keys[owner], _DROPPED, pair)
    kept = torch.ones_like(edge_index[0], dtype=torch.bool)
    kept[concerned] = (_ranks(numbers, owner, index) >= wanted[owner])[pair_of]

    free = most - joined
    firsts = free.cumsum(0) - free  # from here on of the free pairs, counted through all graphs
    passed = firsts[owner] + pair - index  # free pairs before each joined one, ascending
    wanted = torch.minimum(wanted, free)
    owner = torch.repeat_interleave(wanted)  # (A,): the graph of each new pair
    part = _places(owner, wanted)
    low = part * free[owner] // wanted[owner]
    high = (part + 1) * free[owner] // wanted[owner]
    rank = low + (_numbers(places.keys[owner], _ADDED, part) * (high - low)).long()
    before = torch.bucketize(firsts[owner] + rank, passed, right=True)
    pair = rank + before - (joined.cumsum(0) - joined)[owner]
    starts = places.sizes.cumsum(0) - places.sizes
    new = torch.stack(_nodes_of(pair)) + starts[owner]
    return torch.cat([edge_index[:, kept], new, new.flip(0)], dim=1)


def outside_subgraph(edge_index: Tensor, places: Places, chosen: Tensor, share: float) -> Tensor:
    """Grow a connected part of each graph and say what is left out.

    Every edge takes a random time, exponentially distributed, and the part grows from a random node
    along all its edges at once. As such times have no memory, the next node comes in over any edge
    that leaves the part with equal probability. The first ⌊share · size⌋ nodes stay, at least one,
    or as many as can be reached. Nothing is left out of graphs that are not chosen, (G,).

    Returns:
        Whether each node is left out, shape (n,).
    """
    edges = edge_index[:, chosen[places.graph[edge_index[0]]]]
    numbers = _numbers(places.keys[places.graph[edges[0]]], _EDGE, _pair(places.node[edges]))
    # Never 0: who comes later has a later time.
    duration = -torch.log1p(-numbers - _HALF_STEP)
    starts = places.sizes.cumsum(0) - places.sizes
    numbers = _numbers(places.keys, _START, torch.zeros_like(places.keys))
    first = starts + (numbers * places.sizes).long()
    time = _arrivals(edges, duration, first[chosen], places.node.shape[0])
    order = time.argsort(stable=True)
    order = order[places.graph[order].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = places.node
    wanted = _share(places.sizes, share).clamp_(min=1)
    outside = (rank >= wanted[places.graph]) | time.isinf()
    return outside & chosen[places.graph]


def _arrivals(edges: Tensor, duration: Tensor, first: Tensor, count: int) -> Tensor:
    """The least time from any of the first nodes to each of ``count`` nodes, shape (count,).

    Dijkstra's algorithm, for all graphs at once; infinite where no way leads. Edges are (2, E),
    their durations (E,), the first nodes (S,).
    """
    from scipy.sparse import csr_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import dijkstra  # type: ignore[import-untyped]

    if not first.numel():
        return duration.new_full((count,), torch.inf)
    ways = csr_array((duration.cpu().numpy(), edges.cpu().numpy()), shape=(count, count))
    times = dijkstra(ways, indices=first.cpu().numpy(), min_only=True)
    return torch.from_numpy(times).to(edges.device)


def _numbers(keys: Tensor, purpose: int, places: Tensor) -> Tensor:
    """A number in [0, 1) for each key, shape (m,), and place, shape (m,); float64."""
    return uniforms(keys + purpose * _PURPOSE_STEP + places * _PLACE_STEP, 1)[:, 0].double()


def _ranks(numbers: Tensor, owner: Tensor, index: Tensor) -> Tensor:
    """How many numbers of the same graph are smaller, shape (m,), as of all arguments.

    Numbers are in [0, 1); their owners are graphs, ascending; an index is a place in the graph.
    """
    ranks = torch.empty_like(owner)
    ranks[(owner + numbers).argsort(stable=True)] = index
    return ranks


def _share(sizes: Tensor, ratio: float) -> Tensor:
    """⌊ratio · size⌋, shape (G,)."""
    return (sizes.double() * ratio).long()


def _places(owner: Tensor, sizes: Tensor) -> Tensor:
    """The place of each item among those of its graph, from 0, shape (m,); sizes have (G,)."""
    starts = sizes.cumsum(0) - sizes
    return torch.arange(owner.shape[0], device=owner.device) - starts[owner]


def _pair(ends: Tensor) -> Tensor:
    """The number of a pair of nodes: 0-1, 0-2, 1-2, 0-3 and so on; of ends (2, m), shape (m,)."""
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    return high * (high - 1) // 2 + low


def _nodes_of(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Both nodes of the pair with a number, shape (m,) each; the inverse of :func:`_pair`."""
    high = ((1 + (1 + 8 * pair.double()).sqrt()) / 2).long()
    high -= (high * (high - 1) // 2 > pair).long()  # the root may have been rounded up
    return pair - high * (high - 1) // 2, high
