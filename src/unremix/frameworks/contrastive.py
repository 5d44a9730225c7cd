"""What the frameworks with negatives share: a weighted loss, mixed views, further negatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from unremix.audit import effective_negatives
from unremix.frameworks.base import Batch, Embedded, Projecting
from unremix.frameworks.memory import Memory
from unremix.losses.two_views import TwoViewLoss
from unremix.scores import Own
from unremix.views.mixing import Mixed, Mixing


class Negatives(Protocol):
    """A way of making further negatives for each anchor alone."""

    needs_queue: bool

    def __call__(
        self,
        framework: Contrastive,
        anchors: Embedded,
        images: Tensor,
        samples: Tensor,
        keys: Tensor,
        epoch: int,
    ) -> Own | None:
        """The negatives of N anchors, or None while there are none.

        Args:
            framework: Embeds further images, and holds the queue if there is one.
            anchors: z and h of the anchors.
            images: What they show, shape (N, C, S, S).
            samples: Which samples they show, shape (N,).
            keys: One random key per anchor, shape (N,).
            epoch: Epochs completed.
        """
        ...


class Contrastive(Projecting):
    """A framework whose loss weights negatives.

    Args:
        encoder: Images (N, C, S, S) to features (N, F).
        head: Features to embeddings (N, D); its last module is ``nn.Linear``.
        loss: Weights the negatives.
        mixing: Mixes the images of the anchors.
        negatives: Makes further negatives.

    Raises:
        ValueError: For parts that do not go together.
    """

    memory: Memory | None
    """The queue of old keys, where the framework has one."""

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Sequential,
        loss: TwoViewLoss,
        *,
        mixing: Mixing | None = None,
        negatives: Negatives | None = None,
    ) -> None:
        super().__init__(encoder, head)
        self.memory = None
        self.loss = loss
        self.mixing = mixing
        self.negatives = negatives
        loss.bias = self.last_layer.bias is not None
        if negatives is not None and loss.gradient == "nt-xent" and loss.weighting.needs_residuals:
            raise ValueError(
                "expected gradient='pseudo-label' with further negatives, which have no positive, "
                "received 'nt-xent'; change one of them"
            )

    @property
    def mix(self) -> dict[str, float]:
        """The learned share of each component of the weights, if any."""
        mix: dict[str, float] = getattr(self.loss, "mix", {})
        return mix

    def undecayed(self) -> list[nn.Parameter]:
        """The learned mix."""
        return list(self.loss.parameters())

    @property
    def keeps_original(self) -> bool:
        """Whether the views as they are have a loss."""
        return self.mixing is None or self.mixing.keeps_original

    @torch.no_grad()
    def embed_keys(self, images: Tensor, keys: Tensor) -> Embedded:
        """Z and h of further images, without gradient.

        Args:
            images: Shape (N, C, S, S).
            keys: Draws what is drawn, shape (N,) or (1,).
        """
        return self.embed(images)

    def mixed(self, images: Tensor, batch: Batch, view: int = 0) -> Mixed | None:
        """The images mixed, if they are to be; the same for the same batch and view."""
        if self.mixing is None:
            return None
        return self.mixing(images, batch.keys + 2 * view, batch.batch_key + 2 * view)

    def anchor_images(self, batch: Batch, view: int) -> Iterator[Tensor]:
        """What of a view is embedded with gradient: itself, mixed, or both."""
        images = batch.views[view]
        if self.keeps_original:
            yield images
        mixed = self.mixed(images, batch, view)
        if mixed is not None:
            yield mixed.images

    def further(self, anchors: Embedded, images: Tensor, batch: Batch, view: int = 0) -> Own | None:
        """Further negatives of anchors that show these images."""
        if self.negatives is None:
            return None
        keys = batch.keys + 2 * view + 1
        return self.negatives(self, anchors, images, batch.samples, keys, batch.epoch)

    def effective_negatives(self, first: Embedded, second: Embedded) -> float | None:
        """See :meth:`Projecting.effective_negatives`; of negatives within the batch."""
        weights = self.loss.importance(first[0], second[0], first[1], second[1]).weights
        return effective_negatives(weights.double())
