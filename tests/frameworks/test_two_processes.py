"""Several processes with gathered negatives against one that holds the joint batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from batches import assert_close
from building import MAKERS, draw, fill, gradients_of, make_batch, make_model
from processes import LOSSES, Report, processes
from torch import Tensor

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core import gather as gather_module
from unremix.core.views import ExtraNegatives
from unremix.domains.graph.encoders import GraphEncoder
from unremix.domains.graph.infograph import InfoGraph, InfoGraphOptions
from unremix.domains.graph.store import GraphBatch
from unremix.domains.sentence.corpus import SentenceBatch
from unremix.domains.sentence.encoders import BagOfWords
from unremix.domains.sentence.quickthought import QuickThought, TwinEncoder
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.simclr import SimCLR

SIZES = [(4, 2)]
OF_THREE = (2, 1, 4)
EQUAL = (2, 2)
FRAMEWORKS = ["moco", "quickthought"]
MIXINGS: dict[str, Any] = {
    "none": None, "imix": IMix(), "unmix": UnMix(cutmix=0.0), "cutmix": UnMix(cutmix=1.0),
}  # fmt: skip
NEGATIVES = {"none": None, "mochi": MoCHi(4, 3, 2, 0), "patch": Patches(2, 3)}
AIMED = [(name, "aimed", "one-way") for name in LOSSES]
WITH_OWN = [
    (name, "own", layout) for name in LOSSES if name != "nt-xent" for layout in ("both", "one-way")
]
WITH_OWN += [(name, "own and aimed", "one-way") for name in ("hcl", "minmax", "zscore-exp")]
QUEUED = [
    (loss, negatives, symmetric, "none", 7)
    for loss in ("uniform", "hcl", "unremix")
    for negatives in ("none", "mochi", "patch")
    for symmetric in (False, True)
]
# Mixed, and with a queue that is empty at the start.
QUEUED += [
    (loss, negatives, False, mixing, filled)
    for loss, negatives in (("hcl", "none"), ("unremix", "mochi"), ("unremix", "patch"))
    for mixing in MIXINGS
    for filled in (0, 7)
]
QUEUED += [(loss, "none", True, "none", 0) for loss in ("uniform", "unremix")]
IN_BATCH = [
    (loss, negatives, mixing)
    for loss in ("uniform", "hcl", "unremix")
    for negatives in ("none", "patch")
    for mixing in MIXINGS
]
GRAPHS = ["uniform", "hcl", "unremix", "info-nce"]


def part_of(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def aims_of(sizes: tuple[int, ...], rank: int) -> tuple[Tensor, Tensor]:
    """Keys, counted from the process's first, and shares: itself and the next of its own."""
    n = sizes[rank]
    own = torch.arange(n)
    lam = torch.linspace(0.5, 1.0, 7)[own + rank].double()
    return torch.stack([own, (own + 1) % n], 1), torch.stack([lam, 1 - lam], 1)


