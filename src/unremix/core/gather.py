"""Negatives across processes, with the gradient of one process that holds the joint batch.

Each process owns its anchors and sees everyone's candidates. Its loss is W times its share of the
joint mean (W processes), and what others derived for its candidates comes back summed; averaging
gradients over processes, as DistributedDataParallel does, then gives the joint gradient exactly,
also when the processes hold different numbers of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from unremix.core.views import Views, map_tensors

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class JointBatch:
    """The batch that all processes hold together, and which part of it is held here.

    Args:
        sizes: Samples held by each process, in the order of their ranks.
        rank: Which of them this is.
    """

    sizes: tuple[int, ...]
    rank: int

    @property
    def offset(self) -> int:
        """Samples held by the processes before this one."""
        return sum(self.sizes[: self.rank])

    @property
    def total(self) -> int:
        """Samples held by all."""
        return sum(self.sizes)

    @property
    def processes(self) -> int:
        """How many processes there are."""
        return len(self.sizes)

    @property
    def here(self) -> slice:
        """Which of all samples this process holds."""
        return slice(self.offset, self.offset + self.sizes[self.rank])

    def divided(self, count: int) -> JointBatch:
        """The same processes with ``count`` things divided evenly among them.

        Example:
            >>> JointBatch((4, 2), rank=1).divided(5)
            JointBatch(sizes=(3, 2), rank=1)
        """
        pieces = torch.empty(count).tensor_split(self.processes)
        return JointBatch(tuple(len(piece) for piece in pieces), self.rank)


def is_distributed() -> bool:
    """Whether a process group of more than one process is running."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def find_joint_batch(
    rows: Tensor,
    inputs: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    equal: bool = False,
) -> JointBatch:
    """Tell every process how many samples each holds, without waiting for an accelerator.

    Args:
        rows: One of each sample held here, such as its embedding, shape (n, D). D and the dtype
            must be the same everywhere.
        inputs: The last layer's inputs, shape (n, H), where they are known; H likewise.
        labels: The classes, shape (n,), where they are used: in all processes or in none.
        equal: Whether all are known to hold as many: then nothing is exchanged, or checked.

    Raises:
        ValueError: In every process, if one holds no sample, the widths or dtypes differ, or only
            some have labels.
    """
    if equal:
        return JointBatch((len(rows),) * dist.get_world_size(), dist.get_rank())
    kind = DTYPES.index(rows.dtype) if rows.dtype in DTYPES else len(DTYPES)
    input_width = 0 if inputs is None else inputs.shape[1]
    known = int(labels is not None)
    sizes, widths, input_widths, kinds, labeled = _exchange([*rows.shape, input_width, kind, known])
    if min(sizes) == 0:
        raise ValueError(
            f"expected samples in every process, got {sizes}; drop the last, incomplete batch, or "
            "read the error of the process without samples"
        )
    dtypes = [(*DTYPES, "another")[kind] for kind in kinds]
    for what, found, remedy in (
        ("embeddings of one width in every process", widths, "build the same model in all"),
        ("inputs h of one width in every process", input_widths, "pass them in all (0: none)"),
        ("embeddings of one dtype in every process", dtypes, "use the same precision in all"),
        ("labels in every process (1) or in none", labeled, "pass -1 for samples without"),
    ):
        if len(set(found)) > 1:
            raise ValueError(f"expected {what}, got {', '.join(map(str, found))}; {remedy}")
    return JointBatch(tuple(sizes), dist.get_rank())


@torch.no_grad()
def mean_count(count: Tensor, joint: JointBatch | None) -> Tensor:
    """A count, a scalar: here, or the mean over processes; at least 1 in all."""
    if joint is None or joint.processes == 1:
        return count.clamp(min=1)
    total = count.clone()
    dist.all_reduce(total)
    return total.clamp(min=1) / joint.processes


def withdraw() -> None:
    """Tell the processes that wait in :func:`find_joint_batch` that this one has nothing to share.

    Call it before raising an error that only this process has; the others, which would wait
    forever, then raise one too.
    """
    if is_distributed():
        _exchange([0, 0, 0, 0, 0])


