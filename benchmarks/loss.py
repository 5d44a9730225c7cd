"""Time the losses against their peers, in ratios taken in one run.

    python benchmarks/loss.py [--quick] [--sizes 1024 4096] [--rounds 5] [--strict]

How to read the tables. Every time is one forward and one backward pass over N pairs of views. The
contenders of a table take turns, so that what else the machine does hits all of them; only the
ratios between them mean something elsewhere. "UnReMix takes × 0.5" says that UnReMix needs half the
time of the contender on that line: below 1 it is faster, above 1 slower. The ratio is that of the
medians over the rounds; that of the minima stands beside it, and where the two differ much the
machine was busy. Per-sample gradients are raced in fresh processes, pooled in the table and judged
by the median of the processes' ratios. A call during which other processes used the machine is
timed again, for a minute per table; for a machine that is never quiet, --cpu-time compares CPU
times on one thread instead.

"Bare products" is the limit: the matrix products that UnReMix cannot do without and nothing else.
The lines with ✓ and ✗ at the end say which targets hold; a target is judged only at the batch size
it was set for. All numbers go to benchmarks/results/loss.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table
from rivals import (
    Batch,
    bare_products,
    closed_form_uncertainty,
    dense_unremix,
    make_batch,
    nt_xent,
    per_sample_uncertainty,
    published_hcl,
)
from timing import (
    Call,
    Clock,
    Race,
    Ratio,
    Seconds,
    growth_exponent,
    measure_call,
    pool,
    race,
    ratio,
    time_call,
)
from torch import Tensor, nn

from unremix.losses.blockwise import Tile, rows_per_block
from unremix.losses import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.losses import TwoViewLoss
from unremix.core.scores import sketch

RESULTS = Path(__file__).parent / "results"
UNREMIX = "UnReMixLoss"
PER_SAMPLE = "UnReMix by per-sample gradients"
PUBLISHED_HCL = "HCL as published, dense"
PRODUCTS = "bare products"
DENSE_NT_XENT = "NT-Xent, one cross-entropy"
METRIC_LEARNING = "NTXentLoss (metric-learning)"

Run = Callable[[], object]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what.

    Args:
        sizes: N of the main tables.
        small_size: N where the slow contenders still run.
        agreement_size: N where contenders that compute the same are compared.
        growth_sizes: N over which the growth of time is fitted; memory is taken at the largest.
        tiles: Rows per block to choose from.
        rounds: Turns at the largest N; small ones take up to four times as many.
        small_processes: Fresh processes that race the per-sample gradients, one after the other: a
            call of a few milliseconds depends on where in memory a process happens to work. The
            target is judged by the median of their ratios, each of one time and one process.
        slow_rounds: Turns of pytorch-metric-learning, which takes seconds.
        tile_rounds: Turns of the tile table.
        growth_rounds: Turns of the growth table, of all but its largest N, which is called before
            them, when the process holds no memory yet, and after them.
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

    sizes: tuple[int, ...] = (1024, 4096)
    small_size: int = 256
    agreement_size: int = 64
    growth_sizes: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    tiles: tuple[int | None, ...] = (32, 64, 128, 256, 512, None)
    rounds: int = 5
    small_processes: int = 7
    slow_rounds: int = 2
    tile_rounds: int = 3
    growth_rounds: int = 3
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
    sizes=(256, 512),
    small_size=128,
    growth_sizes=(128, 256, 512, 1024),
    tiles=(32, 128, None),
    rounds=2,
    small_processes=1,
    slow_rounds=1,
    tile_rounds=2,
    growth_rounds=2,
    patience=0.0,
    sketch_pairs=128,
    sketch_seeds=2,
)


@dataclass
class Report:
    """All that was measured, as it goes to the file."""

    machine: dict[str, object]
    settings: dict[str, object]
    agreement: dict[str, float] = field(default_factory=dict)
    times: list[dict[str, object]] = field(default_factory=list)
    speedups_by_process: list[dict[str, float]] = field(default_factory=list)
    tiles: list[dict[str, object]] = field(default_factory=list)
    growth: dict[str, object] = field(default_factory=dict)
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


def unremix_contender(
    batch: Batch, settings: Settings, *, tile: Tile = "auto", sketch_size: int | None = None
) -> Contender:
    """UnReMixLoss with the inputs of the last layer handed over and a learned mix."""
    module = UnReMixLoss(
        temperature=settings.temperature,
        mix="learned",
        layout="both",
        tile=tile,
        sketch=sketch_size,
    )
    assert module.mix_parameters is not None
    leaves = (batch.z0, batch.z1, module.mix_parameters)
    return Contender(lambda: module(batch.z0, batch.z1, batch.h0, batch.h1), leaves)


def module_contender(batch: Batch, module: TwoViewLoss) -> Contender:
    """A loss of ours that needs the embeddings alone."""
    return Contender(lambda: module(batch.z0, batch.z1), (batch.z0, batch.z1))


def dense_contender(
    batch: Batch, settings: Settings, uncertainty: Callable[[Batch, Tensor], Tensor]
) -> Contender:
    """UnReMix on whole arrays, its mix learned as well."""
    parameters = nn.Parameter(torch.zeros(3))

    def loss() -> Tensor:
        shares = parameters.softmax(0)
        temperature = settings.temperature
        return dense_unremix(batch, shares, temperature=temperature, uncertainty=uncertainty)

    return Contender(loss, (batch.z0, batch.z1, parameters))


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
    """All that runs at every size."""
    return {
        UNREMIX: unremix_contender(batch, settings),
        PRODUCTS: bare_products(batch),
        **plain_contenders(batch, settings),
        "UnReMix in closed form, dense": dense_contender(batch, settings, closed_form_uncertainty),
        f"UnReMixLoss, sketch={settings.sketch_size}": unremix_contender(
            batch, settings, sketch_size=settings.sketch_size
        ),
    }


def small_contenders(batch: Batch, settings: Settings) -> dict[str, Run]:
    """UnReMix and what it spares us: per-sample gradients, which take much memory."""
    return {
        UNREMIX: unremix_contender(batch, settings),
        PER_SAMPLE: dense_contender(batch, settings, per_sample_uncertainty),
    }


def slow_contenders(batch: Batch, settings: Settings) -> dict[str, Run]:
    """NT-Xent of pytorch-metric-learning where it is installed, or nothing."""
    contender = metric_learning_contender(batch, settings)
    if contender is None:
        return {}
    return {UNREMIX: unremix_contender(batch, settings), METRIC_LEARNING: contender}


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
    plain, ours = plain_contenders(batch, settings), unremix_contender(batch, settings)
    found = {
        "HCLLoss and HCL as published": difference(plain["HCLLoss"], plain[PUBLISHED_HCL]),
        "InfoNCELoss and NT-Xent": difference(plain["InfoNCELoss"], plain[DENSE_NT_XENT]),
        "UnReMixLoss and its dense form": difference(
            ours, dense_contender(batch, settings, closed_form_uncertainty)
        ),
        "UnReMixLoss and per-sample gradients": difference(
            ours, dense_contender(batch, settings, per_sample_uncertainty)
        ),
    }
    metric_learning = metric_learning_contender(batch, settings)
    if metric_learning is not None:
        found["InfoNCELoss and pytorch-metric-learning"] = difference(
            plain["InfoNCELoss"], metric_learning
        )
    return found


def measure_tiles(size: int, settings: Settings) -> Race:
    """Time by rows per block."""
    batch = settings.batch(size)
    tiles: tuple[Tile, ...] = ("auto", *settings.tiles)
    contenders = {str(tile): unremix_contender(batch, settings, tile=tile) for tile in tiles}
    return settings.race(contenders, settings.tile_rounds)


@dataclass(frozen=True)
class Growth:
    """Time by batch size, and the memory that a call on the largest takes beyond its input."""

    seconds: dict[int, list[float]]
    largest: Call
    exponent: float
    disturbed: int

    def per_pair(self, size: int) -> float:
        """Seconds per N²."""
        return median(self.seconds[size]) / size**2


def measure_small(settings: Settings) -> Race:
    """Race UnReMix against per-sample gradients."""
    torch.set_num_threads(settings.threads)
    batch = settings.batch(settings.small_size)
    contenders = small_contenders(batch, settings)
    return settings.race(contenders, settings.rounds_at(settings.small_size))


def measure_growth(settings: Settings) -> Growth:
    """Run in a fresh process, where nothing else has taken memory."""
    torch.set_num_threads(settings.threads)
    *sizes, largest_size = sorted(settings.growth_sizes)
    unremix_contender(settings.batch(64), settings)()  # so that code and threads are loaded
    largest_contender = unremix_contender(settings.batch(largest_size), settings)
    largest = measure_call(largest_contender, settings.clock)
    contenders = {str(size): unremix_contender(settings.batch(size), settings) for size in sizes}
    found = settings.race(contenders, settings.growth_rounds)
    seconds = {int(size): values for size, values in found.seconds.items()}
    again, quiet = time_call(largest_contender, settings.clock)  # on the other side of the race
    seconds[largest_size] = [largest.seconds, again]
    disturbed = (not largest.quiet) + (not quiet)
    medians = [median(values) for values in seconds.values()]
    exponent = growth_exponent(list(seconds), medians)
    return Growth(seconds, largest, exponent, found.disturbed + disturbed)


Found = TypeVar("Found")


def in_fresh_process(measure: Callable[[Settings], Found], settings: Settings) -> Found:
    """A measurement in a process of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as executor:
        return executor.submit(measure, settings).result()


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
    centred = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    return float(torch.cosine_similarity(centred[0], centred[1], dim=1).mean())


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
    times: dict[int, Seconds], speedups: Sequence[Ratio], growth: Growth, size: int
) -> list[Target]:
    """All targets.

    Args:
        times: Of the main contenders by N.
        speedups: Over per-sample gradients, in each process.
        growth: By batch size.
        size: N of the race against per-sample gradients.
    """

    def slowdown(n: int, other: str) -> float | None:
        return ratio(times[n][UNREMIX], times[n][other]).medians if n in times else None

    speedup = median(each.medians for each in speedups) if size == 256 else None
    at_scale = {4096, 16384} <= growth.seconds.keys()
    memory = growth.largest.extra_bytes / 2**30 if at_scale else None
    steadiness = growth.per_pair(16384) / growth.per_pair(4096) if at_scale else None
    return [
        Target("UnReMix / bare products, N=1024", 2.0, slowdown(1024, PRODUCTS)),
        Target("UnReMix / bare products, N=4096", 2.0, slowdown(4096, PRODUCTS)),
        Target("UnReMix / HCL as published, N=4096", 1.0, slowdown(4096, PUBLISHED_HCL)),
        Target("per-sample gradients / UnReMix, N=256", 50.0, speedup, at_least=True),
        Target("extra memory at N=16384, GiB", 1.0, memory),
        Target("time per N² at N=16384 / at N=4096", 1.5, steadiness),
    ]


