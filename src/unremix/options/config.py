"""The options of a training run, on the command line, in YAML and in Python."""

# ruff: noqa: RUF009 (option() makes a field)

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from reprlib import Repr
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from unremix.data.suggestions import did_you_mean
from unremix.options.extensions import load_extensions
from unremix.recipes import RECIPES, Composition, compose, find_recipe, sections

Logger = Literal["tensorboard", "wandb"]
Domains = Literal["image", "graph", "sentence"]
OptimizerName = Literal["adam", "adamw", "sgd", "lars"]
ScheduleName = Literal["constant", "cosine"]
OF_A_CALL = ("given", "held", "trust", "allow_changed_data")  # not of the run: no file holds them


@dataclass(frozen=True)
class GraphOptions:
    """Options for graphs.

    Args:
        hidden: Size of each layer of the encoder.
        layers: Layers of the encoder.
        use_attributes: Whether node attributes are features; by default those of JSON lines are,
            those of TU data sets are not.
        kinds: How a view changes a graph (GraphCL): nodes, edges, attributes, subgraph,
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


LARGEST = 2**63 - 1  # of a whole number, as torch counts
LARGEST_IMAGE = 1 << 14  # pixels per side
MOST = {  # of what costs memory, time or processes before anything can be measured
    "image_size": LARGEST_IMAGE,
    "threads": 4096,
    "devices": 1024,
    "num_nodes": 65_536,
    "timeout_minutes": 525_600,  # a year
}
MOST_LAYERS = 1000

SHORT = Repr()  # a file may hold values of any size
SHORT.maxstring = SHORT.maxother = 200


def option(
    default: Any = None, *, domain: Domains | None = None, rare: bool = False, **by_domain: Any
) -> Any:
    """A field that is None until it is given, or settled.

    Args:
        default: Its value if it is not given.
        domain: The only kind of data that has a use for it.
        rare: Whether the short help leaves it out.
        by_domain: Its value if it is not given, by kind of data.
    """
    about = {"default": default, "domain": domain, "rare": rare, "by_domain": by_domain}
    return field(default=None, metadata=about)


def default_of(its: Field[Any], domain: str) -> Any:
    """The value of an option that is not given."""
    if its.default_factory is not MISSING:
        return its.default_factory()
    return its.metadata["by_domain"].get(domain, its.metadata["default"])


def expected(hint: Any) -> str:
    """What a value of a type is, in words.

    Example:
        >>> expected(int | None), expected(Literal["cpu", "gpu"]), expected(tuple[int, ...])
        ('a whole number', 'cpu or gpu', 'a list such as [a whole number, ...]')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        *most, last = map(str, inner)
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple:
        return f"a list such as [{expected(inner[0])}, ...]"
    if origin is dict:
        return 'options by name, such as "{epochs: 5}"'
    if inner:
        return " or ".join(expected(one) for one in inner if one is not NoneType)
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return known.get(hint, "a dictionary of options")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; whole numbers of 64 bits are numbers, and lists are tuples."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if isinstance(value, int) and abs(value) > LARGEST:
        return False
    kinds: dict[Any, Any] = {int: Integral, float: Real}
    return isinstance(value, kinds.get(hint, hint))


def mismatch(name: str, value: Any, hint: Any) -> str:
    """What to say of a value that is not of an option's type.

    Example:
        >>> mismatch("epochs", "3", int | None)
        "expected epochs to be a whole number, got '3'; write 3, without quotes"
    """
    remedy = "; change it, or leave it out"
    choices = [str(one) for one in _choices(hint)]
    if isinstance(value, int) and abs(value) > LARGEST:
        remedy = f"; the largest is {LARGEST}"
    if isinstance(value, str):
        read = _read(value)
        if not isinstance(read, str) and fits(read, hint):
            remedy = f"; write {value}, without quotes"
        elif fits([read], hint):
            remedy = f'; write "[{value}]"'
        else:
            remedy = did_you_mean(value, choices) or remedy
    return f"expected {name} to be {expected(hint)}, got {SHORT.repr(value)}{remedy}"


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _choices(hint: Any) -> list[Any]:
    inner = get_args(hint)
    return (
        list(inner) if get_origin(hint) is Literal else [c for one in inner for c in _choices(one)]
    )


def _with_sections(cls: type) -> type:
    """Add a field for the options of each section of parts."""
    # Only a number once the data are read; so it is for the type checker.
    cls.__annotations__["batch_size"] = int | Literal["auto"]
    for name, kind in sections().items():
        cls.__annotations__[name] = kind
        setattr(cls, name, field(default_factory=kind, metadata={"domain": None}))
    return cls


