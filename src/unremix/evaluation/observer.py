"""What is measured at the end of every epoch: health without labels, kNN with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict

import torch

from unremix.data.image.dataset import ImageData
from unremix.domains.image import ImageShape
from unremix.evaluation.health import Health, health, warnings_of
from unremix.evaluation.images import measure_knn
from unremix.frameworks.base import Embedded, Framework, Projecting
from unremix.training.config import TrainConfig
from unremix.training.sampling import permuted
from unremix.views.image import augment
from unremix.views.randomness import keys

WATCHED = 256  # training images on which the health of the embeddings is measured


class EpochObserver:
    """Measures a model; says in plain words, once, what looks wrong.

    Args:
        data: The images.
        shape: What they decided.
        config: The options.
        say: Shows a message.
    """

    def __init__(
        self, data: ImageData, shape: ImageShape, config: TrainConfig, say: Callable[[str], None]
    ) -> None:
        self.data = data
        self.shape = shape
        self.config = config
        self.say = say
        self.said: set[str] = set()
        self.previous: Health | None = None

    def __call__(self, model: Framework, epoch: int) -> dict[str, float]:
        """The measurements after an epoch."""
        assert isinstance(model, Projecting)
        found = self._health(model)
        row = {name: value for name, value in asdict(found).items() if value is not None}
        every = self.config.evaluate_every or max(1, self.config.epochs // 10)
        due = epoch == self.config.epochs or epoch % every == 0
        labels = self.data.train.labels
        if due and labels is not None and len(labels.unique()) > 1:
            row["knn"] = measure_knn(model.encoder, self.data, self.shape, self.config).value
        return row

    @torch.no_grad()
    def _health(self, model: Projecting) -> Health:
        parameter = next(model.parameters())
        count = len(self.data.train)  # which may be sorted by class
        indices = permuted(count, min(WATCHED, count), seed=0, step=0)
        images = self.data.train.images.batch(indices).to(parameter.device)

        def embed(view: int) -> Embedded:
            # The same two views every time, other than those trained on.
            key = keys(self.config.seed, 0, indices.to(parameter.device), 2 + view)
            return model.embed(augment(images, self.shape.settings, key).to(model.dtype))

        was_training = model.training
        model.eval()
        first, second = embed(0), embed(1)
        # As many images as a batch has at most: how many negatives count depends on how many are.
        batch = slice(self.config.batch_size)
        negatives = model.effective_negatives(
            (first[0][batch], first[1][batch]), (second[0][batch], second[1][batch])
        )
        model.train(was_training)
        z0, z1 = first[0], second[0]
        found = health(z0.float(), z1.float(), effective_negatives=negatives)
        for message in warnings_of(
            found, self.previous, dimensions=z0.shape[1], samples=z0.shape[0]
        ):
            kind = re.sub(r"[\d.,]+", "#", message)  # the same message with other numbers
            if kind not in self.said:
                self.said.add(kind)
                self.say(message)
        self.previous = found
        return found
