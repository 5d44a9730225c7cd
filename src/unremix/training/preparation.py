"""What is decided before the first step: options, data, and the run's folder.

Apart from the training itself, so that mistakes are reported before Lightning is imported.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, replace
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import nn

from unremix.domains import Domain, find_domain
from unremix.domains.options import OF_A_CALL, TrainConfig
from unremix.files.atomic_files import refuse_link, sweep, try_lock
from unremix.frameworks.base import Framework, auto_batch
from unremix.frameworks.recipe import Composition
from unremix.training.building import (
    build_model,
    outline_model,
    outlined,
    refuse_giant,
    refuse_other,
    settled,
)
from unremix.training.compiling import FEWEST
from unremix.training.export import export_facts, write_weights
from unremix.training.finding import find_weights, initialize, ready_encoder
from unremix.training.ready import ReadyEncoder
from unremix.training.record import differences, versions
from unremix.training.run import STARTED, Run
from unremix.training.threads import choose_threads

FEW_PROCESSES = 8  # that any machine can run
OF_A_START = ("freeze", "freeze_statistics", "keep", "least_kept")
EXTENDED = ("epochs", "max_minutes", "threads")  # what may change when a run is resumed


def _is_first_process() -> bool:
    """Whether this is the first of the processes, by the launcher's environment variables."""
    if "RANK" in os.environ:  # torchrun, also within a SLURM job, whose numbers are not its own
        return os.environ["RANK"] == "0"
    places = ("SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in places)


def processes_here(config: TrainConfig) -> int:
    """Processes of the run on this machine."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"])
    if isinstance(config.devices, int):
        return config.devices
    if "SLURM_NTASKS_PER_NODE" in os.environ:
        return int(os.environ["SLURM_NTASKS_PER_NODE"])
    return 1 if config.accelerator == "cpu" else max(1, torch.cuda.device_count())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only process that writes a run's folder; remove what killed ones left there.

    Raises:
        BlockingIOError: If another process is.
    """
    lock = try_lock(path / ".lock")
    if lock is None:
        raise BlockingIOError(
            f"expected no other process to write {path}, found one; wait for it, or start a run of "
            "another name"
        )
    try:
        for folder in (path, path / "checkpoints", path / "figures"):
            sweep(folder)
        yield
    finally:
        os.close(lock)


def _claim(config: TrainConfig, data_name: str, locks: ExitStack) -> tuple[Path, bool]:
    """The folder of a new run, locked; a default name that is taken gets a number.

    Returns:
        The folder, and whether it was made here.
    """
    base = config.name or f"{data_name}-{config.composed_name}-{config.seed}"
    for number in count(1):
        path = Path(config.runs) / (base if number == 1 else f"{base}-{number}")
        made = not path.exists()
        try:
            locks.enter_context(locked(path))
        except BlockingIOError:
            if config.name is not None:
                raise
            continue
        if not (path / "config.yaml").exists():
            return path, made
        locks.close()
        if config.name is not None:
            raise FileExistsError(f"expected a new run's name, got {config.name!r}, which exists")
    raise AssertionError("numbers end")


def _stopped_early(config: TrainConfig) -> Run | None:
    """The run of this name, if there is one and it was stopped early under the same options.

    Raises:
        FileExistsError: If it has finished, or has other options.
    """
    path = Path(config.runs) / (config.name or "")
    if config.name is None or not (path / "config.yaml").exists():
        return None
    taken = f"expected a new run's name, got {config.name!r}, which exists in {config.runs!r}"
    try:
        run = Run(path)
    except (OSError, ValueError) as error:
        raise FileExistsError(f"{taken} and cannot be read; choose another --name") from error
    earlier, asked = run.config.options(), config.options()
    ignored = {*OF_A_CALL, "resume", "progress", "runs", "threads"}
    ignored |= {name for name in ("batch_size", "compile", "precision") if asked[name] == "auto"}
    changed = [name for name in asked if name not in ignored and asked[name] != earlier.get(name)]
    if run.evaluation is None and not changed:
        return run
    why = f"with other options ({', '.join(changed)})" if changed else "and is finished"
    raise FileExistsError(
        f"{taken} {why}; choose another --name, or --resume {path} (with --epochs to train further)"
    )


def check_machine(config: TrainConfig) -> None:
    """Refuse options that this machine does not have the devices or packages for.

    Raises:
        ValueError: If devices are missing.
        ImportError: If a package is missing.
    """
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("expected a GPU for --accelerator gpu, got none; use cpu or auto")
    most = max(FEW_PROCESSES, os.cpu_count() or 1, torch.cuda.device_count())
    if isinstance(config.devices, int) and config.devices > most:
        raise ValueError(
            f"expected at most {most} processes on this machine, got --devices {config.devices}; "
            "use as many as it has cores or GPUs"
        )
    needed = {"lightning": ("lightning", 'pip install "unremix[train]"')}
    needed |= {name: (f"--loggers {name}", f"pip install {name}") for name in config.loggers}
    for package, (what, command) in needed.items():
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"expected {package} to be installed for {what}, got none; {command}")