@dataclass(frozen=True)
@_with_sections
class TrainConfig:
    """Options of a training run.

    Args:
        data: A path, a URL or an embedded data set. Images: the embedded
            ``digits``, or a folder or zip of images, CIFAR's python files, idx files, an .npz, or
            WebDataset shards. Graphs: the embedded ``stdlib-ast``, or
            a TU data set, or JSON lines. Sentences: the embedded ``pydocs``, or ordered text in
            .txt or .gz files. A name that is not found is looked up in the folder that
            UNREMIX_DATA names.
        stream: Read WebDataset shards as they are needed, this many at a time, rather than images
            in any order: for data larger than memory or disk. A batch is drawn from so many
            shards; take a multiple of the number of processes that divides the batch size. None
            by default.
        domain: What the data are: image, graph or sentence; by default what the recipe is for.
        recipe: Which composition of parts; ``unremix recipes`` lists them. By default
            unremix-simclr for images, infograph-unremix for graphs, quickthought-unremix for
            sentences.
        framework: Another framework than the recipe's: simclr, moco or swav for images, infograph
            or simclr for graphs, quickthought for sentences.
        weighting: Another weighting of the negatives: uniform, hcl or unremix.
        mixing: Another mixing of the views: imix, unmix or none.
        negatives: Other further negatives: mochi, patch or none.
        backbone: auto, small, resnet18, resnet34, resnet50, timm:NAME, torchvision:NAME or
            package.module:callable.
        image_size: Pixels per side; by default the median short side, at most 224.
        width: Channels of a ResNet's first stage.
        stem: Stem of a ResNet: cifar, imagenet or auto; auto is cifar up to 32 pixels, imagenet
            above.
        head_hidden: Sizes of the projection head's hidden layers.
        head_output: Size of the embeddings the loss sees.
        head_batch_norm: Whether the head normalizes its hidden layers.
        augmentation: auto, or a name from unremix.views.image.SETTINGS.
        init: Start from another encoder: a run's folder, a state dict, a .safetensors file, or
            timm:NAME for pretrained weights.
        pretrained: Whether --backbone timm:NAME starts from timm's pretrained weights.
        epochs: Passes over the data, by default 100 for images, 20 for graphs, 1 for
            sentences (30 for pydocs, which are few); 0 makes a run of the untrained encoder.
        max_minutes: End training with the first epoch that ends after this many minutes.
        batch_size: Samples per step, over all processes; by default auto for images (256,
            or the largest power of two that gives at least 4 steps an epoch, never below 16),
            128 graphs or 400 sentences.
        optimizer: adam, adamw, sgd or lars.
        lr: Learning rate.
        weight_decay: Weight decay.
        warmup_epochs: Epochs of linear warm-up.
        schedule: Learning rate after the warm-up: constant or cosine.
        clip: Largest norm of the gradient, if any; 5 for sentences.
        temperature: τ of the loss; the recipe's by default.
        graph: Options for graphs.
        sentence: Options for sentences.
        chunk: Images per forward pass, for large batches in small memory; the gradient is that of
            the whole batch (but BatchNorm sees one chunk at a time).
        precision: Numbers to compute in.
        accelerator: cpu, gpu or auto.
        devices: Processes on this machine, or auto; torchrun and SLURM are recognized.
        num_nodes: Machines.
        strategy: What each process holds: ddp, the whole model; fsdp, a part of every parameter, of
            its gradient and of the optimizer's state.
        timeout_minutes: How long a process waits for the others, at the start and in each exchange;
            longer than the first one takes to measure after an epoch.
        sync_batchnorm: Whether BatchNorm sees the batches of all processes.
        threads: CPU threads per process; by default the cores that are free at the start, shared
            among the processes, or what OMP_NUM_THREADS says.
        seed: Seed of everything random.
        limit: Use at most this many samples.
        validation: Hold out this share of the training images and measure on them, in place of
            the test images: to choose options without seeing those.
        evaluate_every: Epochs between kNN measurements; by default about ten in a run.
        audit_every: Epochs between audits of the weights, for images with labels: which negatives
            are heavy, and whether they are false; in columns of metrics.csv named audit_. None
            by default.
        knn_k: Neighbors of the kNN measurement; by default 200, but at most a fifth of the images
            per class.
        knn_temperature: Its temperature.
        probe_epochs: Epochs of the linear probe at the end; 0 leaves it out.
        checkpoint_every: Steps between checkpoints, besides those at every epoch's end.
        log_every: Steps between rows of metrics.csv within an epoch, besides that at its end; a
            row's loss is the mean since the row before. 50 for sentences, else none.
        loggers: Further loggers, besides metrics.csv.
        imports: Python files or modules to import first, which add parts and recipes of your own.
        trust: Whether code may run that a run's folder or a --config file names, not you: its
            imports, and a backbone package.module:callable.
        allow_changed_data: Whether to resume a run though its data have changed.
        name: Name of the run's folder; made of data, recipe and seed by default.
        runs: Folder of all runs.
        resume: Folder of a run to continue. It keeps its options; with --epochs it trains further.
        progress: Whether to show progress.
        given: Names of the options that were given; determined automatically, and kept by
            :func:`dataclasses.replace`.
        held: Whether the options come from a file, so that the code they name is not imported; see
            :meth:`released`.

    The options of each part are a field as well, named after its section: ``loss``, ``moco`` and so
    on (:func:`unremix.recipes.sections`), such as ``TrainConfig(moco={"queue": 64})``.
    """

    data: str = option(image="digits", graph="stdlib-ast", sentence="pydocs")
    stream: int | None = option(domain="image", rare=True)
    domain: Domains = option()
    recipe: str = option(
        image="unremix-simclr", graph="infograph-unremix", sentence="quickthought-unremix"
    )
    framework: str | None = option()
    weighting: str | None = option()
    mixing: str | None = option()
    negatives: str | None = option()
    backbone: str = option("auto", domain="image")
    image_size: int | None = option(domain="image")
    width: int = option(64, domain="image")
    stem: Literal["auto", "cifar", "imagenet"] = option("auto", domain="image")
    head_hidden: tuple[int, ...] = option((512,), domain="image")
    head_output: int = option(128, domain="image")
    head_batch_norm: bool = option(True, domain="image", rare=True)
    augmentation: str = option("auto", domain="image")
    init: str | None = option()
    pretrained: bool = option(False, domain="image", rare=True)
    epochs: int = option(image=100, graph=20, sentence=1)
    max_minutes: float | None = option(rare=True)
    batch_size: int = option(image="auto", graph=128, sentence=400)
    optimizer: OptimizerName = option("adam")
    lr: float = option(1e-3, sentence=5e-3)
    weight_decay: float = option(1e-6, sentence=0.0)
    warmup_epochs: int = option(0)
    schedule: ScheduleName = option("constant")
    clip: float | None = option(sentence=5.0, rare=True)
    temperature: float | None = option()
    graph: GraphOptions = field(default_factory=GraphOptions, metadata={"domain": "graph"})
    sentence: SentenceOptions = field(
        default_factory=SentenceOptions, metadata={"domain": "sentence"}
    )
    chunk: int | None = option(rare=True)
    precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = option("32-true")
    accelerator: Literal["auto", "cpu", "gpu"] = option("auto")
    devices: int | Literal["auto"] = option("auto", rare=True)
    num_nodes: int = option(1, rare=True)
    strategy: Literal["ddp", "fsdp"] = option("ddp", rare=True)
    timeout_minutes: float = option(30.0, rare=True)
    sync_batchnorm: bool = option(False, rare=True)
    threads: int | None = option()
    seed: int = option(0)
    limit: int | None = option()
    validation: float | None = option(domain="image", rare=True)
    evaluate_every: int | None = option()
    audit_every: int | None = option(domain="image", rare=True)
    knn_k: int | None = option(rare=True)
    knn_temperature: float = option(0.5, rare=True)
    probe_epochs: int = option(100, domain="image")
    checkpoint_every: int | None = option(rare=True)
    log_every: int | None = option(sentence=50, rare=True)
    loggers: tuple[Logger, ...] = option((), rare=True)
    imports: tuple[str, ...] = option((), rare=True)
    trust: bool = option(False, rare=True)
    allow_changed_data: bool = option(False, rare=True)
    name: str | None = option()
    runs: str = option("runs")
    resume: str | None = option()
    progress: bool = option(True)
    given: frozenset[str] | None = field(default=None, repr=False, compare=False)
    held: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._take()
        if not self.held:
            self._set("imports", load_extensions(self.imports or ()))
        self.settle()
        self._check_numbers()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _take(self) -> None:
        """Note what is given, and refuse what is of another type."""
        hints, given = get_type_hints(type(self)), set()
        for its in fields(self):
            value, name, hint = getattr(self, its.name), its.name, hints[its.name]
            if value is None or name in ("given", "held"):
                continue
            if is_dataclass(hint):
                if is_dataclass(value) and not isinstance(value, hint):  # type: ignore[arg-type]
                    value = vars(value)
                if isinstance(value, Mapping):
                    self._set(name, value := read_options(hint, value, f"{name}."))  # type: ignore[arg-type]
                if not isinstance(value, hint):  # type: ignore[arg-type]
                    raise TypeError(mismatch(name, value, hint))
                check_types(value, f"{name}.")
                given |= {name} if value != default_of(its, "") else set()
                continue
            given.add(name)
            if isinstance(value, os.PathLike) and fits("", hint):
                self._set(name, os.fspath(value))
            elif isinstance(value, list):
                self._set(name, tuple(value))
        check_types(self)
        if self.given is None:
            self._set("given", frozenset(given))

    def settle(self) -> None:
        """Give every option that was not given its value, by recipe and domain."""
        unset = [its for its in fields(self) if getattr(self, its.name) is None]
        names = {its.name for its in unset}
        if "domain" in names:
            known = RECIPES.get(self.recipe)
            self._set("domain", known.domain if known else "image")
        if "epochs" in names and self.domain == "sentence" and self.data in (None, "pydocs"):
            self._set("epochs", 30)  # a hundredth of a usual text
        for its in unset:
            if getattr(self, its.name) is None:
                self._set(its.name, default_of(its, self.domain))

    def _check_numbers(self) -> None:
        least = {"batch_size": 2, "epochs": 0, "warmup_epochs": 0, "probe_epochs": 0}
        least |= dict.fromkeys(("head_output", "width", "num_nodes", "chunk", "evaluate_every"), 1)
        least |= dict.fromkeys(("checkpoint_every", "log_every", "threads", "limit"), 1)
        least |= dict.fromkeys(("knn_k", "image_size", "audit_every", "stream"), 1)
        for name, bound in least.items():
            value = getattr(self, name)
            if value not in (None, "auto") and value < bound:
                raise ValueError(f"expected {name} to be at least {bound}, got {value}; change it")
        for name, bound in MOST.items():
            value = getattr(self, name)
            if value not in (None, "auto") and value > bound:
                raise ValueError(f"expected {name} to be at most {bound}, got {value}; lower it")
        layers = {"head_hidden": len(self.head_hidden), "graph.layers": self.graph.layers}
        for name, count in layers.items():
            if count > MOST_LAYERS:
                raise ValueError(
                    f"expected at most {MOST_LAYERS} layers in {name}, got {count}; use fewer"
                )
        if self.validation is not None and not 0 < self.validation < 1:
            raise ValueError(
                f"expected validation between 0 and 1, got {self.validation}; change it"
            )
        for name in (
            "lr",
            "temperature",
            "knn_temperature",
            "clip",
            "max_minutes",
            "timeout_minutes",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"expected {name} to be above 0, got {value}; change it")
        if self.pretrained and (self.init is not None or not self.backbone.startswith("timm:")):
            raise ValueError(
                "expected --pretrained with --backbone timm:NAME and without --init, got "
                f"--backbone {self.backbone} and --init {self.init}; for other weights use --init"
            )
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name):
            raise ValueError(
                f"expected name to be that of a folder inside {self.runs!r}, got {self.name!r}; "
                "use --runs for the folder around it"
            )

    @property
    def code(self) -> tuple[str, ...]:
        """Python files, modules and callables that the options name."""
        return code_of(self.imports, self.backbone)

    def released(self, *, trust: bool, where: str) -> TrainConfig:
        """The same options, with the code they name imported if it was held back.

        Args:
            trust: Whether it may run.
            where: The file or folder that names it, for the message.

        Raises:
            ValueError: If it may not.
        """
        if self.held and self.code and not trust:
            raise ValueError(untrusted(self.code, where))
        return replace(self, held=False) if self.held else self

    def composition(self) -> Composition:
        """What the recipe and the changes to it come to.

        Raises:
            ValueError: For parts that do not go together, and for options that would do nothing.
        """
        self.released(trust=False, where="the run's folder")  # no model is made of what it names
        self._refuse_foreign()
        recipe = find_recipe(self.recipe)
        if recipe.domain != self.domain:
            raise ValueError(
                f"expected a recipe for {self.domain} data, got {self.recipe!r}, which is for "
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
            options={section: getattr(self, section) for section in sections()},
            epochs=self.epochs,
            temperature=self.temperature,
        )

    def _refuse_foreign(self) -> None:
        """Refuse what only another kind of data has a use for."""
        for its in fields(self):
            domain, name, value = its.metadata.get("domain"), its.name, getattr(self, its.name)
            # Complete files hold the defaults of all kinds of data.
            if domain in (None, self.domain) or value == (default := default_of(its, self.domain)):
                continue
            if is_dataclass(value):  # a section: name the option in it
                inner = (one.name for one in fields(value))
                changed = next(o for o in inner if getattr(value, o) != getattr(default, o))
                name, value = f"{name}.{changed}", getattr(value, changed)
            raise ValueError(
                f"expected --{name} only for {domain} data, got {value!r} for {self.domain} data, "
                "which have no use for it; leave it out"
            )

    def evaluates_after(self, epoch: int) -> bool:
        """Whether kNN is measured at the end of an epoch, from 1; it is at the last."""
        return (
            epoch == self.epochs or epoch % (self.evaluate_every or max(1, self.epochs // 10)) == 0
        )

    @property
    def composed_name(self) -> str:
        """The recipe's name and the parts that differ from it."""
        changes = (self.framework, self.weighting, self.mixing, self.negatives)
        return "+".join([self.recipe, *(change for change in changes if change is not None)])


def flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by name, those of a section with a dot between; tuples as lists.

    Example:
        >>> flat_options({"epochs": 3, "loss": {"components": ("similarity",)}})
        {'epochs': 3, 'loss.components': ['similarity']}
    """
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            flat |= flat_options(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def code_of(imports: Sequence[str], backbone: str) -> tuple[str, ...]:
    """Python files, modules and callables among two options.

    Example:
        >>> code_of(["method.py"], "timm:vit_tiny_patch16_224"), code_of([], "mine:encoder")
        (('method.py',), ('mine:encoder',))
    """
    source, colon, _ = backbone.partition(":")
    own = bool(colon) and source not in ("timm", "torchvision")
    return (*imports, *((backbone,) if own else ()))


def untrusted(code: Sequence[str], where: str) -> str:
    """What to say of a file or folder that names code."""
    return (
        f"expected {where} to name no code, got {', '.join(code)}, which would run with your "
        "rights; read it, then add --trust (in Python: trust=True)"
    )


OF_DOMAIN: dict[str, Domains] = {
    its.name: its.metadata["domain"] for its in fields(TrainConfig) if its.metadata.get("domain")
}
"""Options that only one kind of data has a use for."""


def check_types(options: Any, prefix: str = "") -> None:
    """Refuse values of another type than their field's.

    Raises:
        TypeError: For a value of another type.
        ValueError: For a word that is none of those to choose from.
    """
    for name, hint in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if value is not None and name not in ("given", "held") and not fits(value, hint):
            too_large = isinstance(value, int) and abs(value) > LARGEST
            word = isinstance(value, str) and _choices(hint)
            kind = ValueError if word or too_large else TypeError
            raise kind(mismatch(f"{prefix}{name}", value, hint))


def read_options(kind: type, options: Mapping[str, Any], prefix: str = "") -> Any:
    """A dataclass of options from options by name.

    Raises:
        ValueError: For an option that does not exist.
    """
    names = [its.name for its in fields(kind)]
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names) or f"; choose among {', '.join(names)}"
            raise ValueError(f"expected an option that exists, got {prefix}{name}{hint}")
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return kind(**lists)


def make_config(options: Mapping[str, Any]) -> TrainConfig:
    """A configuration from options by name; those of a section may be a mapping.

    Raises:
        ValueError: For an option that does not exist.

    Example:
        >>> make_config({"recipe": "hcl", "loss": {"hardness": 2.0}}).loss.hardness
        2.0
    """
    made: TrainConfig = read_options(TrainConfig, options)
    return made


def config_to_yaml(config: TrainConfig) -> str:
    """A configuration as YAML."""
    values = {name: value for name, value in asdict(config).items() if name not in OF_A_CALL}
    return yaml.safe_dump(_plain(values), sort_keys=False)


def config_from_yaml(text: str) -> TrainConfig:
    """A configuration from YAML; the code that it names is held back (:meth:`released`).

    Raises:
        ValueError: For an option that does not exist, or text that is no YAML.
    """
    try:
        options = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"expected YAML, got {' '.join(str(error).split())}") from error
    if not isinstance(options, dict):
        raise TypeError(f"expected options by name, got a {type(options).__name__}")
    own = {str(name): value for name, value in options.items() if name not in OF_A_CALL}
    return make_config({**own, "held": True})


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML shows no tags."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
