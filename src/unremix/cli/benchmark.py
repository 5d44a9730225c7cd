"""``unremix doctor --benchmark``: what losses and steps take on this device, in one file.

It takes less than two minutes. The file names versions, processor and device, and nothing else of
the machine, so that it can be sent with an issue.
"""

from __future__ import annotations

import json
import platform
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

import unremix
from unremix.console.quantities import amount
from unremix.core.engines import engine_report
from unremix.domains.options import make_config
from unremix.experiments.dry_run import estimate
from unremix.files.atomic_files import write_text
from unremix.losses import HCLLoss, InfoNCELoss, TwoViewLoss, UnReMixLoss
from unremix.training.freed_memory import keep_freed_memory
from unremix.training.precision import cpu_speed, device_kind, processor

PAIRS, FEATURES, HIDDEN = (256, 1024, 4096), 128, 512
SECONDS = 1.0  # for the calls of a loss, about
LOSSES_SECONDS = 40.0  # after which no other one begins
STEP_SECONDS = 12.0  # for all steps of a setting, about
WIDTHS = {"cpu": (16,), "mps": (16,), "cuda": (16, 64)}


def time_loss(loss_fn: TwoViewLoss, pairs: int, device: str) -> dict[str, Any]:
    """Forward and backward of so many pairs: median milliseconds and, on a GPU, bytes."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    names: dict[str, Any] = {"loss_fn": loss_fn.to(device)}
    for name, width in (("z0", FEATURES), ("z1", FEATURES), ("h0", HIDDEN), ("h1", HIDDEN)):
        names[name] = torch.randn(pairs, width, device=device, requires_grad=name[0] == "z")
    call, threads = "loss_fn(z0, z1, h0, h1).backward()", torch.get_num_threads()
    if device == "mps":  # for which the timers of older versions do not wait
        call += "; torch.mps.synchronize()"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no optimizer that would move the mix
        timer = Timer(call, globals=names, num_threads=threads)
        took = timer.blocked_autorange(min_run_time=SECONDS)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    found = {"loss": type(loss_fn).__name__, "pairs": pairs, "ms": 1000 * took.median}
    return {**found, "bytes": memory}


def time_step(width: int, precision: str) -> dict[str, Any]:
    """A step of UnReMix on ResNet-18: samples per second, and bytes where known."""
    options = {"backbone": "resnet18", "width": width, "image_size": 32, "batch_size": 256}
    options["precision"] = precision
    config = make_config({"recipe": "unremix-simclr", "data": "digits", "epochs": 1, **options})
    found = estimate(config, seconds=STEP_SECONDS)
    speed = config.batch_size / found.step_seconds
    return {**options, "samples_per_second": speed, "bytes": found.memory}


def benchmark(path: Path) -> None:
    """Measure, print, and write the file."""
    device, started = device_kind("auto"), time.perf_counter()
    keep_freed_memory()
    with torch.random.fork_rng(devices=[]):
        losses = [
            time_loss(make(), pairs, device)
            for pairs in PAIRS
            for make in (InfoNCELoss, HCLLoss, UnReMixLoss)
            if time.perf_counter() - started < LOSSES_SECONDS
        ]
        for one in losses:
            print(f"{one['loss']}, {one['pairs']:,} pairs: {one['ms']:.1f} ms")
        steps = [
            time_step(width, precision)
            for width in WIDTHS[device]
            for precision in ("32-true", "bf16-mixed")
        ]
    for one in steps:
        memory = "" if one["bytes"] is None else f", {amount(one['bytes'])}"
        print(
            f"ResNet-18 of width {one['width']}, {one['precision']}: "
            f"{one['samples_per_second']:,.0f} images/s{memory}"
        )
    found = {
        "unremix": unremix.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "engine": engine_report(),
        "gflops_of_a_cpu_thread": asdict(cpu_speed()),
        "losses": losses,
        "steps": steps,
        "seconds": time.perf_counter() - started,
    }
    write_text(path, json.dumps(found, indent=1))
    print(f"{path}: written in {found['seconds']:.0f} s; it can be sent with an issue")