def check(config: TrainConfig) -> None:
    """Refuse everything that can be refused before the data are read.

    Raises:
        ValueError: For options that contradict each other or this machine.
        ImportError: If a package is missing.
    """
    check_machine(config)
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        _check_restarts(config)
    if config.strategy == "fsdp" and (config.chunk is not None or config.audit_every is not None):
        raise ValueError(
            "expected --strategy fsdp without --chunk and --audit_every, which need whole "
            "gradients, got one of them; leave it out, or use ddp"
        )
    if not config.starts:
        usual = TrainConfig(domain=config.domain)
        useless = [name for name in OF_A_START if getattr(config, name) != getattr(usual, name)]
        if useless:
            raise ValueError(
                f"expected --encoder or --init with --{useless[0]}, got random weights to start "
                "from; name an encoder, or leave it out"
            )
    composition = config.composition()
    if config.strategy == "fsdp" and not getattr(composition.framework, "is_divisible", True):
        raise ValueError(
            "expected --strategy fsdp with a framework whose parameters can be divided, got "
            f"{composition.parts['framework']}; use ddp"
        )
    domain, framework = find_domain(config.domain), None
    domain.check(config)
    if config.init is not None and config.init.partition(":")[0] not in domain.prefixes:
        find_weights(config.init)
    with torch.random.fork_rng(devices=[]):
        composition.make_loss()
        if composition.parts["framework"] not in domain.frameworks:
            framework = _around_nothing(composition, domain.sizes)
    if config.audit_every is not None and not composition.has_weights:
        raise ValueError(
            f"expected a framework with negatives for --audit_every, got {config.recipe!r}, "
            "which has none; leave it out"
        )
    if config.chunk is not None and getattr(framework, "remembers_features", False):
        raise ValueError(
            f"expected no chunk with evidence that remembers features, got chunk={config.chunk}"
            "; leave out one of them"
        )


def _around_nothing(composition: Composition, sizes: str) -> Framework:
    """The parts together, without numbers if they can do without.

    They are put around layers of size 1: the data decide the real ones.
    """

    def make() -> Framework:
        return composition.make_framework(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)))

    outline = outlined(make, sizes)
    refuse_giant(outline, sizes)
    return make() if outline is None else outline


def _check_restarts(config: TrainConfig) -> None:
    """Refuse what torchrun could not restart."""
    if config.name is None:
        raise ValueError(
            "expected --name with torchrun --max_restarts, got none, so that a restart would begin "
            "a new run; add --name"
        )
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # https://github.com/pytorch/pytorch/issues/135712: addresses of an earlier attempt
        raise ValueError(
            "expected TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun "
            "--max_restarts, got none, so that restarted processes may look for those that ended; "
            "set it"
        )


