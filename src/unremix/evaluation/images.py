"""How good an image encoder is: health and kNN after an epoch, kNN and linear probe on a card."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from unremix.audit import effective_negatives
from unremix.core.importance import Importance
from unremix.data.image.dataset import ImageData
from unremix.domains.base import Measuring
from unremix.domains.image import ImageShape, set_features
from unremix.domains.sampling import permuted
from unremix.encoders.registry import chosen_name
from unremix.evaluation.accuracy import Accuracy, top_accuracy
from unremix.evaluation.auditing import audit_columns, gradient_columns
from unremix.evaluation.card import begin_card
from unremix.evaluation.health import Health, health, warnings_of
from unremix.evaluation.knn import (
    knn_predict,
    usual_neighbors,
)
from unremix.evaluation.linear import TOP, linear_probe
from unremix.frameworks.base import Embedded, Framework, Projecting
from unremix.options.config import TrainConfig
from unremix.training.run import Run
from unremix.views.image import augment
from unremix.views.randomness import keys

MOST_PIXELS = 2**30  # values of raw pixels that are measured: 4 GiB; of more images than that, none
MOST_NEIGHBORS = 200
WATCHED = 256  # training images on which the health of the embeddings is measured
HELD_OUT = 0.2  # share of the labeled images that the probe is tested on where there is no split


def neighbors(data: ImageData, config: TrainConfig) -> int:
    """k of the kNN measurement: as configured, or 200, but at most a fifth of a class's images."""
    if config.knn_k is not None:
        return config.knn_k
    assert data.train.labels is not None
    return usual_neighbors(data.train.labels, MOST_NEIGHBORS)


