"""Several processes that run a task together, and the losses that they are asked about."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.losses import TwoViewLoss

Report = dict[Any, Any]  # what one process found, by what it was asked

COUNTING = "COVERAGE_PROCESS_CONFIG"  # with it in its environment, a process counts its lines
counting: str | None = None  # its value under coverage, for the processes here

LOSSES: dict[str, Callable[..., TwoViewLoss]] = {
    "info-nce": InfoNCELoss,
    "debiased": partial(InfoNCELoss, class_prior=0.1),
    "hcl": partial(HCLLoss, hardness=2.0),
    "minmax": UnReMixLoss,
    "similarity gradient": partial(UnReMixLoss, similarity_gradient=True),
    "zscore-exp": partial(UnReMixLoss, scaling="zscore-exp"),
    "nt-xent": partial(UnReMixLoss, gradient="nt-xent", temperature=0.3),
    "free": partial(UnReMixLoss, mix="free", tile=2),
}


def processes(world: int, task: Callable[[int], Report], folder: Path) -> list[Report]:
    """What each of ``world`` processes found."""
    # Forked from one process that has imported torch: importing takes longer than the work.
    multiprocessing.set_forkserver_preload(["unremix"])
    with pytest.MonkeyPatch.context() as patch:
        if counting is not None:
            patch.setenv(COUNTING, counting)
        torch.multiprocessing.start_processes(
            _work, (world, task, str(folder)), nprocs=world, start_method="forkserver"
        )
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _work(rank: int, world: int, task: Callable[[int], Report], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    torch.save(task(world), f"{folder}/{rank}.pt")
    dist.destroy_process_group()
