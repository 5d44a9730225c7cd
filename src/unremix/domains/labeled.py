"""Measures for samples with labels: health, kNN and audits while training; a card at the end.

The data have a ``train`` and perhaps a ``test`` split, each with ``names``, ``labels`` (n,) or
None, ``classes`` and a length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unremix.audit import effective_negatives
from unremix.core.contrast import Importance
from unremix.domains.base import Features, Measuring, Trained, find_domain, fixed_views
from unremix.domains.options import TrainConfig
from unremix.domains.remembered import recall, remember
from unremix.domains.sampling import permuted
from unremix.domains.shown import Sample, two_view_sample
from unremix.evaluation.accuracy import Accuracy, top_accuracy
from unremix.evaluation.audit_columns import audit_columns, gradient_columns
from unremix.evaluation.health import Health, effective_rank, health, warnings_of
from unremix.evaluation.knn import knn_predict, leave_one_out_knn, usual_neighbors
from unremix.evaluation.linear import TOP, linear_probe
from unremix.frameworks.base import Framework, Projecting
from unremix.losses import TwoViewLoss

MOST_NEIGHBORS = 200
FEW_NEIGHBORS = 20  # where one is left out; kNN on a handful of samples per class is noise
WATCHED = 256  # training samples on which the health of the embeddings is measured
HELD_OUT = 0.2  # share of the labeled samples that the probe is tested on without a test split

Encode = Callable[[nn.Module | None, Any], Tensor]
"""Features (n, F) of a split; the raw input (n, F) if there is no encoder."""


def neighbors(data: Any, config: TrainConfig) -> int:
    """k of the kNN measurement: as configured, or 200, but at most a fifth of a class's samples."""
    if config.knn_k is not None:
        return config.knn_k
    return usual_neighbors(data.train.labels, MOST_NEIGHBORS)


def has_classes(data: Any) -> bool:
    """Whether the training samples have at least two classes."""
    labels = data.train.labels
    return labels is not None and len(labels.unique()) > 1


def has_test_labels(data: Any) -> bool:
    """Whether there is a test split with labels."""
    return data.test is not None and data.test.labels is not None


