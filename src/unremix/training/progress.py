"""What a run shows while it trains."""

from __future__ import annotations

import time
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from rich import progress as rich
from rich.console import Console

from unremix.console.printing import say
from unremix.console.progress import SILENCE, times
from unremix.console.quantities import counted, roughly
from unremix.core.engines import find_engine
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.evaluation.verdict import FEW_SAMPLES
from unremix.losses import TwoViewLoss

if TYPE_CHECKING:
    from unremix.training.loop import Training

EARLY = 4  # steps after which the rest is forecast; the first is slower than the others
PATIENCE = 20.0  # seconds after which fewer steps have to do
WORTH_SAYING = 60.0  # seconds; of less, the lines of the epochs say enough
SLOW = 3600.0  # seconds on a CPU from which faster settings are named


def ready_hint(config: TrainConfig, count: int) -> str:
    """A hint that a ready encoder is usually far better, with the commands that use one here.

    Args:
        config: Options of a run from random weights.
        count: Samples to train on.

    Returns:
        The hint; empty where there is no ready encoder of this kind of data.
    """
    domain = find_domain(config.domain)
    if domain.at_hand is None or config.starts or config.data in domain.embedded:
        return ""
    encoder, brings = domain.at_hand()
    first, data = f"\n  {brings}" if brings else "", quote(config.data)
    return (
        f"{count:,} {domain.unit} and random weights: a ready encoder is usually far better than "
        f"what can be learned here. To look at them with one, and to start from it:{first}\n"
        f"  unremix explore {data} --encoder {encoder}\n"
        f"  unremix train --data {data} --encoder {encoder}"
    )


def start_in_words(config: TrainConfig) -> str:
    """How a run that starts from an encoder adapts it.

    Example:
        >>> start_in_words(TrainConfig(encoder="timm:resnet18", lr=0.01))
        "starts from timm:resnet18 and adapts it: lr 0.01, of which the encoder's last layer ..."
    """
    source = config.encoder or find_domain(config.domain).starts_from(config)
    least = f"ends when less than {config.least_kept or 0:.0%} of neighbors are kept"
    parts = [
        f"lr {config.lr:g}, of which the encoder's last layer gets {config.encoder_rate:g} and its "
        f"first {config.encoder_rate * config.layer_decay:g}",
        f"{counted(config.warmup_epochs, 'epoch')} of warm-up" if config.warmup_epochs else "",
        f"then a {config.schedule} schedule" if config.schedule != "constant" else "",
        "BatchNorm keeps its statistics" if config.freeze_statistics else "",
        f"the first {config.freeze:.0%} of layers are frozen" if config.freeze else "",
        least if config.least_kept else "",
        f"keeps the {config.keep}",
    ]
    return f"starts from {source} and adapts it: {'; '.join(filter(None, parts))}"


