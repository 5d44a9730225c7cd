"""Time a step of 1 to 4 processes, compare it with the simulator, and extrapolate to 1,024 GPUs.

    python benchmarks/scaling.py [--quick] [--rounds 3] [--strict]

How to read the tables. UnReMix on SimCLR with ResNet-18 of width 16 at 32 pixels. The joint batch
is the same for any number of processes, and each process has one thread. "gather" is the time in
the exchanges of the negatives, of the process that waited least for the others, as a share of the
step.
The simulator (cluster.py) is given what one process reaches, and how long two small and two large
messages take between two processes. It predicts the rest. The last table is a prediction for GPUs
that were not measured; docs/scaling.md states its assumptions. All numbers go to
benchmarks/results/scaling.json.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from cost_model import Job, Machine, all_reduce_bytes, gathered_bytes, step_seconds
from measuring import conclude, read_options, show_race
from rich.console import Console
from rich.table import Table
from timing import Race, seconds_of_others
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from unremix.domains import find_domain
from unremix.domains.base import make_batch
from unremix.domains.image.views import ImageShape
from unremix.domains.options import TrainConfig
from unremix.training.building import build_model
from unremix.training.optimizers import make_optimizer

COUNTS = (1, 2, 3, 4)
LEAST_THROUGHPUT = 0.9  # of two processes, against one with two threads
MOST_GATHER = 0.05
SMALL, LARGE = 1 << 8, 1 << 21  # numbers of a message
WARM_UP = 2  # steps
SHAPE = ImageShape(3, 32, "cifar")

# One of eight A100 of a node with one 200 Gb/s adapter each; see docs/scaling.md.
GPU = Machine(
    operations=0.4 * 156e12,
    latency=5e-6,
    bandwidth=200e9,
    per_node=8,
    node_latency=15e-6,
    node_bandwidth=20e9,
    hidden=0.8,
)
RESNET50 = Job(
    batch=4096, embedding=128, inputs=2048, parameters=28_000_000, sample_operations=49e9
)
GPUS = (1, 8, 64, 256, 1024)


def step_of(config: TrainConfig, processes: int, rank: int) -> Callable[[], None]:
    """A training step of one of the processes."""
    domain = find_domain("image")
    model = build_model(config, SHAPE, gather=processes > 1).train()
    optimizer = make_optimizer(
        model, model.undecayed(), name="adam", lr=config.lr, weight_decay=config.weight_decay
    )
    wrapped = DistributedDataParallel(model) if processes > 1 else model
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (config.batch_size, 3, 32, 32), generator=generator)
    indices = torch.arange(config.batch_size).tensor_split(processes)[rank]
    images = pixels.to(torch.uint8)[indices]

    def step() -> None:
        optimizer.zero_grad()
        batch = make_batch(domain, images, indices, model, config, SHAPE, step=0, epoch=0)
        wrapped(batch).backward()
        optimizer.step()

    return step


class Stopwatch:
    """Adds up the seconds of the exchanges that the losses make."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("all_gather", "all_reduce"):
            setattr(dist, name, self.timed(getattr(dist, name)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds += time.perf_counter() - start
            return result

        return call


def message_times() -> dict[int, float]:
    """Median seconds of an all-reduce of a small and of a large message."""
    found = {}
    for size in (SMALL, LARGE):
        values, seconds = torch.ones(size), []
        for _ in range(12):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            seconds.append(time.perf_counter() - start)
        found[size] = median(seconds)
    return found


def work(rank: int, processes: int, threads: int, steps: int, batch: int, folder: str) -> None:
    """One process: write the seconds of its steps, and of the exchanges in each."""
    torch.set_num_threads(threads)
    messages = {}
    if processes > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=processes,
            timeout=timedelta(minutes=5),
        )
        messages = message_times()
    config = TrainConfig(
        recipe="unremix-simclr", backbone="resnet18", width=16, batch_size=batch, temperature=0.5
    )
    step, watch = step_of(config, processes, rank), Stopwatch()
    seconds, gathers = [], []
    for number in range(WARM_UP + steps):
        if processes > 1:
            dist.barrier()
        start, watch.seconds = time.perf_counter(), 0.0
        step()
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - start)
            gathers.append(watch.seconds)
    torch.save((seconds, gathers, messages), f"{folder}/{rank}.pt")
    if processes > 1:
        dist.destroy_process_group()


