"""The options of a training run, on the command line, in YAML and in Python."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from unremix.recipes import (
    RECIPES,
    SECTIONS,
    Composition,
    InfoGraphOptions,
    LossOptions,
    MixOptions,
    MoCHiOptions,
    MoCoOptions,
    PatchOptions,
    QuickThoughtOptions,
    SwAVOptions,
    compose,
    find_recipe,
)
from unremix.training.extensions import load_extensions
from unremix.training.optimizers import OptimizerName, ScheduleName

Logger = Literal["tensorboard", "wandb"]
Domains = Literal["image", "graph", "sentence"]


@dataclass(frozen=True)
class GraphOptions:
    """Options for graphs.

    Args:
        hidden: Size of each layer of the encoder.
        layers: Layers of the encoder.
        use_attributes: Whether node attributes are features; by default those of JSON lines are,
            those of TU data sets are not.
        kinds: What may befall a graph in a view (GraphCL): nodes, edges, attributes, subgraph,
            identity.
        ratio: The share of nodes or edges that a view changes (GraphCL).
        classifiers: What measures the embeddings: any of rbf, linear (both SVM) and logistic.
        folds: Outer folds of the measurement.
        repeats: How often they are drawn.
    """

    hidden: int = 32
    layers: int = 3
    use_attributes: bool | None = None
    kinds: tuple[str, ...] = ("nodes", "edges", "attributes", "subgraph")
    ratio: float = 0.2
    classifiers: tuple[Literal["rbf", "linear", "logistic"], ...] = ("rbf",)
    folds: int = 10
    repeats: int = 1


@dataclass(frozen=True)
class SentenceOptions:
    """Options for sentences.

    Args:
        format: How the text is laid out: lines (one sentence each, blank lines between documents),
            prose, or auto.
        vocabulary: Words known, the most frequent ones; 50,000 in the paper.
        max_length: Words kept of a sentence.
        encoder: gru, bow (a bag of words) or transformer.
        words: Size of a word's vector; 620 in the paper.
        units: Size of the GRU's state; 1200 in the paper.
        bidirectional: Whether half of the units read backwards.
        output: Size of a linear map after each encoder; none by default.
        word_vectors: A file of word vectors to start from.
        expand: A file of word vectors, of any size: words of it that training did not know are
            known when embedding and measuring, by a linear map fitted on those that it did.
        senteval: Folder of SentEval's tasks to measure at the end, auto to look below the folder
            that UNREMIX_DATA names, or none.
        tasks: Which of them.
    """

    format: Literal["auto", "lines", "prose"] = "auto"
    vocabulary: int = 20_000
    max_length: int = 30
    encoder: Literal["gru", "bow", "transformer"] = "gru"
    words: int = 300
    units: int = 300
    bidirectional: bool = False
    output: int | None = None
    word_vectors: str | None = None
    expand: str | None = None
    senteval: str = "auto"
    tasks: tuple[str, ...] = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC", "SICK")


# What a kind of data sets, unless told otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "image": {
        "data": "digits",
        "recipe": "unremix-simclr",
        "epochs": 100,
        "batch_size": 256,
        "lr": 1e-3,
        "weight_decay": 1e-6,
    },
    "graph": {
        "data": "stdlib-ast",
        "recipe": "infograph-unremix",
        "epochs": 20,
        "batch_size": 128,
        "lr": 1e-3,
        "weight_decay": 1e-6,
    },
    "sentence": {
        "data": "pydocs",
        "recipe": "quickthought-unremix",
        "epochs": 1,
        "batch_size": 400,
        "lr": 5e-3,
        "weight_decay": 0.0,
    },
}


# Options that only one kind of data has a use for.
OF_DOMAIN: dict[str, Domains] = {
    **dict.fromkeys(("backbone", "image_size", "width", "stem", "augmentation"), "image"),
    **dict.fromkeys(("head_hidden", "head_output", "head_batch_norm", "probe_epochs"), "image"),
    "graph": "graph",
    "sentence": "sentence",
}


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run.

    Args:
        data: Images: the embedded ``digits``, or a path: a folder or zip of images, CIFAR's python
            files, idx files, an .npz, or WebDataset shards. Graphs: the embedded ``stdlib-ast``, or
            a TU data set, or JSON lines. Sentences: the embedded ``pydocs``, or ordered text in
            .txt or .gz files. A name that is not found is looked up in the folder that
            UNREMIX_DATA names.
        domain: What the data are: image, graph or sentence; by default what the recipe is for.
        recipe: Which composition; ``unremix recipes`` lists them. By default unremix-simclr for
            images, infograph-unremix for graphs, quickthought-unremix for sentences.
        framework: Another framework than the recipe's: simclr, moco or swav for images, infograph
            or simclr for graphs, quickthought for sentences.
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
        init: Start from another encoder: a run's folder, a state dict, a .safetensors file, or
            timm:NAME for pretrained weights.
        pretrained: Whether --backbone timm:NAME starts from timm's pretrained weights.
        epochs: Passes over the data, by default 100 for images, 20 for graphs, 1 for
            sentences (30 for pydocs, which are few); 0 makes a run of the untrained encoder.
        max_minutes: End the training with the first epoch that ends after so many minutes of it.
        batch_size: Samples per step, over all processes; by default 256 images, 128
            graphs or 400 sentences.
        optimizer: Which optimizer.
        lr: Learning rate.
        weight_decay: Weight decay.
        warmup_epochs: Epochs of linear warm-up.
        schedule: Learning rate after the warm-up.
        clip: Largest norm of the gradient, if any; 5 for sentences.
        temperature: τ of the loss; the recipe's by default.
        loss: Further options of the loss.
        moco: Options of MoCo.
        swav: Options of SwAV.
        mixture: Options of the mixing.
        mochi: Options of MoCHi's negatives.
        patch: Options of the patch negatives.
        infograph: Options of InfoGraph.
        quickthought: Options of Quick-Thought.
        graph: Options for graphs.
        sentence: Options for sentences.
        chunk: Images per forward pass, for large batches in small memory; the gradient is that of
            the whole batch (but BatchNorm sees one chunk at a time).
        precision: Numbers to compute in.
        accelerator: cpu, gpu or auto.
        devices: Processes on this machine, or auto; torchrun and SLURM are recognised.
        num_nodes: Machines.
        sync_batchnorm: Whether BatchNorm sees the batches of all processes.
        threads: CPU threads per process; by default the cores that are free at the start, shared
            among the processes, or what OMP_NUM_THREADS says.
        seed: Seed of everything random.
        limit: Use at most so many samples.
        evaluate_every: Epochs between kNN measurements; by default about ten in a run.
        knn_k: Neighbours of the kNN measurement; by default 200, but at most a fifth of the images
            per class.
        knn_temperature: Its temperature.
        probe_epochs: Epochs of the linear probe at the end; 0 leaves it out.
        checkpoint_every: Steps between checkpoints, besides those at every epoch's end.
        log_every: Steps between rows of metrics.csv within an epoch, besides that at its end; a
            row's loss is the mean since the row before. 50 for sentences, else none.
        loggers: Further loggers, besides metrics.csv.
        imports: Python files or modules to import first, which add parts and recipes of your own.
        name: Name of the run's folder; made of data, recipe and seed by default.
        runs: Folder of all runs.
        resume: Folder of a run to continue. It keeps its options; with --epochs it trains further.
        progress: Whether to show progress.
    """

    # None stands for the domain's own value, and is gone once the options are made.
    data: str = None  # type: ignore[assignment]
    domain: Domains = None  # type: ignore[assignment]
    recipe: str = None  # type: ignore[assignment]
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
    init: str | None = None
    pretrained: bool = False
    epochs: int = None  # type: ignore[assignment]
    max_minutes: float | None = None
    batch_size: int = None  # type: ignore[assignment]
    optimizer: OptimizerName = "adam"
    lr: float = None  # type: ignore[assignment]
    weight_decay: float = None  # type: ignore[assignment]
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
    infograph: InfoGraphOptions = field(default_factory=InfoGraphOptions)
    quickthought: QuickThoughtOptions = field(default_factory=QuickThoughtOptions)
    graph: GraphOptions = field(default_factory=GraphOptions)
    sentence: SentenceOptions = field(default_factory=SentenceOptions)
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
    log_every: int | None = None
    loggers: tuple[Logger, ...] = ()
    imports: tuple[str, ...] = ()
    name: str | None = None
    runs: str = "runs"
    resume: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "imports", load_extensions(self.imports))
        missing = {name for name in DEFAULTS["image"] if getattr(self, name) is None}
        object.__setattr__(self, "epochs_given", "epochs" not in missing)
        if self.domain not in DEFAULTS:
            known = None if "recipe" in missing else RECIPES.get(self.recipe)
            object.__setattr__(self, "domain", known.domain if known else "image")
        for name in missing:
            object.__setattr__(self, name, DEFAULTS[self.domain][name])
        if "epochs" in missing and self.data == "pydocs":
            object.__setattr__(self, "epochs", 30)  # a hundredth of a usual text
        if self.domain == "sentence" and self.clip is None:
            object.__setattr__(self, "clip", 5.0)
        if self.domain == "sentence" and self.log_every is None:
            object.__setattr__(self, "log_every", 50)  # an epoch is all there is
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
            "log_every",
            "threads",
            "limit",
            "knn_k",
            "image_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} to be at least 1, received {value}")
        if self.pretrained and (self.init is not None or not self.backbone.startswith("timm:")):
            raise ValueError(
                f"expected --pretrained with --backbone timm:NAME and without --init, got "
                f"--backbone {self.backbone} and --init {self.init}; for other weights use --init"
            )
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name):
            raise ValueError(
                f"expected name to be that of a folder inside {self.runs!r}, received {self.name!r}"
            )

    def composition(self) -> Composition:
        """What the recipe and the changes to it come to.

        Raises:
            ValueError: For parts that do not go together, and for options that would do nothing.
        """
        self._refuse_foreign()
        recipe = find_recipe(self.recipe)
        if recipe.domain != self.domain:
            raise ValueError(
                f"expected a recipe for {self.domain} data, received {self.recipe!r}, which is for "
                f"{recipe.domain} data; leave --domain out or choose another recipe"
            )
        return compose(
            recipe,
            changes={
                "framework": self.framework,
                "weighting": self.weighting,
                "mixing": self.mixing,
                "negatives": self.negatives,
            },
            options={section: getattr(self, section) for section in SECTIONS},
            epochs=self.epochs,
            temperature=self.temperature,
        )

    def _refuse_foreign(self) -> None:
        """Refuse what another kind of data alone has a use for."""
        for each in fields(self):
            domain, name = OF_DOMAIN.get(each.name, self.domain), each.name
            made = each.default_factory
            default, value = each.default if made is MISSING else made(), getattr(self, name)
            if domain == self.domain or value == default:
                continue
            if name == domain:  # a section: name the option in it
                inner = (one.name for one in fields(value))
                changed = next(o for o in inner if getattr(value, o) != getattr(default, o))
                name, value = f"{name}.{changed}", getattr(value, changed)
            raise ValueError(
                f"expected --{name} only for {domain} data, received {value!r} for {self.domain} "
                "data, which have no use for it; leave it out"
            )

    @property
    def composed_name(self) -> str:
        """The recipe's name and the parts that differ from it."""
        changes = (self.framework, self.weighting, self.mixing, self.negatives)
        return "+".join([self.recipe, *(change for change in changes if change is not None)])
