"""Training on Lightning: loop, devices, precision; and what makes a run repeat and resume exactly.

All randomness is a function of (seed, epoch, step, sample). The batches are indexed by the global
step. So the state of a run is its model (mix included), its optimizer and its step, and a run that
was stopped at any moment goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import csv
import logging
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unremix.data.atomic_files import write_whole
from unremix.domains.base import Observer
from unremix.frameworks.base import Framework, Projecting
from unremix.training.config import TrainConfig
from unremix.training.export import write_weights
from unremix.training.optimizers import make_optimizer, rate_at
from unremix.training.preparation import Prepared
from unremix.training.progress import Progress
from unremix.training.run import Run
from unremix.training.sampling import scramble


class Batches:
    """The batches of an epoch from the current step on, read one step ahead.

    Args:
        training: Knows the data, the step, the rank and the configuration.
    """

    def __init__(self, training: Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return self.training.steps_per_epoch

    def _indices(self, step: int) -> Tensor:
        training = self.training
        joint = training.domain.indices(training.data, training.config, step)
        return joint.tensor_split(training.trainer.world_size)[training.trainer.global_rank]

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        first, fetch, data = self.training.step, self.training.domain.fetch, self.training.data
        end = (first // len(self) + 1) * len(self)
        with ThreadPoolExecutor(max_workers=1) as pool:
            following: Future[Any] | None = None
            for step in range(first, end):
                indices = self._indices(step)
                waiting = following or pool.submit(fetch, data, indices)
                fetched = waiting.result()
                following = None
                if step + 1 < end:
                    following = pool.submit(fetch, data, self._indices(step + 1))
                yield indices, fetched


class Training(lightning.LightningModule):
    """One step after the other, with all that an epoch's end brings.

    Args:
        model: The model.
        config: The options.
        data: The data.
        run: The run's folder.
        progress: Shows progress.
        observe: What to measure at an epoch's end, in the first process.
        state: A checkpoint to go on from.
    """

    def __init__(
        self,
        model: Framework,
        config: TrainConfig,
        data: Any,
        run: Run,
        progress: Progress,
        observe: Observer,
        state: dict[str, Any] | None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.config = config
        self.data = data
        self.run = run
        self.domain = run.domain
        self.progress = progress
        self.observe = observe
        self.state = state
        self.step = 0 if state is None else int(state["step"])
        self.losses: list[float] = [] if state is None else list(state["losses"])
        self.rows = [] if state is None else [dict(row) for row in state["rows"]]
        self.seconds = 0.0 if state is None else float(state.get("seconds", 0.0))
        self.since = time.perf_counter()
        self.stopped = False
        self.steps_per_epoch = self.domain.steps(data, config)

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.step // self.steps_per_epoch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for the model and the mix."""
        return make_optimizer(
            self.model,
            self.model.undecayed(),
            name=self.config.optimizer,
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
        )

    def train_dataloader(self) -> Batches:
        """The batches, each process its own part of them."""
        return Batches(self)

    def transfer_batch_to_device(
        self, batch: tuple[Tensor, Any], device: torch.device, _: int
    ) -> tuple[Tensor, Any]:
        """Images go to the device; of other data, the domain knows what has to."""
        indices, fetched = batch
        return indices.to(device), fetched.to(device) if isinstance(fetched, Tensor) else fetched

    def on_train_start(self) -> None:
        """Go on from the checkpoint, if there is one."""
        self.since = time.perf_counter()
        if self.state is None:
            return
        self.model.load_state_dict(self.state["model"])
        (optimizer,) = self.trainer.optimizers
        optimizer.load_state_dict(self.state["optimizer"])
        self.trainer.precision_plugin.load_state_dict(self.state["precision"])
        self.state = None

    def training_step(self, batch: tuple[Tensor, Any], _: int) -> None:
        """Views, loss, gradient, step."""
        indices, fetched = batch
        config = self.config
        # For what draws at random inside the model, such as dropout.
        torch.manual_seed(scramble(config.seed, self.step, self.global_rank))
        views = self.domain.batch(
            fetched,
            indices,
            self.model,
            config,
            self.run.shape,
            step=self.step,
            epoch=self.epoch,
        )
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        rate = rate_at(
            self.step,
            lr=config.lr,
            total=config.epochs * self.steps_per_epoch,
            warmup=config.warmup_epochs * self.steps_per_epoch,
            schedule=config.schedule,
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        if config.chunk is None or config.chunk >= len(indices):
            loss = self.model(views)
            self.manual_backward(loss)
        else:
            loss = self._chunked(views, config.chunk)
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        optimizer.step()
        self.model.after_step()
        value = self._mean(loss.detach().double())
        if not torch.isfinite(value):
            mixed = config.precision not in ("32-true", "64-true")
            further = "use precision 32-true" if mixed else "look for extreme values in the data"
            raise ValueError(
                f"expected a finite loss, received {float(value)} at step {self.step}; lower the "
                f"learning rate, or {further}"
            )
        self.losses.append(float(value))
        self.step += 1
        self.progress.stepped(self, float(value))
        within = self.step % self.steps_per_epoch
        if config.log_every is not None and within and within % config.log_every == 0:
            self._add_row(self.step / self.steps_per_epoch)
        every = config.checkpoint_every
        if every is not None and self.step % every == 0 and within:
            self._count_time()
            self.save()

    def _add_row(self, epoch: float) -> dict[str, float]:
        """Add a row to the metrics; its loss is the mean over the steps since the row before."""
        row = {"epoch": epoch, "step": self.step, "loss": sum(self.losses) / len(self.losses)}
        self.losses = []
        if self.trainer.is_global_zero:
            if epoch == self.epoch:
                row |= self.observe(self.model, self.epoch)
            row |= {f"mix_{name}": share for name, share in self.model.mix.items()}
            self.rows.append(row)
            self.write_metrics()
            for logger in self.loggers:
                logger.log_metrics(row, step=self.step)
        return row

    def _count_time(self) -> None:
        """Add the time since it was last counted."""
        now = time.perf_counter()
        self.seconds += now - self.since
        self.since = now

    def _mean(self, value: Tensor) -> Tensor:
        """The mean over processes."""
        mean = self.trainer.strategy.reduce(value, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def _chunked(self, batch: Any, size: int) -> Tensor:
        """The gradient of the whole batch with the memory of a chunk.

        Embed chunk by chunk without graph, take the loss on all, then embed each chunk again and
        pass on what the loss derived for it. BatchNorm uses the statistics of a chunk, the same
        both times, and its running statistics move once.
        """
        assert isinstance(self.model, Projecting)  # the domain refuses chunks elsewhere
        inputs = [images.split(size) for images in self.model.inputs(batch)]
        wrapped = self.trainer.model
        alone: AbstractContextManager[None] = nullcontext()
        if isinstance(wrapped, DistributedDataParallel):
            alone = wrapped.no_sync()  # it would average after the first chunk: we do so at the end
        with alone:
            with torch.no_grad(), _running_statistics_held(self.model):
                parts = [[self.model.embed(chunk) for chunk in chunks] for chunks in inputs]
            embedded = [
                (torch.cat([z for z, _ in part]).requires_grad_(), torch.cat([h for _, h in part]))
                for part in parts
            ]
            loss: Tensor = self.model.objective(embedded, batch)
            self.manual_backward(loss)
            for chunks, (z, _) in zip(inputs, embedded, strict=True):
                assert z.grad is not None
                for chunk, gradient in zip(chunks, z.grad.split(size), strict=True):
                    with self.trainer.precision_plugin.forward_context():
                        again, _ = self.model.embed(chunk)
                    torch.autograd.backward(again, gradient.to(again.dtype))
        if isinstance(wrapped, DistributedDataParallel):
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = self._mean(parameter.grad)
        return loss

    def on_train_epoch_end(self) -> None:
        """Observe, write a row of metrics, save; stop if the time is up."""
        self._count_time()
        limit = self.config.max_minutes
        over = limit is not None and self.seconds >= 60 * limit
        self.stopped = bool(self.trainer.strategy.broadcast(over))
        row = self._add_row(self.epoch)
        self.save()
        self.progress.epoch_ended(self, row)
        self.trainer.should_stop = self.stopped
        self.since = time.perf_counter()

    def write_metrics(self) -> None:
        """Write metrics.csv anew."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))

        def write(path: Path) -> None:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(self.rows)

        write_whole(self.run.path / "metrics.csv", write)

    def save(self) -> None:
        """Write the checkpoint; the previous one stands until this one is whole."""
        if not self.trainer.is_global_zero:
            return
        (optimizer,) = self.trainer.optimizers
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "losses": self.losses,
            "rows": self.rows,
            "model": self.model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "precision": self.trainer.precision_plugin.state_dict(),
        }
        write_whole(self.run.checkpoint, lambda path: torch.save(state, path))


class _running_statistics_held:
    """BatchNorm layers inside do not move their running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [
            layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]

    def __enter__(self) -> None:
        self.tracked = [layer.track_running_stats for layer in self.layers]
        for layer in self.layers:
            layer.track_running_stats = False

    def __exit__(self, *_: object) -> None:
        for layer, tracked in zip(self.layers, self.tracked, strict=True):
            layer.track_running_stats = tracked


def _processes(config: TrainConfig) -> tuple[int | str, int]:
    """Devices per machine and machines: as torchrun started them, or as configured."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    return config.devices, config.num_nodes


def _loggers(config: TrainConfig, run: Run) -> list[Logger]:
    made: list[Logger] = []
    if "tensorboard" in config.loggers:
        made.append(TensorBoardLogger(save_dir=run.path, name="", version="tensorboard"))
    if "wandb" in config.loggers:
        made.append(WandbLogger(save_dir=run.path, name=run.path.name, project="unremix"))
    return made


def fit(prepared: Prepared, observe: Observer, progress: Progress) -> bool:
    """Train from the prepared state to the last epoch, and save the encoder.

    Args:
        prepared: From :func:`prepare`.
        observe: What to measure at an epoch's end.
        progress: Shows progress.

    Returns:
        Whether this is the first of the processes.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    run, config, data = prepared.run, prepared.config, prepared.data
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    trainer = _trainer(config, run)
    model = run.domain.build(config, run.shape, gather=trainer.world_size > 1)
    training = Training(model, config, data, run, progress, observe, prepared.state)
    if prepared.state is not None and prepared.state.get("stopped"):
        training.step = config.epochs * training.steps_per_epoch
    left = config.epochs - training.step // max(1, training.steps_per_epoch)
    if left > 0:
        if training.step and trainer.is_global_zero:
            total = config.epochs * training.steps_per_epoch
            progress.say(f"{run.path} goes on at step {training.step} of {total}")
        trainer.fit_loop.max_epochs = left
        with progress, torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # The batches come from memory, by our own hand; and Lightning warns about itself.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            try:
                trainer.fit(training)
            except SystemExit as stopped:  # what Lightning makes of Ctrl-C
                raise KeyboardInterrupt(str(run.path)) from stopped
    elif prepared.state is not None:
        model.load_state_dict(prepared.state["model"])
    else:
        state = {"step": 0, "losses": [], "rows": [], "model": model.state_dict()}
        write_whole(run.checkpoint, lambda file: torch.save(state, file))
    if trainer.is_global_zero:
        write_weights(run, model.encoder, run.path / "encoder.safetensors")
    return trainer.is_global_zero


def _trainer(config: TrainConfig, run: Run) -> lightning.Trainer:
    devices, machines = _processes(config)
    several = machines > 1 or (isinstance(devices, int) and devices > 1)
    return lightning.Trainer(
        accelerator=config.accelerator,
        devices=devices,
        num_nodes=machines,
        strategy="ddp" if several else "auto",
        # Lightning's own 64 bits would change the default dtype of everything.
        precision="32-true" if config.precision == "64-true" else config.precision,
        log_every_n_steps=1,
        sync_batchnorm=config.sync_batchnorm,
        use_distributed_sampler=False,
        logger=_loggers(config, run) or False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=-1,
    )
