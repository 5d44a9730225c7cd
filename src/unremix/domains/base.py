"""A kind of data is one record: what it is called, and how it is read, encoded, measured, shown.

The shared rooms work on tensors, items and records. Whatever depends on the kind of data they ask
of its :class:`Domain`. A new kind of data is a folder beside this file, or a package or file of
yours, that makes such a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unremix.console.suggestions import did_you_mean
from unremix.domains.sampling import indices_of, steps_of
from unremix.files.archives import Skipped
from unremix.frameworks.base import Batch, Framework
from unremix.frameworks.randomness import MIXING, OTHER_VIEWS, keys, scramble
from unremix.frameworks.recipe import PARTS, RECIPES, SERVED, Kind, Recipe, sections

if TYPE_CHECKING:
    from unremix.domains.options import TrainConfig
    from unremix.domains.shown import Sample
    from unremix.losses import TwoViewLoss

AUTOCAST = "embeds_in_bfloat16"  # an attribute of encoders that do, if it is true
Observer = Callable[[Framework, int], dict[str, float]]
"""Measures a model after a number of epochs."""

Measuring = Callable[[str, int, int], None]
"""Called with what is being measured, how much of it is done, and how much there is."""


class Features(NamedTuple):
    """Whole data, embedded."""

    embeddings: Tensor  # shape (n, F)
    names: list[str]  # of each, n
    labels: Tensor | None  # shape (n,), where known
    classes: Sequence[str] | None  # the name of each label, where known


class Trained(Protocol):
    """What a domain asks of a run: its folder, options, shape and encoder."""

    path: Path
    config: TrainConfig
    shape: Any

    def encoder(self, *, trained: bool = True) -> nn.Module:
        """The run's encoder, in eval mode, trained or with random weights."""
        ...

    def encoders(self) -> dict[str, nn.Module]:
        """Those to compare: ``trained``, perhaps ``blend`` and ``start``, and ``untrained``."""
        ...

    def metrics(self) -> list[dict[str, float]]:
        """The measurements after each epoch, and other rows of metrics.csv."""
        ...

    def warn(self, message: str) -> None:
        """Keep a warning in the run's folder."""
        ...


class Ready(NamedTuple):
    """A ready encoder, as a kind of data finds it by name."""

    config: TrainConfig  # options that build it, without its weights
    shape: Any  # how its inputs are prepared
    weights: Mapping[str, Tensor] | Path  # by name, or the file that has them
    description: str  # its preprocessing, in a few words


class Piece(Protocol):
    """Some consecutive samples of the data, to be embedded on another machine; it is pickled."""

    def embed(self, encoder: nn.Module, shape: Any) -> tuple[Features, list[Skipped]]:
        """Their embeddings, and the samples that could not be used.

        Args:
            encoder: From the domain's ``reader``.
            shape: What the run's data decided about its model.
        """
        ...


class Cut(NamedTuple):
    """Data in pieces."""

    pieces: Sequence[Piece]  # in the order of the data
    identity: Any  # texts and tensors that identify these data
    skipped: Sequence[Skipped]  # what was left out when the data were listed


@dataclass(frozen=True, kw_only=True)
class Items:
    """How a program names items of this kind of data."""

    called: str  # what a person calls them, such as "pictures"
    example: str  # a list of them in Python
    accepted: str  # what the list may hold
    before: str = ""  # lines of Python that the example needs
    task: str = "feature-extraction"  # what the Hugging Face Hub calls embedding them


CODE_START = '"""Written by unremix'  # of Python beside an exported file
# Facts that are texts; others are written as JSON.
TEXTS = ("made_by", "version", "domain", "layer", "precision", "crop", "resize")