# Output -----------------------------------------------------------------------------------------


def milliseconds(seconds: Sequence[float]) -> str:
    """The median, for a table."""
    return (
        f"{median(seconds) * 1e3:,.0f}" if median(seconds) > 0.1 else f"{median(seconds) * 1e3:.1f}"
    )


def ratio_table() -> Table:
    """The head of the main table."""
    table = Table(title="Forward and backward", title_justify="left")
    table.add_column("N", justify="right")
    table.add_column("contender")
    table.add_column("ms", justify="right")
    table.add_column("UnReMix takes", justify="right")
    table.add_column("by minima", justify="right")
    return table


def add_ratios(table: Table, report: Report, size: int, found: Race) -> None:
    """One line per contender, in the table and in the report."""
    seconds = found.seconds
    report.disturbed += found.disturbed
    for name, values in seconds.items():
        slowdown = ratio(seconds[UNREMIX], values)
        times, minima = f"× {slowdown.medians:.3g}", f"× {slowdown.minima:.3g}"
        table.add_row(f"{size}", name, milliseconds(values), times, minima)
        report.times.append(
            {
                "pairs": size,
                "contender": name,
                "seconds": values,
                "disturbed_in_table": found.disturbed,
                "unremix_by_medians": slowdown.medians,
                "unremix_by_minima": slowdown.minima,
            }
        )
    table.add_section()


