"""Which samples a step uses: a function of the seed and the step alone."""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 2**63 - 1


def scramble(*numbers: int) -> int:
    """One seed made of several numbers."""
    state = 0x243F6A8885A308D3
    for number in numbers:
        state = ((state ^ (number & MASK)) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & MASK
        state ^= state >> 29
    return state


def permuted(count: int, batch_size: int, seed: int, step: int, steps: int | None = None) -> Tensor:
    """Which of ``count`` samples a step uses, shape (batch_size,): a fresh order every epoch.

    What is left over at an epoch's end, less than a batch, is left out, unless ``steps`` says that
    there is one more step.

    Args:
        count: Samples.
        batch_size: Samples per step.
        seed: Of the run.
        step: Counted from 0 over all epochs.
        steps: Steps per epoch; as many as there are whole batches by default.
    """
    epoch, within = divmod(step, count // batch_size if steps is None else steps)
    generator = torch.Generator().manual_seed(scramble(seed, epoch))
    order = torch.randperm(count, generator=generator)
    return order[within * batch_size : (within + 1) * batch_size]