def to_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Metadata as strings, which is all that safetensors and ONNX hold."""
    return {key: value if key in TEXTS else json.dumps(value) for key, value in facts.items()}


class ExportNote(NamedTuple):
    """What there is to say about an exported file."""

    code: str | None = None  # Python that builds the network, to be written beside it
    note: str | None = None  # a sentence for the user; ``{code}`` stands for the code's file


@dataclass(frozen=True, kw_only=True)
class Exports:
    """How encoders are written where options and shape do not say enough about them.

    Facts are what a file says about its encoder: how to build it and how to prepare its inputs.
    """

    facts: Callable[[Trained, nn.Module], dict[str, Any]]
    options: Callable[[dict[str, Any], Path], dict[str, Any]]  # that build the encoder
    shape: Callable[[dict[str, Any], Path], Any]
    opaque: Callable[[Callable[[Tensor], Tensor], dict[str, Any], Path], tuple[nn.Module, Any]]
    """A function of unprepared inputs as an encoder, and the shape that leaves them as they are."""
    formats: Mapping[str, Callable[[nn.Module, dict[str, Any], Path], ExportNote]]
    """Writes an encoder that facts describe to a path; by the name of the format."""
    readme: Path
    """Template of further sections of the README: it gets ``facts``, ``files`` by their ending and
    the path of ``code`` that builds the network, or None."""


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Domain:
    """What a kind of data provides. Data and shape are whatever its own functions agree on.

    The data have a ``name``. The shape is what the data decide about the model: a frozen dataclass
    of plain values, which is kept in the run's folder.
    """

    # Names and words
    name: str  # on the command line
    unit: str  # what is counted, in the plural
    reads: str  # what its data may be, in a sentence
    items: Items
    is_default: bool = False  # whether it is meant where neither options nor recipe say

    # Options
    options: type  # a frozen dataclass with a default for every field
    section: str  # on the command line, such as "graph" for --graph.hidden; empty for --hidden
    defaults: Mapping[str, Any]  # of the options that all kinds of data share
    uses: frozenset[str] = frozenset()  # options of the kind SELECTIVE that it has a use for
    # Defaults of runs that start from a library's encoder; others are those of all such runs.
    from_library: Mapping[str, Any] = field(default_factory=dict)
    # Names of data that come with it, and their defaults.
    embedded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: str  # the options that decide the model's size, for messages
    # Whether ``--precision auto`` may be bf16-mixed: whether it makes such a model faster.
    gains_from_bfloat16: Callable[[TrainConfig], bool] = lambda _: True
    check: Callable[[TrainConfig], None] = _nothing  # refuses options before the data are read
    code: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda _: ()  # code that options name
    faster: Callable[[TrainConfig, Any], list[str]] = lambda *_: []  # options that take less time

    # Recipes and the parts they are made of
    recipes: tuple[Recipe, ...]
    # Names of the shared parts that it has a use for.
    parts: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    frameworks: Mapping[str, type] = field(default_factory=dict)  # for it alone

    # Data
    recognizes: Callable[[str], bool] = lambda _: False  # whether a path or name is of such data
    load: Callable[[TrainConfig], Any]  # the data of a run
    holds: Callable[[Any], bool] = lambda _: False  # whether items in memory are of this kind
    write: Callable[[Any, Sequence[Any] | None, Path], Path] | None = None
    """Writes such items, with a class for each or None, for ``load`` to a path that gets an ending.
    """
    load_for: Callable[[Trained, Any], Any]  # a run's data, or others read the same way
    source: Callable[[Sequence[str]], Any] | None = None  # one or several paths as one source
    shape: Callable[[Any, TrainConfig], Any]  # what the data decide about the model
    shape_from: Callable[[dict[str, Any]], Any]  # the same from plain values
    fingerprint: Callable[[Any], str]  # identifies the training data, whatever they are called
    size: Callable[[Any], int] = lambda data: len(data.train)  # samples to train on
    labels: Callable[[Any], Tensor | None] = lambda data: data.train.labels
    """The class of every sample to train on, -1 where it has none, shape (n,); None if unknown."""
    classes: Callable[[TrainConfig], int | None] = lambda _: None
    """How many classes the labels of a run's data have, 0 without labels; None if unknown."""
    lacking: str = "labels"  # what data lack that cannot be measured
    to_label: str = "Add labels"  # how to give them labels, up to "to compare them"
    imagine: Callable[[TrainConfig], Any] = _nothing
    """Random data in place of published ones that are not there, for a dry run; None for others."""

    # Model
    build: Callable[[TrainConfig, Any], tuple[nn.Module, nn.Sequential]]  # encoder and head
    fill: Callable[[Framework, TrainConfig, Any], None] = _nothing  # vectors that options name
    starts_from: Callable[[TrainConfig], str | None] = lambda config: config.init  # its weights
    prefixes: tuple[str, ...] = ()  # of ready encoders' names, such as "library" of "library:name"
    ready: Callable[[TrainConfig], Ready] | None = None
    """The encoder that ``config.encoder`` names: by a prefix, or a callable of the user's own."""
    download: Callable[[str, Any], Mapping[str, Tensor]] | None = None
    """Weights by a name with a prefix, for a shape; from the network if they are not here."""
    at_hand: Callable[[], tuple[str, str | None]] | None = None
    """A ready encoder on this machine, or else one and the command that brings it."""
    describe: Callable[[TrainConfig, Any], str]  # the encoder, in a few words
    steps: Callable[[Any, TrainConfig], int] = steps_of  # per epoch
    # The samples of a step, over all processes.
    indices: Callable[[Any, TrainConfig, int], Tensor] = indices_of
    fetch: Callable[[Any, Tensor], Any]  # reads samples; in another thread, one step ahead
    views: Callable[..., tuple[Any, ...]]
    """What the framework is given of fetched samples, by indices (N,), the framework, options,
    shape and epoch. For :func:`fixed_views`, numbers of random streams follow, one for each view.
    """
    view: Callable[[Any, Any, Tensor], Any] = _nothing
    """One random view of fetched samples, by shape and keys (N,); None if there are none such."""
    ahead: Callable[[Any, TrainConfig], int] = lambda *_: 0  # steps to fetch ahead of their use
    expect: Callable[[Any, Tensor], None] = _nothing  # begin to fetch samples, without waiting

    # Use
    reader: Callable[[Trained], tuple[nn.Module, Any]] = lambda run: (run.encoder(), run.shape)
    """The encoder that embeds a run's data, and its shape."""
    embed: Callable[[Trained, Any], Tensor]  # items in memory or by path, shape (n, F)
    features: Callable[[Trained, Any], Features]  # whole data
    cut: Callable[[Trained, Any, int], Cut] | None = None  # data in pieces of so many rows
    architecture: tuple[str, ...] = ()  # its options that an exported file keeps, beside the shape
    exports: Exports | None = None  # in place of that

    # Measures
    observe: Callable[[Any, Any, TrainConfig, Callable[[str], None]], Observer]
    """Data, shape, options and how to show a message; what is measured at an epoch's end."""
    evaluate: Callable[..., dict[str, Any]]
    """A run and data; ``own``, whether it was trained on them; ``progress``. Gives the card."""

    # Pages
    sample: Callable[[Trained, Any, Framework, TwoViewLoss | None], Sample]  # what a page shows
    thumbnails: Callable[[Any, Sequence[int]], dict[int, Tensor]] = lambda *_: {}
    """Images, uint8 (C, S, S), of rows of the data; none if they are shown by name."""
    ask: Callable[[str], list[str]] | None = None
    """The items that a query stands for if it names no sample; None if it has to name one."""
    preview: Callable[[Trained, Sequence[str]], Sequence[Tensor]] = lambda *_: ()
    """Images of such items, if they are shown as images."""
    names_of: Callable[[str, Sequence[Path]], list[str]] = lambda query, _: [query]
    """The names that a query may have among those of data at some places."""

    @property
    def has_views(self) -> bool:
        """Whether single samples can be augmented."""
        return self.view is not _nothing


