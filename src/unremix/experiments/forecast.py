"""From a few steps to a whole training: memory, time and disk, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor, nn

from unremix.data.quantities import amount, duration
from unremix.frameworks.base import Framework
from unremix.options.config import TrainConfig

WARM_UP = 1  # steps before those that are timed
TIMED = 3


@dataclass(frozen=True)
class Measured:
    """What a few steps showed."""

    seconds: tuple[float, ...]  # of each timed step
    samples: int  # in a step
    scale: float  # how many times larger the whole batch is
    memory: int | None  # bytes of a step of the whole batch, on top of the data, where known
    checkpoint: int  # bytes
    encoder: int  # bytes of the encoder alone
    parameters: Mapping[str, int]  # of the encoder, the head and further parts
    device: str  # what the steps ran on

    @property
    def step_seconds(self) -> float:
        """Of a step of the whole batch: the median, scaled."""
        return median(self.seconds) * self.scale

    @property
    def disk(self) -> int:
        """Bytes of a run's folder: two checkpoints stand until the next is whole."""
        return 3 * self.checkpoint + self.encoder


@dataclass(frozen=True)
class Estimate:
    """What a training run will take."""

    samples: int  # how many there are to train on
    steps_per_epoch: int
    epochs: int  # those that the time allows, if it is limited
    measured: Measured

    @property
    def steps(self) -> int:
        """In all."""
        return self.steps_per_epoch * self.epochs

    @property
    def seconds(self) -> float:
        """Of training, without evaluation."""
        return self.steps * self.measured.step_seconds


def epochs_within(minutes: float | None, epochs: int, epoch_seconds: float) -> int:
    """Epochs of a run that ends with the epoch in which its time is up.

    Example:
        >>> epochs_within(10, 400, 90.0), epochs_within(None, 400, 90.0), epochs_within(10, 5, 90.0)
        (7, 400, 5)
    """
    if minutes is None or epoch_seconds <= 0:
        return epochs
    return min(epochs, math.ceil(60 * minutes / epoch_seconds))


def step_size(batch_size: int, quick: float, few: int, seconds: float) -> int:
    """Samples in the steps to be timed: the whole batch if there is time, else a power of two.

    There has to be time for one timed step, since few large steps say more than many small ones.

    Args:
        batch_size: The whole batch.
        quick: Seconds that a step of few samples took.
        few: How many those were.
        seconds: For all steps that are to be made.

    Example:
        >>> (
        ...     step_size(256, 0.1, 8, 40.0),
        ...     step_size(256, 4.0, 8, 40.0),
        ...     step_size(256, 30.0, 8, 40.0),
        ... )
        (256, 32, 8)
    """
    affordable = seconds / (WARM_UP + 1) * few / max(quick, 1e-9)
    if affordable >= batch_size:
        return batch_size
    return max(few, 1 << int(math.log2(max(1.0, affordable))))


def on_a_line(small: tuple[int, int], large: tuple[int, int], whole: int) -> int:
    """Memory that a step takes, from that of two smaller ones; never less than measured.

    Args:
        small: Samples and bytes of a small step.
        large: Samples and bytes of a larger one.
        whole: Samples of the step in question.

    Example:
        >>> on_a_line((8, 1000), (16, 1400), 256)
        13400
    """
    growth = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return round(max(small[1], large[1]) + growth * (whole - large[0]))


def tensor_bytes(state: Any) -> int:
    """Bytes of all tensors in a state, however it is nested.

    Example:
        >>> import torch
        >>> tensor_bytes({"a": torch.zeros(2, 3), "b": [torch.zeros(1, dtype=torch.long), "c"]})
        32
    """
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(tensor_bytes(part) for part in state.values())
    if isinstance(state, list | tuple):
        return sum(tensor_bytes(part) for part in state)
    return 0


def count_parameters(model: Framework) -> dict[str, int]:
    """How many numbers the encoder, the head and all further parts learn or follow."""

    def count(part: nn.Module | None) -> int:
        return 0 if part is None else sum(p.numel() for p in part.parameters())

    head = getattr(model, "head", None)
    found = {"encoder": count(model.encoder), "head": count(head)}
    return {**found, "further": count(model) - sum(found.values())}


def rows_of(found: Estimate, config: TrainConfig, unit: str) -> list[tuple[str, str]]:
    """An estimate as a table: what, and how much."""
    measured = found.measured
    scaled = f" (scaled from {measured.samples} {unit} a step)" if measured.scale > 1 else ""
    parameters = ", ".join(f"{name} {n:,}" for name, n in measured.parameters.items() if n)
    epochs = f"{found.epochs} epochs"
    if config.max_minutes is not None and found.epochs < config.epochs:
        epochs += f", until {config.max_minutes:g} min are over"
    return [
        (unit, f"{found.samples:,}, {config.batch_size} a step"),
        ("steps per epoch", f"{found.steps_per_epoch:,}"),
        ("steps in all", f"{found.steps:,} ({epochs})"),
        ("parameters", parameters),
        ("memory of a step", amount(measured.memory) + scaled),
        ("checkpoint", amount(measured.checkpoint)),
        ("time of a step", duration(measured.step_seconds) + scaled),
        ("training", duration(found.seconds)),
        ("disk", amount(measured.disk)),
    ]