def fit_to(domain: Domain, data: Any, config: TrainConfig) -> TrainConfig:
    """The options, with the batch size that suits the data in place of auto.

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


def _resumed(config: TrainConfig) -> tuple[Run, TrainConfig, dict[str, Any] | None]:
    assert config.resume is not None
    assert config.given is not None
    run = Run(config.resume, trust=config.trust)
    refuse_link(run.checkpoint.parent)
    # Code that was typed as well is not the folder's.
    typed = set(run.config.code) <= set(config.code)
    run.config = run.config.trusted(trust=typed, where=str(run.path))
    changed = [
        name
        for name in sorted(config.given - {*OF_A_CALL, "resume", "progress", "runs", *EXTENDED})
        # Where one of the two has no such option, they are of different kinds of data.
        if getattr(config, name, None) not in ("auto", getattr(run.config, name, MISSING))
    ]
    if changed:
        raise ValueError(
            f"expected --resume alone, got {', '.join(changed)} as well; a resumed run keeps its "
            f"options but for {', '.join(EXTENDED)}: leave the others out, or start a new run"
        )
    # A run that was stopped before its first checkpoint begins again, under its options. The other
    # processes get the checkpoint from the first: they might find another one, or none.
    state = run.load_checkpoint() if run.has_checkpoint and _is_first_process() else None
    asked = {name: getattr(config, name) for name in config.given.intersection(EXTENDED)}
    longer = {name: one for name, one in asked.items() if one != getattr(run.config, name)}
    done = int(state["rows"][-1]["epoch"]) if state is not None and state["rows"] else 0
    if longer.get("epochs", done) < done:
        raise ValueError(
            f"expected --epochs of at least the {done} that {run.path} has trained, got "
            f"{config.epochs}; give a larger number"
        )
    if state is not None and longer.keys() - {"threads"}:
        state["stopped"] = False  # by max_minutes
    longer |= {"progress": config.progress, "profile": config.profile}
    # Wherever the folder is now.
    return run, replace(run.config, runs=str(run.path.parent), **longer), state


def _check_record(
    run: Run, earlier: dict[str, Any], now: dict[str, Any], *, any_data: bool
) -> None:
    """Refuse other data than those of the checkpoint, and warn of what may change the bits."""
    if earlier.get("data", now["data"]) != now["data"] and not any_data:
        raise ValueError(
            f"expected the data that {run.path} was trained on, got others from "
            f"{run.config.data!r}; restore them, or add --allow_changed_data"
        )
    if changed := differences(earlier, now):
        warnings.warn(
            f"{run.path} resumes with {changed}: its results may differ in the last bits from "
            "those of a run that was never stopped",
            stacklevel=4,
        )


@dataclass
class Prepared:
    """All that is decided before the first step."""

    run: Run
    config: TrainConfig
    data: Any
    state: dict[str, Any] | None  # the checkpoint to continue from, if any
    record: dict[str, Any] = field(default_factory=dict)  # what the bits depend on besides options
    model: Framework | None = None  # the model, not trained yet; None to have it built
    said: str = ""  # about the weights that it starts from
    made: bool = False  # whether the run's folder was made for it
    begun: bool = False  # whether a step has been made
    unlock: Callable[[], object] = lambda: None  # lets other processes write the run's folder

    def discard(self) -> None:
        """Remove the folder of a run that never made a step."""
        if self.made and not self.begun:
            rmtree(self.run.path, ignore_errors=True)


def prepare(config: TrainConfig) -> Prepared:
    """Load the data and make, or find again, the run's folder.

    Raises:
        ValueError: For options or data that no run can be made of.
    """
    first = _is_first_process()
    # The other processes get the first one's options, and need not see its folder.
    earlier = _stopped_early(config) if first and config.resume is None else None
    if earlier is not None:
        config = replace(
            earlier.config,
            progress=config.progress,
            profile=config.profile,
            threads=config.threads or earlier.config.threads,
            resume=str(earlier.path),
            allow_changed_data=config.allow_changed_data,
            from_file=False,  # all that it names was asked for
        )
    with ExitStack() as locks:
        if config.resume is not None and first and Path(config.resume).is_dir():
            locks.enter_context(locked(Path(config.resume)))
        prepared = _prepare(config, locks)
        # Locked until somebody unlocks it, or as long as what was prepared lives.
        prepared.unlock = weakref.finalize(prepared, locks.pop_all().close)
    return prepared


def started(config: TrainConfig, start: ReadyEncoder) -> TrainConfig:
    """The options of a run that starts from a ready encoder: those that build it are its own.

    Raises:
        ValueError: If it is for another kind of data.
    """
    if start.config.domain != config.domain:
        raise ValueError(
            f"expected an encoder of {find_domain(config.domain).unit}, got {start.name}, one of "
            f"{start.domain.unit}; add --domain {start.config.domain}"
        )
    named = start.config.encoder or start.name
    return replace(config, own=start.config.own, encoder=named)


def _prepare(config: TrainConfig, locks: ExitStack) -> Prepared:
    asked, run, state, made = config, None, None, False
    if config.resume is not None:
        run, config, state = _resumed(config)
        check_machine(config)
    else:
        check(config)
    domain = find_domain(config.domain)
    start = None
    if config.encoder is not None and (run is None or not run.has_checkpoint):
        start = ready_encoder(config, trust=config.trust)
        config = start.config = started(config, start)
    reads = start or run
    if config.encoder is not None and reads is not None:  # it decides how the data are read
        data = domain.load_for(reads, None)
    else:
        data = domain.load(config)
    config = settled(config)
    known = start or (None if state is None else run)
    shape = domain.shape(data, config) if known is None else known.shape
    outline = outline_model(config, shape)
    if run is not None and state is not None:
        refuse_other(outline, state["model"], str(run.checkpoint))
    # Build now, so that bad options fail before the folder exists. One process gathers nothing.
    model = build_model(config, shape, gather=True, outline=outline)
    untrained = deepcopy(model.encoder).eval()
    said = "" if state is not None else initialize(model, config, shape, start)
    begun = None if state is not None or not config.starts else deepcopy(model.encoder).eval()
    if run is None:
        config = fit_to(domain, data, config)
        if config.threads is None:
            config = replace(config, threads=choose_threads(processes_here(config)))
        if config.compile == "auto" and config.epochs * domain.steps(data, config) < FEWEST:
            config = replace(config, compile=False)
    threads = config.threads or torch.get_num_threads()  # of each process
    record = {"data": domain.fingerprint(data), "threads": threads, **versions()}
    first = _is_first_process()
    if run is not None and state is not None:
        _check_record(run, state.get("record", {}), record, any_data=asked.allow_changed_data)
        run.extend(config, write=first)
    elif first:
        path, made = _claim(config, data.name, locks) if run is None else (run.path, False)
        try:
            run = Run.create(path, replace(config, name=path.name), shape)
            if begun is not None:
                write_weights(export_facts(run, begun), begun, path / STARTED)
        except OSError:
            if made:
                rmtree(path, ignore_errors=True)
            raise
    else:
        run = Run.unwritten(Path(config.runs) if run is None else run.path, config, shape)
    run.untrained, run.start = untrained, begun
    config = replace(run.config, progress=config.progress)
    return Prepared(run, config, data, state, record, model, said, made)
