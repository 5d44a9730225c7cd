"""Several processes with gathered negatives against one process that holds the joint batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from batches import assert_close
from processes import LOSSES, Report, processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unremix import InfoNCELoss, UnReMixLoss
from unremix.core import gather
from unremix.core.gather import (
    JointBatch,
    _cpu_group,
    find_joint_batch,
    gather_rows,
    is_distributed,
    mean_count,
    mean_gradient,
    withdraw,
)
from unremix.losses import Gather, TwoViewLoss

# Starting processes takes seconds: tests that share them stay on one worker (--dist loadgroup).
pytestmark = pytest.mark.xdist_group("gather")

SIZES = {2: [(2, 2), (3, 2), (1, 2)], 3: [(3, 3, 3), (4, 1, 2)]}
SHAPES = [(), (3,), (2, 3)]
LAYOUTS = ["both", "one-way"]
ALL_LAYOUTS = [*LAYOUTS, "symmetric"]
BY_HAND = [(name, layout, "by hand") for name in LOSSES for layout in LAYOUTS]
# DistributedDataParallel around the model, or around a module that holds the model and the loss.
WRAPPED = [
    (name, layout, mode)
    for name in ("info-nce", "hcl", "minmax", "free")
    for layout in LAYOUTS
    for mode in ("model", "model and loss")
]

Sizes = tuple[int, ...]
Outcome = tuple[Tensor, dict[str, Tensor]]  # loss and gradients


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4, dtype=torch.float64)
        self.head = nn.Linear(4, 3, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)

    def features(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x).tanh()
        return h

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.features(x))
        return z


class Objective(nn.Module):
    """A model and its loss as one module."""

    def __init__(self, model: Encoder, loss_fn: TwoViewLoss) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        loss: Tensor = self.loss_fn(*self.model(torch.cat([x0, x1])).chunk(2))
        return loss


def make_loss(
    name: str, layout: str, *, last_layer: nn.Linear | None = None, gather: Gather = False
) -> TwoViewLoss:
    options = {} if name in ("info-nce", "debiased", "hcl") else {"last_layer": last_layer}
    loss_fn = LOSSES[name](layout=layout, gather=gather, **options).double()
    for parameter in loss_fn.parameters():  # unequal shares, so that each matters
        parameter.data += torch.tensor([0.3, -0.2, 0.1])
    return loss_fn


def learning_loss(layout: str) -> TwoViewLoss:
    return UnReMixLoss(layout=layout, learnable_temperature=True).double()


def inputs(model: Encoder, loss_fn: TwoViewLoss, x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    """h0 and h1 for a loss that uses them."""
    return (model.features(x0), model.features(x1)) if isinstance(loss_fn, UnReMixLoss) else ()


def joint_batch(total: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    x0, x1 = torch.randn(2, total, 5, dtype=torch.float64, generator=generator)
    return x0, x1


def classes(total: int) -> Tensor:
    """Labels of a joint batch: the classes of the processes overlap."""
    return torch.tensor([0, 1, -1, 0, 2, -1, 1, 0, 3])[:total]


def accumulated(model: nn.Module, loss_fn: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *loss_fn.named_parameters()]
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


@cache
def alone(name: str, layout: str, total: int) -> Outcome:
    """Loss and gradients of one process with the joint batch."""
    model, loss_fn = Encoder(), make_loss(name, layout)
    x0, x1 = joint_batch(total)
    loss = loss_fn(model(x0), model(x1), *inputs(model, loss_fn, x0, x1))
    loss.backward()
    return loss.detach(), accumulated(model, loss_fn)


# What each process does.


def mean(value: Tensor) -> Tensor:
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = mean(parameter.grad)


def own_batch(sizes: Sizes) -> tuple[Tensor, Tensor]:
    x0, x1 = (x.split(sizes)[dist.get_rank()] for x in joint_batch(sum(sizes)))
    return x0, x1


def together(name: str, layout: str, mode: str, sizes: Sizes, gather: Gather = True) -> Outcome:
    """Mean loss and gradients over processes that hold so many samples."""
    model = Encoder()
    loss_fn = make_loss(name, layout, last_layer=model.head, gather=gather)
    x0, x1 = own_batch(sizes)
    if mode == "by hand":
        loss = loss_fn(model(x0), model(x1), *inputs(model, loss_fn, x0, x1))
    elif mode == "model":
        wrapped = DistributedDataParallel(model)  # averages only as long as it lives
        loss = loss_fn(*wrapped(torch.cat([x0, x1])).chunk(2))
    else:
        wrapped = DistributedDataParallel(Objective(model, loss_fn))
        loss = wrapped(x0, x1)
    loss.backward()
    if mode == "by hand":
        average(model)
    return mean(loss), accumulated(model, loss_fn)


def labeled(layout: str, sizes: Sizes) -> Outcome:
    model = Encoder()
    loss_fn = make_loss("minmax", layout, last_layer=model.head, gather=True)
    z0, z1 = model(torch.cat(own_batch(sizes))).chunk(2)
    loss = loss_fn(z0, z1, labels=classes(sum(sizes)).split(sizes)[dist.get_rank()])
    loss.backward()
    average(model)
    return mean(loss), accumulated(model, loss_fn)


def used_twice(sizes: Sizes) -> Outcome:
    model = Encoder()
    loss_fn = make_loss("minmax", "both", last_layer=model.head, gather=True)
    z0, z1 = model(torch.cat(own_batch(sizes))).chunk(2)
    with torch.no_grad():
        loss_fn(z0, z1)
    loss = (loss_fn(z0, z1) + 3 * loss_fn(z0, z1)) / 4
    loss.backward()
    average(model)
    return mean(loss), accumulated(model, loss_fn)


def apart(layout: str, sizes: Sizes) -> dict[str, Tensor]:
    """Gradients of the loss's own parameters where every process has negatives of its own."""
    model = Encoder()
    loss_fn = learning_loss(layout)
    loss_fn(*model(torch.cat(own_batch(sizes))).chunk(2)).backward()
    return accumulated(nn.Identity(), loss_fn)


