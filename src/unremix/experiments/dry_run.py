"""The dry run: a few real steps, and what they say about the whole training. Nothing is written.

What is measured: the time of a step, the memory it takes, the size of a checkpoint. Where a step of
the whole batch would take too long to wait for, a smaller one is measured and scaled, and the table
says so. Reading data that are not there, and the evaluation, are not part of the estimate.
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
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unremix.data.image.dataset import ImageData, ImageSet
from unremix.data.quantities import amount, counted, duration
from unremix.domains import Domain, find_domain
from unremix.experiments import tables
from unremix.experiments.forecast import (
    TIMED,
    WARM_UP,
    Estimate,
    Measured,
    count_parameters,
    epochs_within,
    on_a_line,
    rows_of,
    step_size,
    tensor_bytes,
)
from unremix.experiments.plan import Plan
from unremix.experiments.processes import Local
from unremix.frameworks.base import Framework
from unremix.frameworks.queue import Queue
from unremix.options.config import TrainConfig
from unremix.recipes import sections
from unremix.training.loop import Training, fit
from unremix.training.preparation import Prepared, fit_to
from unremix.training.progress import Progress
from unremix.training.run import Run

# Images to train on in the data that the shipped settings name, as published.
PUBLISHED = {
    "cifar-10-python.tar.gz": 50_000,
    "cifar-100-python.tar.gz": 50_000,
    "tiny-imagenet-200.zip": 100_000,
    "imagenet-1k-wds": 1_281_167,
}

SECONDS = 30.0  # for all steps, about: a minute with what comes before and between them
CLASSES = 10  # of random images
FEW = 8  # samples in the step that tells how many more can be waited for


class Enough(Exception):
    """Raised in mid-training: all steps that were wanted are made."""


class Stopwatch(Progress):
    """Times steps where others show progress, and ends the training after a few.

    Args:
        config: The run's options.
        steps: How many to make at most; an epoch's last is the last in any case.
        seconds: One timed step is enough if the next would end after so many.
    """

    def __init__(self, config: TrainConfig, steps: int, seconds: float = math.inf) -> None:
        super().__init__(replace(config, progress=False))
        self.steps = steps
        self.limit = seconds
        self.times: list[float] = []
        self.found: dict[str, Any] = {}

    def __enter__(self) -> Stopwatch:
        super().__enter__()
        self.times = [time.perf_counter()]
        return self

    def stepped(self, training: Training, loss: float) -> None:
        """Note the time; after the first step, fill the queue, as it will be most of the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        wanted = self.steps
        last = self.times[-1] - self.times[-2]
        if self.times[-1] + last - self.times[0] > self.limit:
            wanted = WARM_UP + 1
        if len(self.times) <= min(wanted, training.steps_per_epoch):
            if len(self.times) == 2:
                _fill_queue(training.model)
                self.times[-1] = time.perf_counter()
            return
        state = training.optimizer.state_dict()["state"]
        self.found = {
            "checkpoint": tensor_bytes([training.model.state_dict(), state]),
            "encoder": tensor_bytes(training.model.encoder.state_dict()),
            "parameters": count_parameters(training.model),
            "device": training.fabric.device.type,
        }
        raise Enough

    @property
    def total(self) -> float:
        """Seconds of all steps, the first ones included."""
        return self.times[-1] - self.times[0]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Of each step; the first ones, which warm up, are left out where there are others."""
        took = [after - before for before, after in pairwise(self.times)]
        return tuple(took[WARM_UP:] or took)


@torch.no_grad()
def _fill_queue(model: Framework) -> None:
    memory = getattr(model, "memory", None)
    if isinstance(memory, Queue):
        keys = [torch.randn_like(rows) for rows in (memory.embeddings, memory.inputs)]
        memory.add(keys[0], keys[1], torch.full_like(memory.sample_ids, -1))


def _status(name: str) -> int | None:
    """Bytes that Linux names for this process; None elsewhere."""
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024


def _forget_peak() -> None:
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc keeps what was freed unless told otherwise
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # else the peak of the whole process counts: too much, not too little
        Path("/proc/self/clear_refs").write_text("5")


def memory_in_use() -> int | None:
    """Bytes that this process has in memory; None where the system does not say."""
    _forget_peak()
    return _status("VmRSS")


def _peak(device: str, before: int | None) -> int | None:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = _status("VmHWM")
    return None if peak is None or before is None else max(0, peak - before)


def _measuring(config: TrainConfig) -> TrainConfig:
    """The options for a few steps in one process, in which everything that costs time happens."""
    # A warm-up of further negatives would hide what they cost.
    cold: dict[str, Any] = {
        name: replace(getattr(config, name), warmup_epochs=0)
        for name in sections()
        if getattr(getattr(config, name), "warmup_epochs", None) is not None
    }
    return replace(
        config, epochs=1, warmup_epochs=0, max_minutes=None, devices=1, num_nodes=1, **cold,
        sync_batchnorm=False, checkpoint_every=None, loggers=(), progress=False, resume=None,
    )  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """Steps of one size."""

    size: int  # samples in a step
    at_once: int  # how many of them go through the encoder at a time
    peak: int | None  # most bytes in use, above those before there was a model
    watch: Stopwatch  # knows their times, and the model


def _try(
    config: TrainConfig, data: Any, shape: Any, size: int, timed: int, seconds: float,
    before: int | None,
) -> Trial:  # fmt: skip
    chunk = config.chunk if config.chunk is None or config.chunk < config.batch_size else None
    if chunk is not None and chunk >= size:
        chunk = max(2, size // 2)  # in chunks all the same
    small = replace(_measuring(config), batch_size=size, chunk=chunk)
    run = Run.unwritten(Path(config.runs) / "dry-run", small, shape)
    watch = Stopwatch(small, WARM_UP + timed, seconds)
    _forget_peak()
    with suppress(Enough):
        fit(Prepared(run, small, data, None), lambda *_: {}, watch)
    return Trial(size, chunk or size, _peak(watch.found["device"], before), watch)


def measure(
    config: TrainConfig, data: Any, shape: Any, *, seconds: float = SECONDS, before: int | None
) -> Measured:
    """Make a few steps, of few samples at least; see :func:`estimate`."""
    whole, few = config.batch_size, min(FEW, config.batch_size)
    quick = _try(config, data, shape, few, 2, seconds / 4, before)
    left = seconds - quick.watch.total
    size = step_size(whole, min(quick.watch.seconds), few, left)
    if size > few:
        trial, other = _try(config, data, shape, size, TIMED, left, before), quick
    else:
        trial, other = quick, quick
        if few < whole:
            other = _try(config, data, shape, few // 2, 1, left, before)
    memory = trial.peak
    if size < whole and memory is not None and other.peak is not None:
        in_full = min(whole, config.chunk or whole)
        if trial.at_once > other.at_once:
            memory = on_a_line((other.at_once, other.peak), (trial.at_once, memory), in_full)
    return Measured(trial.watch.seconds, size, whole / size, memory, **trial.watch.found)


def load_or_imagine(domain: Domain, config: TrainConfig) -> tuple[Any, bool]:
    """The data; or random images in their place, if they are a shipped setting's and not there.

    Returns:
        The data, and whether they are real.

    Raises:
        FileNotFoundError: For other data that do not exist.
    """
    try:
        return domain.load(config), True
    except FileNotFoundError:
        if config.data not in PUBLISHED or config.image_size is None:
            raise
    count = min(PUBLISHED[config.data], config.limit or PUBLISHED[config.data])
    labels = torch.arange(count) % CLASSES
    images = ImageSet(RandomImages(count, config.image_size), [""] * count, labels, None)
    return ImageData(images, None, config.data, ()), False


@dataclass(frozen=True)
class RandomImages:
    """Images of noise: see :class:`unremix.data.image.dataset.ImageStore`."""

    count: int
    size: int  # S
    channels: int = 3

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor) -> Tensor:
        """As many images as asked for, uint8, shape (B, 3, S, S)."""
        shape = (len(indices), self.channels, self.size, self.size)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def estimate(
    config: TrainConfig,
    data: Any | None = None,
    *,
    seconds: float = SECONDS,
    before: int | None = None,
) -> Estimate:
    """What a training run will take, from a few of its steps.

    Args:
        config: The run's options.
        data: Its data; loaded by default.
        seconds: How long the steps may take, about.
        before: Bytes in memory before there was any model; what they are now by default.

    Raises:
        ValueError: For options or data that no run can be made of.
    """
    if config.epochs < 1:
        raise ValueError("expected at least 1 epoch to estimate, got 0")
    domain = find_domain(config.domain)
    domain.check(config)
    if data is None:
        data = load_or_imagine(domain, config)[0]
    config = fit_to(domain, data, config)
    shape = domain.shape(data, config)
    before = memory_in_use() if before is None else before
    measured = measure(config, data, shape, seconds=seconds, before=before)
    steps = domain.steps(data, config)
    epochs = epochs_within(config.max_minutes, config.epochs, steps * measured.step_seconds)
    return Estimate(domain.size(data), steps, epochs, measured)


def _said(data_are_real: bool, config: TrainConfig, measured: Sequence[Measured]) -> list[str]:
    """What a reader of the table has to know."""
    devices = sorted({found.device for found in measured})
    threads = config.threads or torch.get_num_threads()
    where = " and ".join(devices)
    if devices == ["cpu"]:
        where += f", {counted(threads, 'thread')}"
    timed = min((len(found.seconds) for found in measured), default=0)
    said = [
        f"Measured on {where}, one process: the median of {counted(timed, 'step')}. "
        "Evaluation comes on top; nothing was written."
    ]
    if not data_are_real:
        said.append(
            f"The data {config.data!r} were not found: random images stood for them, as many as "
            "were published; reading and decoding are not in the time."
        )
    if any(found.scale > 1 for found in measured):
        said.append("Scaled figures take cost as proportional to the batch.")
    return said


def dry_run(config: TrainConfig, console: Console | None = None) -> Estimate:
    """Print what a training run will take: ``unremix train --dry_run``.

    Raises:
        ValueError: For options or data that no run can be made of.
    """
    console = console or Console()
    if config.resume is not None:
        raise ValueError("expected --dry_run for a new run, got --resume as well; leave it out")
    domain = find_domain(config.domain)
    domain.check(config)
    data, real = load_or_imagine(domain, config)
    config = fit_to(domain, data, config)
    found = estimate(config, data)
    about = domain.describe(config, domain.shape(data, config))
    title = f"{config.composed_name} on {data.name}, {about}"
    table = Table(box=None, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for row in rows_of(found, config, domain.unit):
        table.add_row(*row)
    tables.show(console, (), [title])
    tables.show(console, [table], _said(real, config, [found.measured]))
    return found


def dry_comparison(
    plan: Plan, jobs: int | None, console: Console | None = None
) -> dict[str, Estimate]:
    """Print what a comparison will take: ``unremix compare --dry_run``.

    Returns:
        The estimate of one run, by recipe, of all that can be run.

    Raises:
        ValueError: If no recipe can be run.
    """
    console = console or Console()
    share = Local().share(plan.jobs, jobs)
    train = replace(plan.train, threads=share.threads)
    domain = find_domain(train.domain)
    data, real = load_or_imagine(domain, train)
    before = memory_in_use()
    found: dict[str, Estimate] = {}
    failed = []
    for recipe in plan.recipes:
        config = replace(train, recipe=recipe)
        try:
            found[recipe] = estimate(
                config, data, seconds=SECONDS / len(plan.recipes), before=before
            )
        except ValueError as error:
            failed.append(f"{recipe} cannot be run: {error}")
    if not found:
        raise ValueError("; ".join(failed))
    every = list(found.values())
    seconds = plan.seeds * sum(one.seconds for one in every)
    disk = plan.seeds * sum(2 * one.measured.checkpoint + one.measured.encoder for one in every)
    disk += share.jobs * max(one.measured.checkpoint for one in every)
    summary = (
        f"In all {duration(seconds)} of training; {duration(seconds / share.jobs)} with "
        f"{share.jobs} at a time, if they do not hinder each other. Disk: {amount(disk)}."
    )
    table = _comparison_table(f"{len(plan.jobs)} runs on {data.name}", found, plan)
    notes = _said(real, train, [one.measured for one in every])
    tables.show(console, [table], (summary, *notes, *failed))
    return found


def _comparison_table(title: str, found: Mapping[str, Estimate], plan: Plan) -> Table:
    table = Table(title=title, box=None, pad_edge=False)
    headings = ["recipe", "parameters", "memory", "checkpoint", "a step", "a run", "all seeds"]
    if plan.minutes is not None:
        headings.insert(5, "epochs")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for recipe, one in found.items():
        measured = one.measured
        cells = [
            recipe,
            f"{sum(measured.parameters.values()) / 1e6:.1f} M",
            amount(measured.memory),
            amount(measured.checkpoint),
            duration(measured.step_seconds),
            duration(one.seconds),
            duration(plan.seeds * one.seconds),
        ]
        if plan.minutes is not None:
            cells.insert(5, f"{one.epochs:,}")
        table.add_row(*cells)
    return table