DOMAINS: dict[str, Domain] = {}


def register(domain: Domain) -> None:
    """Make a kind of data known, with its frameworks and recipes; nothing happens the second time.

    Raises:
        ValueError: If its name or section, or the name of one of its frameworks or recipes, is
            taken, or its options are not complete.
    """
    if DOMAINS.get(domain.name) is domain:
        return
    if not is_dataclass(domain.options):
        raise ValueError(f"expected a dataclass as options of {domain.name}, got {domain.options}")
    missing = ", ".join({"data", "recipe", "epochs"} - domain.defaults.keys())
    if missing:
        raise ValueError(f"expected defaults of {domain.name} for {missing}, got none; add them")
    sectioned = [*sections(), *(one.section for one in DOMAINS.values())]
    taken: list[tuple[str, Iterable[str], Iterable[str]]] = [
        ("domain", [domain.name], DOMAINS),
        ("section", [domain.section], sectioned),
        ("recipe", [recipe.name for recipe in domain.recipes], RECIPES),
        ("framework", domain.frameworks, PARTS["framework"]),
    ]
    for kind, names, known in taken:
        for name in names:
            if name in known:
                raise ValueError(f"expected a new {kind}, got {name!r}, which exists; rename it")
    DOMAINS[domain.name] = domain
    PARTS["framework"].update(domain.frameworks)
    RECIPES.update({one.name: replace(one, domain=domain.name) for one in domain.recipes})
    shared = domain.parts.get("framework", ())
    SERVED[domain.name] = {**domain.parts, "framework": (*domain.frameworks, *shared)}


