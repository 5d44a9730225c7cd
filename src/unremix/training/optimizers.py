"""Optimizers and learning-rate schedules; the rate is a function of the step alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from unremix.domains.options import OptimizerName, TrainConfig
from unremix.files.bounds import shorten

PERIODS = 5  # of a cosine of the temperature, in a training


class LARS(Optimizer):
    """SGD with momentum whose step is scaled, layer by layer, to the size of the weights.

    Vectors (biases and normalization) are neither scaled nor decayed.

    Args:
        parameters: What to optimize.
        lr: Learning rate.
        momentum: Momentum.
        weight_decay: L2 penalty on matrices and filters.
        trust: The step's size relative to the weights'.

    Reference:
        You et al. 2017.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; the closure, if any, computes the loss again."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update: Tensor = parameter.grad
                if parameter.dim() > 1:
                    update = update.add(parameter, alpha=group["weight_decay"])
                    size, slope = parameter.norm(), update.norm()
                    scale = group["trust"] * size / slope
                    update = update * torch.where((size > 0) & (slope > 0), scale, 1.0)
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum: Tensor = state["momentum"]
                momentum.mul_(group["momentum"]).add_(update)
                parameter.add_(momentum, alpha=-group["lr"])
        return loss


def make_optimizer(
    model: nn.Module,
    mix: list[nn.Parameter],
    *,
    name: OptimizerName,
    lr: float,
    weight_decay: float,
    shares: Iterable[tuple[nn.Module, float]] = (),
) -> Optimizer:
    """An optimizer of a model's parameters; the mix, if learned, is not decayed.

    ``mix`` are the loss's own parameters, which the model contains. ``shares`` are layers that get
    a share of the learning rate, which their groups keep as ``share``.
    """
    groups: list[dict[str, Any]] = []
    seen = {id(parameter) for parameter in mix}

    def add(parameters: Iterable[nn.Parameter], **options: float) -> None:
        learned = [p for p in parameters if id(p) not in seen and p.requires_grad]
        seen.update(map(id, learned))
        if learned:
            groups.append({"params": learned, "weight_decay": weight_decay, **options})

    for layer, share in shares:
        add(layer.parameters(recurse=False), share=share)
    add(model.parameters())
    if mix:
        groups.append({"params": mix, "weight_decay": 0.0})
    # Fused, one sweep over all parameters in place of a dozen; on a GPU it is torch's default.
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    fused = True if on_cpu else None
    if name in ("adam", "adamw"):
        return (Adam if name == "adam" else AdamW)(groups, lr=lr, fused=fused)
    if name == "sgd":
        divided = any(isinstance(parameter, DTensor) for parameter in model.parameters())
        return SGD(groups, lr=lr, momentum=0.9, fused=None if divided else fused)
    return LARS(groups, lr)


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Continue from the state of a checkpoint, under the optimizer's own options.

    Args:
        optimizer: As it was made.
        state: What its ``state_dict()`` was.

    Raises:
        TypeError, ValueError, KeyError: If it is that of another optimizer or model. Torch takes it
            all the same, and its fused kernels would read and write beyond the end of tensors.
    """
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    for values in state["state"].values():
        for name, value in values.items():
            if isinstance(value, Tensor) and not value.is_floating_point():  # would be converted
                raise ValueError(f"{name} of {value.dtype}")
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
    kept = {"momentum_buffer"} if isinstance(optimizer, SGD) else {"momentum"}
    if isinstance(optimizer, Adam):  # AdamW is one
        kept = {"step", "exp_avg", "exp_avg_sq"}
    for parameter, values in optimizer.state.items():
        if not isinstance(parameter, Tensor) or set(values) != kept:
            raise ValueError(f"the state of another optimizer: {shorten(values)}")
        for name, value in values.items():
            wanted = torch.Size() if name == "step" else parameter.shape
            if value is None and name == "momentum_buffer":  # of a parameter without gradient
                continue
            whole = isinstance(value, Tensor) and value.layout == torch.strided
            if not whole or value.shape != wanted:
                raise ValueError(f"{name} that does not fit its parameter")
            if name != "step" and not isinstance(parameter, DTensor):
                # A tensor may show a few numbers as many; kernels take all to be there.
                values[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)


def rate_at(step: int, config: TrainConfig, epoch: int) -> float:
    """The learning rate of a step: a linear warm-up, then constant or half a cosine.

    Args:
        step: Which step, from 0.
        config: The full rate, the epochs, those of the warm-up, and what follows it.
        epoch: Steps of an epoch.

    Example:
        >>> config = TrainConfig(lr=1.0, epochs=3, warmup_epochs=1, schedule="cosine")
        >>> [round(rate_at(step, config, 2), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    lr, total, warmup = config.lr, config.epochs * epoch, config.warmup_epochs * epoch
    if step < warmup:
        return lr * (step + 1) / warmup
    if config.schedule == "constant":
        return lr
    done = (step - warmup) / max(1, total - warmup)
    return lr * 0.5 * (1 + math.cos(math.pi * done))


def temperature_at(step: int, *, low: float, high: float, total: int) -> float:
    """τ of a step on a cosine between two bounds, five periods in a training.

    τ(t) = low + (high - low) (1 + cos(2π · 5 t / total)) / 2, so it starts and ends at ``high``.

    Args:
        step: t, from 0.
        low: The least τ.
        high: The largest τ.
        total: Steps in all.

    Example:
        >>> [round(temperature_at(t, low=0.1, high=1.0, total=20), 2) for t in range(5)]
        [1.0, 0.55, 0.1, 0.55, 1.0]

    Reference:
        Kukleva et al. 2023, arXiv 2303.13664: 0.1 to 1.0, periods of 400 of 2,000 epochs.
    """
    return low + (high - low) * (1 + math.cos(2 * math.pi * PERIODS * step / total)) / 2
