"""How good a graph encoder is: classifiers on frozen embeddings, cross-validated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unremix.domains.base import Measuring, Trained
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.model import GraphShape, graph_features
from unremix.domains.graph.store import GraphStore
from unremix.domains.labeled import FeatureObserver, begin_card, leave_one_out
from unremix.domains.options import TrainConfig
from unremix.evaluation.cache import cached
from unremix.evaluation.card import label_of
from unremix.evaluation.svm import FoldPlan, plan_folds, svm_accuracy


def plan_evaluation(data: GraphData, config: TrainConfig) -> FoldPlan | None:
    """The folds that the graphs' classes allow; a `UserWarning` for each change to those asked for.

    None where there are no labels or all are the same.
    """
    labels = data.train.labels
    if labels is None or len(labels.unique()) < 2:
        return None
    plan = plan_folds(labels, folds=config.own.folds, classes=data.train.classes)
    for note in plan.notes:
        warnings.warn(note, stacklevel=2)
    return plan


def observe(
    data: GraphData, shape: GraphShape, config: TrainConfig, say: Callable[[str], None]
) -> FeatureObserver:
    """What is measured at an epoch's end; warns at once of what evaluation will leave out."""
    plan = plan_evaluation(data, config)
    labels = data.train.labels if plan is not None and plan.outer else None
    warning = (
        "The embeddings have collapsed: all graphs have the same. Where the graphs differ, "
        "lower --lr; node features of very different sizes need scaling first."
    )

    def features(encoder: nn.Module) -> tuple[Tensor, Tensor | None]:
        return graph_features(encoder, data.train.store), labels

    return FeatureObserver(features, config, say, least=1, warning=warning)


def summed_features(store: GraphStore) -> Tensor:
    """The sum over a graph's nodes of their features, shape (G, F): what no encoder has touched."""
    owner = torch.repeat_interleave(store.node_starts.diff())
    return store.x.new_zeros(len(store), store.features).index_add(0, owner, store.x)


def _measure(
    kind: str,
    features: Tensor,
    labels: Tensor,
    config: TrainConfig,
    plan: FoldPlan,
    progress: Measuring | None,
) -> dict[str, Any]:
    result: dict[str, Any] = {"features": features.shape[1]}
    for kernel in config.own.classifiers:
        name = {"rbf": "svm", "linear": "linear_svm", "logistic": "logistic"}[kernel]
        found = svm_accuracy(
            features[plan.kept],
            labels[plan.kept],
            folds=plan.outer,
            inner_folds=plan.inner,
            kernel=kernel,
            repeats=config.own.repeats,
            seed=config.seed,
            progress=progress and partial(progress, f"{kind}: {label_of(name)}"),
        )
        result[name] = {
            "value": found.mean,
            "std_over_folds": found.std,
            "accuracies": list(found.accuracies),
            "folds": plan.outer,
            "chosen_C": list(found.chosen),
            "protocol": found.protocol,
        }
    return result


def evaluate(
    run: Trained, data: GraphData, *, own: bool = True, progress: Measuring | None = None
) -> dict[str, Any]:
    """Measure a run's encoder, trained and before, and the summed node features.

    Labels are needed. What is left out of the run's own graphs is kept with its warnings. Arguments
    and result are those of ``evaluate`` in :class:`unremix.domains.base.Domain`.
    """
    config, graph = run.config, run.config.own
    labels = data.train.labels
    facts = {
        "train_graphs": len(data.train),
        "classes": len(data.train.classes) if data.train.classes else None,
        "skipped_files": len(data.skipped),
        "node_features": f"{data.encoding.kind}, {data.encoding.width}",
    }
    layer = "encoder's graph embedding, before any head; eval mode; graphs not augmented"
    card = begin_card(run, data.name, facts, layer=layer, health=("effective_rank",), own=own)
    plan = plan_evaluation(data, config)
    if labels is None or plan is None:
        why = "no labels" if labels is None else "all graphs have the same label"
        card["note"] = f"{why}: accuracy cannot be measured"
        return card
    card["left_out_graphs"] = int((~plan.kept).sum())
    for note in plan.notes if own else ():
        run.warn(note)
    if not plan.outer:
        card["note"] = plan.notes[-1]
        return card
    store = data.train.store
    found = {kind: graph_features(one, store) for kind, one in run.encoders().items()}
    found["summed node features"] = summed_features(store)
    # What the curve of the epochs is compared with; the classifiers below are the measurement.
    monitored = {kind: leave_one_out(one, labels, config) for kind, one in found.items()}
    card["monitored"] = {kind: asdict(one) for kind, one in monitored.items()}
    card["results"] = {}
    asked = (plan.outer, plan.inner, graph.classifiers, graph.repeats, config.seed)
    for kind, features in found.items():
        measure = partial(_measure, kind, features, labels, config, plan, progress)
        tensors = (features, labels, plan.kept)
        kept = cached(run.path.parent, asked, tensors, measure) if kind != "trained" else measure()
        card["results"][kind] = kept  # recipes share those of encoders without training
    for result in card["results"].values():  # measured alike: one protocol for all
        measured = {name: one for name, one in result.items() if name != "features"}
        card["protocol"] = {name: one.pop("protocol") for name, one in measured.items()}
    return card
