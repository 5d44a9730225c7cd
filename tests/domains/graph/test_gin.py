"""GIN: against PyG's own layers; invariances; graphs without edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GINConv, global_add_pool

from unremix.domains.graph import encoders as module
from unremix.domains.graph.encoders import GIN, Neighbors, sum_neighbors
from unremix.domains.graph.store import GraphBatch

SIZES = (5, 1, 7, 3, 2)


def random_batch(
    sizes: tuple[int, ...] = SIZES, features: int = 4, seed: int = 0, *, undirected: bool = False
) -> GraphBatch:
    """Random graphs; one of three or fewer nodes has no edges."""
    generator = torch.Generator().manual_seed(seed)
    starts = np.cumsum(sizes) - sizes
    edges = [
        torch.randint(size, (2, 2 * size if size > 3 else 0), generator=generator) + int(start)
        for size, start in zip(sizes, starts, strict=True)
    ]
    edge_index = torch.cat(edges, dim=1)
    if undirected:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    x = torch.randn(sum(sizes), features, generator=generator, dtype=torch.float64)
    graph = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return GraphBatch(x, edge_index, graph, len(sizes))


def make(features: int = 4, hidden: int = 6, layers: int = 3) -> GIN:
    """With running means and variances that are not those of the beginning."""
    torch.manual_seed(0)
    gin = GIN(features, hidden=hidden, layers=layers).double()
    generator = torch.Generator().manual_seed(1)
    for layer in gin.layers:
        layer.norm.running_mean.normal_(generator=generator)
        layer.norm.running_var.uniform_(0.5, 2.0, generator=generator)
        nn.init.normal_(layer.norm.weight, generator=generator)
        nn.init.normal_(layer.norm.bias, generator=generator)
        nn.init.normal_(layer.first.bias, generator=generator)
        nn.init.normal_(layer.second.bias, generator=generator)
    return gin


def run(gin: GIN, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    nodes, graphs = gin(batch)
    return nodes, graphs


class Peer(nn.Module):
    """InfoGraph's encoder, from PyG's layers and with the weights of ours."""

    def __init__(self, gin: GIN) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        self.norms = nn.ModuleList()
        for layer in gin.layers:
            size, hidden = layer.first.in_features, layer.first.out_features
            network = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            convolution = GINConv(network).double()
            network[0].load_state_dict(layer.first.state_dict())
            network[2].load_state_dict(layer.second.state_dict())
            norm = nn.BatchNorm1d(hidden).double()
            norm.load_state_dict(layer.norm.state_dict())
            self.convolutions.append(convolution)
            self.norms.append(norm)

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        x, outputs = batch.x, []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, batch.edge_index).relu())
            outputs.append(x)
        pooled = [global_add_pool(output, batch.graph, batch.num_graphs) for output in outputs]
        return torch.cat(outputs, 1), torch.cat(pooled, 1)


@pytest.mark.parametrize("features", [1, 4, 20])  # narrower and wider than the hidden layers
@pytest.mark.parametrize("training", [True, False])
def test_equals_pyg(features: int, training: bool) -> None:
    batch, gin = random_batch(features=features), make(features)
    peer = Peer(gin).train(training)
    gin.train(training)
    x = batch.x.clone().requires_grad_()
    nodes, graphs = gin(replace(batch, x=x))
    other_x = batch.x.clone().requires_grad_()
    other = GraphBatch(other_x, batch.edge_index, batch.graph, batch.num_graphs)
    peer_nodes, peer_graphs = peer(other)
    torch.testing.assert_close(nodes, peer_nodes)
    torch.testing.assert_close(graphs, peer_graphs)
    assert nodes.shape == (18, gin.features)
    assert graphs.shape == (5, gin.features)

    (nodes.sin().sum() + (graphs**2).sum()).backward()
    (peer_nodes.sin().sum() + (peer_graphs**2).sum()).backward()
    torch.testing.assert_close(x.grad, other_x.grad)
    for layer, convolution in zip(gin.layers, peer.convolutions, strict=True):
        torch.testing.assert_close(layer.first.weight.grad, convolution.nn[0].weight.grad)
        torch.testing.assert_close(layer.first.bias.grad, convolution.nn[0].bias.grad)
        torch.testing.assert_close(layer.second.weight.grad, convolution.nn[2].weight.grad)


@given(
    nodes=st.integers(1, 9), edges=st.integers(0, 30), seed=st.integers(0, 1000),
)  # fmt: skip
def test_sums_equal_a_loop(nodes: int, edges: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(nodes, (2, edges), generator=generator)
    x = torch.randn(nodes, 3, generator=generator, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        expected[b] += x[a]
    incoming = Neighbors.of(target, source, nodes)
    outgoing = Neighbors.of(source, target, nodes)
    torch.testing.assert_close(sum_neighbors(x, incoming, outgoing), expected)


def test_gradients_of_sums() -> None:
    batch = random_batch()
    source, target = batch.edge_index
    incoming = Neighbors.of(target, source, len(batch.x))
    outgoing = Neighbors.of(source, target, len(batch.x))
    x = batch.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sum_neighbors(x, incoming, outgoing), x)
    assert torch.autograd.gradgradcheck(lambda x: sum_neighbors(x, incoming, outgoing) ** 2, x)


def test_many_nodes_are_sorted_otherwise() -> None:
    ends = torch.randint(50, (400,), generator=torch.Generator().manual_seed(0))
    few = module._stable_order(ends, 50)
    assert torch.equal(few, module._stable_order(ends, 2**16 + 1))
    assert torch.equal(few, torch.from_numpy(np.argsort(ends.numpy(), kind="stable")))


def permuted(batch: GraphBatch, order: list[int]) -> tuple[GraphBatch, Tensor]:
    """The batch with its graphs in another order, and where each node came from."""
    source = torch.cat([(batch.graph == graph).nonzero()[:, 0] for graph in order])
    place = torch.empty_like(source)
    place[source] = torch.arange(len(source))
    graph = torch.repeat_interleave(torch.arange(len(order)), batch.sizes[order])
    return GraphBatch(batch.x[source], place[batch.edge_index], graph, batch.num_graphs), source


@pytest.mark.parametrize("training", [True, False])
def test_the_order_of_graphs_does_not_matter(training: bool) -> None:
    gin, batch = make().train(training), random_batch()
    order = [3, 0, 4, 2, 1]
    other, source = permuted(batch, order)
    nodes, graphs = run(gin, batch)
    other_nodes, other_graphs = run(gin, other)
    torch.testing.assert_close(other_nodes, nodes[source])
    torch.testing.assert_close(other_graphs, graphs[order])


def test_the_order_of_nodes_and_edges_does_not_matter() -> None:
    gin, batch = make().eval(), random_batch()
    generator = torch.Generator().manual_seed(3)
    # Nodes of a graph change places, and so do edges; nodes of different graphs mix too.
    source = torch.randperm(len(batch.x), generator=generator)
    place = torch.empty_like(source)
    place[source] = torch.arange(len(source))
    edges = batch.edge_index[:, torch.randperm(batch.edge_index.shape[1], generator=generator)]
    other = GraphBatch(batch.x[source], place[edges], batch.graph[source], batch.num_graphs)
    nodes, graphs = run(gin, batch)
    other_nodes, other_graphs = run(gin, other)
    torch.testing.assert_close(other_nodes, nodes[source])
    torch.testing.assert_close(other_graphs, graphs)


def test_a_graph_is_embedded_alike_in_any_batch() -> None:
    gin, batch = make().eval(), random_batch()
    _, graphs = run(gin, batch)
    for index in range(batch.num_graphs):
        inside = batch.graph == index
        first = int(inside.nonzero()[0])
        edges = batch.edge_index[:, inside[batch.edge_index[0]]] - first
        alone = GraphBatch(batch.x[inside], edges, batch.graph[inside] - index, 1)
        torch.testing.assert_close(run(gin, alone)[1][0], graphs[index])


def test_without_edges_a_node_is_on_its_own() -> None:
    gin = make().eval()
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(2, 0, dtype=torch.int64)
    nodes, graphs = gin(GraphBatch(x, none, torch.tensor([0, 0, 1]), 2))
    expected = []
    for layer in gin.layers:
        x = layer.norm(layer.second(layer.first(x).relu()).relu())
        expected.append(x)
    torch.testing.assert_close(nodes, torch.cat(expected, 1))
    torch.testing.assert_close(graphs[0], nodes[0] + nodes[1])
    torch.testing.assert_close(graphs[1], nodes[2])


def test_a_graph_without_nodes_is_zero() -> None:
    batch, gin = random_batch(), make()
    graphs = gin(replace(batch, num_graphs=batch.num_graphs + 1))[1]
    assert graphs.shape == (6, 18)
    assert not graphs[-1].any()


def test_begins_as_infograph() -> None:
    torch.manual_seed(0)
    gin = GIN(10, hidden=32, layers=2)
    assert gin.features == 64
    for layer in gin.layers:
        for linear in (layer.first, layer.second):
            bound = (6 / sum(linear.weight.shape)) ** 0.5
            assert 0.9 * bound < float(linear.weight.detach().abs().max()) <= bound
            assert not linear.bias.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    batch = random_batch(undirected=True)
    gin = make(20).float()
    x = torch.randn(len(batch.x), 20, generator=torch.Generator().manual_seed(0))
    exact, _ = gin(replace(batch, x=x))
    with torch.autocast("cpu", dtype=dtype):
        nodes, graphs = gin(replace(batch, x=x))
    graphs.float().sum().backward()
    assert nodes.isfinite().all()
    assert graphs.isfinite().all()
    assert (nodes.float() - exact).detach().abs().mean() < 0.1 * exact.detach().abs().mean()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in gin.parameters())


@pytest.mark.parametrize(("sizes"), [(0, 32, 3), (4, 0, 3), (4, 32, 0)])
def test_sizes_that_make_no_sense(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1, got"):
        GIN(sizes[0], hidden=sizes[1], layers=sizes[2])
