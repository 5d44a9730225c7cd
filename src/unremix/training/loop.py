"""Training on Lightning Fabric: devices, precision and processes are Fabric's, the loop is ours.

All randomness is a function of (seed, epoch, step, sample), and batches are indexed by the global
step. The state of a run is therefore its model (mix included), its optimizer and its step. A run
that was stopped at any moment continues from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import unremix
from unremix.console.printing import to_csv
from unremix.console.suggestions import importing_torchvision
from unremix.domains.base import Observer, make_batch
from unremix.domains.options import TrainConfig, config_from_yaml, config_to_yaml
from unremix.domains.remembered import forget
from unremix.domains.sampling import pinned, read_ahead
from unremix.files.atomic_files import refuse_link, write_text
from unremix.frameworks.base import Batch, Framework, Projecting
from unremix.frameworks.randomness import scramble
from unremix.losses import TwoViewLoss
from unremix.training.adapting import freeze, held_layers, rates_of
from unremix.training.building import build_model, precision_of
from unremix.training.compiling import Compiled, settle
from unremix.training.export import write_encoder
from unremix.training.optimizers import make_optimizer, rate_at, restore_optimizer, temperature_at
from unremix.training.preparation import Prepared, processes_here
from unremix.training.profile import Profile
from unremix.training.progress import Progress
from unremix.training.record import device_in_words
from unremix.training.run import Run, reading
from unremix.training.sharding import divide, gathered, is_divided, shard
from unremix.training.stopping import StopRequest, requeue, resume_command
from unremix.training.threads import limited_threads

with importing_torchvision():  # which Lightning does where it is installed
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.strategies.ddp import DDPStrategy
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
    from lightning.fabric.strategies.strategy import Strategy

WATCHED = 0.5  # seconds between looks at the other processes
GRACE = 10.0  # seconds in which the loss of one should be noticed
STOPPED = (130, -2)  # exit codes of processes that were asked to stop


@dataclass(eq=False, repr=False)
class Training:
    """One step after the other, and what happens at the end of an epoch.

    Args:
        fabric: Devices, precision and processes; launched.
        prepared: The model, its options and data, the run's folder, and a checkpoint if any.
        observe: What to measure at an epoch's end, in the first process.
        progress: Shows progress.
        stop: Notes requests to stop.
    """

    fabric: Fabric
    prepared: Prepared
    observe: Observer
    progress: Progress
    stop: StopRequest

    def __post_init__(self) -> None:
        fabric, prepared = self.fabric, self.prepared
        self.run, self.config = prepared.run, prepared.config
        self.data, self.domain = prepared.data, prepared.run.domain
        model = prepared.model or build_model(self.config, self.run.shape, gather=True)
        if self.config.sync_batchnorm and fabric.world_size > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = model.to(fabric.device).train()
        if isinstance(self.model, Projecting):  # the domain refuses chunks elsewhere
            self.model.chunk = self.config.chunk
        freeze(self.model.encoder, self.config.freeze)
        self.held = held_layers(self.model, statistics=self.config.freeze_statistics)
        self.model.read_labels(self.domain.labels(self.data))
        state = prepared.state or {}
        self.step = int(state.get("step", 0))
        self.losses: list[float] = list(state.get("losses", ()))
        self.rows = [dict(row) for row in state.get("rows", ())]
        self.seconds = float(state.get("seconds", 0.0))
        self.stopped = False  # by max_minutes or least_kept
        self.asked = False  # to stop, in any of the processes
        self.since = time.perf_counter()
        self.steps_per_epoch = self.domain.steps(self.data, self.config)
        self.total = self.config.epochs * self.steps_per_epoch
        self.temperature = self.config.composition().temperature
        self.ahead = self.domain.ahead(self.data, self.config)
        self.model.reserve(self.domain.size(self.data))
        if state:
            self.run.restore(self.model, state)
        self.compiled: Compiled | None = None
        self.profile: Profile | None = None
        if self.config.profile and fabric.is_global_zero:
            self.profile = Profile(self.model.encoder, fabric.device, self.run.path / "trace.json")

    def _stage(self, name: str) -> AbstractContextManager[None]:
        """Where the time of what is done within counts, if it is to be shown where time goes."""
        return self.profile.stage(name) if self.profile else nullcontext()

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.step // max(1, self.steps_per_epoch)

    def __call__(self) -> None:
        """Train to the last epoch.

        Raises:
            KeyboardInterrupt: If asked to stop; a checkpoint of the last step is written.
        """
        config, state = self.config, self.prepared.state or {}
        # Not fabric.setup_module(): in mixed precision it cannot pass on a frozen dataclass.
        self.wrapped = self.fabric.strategy.setup_module(self.model)
        self.optimizer = make_optimizer(
            self.model,
            self.model.undecayed(),
            name=config.optimizer,
            lr=config.lr,
            weight_decay=config.weight_decay,
            shares=rates_of(self.model.encoder, config.encoder_rate, config.layer_decay),
        )
        if "optimizer" in state:
            with reading(self.run.checkpoint, "restore a copy, or train a new run"):
                restore_optimizer(self.optimizer, state["optimizer"])
                self.fabric.strategy.precision.load_state_dict(state.get("precision", {}))
            divide(self.optimizer)
        self.prepared.state = None  # frees its memory
        if self.run.start is not None and not self.step:
            self.progress.epoch_ended(self, self._add_row(0))
        self.since = time.perf_counter()
        while self.step < self.total and not self.stopped:
            batches = self._batches()
            for indices, fetched in self.profile.reading(batches) if self.profile else batches:
                if self.config.compile and self.compiled is None:
                    self._settle_compile(indices, fetched)
                self.training_step(indices, fetched)
                if self.asked and self.step % self.steps_per_epoch:
                    self.save()
                    self._interrupt()
            self._end_epoch()
            if self.asked:
                self._interrupt()

    def _indices(self, step: int) -> Tensor:
        """Which samples this process uses in a step."""
        joint = self.domain.indices(self.data, self.config, step)
        return joint.tensor_split(self.fabric.world_size)[self.fabric.global_rank]

    def _batches(self) -> Iterator[tuple[Tensor, Any]]:
        """The batches from the current step to the epoch's end, read one step ahead.

        Raises:
            OSError: If one cannot be read; a single process writes a checkpoint first.
        """
        device = self.fabric.device
        steps = range(self.step, (self.epoch + 1) * self.steps_per_epoch)
        try:
            for indices, fetched in read_ahead(self._read, steps):
                # Of data other than images, the domain knows what has to be moved.
                if isinstance(fetched, Tensor):
                    fetched = fetched.to(device, non_blocking=True)
                yield indices.to(device, non_blocking=True), fetched
        except (ConnectionError, FileNotFoundError) as error:
            if not self.prepared.begun:
                raise
            if self.fabric.world_size == 1:
                self.save()
            again = resume_command(str(self.run.path), trust=bool(self.config.code))
            raise type(error)(f"{error}; resume with: {again}") from error

    def _read(self, step: int) -> tuple[Tensor, Any]:
        """The samples of a step, by indices (N,); what later steps use is asked for."""
        indices = self._indices(step)
        if self.ahead:
            for number in (step, min(step + self.ahead, self.total - 1)):
                self.domain.expect(self.data, self._indices(number))
        fetched = self.domain.fetch(self.data, indices)
        return pinned(indices, self.fabric.device), pinned(fetched, self.fabric.device)

    def _settle_compile(self, indices: Tensor, fetched: Any) -> None:
        """Before the first step, compile the encoder if that is asked for or pays; record it."""

        def step(model: Framework) -> float:
            self._seed()
            with self.fabric.autocast():
                loss: Tensor = model(self._batch(indices, fetched, model))
                loss.backward()
            return loss.item()

        anyway = self.config.compile is True
        if self.fabric.world_size > 1 or self.config.chunk or not isinstance(fetched, Tensor):
            why = "is for one process, without --chunk, and samples of one shape"
            said = f"trains without --compile, which {why}" if anyway else ""
        else:
            for layer in self.held:
                layer.eval()
            self.compiled, said = settle(
                self.model, step, anyway=anyway,
                forecast=lambda seconds: self.progress.seconds_left(self, seconds),
            )  # fmt: skip
        if said and self.fabric.is_global_zero:
            self.progress.say(said)
        self.config = replace(self.config, compile=self.compiled is not None)
        self.prepared.config = self.config
        self.run.extend(self.config, write=self.fabric.is_global_zero)

    def _seed(self) -> None:
        """For what draws at random inside the model, such as dropout."""
        torch.manual_seed(scramble(self.config.seed, self.step, self.fabric.global_rank))

    def _batch(self, indices: Tensor, fetched: Any, model: Framework) -> Batch:
        """What the model sees of samples in this step."""
        return make_batch(
            self.domain, fetched, indices, model, self.config, self.run.shape,
            step=self.step, epoch=self.epoch,
        )  # fmt: skip

    def training_step(self, indices: Tensor, fetched: Any) -> None:
        """Views, loss, gradient, step."""
        config = self.config
        self._seed()
        rate = rate_at(self.step, config, self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        for layer in self.held:
            layer.eval()
        if config.highest_temperature is not None:
            assert isinstance(self.model.loss, TwoViewLoss)  # a composition without is refused
            self.model.loss.temperature = temperature_at(
                self.step, low=self.temperature, high=config.highest_temperature, total=self.total
            )
        self.optimizer.zero_grad()
        compiled = self.compiled.in_place() if self.compiled else nullcontext()
        with self.fabric.autocast(), compiled:
            with self._stage("views"):
                batch = self._batch(indices, fetched, self.model)
            with self._stage("loss"):  # the head included; the encoder is a stage of its own
                loss = self.wrapped(batch)
            with self._stage("backward"):
                self.fabric.backward(loss)
        with self._stage("optimizer"):
            self._update()
        asked = loss.new_tensor(self.stop.asked)
        numbers = torch.stack([loss.detach().double(), asked.double()])
        mean = self.fabric.all_reduce(numbers, reduce_op="mean")
        assert isinstance(mean, Tensor)
        value, anywhere = mean.tolist()
        self.asked = anywhere > 0
        if not math.isfinite(value):
            mixed = config.precision not in ("32-true", "64-true")
            further = "add --precision 32-true" if mixed else "look for extreme values in the data"
            raise ValueError(
                f"expected a finite loss, got {value} at step {self.step}; lower the "
                f"learning rate, or {further}"
            )
        self.losses.append(value)
        self.step += 1
        self.prepared.begun = True
        self.progress.stepped(self, value)
        within = self.step % self.steps_per_epoch
        if config.log_every and within and within % config.log_every == 0:
            self._add_row(self.step / self.steps_per_epoch)
        if config.checkpoint_every and within and self.step % config.checkpoint_every == 0:
            self.save()

    def _update(self) -> None:
        """A step of the optimizer, and what follows it."""
        if self.config.clip is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.fabric.strategy.optimizer_step(self.optimizer)
        forget(self.model.encoder)
        self.model.after_step()

    def _interrupt(self) -> None:
        """End the training, whose checkpoint is written; on SLURM, queue the job again if asked."""
        if not self.fabric.is_global_zero:
            raise KeyboardInterrupt
        if self.stop.requeue:
            requeue()
        raise KeyboardInterrupt(str(self.run.path))

    def _add_row(self, epoch: float) -> dict[str, float]:
        """Add a row to the metrics; its loss, if any, is the mean since the row before."""
        row = {"epoch": epoch, "step": self.step}
        if self.losses:
            row["loss"] = sum(self.losses) / len(self.losses)
        self.losses = []
        model = self.whole()
        if self.fabric.is_global_zero:
            if epoch == self.epoch:
                row |= self.observe(model, self.epoch)
            row |= {f"mix_{name}": share for name, share in model.mix.items()}
            self.rows.append(row)
            write_text(self.run.path / "metrics.csv", to_csv(self.rows))
            self.fabric.log_dict(row, step=self.step)
        return row

    def whole(self) -> Framework:
        """The model; if its parameters are divided, a whole copy in the first process.

        All processes ask for it together.
        """
        if not is_divided(self.model):
            return self.model
        state = gathered(self.model.state_dict())
        if not self.fabric.is_global_zero:
            return self.model
        copy = build_model(self.config, self.run.shape, gather=True)
        copy.reserve(self.domain.size(self.data))
        copy.load_state_dict(state)
        return copy.to(self.fabric.device).train()

    def _count_time(self) -> None:
        """Add the time since it was last counted."""
        before, self.since = self.since, time.perf_counter()
        self.seconds += self.since - before

    def _end_epoch(self) -> None:
        """Observe, write a row of metrics, save; stop if the time is up, or at too many changes."""
        self._count_time()
        limit, least = self.config.max_minutes, self.config.least_kept
        over = limit is not None and self.seconds >= 60 * limit
        with self._stage("measuring"):
            row = self._add_row(self.epoch)
        over = over or (least is not None and row.get("neighbors_kept", 1.0) < least)
        self.stopped = bool(self.fabric.broadcast(over))
        self.since = time.perf_counter()  # measuring does not count
        with self._stage("saving"):
            self.save()
        self.progress.epoch_ended(self, row)

    def save(self) -> None:
        """Write the checkpoint; the previous one stands until this one is whole."""
        self._count_time()
        optimizer = self.optimizer.state_dict() if hasattr(self, "optimizer") else None
        weights, optimizer = gathered(self.model.state_dict()), gathered(optimizer)
        if not self.fabric.is_global_zero:
            return
        state = {
            "version": unremix.__version__,
            "record": self.prepared.record,
            "step": self.step,
            "seconds": self.seconds,
            "device": device_in_words(
                self.fabric.device,
                processes=self.fabric.world_size,
                threads=torch.get_num_threads(),
            ),
            "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
            "stopped": self.stopped,
            "losses": self.losses,
            "rows": self.rows,
            "model": weights,
        }
        if optimizer is not None:
            state["optimizer"] = optimizer
            state["precision"] = self.fabric.strategy.precision.state_dict()
        self.run.save_checkpoint(state)


def _loggers(config: TrainConfig, run: Run) -> list[Logger]:
    made: list[Logger] = []
    if "tensorboard" in config.loggers:
        refuse_link(run.path / "tensorboard")
        made.append(TensorBoardLogger(run.path, name="", version="tensorboard"))
    if "wandb" in config.loggers:
        from lightning.pytorch.loggers import WandbLogger

        made.append(WandbLogger(save_dir=run.path, name=run.path.name, project="unremix"))
    return made


def _places(config: TrainConfig) -> tuple[int, int]:
    """Processes per machine, and machines: as torchrun or SLURM started them, or as configured."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    if SLURMEnvironment.detect():
        machines = int(os.environ.get("SLURM_NNODES", "1"))
        return int(os.environ["SLURM_NTASKS"]) // machines, machines
    return processes_here(config), config.num_nodes