def rows_and_gradients(sizes: Sizes, shape: tuple[int, ...]) -> Report:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    rows, value = draw(sizes[rank], *shape).requires_grad_(), draw(3).requires_grad_()
    factor = draw(sum(sizes), *shape)
    part = find_joint_batch(torch.empty(sizes[rank], 7), torch.empty(sizes[rank], 9))
    gathered, same = gather_rows(rows, part), mean_gradient(value)
    ((factor * gathered).sum() + (factor.sum() * same).sum()).backward()
    return {
        "part": part,
        "rows": rows.detach(),
        "gathered": gathered.detach(),
        "factor": factor,
        "gradient": rows.grad,
        "unchanged": torch.equal(same, value),
        "mean gradient": value.grad,
        "mean count": mean_count(torch.tensor(float(rank)), part),
    }


def averaged_by_hand(world: int) -> Report:
    found: Report = {}
    for sizes in SIZES[world]:
        found |= {(*case, sizes): together(*case, sizes) for case in BY_HAND}
        found |= {("rows", sizes, shape): rows_and_gradients(sizes, shape) for shape in SHAPES}
        found["used twice", sizes] = used_twice(sizes)
        found |= {("labels", layout, sizes): labeled(layout, sizes) for layout in LAYOUTS}
        found |= {("apart", layout, sizes): apart(layout, sizes) for layout in ALL_LAYOUTS}
    found["group"] = _cpu_group() is dist.group.WORLD
    with pytest.MonkeyPatch.context() as patch:  # sizes are known: nothing is exchanged
        patch.setattr(gather, "_exchange", None)
        found |= {("equal", *case): together(*case, SIZES[world][0], "equal") for case in BY_HAND}
    return found


def averaged_by_wrapper(world: int) -> Report:
    return {(*case, sizes): together(*case, sizes) for case in WRAPPED for sizes in SIZES[world]}


def share(size: int = 2, width: int = 3, input_width: int = 0) -> None:
    inputs = torch.empty(size, input_width) if input_width else None
    find_joint_batch(torch.empty(size, width), inputs)


