"""Where the time of a training goes: seconds by stage, and a trace of a few steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STAGES = ("reading", "views", "encoder", "loss", "backward", "optimizer", "measuring", "saving")
TRACED = {"wait": 1, "warmup": 1, "active": 3}  # steps: the first ones are slower than the others

Item = TypeVar("Item")


class Profile:
    """Seconds of each stage; those of a stage within another one count for the inner one alone.

    Args:
        encoder: Whose forward passes are a stage.
        device: A GPU is waited for at both ends of a stage, so a profiled run is a little slower.
        trace: The file that the traced steps go to, for chrome://tracing or Perfetto.
    """

    def __init__(self, encoder: nn.Module, device: torch.device, trace: Path) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.steps, self.device, self.trace = 0, device, trace
        self.stages: list[str] = []
        self.since = time.perf_counter()
        cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=schedule(**TRACED, repeat=1),
            on_trace_ready=lambda traced: traced.export_chrome_trace(str(trace)),
        )
        self.profiler.start()
        self.hooks = (
            encoder.register_forward_pre_hook(lambda *_: self._enter("encoder")),
            encoder.register_forward_hook(lambda *_: self._leave(), always_call=True),
        )

    def _enter(self, stage: str) -> None:
        self._count()
        self.stages.append("measuring" if "measuring" in self.stages else stage)

    def _leave(self) -> None:
        self._count()
        self.stages.pop()

    def _count(self) -> None:
        """The time since the last change counts for the stage that it was spent in."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self.stages:
            self.seconds[self.stages[-1]] += now - self.since
        self.since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is done within belongs to a stage."""
        with record_function(name):
            self._enter(name)
            try:
                yield
            finally:
                self._leave()

    def reading(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Batches, waiting for which is a stage; between them the traced steps begin and end."""
        arriving = iter(batches)
        while True:
            with self.stage("reading"):
                batch = next(arriving, None)
            if batch is None:
                return
            yield batch
            self.steps += 1
            self.profiler.step()

    def close(self) -> None:
        """Write what is being traced, and leave the encoder alone."""
        self.profiler.stop()
        for hook in self.hooks:
            hook.remove()

    def lines(self) -> list[str]:
        """A table: each stage's seconds, share and milliseconds per step."""
        whole, steps = sum(self.seconds.values()), max(1, self.steps)
        rows: list[tuple[Any, ...]] = [("stage", "seconds", "share", "ms a step")]
        for stage, spent in self.seconds.items():
            share = spent / whole if whole else 0.0
            rows.append((stage, f"{spent:.1f}", f"{share:.1%}", f"{1000 * spent / steps:.1f}"))
        rows.append(("in all", f"{whole:.1f}", "100.0%", f"{1000 * whole / steps:.1f}"))
        return [f"{name:<10}{a:>9}{b:>8}{c:>11}" for name, a, b, c in rows]