def measure(
    processes: int, threads: int, steps: int, batch: int
) -> tuple[list[float], list[float], dict[int, float]]:
    """Seconds of each step, of the slowest process; of its gathers, of the fastest; of messages."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            work, (processes, threads, steps, batch, folder), nprocs=processes, start_method="spawn"
        )
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(processes)]
    seconds = [max(each) for each in zip(*(one[0] for one in found), strict=True)]
    gathers = [min(each) for each in zip(*(one[1] for one in found), strict=True)]
    return seconds, gathers, found[0][2]


def job_of(batch: int) -> Job:
    """What a step costs, counted on few samples."""
    few = 8
    config = TrainConfig(recipe="unremix-simclr", backbone="resnet18", width=16, batch_size=few)
    model = build_model(config, SHAPE)
    with FlopCounterMode(display=False) as counted:
        z, _ = model.embed(torch.randn(few, 3, 32, 32))
        z.sum().backward()
    parameters = sum(each.numel() for each in model.parameters())
    inputs = config.head_hidden[-1]
    return Job(batch, config.head_output, inputs, parameters, 2 * counted.get_total_flops() / few)


def calibrated(job: Job, alone: float, messages: dict[int, float], cores: int) -> Machine:
    """The machine that takes this long for a step of one process, and for messages of two."""
    rate = Machine(operations=1.0)
    small, large = messages[SMALL], messages[LARGE]
    return Machine(
        operations=step_seconds(job, 1, rate).total / alone,
        at_once=cores,
        latency=small / 2,  # forth and back
        bandwidth=all_reduce_bytes(4 * (LARGE - SMALL), 2) / max(large - small, 1e-9),
    )


def show_prediction(job: Job, machine: Machine, measured: dict[int, float]) -> dict[int, float]:
    """Print measured and simulated seconds of a step; return their ratios."""
    table = Table(title="The simulator")
    for heading in ("processes", "measured ms", "simulated ms", "ratio", "gather, simulated"):
        table.add_column(heading, justify="right")
    ratios = {}
    for count, seconds in measured.items():
        step = step_seconds(job, count, machine)
        ratios[count] = step.total / seconds
        table.add_row(
            str(count), f"{1000 * seconds:.0f}", f"{1000 * step.total:.0f}",
            f"{ratios[count]:.2f}", f"{step.gather / step.total:.1%}",
        )  # fmt: skip
    Console().print(table)
    return ratios


def show_gpus() -> list[dict[str, object]]:
    """Print, and return, what the simulator says of GPUs: a fixed batch, then one that grows."""
    rows: list[dict[str, object]] = []
    cases = {
        "batch 4,096": (RESNET50, False),
        "64 per GPU": (RESNET50, True),
        "… with sketch 64": (replace(RESNET50, inputs=64), True),
    }
    table = Table(title="ResNet-50, 224 px, simulated on A100")
    for heading in ("", "GPUs", "batch", "MB", "ms", "loss", "gather", "efficient"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, (job, grows) in cases.items():
        for count in GPUS:
            here = replace(job, batch=64 * count) if grows else job
            step, alone = step_seconds(here, count, GPU), step_seconds(here, 1, GPU)
            size = gathered_bytes(here, count)
            row: dict[str, object] = {
                "case": name, "gpus": count, "batch": here.batch, "gathered_bytes": size,
                "seconds": step.total, **asdict(step),
                "efficiency": alone.total / (count * step.total),
            }  # fmt: skip
            rows.append(row)
            table.add_row(
                name if count == GPUS[0] else "", str(count), str(here.batch),
                f"{size / 1e6:.0f}", f"{1000 * step.total:.0f}",
                f"{step.loss / step.total:.1%}", f"{step.gather / step.total:.1%}",
                f"{alone.total / (count * step.total):.0%}",
            )  # fmt: skip
    Console().print(table)
    return rows


def seconds_of_strangers() -> float:
    """CPU time of all processes but this one and those that it started and that have ended."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds_of_others() - own.ru_utime - own.ru_stime


def main() -> int:
    """Measure, simulate, print, save."""
    options = read_options(__doc__ or "", rounds=3)
    batch, steps = (64, 2) if options.quick else (512, 4)
    cores = os.cpu_count() or 1
    cases = {f"{count} × 1 thread": (count, 1) for count in COUNTS} | {"1 × 2 threads": (1, 2)}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    gathers: dict[str, list[float]] = {name: [] for name in cases}
    messages: list[dict[int, float]] = []
    disturbed = 0
    for _ in range(options.rounds):
        for name, (count, threads) in cases.items():
            start, strangers = time.perf_counter(), seconds_of_strangers()
            taken, gathered, small_and_large = measure(count, threads, steps, batch)
            elapsed = time.perf_counter() - start
            busy = seconds_of_strangers() - strangers > 0.05 * elapsed * cores
            disturbed += steps if busy else 0
            seconds[name] += taken
            gathers[name] += gathered
            if count == 2:
                messages.append(small_and_large)
    found = Race(seconds, disturbed)
    ratios = show_race(
        found,
        f"A step: ResNet-18, width 16, 32 px, joint batch {batch}, {cores} cores",
        reference="1 × 2 threads",
        column="ms",
        amount=lambda value: f"{1000 * value:.0f}",
        faster=True,
    )
    shares = {name: median(gathers[name]) / median(seconds[name]) for name in cases}
    two = "2 × 1 thread"
    Console().print(f"gather: {shares[two]:.1%} of the step of two processes")
    job = job_of(batch)
    fastest = {size: min(each[size] for each in messages) for size in (SMALL, LARGE)}
    measured = {count: median(seconds[f"{count} × 1 thread"]) for count in COUNTS}
    machine = calibrated(job, measured[1], fastest, cores)
    agreement = show_prediction(job, machine, measured)
    targets = {
        f"two processes at least {LEAST_THROUGHPUT} × one with two threads": ratios[two].medians
        >= LEAST_THROUGHPUT,
        f"gather at most {MOST_GATHER:.0%}": shares[two] <= MOST_GATHER,
    }
    return conclude(
        "scaling",
        options,
        found,
        ratios,
        targets,
        settings={"batch": batch, "width": 16, "cores": cores},
        further={
            "gather_shares": shares,
            "job": asdict(job),
            "machine_found": asdict(machine),
            "simulated_over_measured": agreement,
            "gpus": show_gpus(),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