def withdraw_from_others(second: bool) -> None:
    share() if second else withdraw()


def embed(
    size: int = 2, width: int = 3, *, factor: float = 1.0, dtype: torch.dtype = torch.float32
) -> None:
    z0, z1 = torch.randn(2, size, width, dtype=dtype)
    InfoNCELoss(gather=True)(z0 * factor, z1)


def label(known: bool) -> None:
    z0, z1 = torch.randn(2, 2, 3)
    InfoNCELoss(gather=True)(z0, z1, labels=torch.tensor([0, 1]) if known else None)


def know_inputs(width: int) -> None:
    z0, z1 = torch.randn(2, 2, 3)
    h0, h1 = torch.randn(2, 2, width) if width else (None, None)
    UnReMixLoss(gather=True)(z0, z1, h0, h1)


def change_output(shift: float) -> None:
    model = Encoder()
    loss_fn = make_loss("minmax", "both", last_layer=model.head, gather=True)
    z0, z1 = model(torch.cat(own_batch((2, 2)))).chunk(2)
    loss_fn(z0.detach() + shift, z1)


# What the first and the second of two processes are given; one or both cannot use it.
FAULTS: dict[str, Callable[[bool], None]] = {
    "no sample to share": lambda second: share(2 if second else 0),
    "other width to share": lambda second: share(width=4 if second else 3),
    "other inputs to share": lambda second: share(input_width=4 if second else 3),
    "withdrawn": withdraw_from_others,
    "no pair": lambda second: embed(2 if second else 0),
    "no pair in either": lambda second: embed(0),
    "other width": lambda second: embed(width=4 if second else 3),
    "not finite": lambda second: embed(factor=float("nan") if second else 1.0),
    "not the layer's output": lambda second: change_output(1.0 if second else 0.0),
    "inputs in one": lambda second: know_inputs(4 if second else 0),
    "other inputs": lambda second: know_inputs(4 if second else 3),
    "labels in one": lambda second: label(second),
    "other dtype": lambda second: embed(dtype=torch.float64 if second else torch.float32),
}


def complaint(fault: Callable[[bool], None]) -> str:
    try:
        fault(dist.get_rank() == 1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def complaints(world: int) -> Report:
    found: Report = {name: complaint(fault) for name, fault in FAULTS.items()}
    return found | {"afterwards": together("minmax", "both", "by hand", (3, 2))}


# What must come of it.


@pytest.fixture(scope="module", params=[2, 3])
def by_hand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Report]:
    return processes(request.param, averaged_by_hand, tmp_path_factory.mktemp("by_hand"))


@pytest.fixture(scope="module", params=[2, 3])
def by_wrapper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Report]:
    return processes(request.param, averaged_by_wrapper, tmp_path_factory.mktemp("by_wrapper"))


