"""FSDP2: parameters, gradients and optimizer state divided among processes.

Each process keeps a part of every parameter. The parameters of a block are gathered when the block
is used, and let go afterwards. Checkpoints hold whole tensors, so a run may be resumed by any
number of processes, divided or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Parts of a model whose parameters are gathered together: those that stand in a row.

    Example:
        >>> block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model = nn.Sequential(block, nn.Sequential(nn.ReLU()), nn.Linear(2, 1))
        >>> list(blocks(model)) == [block]
        True
    """
    for row in model.modules():
        if isinstance(row, nn.Sequential | nn.ModuleList):
            yield from (p for p in row if _some(p.children()) and _some(p.parameters()))


def _some(items: Iterator[object]) -> bool:
    return next(items, None) is not None


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divide a model's parameters among the processes, block by block; the rest as one block."""
    processes = mesh["data_parallel"]
    # It takes no parameters with channels last.
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for block in reversed(list(blocks(model))):  # the innermost first
        fully_shard(block, mesh=processes)
    fully_shard(model, mesh=processes)
    return model


def is_divided(model: nn.Module) -> bool:
    """Whether a model's parameters are divided among processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def gathered(state: Any) -> Any:
    """A nested state dict with whole tensors in place of parts; all processes ask together."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    return [gathered(value) for value in state] if isinstance(state, list) else state


def divide(optimizer: Optimizer) -> None:
    """Divide the state of an optimizer, which holds whole tensors, as its parameters are."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, DTensor):
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[name] = distribute_tensor(
                        value, parameter.device_mesh, parameter.placements
                    )