def tile_table(report: Report, times: dict[int, Race], settings: Settings) -> Table:
    """Time by tile, relative to ``auto``."""
    table = Table(title="Rows per block (tile): time relative to 'auto'", title_justify="left")
    table.add_column("tile", justify="right")
    for size in times:
        rows = rows_per_block("auto", 2 * size, torch.float32.itemsize)
        table.add_column(f"N={size} (auto: {rows})", justify="right")
    for tile in map(str, settings.tiles):
        found = [ratio(one.seconds[tile], one.seconds["auto"]) for one in times.values()]
        cells = [f"× {one.medians:.2f} (minima {one.minima:.2f})" for one in found]
        table.add_row(tile, *cells)
    for size, one in times.items():
        rows = rows_per_block("auto", 2 * size, torch.float32.itemsize)
        report.tiles.append({"pairs": size, "auto": rows, "seconds": one.seconds})
        report.disturbed += one.disturbed
    return table


def growth_table(report: Report, growth: Growth) -> Table:
    """Time by batch size."""
    title = f"Growth: time ~ N^{growth.exponent:.2f}"
    memory = f"At the largest N the call took {growth.largest.extra_bytes / 2**20:.0f} MiB."
    table = Table(title=title, title_justify="left", caption=memory, caption_justify="left")
    for head in ("N", "ms", "ns per N²", "relative to the first"):
        table.add_column(head, justify="right")
    first = growth.per_pair(min(growth.seconds))
    for size, seconds in growth.seconds.items():
        each = growth.per_pair(size)
        table.add_row(
            f"{size}", milliseconds(seconds), f"{each * 1e9:.0f}", f"× {each / first:.2f}"
        )
    report.disturbed += growth.disturbed
    report.growth = {
        "seconds": {str(size): seconds for size, seconds in growth.seconds.items()},
        "exponent": growth.exponent,
        "extra_bytes_at_largest": growth.largest.extra_bytes,
    }
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small batches, a smoke test")
    parser.add_argument("--sizes", type=int, nargs="+", help="N of the main tables")
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
    if arguments.rounds:
        chosen["rounds"] = arguments.rounds
    if arguments.cpu_time:
        chosen |= {"threads": 1, "clock": "cpu"}
    # Neither overwrites the results of a proper run.
    suffix = "-quick" * arguments.quick + "-cpu-time" * arguments.cpu_time
    name = f"loss{suffix}.json"
    return Settings(**chosen), arguments.output or RESULTS / name, arguments.strict