@pytest.fixture(scope="module")
def complaining(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    return processes(2, complaints, tmp_path_factory.mktemp("complaining"))


def assert_equal(actual: Outcome, expected: Outcome, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("name", "layout", "mode"), BY_HAND)
def test_gradients_averaged_by_hand(
    by_hand: list[Report], name: str, layout: str, mode: str
) -> None:
    for sizes in SIZES[len(by_hand)]:
        for report in by_hand:
            assert_equal(report[name, layout, mode, sizes], alone(name, layout, sum(sizes)))


@pytest.mark.parametrize(("name", "layout", "mode"), BY_HAND)
def test_batches_known_to_be_equal_give_the_same(
    by_hand: list[Report], name: str, layout: str, mode: str
) -> None:
    sizes = SIZES[len(by_hand)][0]
    assert len(set(sizes)) == 1
    for report in by_hand:
        known = report["equal", name, layout, mode]
        assert_equal(known, report[name, layout, mode, sizes], 1e-13)
        assert_equal(known, alone(name, layout, sum(sizes)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "mode"), WRAPPED)
def test_gradients_averaged_by_distributed_data_parallel(
    by_wrapper: list[Report], name: str, layout: str, mode: str
) -> None:
    for sizes in SIZES[len(by_wrapper)]:
        for report in by_wrapper:
            assert_equal(report[name, layout, mode, sizes], alone(name, layout, sum(sizes)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_of_all_processes(by_hand: list[Report], layout: str) -> None:
    for sizes in SIZES[len(by_hand)]:
        model, total = Encoder(), sum(sizes)
        loss_fn = make_loss("minmax", layout, last_layer=model.head)
        x0, x1 = joint_batch(total)
        z0, z1 = model(torch.cat([x0, x1])).chunk(2)
        loss = loss_fn(z0, z1, labels=classes(total))
        assert total < 4 or not torch.equal(loss, loss_fn(z0, z1))
        loss.backward()
        for report in by_hand:
            assert_equal(
                report["labels", layout, sizes], (loss.detach(), accumulated(model, loss_fn))
            )


@pytest.mark.filterwarnings("ignore:a batch of one pair")
@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_what_is_learned_stays_equal_without_gathering(by_hand: list[Report], layout: str) -> None:
    """Also beside a process with one pair, which has no negatives and no gradient."""
    largest = 0.0
    for sizes in SIZES[len(by_hand)]:
        x0, x1 = joint_batch(sum(sizes))
        parts = []
        for own0, own1 in zip(x0.split(sizes), x1.split(sizes), strict=True):
            model, loss_fn = Encoder(), learning_loss(layout)
            loss_fn(model(own0), model(own1)).backward()
            parts.append(accumulated(nn.Identity(), loss_fn))
        expected = {name: torch.stack([each[name] for each in parts]).mean(0) for name in parts[0]}
        largest = max(largest, float(expected["mix_parameters"].abs().max()))
        assert set(expected) == {"mix_parameters", "logit_scale"}
        for report in by_hand:
            torch.testing.assert_close(report["apart", layout, sizes], expected)
    assert largest > 1e-6


def test_the_mix_has_a_gradient_to_compare() -> None:
    for name in ("minmax", "zscore-exp", "nt-xent", "free"):
        _, found = alone(name, "both", 5)
        assert found["mix_parameters"].abs().min() > 1e-6


def test_loss_used_twice_in_one_graph(by_hand: list[Report]) -> None:
    for sizes in SIZES[len(by_hand)]:
        for report in by_hand:
            assert_equal(report["used twice", sizes], alone("minmax", "both", sum(sizes)))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_come_in_the_order_of_ranks(by_hand: list[Report], shape: tuple[int, ...]) -> None:
    for sizes in SIZES[len(by_hand)]:
        reports = [report["rows", sizes, shape] for report in by_hand]
        expected = torch.cat([report["rows"] for report in reports])
        assert all(torch.equal(report["gathered"], expected) for report in reports)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_a_row_is_the_sum_over_processes(
    by_hand: list[Report], shape: tuple[int, ...]
) -> None:
    for sizes in SIZES[len(by_hand)]:
        reports = [report["rows", sizes, shape] for report in by_hand]
        expected = torch.stack([report["factor"] for report in reports]).sum(0)
        for report, rows in zip(reports, expected.split(sizes), strict=True):
            assert_close(report["gradient"], rows, 1e-12)


def test_mean_gradient(by_hand: list[Report]) -> None:
    for sizes in SIZES[len(by_hand)]:
        reports = [report["rows", sizes, (3,)] for report in by_hand]
        expected = torch.stack([report["factor"].sum() for report in reports]).mean()
        for report in reports:
            assert report["unchanged"]
            assert_close(report["mean gradient"], expected.expand(3), 1e-12)


def test_share(by_hand: list[Report]) -> None:
    for sizes in SIZES[len(by_hand)]:
        for rank, report in enumerate(by_hand):
            found = report["rows", sizes, ()]["part"]
            assert found == JointBatch(sizes, rank)
            assert (found.offset, found.total) == (sum(sizes[:rank]), sum(sizes))
            assert found.processes == len(by_hand)
            counted = report["rows", sizes, ()]["mean count"]  # each process counted its rank
            assert counted == pytest.approx(max(1, sum(range(len(by_hand)))) / len(by_hand))


def test_sizes_travel_over_the_default_group_where_it_is_of_the_cpu(by_hand: list[Report]) -> None:
    assert all(report["group"] for report in by_hand)


def test_sizes_travel_over_a_cpu_group_beside_one_of_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend_of, made = dist.get_backend, []
    new_group = dist.new_group

    def get_backend(group: Any = None) -> str:
        return "nccl" if group in (None, dist.group.WORLD) else backend_of(group)

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(new_group(*arguments, **options))
        return made[-1]

    with group_of_one(tmp_path):
        monkeypatch.setattr(dist, "get_backend", get_backend)
        monkeypatch.setattr(dist, "new_group", make)
        for _ in range(2):  # one group serves all calls
            assert find_joint_batch(torch.empty(5, 3), torch.empty(5, 2)) == JointBatch((5,), 0)
            assert [_cpu_group()] == made
        assert backend_of(made[0]) == "gloo"


REFUSED = "ValueError: expected .*, got .*"
FIRST_EMPTY = r"ValueError: .*samples in every process, got \[0, 2\].*"
SECOND_EMPTY = r"ValueError: .*samples in every process, got \[2, 0\].*"
OTHER_DTYPE = r"ValueError: .*one dtype .* torch.float32, torch.float64.*"
OTHER_WIDTH = "ValueError: .*one width in every process, got .*"
CHANGED = "ValueError: .*that last_layer made .*"


# What the two processes say.
EXPECTED = {
    "no sample to share": (FIRST_EMPTY, FIRST_EMPTY),
    "other width to share": (OTHER_WIDTH, OTHER_WIDTH),
    "other inputs to share": (OTHER_WIDTH, OTHER_WIDTH),
    "withdrawn": ("none", FIRST_EMPTY),
    "no pair": (REFUSED, FIRST_EMPTY),
    "no pair in either": (REFUSED, REFUSED),
    "other width": (OTHER_WIDTH, OTHER_WIDTH),
    "other dtype": (OTHER_DTYPE, OTHER_DTYPE),
    "labels in one": ("ValueError: .*labels in every process .* got [01], [01];.*",) * 2,
    "not finite": (SECOND_EMPTY, REFUSED),
    "not the layer's output": (SECOND_EMPTY, CHANGED),
    "inputs in one": (OTHER_WIDTH, OTHER_WIDTH),
    "other inputs": (OTHER_WIDTH, OTHER_WIDTH),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_process_is_an_error_in_all(complaining: list[Report], fault: str) -> None:
    for report, expected in zip(complaining, EXPECTED[fault], strict=True):
        assert re.fullmatch(expected, report[fault]), report[fault]


def test_processes_go_on_after_an_error(complaining: list[Report]) -> None:
    for report in complaining:
        assert_equal(report["afterwards"], alone("minmax", "both", 5))


@contextmanager
def group_of_one(folder: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def gathered_alone(name: str, layout: str) -> Outcome:
    model, loss_fn = Encoder(), make_loss(name, layout, gather=True)
    x0, x1 = joint_batch(4)
    loss = loss_fn(model(x0), model(x1), *inputs(model, loss_fn, x0, x1))
    loss.backward()
    return loss.detach(), accumulated(model, loss_fn)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LOSSES)
def test_without_a_group_there_is_nothing_to_gather(name: str, layout: str) -> None:
    assert_equal(gathered_alone(name, layout), alone(name, layout, 4), tolerance=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LOSSES)
def test_in_a_group_of_one_there_is_nothing_to_gather(
    name: str, layout: str, tmp_path: Path
) -> None:
    with group_of_one(tmp_path):
        assert not is_distributed()
        assert_equal(gathered_alone(name, layout), alone(name, layout, 4), tolerance=0)


def test_alone_an_error_is_told_to_nobody(tmp_path: Path) -> None:
    with group_of_one(tmp_path):
        withdraw()
        with pytest.raises(ValueError, match="got"):
            InfoNCELoss(gather=True)(torch.randn(0, 3), torch.randn(0, 3))
