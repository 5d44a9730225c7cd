"""Time the losses against their peers, in ratios taken in one run.

    python benchmarks/loss.py [--quick] [--sizes 1024 4096] [--engines native compiled eager]
        [--rounds 5] [--cpu-time] [--strict]

How to read the tables. Every time is one forward and one backward pass over N pairs of views. The
contenders of a table take turns, so that what else the machine does affects all of them; only the
ratios between them mean something on another machine. A ratio is that of the medians over the
rounds; that of the minima is in brackets, and where the two differ much the machine was busy. A
call during which other processes used the machine is timed again, for up to a minute per table. On
a machine that is never quiet, --cpu-time compares CPU times on one thread instead.

"Bare products" is the limit: the matrix products that UnReMix cannot do without, and nothing else.
The native engine is eager with one sweep in C, so eager against native is what the C gains.
Per-sample gradients are raced in fresh processes and judged by
the median of the processes' ratios. Memory is measured in a fresh process for each engine, and so
is the time that torch.compile takes, with an empty cache and again with the cache it leaves.

The lines with ✓ and ✗ at the end say which targets are met; a target is judged only at the batch
size it was set for. All numbers go to benchmarks/results/loss.json. --quick is a smoke test: small
batches, no target judged, and without the compiled engine, which takes up to a minute to compile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from rivals import (
    Batch,
    bare_products,
    defined_unremix,
    make_batch,
    nt_xent,
    per_sample_uncertainty,
    published_hcl,
)
from timing import Clock, Race, Ratio, Seconds, measure_call, pool, race, ratio, time_call
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unremix.core.last_layer.sketch import sketch
from unremix.core.problem import EngineName, Tile, blocks
from unremix.losses import HCLLoss, InfoNCELoss, TwoViewLoss, UnReMixLoss

RESULTS = Path(__file__).parent / "results"
PER_SAMPLE = "UnReMix by per-sample gradients"
PUBLISHED_HCL = "HCL as published, dense"
PRODUCTS = "bare products"
DENSE_NT_XENT = "NT-Xent, one cross-entropy"
METRIC_LEARNING = "NTXentLoss (metric-learning)"
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::item")  # for the host

Run = Callable[[], object]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what.

    Args:
        engines: The engines measured; the first is the one compared with everything else.
        sizes: N of the main table.
        small_size: N where the slow contenders still run.
        agreement_size: N where contenders that compute the same are compared.
        count_sizes: N at which dispatched operations are counted.
        base_size: N that the time at the largest is compared with.
        largest_size: N at which memory is measured.
        compile_sizes: N called one after the other to see what torch.compile takes.
        tiles: Rows per block to choose from.
        rounds: Turns at the largest N; small ones take up to four times as many.
        small_processes: Fresh processes that race the per-sample gradients, one after the other: a
            call of a few milliseconds depends on where in memory a process happens to work.
        slow_rounds: Turns of pytorch-metric-learning, which takes seconds.
        tile_rounds: Turns of the tile table.
        threads: Threads of torch.
        patience: Seconds per table to wait for other processes to be quiet.
        clock: What counts as time: ``wall``, or ``cpu``, this process's own on one thread.
        width: D.
        input_width: H.
        temperature: τ.
        hardness: β of HCL.
        class_prior: τ⁺ of HCL.
        sketch_size: Dimensions of h kept in the timed sketch.
        sketch_sizes: Dimensions whose error is measured.
        sketch_pairs: N of the batch on which it is measured.
        sketch_seeds: Draws over which it is averaged.
        seed: Draws the batches.
    """

    engines: tuple[EngineName, ...] = ("native", "compiled", "eager")
    sizes: tuple[int, ...] = (1024, 4096)
    small_size: int = 256
    agreement_size: int = 64
    count_sizes: tuple[int, ...] = (256, 1024)
    base_size: int = 4096
    largest_size: int = 16384
    compile_sizes: tuple[int, ...] = (256, 1024, 4096)
    tiles: tuple[int | None, ...] = (32, 64, 128, 256, 512, None)
    rounds: int = 5
    small_processes: int = 7
    slow_rounds: int = 2
    tile_rounds: int = 3
    threads: int = 2
    patience: float = 60.0
    clock: Clock = "wall"
    width: int = 128
    input_width: int = 512
    temperature: float = 0.5
    hardness: float = 1.0
    class_prior: float = 0.1
    sketch_size: int = 128
    sketch_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    sketch_pairs: int = 512
    sketch_seeds: int = 5
    seed: int = 0

    @property
    def first(self) -> str:
        """The contender that is compared with everything else."""
        return by_engine(self.engines[0])

    def rounds_at(self, size: int) -> int:
        """Turns at a batch size: more where they are cheap."""
        return self.rounds * min(4, max(1, max(self.sizes) // size))

    def race(self, contenders: Mapping[str, Run], rounds: int) -> Race:
        """Time contenders in turns, by the clock set."""
        return race(contenders, rounds, clock=self.clock, patience=self.patience)

    def batch(self, size: int) -> Batch:
        """N pairs of views."""
        return make_batch(size, width=self.width, input_width=self.input_width, seed=self.seed)


QUICK = Settings(
    engines=("native", "eager"),
    sizes=(128, 256),
    small_size=32,
    count_sizes=(128, 256),
    base_size=128,
    largest_size=256,
    compile_sizes=(128, 256),
    tiles=(64, None),
    rounds=1,
    small_processes=1,
    slow_rounds=1,
    tile_rounds=1,
    threads=1,
    patience=0.0,
    sketch_sizes=(32, 128),
    sketch_pairs=64,
    sketch_seeds=1,
)


@dataclass
class Report:
    """All that was measured, as it goes to the file."""

    machine: dict[str, object]
    settings: dict[str, object]
    agreement: dict[str, float] = field(default_factory=dict)
    times: list[dict[str, object]] = field(default_factory=list)
    speedups_by_process: list[dict[str, float]] = field(default_factory=list)
    operations: list[dict[str, object]] = field(default_factory=list)
    memory: list[dict[str, object]] = field(default_factory=list)
    compiling: list[dict[str, object]] = field(default_factory=list)
    tiles: list[dict[str, object]] = field(default_factory=list)
    sketch: list[dict[str, object]] = field(default_factory=list)
    targets: list[dict[str, object]] = field(default_factory=list)
    disturbed: int = 0


# Contenders -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A loss of a batch and what it is differentiated by."""

    loss: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]

    def __call__(self) -> Tensor:
        """Forward and backward."""
        value = self.loss()
        torch.autograd.grad(value, self.leaves)
        return value.detach()


def by_engine(engine: EngineName) -> str:
    """The name of a contender."""
    return f"UnReMix, {engine}"


def unremix_contender(batch: Batch, settings: Settings, **options: Any) -> Contender:
    """UnReMixLoss with the inputs of the last layer handed over and a learned mix."""
    module = UnReMixLoss(temperature=settings.temperature, **options)
    assert module.mix_parameters is not None
    leaves = (batch.z0, batch.z1, module.mix_parameters)
    return Contender(lambda: module(batch.z0, batch.z1, batch.h0, batch.h1), leaves)


def engine_contenders(batch: Batch, settings: Settings, **options: Any) -> dict[str, Contender]:
    """UnReMixLoss by each engine."""
    return {
        by_engine(engine): unremix_contender(batch, settings, engine=engine, **options)
        for engine in settings.engines
    }


def defined_contender(batch: Batch, settings: Settings) -> Contender:
    """UnReMix as the package defines it, its mix learned as well."""
    parameters = nn.Parameter(torch.zeros(3))

    def loss() -> Tensor:
        return defined_unremix(batch, parameters.softmax(0), temperature=settings.temperature)

    return Contender(loss, (batch.z0, batch.z1, parameters))


def per_sample_contender(batch: Batch, settings: Settings) -> Contender:
    """UnReMix with the uncertainty from per-sample gradients; everything else is the same."""
    components = (per_sample_uncertainty(batch), "similarity", "representativeness")
    return unremix_contender(batch, settings, components=components, engine="eager", tile=None)


def module_contender(batch: Batch, module: TwoViewLoss) -> Contender:
    """A loss of ours that needs the embeddings alone."""
    return Contender(lambda: module(batch.z0, batch.z1), (batch.z0, batch.z1))


def metric_learning_contender(batch: Batch, settings: Settings) -> Contender | None:
    """NT-Xent of pytorch-metric-learning; None where it is not installed."""
    if importlib.util.find_spec("pytorch_metric_learning") is None:
        return None
    from pytorch_metric_learning.losses import NTXentLoss

    module = NTXentLoss(temperature=settings.temperature)
    labels = torch.arange(batch.size).repeat(2)
    leaves = (batch.z0, batch.z1)
    return Contender(lambda: module(torch.cat([batch.z0, batch.z1]), labels), leaves)


def plain_contenders(batch: Batch, settings: Settings) -> dict[str, Contender]:
    """The losses that need no uncertainty, theirs and ours."""
    temperature, leaves = settings.temperature, (batch.z0, batch.z1)
    hardness, class_prior = settings.hardness, settings.class_prior

    def hcl() -> Tensor:
        return published_hcl(
            batch, temperature=temperature, hardness=hardness, class_prior=class_prior
        )

    ours = HCLLoss(temperature=temperature, hardness=hardness, class_prior=class_prior)
    return {
        PUBLISHED_HCL: Contender(hcl, leaves),
        "HCLLoss": module_contender(batch, ours),
        DENSE_NT_XENT: Contender(lambda: nt_xent(batch, temperature=temperature), leaves),
        "InfoNCELoss": module_contender(batch, InfoNCELoss(temperature=temperature)),
    }


def main_contenders(batch: Batch, settings: Settings) -> dict[str, Run]:
    """All that runs at a size; the dense definition only at the smallest, for its memory."""
    contenders: dict[str, Run] = {
        **engine_contenders(batch, settings),
        PRODUCTS: bare_products(batch),
        **plain_contenders(batch, settings),
        f"UnReMix, sketch={settings.sketch_size}": unremix_contender(
            batch, settings, sketch=settings.sketch_size
        ),
    }
    if batch.size == min(settings.sizes):
        contenders["UnReMix as defined, dense"] = defined_contender(batch, settings)
    return contenders


# Measurements -----------------------------------------------------------------------------------


def difference(first: Contender, second: Contender) -> float:
    """How far two contenders differ, relatively: the larger of value and gradients."""

    def parts(contender: Contender) -> list[Tensor]:
        value = contender.loss()
        return [value.detach(), *torch.autograd.grad(value, contender.leaves)]

    pairs = zip(parts(first), parts(second), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def agreement(settings: Settings) -> dict[str, float]:
    """Whether those who should compute the same do: the relative differences."""
    batch = settings.batch(settings.agreement_size)
    plain, defined = plain_contenders(batch, settings), defined_contender(batch, settings)
    ours = engine_contenders(batch, settings)
    found = {
        "HCLLoss and HCL as published": difference(plain["HCLLoss"], plain[PUBLISHED_HCL]),
        "InfoNCELoss and NT-Xent": difference(plain["InfoNCELoss"], plain[DENSE_NT_XENT]),
        **{f"{name}, and UnReMix as defined": difference(ours[name], defined) for name in ours},
        "per-sample gradients and UnReMix as defined": difference(
            per_sample_contender(batch, settings), defined
        ),
    }
    metric_learning = metric_learning_contender(batch, settings)
    if metric_learning is not None:
        found["InfoNCELoss and pytorch-metric-learning"] = difference(
            plain["InfoNCELoss"], metric_learning
        )
    return found


def measure_small(settings: Settings) -> Race:
    """Race UnReMix against per-sample gradients."""
    torch.set_num_threads(settings.threads)
    batch = settings.batch(settings.small_size)
    engine = settings.engines[0]
    contenders = {
        settings.first: unremix_contender(batch, settings, engine=engine),
        PER_SAMPLE: per_sample_contender(batch, settings),
    }
    return settings.race(contenders, settings.rounds_at(settings.small_size))


def measure_tiles(size: int, settings: Settings) -> Race:
    """Time by rows per block."""
    batch = settings.batch(size)
    tiles: tuple[Tile, ...] = ("auto", *settings.tiles)
    contenders = {str(tile): unremix_contender(batch, settings, tile=tile) for tile in tiles}
    return settings.race(contenders, settings.tile_rounds)


class Operations(TorchDispatchMode):
    """Counts what torch dispatches. Kernels that torch.compile generates are not dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled."""
        return True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.counts[function.name().split(".")[0]] += 1
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Count:
    """Operations of a call, forward and backward, and how many of them wait for the host."""

    engine: EngineName
    pairs: int
    operations: int
    waits: int
    seconds: list[float]


def count_operations(size: int, settings: Settings) -> list[Count]:
    """Operations and times of each engine, without the checks that wait for the host."""
    contenders = engine_contenders(settings.batch(size), settings, check=False)
    times = settings.race(contenders, settings.rounds_at(size)).seconds
    counts = []
    for engine in settings.engines:
        name = by_engine(engine)
        with Operations() as seen:
            contenders[name]()
        waits = sum(seen.counts[each] for each in WAITS)
        counts.append(Count(engine, size, seen.counts.total(), waits, times[name]))
    return counts


@dataclass(frozen=True)
class Memory:
    """What an engine takes at the largest N: memory beyond the input, and time.

    Args:
        engine: Which.
        pairs: N.
        extra_bytes: Peak of the resident memory, less what was held before.
        seconds: Of that call.
        base_seconds: Of a call at the base size.
        steadiness: Time per N² compared with that at the base size.
        disturbed: Calls during which other processes were busy.
    """

    engine: EngineName
    pairs: int
    extra_bytes: int
    seconds: float
    base_seconds: float
    steadiness: float
    disturbed: int


def measure_memory(settings: Settings, engine: EngineName) -> Memory:
    """Run in a fresh process, where nothing else has taken memory."""
    torch.set_num_threads(settings.threads)
    # Code and threads; compiled for any N, of one block and of several.
    for size in (600, 800, 3000, 4000) if engine == "compiled" else (64,):
        unremix_contender(settings.batch(size), settings, engine=engine)()
    whole, base = settings.largest_size, settings.base_size
    largest = measure_call(
        unremix_contender(settings.batch(whole), settings, engine=engine), settings.clock
    )
    smaller = unremix_contender(settings.batch(base), settings, engine=engine)
    times = [time_call(smaller, settings.clock) for _ in range(3)]
    base_seconds = median(seconds for seconds, _ in times)
    return Memory(
        engine,
        whole,
        largest.extra_bytes,
        largest.seconds,
        base_seconds,
        (largest.seconds / whole**2) / (base_seconds / base**2),
        sum(not quiet for quiet in (largest.quiet, *(quiet for _, quiet in times))),
    )


def measure_compiling(settings: Settings, folder: str) -> list[float]:
    """Seconds that the first call at each size takes longer than the second.

    Run in a fresh process; ``folder`` is the cache of torch.compile.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    torch.set_num_threads(settings.threads)
    found = []
    for size in settings.compile_sizes:
        contender = unremix_contender(settings.batch(size), settings, engine="compiled")
        first, second = (time_call(contender, "wall")[0] for _ in range(2))
        found.append(first - second)
    return found


Found = TypeVar("Found")


def in_fresh_process(measure: Callable[..., Found], *arguments: Any) -> Found:
    """A measurement in a process of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as executor:
        return executor.submit(measure, *arguments).result()


@dataclass(frozen=True)
class SketchError:
    """What a sketch of h does, averaged over seeds.

    Args:
        size: Dimensions kept.
        products: Error of h_i · h_j over the negatives: root mean square, relative to the values'.
        uncertainty: Likewise of u.
        rank_correlation: Spearman's, of u with and without, per anchor, averaged.
        weights: Error of w, as of h_i · h_j.
        loss: Relative change of the loss, averaged with its sign.
        largest_loss: The largest such change.
    """

    size: int
    products: float
    uncertainty: float
    rank_correlation: float
    weights: float
    loss: float
    largest_loss: float


@dataclass(frozen=True)
class Seen:
    """What a sketch may change: over each view's negatives, (2N, 2N - 2), and the loss."""

    products: Tensor
    uncertainty: Tensor
    weights: Tensor
    loss: float


def look(batch: Batch, h0: Tensor, h1: Tensor, settings: Settings) -> Seen:
    """Products, uncertainty, weights and loss of a batch with these inputs of the last layer."""
    module = UnReMixLoss(temperature=settings.temperature, mix="learned", layout="both")
    found = module.importance(batch.z0, batch.z1, h0, h1)
    inputs = torch.cat([h0, h1])

    def of_negatives(values: Tensor) -> Tensor:
        return values.masked_select(batch.negative).view(2 * batch.size, -1)

    with torch.no_grad():
        loss = float(module(batch.z0, batch.z1, h0, h1))
    products = of_negatives(inputs @ inputs.T)
    return Seen(products, of_negatives(found.uncertainty), of_negatives(found.weights), loss)


def relative_error(values: Tensor, truth: Tensor) -> float:
    """Root mean square of the error, relative to that of the values."""
    return float((values - truth).norm() / truth.norm())


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's correlation of each row with its counterpart, averaged."""
    ranks = [values.argsort(1).argsort(1).double() for values in (first, second)]
    centered = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    return float(torch.cosine_similarity(centered[0], centered[1], dim=1).mean())


def measure_sketch(size: int, settings: Settings) -> SketchError:
    """The error of a sketch of h to so many dimensions."""
    batch = settings.batch(settings.sketch_pairs)
    truth = look(batch, batch.h0, batch.h1, settings)
    seen = [
        look(batch, sketch(batch.h0, size, seed=seed), sketch(batch.h1, size, seed=seed), settings)
        for seed in range(settings.sketch_seeds)
    ]
    changes = [(one.loss - truth.loss) / truth.loss for one in seen]
    return SketchError(
        size,
        products=fmean(relative_error(one.products, truth.products) for one in seen),
        uncertainty=fmean(relative_error(one.uncertainty, truth.uncertainty) for one in seen),
        rank_correlation=fmean(
            rank_correlation(one.uncertainty, truth.uncertainty) for one in seen
        ),
        weights=fmean(relative_error(one.weights, truth.weights) for one in seen),
        loss=fmean(changes),
        largest_loss=max(abs(change) for change in changes),
    )


# Targets ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A bound on a number measured; ``value`` is None where it was not measured in this run."""

    name: str
    bound: float
    value: float | None
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        """One line for the console."""
        sign = "≥" if self.at_least else "≤"
        found = "not measured in this run" if self.value is None else f"{self.value:.3g}"
        mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: "–"}[self.holds]
        return f"{mark} {self.name}: {found} (target {sign} {self.bound:g})"


def judge(
    times: dict[int, Seconds],
    speedups: Sequence[Ratio],
    memories: Sequence[Memory],
    settings: Settings,
) -> list[Target]:
    """All targets.

    Args:
        times: Of the main contenders by N.
        speedups: Over per-sample gradients, in each process.
        memories: Of each engine.
        settings: What was measured.
    """

    def slowdown(n: int, engine: EngineName, other: str) -> float | None:
        if n not in times or by_engine(engine) not in times[n]:
            return None
        return ratio(times[n][by_engine(engine)], times[n][other]).medians

    limits: dict[EngineName, float] = {"native": 1.8, "compiled": 2.5, "eager": 4.0}
    targets = [
        Target(f"{engine} / bare products, N={n}", limit, slowdown(n, engine, PRODUCTS))
        for engine, limit in limits.items()
        for n in (1024, 4096)
    ]
    hcl = slowdown(4096, "native", PUBLISHED_HCL)
    speedup = median(each.medians for each in speedups) if settings.small_size == 256 else None
    targets += [
        Target("native / HCL as published, N=4096", 1.0, hcl),
        Target("per-sample gradients / UnReMix, N=256", 50.0, speedup, at_least=True),
    ]
    at_scale = (settings.base_size, settings.largest_size) == (4096, 16384)
    for one in memories:
        memory = one.extra_bytes / 2**30 if at_scale else None
        targets.append(Target(f"{one.engine}: extra memory at N=16384, GiB", 1.0, memory))
        steadiness = one.steadiness if at_scale else None
        name = f"{one.engine}: time per N² at N=16384 / at N=4096"
        targets.append(Target(name, 1.5, steadiness))
    return targets


# Output -----------------------------------------------------------------------------------------


def milliseconds(seconds: Sequence[float]) -> str:
    """The median, for a table."""
    return (
        f"{median(seconds) * 1e3:,.0f}" if median(seconds) > 0.1 else f"{median(seconds) * 1e3:.1f}"
    )


def times_of(seconds: Sequence[float], others: Sequence[float]) -> str:
    """A ratio, for a table."""
    found = ratio(seconds, others)
    return f"{found.medians:.3g} ({found.minima:.3g})"


def new_table(title: str, *columns: str) -> Table:
    """An empty table, its first column to the left."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def add_race(table: Table, report: Report, size: int, found: Race, others: Sequence[str]) -> None:
    """One line per contender, with its ratio to some of the others."""
    seconds = found.seconds
    report.disturbed += found.disturbed
    for name, values in seconds.items():
        cells = [times_of(values, seconds[other]) if other in seconds else "" for other in others]
        table.add_row(name, f"{size}", milliseconds(values), *cells)
        report.times.append(
            {
                "pairs": size,
                "contender": name,
                "seconds": values,
                "disturbed_in_table": found.disturbed,
                "ratios": {
                    other: asdict(ratio(values, seconds[other]))
                    for other in others
                    if other in seconds
                },
            }
        )
    table.add_section()


def operations_table(counts: Sequence[Count]) -> Table:
    """Dispatched operations beside times."""
    title = "Operations dispatched by a call, forward and backward, check=False"
    table = new_table(title, "engine", "N", "operations", "waits for the host", "ms")
    for count in counts:
        cells = (f"{count.pairs}", f"{count.operations}", f"{count.waits}")
        table.add_row(count.engine, *cells, milliseconds(count.seconds))
    return table


def memory_table(memories: Sequence[Memory]) -> Table:
    """Memory and time at the largest N."""
    title = "The largest batch, in a fresh process"
    table = new_table(title, "engine", "N", "extra MiB", "s", "time per N², × the base size")
    for one in memories:
        cells = (f"{one.pairs}", f"{one.extra_bytes / 2**20:.0f}", f"{one.seconds:.2f}")
        table.add_row(one.engine, *cells, f"{one.steadiness:.2f}")
    return table


def compile_table(settings: Settings, found: Mapping[str, Sequence[float]]) -> Table:
    """What torch.compile takes."""
    sizes = [f"N={size}, s" for size in settings.compile_sizes]
    table = new_table("Compiling: first call less second, sizes in this order", "cache", *sizes)
    for name, seconds in found.items():
        table.add_row(name, *(f"{each:.1f}" for each in seconds))
    return table


def tile_table(report: Report, times: dict[int, Race], settings: Settings) -> Table:
    """Time by tile, relative to ``auto``."""
    auto = {
        size: len(range(2 * size)[next(blocks(2 * size, 2 * size, "auto", torch.device("cpu")))])
        for size in times
    }
    heads = [f"N={size} (auto: {auto[size]})" for size in times]
    table = new_table("Rows per block (tile): time relative to 'auto'", "tile", *heads)
    for tile in map(str, settings.tiles):
        cells = [times_of(one.seconds[tile], one.seconds["auto"]) for one in times.values()]
        table.add_row(tile, *cells)
    for size, one in times.items():
        report.tiles.append({"pairs": size, "auto": auto[size], "seconds": one.seconds})
        report.disturbed += one.disturbed
    return table


def sketch_table(errors: Sequence[SketchError], settings: Settings) -> Table:
    """What a sketch of h costs in accuracy."""
    title = f"Sketch of h (H={settings.input_width}): relative error by dimensions kept"
    table = Table(title=title, title_justify="left")
    for head in ("size", "h·h", "u", "rank corr. of u", "w", "loss", "loss, at most"):
        table.add_column(head, justify="right")
    for error in errors:
        table.add_row(
            f"{error.size}",
            f"{error.products:.3f}",
            f"{error.uncertainty:.3f}",
            f"{error.rank_correlation:.4f}",
            f"{error.weights:.4f}",
            f"{error.loss:+.1e}",
            f"{error.largest_loss:.1e}",
        )
    return table


def machine() -> dict[str, object]:
    """What the numbers were taken on."""
    model = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mkl": torch.backends.mkl.is_available(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def save(report: Report, path: Path) -> None:
    """Write the report; an interrupted run leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def settings_from_arguments() -> tuple[Settings, Path, bool]:
    """Settings, the file for the results, and whether a missed target is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small batches, a smoke test")
    parser.add_argument("--sizes", type=int, nargs="+", help="N of the main table")
    parser.add_argument("--engines", nargs="+", choices=Settings.engines, help="which to measure")
    parser.add_argument("--rounds", type=int, help="turns at the largest N")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread, CPU time: for a machine that is busy"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    chosen = asdict(QUICK if arguments.quick else Settings())
    if arguments.sizes:
        chosen["sizes"] = tuple(sorted(arguments.sizes))
    if arguments.engines:
        chosen["engines"] = tuple(dict.fromkeys(arguments.engines))
    if arguments.rounds:
        chosen["rounds"] = arguments.rounds
    if arguments.cpu_time:
        chosen |= {"threads": 1, "clock": "cpu"}
    # Neither overwrites the results of a proper run.
    suffix = "-quick" * arguments.quick + "-cpu-time" * arguments.cpu_time
    name = f"loss{suffix}.json"
    return Settings(**chosen), arguments.output or RESULTS / name, arguments.strict


def measure_times(settings: Settings, report: Report) -> tuple[dict[int, Seconds], list[Ratio]]:
    """The main table: all races, and the speedups over per-sample gradients by process."""
    others = (PRODUCTS, PUBLISHED_HCL, settings.first)
    heads = ("contender", "N", "ms", *(f"/ {other}" for other in others))
    table, size = new_table("Forward and backward", *heads), settings.small_size
    races = [in_fresh_process(measure_small, settings) for _ in range(settings.small_processes)]
    speedups = [ratio(each.seconds[PER_SAMPLE], each.seconds[settings.first]) for each in races]
    report.speedups_by_process = [asdict(each) for each in speedups]
    add_race(table, report, size, pool(races), others)
    batch = settings.batch(size)
    slow = metric_learning_contender(batch, settings)
    if slow is None:
        table.add_row(f"{METRIC_LEARNING}: not installed")
        table.add_section()
    else:
        ours = unremix_contender(batch, settings, engine=settings.engines[0])
        found = settings.race({settings.first: ours, METRIC_LEARNING: slow}, settings.slow_rounds)
        add_race(table, report, size, found, others)
    times: dict[int, Seconds] = {}
    for size in settings.sizes:
        contenders = main_contenders(settings.batch(size), settings)
        main_race = settings.race(contenders, settings.rounds_at(size))
        add_race(table, report, size, main_race, others)
        times[size] = main_race.seconds
    Console(highlight=False).print(table)
    return times, speedups


def main() -> None:
    settings, path, strict = settings_from_arguments()
    torch.set_num_threads(settings.threads)
    console = Console(highlight=False)
    report = Report(machine(), asdict(settings))
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))

    report.agreement = agreement(settings)
    for name, value in report.agreement.items():
        console.print(f"{name}: differ by {value:.1e} (value and gradients, relative)")
    times, speedups = measure_times(settings, report)

    counts = [one for size in settings.count_sizes for one in count_operations(size, settings)]
    report.operations = [asdict(count) for count in counts]
    console.print(operations_table(counts))

    memories = [in_fresh_process(measure_memory, settings, engine) for engine in settings.engines]
    report.memory = [asdict(memory) for memory in memories]
    report.disturbed += sum(memory.disturbed for memory in memories)
    console.print(memory_table(memories))

    if "compiled" in settings.engines:
        with tempfile.TemporaryDirectory() as folder:
            found = {
                cache: in_fresh_process(measure_compiling, settings, folder)
                for cache in ("empty", "of an earlier process")
            }
        report.compiling = [
            {"cache": cache, "seconds": dict(zip(settings.compile_sizes, seconds, strict=True))}
            for cache, seconds in found.items()
        ]
        console.print(compile_table(settings, found))

    tiles = {size: measure_tiles(size, settings) for size in settings.sizes}
    console.print(tile_table(report, tiles, settings))
    errors = [measure_sketch(size, settings) for size in settings.sketch_sizes]
    report.sketch = [asdict(error) for error in errors]
    console.print(sketch_table(errors, settings))

    targets = judge(times, speedups, memories, settings)
    for target in targets:
        console.print(target.line())
    by_process = ", ".join(f"{each.medians:.0f} ({each.minima:.0f})" for each in speedups)
    console.print(f"Over per-sample gradients, by process, medians (minima): {by_process}")
    if settings.clock == "wall":
        console.print(f"{report.disturbed} timed calls were disturbed by other processes.")
    else:
        console.print("All times are CPU times on one thread.")
    report.targets = [{**asdict(target), "holds": target.holds} for target in targets]
    save(report, path)
    if strict and any(target.holds is False for target in targets):
        sys.exit(1)


if __name__ == "__main__":
    main()
