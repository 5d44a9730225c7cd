"""What is decided before the first step: options, data, and the run's folder.

Apart from the training itself, so that what is wrong is told before Lightning is imported.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from unremix.domains import Domain, find_domain
from unremix.frameworks.base import Framework
from unremix.training.config import TrainConfig
from unremix.training.initialization import find_weights
from unremix.training.run import Run
from unremix.training.threads import choose_threads

EXTENDED = ("epochs", "max_minutes", "threads")  # what may change when a run is resumed


def _is_first_process() -> bool:
    """Whether this is the first of the processes, as far as those who start them have said yet."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return next((int(rank) for rank in ranks if rank is not None), 0) == 0


def _processes_here(config: TrainConfig) -> int:
    """Processes of the run on this machine."""
    started = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
    if started is not None:
        return int(started)
    return config.devices if isinstance(config.devices, int) else max(1, torch.cuda.device_count())


def _folder(config: TrainConfig, data_name: str) -> Path:
    """The folder of a new run; a name made of data and recipe gets a number if it is taken."""
    base = config.name or f"{data_name}-{config.composed_name}-{config.seed}"
    path, number = Path(config.runs) / base, 2
    while config.name is None and (path / "config.yaml").exists():
        path, number = Path(config.runs) / f"{base}-{number}", number + 1
    return path


def _stopped_early(config: TrainConfig) -> Run | None:
    """The run of this name, if there is one and it was stopped early under the same options.

    Raises:
        FileExistsError: If it has finished, or has other options.
    """
    path = Path(config.runs) / (config.name or "")
    if config.name is None or not (path / "config.yaml").exists():
        return None
    run = Run(path)
    earlier, asked = asdict(run.config), asdict(config)
    ignored = {"resume", "progress", "runs", "threads"}
    changed = [name for name in asked if name not in ignored and asked[name] != earlier[name]]
    if run.evaluation is None and not changed:
        return run
    why = f"with other options ({', '.join(changed)})" if changed else "and is finished"
    raise FileExistsError(
        f"expected a new run's name, received {config.name!r}, which exists in {config.runs!r} "
        f"{why}; choose another --name, or --resume {path} (with --epochs to train it further)"
    )


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
        if name not in ("resume", "progress", "runs", *EXTENDED)
        and value != usual[name]
        and value != asdict(run.config)[name]
    ]
    if changed:
        raise ValueError(
            f"expected --resume alone, received {', '.join(changed)} as well: a resumed run keeps "
            f"its options but for {', '.join(EXTENDED)}; start a new run to change others"
        )
    state = run.load_checkpoint()
    longer = {
        name: getattr(config, name)
        for name in EXTENDED
        if getattr(config, name) not in (None, getattr(run.config, name))
    }
    if not config.epochs_given:  # type: ignore[attr-defined]
        longer.pop("epochs", None)
    done = int(state["rows"][-1]["epoch"]) if state["rows"] else 0
    if longer.get("epochs", done) < done:
        raise ValueError(
            f"expected --epochs of at least the {done} that {run.path} has trained, got "
            f"{config.epochs}"
        )
    if longer.keys() - {"threads"}:
        state["stopped"] = False  # by max_minutes
    return run, replace(run.config, progress=config.progress, **longer), state


@dataclass
class Prepared:
    """All that is decided before the first step.

    Args:
        run: The run's folder.
        config: Its options.
        data: Its data.
        state: The checkpoint to continue from, if any.
        model: The model, not trained yet; None to have it built.
        made: Whether the run's folder was made for it.
        begun: Whether a step has been made.
    """

    run: Run
    config: TrainConfig
    data: Any
    state: dict[str, Any] | None
    model: Framework | None = None
    made: bool = False
    begun: bool = False

    def discard(self) -> None:
        """Remove the folder of a run that came to nothing."""
        if self.made and not self.begun:
            rmtree(self.run.path, ignore_errors=True)


def prepare(config: TrainConfig) -> Prepared:
    """Load the data and make, or find again, the run's folder.

    Raises:
        ValueError: For options or data that no run can be made of.
    """
    run, state, made = None, None, False
    earlier = None if config.resume is not None else _stopped_early(config)
    if earlier is not None and earlier.checkpoint.exists():
        config = replace(
            earlier.config,
            progress=config.progress,
            threads=config.threads or earlier.config.threads,
            resume=str(earlier.path),
        )
    if config.resume is not None:
        run, config, state = _resumed(config)
    domain = find_domain(config.domain)
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("expected a GPU for --accelerator gpu, found none; use cpu or auto")
    domain.check(config)
    if config.init is not None and state is None:
        find_weights(config.init)
    data = domain.load(config)
    shape = domain.shape(data, config) if run is None else run.shape
    # What cannot be is refused before anything is written. Without processes nothing is gathered.
    model = domain.build(config, shape, gather=True)
    if run is None:
        check_size(domain, data, config)
        if config.threads is None:
            config = replace(config, threads=choose_threads(_processes_here(config)))
        if _is_first_process():
            path = _folder(config, domain.name(data))
            made = not path.exists()
            run = Run.create(path, replace(config, name=path.name), shape)
        else:
            run = Run.unwritten(Path(config.runs), config, shape)
        config = replace(run.config, progress=config.progress)
    else:
        run.extend(config, write=_is_first_process())
    return Prepared(run, config, data, state, model, made)