_cpu_groups: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by default group


def _cpu_group() -> Any:
    """A group that communicates through the CPU: reading its results waits for no accelerator."""
    default = dist.group.WORLD
    if dist.get_backend() == "gloo" or not dist.is_gloo_available():
        return default
    if default not in _cpu_groups:
        _cpu_groups[default] = dist.new_group(backend="gloo")
    return _cpu_groups[default]


def _exchange(numbers: list[int]) -> list[list[int]]:
    """Each number as held by all processes, in the order of their ranks."""
    group = _cpu_group()
    on_cpu = dist.get_backend(group) == "gloo"
    here = torch.tensor(numbers, device="cpu" if on_cpu else "cuda")
    everyone = [torch.empty_like(here) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, here, group=group)
    return cast(list[list[int]], torch.stack(everyone, dim=1).tolist())


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, joint: JointBatch) -> Tensor:
        ctx.joint = joint
        largest = max(joint.sizes)
        padded = rows.new_zeros(largest, *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        everyone = [torch.empty_like(padded) for _ in joint.sizes]
        dist.all_gather(everyone, padded)
        return torch.cat([one[:size] for one, size in zip(everyone, joint.sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        joint: JointBatch = ctx.joint
        incoming = incoming.contiguous().clone()
        dist.all_reduce(incoming)
        return incoming[joint.here], None


def gather_rows(rows: Tensor, joint: JointBatch) -> Tensor:
    """The rows of all processes, in the order of their ranks.

    Gradient flows: a row's gradient is the sum of what all processes derived for it.

    Args:
        rows: Shape (n, ...), n as in ``part``.
        joint: From :func:`find_joint_batch`.

    Returns:
        Shape (total, ...).
    """
    if rows.dtype == torch.bool:  # which not every backend sends
        return gather_rows(rows.to(torch.uint8), joint).bool()
    gathered: Tensor = _GatherRows.apply(rows, joint)  # type: ignore[no-untyped-call]
    return gathered


def gather_views(views: Views, joint: JointBatch) -> Views:
    """The views of all processes; gradient flows to the embeddings."""
    return map_tensors(lambda rows: gather_rows(rows, joint), views)


@torch.no_grad()
def exchange_rows(rows: Tensor, sources: Tensor, joint: JointBatch) -> Tensor:
    """This process's part of the joint batch in another order; each row travels once.

    Row i of the joint result is row ``sources[i]`` of the joint batch. No gradient flows.

    Args:
        rows: Shape (n, ...), n as in ``part``.
        sources: The order, int64, shape (total,), on the CPU, the same in all processes.
        joint: From :func:`find_joint_batch`.

    Returns:
        Shape (n, ...).
    """
    owner = torch.arange(joint.processes).repeat_interleave(torch.tensor(joint.sizes))  # (total,)
    wanted = sources.split(joint.sizes)
    sent = [each[owner[each] == joint.rank] - joint.offset for each in wanted]
    senders = owner[wanted[joint.rank]]  # (n,)
    order = senders.argsort(stable=True)  # received first from the first process
    received = rows.new_empty(rows.shape)
    dist.all_to_all_single(
        received,
        rows[torch.cat(sent).to(rows.device)].contiguous(),
        senders.bincount(minlength=joint.processes).tolist(),
        [len(each) for each in sent],
    )
    return received[order.argsort().to(rows.device)]


class _MeanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Tensor:
        incoming = incoming.contiguous().clone()
        dist.all_reduce(incoming)
        return incoming / dist.get_world_size()


def mean_gradient(value: Tensor) -> Tensor:
    """The value itself; its gradient is the mean over all processes.

    For a parameter that every process holds, such as the mix: it stays equal everywhere whether or
    not DistributedDataParallel averages it once more.
    """
    same: Tensor = _MeanGradient.apply(value)  # type: ignore[no-untyped-call]
    return same
