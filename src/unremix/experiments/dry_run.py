"""The dry run: a few real steps, and what they say about the whole training. Nothing is written.

It measures the time of a step, the memory it takes and the size of a checkpoint. If a step of the
whole batch would take too long, a smaller one is measured and scaled, and the table says so. The
estimate includes neither the evaluation nor the reading of missing data.
"""

from __future__ import annotations

import ctypes
import gc
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from unremix.console.quantities import amount, counted, duration
from unremix.domains import Domain, find_domain
from unremix.domains.options import TrainConfig
from unremix.experiments import tables
from unremix.experiments.executors import Local
from unremix.experiments.plan import Plan
from unremix.frameworks.base import Framework
from unremix.frameworks.queue import Queue
from unremix.recipes import sections
from unremix.training.building import settled
from unremix.training.finding import ready_encoder
from unremix.training.loop import Training, fit
from unremix.training.preparation import Prepared, fit_to, started
from unremix.training.progress import Progress, ready_hint
from unremix.training.run import Run

TIMED = 3  # steps, after one that warms up
SECONDS = 30.0  # for all steps, about: a minute with what comes before and between them
FEW = 8  # samples of the first timed steps, which show how large a step fits into the time
OF_A_COMPARISON = ("steps in all", "memory of a step", "checkpoint", "time of a step", "training")


@dataclass(frozen=True)
class Estimate:
    """What a training run will take, from a few of its steps."""

    samples: int  # how many there are to train on
    steps_per_epoch: int
    epochs: int  # those that the time allows, if it is limited
    step_samples: int  # in a timed step
    step_seconds: float  # of a step of the whole batch: the median, scaled
    timed: int  # steps
    scale: float  # how many times larger the whole batch is than that of a timed step
    memory: int | None  # bytes of a step of the whole batch, on top of the data, where known
    checkpoint: int  # bytes
    encoder: int  # bytes of the encoder alone
    parameters: Mapping[str, int]  # of the encoder, the head and further parts
    device: str  # what the steps ran on

    @property
    def steps(self) -> int:
        """In all."""
        return self.steps_per_epoch * self.epochs

    @property
    def seconds(self) -> float:
        """Of training, without evaluation."""
        return self.steps * self.step_seconds

    @property
    def disk(self) -> int:
        """Bytes of a run's folder: two checkpoints stand until the next is whole."""
        return 3 * self.checkpoint + self.encoder


def epochs_within(minutes: float | None, epochs: int, epoch_seconds: float) -> int:
    """Epochs of a run that ends with the epoch in which its time is up.

    Example:
        >>> epochs_within(10, 400, 90.0), epochs_within(None, 400, 90.0), epochs_within(10, 5, 90.0)
        (7, 400, 5)
    """
    if minutes is None or epoch_seconds <= 0:
        return epochs
    return min(epochs, math.ceil(60 * minutes / epoch_seconds))


def tensor_bytes(state: Any) -> int:
    """Bytes of all tensors in a state, however it is nested.

    Example:
        >>> tensor_bytes({"a": torch.zeros(2, 3), "b": [torch.zeros(1, dtype=torch.long), "c"]})
        32
    """
    if isinstance(state, Tensor):
        return state.nbytes
    parts = state.values() if isinstance(state, Mapping) else state
    return sum(map(tensor_bytes, parts)) if isinstance(state, Mapping | list | tuple) else 0


def count_parameters(model: Framework) -> dict[str, int]:
    """How many numbers the encoder, the head and all further parts learn or follow."""
    parts = (model, model.encoder, getattr(model, "head", None) or nn.Identity())
    whole, encoder, head = (sum(p.numel() for p in part.parameters()) for part in parts)
    return {"encoder": encoder, "head": head, "further": whole - encoder - head}


class Enough(Exception):
    """Ends a training once enough steps are made."""


class Stopwatch(Progress):
    """Times steps where others show progress, and ends the training after a few of an epoch.

    Args:
        config: The run's options.
        seconds: Time limit: stop after one timed step if the next would exceed it.
    """

    def __init__(self, config: TrainConfig, seconds: float = math.inf) -> None:
        super().__init__(replace(config, progress=False))
        self.limit = seconds
        self.times: list[float] = []
        self.facts: dict[str, Any] = {}  # about the model, once all steps are made
        self.peak: int | None = None  # most bytes in use, above those before there was a model

    def __enter__(self) -> Stopwatch:
        super().__enter__()
        self.times = [time.perf_counter()]
        return self

    def stepped(self, training: Training, loss: float) -> None:
        """Note the time; after the first step, fill the queue, as it will be most of the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        late = self.total + self.seconds[-1] > self.limit
        if len(self.times) > min(2 if late else 1 + TIMED, training.steps_per_epoch):
            state = training.optimizer.state_dict()["state"]
            self.facts = {
                "checkpoint": tensor_bytes([training.model.state_dict(), state]),
                "encoder": tensor_bytes(training.model.encoder.state_dict()),
                "parameters": count_parameters(training.model),
                "device": training.fabric.device.type,
            }
            raise Enough
        if len(self.times) == 2:
            _fill_queue(training.model)
            self.times[-1] = time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds of all steps, the first one included."""
        return self.times[-1] - self.times[0]

    @property
    def seconds(self) -> list[float]:
        """Of each step; the first one, which warms up, is left out if there are others."""
        took = [after - before for before, after in pairwise(self.times)]
        return took[1:] or took


