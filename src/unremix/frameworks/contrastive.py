"""What the frameworks with negatives share: a weighted loss, mixed views, further negatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unremix.core.contrast import Importance
from unremix.core.gather import JointBatch, gather_rows
from unremix.core.views import ExtraNegatives, Views
from unremix.frameworks.base import Batch, Embedded, Projecting, refuse_nt_xent
from unremix.frameworks.mixing import Mixed, Mixing
from unremix.frameworks.queue import Queue
from unremix.frameworks.randomness import MIXED, NEGATIVES, NEGATIVES_OF_MIXED, PER_VIEW
from unremix.losses import TwoViewLoss


def shown_samples(samples: Tensor, mixed: Mixed | None, joint: JointBatch | None = None) -> Tensor:
    """Which samples each image shows: its own and, where it is mixed, its partner's.

    Args:
        samples: The samples of a batch, shape (N,).
        mixed: The batch mixed; None as it is.
        joint: This process's part of the joint batch, where there are several.

    Returns:
        Shape (N, P); a sample may repeat in a row.

    Example:
        >>> from unremix.frameworks.mixing import un_mix
        >>> shown_samples(torch.tensor([7, 8, 9]), un_mix(torch.zeros(3, 1, 4, 4), 0.75))
        tensor([[7, 9],
                [8, 8],
                [9, 7]])
    """
    itself = samples[:, None]
    if mixed is None:
        return itself
    everyone, first = samples, 0
    if joint is not None:
        everyone, first = gather_rows(samples, joint), joint.offset
    shown = [(everyone[aim.keys + first], aim) for aim in mixed.targets if aim.weight]
    return torch.cat([torch.where(aim.shares > 0, each, itself) for each, aim in shown], dim=1)


class Negatives(Protocol):
    """A way of making further negatives for each anchor alone."""

    def __call__(
        self,
        framework: Contrastive,
        anchors: Embedded,
        images: Tensor,
        samples: Tensor,
        keys: Tensor,
        epoch: int,
    ) -> ExtraNegatives | None:
        """The negatives of N anchors, or None while there are none.

        Args:
            framework: Embeds further images, and holds the queue if there is one.
            anchors: z and h of the anchors.
            images: What they show, shape (N, C, S, S).
            samples: Which samples they show, shape (N, P); a mixed image shows several.
            keys: One random key per anchor, shape (N,), for these negatives alone.
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
        labels: Whether samples of one class are positives of each other.
        options: The framework's own ``Options``; by default their defaults.

    Attributes:
        memory: The queue of old keys, where the framework has one.
        labels: The class of every training sample, where classes are used.

    Raises:
        ValueError: For parts that do not go together.
    """

    options: Any
    memory: Queue | None
    labels: Tensor | None

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Sequential,
        loss: TwoViewLoss,
        *,
        mixing: Mixing | None = None,
        negatives: Negatives | None = None,
        labels: bool = False,
        options: Any = None,
    ) -> None:
        super().__init__(encoder, head)
        self.options = options
        if options is None and self.Options is not None:
            self.options = self.Options()
        self.memory = None
        self.register_buffer("labels", None, persistent=False)
        self.labels_are_positives = labels
        if labels and mixing is not None:
            raise ValueError(
                "expected labels without mixing, which shows two classes, got both; leave one out"
            )
        self.loss = loss
        self.mixing = mixing
        self.negatives = negatives
        loss.options = replace(loss.options, bias=self.last_layer.bias is not None)
        if mixing is not None:
            loss.check_evidence("mixed views")
        if negatives is not None:
            refuse_nt_xent(loss, "with further negatives, which have no positive")
        self.set_up()

    def set_up(self) -> None:
        """Check what concerns this framework alone, and make what it needs beside its parts."""

    def reserve(self, samples: int) -> None:
        """See :meth:`Framework.reserve`."""
        self.loss.reserve(samples)

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch; a bank stores the encoder's features of its views."""
        if not self.remembers_features:
            return super().forward(batch)
        features: list[Tensor] = []
        watch = self.encoder.register_forward_hook(lambda *call: features.append(call[2].detach()))
        try:
            embedded = [self.embed(images) for images in self.inputs(batch)]
        finally:
            watch.remove()
        if self.training:
            views = torch.cat(features).split(len(batch.samples))  # MoCo embeds a view in parts
            self.loss.remember(batch.samples, *views)
        return self.objective(embedded, batch)

    @property
    def needs_labels(self) -> bool:
        """Whether the loss depends on the classes of the samples."""
        return self.labels_are_positives

    def read_labels(self, labels: Tensor | None) -> None:
        """See :meth:`Framework.read_labels`.

        Raises:
            ValueError: If they are needed and there are none.
        """
        if not self.needs_labels:
            return
        if labels is None:
            raise ValueError(
                "expected data with labels, which these options need, got data without; leave the "
                "options out (--labels, --loss.negative_classes, --loss.same_class), or add labels"
            )
        self.labels = labels.to(next(self.parameters()).device)

    def classes_of(self, samples: Tensor) -> Tensor | None:
        """The classes that decide who is a positive, shape (N,); None where none do.

        Raises:
            ValueError: If they are needed and not known.
        """
        if self.needs_labels and self.labels is None:
            raise ValueError("expected labels of the samples, got none; call read_labels() first")
        return None if self.labels is None else self.labels[samples]

    @property
    def remembers_features(self) -> bool:
        """Whether the loss stores the encoder's features of every batch."""
        return self.loss.bank is not None

    @property
    def keeps_original(self) -> bool:
        """Whether the views as they are have a loss."""
        return self.mixing is None or self.mixing.keeps_original

    @torch.no_grad()
    def embed_keys(self, images: Tensor, keys: Tensor) -> Embedded:
        """Z and h of further images, without gradient.

        Args:
            images: Shape (N, C, S, S).
            keys: Draws what is drawn, shape (N,) or (1,); the caller may draw from them as well.
        """
        return self.embed(images)

    def mixed(self, images: Tensor, batch: Batch, view: int = 0) -> Mixed | None:
        """The images mixed, if they are to be; the same for the same batch and view."""
        if self.mixing is None:
            return None
        stream = PER_VIEW * view + MIXED
        joint = self.loss.joint_batch(Views(batch.samples[:, None]))
        return self.mixing(images, batch.keys + stream, batch.batch_key + stream, joint)

    def asked(self, batch: Batch, view: int) -> Iterator[tuple[Tensor, Mixed | None]]:
        """What of a view is embedded with gradient: itself, mixed, or both."""
        images = batch.views[view]
        if self.keeps_original:
            yield images, None
        if (mixed := self.mixed(images, batch, view)) is not None:
            yield mixed.images, mixed

    def further(
        self, anchors: Embedded, batch: Batch, view: int = 0, mixed: Mixed | None = None
    ) -> ExtraNegatives | None:
        """Further negatives of anchors that show a view, as it is or mixed."""
        if self.negatives is None:
            return None
        images = batch.views[view] if mixed is None else mixed.images
        stream = PER_VIEW * view + (NEGATIVES if mixed is None else NEGATIVES_OF_MIXED)
        joint = None if mixed is None else self.loss.joint_batch(Views(batch.samples[:, None]))
        shown = shown_samples(batch.samples, mixed, joint)
        return self.negatives(self, anchors, images, shown, batch.keys + stream, batch.epoch)

    def importance(self, first: Embedded, second: Embedded, samples: Tensor) -> Importance | None:
        """See :meth:`Projecting.importance`; of negatives within the batch.

        A model that was not given the labels, such as one that is read back, shows all of them.
        """
        (z0, h0), (z1, h1), ids = first, second, samples if self.loss.takes_ids else None
        labels = None if self.labels is None else self.labels[samples]
        return self.loss.importance(z0, z1, h0, h1, ids=ids, labels=labels)
