"""What is decided before the first step: options, data, and the run's folder.

Apart from the training itself, so that mistakes are reported before Lightning is imported.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unremix.domains import Domain, find_domain
from unremix.encoders import make_encoder
from unremix.training.config import TrainConfig
from unremix.training.run import Run


def _is_first_process() -> bool:
    """Whether this is the first of the processes, as far as those who start them have said yet."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return next((int(rank) for rank in ranks if rank is not None), 0) == 0


def _folder(config: TrainConfig, data_name: str) -> Path:
    """The folder of a new run; a name made up for it gets a number where it is taken."""
    base = config.name or f"{data_name}-{config.composed_name}-{config.seed}"
    path, number = Path(config.runs) / base, 2
    while config.name is None and (path / "config.yaml").exists():
        path, number = Path(config.runs) / f"{base}-{number}", number + 1
    return path


def check(config: TrainConfig) -> None:
    """Refuse everything that can be refused before the data are read.

    Raises:
        ValueError: For options that contradict each other or this machine.
        FileExistsError: If the name is taken.
        ImportError: If a package is missing.
    """
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("expected a GPU for --accelerator gpu, got none; use cpu or auto")
    if config.name is not None and (Path(config.runs) / config.name / "config.yaml").exists():
        raise FileExistsError(
            f"expected a new run's name, got {config.name!r}, which exists in {config.runs!r}; "
            f"choose another --name, or --resume {Path(config.runs) / config.name}"
        )
    needed = {"lightning": ("lightning", 'pip install "unremix[train]"')}
    needed |= {
        logger: (f"--loggers {logger}", f"pip install {logger}") for logger in config.loggers
    }
    for package, (what, command) in needed.items():
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"expected {package} to be installed for {what}, got none; {command}")
    find_domain(config.domain).check(config)
    if config.domain == "image":
        with torch.random.fork_rng(devices=[]):
            _check_encoder(config)
            # The parts together, around layers of size 1: the images decide the real ones.
            config.composition().make_framework(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)))


def _check_encoder(config: TrainConfig) -> None:
    source, colon, _ = config.backbone.partition(":")
    if colon and source:
        package = source.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"expected {package} to be installed for --backbone {config.backbone}, got none; "
                "install it, or check the spelling"
            )
    elif config.backbone != "auto":
        make_encoder(config.backbone, channels=1, image_size=32, width=1, stem=config.stem)


def auto_batch(size: int) -> int:
    """256, or the largest power of two that gives at least 4 steps an epoch, never below 16.

    Example:
        >>> auto_batch(5000), auto_batch(1000), auto_batch(70), auto_batch(20)
        (256, 128, 16, 16)
    """
    return max(16, min(256, 1 << max(0, (size // 4).bit_length() - 1)))


def fit_to(domain: Domain, data: Any, config: TrainConfig) -> TrainConfig:
    """The options with the batch size that the data call for, where it is auto.

    Raises:
        ValueError: If there are fewer samples than a batch.
    """
    if config.batch_size == "auto":  # type: ignore[comparison-overlap]
        config = replace(config, batch_size=auto_batch(domain.size(data)))  # type: ignore[unreachable]
    if domain.size(data) < 2 and config.epochs > 0:
        raise ValueError(
            f"expected at least 2 {domain.unit} to train on, since they are each other's "
            f"negatives, got {domain.size(data)}; add {domain.unit}"
        )
    if domain.steps(data, config) < 1 and config.epochs > 0:
        raise ValueError(
            f"expected at least batch_size={config.batch_size} {domain.unit} to train on, got "
            f"{domain.size(data)}; use a smaller --batch_size or more {domain.unit}"
        )
    return config


def _resumed(config: TrainConfig) -> tuple[Run, TrainConfig, dict[str, Any]]:
    assert config.resume is not None
    assert config.given is not None
    run = Run(config.resume)
    changed = [
        name
        for name in sorted(config.given - {"resume", "progress", "runs"})
        if getattr(config, name) != getattr(run.config, name)
    ]
    if changed:
        raise ValueError(
            f"expected --resume alone, got {', '.join(changed)} as well; a resumed run keeps its "
            "options: leave them out, or start a new run"
        )
    return run, replace(run.config, progress=config.progress), run.load_checkpoint()


@dataclass
class Prepared:
    """All that is decided before the first step.

    Args:
        run: The run's folder.
        config: Its options.
        data: Its data.
        state: The checkpoint to go on from, if any.
    """

    run: Run
    config: TrainConfig
    data: Any
    state: dict[str, Any] | None


def prepare(config: TrainConfig) -> Prepared:
    """Load the data and make, or find again, the run's folder.

    Raises:
        ValueError: For options or data that no run can be made of.
    """
    run, state = None, None
    if config.resume is not None:
        run, config, state = _resumed(config)
    else:
        check(config)
    domain = find_domain(config.domain)
    data = domain.load(config)
    if run is None:
        shape = domain.shape(data, config)
        domain.build(config, shape)  # what cannot be is refused before anything is written
        config = fit_to(domain, data, config)
        if _is_first_process():
            path = _folder(config, domain.name(data))
            run = Run.create(path, replace(config, name=path.name), shape)
        else:
            run = Run.unwritten(Path(config.runs), config, shape)
        config = replace(run.config, progress=config.progress)
    return Prepared(run, config, data, state)