@torch.no_grad()
def _fill_queue(model: Framework) -> None:
    memory = getattr(model, "memory", None)
    if isinstance(memory, Queue):
        keys = [torch.randn_like(rows) for rows in (memory.embeddings, memory.inputs)]
        memory.add(keys[0], keys[1], torch.full_like(memory.sample_ids, -1))


def _status(name: str) -> int | None:
    """Bytes that Linux names for this process; None elsewhere."""
    with suppress(OSError):
        if line := re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return int(line[1]) * 1024
    return None


def memory_in_use() -> int | None:
    """Bytes that this process holds in memory; resets its peak. None if unknown."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc keeps what was freed unless told otherwise
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # else the peak of the whole process counts: too much, not too little
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory(device: str, before: int | None) -> int | None:
    """The peak since :func:`memory_in_use`, in bytes above ``before``; None if unknown."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = _status("VmHWM")
    return None if peak is None or before is None else max(0, peak - before)


def _measuring(config: TrainConfig) -> TrainConfig:
    """The options for a few steps in one process, with everything on that costs time."""
    # A warm-up of further negatives would hide what they cost.
    cold: dict[str, Any] = {
        name: replace(getattr(config, name), warmup_epochs=0)
        for name in sections()
        if getattr(getattr(config, name), "warmup_epochs", None) is not None
    }
    return replace(
        config, epochs=1, warmup_epochs=0, max_minutes=None, devices=1, num_nodes=1, **cold,
        sync_batchnorm=False, checkpoint_every=None, loggers=(), progress=False, resume=None,
        compile=False,  # seconds of compiling, for a few steps
    )  # fmt: skip