def _launched(config: TrainConfig, run: Run) -> Fabric:
    """Start the processes and wait until all have joined.

    Raises:
        TimeoutError: If they do not all join in time.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    devices, machines = _places(config)
    strategy: Strategy | str = "auto"
    precision, patience = precision_of(config), timedelta(minutes=config.timeout_minutes)
    processes = devices * machines
    if processes > 1 and config.strategy == "fsdp":
        strategy = ModelParallelStrategy(shard, processes, 1, timeout=patience)
    elif processes > 1:
        strategy = DDPStrategy(timeout=patience)
    fabric = Fabric(
        accelerator=config.accelerator,
        devices=devices,
        num_nodes=machines,
        strategy=strategy,
        # Lightning's own 64 bits would change the default dtype of everything.
        precision="32-true" if precision == "64-true" else precision,
        loggers=_loggers(config, run),
    )
    try:
        fabric.launch()
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        why = str(error).splitlines()[0][:200]
        raise TimeoutError(
            f"expected {fabric.world_size} processes to meet at {address} within "
            f"{config.timeout_minutes:g} minutes, got: {why}; start all of them, see that their "
            "machines reach each other, or raise --timeout_minutes"
        ) from error
    if fabric.world_size > 1:
        # The threads of the process group, still running, would abort the process at its end.
        atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
        # Watched here because Lightning would silently kill this process, too.
        children: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
        thread = threading.Thread(target=_watch, args=(list(children), run.path), daemon=True)
        children.clear()
        thread.start()
    return fabric


def _agree(fabric: Fabric, prepared: Prepared) -> None:
    """Let all processes train the first one's run, whose folder the others need not see.

    Raises:
        ValueError: If a process has other data than the first.
    """
    run, options = prepared.run, config_to_yaml(prepared.config)
    known = (run.path, options, run.shape, prepared.state, prepared.record["data"])
    path, options, shape, state, data = fabric.broadcast(known)
    config = config_from_yaml(options, trust=True).trusted(trust=True, where="the first process")
    config = replace(config, profile=prepared.config.profile)
    if data != prepared.record["data"]:
        raise ValueError(
            f"expected the data of the first process in all, got others from {config.data!r} in "
            f"process {fabric.global_rank}; copy them to every machine"
        )
    if config.precision != prepared.config.precision:
        raise ValueError(
            f"expected the precision of the first process, {config.precision}, in all, got "
            f"{prepared.config.precision} in process {fabric.global_rank}, whose machine is of "
            "another kind; give --precision"
        )
    if shape != run.shape:
        prepared.model = None  # it was built for another one
    run.path, run.config, run.shape = path, config, shape
    prepared.config, prepared.state = config, state


def _watch(children: list[subprocess.Popen[bytes]], run: Path) -> None:
    """End the run if one of its processes was lost and the main thread has not noticed."""
    while any(child.poll() is None for child in children):
        time.sleep(WATCHED)
        if any(child.poll() not in (None, 0, *STOPPED) for child in children):
            time.sleep(GRACE)  # the next exchange with the process reports it
            print(f"unremix: {_lost(len(children) + 1, run)}", file=sys.stderr, flush=True)
            for child in children:
                child.kill()
            os._exit(1)


def _lost(processes: int, run: Path) -> str:
    return (
        f"expected all {processes} processes of the run to work, lost one; resume with: "
        f"{resume_command(str(run))}"
    )


def _is_lost(error: RuntimeError) -> bool:
    """Whether another process of the run has ended, which the next exchange with it reports."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def fit(
    prepared: Prepared, observe: Observer, progress: Progress, stop: StopRequest | None = None
) -> bool:
    """Train from the prepared state to the last epoch, and save the encoder.

    Returns:
        Whether this is the first of the processes.

    Raises:
        KeyboardInterrupt: If asked to stop; its text is the run's folder.
    """
    run, config = prepared.run, prepared.config
    fabric = _launched(config, run)
    try:
        if fabric.world_size > 1:
            _agree(fabric, prepared)
            config = prepared.config
        is_new = prepared.state is None
        is_over = bool((prepared.state or {}).get("stopped"))
        with limited_threads(config.threads), torch.random.fork_rng(devices=[]), progress:
            training = Training(fabric, prepared, observe, progress, stop or StopRequest())
            if fabric.is_global_zero:
                progress.opened(training)
            if training.step < training.total and not is_over:
                if fabric.is_global_zero:  # that of an earlier end, or of an export meanwhile
                    (run.path / "encoder.safetensors").unlink(missing_ok=True)
                training()
                if training.profile:
                    training.profile.close()
                    progress.say("\n".join(training.profile.lines()))
                    progress.say(f"{training.profile.trace}: a trace of a few steps")
                for logger in fabric.loggers:
                    logger.finalize("success")
            elif is_new:
                training.save()
    except RuntimeError as error:
        if fabric.world_size == 1 or not _is_lost(error):
            raise
        raise ChildProcessError(_lost(fabric.world_size, run.path)) from error
    model = training.whole()
    if fabric.is_global_zero:
        run.model = model.cpu().eval()
        run.trained = run.model.encoder
        if run.kept != "trained":  # it is chosen again, and the run is not finished until then
            (run.path / "evaluation.json").unlink(missing_ok=True)
        write_encoder(run, run.model.encoder)
        run.rows = [dict(row) for row in training.rows]
    return fabric.is_global_zero