def probe_batch(count: int) -> int:
    """The probe's batch: 512, but at least twenty steps an epoch (small data would underfit)."""
    return max(16, min(512, count // 20))


def _neighbor_shares(
    train: Tensor, test: Tensor | None, data: Any, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """The share of each class among a sample's neighbors, shape (m, C), and the right classes."""
    labels, k, t = data.train.labels, neighbors(data, config), config.knn_temperature
    if test is None or not has_test_labels(data):
        return knn_predict(train, labels, k=k, temperature=t), labels
    truth = data.test.labels
    classes = 1 + int(max(labels.max(), truth.max()))
    return knn_predict(train, labels, test, k=k, temperature=t, num_classes=classes), truth


def measure_knn(encode: Encode, encoder: nn.Module, data: Any, config: TrainConfig) -> Accuracy:
    """kNN accuracy of an encoder's features: of the test samples, or leaving one out."""
    train = encode(encoder, data.train)
    test = None if data.test is None else encode(encoder, data.test)
    return top_accuracy(*_neighbor_shares(train, test, data, config))


def leave_one_out(features: Tensor, labels: Tensor, config: TrainConfig) -> Accuracy:
    """kNN accuracy of samples with features (n, F) and labels (n,), leaving one out."""
    _, labels = labels.unique(return_inverse=True)
    k = config.knn_k or usual_neighbors(labels, FEW_NEIGHBORS)
    return leave_one_out_knn(features, labels, k=k, temperature=config.knn_temperature)


@dataclass
class FeatureObserver:
    """Measures an encoder's features after an epoch; warns, once, if they use few dimensions.

    Args:
        features: Of an encoder, shape (n, F), with the class of each, shape (n,), or None.
        config: Options of the run.
        say: Shows a message.
        least: Dimensions that should be in use.
        warning: What to say of fewer; ``{rank}`` stands for their number.
        always: Whether to measure after every epoch, or only about ten times.
    """

    features: Callable[[nn.Module], tuple[Tensor, Tensor | None]]
    config: TrainConfig
    say: Callable[[str], None]
    least: float
    warning: str
    always: bool = False
    said: bool = False

    def __call__(self, model: Framework, epoch: int) -> dict[str, float]:
        """The measurements after an epoch."""
        if not (self.always or self.config.evaluates_after(epoch)):
            return {}
        features, labels = self.features(model.encoder)
        row = {"effective_rank": effective_rank(features)}
        if row["effective_rank"] < self.least and not self.said:
            self.said = True
            self.say(self.warning.format(rank=f"{row['effective_rank']:.1f}"))
        if labels is not None and len(labels.unique()) > 1:
            row["knn"] = leave_one_out(features, labels, self.config).value
        return row


@dataclass
class LabeledObserver:
    """Measures a model after an epoch; says in plain words, once, what looks wrong.

    Args:
        encode: Features of a split.
        data: The data.
        shape: What the data decide about the model.
        config: Options of the run.
        say: Shows a message.
    """

    encode: Encode
    data: Any
    shape: Any
    config: TrainConfig
    say: Callable[[str], None]
    said: set[str] = field(default_factory=set)
    previous: Health | None = None

    def __post_init__(self) -> None:
        self.view = fixed_views(self.data, self.shape, self.config)
        if self.config.audit_every is not None and self.data.train.labels is None:
            raise ValueError(
                "expected data with labels for --audit_every, got data without; leave it out, "
                "or put the samples of each class into a folder"
            )

    def __call__(self, model: Framework, epoch: int) -> dict[str, float]:
        """The measurements after an epoch."""
        assert isinstance(model, Projecting)
        measured, importance, samples = self._health(model)
        row = {name: value for name, value in asdict(measured).items() if value is not None}
        if self.config.evaluates_after(epoch) and has_classes(self.data):
            row["knn"] = measure_knn(self.encode, model.encoder, self.data, self.config).value
        audits = self.config.audit_every
        if audits is not None and epoch % audits == 0 and importance is not None:
            labels = self.data.train.labels
            row |= audit_columns(importance, labels[samples]) | gradient_columns(model)
        return row

    @torch.no_grad()
    def _health(self, model: Projecting) -> tuple[Health, Importance | None, Tensor]:
        """The health of the embeddings, scores and weights of a batch, and the batch's samples."""
        count = len(self.data.train)  # which may be sorted by class
        indices = permuted(count, min(WATCHED, count), seed=0, step=0)
        was_training = model.training
        model.eval()
        first, second = (model.embed(self.view(model, indices, number)) for number in (0, 1))
        # At most a batch: the effective number of negatives depends on the batch size.
        batch = slice(self.config.batch_size)
        importance = model.importance(
            (first[0][batch], first[1][batch]), (second[0][batch], second[1][batch]), indices[batch]
        )
        negatives = None if importance is None else effective_negatives(importance.weights.double())
        model.train(was_training)
        z0, z1 = first[0], second[0]
        samples, dimensions = z0.shape
        measured = health(z0.float(), z1.float(), effective_negatives=negatives)
        for message in warnings_of(measured, self.previous, dimensions=dimensions, samples=samples):
            kind = re.sub(r"[\d.,]+", "#", message)  # the same message with other numbers
            if kind not in self.said:
                self.said.add(kind)
                self.say(message)
        self.previous = measured
        return measured, importance, indices[batch]


def _measure(
    kind: str,
    encode: Encode,
    encoder: nn.Module | None,
    data: Any,
    config: TrainConfig,
    progress: Measuring | None,
) -> dict[str, Any]:
    train, labels = encode(encoder, data.train), data.train.labels
    test = encode(encoder, data.test) if has_test_labels(data) else None
    shares, truth = _neighbor_shares(train, test, data, config)
    knn = asdict(top_accuracy(shares, truth))
    result: dict[str, Any] = {"features": train.shape[1], "knn": knn}
    if shares.shape[1] > TOP:
        result["neighbors"] = {"top5": asdict(top_accuracy(shares, truth, TOP))}
    if config.probe_epochs:
        what = f"{kind}: linear probe"
        if test is not None:
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
                progress=progress and (lambda epoch, _: progress(what, epoch, config.probe_epochs)),
            )
        )
    return result


def begin_card(
    run: Trained,
    data: str,
    facts: Mapping[str, Any],
    *,
    layer: str,
    health: Sequence[str],
    own: bool,
) -> dict[str, Any]:
    """An evaluation card without results yet, with facts about data and model.

    ``health`` names columns of the last row of metrics to copy, if the data are the run's own.
    """
    rows = run.metrics()
    last = rows[-1] if rows else {}
    return {
        "data": data,
        "own_data": own,
        **facts,
        "layer": layer,
        "recipe": run.config.composed_name,
        "labels_used": run.config.composition().labels,
        "seed": run.config.seed,
        "batch_size": run.config.batch_size,
        "epoch": int(last.get("epoch", 0)),
        "epochs": run.config.epochs,
        "step": int(last.get("step", 0)),
        "protocol": None,
        "health": {name: last[name] for name in health if own and name in last},
        "results": None,
    }


@dataclass(frozen=True, kw_only=True)
class Labeled:
    """What kinds of data with labels and two views have in common; records refer to its methods.

    Args:
        encode: Features (n, F) of a split, given the encoder, the split and the shape; the raw
            input (n, F) without an encoder.
        layer: What is measured, in words.
        facts: What the card says about a run and its data, beside the counts.
        raw: What the raw input is called, and why it is not measured; None if it is.
        draw: Images, uint8 (n, C, S, S), of fetched samples or of their views.
    """

    encode: Callable[[nn.Module | None, Any, Any], Tensor]
    layer: str
    facts: Callable[[Trained, Any], Mapping[str, Any]] = lambda *_: {}
    raw: Callable[[Trained, Any], tuple[str, str | None]] = lambda *_: ("raw input", None)
    draw: Callable[[Any], Tensor] | None = None

    def _encoding(self, shape: Any) -> Encode:
        """Features of a split, computed once for the same weights."""

        def encoded(encoder: nn.Module | None, split: Any) -> Tensor:
            known: Tensor | None = recall(encoder, split)
            if known is not None:
                return known
            return remember(encoder, split, self.encode(encoder, split, shape))

        return encoded

    def observe(
        self, data: Any, shape: Any, config: TrainConfig, say: Callable[[str], None]
    ) -> LabeledObserver:
        """What is measured at an epoch's end."""
        return LabeledObserver(self._encoding(shape), data, shape, config, say)

    def features(self, run: Trained, data: Any) -> Features:
        """Embed all samples, training samples first; labels only where those of all are known."""
        encoder = run.encoder()
        parts = [part for part in (data.train, data.test) if part is not None]
        embedded = torch.cat([self.encode(encoder, part, run.shape) for part in parts])
        known = [part.labels for part in parts if part.labels is not None]
        names = [name for part in parts for name in part.names]
        labels = torch.cat(known) if len(known) == len(parts) else None
        return Features(embedded, names, labels, data.train.classes)

    def evaluate(
        self, run: Trained, data: Any, *, own: bool = True, progress: Measuring | None = None
    ) -> dict[str, Any]:
        """Measure a run's encoder, trained and before, and the raw input.

        Labels are needed. Arguments and result are those of ``evaluate`` in
        :class:`unremix.domains.base.Domain`.
        """
        config, unit = run.config, find_domain(run.config.domain).unit
        counts = {
            f"train_{unit}": len(data.train),
            f"test_{unit}": None if data.test is None else len(data.test),
            "classes": len(data.train.classes) if data.train.classes else None,
        }
        card = begin_card(
            run,
            data.name,
            counts | dict(self.facts(run, data)),
            layer=self.layer,
            health=("spread", "effective_rank", "alignment", "uniformity"),
            own=own,
        )
        if not has_classes(data):
            card["note"] = "no labels: accuracy cannot be measured"
            return card
        split = has_test_labels(data)
        held_out = f"test {unit}" if config.validation is None else f"held-out training {unit}"
        card["protocol"] = {
            "knn": f"cosine, k={neighbors(data, config)}, votes weighted by "
            f"exp(similarity/{config.knn_temperature:g}), "
            + (f"training {unit} as bank, {held_out} as queries" if split else "leave one out"),
            "linear": "logistic regression, Adam 1e-3, weight decay 1e-6, batches of at most 512, "
            f"{config.probe_epochs} epochs, the last reported, "
            + (held_out if split else "a random fifth held out"),
            "standard_error": f"over the {unit} measured; one training run",
        }
        encoders: dict[str, nn.Module | None] = {**run.encoders()}
        name, why_not = self.raw(run, data)
        if why_not is None:
            encoders[name] = None
        else:
            card["protocol"][name] = why_not
        encode = self._encoding(run.shape)
        card["results"] = {
            kind: _measure(kind, encode, encoder, data, config, progress)
            for kind, encoder in encoders.items()
        }
        return card

    def sample(self, run: Trained, data: Any, model: Framework, loss: TwoViewLoss | None) -> Sample:
        """What a page shows; see :func:`unremix.domains.shown.two_view_sample`."""
        encode = self._encoding(run.shape)
        return two_view_sample(
            run, data, model, loss,
            lambda items: encode(run.encoder(), data.train)[items].float(), draw=self.draw,
        )  # fmt: skip