class Progress:
    """A line per epoch, and a bar on a terminal or a line every 30 seconds elsewhere."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.unit = config, find_domain(config.domain).unit
        self.console = Console(quiet=not config.progress)
        self.bars = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(bar_width=None),
            rich.MofNCompleteColumn(),
            "{task.fields[numbers]}",
            *times(),
            console=self.console,
            disable=not (config.progress and self.console.is_terminal),
        )
        self.tasks: dict[str, Any] = {}
        self.speed: float | None = None
        self.took: list[float] | None = []  # the first steps, until the rest is forecast
        self.last = self.said = time.perf_counter()

    def __enter__(self) -> Progress:
        self.bars.start()
        self.last = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        for task in self.bars.task_ids:  # what the terminal shows stays; the next start fresh
            self.bars.remove_task(task)
        self.tasks.clear()

    def say(self, message: str) -> None:
        """Show a message, above the bars."""
        self.said = time.perf_counter()
        say(self.console, message)

    def measured(self, what: str, done: int, total: int, numbers: str = "") -> None:
        """Move a bar; elsewhere than on a terminal, break a long silence."""
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total, numbers="")
        self.bars.update(self.tasks[what], completed=done, numbers=numbers)
        if not self.console.is_terminal and time.perf_counter() - self.said >= SILENCE:
            self.say(f"{what} {done}/{total}{numbers and f' · {numbers}'}")

    def _left(self, training: Training) -> list[str]:
        """How long the remaining steps take, evaluation aside."""
        if self.speed is None or training.step == training.total or training.stopped:
            return []
        seconds = self.seconds_left(training, self.config.batch_size / self.speed)
        return [f"about {roughly(seconds)} left"]

    @staticmethod
    def seconds_left(training: Training, step: float) -> float:
        """Seconds that the remaining steps take at this many per step, within max_minutes."""
        left, minutes = (training.total - training.step) * step, training.config.max_minutes
        return left if minutes is None else max(0.0, min(left, 60 * minutes - training.seconds))

    def _forecast(self, training: Training, seconds: float) -> None:
        """Once, after the first steps: how long the rest takes, and what is faster."""
        if self.took is None:
            return
        self.took.append(seconds)
        timed = self.took[1:]
        if len(timed) < EARLY - 1 and sum(timed) < PATIENCE:
            return
        self.took = None
        config = training.config
        left = self.seconds_left(training, median(timed))
        if left < WORTH_SAYING:
            return
        said = f"training takes about {roughly(left)} more, evaluation not included"
        if left >= SLOW and training.fabric.device.type == "cpu":
            options = find_domain(config.domain).faster(config, training.run.shape)
            said += f"; faster on a CPU: {' '.join(options) or 'fewer --epochs'}. "
            said += "--dry_run estimates the time of other options"
        self.say(said)

    def opened(self, training: Training) -> None:
        """Before the first step: data, encoder, machine and engine."""
        run, data, config, model = training.run, training.data, training.config, training.model
        train, test = getattr(data, "train", data), getattr(data, "test", None)
        classes = getattr(train, "classes", None) or getattr(train, "topics", None)
        count, processes = training.domain.size(data), training.fabric.world_size
        parts = [f"{count:,} {self.unit}"]
        parts += [f"{len(classes)} classes"] if classes else []
        parts += ["no test split" if test is None else f"{len(test):,} more to test on"]
        if training.prepared.said:
            self.say(training.prepared.said)
        self.say(f"{config.composed_name} on {data.name}: {', '.join(parts)}")
        parameters = list(model.encoder.parameters())
        where = [str(training.fabric.device), counted(torch.get_num_threads(), "thread")]
        where += [f"{processes} processes"] if processes > 1 else []
        where += [config.precision]
        if isinstance(loss := getattr(model, "loss", None), TwoViewLoss):
            where.append(f"{find_engine(loss.options, parameters[0]).name} engine")
        encoder = training.domain.describe(config, run.shape)
        size = sum(parameter.numel() for parameter in parameters)
        self.say(f"{encoder}, {size:,} parameters; {', '.join(where)}")
        if config.starts:
            self.say(start_in_words(config))
        elif count < FEW_SAMPLES and not training.step and (hint := ready_hint(config, count)):
            self.say(hint)
        if training.step:
            self.say(f"{run.path} resumes at step {training.step} of {training.total}")

    def stepped(self, training: Training, loss: float) -> None:
        """After every step."""
        now = time.perf_counter()
        seconds, self.last = max(now - self.last, 1e-9), now
        speed = self.config.batch_size / seconds
        self.speed = speed if self.speed is None else 0.9 * self.speed + 0.1 * speed
        if not training.fabric.is_global_zero:
            return
        self._forecast(training, seconds)
        numbers = f"loss {loss:.3f} · {self.speed:,.0f} {self.unit}/s"
        within, every = training.step % training.steps_per_epoch, self.config.log_every
        if not self.console.is_terminal and every and within and within % every == 0:
            parts = [f"step {training.step}/{training.total}", numbers, *self._left(training)]
            self.say(" · ".join(parts))
        self.measured("step", training.step, training.total, numbers)

    def epoch_ended(self, training: Training, row: dict[str, float]) -> None:
        """After every epoch: what was measured in it."""
        self.last = time.perf_counter()
        if not training.fabric.is_global_zero:
            return
        parts = ["as it came"]
        if "loss" in row:
            parts = [f"epoch {int(row['epoch'])}/{self.config.epochs}", f"loss {row['loss']:.3f}"]
        parts += [f"kNN {row['knn']:.1%}"] if "knn" in row else []
        if {"loss", "neighbors_kept"} <= row.keys():
            parts.append(f"{row['neighbors_kept']:.0%} of neighbors kept")
        parts += [f"{self.speed:,.0f} {self.unit}/s"] if self.speed is not None else []
        mix = ", ".join(
            f"{name.removeprefix('mix_')} {share:.2f}"
            for name, share in row.items()
            if name.startswith("mix_")
        )
        parts += [f"mix: {mix}"] if mix else []
        parts += self._left(training)
        self.say(" · ".join(parts))
