"""What is decided before the first step: options, data, and the run's folder.

Apart from the training itself, so that what is wrong is told before Lightning is imported.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unremix.domains import Domain, find_domain
from unremix.training.config import TrainConfig
from unremix.training.run import Run


def _is_first_process() -> bool:
    """Whether this is the first of the processes, as far as those who start them have said yet."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return next((int(rank) for rank in ranks if rank is not None), 0) == 0


def _folder(config: TrainConfig, data_name: str) -> Path:
    """The folder of a new run; a name that is taken gets a number."""
    base = config.name or f"{data_name}-{config.composed_name}-{config.seed}"
    path, number = Path(config.runs) / base, 2
    while (path / "config.yaml").exists():
        if config.name is not None:
            raise FileExistsError(
                f"expected a new run's name, received {config.name!r}, which exists in "
                f"{config.runs!r}; choose another --name, or --resume {path}"
            )
        path, number = Path(config.runs) / f"{base}-{number}", number + 1
    return path


def check_size(domain: Domain, data: Any, config: TrainConfig) -> None:
    """Refuse data that make no step.

    Raises:
        ValueError: If there are fewer samples than a batch.
    """
    if domain.size(data) < 2 and config.epochs > 0:
        raise ValueError(
            f"expected at least 2 {domain.unit} to train on, since they are each other's "
            f"negatives, received {domain.size(data)}"
        )
    if domain.steps(data, config) < 1 and config.epochs > 0:
        raise ValueError(
            f"expected at least batch_size={config.batch_size} {domain.unit} to train on, received "
            f"{domain.size(data)}; use a smaller --batch_size or more {domain.unit}"
        )


def _resumed(config: TrainConfig) -> tuple[Run, TrainConfig, dict[str, Any]]:
    assert config.resume is not None
    run = Run(config.resume)
    # What was not given has the value that the given recipe and domain bring with them.
    usual = asdict(TrainConfig(recipe=config.recipe, domain=config.domain))
    usual |= {name: asdict(TrainConfig())[name] for name in ("recipe", "domain")}
    changed = [
        name
        for name, value in asdict(config).items()
        if name not in ("resume", "progress", "runs")
        and value != usual[name]
        and value != asdict(run.config)[name]
    ]
    if changed:
        raise ValueError(
            f"expected --resume alone, received {', '.join(changed)} as well: a run goes on with "
            "its own options; start a new run to change them"
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
    domain = find_domain(config.domain)
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("expected a GPU for --accelerator gpu, found none; use cpu or auto")
    domain.check(config)
    data = domain.load(config)
    if run is None:
        shape = domain.shape(data, config)
        domain.build(config, shape)  # what cannot be is refused before anything is written
        check_size(domain, data, config)
        if _is_first_process():
            path = _folder(config, domain.name(data))
            run = Run.create(path, replace(config, name=path.name), shape)
        else:
            run = Run.unwritten(Path(config.runs), config, shape)
        config = replace(run.config, progress=config.progress)
    return Prepared(run, config, data, state)