def joint_aims(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    parts = [aims_of(sizes, rank) for rank in range(len(sizes))]
    keys = torch.cat([k + part_of(sizes, rank).start for rank, (k, _) in enumerate(parts)])
    return keys, torch.cat([shares for _, shares in parts])


def contrasted(
    name: str, kind: str, layout: str, sizes: tuple[int, ...], rank: int | None
) -> dict[str, Tensor]:
    """Loss and gradients of one process of several, or of all in one."""
    rows = slice(None) if rank is None else part_of(sizes, rank)
    total = sum(sizes)
    z0, z1 = (draw(total, 4, seed=v)[rows].requires_grad_() for v in range(2))
    h0, h1 = (draw(total, 3, seed=2 + v)[rows] for v in range(2))
    loss_fn = LOSSES[name](layout=layout, gather=rank is not None, tile=2).double()
    own = None
    if "own" in kind:
        zo, ho = draw(2, total, 2, 4, seed=5)[:, rows], draw(2, total, 2, 3, seed=6)[:, rows]
        count = 2 if layout == "both" else 1
        own = ExtraNegatives(zo[:count].flatten(0, 1), ho[:count].flatten(0, 1), logit_factor=1.5)
    if "aimed" in kind:
        keys, shares = joint_aims(sizes) if rank is None else aims_of(sizes, rank)
        loss = loss_fn.aimed(z0, z1, h0, h1, keys=keys, shares=shares, extra=own)
    else:
        loss = loss_fn(z0, z1, h0, h1, extra=own)
    loss.backward()
    found = {"loss": loss.detach(), "z0": z0.grad, "z1": z1.grad}
    return found | {n: p.grad for n, p in loss_fn.named_parameters()}  # type: ignore[dict-item]


def stepped(
    loss: str, negatives: str, symmetric: bool, mixing: str, filled: int,
    sizes: tuple[int, ...], rank: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Two steps of MoCo; the gradients averaged by hand."""
    loss_fn = MAKERS[loss](gather=rank is not None)
    model = make_model(
        loss=loss_fn, queue=11, symmetric=symmetric, momentum=0.5, mixing=MIXINGS[mixing],
        negatives=NEGATIVES[negatives],
    )  # fmt: skip
    fill(model, filled, first=1)
    return trained(model, sizes, rank)


def in_batch(
    loss: str, negatives: str, mixing: str, sizes: tuple[int, ...], rank: int | None
) -> dict[str, Any]:
    """Two steps of SimCLR, likewise."""
    model = make_model(
        SimCLR, MAKERS[loss](gather=rank is not None), mixing=MIXINGS[mixing],
        negatives=NEGATIVES[negatives],
    )  # fmt: skip
    return trained(model, sizes, rank)


def trained(model: Any, sizes: tuple[int, ...], rank: int | None) -> dict[str, Any]:
    losses = []
    for step in range(2):
        rows = slice(None) if rank is None else part_of(sizes, rank)
        value = model(make_batch(sum(sizes), seed=step, first=4 * step, rows=rows))
        value, found = averaged(value, model, rank)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in found:
                    parameter -= 0.5 * found[name]
        model.after_step()
        losses.append(value)
    return {"losses": torch.stack(losses), **model.state_dict()}


def averaged(
    value: Tensor, model: torch.nn.Module, rank: int | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients, the mean over the processes."""
    found = gradients_of(value, model)
    value = value.detach()
    if rank is not None:
        for tensor in (value, *found.values()):
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
    return value, found


def of_graphs(
    loss: str, sizes: tuple[int, ...], rank: int | None, equal: bool = False
) -> dict[str, Tensor]:
    """InfoGraph, whose graphs have 1, 2, 3, ... nodes; as many graphs, never as many nodes."""
    rows = slice(None) if rank is None else part_of(sizes, rank)
    number = torch.arange(sum(sizes))[rows]
    everyone = torch.arange(sum(sizes)).repeat_interleave(torch.arange(sum(sizes)) + 1)
    nodes = draw(len(everyone), 5)[torch.isin(everyone, number)]
    of_node = (number - number[0]).repeat_interleave(number + 1)
    graphs = GraphBatch(nodes, torch.zeros(2, 0).long(), of_node, len(number))
    gather: Any = "equal" if equal and rank is not None else rank is not None
    objective = "info-nce" if loss == "info-nce" else "jsd"
    made = {
        "uniform": InfoNCELoss(gather=gather), "info-nce": HCLLoss(class_prior=0.0, gather=gather),
        "hcl": HCLLoss(gather=gather), "unremix": UnReMixLoss(mix=(0.2, 0.3, 0.5), gather=gather),
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = GraphEncoder(5, hidden=3, layers=1)
        model = InfoGraph(encoder, made[loss], options=InfoGraphOptions(objective)).double()
    model.eval()  # BatchNorm would see a process's nodes only
    value, found = averaged(model(Batch((graphs,), number, number, number[:1])), model, rank)
    return {"losses": value, **found}


def exchanges_of(kind: str, gather: Any) -> int:
    """How often the processes tell each other the sizes of their batches."""
    count = 0
    exchange = gather_module._exchange

    def counted(numbers: list[int]) -> list[list[int]]:
        nonlocal count
        count += 1
        return exchange(numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "_exchange", counted)
        if kind == "moco":
            model = make_model(loss=MAKERS["uniform"](gather=gather), queue=11)
            fill(model, 7, first=1)
            model(make_batch(3))
            model.after_step()
        else:
            quickthought(gather)
    return count


def quickthought(gather: Any) -> None:
    words = BagOfWords(9, words=3)
    sentences = SentenceBatch(
        torch.randint(2, 9, (4, 3)), torch.full((4,), 3), torch.zeros(4).long(), torch.arange(4)
    )
    number = torch.arange(4)
    batch = Batch((sentences,), number, number, number[:1])
    QuickThought(TwinEncoder(words, words), InfoNCELoss(gather=gather))(batch)


CASES: dict[Callable[..., Any], list[Any]] = {
    stepped: QUEUED, in_batch: IN_BATCH, of_graphs: [(loss,) for loss in GRAPHS],
}  # fmt: skip
EVERY = [(function, *case) for function, cases in CASES.items() for case in cases]


@cache
def alone(function: Callable[..., Any], *case: Any) -> Any:
    return function(*case, None)


def gathered(world: int) -> Report:
    rank = dist.get_rank()
    found: Report = {}
    if world == 2:
        for loss in GRAPHS:
            found[("of_graphs", loss, EQUAL)] = of_graphs(loss, EQUAL, rank, equal=True)
        for sizes in SIZES:
            for case in (*AIMED, *WITH_OWN):
                found[(*case, sizes)] = contrasted(*case, sizes, rank)
    for sizes in [*SIZES, OF_THREE]:
        if len(sizes) == world:
            for function, cases in CASES.items():
                for case in cases:
                    found[(function.__name__, *case, sizes)] = function(*case, sizes, rank)
    for kind in FRAMEWORKS:
        found[kind] = exchanges_of(kind, "equal"), exchanges_of(kind, True)
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    return processes(2, gathered, tmp_path_factory.mktemp("frameworks"))


@pytest.mark.xdist_group("gather")  # processes are started by one worker
class TestTwoProcesses:
    @pytest.mark.parametrize(("name", "kind", "layout"), [*AIMED, *WITH_OWN])
    def test_losses_are_those_of_the_joint_batch(
        self, reports: list[Report], name: str, kind: str, layout: str
    ) -> None:
        for sizes in SIZES:
            found = [report[name, kind, layout, sizes] for report in reports]
            expected = alone(contrasted, name, kind, layout, sizes)
            assert_close(sum(each["loss"] for each in found) / 2, expected["loss"])
            for leaf in expected.keys() - {"loss"}:
                if leaf in ("z0", "z1"):  # DistributedDataParallel divides by the processes
                    rows = torch.cat([each[leaf] for each in found]) / 2
                    assert_close(rows, expected[leaf], 1e-9)
                else:
                    for each in found:
                        assert_close(each[leaf], expected[leaf], 1e-9)

    @pytest.mark.parametrize("kind", FRAMEWORKS)
    def test_batches_known_to_be_equal_exchange_no_sizes(
        self, reports: list[Report], kind: str
    ) -> None:
        for report in reports:
            known, unknown = report[kind]
            assert known == 0
            assert unknown > 0

    @pytest.mark.parametrize("loss", GRAPHS)
    def test_equally_many_graphs_have_different_numbers_of_nodes(
        self, reports: list[Report], loss: str
    ) -> None:
        assert_alike(reports, (of_graphs, loss), EQUAL)

    @pytest.mark.parametrize("case", EVERY, ids=lambda case: "-".join(map(str, case[1:])))
    def test_a_step_is_that_of_one_process(self, reports: list[Report], case: Any) -> None:
        """Losses, encoders and the queue, in order."""
        for sizes in SIZES:
            assert_alike(reports, case, sizes)


def assert_alike(reports: list[Report], case: Any, sizes: tuple[int, ...]) -> None:
    function, *options = case
    expected = alone(function, *options, sizes)
    assert expected["losses"].abs().min() > 1e-3
    for report in reports:
        found = report[(function.__name__, *options, sizes)]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, 1e-9)


@pytest.mark.xdist_group("gather")
def test_steps_of_three_processes_are_those_of_one(tmp_path: Path) -> None:
    reports = processes(3, gathered, tmp_path)
    for case in EVERY:
        assert_alike(reports, case, OF_THREE)
