"""What a kind of data provides, stage by stage: reading and modeling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from unremix.domains.sampling import scramble
from unremix.frameworks.base import Batch, Framework
from unremix.options.config import TrainConfig
from unremix.views.randomness import keys

Observer = Callable[[Framework, int], dict[str, float]]
"""Measures a model after a number of epochs."""

Measuring = Callable[[str, int, int], None]
"""Told what is being measured, how much of it is done, and how much there is."""


# Which of a sample's random streams mixes it; two views take 0 and 1, the observer 2 and 3.
MIXING_VIEW = 4


def make_batch(
    views: tuple[Any, ...], indices: Tensor, config: TrainConfig, *, step: int, epoch: int
) -> Batch:
    """Views of some samples as a framework takes them, with the keys of all that is random."""
    return Batch(
        views=views,
        samples=indices,
        keys=keys(config.seed, epoch, indices, MIXING_VIEW),
        batch_key=torch.tensor([scramble(config.seed, step, MIXING_VIEW)]),
        epoch=epoch,
    )


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[tuple[torch.device, torch.dtype]]:
    """An encoder in eval mode, without gradients; gives its device and precision."""
    parameter, was_training = next(encoder.parameters()), encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            yield parameter.device, parameter.dtype
    finally:
        encoder.train(was_training)


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
        """The run's encoder, in eval mode, trained or as it was before."""
        ...


class Reads(Protocol):
    """How data are read, and what they decide about the model.

    ``Data`` is what :meth:`load` returns, which has a ``name``. ``Shape`` is what the data decide
    about the model: a frozen dataclass of plain values, kept in the run's folder.
    """

    unit: str
    """What is counted in a step, in the plural."""

    def check(self, config: TrainConfig) -> None:
        """Refuse what can be refused before the data are read."""
        ...

    def load(self, config: TrainConfig) -> Any:
        """The data of a run."""
        ...

    def load_for(self, run: Trained, data: str | None) -> Any:
        """The data of a run, or others read the same way."""
        ...

    def shape(self, data: Any, config: TrainConfig) -> Any:
        """What the data decide about the model."""
        ...

    def shape_from(self, values: dict[str, Any]) -> Any:
        """The same from plain values."""
        ...

    def fingerprint(self, data: Any) -> str:
        """A text that identifies the training data, whatever they are called."""
        ...

    def size(self, data: Any) -> int:
        """How many samples there are to train on."""
        ...


class Models(Protocol):
    """How a model is built, given batches, and applied."""

    def build(self, config: TrainConfig, shape: Any, *, gather: bool = False) -> Framework:
        """The model of a configuration, initialized from its seed."""
        ...

    def outline(self, config: TrainConfig, shape: Any) -> Framework | None:
        """The same without its numbers, which takes no memory; None where that cannot be."""
        ...

    def describe(self, config: TrainConfig, shape: Any) -> str:
        """The encoder, in a few words."""
        ...

    def steps(self, data: Any, config: TrainConfig) -> int:
        """Steps per epoch."""
        ...

    def indices(self, data: Any, config: TrainConfig, step: int) -> Tensor:
        """Which samples a step uses, over all processes, shape (batch_size,)."""
        ...

    def fetch(self, data: Any, indices: Tensor) -> Any:
        """Read samples; in another thread, one step ahead."""
        ...

    def batch(
        self,
        fetched: Any,
        indices: Tensor,
        model: Framework,
        config: TrainConfig,
        shape: Any,
        *,
        step: int,
        epoch: int,
    ) -> Any:
        """What the framework is given: views of the samples, on their device."""
        ...

    def embed(self, run: Trained, items: Any) -> Tensor:
        """Features of items given in memory or by path, shape (n, F)."""
        ...

    def features(self, run: Trained, data: Any) -> Features:
        """Embed whole data."""
        ...


@runtime_checkable
class Streams(Protocol):
    """How samples are fetched long before a step uses them; for domains that can."""

    def ahead(self, data: Any, config: TrainConfig) -> int:
        """How many steps before; 0 where the data are in memory."""
        ...

    def expect(self, data: Any, indices: Tensor) -> None:
        """Begin to fetch samples, without waiting for them."""
        ...


class Domain(Reads, Models, Protocol):
    """Images, graphs or sentences; :mod:`unremix.evaluation.by_domain` measures them."""