def domain_of_encoder(name: str) -> str | None:
    """The kind of data that a ready encoder's name says; None if it says none."""
    prefix = name.partition(":")[0]
    return next((one.name for one in DOMAINS.values() if prefix in one.prefixes), None)


def default_domain() -> Domain:
    """The kind of data that is meant where nothing says which."""
    return next(domain for domain in DOMAINS.values() if domain.is_default)


def find_domain(name: str) -> Domain:
    """A kind of data by its name.

    Raises:
        ValueError: If there is none; it names the nearest.
    """
    if name not in DOMAINS:
        hint = did_you_mean(name, DOMAINS) or (
            "; others come with packages, or from files that --imports names"
        )
        raise ValueError(f"expected a domain among {', '.join(DOMAINS)}, got {name!r}{hint}")
    return DOMAINS[name]


def refuse_other_kinds(source: str, name: str) -> None:
    """Refuse a path or name of data that another kind of data recognizes as its own.

    Args:
        source: The path or name, as it was given.
        name: The kind of data that was asked for.

    Raises:
        ValueError: If another one recognizes it.
    """
    others = [one.name for one in DOMAINS.values() if one.name != name and one.recognizes(source)]
    if others:
        raise ValueError(
            f"expected {find_domain(name).unit}, got {source}, which looks like "
            f"{' or '.join(others)} data; add {' or '.join(f'--domain {one}' for one in others)}"
        )


def make_batch(
    domain: Domain,
    fetched: Any,
    indices: Tensor,
    model: Framework,
    config: TrainConfig,
    shape: Any,
    *,
    step: int,
    epoch: int,
) -> Batch:
    """Views of fetched samples, by indices (N,), with the keys of all that is random."""
    return Batch(
        views=domain.views(fetched, indices, model, config, shape, epoch),
        samples=indices,
        keys=keys(config.seed, epoch, indices, MIXING),
        batch_key=torch.tensor([scramble(config.seed, step, MIXING)]),
        epoch=epoch,
    )


def fixed_views(
    data: Any, shape: Any, config: TrainConfig
) -> Callable[[Framework, Tensor, int], Any]:
    """How training samples are seen that are measured or shown: the same way every time.

    Returns:
        A function of a model, the samples' indices (N,) and which of two views it is, 0 or 1. They
        are other views than those of training.
    """
    domain = find_domain(config.domain)

    def view(model: Framework, indices: Tensor, number: int) -> Any:
        device, fetched = next(model.parameters()).device, domain.fetch(data, indices)
        fetched = fetched.to(device) if isinstance(fetched, Tensor) else fetched
        streams = (OTHER_VIEWS[number],)
        return domain.views(fetched, indices.to(device), model, config, shape, 0, streams)[0]

    return view


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[tuple[torch.device, torch.dtype]]:
    """An encoder in eval mode, without gradients; gives its device and precision.

    One that says so computes in bfloat16 under autocast; its parameters stay as they are.
    """
    parameter, was_training = next(encoder.parameters(), torch.empty(0)), encoder.training
    encoder.eval()
    try:
        mixed = getattr(encoder, AUTOCAST, False)
        device = parameter.device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=mixed):
            yield parameter.device, parameter.dtype
    finally:
        encoder.train(was_training)
