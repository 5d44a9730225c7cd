"""The adapters on two processes against one: lightly, pytorch-metric-learning, PyG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision_operators  # noqa: F401, before the libraries, in spawned processes too
from torch import Tensor, nn
from torch_geometric.data import Data

import unremix
from unremix.adapters import lightly, metric_learning, pyg

LABELS = torch.tensor([[0, 1, 1, 0], [2, 1, 0, 2]])
MIXED = {"mix": "learned", "scaling": "zscore-exp"}


def batch(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    return [each.clone().requires_grad_() for each in drawn]


def joint() -> list[Tensor]:
    both = zip(batch(0), batch(1), strict=True)
    return [torch.cat(each).detach().requires_grad_() for each in both]


def found(loss: Tensor, loss_fn: nn.Module, views: list[Tensor]) -> list[Tensor]:
    own = list(loss_fn.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, [*views, *own], allow_unused=True)]


class Alone(nn.Module):
    """An encoder for which nodes have no neighbors."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return x.sin()


def graph_contrast(nodes: Tensor, *, gather: bool) -> list[Tensor]:
    """GRACE on nodes, with its views as they are."""
    torch.manual_seed(5)
    head = nn.Linear(5, 3).double()
    loss_fn = unremix.UnReMixLoss(last_layer=head, gather=gather, scaling="zscore-exp").double()
    model = pyg.GraphContrast(Alone(), head, loss_fn).eval()
    loss = model(Data(x=nodes, edge_index=torch.zeros(2, 0, dtype=torch.int64)))
    return found(loss, loss_fn, [nodes])


def masked(views: list[Tensor]) -> list[Tensor]:
    """The loss in PyGCL's call."""
    loss_fn = pyg.UnReMixLoss(**MIXED).double()
    return found(loss_fn(*views, torch.eye(len(views[0]))), loss_fn, views)


def run(rank: int, folder: str) -> None:
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    report: dict[str, Any] = {}
    views = batch(rank)
    loss_fn = lightly.UnReMixLoss(gather_distributed=True, **MIXED).double()
    report["lightly"] = found(loss_fn(*views, labels=LABELS[rank]), loss_fn, views)
    bank = lightly.UnReMixLoss(memory_bank_size=(16, 5), gather_distributed=True, **MIXED)
    bank.memory_bank.bank.copy_(torch.randn(16, 5, generator=torch.Generator().manual_seed(3)))
    single = [each.detach().float().requires_grad_() for each in views]
    report["bank"] = found(bank(*single), bank, single)
    for efficient in (True, False):
        loss_fn = metric_learning.UnReMixLoss(0.5, **MIXED).double()
        wrapped = DistributedLossWrapper(loss_fn, efficient=efficient)
        report[f"metric learning, {efficient}"] = found(
            wrapped(views[0], LABELS[rank]) / 2, loss_fn, views[:1]
        )
    report["graphs"] = graph_contrast(views[0], gather=True)
    report["masks"] = masked(views)
    torch.save(report, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(run, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_lightly(reports: list[dict[str, list[Tensor]]]) -> None:
    views, loss_fn = joint(), lightly.UnReMixLoss(**MIXED).double()
    loss, *of_views, of_mix = found(loss_fn(*views, labels=LABELS.flatten()), loss_fn, views)
    ours = [report["lightly"] for report in reports]
    torch.testing.assert_close((ours[0][0] + ours[1][0]) / 2, loss)
    for rank, each in enumerate(ours):
        torch.testing.assert_close(
            [one / 2 for one in each[1:3]], [one.chunk(2)[rank] for one in of_views]
        )
        torch.testing.assert_close(each[3], of_mix)


def test_a_memory_bank(reports: list[dict[str, list[Tensor]]]) -> None:
    """Each process asks with its own batch: the mix has one gradient, their mean."""
    alone = []
    for rank in range(2):
        bank = lightly.UnReMixLoss(memory_bank_size=(16, 5), **MIXED)
        bank.memory_bank.bank.copy_(torch.randn(16, 5, generator=torch.Generator().manual_seed(3)))
        views = [each.detach().float().requires_grad_() for each in batch(rank)]
        alone.append(found(bank(*views), bank, views))
    mean = (alone[0][-1] + alone[1][-1]) / 2
    for rank, report in enumerate(reports):
        torch.testing.assert_close(report["bank"][:2], alone[rank][:2])
        torch.testing.assert_close(report["bank"][-1], mean)


@pytest.mark.parametrize("efficient", [True, False])
def test_metric_learning(reports: list[dict[str, list[Tensor]]], efficient: bool) -> None:
    """The uncertainty's residuals are those of the joint batch, whoever compares."""
    embeddings, labels = joint()[0], LABELS.flatten()
    loss_fn = metric_learning.UnReMixLoss(0.5, **MIXED).double()
    loss, _, of_mix = found(loss_fn(embeddings, labels), loss_fn, [embeddings])
    ours = [report[f"metric learning, {efficient}"] for report in reports]
    if not efficient:
        for each in ours:
            torch.testing.assert_close([each[0], each[2]], [loss, of_mix])
        return
    # The library takes the mean over the positive pairs of a process's anchors.
    counts = [(labels[half, None] == labels).sum() - 4 for half in (slice(4), slice(4, 8))]
    mean = sum(each[0] * count for each, count in zip(ours, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(mean, loss)
    torch.testing.assert_close(ours[0][2], ours[1][2])


def test_graph_contrast_with_a_loss_that_gathers(reports: list[dict[str, list[Tensor]]]) -> None:
    nodes = joint()[0]
    loss, of_nodes, of_mix = graph_contrast(nodes, gather=False)
    ours = [report["graphs"] for report in reports]
    torch.testing.assert_close((ours[0][0] + ours[1][0]) / 2, loss)
    for each, half in zip(ours, of_nodes.chunk(2), strict=True):
        torch.testing.assert_close(each[1] / 2, half)
        torch.testing.assert_close(each[2], of_mix)


def test_masks_compare_samples_of_their_own_process(
    reports: list[dict[str, list[Tensor]]],
) -> None:
    """PyGCL's call does not gather; the mix has one gradient, the mean over processes."""
    alone = [masked(batch(rank)) for rank in range(2)]
    mean = (alone[0][-1] + alone[1][-1]) / 2
    for report, expected in zip(reports, alone, strict=True):
        torch.testing.assert_close(report["masks"][:-1], expected[:-1])
        torch.testing.assert_close(report["masks"][-1], mean)
