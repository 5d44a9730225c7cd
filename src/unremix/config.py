"""The options of a training run, on the command line, in YAML and in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unremix.optimisers import OptimiserName, ScheduleName
from unremix.recipes import (
    SECTIONS,
    Composition,
    LossOptions,
    MixOptions,
    MoCHiOptions,
    MoCoOptions,
    PatchOptions,
    SwAVOptions,
    compose,
    find_recipe,
)

Logger = Literal["tensorboard", "wandb"]


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run.

    Args:
        data: The embedded ``digits``, or a path: a folder or zip of images, CIFAR's python files,
            idx files, an .npz, or WebDataset shards. A name that is not found is looked up in the
            folder that UNREMIX_DATA names.
        domain: What the data are.
        recipe: Which composition; ``unremix recipes`` lists them.
        framework: Another framework than the recipe's: simclr, moco or swav.
        weighting: Another weighting of the negatives: uniform, hcl or unremix.
        mixing: Another mixing of the views: imix, unmix or none.
        negatives: Other further negatives: mochi, patch or none.
        backbone: auto, small, resnet18, resnet34, resnet50, timm:NAME, torchvision:NAME or
            package.module:callable.
        image_size: Pixels per side; by default the median short side, at most 224.
        width: Channels of a ResNet's first stage.
        stem: A ResNet's stem; by default cifar up to 32 pixels, imagenet above.
        head_hidden: Sizes of the projection head's hidden layers.
        head_output: Size of the embeddings the loss sees.
        head_batch_norm: Whether the head normalises its hidden layers.
        augmentation: auto, or a name from unremix.views.image.SETTINGS.
        epochs: Passes over the data; 0 makes a run of the untrained encoder.
        max_minutes: End the training with the first epoch that ends after so many minutes of it.
        batch_size: Images per step, over all processes.
        optimizer: Which optimiser.
        lr: Learning rate.
        weight_decay: Weight decay.
        warmup_epochs: Epochs of linear warm-up.
        schedule: Learning rate after the warm-up.
        clip: Largest norm of the gradient, if any.
        temperature: τ of the loss; the recipe's by default.
        loss: Further options of the loss.
        moco: Options of MoCo.
        swav: Options of SwAV.
        mixture: Options of the mixing.
        mochi: Options of MoCHi's negatives.
        patch: Options of the patch negatives.
        chunk: Images per forward pass, for large batches in small memory; the gradient is that of
            the whole batch (but BatchNorm sees one chunk at a time).
        precision: Numbers to compute in.
        accelerator: cpu, gpu or auto.
        devices: Processes on this machine, or auto; torchrun and SLURM are recognised.
        num_nodes: Machines.
        sync_batchnorm: Whether BatchNorm sees the batches of all processes.
        threads: CPU threads per process; all by default.
        seed: Seed of everything random.
        limit: Use at most so many images.
        evaluate_every: Epochs between kNN measurements; by default about ten in a run.
        knn_k: Neighbours of the kNN measurement; by default 200, but at most a fifth of the images
            per class.
        knn_temperature: Its temperature.
        probe_epochs: Epochs of the linear probe at the end; 0 leaves it out.
        checkpoint_every: Steps between checkpoints, besides those at every epoch's end.
        loggers: Further loggers, besides metrics.csv.
        name: Name of the run's folder; made of data, recipe and seed by default.
        runs: Folder of all runs.
        resume: Folder of a run to go on with; its own options hold.
        progress: Whether to show progress.
    """

    data: str = "digits"
    domain: Literal["image"] = "image"
    recipe: str = "unremix-simclr"
    framework: str | None = None
    weighting: str | None = None
    mixing: str | None = None
    negatives: str | None = None
    backbone: str = "auto"
    image_size: int | None = None
    width: int = 64
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    head_hidden: tuple[int, ...] = (512,)
    head_output: int = 128
    head_batch_norm: bool = True
    augmentation: str = "auto"
    epochs: int = 100
    max_minutes: float | None = None
    batch_size: int = 256
    optimizer: OptimiserName = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-6
    warmup_epochs: int = 0
    schedule: ScheduleName = "constant"
    clip: float | None = None
    temperature: float | None = None
    loss: LossOptions = field(default_factory=LossOptions)
    moco: MoCoOptions = field(default_factory=MoCoOptions)
    swav: SwAVOptions = field(default_factory=SwAVOptions)
    mixture: MixOptions = field(default_factory=MixOptions)
    mochi: MoCHiOptions = field(default_factory=MoCHiOptions)
    patch: PatchOptions = field(default_factory=PatchOptions)
    chunk: int | None = None
    precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int = 1
    sync_batchnorm: bool = False
    threads: int | None = None
    seed: int = 0
    limit: int | None = None
    evaluate_every: int | None = None
    knn_k: int | None = None
    knn_temperature: float = 0.5
    probe_epochs: int = 100
    checkpoint_every: int | None = None
    loggers: tuple[Logger, ...] = ()
    name: str | None = None
    runs: str = "runs"
    resume: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 0),
            ("batch_size", 2),
            ("warmup_epochs", 0),
            ("probe_epochs", 0),
            ("head_output", 1),
            ("width", 1),
            ("num_nodes", 1),
        ):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"expected {name} to be at least {least}, received {value}")
        for name in ("lr", "temperature", "knn_temperature", "clip", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"expected {name} to be above 0, received {value}")
        for name in (
            "chunk",
            "evaluate_every",
            "checkpoint_every",
            "threads",
            "limit",
            "knn_k",
            "image_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} to be at least 1, received {value}")
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name):
            raise ValueError(
                f"expected name to be that of a folder inside {self.runs!r}, received {self.name!r}"
            )

    def composition(self) -> Composition:
        """What the recipe and the changes to it come to.

        Raises:
            ValueError: For parts that do not go together, and for options that would do nothing.
        """
        return compose(
            find_recipe(self.recipe),
            changes={
                "framework": self.framework,
                "weighting": self.weighting,
                "mixing": self.mixing,
                "negatives": self.negatives,
            },
            options={section: getattr(self, section) for section in SECTIONS},
            temperature=self.temperature,
        )

    @property
    def composed_name(self) -> str:
        """The recipe's name and the parts that differ from it."""
        changes = (self.framework, self.weighting, self.mixing, self.negatives)
        return "+".join([self.recipe, *(change for change in changes if change is not None)])
