"""The options of a training run, on the command line, in YAML and in Python.

:class:`TrainConfig` declares what all kinds of data share. The options of a kind of data are one
dataclass of its own, those of a part (a framework, a weighting) another; a configuration holds one
of each that its recipe needs.
"""

# ruff: noqa: RUF009 (option() makes a field)

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_type_hints

from torch import nn

from unremix.console.values import (
    UnknownOptionError,
    bounded,
    check_bounds,
    check_types,
    fits,
    make_options,
    mismatch,
    read_yaml,
    write_yaml,
)
from unremix.domains.base import DOMAINS, Domain, default_domain, domain_of_encoder, find_domain
from unremix.domains.extensions import load_extensions, warn_of_changed_code
from unremix.files.atomic_files import PATH_NAME
from unremix.frameworks.heads import projection_head
from unremix.frameworks.parts import section_of
from unremix.frameworks.recipe import PARTS, RECIPES, Composition, compose, find_recipe, sections

Logger = Literal["tensorboard", "wandb"]
OptimizerName = Literal["adam", "adamw", "sgd", "lars"]
Keep = Literal["best", "blend", "last"]
ScheduleName = Literal["constant", "cosine"]

# Of a call, not of the run: no file holds them.
OF_A_CALL = ("given", "from_file", "trust", "allow_changed_data", "profile")
INTERNAL = ("given", "from_file", "own", "part_options")  # fields that are not options
SELECTIVE = (
    "stream", "head_hidden", "head_output", "head_batch_norm", "chunk", "validation",
    "audit_every", "probe_epochs",
)  # fmt: skip
"""Options that not every kind of data has a use for; its ``uses`` lists those that it has."""

ADAPTING: Mapping[str, Any] = {
    "epochs": 5, "lr": 1e-3, "encoder_rate": 0.1, "layer_decay": 0.1, "warmup_epochs": 1,
    "schedule": "cosine", "freeze_statistics": True, "keep": "best", "least_kept": 0.25,
}  # fmt: skip
"""Defaults of a run that does not start from random weights, chosen by studies/adapting.py."""


def option(default: Any = None, **bounds: Any) -> Any:
    """A field that is None until it is given or settled, with the default in its metadata."""
    return bounded(None, usual=default, **bounds)