def main() -> None:
    settings, path, strict = settings_from_arguments()
    torch.set_num_threads(settings.threads)
    console = Console(highlight=False)
    report = Report(machine(), asdict(settings))
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))

    report.agreement = agreement(settings)
    for name, value in report.agreement.items():
        console.print(f"{name} differ by {value:.1e} (value and gradients, relative)")

    table, size = ratio_table(), settings.small_size
    races = [in_fresh_process(measure_small, settings) for _ in range(settings.small_processes)]
    speedups = [ratio(each.seconds[PER_SAMPLE], each.seconds[UNREMIX]) for each in races]
    report.speedups_by_process = [asdict(each) for each in speedups]
    add_ratios(table, report, size, pool(races))
    slow = slow_contenders(settings.batch(size), settings)
    if slow:
        add_ratios(table, report, size, settings.race(slow, settings.slow_rounds))
    else:
        table.add_row(f"{size}", f"{METRIC_LEARNING}: not installed", "", "", "")
        table.add_section()
    times: dict[int, Seconds] = {}
    for size in settings.sizes:
        contenders = main_contenders(settings.batch(size), settings)
        main_race = settings.race(contenders, settings.rounds_at(size))
        add_ratios(table, report, size, main_race)
        times[size] = main_race.seconds
    console.print(table)

    tiles = {size: measure_tiles(size, settings) for size in settings.sizes}
    console.print(tile_table(report, tiles, settings))
    growth = in_fresh_process(measure_growth, settings)
    console.print(growth_table(report, growth))
    errors = [measure_sketch(size, settings) for size in settings.sketch_sizes]
    report.sketch = [asdict(error) for error in errors]
    console.print(sketch_table(errors, settings))

    targets = judge(times, speedups, growth, settings.small_size)
    for target in targets:
        console.print(target.line())
    found = ", ".join(f"{each.medians:.0f} ({each.minima:.0f})" for each in speedups)
    console.print(f"Over per-sample gradients, by process, medians (minima): {found}")
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
