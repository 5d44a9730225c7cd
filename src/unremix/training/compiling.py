"""``--compile``: the encoder as compiled code, within training steps alone.

Whether it is compiled is settled before the first step and recorded, since the last bits of a run
depend on it. Outside of training steps, and in copies, the encoder is as it was.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from math import isclose
from statistics import median

import torch
from torch import nn

from unremix.console.printing import one_line
from unremix.console.quantities import roughly
from unremix.core.engines.compiled import ISOLATED, keep_code_private
from unremix.frameworks.base import Framework

FEWEST = 400  # steps from which auto tries; in shorter runs, trying would cost a share
LONG = 1200.0  # seconds that they have to take: far longer than compiling
FASTER = 0.95  # share of the time of a step that the compiled code may take
REPEATS = 3  # timed steps, after one that is not
TOLERANCE = 1e-2  # relative difference of the losses, in 16 bits as well

Step = Callable[[Framework], float]  # forward and backward pass of a batch; gives the loss


class Compiled:
    """The forward pass of an encoder, compiled where it is first called.

    Shapes are fixed and random numbers are eager's, so that the code does not depend on what this
    process compiled before.
    """

    def __init__(self, encoder: nn.Module) -> None:
        keep_code_private()
        self.encoder = encoder
        self.forward = torch.compile(
            encoder.forward, dynamic=False, options={"fallback_random": True}, **ISOLATED
        )

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the encoder use it within."""
        self.encoder.forward = self.forward
        try:
            yield
        finally:
            del self.encoder.forward  # that of its class is left


def _seconds(step: Step, model: Framework) -> float:
    """How long a step takes."""
    return median(timeit.repeat(lambda: step(model), repeat=REPEATS, number=1))


def settle(
    model: Framework, step: Step, *, anyway: bool, forecast: Callable[[float], float]
) -> tuple[Compiled | None, str]:
    """Rehearse a step with copies of a model, as it is and compiled.

    Args:
        model: The model, which is left as it is.
        step: A step without the optimizer.
        anyway: Whether to compile however short the run is and however little it gains.
        forecast: Seconds that the run takes, given those of a step.

    Returns:
        What to train with, None for the encoder as it is; and a line to show, perhaps empty.
    """
    copy = deepcopy(model)
    expected = step(copy)
    eager = 0.0 if anyway else _seconds(step, copy)
    if not anyway and forecast(eager) < LONG:
        return None, ""
    compiled, before = Compiled(copy.encoder), time.perf_counter()
    try:
        with compiled.in_place():
            found = step(copy)
            took = time.perf_counter() - before
            faster = anyway or _seconds(step, copy) <= FASTER * eager
    except Exception as error:  # whatever a compiler may raise
        why = one_line(str(error))[:200] or type(error).__name__
        return None, f"trains without --compile, which failed here: {why}"
    if not isclose(found, expected, rel_tol=TOLERANCE):
        why = f"expected the loss {expected:.4g}, got {found:.4g}"
        return None, f"trains without --compile, whose code is wrong here: {why}"
    if not faster:
        return None, f"trains without --compile, which is no faster here (tried for {took:.0f} s)"
    return Compiled(model.encoder), f"the encoder is compiled, which took {roughly(took)}"
