"""What a person sees while a run is under way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from unremix.domains import find_domain
from unremix.training.config import TrainConfig

if TYPE_CHECKING:
    from types import TracebackType

    from unremix.training.loop import Training


class Progress:
    """Bars on a terminal, a line per row of metrics elsewhere, nothing if not wanted.

    Args:
        config: The run's options.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.wanted = config.progress
        self.epochs = config.epochs
        self.batch_size = config.batch_size
        self.every = config.log_every
        self.unit = find_domain(config.domain).unit
        self.console = Console(quiet=not config.progress)
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (config.progress and self.console.is_terminal),
        )
        self.task: Any = None
        self.measurements: dict[str, Any] = {}
        self.knn: float | None = None
        self.speed: float | None = None
        self.last = time.perf_counter()

    def __enter__(self) -> Progress:
        self.bars.start()
        self.last = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()
        for task in self.bars.task_ids:  # what the terminal shows stays; the next begin anew
            self.bars.remove_task(task)
        self.task = None
        self.measurements.clear()

    def say(self, message: str) -> None:
        """Show a message, above the bars."""
        self.console.print(message, highlight=False)

    def _numbers(self, loss: float, mix: dict[str, float]) -> str:
        parts = [f"loss {loss:.3f}"]
        if mix:
            parts.append("mix " + "/".join(f"{share:.2f}" for share in mix.values()))
        if self.knn is not None:
            parts.append(f"kNN {self.knn:.1%}")
        if self.speed is not None:
            parts.append(f"{self.speed:,.0f} {self.unit}/s")
        return " · ".join(parts)

    def stepped(self, training: Training, loss: float) -> None:
        """After every step."""
        now = time.perf_counter()
        speed = self.batch_size / max(now - self.last, 1e-9)
        self.speed = speed if self.speed is None else 0.9 * self.speed + 0.1 * speed
        self.last = now
        if not self.wanted or not training.trainer.is_global_zero:
            return
        total = training.config.epochs * training.steps_per_epoch
        if self.task is None:
            self.task = self.bars.add_task(
                "training", total=total, completed=training.step, numbers=""
            )
        mix = training.model.mix
        epoch = (training.step - 1) // training.steps_per_epoch + 1
        self.bars.update(
            self.task,
            description=f"epoch {epoch}/{self.epochs}",
            completed=training.step,
            numbers=self._numbers(loss, mix),
        )
        within = training.step % training.steps_per_epoch
        if not self.console.is_terminal and self.every and within and within % self.every == 0:
            self.say(f"step {training.step}/{total} · {self._numbers(loss, mix)}")

    def measured(self, what: str, done: int, total: int) -> None:
        """While an encoder is measured."""
        if what not in self.measurements:
            self.measurements[what] = self.bars.add_task(what, total=total, numbers="")
        self.bars.update(self.measurements[what], completed=done)

    def epoch_ended(self, training: Training, row: dict[str, float]) -> None:
        """After every epoch."""
        self.knn = row.get("knn", self.knn)
        self.last = time.perf_counter()
        if not self.wanted or not training.trainer.is_global_zero or self.console.is_terminal:
            return
        mix = training.model.mix
        self.say(f"epoch {int(row['epoch'])}/{self.epochs} · {self._numbers(row['loss'], mix)}")
