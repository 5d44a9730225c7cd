"""Training with labels: each framework against slow loops, and what a run sees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from batches import assert_close
from torch import Tensor, nn

import unremix
from unremix.core.pairs import Pairs
from unremix.domains.options import TrainConfig
from unremix.domains.sampling import drawn
from unremix.domains.sentence.corpus import SentenceBatch
from unremix.domains.sentence.gru import GRUEncoder
from unremix.domains.sentence.quickthought import QuickThought, TwinEncoder
from unremix.experiments.plan import chosen_recipes
from unremix.frameworks.base import Batch
from unremix.frameworks.mixing import UnMix
from unremix.frameworks.moco import MoCo, MoCoOptions
from unremix.frameworks.simclr import SimCLR, SimCLROptions
from unremix.hub import model_card
from unremix.losses import InfoNCELoss
from unremix.training.run import Run

LABELS = torch.tensor([0, 1, -1, 0, 1, 2, 2, 0])
SAMPLES = torch.tensor([7, 2, 4, 0, 1])


def parts() -> tuple[nn.Module, nn.Sequential]:
    torch.manual_seed(0)
    return nn.Linear(5, 6).double(), nn.Sequential(nn.Linear(6, 4)).double()


def batch(samples: Tensor = SAMPLES, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(samples), 5)
    views = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Batch(views, samples, samples, torch.zeros(1, dtype=torch.int64))


def expected(
    anchors: Tensor, keys: Tensor, masks: tuple[Tensor, Tensor], labels: tuple[Tensor, Tensor]
) -> Tensor:
    """SupCon by the loops of the reference, given who is whose without labels."""
    positives, negatives = reference.with_classes(*masks, *labels)
    return reference.info_nce(
        reference.similarity(anchors, keys) / 0.5, positives, negatives, negatives.double(),
        temperature=0.5, positives_in_denominator=True,
    )  # fmt: skip


def test_simclr_takes_the_labels_of_its_samples() -> None:
    model = SimCLR(*parts(), InfoNCELoss(temperature=0.5), labels=True)
    model.read_labels(LABELS)
    given = batch()
    z = torch.cat([model.embed(view)[0] for view in given.views])
    labels = LABELS[SAMPLES].repeat(2)
    loss = expected(z, z, reference.masks_both(len(SAMPLES)), (labels, labels))
    assert_close(model(given), loss)
    found = model.importance(model.embed(given.views[0]), model.embed(given.views[1]), SAMPLES)
    assert found is not None
    same = (labels[:, None] == labels) & (labels >= 0)
    assert not found.negatives[same].any()
    assert found.positives.sum() == same.sum() - (labels >= 0).sum() + 2  # and an unlabeled one


def test_moco_takes_the_labels_of_its_queue() -> None:
    model = MoCo(*parts(), InfoNCELoss(temperature=0.5), labels=True, options=MoCoOptions(queue=6))
    model.double().read_labels(LABELS)  # its queue as well
    first = torch.tensor([3, 5, 6, 1])
    model(batch(first, seed=2))
    model.after_step()
    given = batch()
    queries, _ = model.embed(given.views[0])
    own, _ = model.embed_keys(given.views[1], given.batch_key + 1)
    keys = torch.cat([own, model.memory.views.embeddings])
    pairs = Pairs.queue(SAMPLES, first)
    masks = pairs.positive_mask(), pairs.negatives()
    labels = LABELS[SAMPLES], LABELS[torch.cat([SAMPLES, first])]
    assert (labels[0][:, None] == LABELS[first]).any()
    assert_close(model(given), expected(queries, keys, masks, labels))


def test_quickthought_takes_the_topics_of_its_documents() -> None:
    torch.manual_seed(0)
    encoder = TwinEncoder(*(GRUEncoder(9, words=4, units=3) for _ in range(2))).double()
    loss = InfoNCELoss(temperature=1.0)
    model = QuickThought(encoder, loss, labels=True)
    with pytest.raises(ValueError, match="a text with topics"):
        model.read_labels(None)
    documents = torch.tensor([0, 0, 0, 1, 1, 2])
    tokens = torch.randint(2, 9, (6, 4))
    sentences = SentenceBatch(tokens, torch.full((6,), 4), documents, torch.arange(6))
    (f, _), (g, _) = encoder.both(tokens, sentences.lengths)
    own = torch.eye(6, dtype=torch.bool)
    same = documents[:, None] == documents
    # Neighbors are of the same topic; the sixth sentence is alone and has no loss.
    logits = f @ g.T
    total = logits.masked_fill(own, -torch.inf).logsumexp(1)
    losses = [(total[i] - logits[i][same[i] & ~own[i]]).mean() for i in range(5)]
    made = model(Batch((sentences,), torch.arange(6), torch.arange(6), torch.zeros(1).long()))
    assert_close(made, torch.stack(losses).mean())


def test_what_does_not_go_with_labels() -> None:
    with pytest.raises(ValueError, match="labels without mixing"):
        SimCLR(*parts(), InfoNCELoss(), mixing=UnMix(), labels=True)
    with pytest.raises(ValueError, match="chosen by class without"):
        SimCLR(*parts(), InfoNCELoss(), labels=True, options=SimCLROptions(same_class="excluded"))
    model = SimCLR(*parts(), InfoNCELoss(), labels=True)
    with pytest.raises(ValueError, match="read_labels"):
        model(batch())
    with pytest.raises(ValueError, match="got data without"):
        model.read_labels(None)
    for given in ({"recipe": "swav"}, {"recipe": "infograph", "domain": "graph"}):
        with pytest.raises(ValueError, match=f"takes labels, got '{given['recipe']}'"):
            TrainConfig(labels="use", **given).composition()


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({"recipe": "supcon"}, True),
        ({"recipe": "supcon-hcl"}, True),
        ({"recipe": "supcon-unremix"}, True),
        ({"recipe": "supcon", "labels": "ignore"}, False),
        ({"recipe": "unremix-simclr"}, False),
        ({"recipe": "unremix-moco", "labels": "use"}, True),
        ({"recipe": "graphcl", "labels": "use", "domain": "graph"}, True),
        ({"recipe": "quickthought", "labels": "use", "domain": "sentence"}, True),
    ],
)
def test_recipe_and_option_say_whether_labels_are_used(given: dict[str, Any], used: bool) -> None:
    assert TrainConfig(**given).composition().labels is used


def test_a_comparison_of_all_recipes_has_those_without_labels() -> None:
    assert not {name for name in chosen_recipes("all", "image") if name.startswith("supcon")}
    assert chosen_recipes("supcon,simclr", "image") == ("supcon", "simclr")


def train(folder: Path, name: str, x: Any, y: Any, **options: Any) -> Run:
    table = folder / f"{name}.csv"
    lines = [
        ",".join([*(f"{value:.4f}" for value in row), f"c{c}"]) for row, c in zip(x, y, strict=True)
    ]
    table.write_text("\n".join(["a,b,c,d,e,f,label", *lines]))
    return unremix.train(
        data=str(table), domain="vectors", recipe="scarf", name=name, epochs=2, batch_size=16,
        head_hidden=(8,), head_output=4, probe_epochs=1, vectors={"hidden": 8, "layers": 1},
        runs=str(folder), progress=False, accelerator="cpu", threads=1, **options,
    )  # fmt: skip


def test_a_run_uses_labels_of_the_training_samples_alone(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = noise.normal(size=(60, 6)) + y[:, None]
    held = np.zeros(60, dtype=bool)
    held[drawn(60, 15).numpy()] = True
    runs = {}
    for name, among in {"plain": None, "held-out": held, "trained": ~held}.items():
        labels = y.copy()
        if among is not None:  # other labels among these rows
            labels[among] = noise.permutation(labels[among])
        runs[name] = train(tmp_path, name, x, labels, labels="use", validation=0.25)
    weights = {
        name: torch.cat([each.flatten() for each in run.encoder().parameters()])
        for name, run in runs.items()
    }
    assert torch.equal(weights["plain"], weights["held-out"])
    assert not torch.equal(weights["plain"], weights["trained"])

    card = runs["plain"].evaluation
    assert card is not None
    assert card["labels_used"] is True
    said = " ".join(card["verdict"])
    assert "Training used labels" in said
    assert "too high" not in said  # held-out rows are measured
    assert "with the labels of its training data" in model_card(runs["plain"])
    without = train(tmp_path, "without", x, y)
    assert "without labels" in model_card(without)
    assert without.evaluation is not None
    assert without.evaluation["labels_used"] is False
    seen = train(tmp_path, "seen", x, y, labels="use").evaluation
    assert seen is not None
    assert "these measures are too high" in " ".join(seen["verdict"])