def probe_batch(count: int) -> int:
    """The probe's batch: 512, but at least twenty steps an epoch (small data would underfit)."""
    return max(16, min(512, count // 20))


def _neighbor_shares(
    train: Tensor, test: Tensor | None, data: ImageData, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """The share of each class among an image's neighbors, shape (m, C), and the right classes."""
    labels, k, t = data.train.labels, neighbors(data, config), config.knn_temperature
    assert labels is not None
    if test is None or data.test is None or data.test.labels is None:
        return knn_predict(train, labels, k=k, temperature=t), labels
    truth = data.test.labels
    classes = 1 + int(max(labels.max(), truth.max()))
    return knn_predict(train, labels, test, k=k, temperature=t, num_classes=classes), truth


def measure_knn(
    encoder: nn.Module, data: ImageData, shape: ImageShape, config: TrainConfig
) -> Accuracy:
    """kNN accuracy of an encoder's features: of the test images, or leaving one out."""
    train = set_features(encoder, data.train, shape.settings)
    test = None if data.test is None else set_features(encoder, data.test, shape.settings)
    return top_accuracy(*_neighbor_shares(train, test, data, config))


class ImageObserver:
    """Measures a model; says in plain words, once, what looks wrong.

    See :func:`unremix.evaluation.by_domain.make_observer`.
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
        if config.audit_every is not None and data.train.labels is None:
            raise ValueError(
                "expected images with labels for --audit_every, got images without; leave it out, "
                "or put the images of each class into a folder"
            )

    def __call__(self, model: Framework, epoch: int) -> dict[str, float]:
        """The measurements after an epoch."""
        assert isinstance(model, Projecting)
        found, importance, samples = self._health(model)
        row = {name: value for name, value in asdict(found).items() if value is not None}
        labels = self.data.train.labels
        if self.config.evaluates_after(epoch) and labels is not None and len(labels.unique()) > 1:
            row["knn"] = measure_knn(model.encoder, self.data, self.shape, self.config).value
        audits = self.config.audit_every
        if audits is not None and epoch % audits == 0 and importance is not None:
            assert labels is not None
            row |= audit_columns(importance, labels[samples]) | gradient_columns(model)
        return row

    @torch.no_grad()
    def _health(self, model: Projecting) -> tuple[Health, Importance | None, Tensor]:
        """The health of the embeddings, scores and weights of a batch, and the batch's samples."""
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
        # At most a batch: the effective number of negatives depends on the batch size.
        batch = slice(self.config.batch_size)
        importance = model.importance(
            (first[0][batch], first[1][batch]), (second[0][batch], second[1][batch]), indices[batch]
        )
        negatives = None if importance is None else effective_negatives(importance.weights.double())
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
        return found, importance, indices[batch]


def _measure(
    kind: str,
    encoder: nn.Module | None,
    data: ImageData,
    shape: ImageShape,
    config: TrainConfig,
    progress: Measuring | None,
) -> dict[str, Any]:
    train = set_features(encoder, data.train, shape.settings)
    labels = data.train.labels
    assert labels is not None
    split = data.test is not None and data.test.labels is not None
    test = set_features(encoder, data.test, shape.settings) if split and data.test else None
    shares, truth = _neighbor_shares(train, test, data, config)
    result: dict[str, Any] = {
        "features": train.shape[1],
        "knn": asdict(top_accuracy(shares, truth)),
    }
    if shares.shape[1] > TOP:
        result["neighbors"] = {"top5": asdict(top_accuracy(shares, truth, TOP))}
    if config.probe_epochs:

        def told(epoch: int, _: float) -> None:
            if progress is not None:
                progress(f"{kind}: linear probe", epoch, config.probe_epochs)

        if test is not None and data.test is not None and data.test.labels is not None:
            parts = (train, labels, test, data.test.labels)
        else:
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            cut = max(1, int(HELD_OUT * len(labels)))
            held, kept = order[:cut], order[cut:]
            parts = (train[kept], labels[kept], train[held], labels[held])
        result["linear"] = asdict(
            linear_probe(
                *parts,
                epochs=config.probe_epochs,
                batch_size=probe_batch(len(parts[0])),
                seed=config.seed,
                progress=told,
            )
        )
    return result


def evaluate_run(
    run: Run, data: ImageData, *, own: bool = True, progress: Measuring | None = None
) -> dict[str, Any]:
    """Measure a run's encoder, the same encoder untrained, and raw pixels; labels are needed.

    Arguments and result are those of :func:`unremix.evaluation.by_domain.evaluate_run`.
    """
    config, shape = run.config, run.shape
    untrained = run.encoder(trained=False)
    facts = {
        "train_images": len(data.train),
        "test_images": len(data.test) if data.test is not None else None,
        "classes": len(data.train.classes) if data.train.classes else None,
        "skipped_files": len(data.skipped),
        "backbone": chosen_name(config.backbone, shape.image_size),
        "image_size": shape.image_size,
    }
    card = begin_card(
        run,
        data.name,
        facts,
        layer="backbone output, before the projection head; eval mode; images not augmented",
        health=("spread", "effective_rank", "alignment", "uniformity"),
        own=own,
    )
    if data.train.labels is None or len(set(data.train.labels.tolist())) < 2:
        card["note"] = "no labels: accuracy cannot be measured"
        return card
    split = data.test is not None and data.test.labels is not None
    held_out = "test images" if config.validation is None else "held-out training images"
    card["protocol"] = {
        "knn": f"cosine, k={neighbors(data, config)}, votes weighted by "
        f"exp(similarity/{config.knn_temperature:g}), "
        + (f"training images as bank, {held_out} as queries" if split else "leave one out"),
        "linear": f"logistic regression, Adam 1e-3, weight decay 1e-6, batches of at most 512, "
        f"{config.probe_epochs} epochs, the last reported, "
        + (held_out if split else "a random fifth held out"),
        "standard_error": "over the images measured; one training run",
    }
    encoders: dict[str, nn.Module | None] = {"trained": run.encoder(), "untrained": untrained}
    if len(data.train) * shape.channels * shape.image_size**2 <= MOST_PIXELS:
        encoders["pixels"] = None
    else:
        card["protocol"]["pixels"] = "left out: they would not fit into memory"
    card["results"] = {
        kind: _measure(kind, encoder, data, shape, config, progress)
        for kind, encoder in encoders.items()
    }
    return card
