"""The adapter for PyTorch Geometric against PyGCL's InfoNCE and GRACE's equations."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from batches import leaf
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.nn import GCN
from torch_geometric.utils import scatter

import unremix
from unremix.adapters.pyg import GraphContrast, UnReMixLoss

# PyGCL's losses alone: the rest of the package needs further libraries.
package = ModuleType("GCL")
package.__path__ = list(find_spec("GCL").submodule_search_locations)  # type: ignore[union-attr, arg-type]
sys.modules["GCL"] = package
# One function of torch_scatter, which PyTorch Geometric has too.
scatters = ModuleType("torch_scatter")
scatters.scatter = scatter  # type: ignore[attr-defined]
sys.modules.setdefault("torch_scatter", scatters)
from GCL.losses import InfoNCE  # noqa: E402
from GCL.models import DualBranchContrast, SingleBranchContrast  # noqa: E402


def masks(name: str) -> tuple[Tensor, Tensor]:
    """Positives and negatives (6, M) as PyGCL's samplers make them."""
    same = torch.eye(6)
    if name == "nodes":
        return same, 1 - same
    if name == "with the own view":
        return torch.cat([same, torch.zeros(6, 6)], 1), torch.cat([1 - same, 1 - same], 1)
    groups = torch.arange(15) % 6
    inside = (groups == torch.arange(6)[:, None]).float()
    return inside, 1 - inside


@pytest.mark.parametrize("tau", [0.2, 1.0])
@pytest.mark.parametrize("name", ["nodes", "with the own view", "graphs against nodes"])
def test_without_components_it_is_pygcl_s_info_nce(name: str, tau: float) -> None:
    positives, negatives = masks(name)
    anchor, sample = leaf(6, 5), leaf(positives.shape[1], 5)
    found = []
    for loss_fn in (UnReMixLoss(tau, components=()), InfoNCE(tau)):
        loss = loss_fn(anchor=anchor, sample=sample, pos_mask=positives, neg_mask=negatives)
        found.append([loss, *torch.autograd.grad(loss, [anchor, sample])])
    torch.testing.assert_close(found[0], found[1])
    weighted = UnReMixLoss(tau)(anchor, sample, positives, negatives)
    assert (weighted - loss).abs() > 1e-4


@pytest.mark.parametrize("mode", ["L2L", "L2L within views", "G2G", "G2L", "single"])
def test_pygcl_s_contrast_models(mode: str) -> None:
    """Nodes against nodes, graphs against graphs, and graphs against nodes, as its examples do."""
    nodes, graphs = [leaf(6, 5), leaf(6, 5)], [leaf(3, 5), leaf(3, 5)]
    batch = torch.tensor([0, 0, 1, 1, 2, 2])
    found = []
    for loss_fn in (UnReMixLoss(tau=0.2, components=()), InfoNCE(tau=0.2)):
        if mode == "single":
            model = SingleBranchContrast(loss_fn, "G2L")
            loss = model(h=nodes[0], g=graphs[0], batch=batch)
            made_of = [nodes[0], graphs[0]]
        else:
            model = DualBranchContrast(loss_fn, mode[:3], intraview_negs="within" in mode)
            given = {"h1": nodes[0], "h2": nodes[1], "g1": graphs[0], "g2": graphs[1]}
            made_of = [given[name] for name in given if name[0].upper() in mode.replace("L", "H")]
            loss = model(**given, batch=batch)
        found.append([loss, *torch.autograd.grad(loss, made_of)])
    torch.testing.assert_close(found[0], found[1])


def test_all_others_are_negatives_by_default() -> None:
    positives, negatives = masks("nodes")
    anchor, sample = leaf(6, 5), leaf(6, 5)
    loss_fn = UnReMixLoss()
    assert torch.equal(
        loss_fn(anchor, sample, positives), loss_fn(anchor, sample, positives, negatives)
    )


def graph(nodes: int = 30, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    return Data(x=torch.randn(nodes, 7, generator=generator), edge_index=edges)


def contrast(loss: Any, **options: Any) -> GraphContrast:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 6))
    encoder = GCN(in_channels=7, hidden_channels=8, num_layers=2)
    return GraphContrast(encoder, head, loss(head), **options)


def grace(z0: Tensor, z1: Tensor, tau: float) -> Tensor:
    """GRACE, Eq. 1 and 2, node by node."""
    f0, f1 = normalize(z0), normalize(z1)
    losses = []
    for here, there in ((f0, f1), (f1, f0)):
        for i in range(len(here)):
            between, within = (here[i] @ there.T / tau).exp(), (here[i] @ here.T / tau).exp()
            total = between.sum() + within.sum() - within[i]
            losses.append(-(between[i] / total).log())
    return torch.stack(losses).mean()


def test_with_info_nce_it_is_grace() -> None:
    model = contrast(lambda _: unremix.InfoNCELoss(temperature=0.4))
    data = graph()
    torch.manual_seed(5)
    loss = model(data)
    torch.manual_seed(5)
    z0, z1 = (model.embed(data, view) for view in (0, 1))
    assert not torch.equal(z0, z1)
    torch.testing.assert_close(loss, grace(z0, z1, 0.4))


def test_labels_make_nodes_of_one_class_positives() -> None:
    model = contrast(lambda head: unremix.UnReMixLoss(last_layer=head[-1])).eval()
    data, labels = graph(), torch.arange(30) % 4 - 1
    z0, z1 = (model.embed(data, view) for view in (0, 1))
    expected = model.loss(z0, z1, labels=labels)
    torch.testing.assert_close(model(data, labels), expected)
    assert (model(data) - expected).abs() > 1e-3


def test_it_learns_with_the_last_layer_watched() -> None:
    model = contrast(lambda head: unremix.UnReMixLoss(last_layer=head[-1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    data, losses = graph(), []
    for _ in range(30):
        loss = model(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert sum(losses[-5:]) < sum(losses[:5])


def test_graphs() -> None:
    model = contrast(lambda head: unremix.UnReMixLoss(last_layer=head[-1]), level="graph")
    loader = DataLoader([graph(5 + size, size) for size in range(8)], batch_size=4)
    for batch in loader:
        assert isinstance(batch, Batch)
        assert model.embed(batch, 0).shape == (4, 6)
        assert model(batch).isfinite()


def test_sampled_neighborhoods_contrast_their_seeds_alone() -> None:
    model = contrast(lambda head: unremix.UnReMixLoss(last_layer=head[-1])).eval()
    data = graph(60)
    try:
        loader = NeighborLoader(data, num_neighbors=[60, 60], batch_size=20)
        batches = list(loader)
    except ImportError:
        pytest.skip("NeighborLoader needs pyg-lib or torch-sparse")
    whole = model.embed(data, 0)
    for number, batch in enumerate(batches):
        embedded = model.embed(batch, 0)
        assert embedded.shape == (20, 6)
        torch.testing.assert_close(embedded, whole[20 * number :][:20], atol=1e-5, rtol=1e-4)


def test_seeds_of_a_loader() -> None:
    model = contrast(lambda head: unremix.UnReMixLoss(last_layer=head[-1]))
    batch = graph(30)
    batch.input_id, batch.batch_size = torch.arange(12), 12
    assert model.embed(batch, 0).shape == (12, 6)
    assert model(batch).isfinite()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="level to be one of node, graph"):
        contrast(lambda _: unremix.InfoNCELoss(), level="edge")
    with pytest.raises(ValueError, match="drop_edges to be a number"):
        contrast(lambda _: unremix.InfoNCELoss(), drop_edges=(0.2, 1.0))