@dataclass(frozen=True, init=False)
class TrainConfig:
    """Options of a training run.

    Args:
        data: A path, a URL or the name of an embedded data set. A name that is not found is looked
            up in the folder that UNREMIX_DATA names.
        stream: Read WebDataset shards as they are needed, this many at a time, rather than samples
            in any order: for data larger than memory or disk. A batch is drawn from that many
            shards; take a multiple of the number of processes that divides the batch size. None by
            default.
        domain: What kind of data it is; by default what the recipe is for.
        recipe: Which composition of parts; ``unremix recipes`` lists them.
        framework: Another framework than the recipe's; ``unremix recipes`` lists them.
        weighting: Another weighting of the negatives: uniform, hcl or unremix.
        mixing: Another mixing of the views: imix, unmix or none.
        negatives: Other further negatives: mochi, patch or none.
        labels: What labels of the training samples are used for. use: samples of one class are
            positives of each other, not negatives, and unlabeled ones are used as ever; ignore:
            only to measure. The recipe's choice by default, most often ignore.
        head_hidden: Sizes of the projection head's hidden layers.
        head_output: Size of the embeddings the loss sees.
        head_batch_norm: Whether the head normalizes its hidden layers.
        init: Start from the weights of another encoder: a run's folder, a state dict, a
            .safetensors file, or timm:NAME for pretrained weights.
        encoder: Start from a ready encoder with its preprocessing: timm:NAME, torchvision:NAME,
            package.module:callable, file.py:callable, each perhaps with :WEIGHTS_FILE;
            sentence-transformers:NAME or transformers:NAME, where NAME may be a folder; an exported
            file, or a run's folder.
        epochs: Passes over the data; 0 makes a run of the untrained encoder.
        max_minutes: End training with the first epoch that ends after this many minutes.
        batch_size: Samples per step, over all processes; auto is 256, or the largest power of two
            that gives at least 4 steps an epoch, never below 16.
        optimizer: adam, adamw, sgd or lars.
        lr: Learning rate.
        encoder_rate: Share of the learning rate that the encoder's last layer gets.
        layer_decay: The share of that that its first layer gets; it rises by equal factors.
        freeze: Share of the encoder's layers, from the first, that are not trained.
        freeze_statistics: Whether the encoder's BatchNorm layers normalize by the statistics that
            they came with, not by those of a batch.
        keep: What becomes encoder.safetensors of a run that does not start from random weights:
            the last weights; the blend of the last and the first; or the best, which are the first
            if no measure shows that another is better.
        blend: Share of the last weights in a blend.
        least_kept: End training when less than this share of the samples' nearest neighbors are
            those that the encoder found as it came; None by default.
        weight_decay: Weight decay.
        warmup_epochs: Epochs of linear warm-up.
        schedule: Learning rate after the warm-up: constant or cosine.
        clip: Largest norm of the gradient, if any.
        temperature: τ of the loss; the recipe's by default.
        highest_temperature: Move τ between this and --temperature on a cosine, five times up and
            down in a training; None keeps it constant.
        chunk: Samples per forward pass, for large batches in small memory; the gradient is that of
            the whole batch (but BatchNorm sees one chunk at a time).
        precision: Numbers to compute in: auto is bf16-mixed where the device multiplies 16 bits
            fast and the model gains from it, else 32-true. The loss and all measures take 32 bits.
        compile: Whether training steps run the encoder as code of torch.compile; auto: in long runs
            of one process, where it is faster. Settled before the first step, and recorded.
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
        validation: Hold out this share of the training samples and measure on them, in place of
            the test samples: to choose options without seeing those.
        evaluate_every: Epochs between kNN measurements; by default about ten in a run.
        audit_every: Epochs between audits of the weights, for data with labels: which negatives
            are heavy, and whether they are false; in columns of metrics.csv named audit_. None
            by default.
        knn_k: Neighbors of the kNN measurement; by default 200, but at most a fifth of the samples
            per class.
        knn_temperature: Its temperature.
        probe_epochs: Epochs of the linear probe at the end; 0 leaves it out.
        checkpoint_every: Steps between checkpoints, besides those at every epoch's end.
        log_every: Steps between rows of metrics.csv within an epoch, besides that at its end; a
            row's loss is the mean since the row before.
        loggers: Further loggers, besides metrics.csv.
        imports: Python files or modules to import first, which add parts, recipes and kinds of
            data of your own.
        trust: Whether code may run that a run's folder or a --config file names, not you: its
            imports, and a backbone package.module:callable.
        allow_changed_data: Whether to resume a run though its data have changed.
        name: Name of the run's folder; made of data, recipe and seed by default.
        runs: Folder of all runs.
        resume: Folder of a run to continue. It keeps its options; with --epochs it trains further.
        progress: Whether to show progress.
        profile: Whether to show at the end where the time went, and write a trace of a few steps.
        own: The options of the kind of data, as its dataclass.
        part_options: The options of the parts, by section; None in them leaves the recipe's value.
        given: Names of the options that were given; determined automatically, and kept by
            :func:`dataclasses.replace`.
        from_file: Whether the options come from a file, so that the code they name is not imported
            before :meth:`trusted` allows it.

    The constructor also takes the options of the kind of data and of the parts by their names on
    the command line, such as ``TrainConfig(width=16, moco={"queue": 64})``, and they can be read
    as attributes: ``config.width``, ``config.moco.queue``.
    """

    data: str = option()
    stream: int | None = option(least=1, rare=True)
    domain: str = option()
    recipe: str = option()
    framework: str | None = option()
    weighting: str | None = option()
    mixing: str | None = option()
    negatives: str | None = option()
    labels: Literal["ignore", "use"] | None = option()
    head_hidden: tuple[int, ...] = option((512,), most=1000)
    head_output: int = option(128, least=1)
    head_batch_norm: bool = option(True, rare=True)
    init: str | None = option()
    encoder: str | None = option()
    epochs: int = option(least=0)
    max_minutes: float | None = option(above=0, rare=True)
    batch_size: int = option("auto", least=2)
    optimizer: OptimizerName = option("adam")
    lr: float = option(1e-3, above=0)
    encoder_rate: float = option(1.0, above=0, rare=True)
    layer_decay: float = option(1.0, above=0, most=1, rare=True)
    freeze: float = option(0.0, least=0, below=1, rare=True)
    freeze_statistics: bool = option(False, rare=True)
    keep: Keep = option("last")
    blend: float = option(0.5, least=0, most=1, rare=True)
    least_kept: float | None = option(least=0, most=1, rare=True)
    weight_decay: float = option(1e-6, least=0)
    warmup_epochs: int = option(0, least=0)
    schedule: ScheduleName = option("constant")
    clip: float | None = option(above=0, rare=True)
    temperature: float | None = option(above=0)
    highest_temperature: float | None = option(above=0, rare=True)
    chunk: int | None = option(least=1, rare=True)
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"] = option("auto")
    compile: bool | Literal["auto"] = option("auto", rare=True)
    accelerator: Literal["auto", "cpu", "gpu"] = option("auto")
    devices: int | Literal["auto"] = option("auto", least=1, most=1024, rare=True)
    num_nodes: int = option(1, least=1, most=65_536, rare=True)
    strategy: Literal["ddp", "fsdp"] = option("ddp", rare=True)
    timeout_minutes: float = option(30.0, above=0, most=525_600, rare=True)  # a year
    sync_batchnorm: bool = option(False, rare=True)
    threads: int | None = option(least=1, most=4096)
    seed: int = option(0)
    limit: int | None = option(least=1)
    validation: float | None = option(above=0, below=1, rare=True)
    evaluate_every: int | None = option(least=1)
    audit_every: int | None = option(least=1, rare=True)
    knn_k: int | None = option(least=1, rare=True)
    knn_temperature: float = option(0.5, above=0, rare=True)
    probe_epochs: int = option(100, least=0)
    checkpoint_every: int | None = option(least=1, rare=True)
    log_every: int | None = option(least=1, rare=True)
    loggers: tuple[Logger, ...] = option((), rare=True)
    imports: tuple[str, ...] = option((), rare=True)
    trust: bool = option(False, rare=True)
    allow_changed_data: bool = option(False, rare=True)
    name: str | None = option()
    runs: str = option("runs")
    resume: str | None = option()
    progress: bool = option(True)
    profile: bool = option(False, rare=True)
    own: Any = field(default=None)
    part_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    given: frozenset[str] | None = field(default=None, repr=False, compare=False)
    from_file: bool = field(default=False, repr=False, compare=False)

    def __init__(self, **options: Any) -> None:
        from_file = bool(options.get("from_file"))
        imports = options.get("imports")
        if imports is not None and not from_file and not isinstance(imports, str):
            options["imports"] = load_extensions(imports)
        further = dict(options)
        for its in fields(self):
            value = further.pop(its.name, None)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            self._set(its.name, tuple(value) if isinstance(value, list) else value)
        check_types(self, skip=INTERNAL)
        if self.given is None:
            known = {name for name, value in options.items() if value is not None}
            self._set("given", frozenset(known - set(INTERNAL)))
        self._set("from_file", from_file)
        self._settle()
        self._take(further)
        if not from_file and options.get("own") is None and self.starts:  # own: a copy is made
            for name, value in ADAPTING.items():
                if options.get(name) is None and name not in self._library_defaults():
                    self._set(name, value)
        check_bounds(self)
        if self.name is not None and PATH_NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"expected name to be that of a folder inside {self.runs!r}, got {self.name!r}; "
                "use --runs for the folder around it"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _settle(self) -> None:
        """Give every shared option that was not given its value, by kind of data."""
        recipe = RECIPES.get(self.recipe)
        named = domain_of_encoder(self.encoder or "")
        usual_domain = (recipe and recipe.domain) or named or default_domain().name
        domain = find_domain(usual_domain if self.domain is None else self.domain)
        self._set("domain", domain.name)
        data = self.data or domain.defaults["data"]
        usual = {**domain.defaults, **domain.embedded.get(data, {})}
        usual |= self._library_defaults()
        for its in fields(self):
            if getattr(self, its.name) is None and its.name not in INTERNAL:
                self._set(its.name, usual.get(its.name, its.metadata["usual"]))

    def _library_defaults(self) -> Mapping[str, Any]:
        """Defaults of the kind of data for the library or the callable that ``encoder`` names."""
        name = self.encoder or ""
        named = domain_of_encoder(name) == self.domain or is_code(name)
        return find_domain(self.domain).from_library if named else {}

    def _take(self, further: Mapping[str, Any]) -> None:
        """Sort options of the kind of data and of the parts from those of other kinds of data."""
        domain, known = find_domain(self.domain), sections()
        own: dict[str, Any] = {}
        parts = {name: vars(value) for name, value in (self.part_options or {}).items()}
        if isinstance(self.own, domain.options):
            own = dict(vars(self.own))
        elif self.own is not None:
            owner = next(one for one in DOMAINS.values() if one.options is type(self.own))
            self._refuse_foreign(owner, vars(self.own))
        for name, value in further.items():
            if name in known and value is not None:
                parts[name] = _mapping(name, value, known[name])
            elif value is not None:
                owner, values = _owner_of(name, value, domain)
                if owner is not domain:
                    self._refuse_foreign(owner, values)
                else:
                    own = values if owner.section else own | values
        prefix = f"{domain.section}." if domain.section else ""
        self._set("own", make_options(domain.options, own, prefix))
        made: dict[str, Any] = {
            name: make_options(kind, parts.get(name, {}), f"{name}.")
            for name, kind in known.items()
        }
        self._set("part_options", made)

    def _refuse_foreign(self, owner: Domain, values: Mapping[str, Any]) -> None:
        """Refuse options that only another kind of data uses; files may hold their defaults.

        The kind of data of a run to resume is not known yet.
        """
        if self.resume is not None:
            return
        usual = owner.options()
        for name, value in values.items():
            value = tuple(value) if isinstance(value, list) else value
            if value is not None and value != getattr(usual, name, None):
                self._refuse(
                    f"{owner.section}.{name}" if owner.section else name, owner.name, value
                )

    def _refuse(self, name: str, kinds: str, value: Any) -> None:
        raise ValueError(
            f"expected --{name} only for {kinds} data, got {value!r} for {self.domain} data, "
            "which have no use for it; leave it out"
        )

    def __getattr__(self, name: str) -> Any:
        """Options of the kind of data and of the parts, by their names on the command line."""
        values = object.__getattribute__(self, "__dict__")
        parts, own = values.get("part_options") or {}, values.get("own")
        if name in parts:
            return parts[name]
        if own is not None:
            if name == find_domain(values["domain"]).section:
                return own
            if not find_domain(values["domain"]).section and hasattr(own, name):
                return getattr(own, name)
        raise AttributeError(
            f"the options of a run (domain {values.get('domain')}) have no {name!r}"
        )

    def options(self) -> dict[str, Any]:
        """All options by name, sections as dictionaries, in the order in which commands name them.

        The names of finished runs of experiments depend on this order.
        """
        section, own = find_domain(self.domain).section, asdict(self.own)
        follows = {its.name: its.metadata.get("after", "negatives") for its in fields(self.own)}
        values: dict[str, Any] = {}
        for its in fields(self):
            if its.name not in INTERNAL:
                values[its.name] = getattr(self, its.name)
            if section and its.name == "temperature":
                values[section] = own
            elif not section:
                values |= {name: own[name] for name in own if follows[name] == its.name}
        return values | {name: asdict(value) for name, value in self.part_options.items()}

    @property
    def code(self) -> tuple[str, ...]:
        """Python files, modules and callables that the options name."""
        return code_of(self.options())

    def trusted(self, *, trust: bool, where: str) -> TrainConfig:
        """The same options; the code that they name is imported, unless it was before.

        Args:
            trust: Whether it may run.
            where: The file or folder that names it, for the message.

        Raises:
            ValueError: If it may not.
        """
        if self.from_file and self.code:
            if not trust:
                raise untrusted(self.code, where)
            warn_of_changed_code(self.code, where)
        return replace(self, from_file=False) if self.from_file else self

    @property
    def starts(self) -> bool:
        """Whether the encoder starts from weights that are not random."""
        return self.encoder is not None or find_domain(self.domain).starts_from(self) is not None

    @property
    def embeds_in(self) -> str:
        """The precision of its embeddings: 32 bits if it did not start from random weights."""
        return "32-true" if self.precision.endswith("mixed") and self.starts else self.precision

    def composition(self) -> Composition:
        """The recipe with the changes applied.

        Raises:
            ValueError: For parts that do not go together, and for options that would do nothing.
        """
        self.trusted(trust=False, where="the run's folder")  # no model is made of what it names
        uses = find_domain(self.domain).uses
        for its in fields(self):
            value = getattr(self, its.name)
            if its.name in SELECTIVE and its.name not in uses and value != its.metadata["usual"]:
                kinds = [name for name, one in DOMAINS.items() if its.name in one.uses]
                self._refuse(its.name, " or ".join(kinds), value)
        recipe = find_recipe(self.recipe)
        recipe = replace(recipe, domain=recipe.domain or default_domain().name)
        if recipe.domain != self.domain:
            raise ValueError(
                f"expected a recipe for {self.domain} data, got {self.recipe!r}, which is for "
                f"{recipe.domain} data; leave --domain out or choose another recipe"
            )
        composition = compose(
            recipe,
            changes={kind: getattr(self, kind) for kind in PARTS},
            options=self.part_options,
            epochs=self.epochs,
            temperature=self.temperature,
            labels=None if self.labels is None else self.labels == "use",
        )
        high, low = self.highest_temperature, composition.temperature
        learned = composition.options.get("loss", {}).get("learnable_temperature")
        if high is not None and (not composition.has_weights or learned or high <= low):
            raise ValueError(
                f"expected highest_temperature above --temperature {low:g}, with a loss whose "
                f"temperature is not learned, got {high:g}; leave it out"
            )
        return composition

    def evaluates_after(self, epoch: int) -> bool:
        """Whether kNN is measured at the end of an epoch, from 1; it is at the last."""
        return (
            epoch == self.epochs or epoch % (self.evaluate_every or max(1, self.epochs // 10)) == 0
        )

    @property
    def composed_name(self) -> str:
        """The recipe's name and the parts that differ from it."""
        changes = [self.framework, self.weighting, self.mixing, self.negatives]
        changes.append({None: None, "use": "labels", "ignore": "no-labels"}[self.labels])
        return "+".join([self.recipe, *(change for change in changes if change is not None)])


# For the type checker a batch size is a number, which it is once the data are read.
TrainConfig.__annotations__["batch_size"] = int | Literal["auto"]


def make_head(encoder: nn.Module, config: TrainConfig) -> nn.Sequential:
    """The projection head that the options ask for, behind an encoder with ``features``."""
    features = encoder.features
    assert isinstance(features, int)
    return projection_head(
        features,
        hidden=config.head_hidden,
        output=config.head_output,
        batch_norm=config.head_batch_norm,
    )


def _mapping(name: str, value: Any, kind: type) -> dict[str, Any]:
    """The options of a section, given as a mapping or as a dataclass; those that are not None."""
    if is_dataclass(value):
        value = vars(value)
    if not isinstance(value, Mapping):
        raise TypeError(mismatch(name, value, kind))
    return {str(key): one for key, one in value.items() if one is not None}


def _owner_of(name: str, value: Any, domain: Domain) -> tuple[Domain, dict[str, Any]]:
    """The kind of data that an option belongs to, this one first, and its options by name.

    Raises:
        ValueError: For an option that does not exist.
    """
    for one in (domain, *DOMAINS.values()):
        if one.section and name == one.section:
            return one, _mapping(name, value, one.options)
        if not one.section and name in (its.name for its in fields(one.options)):
            return one, {name: os.fspath(value) if isinstance(value, os.PathLike) else value}
    raise UnknownOptionError(name, option_hints())


def option_hints() -> dict[str, Any]:
    """The type of every option by its name on the command line, those of a section with a dot.

    Example:
        >>> option_hints()["epochs"], option_hints()["moco.queue"]
        (<class 'int'>, int | None)
    """
    hints = get_type_hints(TrainConfig)
    found = {name: hint for name, hint in hints.items() if name not in INTERNAL}
    kinds = [(domain.section, domain.options) for domain in DOMAINS.values()]
    for section, kind in (*kinds, *sections().items()):
        prefix = section and f"{section}."
        found |= {f"{prefix}{name}": hint for name, hint in get_type_hints(kind).items()}
    return found


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


def nested_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flat_options`: the options of a section as a dictionary.

    Example:
        >>> nested_options({"epochs": 3, "loss.hardness": 2.0})
        {'epochs': 3, 'loss': {'hardness': 2.0}}
    """
    nested: dict[str, Any] = {}
    for name, value in options.items():
        section, dot, inner = name.rpartition(".")
        if dot:
            nested.setdefault(section, {})[inner] = value
        else:
            nested[name] = value
    return nested


def code_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Python files, modules and callables that options, by name, import.

    Example:
        >>> code_of({"imports": ["method.py"]})
        ('method.py',)
    """
    named = [name for domain in DOMAINS.values() for name in domain.code(options)]
    encoder = options.get("encoder")
    if isinstance(encoder, str) and is_code(encoder):
        named.append(encoder)
    return tuple(dict.fromkeys([*(options.get("imports") or ()), *named]))


def is_code(encoder: str) -> bool:
    """Whether a ready encoder's name is that of a callable, not of a library's encoder or a file.

    Example:
        >>> is_code("mine.py:encoder"), is_code("timm:resnet18")
        (True, False)
    """
    prefix, colon, _ = encoder.partition(":")
    known = (one for domain in DOMAINS.values() for one in domain.prefixes)
    return bool(colon) and prefix not in known and not os.path.exists(encoder)


class UntrustedError(ValueError):
    """A file or folder names code that may not run."""


def untrusted(code: Sequence[str], where: str) -> UntrustedError:
    """The error for a file or folder that names code."""
    return UntrustedError(
        f"expected {where} to name no code, got {', '.join(code)}, which would run with your "
        "rights; read it, then add --trust (in Python: trust=True)"
    )


def make_config(options: Mapping[str, Any]) -> TrainConfig:
    """A configuration from options by name; those of a section may be a mapping.

    Raises:
        ValueError: For an option that does not exist.

    Example:
        >>> make_config({"recipe": "hcl", "loss": {"hardness": 2.0}}).loss.hardness
        2.0
    """
    return TrainConfig(**options)


def config_to_yaml(config: TrainConfig) -> str:
    """A configuration as YAML."""
    values = {name: value for name, value in config.options().items() if name not in OF_A_CALL}
    return write_yaml(values)


def config_to_commented_yaml(config: TrainConfig) -> str:
    """A configuration as YAML for people: its own sections, and what open options come to.

    It is read as that of :func:`config_to_yaml`, since comments say what options come to.

    Example:
        >>> "temperature: null  # 0.5" in config_to_commented_yaml(TrainConfig(recipe="hcl"))
        True
    """
    composition = config.composition()
    known: dict[str, Any] = {"temperature": composition.temperature}
    for kind, name in composition.parts.items():
        part = PARTS[kind].get(name)
        made = None if part is None else composition.make_options(kind)
        if is_dataclass(made):
            section = section_of(part)
            known |= {f"{section}.{field}": value for field, value in vars(made).items()}
    given = {name for name, values in composition.options.items() if values}
    used = {name.partition(".")[0] for name in known} | given
    lines, section = [], ""
    for line in config_to_yaml(config).splitlines():
        name, _, value = line.partition(":")
        if not line.startswith((" ", "-")):
            section = name if not value.strip() else ""
        if section in sections() and section not in used:
            continue
        resolved = known.get(f"{section}.{name.strip()}" if line.startswith(" ") else name)
        told = value.strip() == "null" and resolved is not None
        lines.append(f"{line}  # {json.dumps(resolved, default=str)}" if told else line)
    return "\n".join(lines) + "\n"


def config_from_yaml(text: str, *, trust: bool = False, where: str = "the file") -> TrainConfig:
    """A configuration from YAML; the code that it names is not imported yet (:meth:`trusted`).

    Args:
        text: The YAML.
        trust: Whether to import first what it names, which may add the kind of data it is about.
        where: Where it is from, for messages.

    Raises:
        ValueError: For an option that does not exist, or text that is no YAML.
    """
    options = read_yaml(text, as_written=True) or {}
    if not isinstance(options, dict):
        raise TypeError(f"expected options by name, got a {type(options).__name__}")
    kept = {str(name): value for name, value in options.items() if name not in OF_A_CALL}
    imports, domain = kept.get("imports") or (), kept.get("domain")
    if not fits(imports, hint := tuple[str, ...]):
        raise TypeError(mismatch("imports", imports, hint))
    if trust:
        warn_of_changed_code(code_of(kept), where)
        load_extensions(imports)
    elif imports and isinstance(domain, str) and domain not in DOMAINS:
        raise untrusted(imports, where)
    return make_config({**kept, "from_file": True})