def time_steps(config: TrainConfig, data: Any, shape: Any, size: int, seconds: float) -> Stopwatch:
    """Make a few steps of ``size`` samples; of a run in chunks, at least two chunks."""
    chunk = config.chunk
    if chunk is not None:
        chunk = None if chunk >= config.batch_size else min(chunk, max(2, size // 2))
    small = replace(_measuring(config), batch_size=size, chunk=chunk)
    run = Run.unwritten(Path(config.runs) / "dry-run", small, shape)
    watch, before = Stopwatch(small, seconds), memory_in_use()
    with suppress(Enough):
        fit(Prepared(run, small, data, None), lambda *_: {}, watch)
    watch.peak = peak_memory(watch.facts["device"], before)
    return watch


def load_or_imagine(domain: Domain, config: TrainConfig) -> tuple[Any, bool]:
    """The data; or random ones in their place, if they are a shipped setting's and not there.

    Returns:
        The data, and whether they are real.

    Raises:
        FileNotFoundError: For other data that do not exist.
    """
    try:
        return domain.load(config), True
    except FileNotFoundError:
        imagined = domain.imagine(config)
        if imagined is None:
            raise
        return imagined, False


def estimate(
    config: TrainConfig,
    data: Any | None = None,
    shape: Any | None = None,
    *,
    seconds: float = SECONDS,
) -> Estimate:
    """What a training run will take, from a few of its steps.

    Steps of a few samples are timed first. If two steps of the whole batch fit into the time, these
    are timed next; if not, steps as large as fit, and time and memory are scaled.

    Args:
        config: The run's options.
        data: Its data; loaded by default.
        shape: Of the encoder that it starts from; by default what the data decide.
        seconds: How long the steps may take, about.

    Raises:
        ValueError: For options or data that cannot be trained.
    """
    if config.epochs < 1:
        raise ValueError("expected at least 1 epoch to estimate, got 0")
    domain = find_domain(config.domain)
    domain.check(config)
    if data is None:
        data = load_or_imagine(domain, config)[0]
    config = settled(fit_to(domain, data, config))
    shape = domain.shape(data, config) if shape is None else shape
    whole = config.batch_size
    few = size = min(FEW, whole)
    watch = time_steps(config, data, shape, few, seconds / 4)
    left = seconds - watch.total
    affordable = affordable_samples(min(watch.seconds) / few, left)
    if whole > few and affordable > few:
        size = min(whole, affordable)
        watch = time_steps(config, data, shape, size, left)
    scale, steps = whole / size, domain.steps(data, config)
    step_seconds = median(watch.seconds) * scale
    chunked = config.chunk is not None and config.chunk < whole  # as much memory as a chunk takes
    return Estimate(
        samples=domain.size(data),
        steps_per_epoch=steps,
        epochs=epochs_within(config.max_minutes, config.epochs, steps * step_seconds),
        step_samples=size,
        step_seconds=step_seconds,
        timed=len(watch.seconds),
        scale=scale,
        memory=watch.peak and round(watch.peak * (1 if chunked else scale)),
        **watch.facts,
    )


def affordable_samples(sample_seconds: float, seconds: float) -> int:
    """Samples of a step that can be made twice: once to warm up, once to be timed.

    Example:
        >>> affordable_samples(0.5, 40.0)
        40
    """
    return int(seconds / 2 / max(sample_seconds, 1e-12))


def rows_of(cost: Estimate, config: TrainConfig, unit: str) -> dict[str, str]:
    """An estimate as a table: what, and how much."""
    scaled = f" (scaled from {cost.step_samples} {unit} a step)" if cost.scale > 1 else ""
    limited = config.max_minutes is not None and cost.epochs < config.epochs
    until = f", until {config.max_minutes:g} min are over" if limited else ""
    return {
        unit: f"{cost.samples:,}, {config.batch_size} a step",
        "steps per epoch": f"{cost.steps_per_epoch:,}",
        "steps in all": f"{cost.steps:,} ({counted(cost.epochs, 'epoch')}{until})",
        "parameters": ", ".join(f"{name} {n:,}" for name, n in cost.parameters.items() if n),
        "memory of a step": amount(cost.memory) + scaled,
        "checkpoint": amount(cost.checkpoint),
        "time of a step": duration(cost.step_seconds) + scaled,
        "training": duration(cost.seconds),
        "disk": amount(cost.disk),
    }


def _notes(data_are_real: bool, config: TrainConfig, estimates: Sequence[Estimate]) -> list[str]:
    """What a reader of the table has to know."""
    where = " and ".join(sorted({one.device for one in estimates}))
    if where == "cpu":
        where += f", {counted(config.threads or torch.get_num_threads(), 'thread')}"
    timed = counted(min(one.timed for one in estimates), "step")
    notes = [
        f"Measured on {where}, one process: the median of {timed}. Evaluation comes on top; "
        "nothing was written."
    ]
    if not data_are_real:
        notes.append(
            f"The data {config.data!r} were not found: random images stood for them, as many as "
            "were published; reading and decoding are not in the time."
        )
    if any(one.scale > 1 for one in estimates):
        notes.append("Scaled numbers assume that the cost is proportional to the batch.")
    return notes


def dry_run(config: TrainConfig, console: Console | None = None) -> Estimate:
    """Print what a training run will take: ``unremix train --dry_run``.

    Raises:
        ValueError: For options or data that cannot be trained.
    """
    console = console or Console()
    if config.resume is not None:
        raise ValueError("expected --dry_run for a new run, got --resume as well; leave it out")
    domain, shape = find_domain(config.domain), None
    domain.check(config)
    if config.encoder is not None:
        start = ready_encoder(config, trust=config.trust)
        config = start.config = started(config, start)
        data, real, shape = domain.load_for(start, None), True, start.shape
    else:
        data, real = load_or_imagine(domain, config)
    config = settled(fit_to(domain, data, config))
    cost = estimate(config, data, shape)
    about = domain.describe(config, domain.shape(data, config) if shape is None else shape)
    hint = ready_hint(config, domain.size(data)) if real else ""
    first = f"{config.composed_name} on {data.name}, {about}"
    tables.show(console, (), filter(None, (first, hint)))
    table = tables.to_rich((), list(rows_of(cost, config, domain.unit).items()), texts=2, box=None)
    tables.show(console, [table], _notes(real, config, [cost]))
    return cost


def dry_comparison(
    plan: Plan, jobs: int | None, console: Console | None = None
) -> dict[str, Estimate]:
    """Print what a comparison will take: ``unremix compare --dry_run``.

    Returns:
        The estimate of one run, by recipe, of all that can be run.

    Raises:
        ValueError: If no recipe can be run.
    """
    share = Local().share(plan.jobs, jobs)
    train = replace(plan.train, threads=share.threads)
    domain = find_domain(train.domain)
    data, real = load_or_imagine(domain, train)
    estimates: dict[str, Estimate] = {}
    lines, failed = [], []
    for recipe in plan.recipes:
        config = replace(train, recipe=recipe)
        try:
            one = estimate(config, data, seconds=SECONDS / len(plan.recipes))
        except ValueError as error:
            failed.append(f"{recipe} cannot be run: {error}")
            continue
        estimates[recipe] = one
        shown = rows_of(one, fit_to(domain, data, config), domain.unit)
        lines.append([recipe, *(shown[name] for name in OF_A_COMPARISON)])
    if not estimates:
        raise ValueError("; ".join(failed))
    every = list(estimates.values())
    seconds = plan.seeds * sum(one.seconds for one in every)
    disk = plan.seeds * sum(2 * one.checkpoint + one.encoder for one in every)
    disk += share.jobs * max(one.checkpoint for one in every)
    summary = (
        f"In all {duration(seconds)} of training; {duration(seconds / share.jobs)} with "
        f"{share.jobs} at a time, if they do not hinder each other. Disk: {amount(disk)}."
    )
    table = tables.to_rich(
        ["recipe", *OF_A_COMPARISON], lines, title=f"{len(plan.jobs)} runs on {data.name}",
        box=None, pad_edge=False, no_wrap=True,
    )  # fmt: skip
    notes = _notes(real, train, every)
    tables.show(console or Console(), [table], (summary, *notes, *failed))
    return estimates
