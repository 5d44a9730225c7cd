"""What all frameworks share: a batch in, embeddings with gradient, a loss out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from unremix.core.chunks import embed_in_chunks
from unremix.core.contrast import Importance
from unremix.losses import TwoViewLoss

Embedded = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """What a step gives a framework.

    Args:
        views: Views of N samples: images (N, C, S, S), two of full size, then smaller crops if
            asked; or batches of N graphs.
        samples: Which samples they are, shape (N,).
        keys: One random key per sample, shape (N,); see :mod:`unremix.frameworks.randomness`.
        batch_key: One random key for the whole batch, shape (1,), the same in all processes; on the
            host, so that what is drawn from it waits for no device.
        epoch: Epochs completed.
    """

    views: tuple[Any, ...]
    samples: Tensor
    keys: Tensor
    batch_key: Tensor
    epoch: int = 0


def auto_batch(size: int) -> int:
    """256, or the largest power of two that gives at least 4 steps an epoch, never below 16.

    Example:
        >>> auto_batch(5000), auto_batch(1000), auto_batch(70), auto_batch(20)
        (256, 128, 16, 16)
    """
    return max(16, min(256, 1 << max(0, (size // 4).bit_length() - 1)))


def refuse_nt_xent(loss: TwoViewLoss, where: str) -> None:
    """Refuse uncertainty by ``gradient='nt-xent'`` where candidates have not one positive each."""
    if loss.options.gradient == "nt-xent" and loss.weighting.needs_gradients:
        raise ValueError(
            f"expected gradient='pseudo-label' {where}, got 'nt-xent'; change one of them"
        )


class Framework(nn.Module):
    """What training asks of a model: the loss of a batch, and what follows a step.

    A framework receives what its constructor names: ``encoder`` and, where it asks for them,
    ``head``, ``loss``, ``temperature``, ``mixing``, ``negatives``, ``labels`` and its own
    ``options``. One without ``loss`` has no weighting; one without ``mixing`` has no mixed views;
    one without ``labels`` cannot use those of the samples.

    Attributes:
        summary: One line for ``unremix recipes``.
        section: Where its options are on the command line: ``--section.option``.
        Options: A frozen dataclass of its options.
        loss_options: Those of its options that the loss takes.
        has_queue: Whether it keeps old keys, which some further negatives need.
        takes_views: Whether a batch holds two views of each sample; else it holds the samples as
            they are.
        is_divisible: Whether processes may hold a part of each parameter (``--strategy fsdp``).
        encoder: What is kept in the end.
        crops: How many small crops it wants beside two views.
    """

    summary: ClassVar[str] = ""
    section: ClassVar[str] = ""
    Options: ClassVar[type | None] = None
    loss_options: ClassVar[tuple[str, ...]] = ()
    has_queue: ClassVar[bool] = False
    takes_views: ClassVar[bool] = True
    is_divisible: ClassVar[bool] = True
    encoder: nn.Module
    crops = 0

    @property
    def dtype(self) -> torch.dtype:
        """What the data must be converted to."""
        dtype: torch.dtype = next(self.encoder.parameters()).dtype
        return dtype

    @property
    def mix(self) -> dict[str, float]:
        """The learned share of each component of the weights, if any."""
        return cast(dict[str, float], getattr(getattr(self, "loss", None), "mix", {}))

    def undecayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay spares: those of the loss, where there are any."""
        loss = getattr(self, "loss", None)
        return [] if loss is None else list(loss.parameters())

    def read_labels(self, labels: Tensor | None) -> None:
        """Take the labels of the data before the first step; most frameworks ignore them.

        Args:
            labels: The class of every training sample, -1 where it has none, shape (n,), where
                known. Those of test samples are never among them.
        """

    def after_step(self) -> None:
        """Called after each step of the optimizer."""

    def reserve(self, samples: int) -> None:
        """Set the number of samples, for memories of each sample."""


class Projecting(Framework, ABC):
    """An encoder, a projection head, and what becomes of the embeddings of a batch.

    A framework says what it wants embedded with gradient (:meth:`inputs`) and what the embeddings
    cost (:meth:`objective`). Kept apart, the first can be done in parts.

    Args:
        encoder: Views of N samples to features (N, F).
        head: Features to embeddings (N, D); its last module is ``nn.Linear``, so that the last
            layer's input h is known to the uncertainty.

    Attributes:
        chunk: How many inputs are embedded at a time, with the gradient of all; None: all at once.
    """

    chunk: int | None = None

    def __init__(self, encoder: nn.Module, head: nn.Sequential) -> None:
        super().__init__()
        last = head[-1]
        if not isinstance(last, nn.Linear):
            raise ValueError(
                f"expected the head's last module to be torch.nn.Linear, got {type(last).__name__}"
            )
        self.encoder = encoder
        self.head = head

    @property
    def last_layer(self) -> nn.Linear:
        """The layer that makes the embeddings."""
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        return last

    def embed(self, images: Any) -> Embedded:
        """Embeddings z, shape (N, D), and the last layer's input h, shape (N, H)."""
        h = self.head[:-1](self.encoder(images))
        return self.head[-1](h), h

    @abstractmethod
    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """What to embed with gradient."""

    @abstractmethod
    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss, given (z, h) of each of the inputs."""

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch; each input is normalized by its own batch statistics, as in HCL."""
        return self.objective([self._embedded(images) for images in self.inputs(batch)], batch)

    def _embedded(self, images: Any) -> Embedded:
        """As :meth:`embed`, in chunks where there are more inputs than in one."""
        if self.chunk is None or self.chunk >= len(images):
            return self.embed(images)
        z, h = embed_in_chunks(self.embed, images, self.chunk, self)
        return z, h

    def importance(self, first: Embedded, second: Embedded, samples: Tensor) -> Importance | None:
        """Scores and weights of the negatives of a batch; None where there are no negatives.

        Both views are given by their z and h; the samples that they show have shape (N,).
        """
        return None
