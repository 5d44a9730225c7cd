"""Labels as positives: against slow loops, a peer library, and the loss without labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import reference
import torch
from batches import Batch, assert_close, make_batch, with_gradients
from torch import Tensor

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.core.pairs import Pairs
from unremix.core.specification import unremix as specified
from unremix.core.views import Views, stack
from unremix.losses import TwoViewLoss

LABELS = torch.tensor([0, 1, 0, -1, 1, 2, -1, 0])
MIX = (0.5, 0.2, 0.3)
LOSSES: list[Callable[..., TwoViewLoss]] = [
    InfoNCELoss, partial(InfoNCELoss, decoupled=True), HCLLoss, UnReMixLoss,
    partial(UnReMixLoss, scaling="zscore-exp"), partial(UnReMixLoss, gradient="nt-xent"),
]  # fmt: skip


@pytest.fixture
def batch() -> Batch:
    return make_batch(len(LABELS))


def evaluated(loss_fn: TwoViewLoss, batch: Batch, **given: Any) -> list[Tensor]:
    """The loss, and its gradients at the embeddings and at the loss's own parameters."""
    loss_fn = loss_fn.double()
    loss = loss_fn(*batch.views, **given)
    return with_gradients(loss, batch.z0, batch.z1, *loss_fn.parameters())


def assert_all_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


COMPILED = pytest.param("compiled", marks=pytest.mark.slow)


@pytest.mark.parametrize("engine", ["eager", COMPILED, "auto"])
@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("labels", [torch.arange(8), torch.full((8,), -1)])
def test_labels_that_all_differ_change_nothing(
    batch: Batch, make: Callable[..., TwoViewLoss], engine: str, labels: Tensor
) -> None:
    expected = evaluated(make(engine=engine), batch)
    assert_all_close(evaluated(make(engine=engine), batch, labels=labels), expected)


def test_labels_of_any_integers(batch: Batch) -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 200, 2, 0])
    expected = evaluated(InfoNCELoss(), batch, labels=labels)
    assert_all_close(evaluated(InfoNCELoss(), batch, labels=labels.to(torch.uint8)), expected)


@pytest.mark.parametrize("layout", ["both", "one-way"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("gradient", ["pseudo-label", "nt-xent"])
@pytest.mark.parametrize("class_prior", [0.0, 0.1])
def test_unremix_is_the_slow_loop(
    batch: Batch, layout: Any, together: bool, gradient: Any, class_prior: float
) -> None:
    loss_fn = UnReMixLoss(layout=layout, gradient=gradient, mix=MIX, class_prior=class_prior)
    loss_fn.given_lambdas = torch.tensor(MIX, dtype=torch.float64)
    loss = loss_fn(*batch.views, labels=LABELS, positives_in_denominator=together)
    expected = reference.batch_loss(
        *batch.views, layout=layout, mix=torch.tensor(MIX, dtype=torch.float64), labels=LABELS,
        positives_in_denominator=together, gradient=gradient, class_prior=class_prior,
        weight=batch.weight, bias=batch.bias,
    )  # fmt: skip
    views = batch.z0, batch.z1
    assert_all_close(with_gradients(loss, *views), with_gradients(expected, *views))


@pytest.mark.parametrize("engine", ["eager", COMPILED, "auto"])
@pytest.mark.parametrize("tile", [None, 1, 5, 100])
def test_every_engine_and_tile_is_the_specification(
    batch: Batch, engine: Any, tile: int | None
) -> None:
    mix = torch.tensor(MIX, dtype=torch.float64, requires_grad=True)
    expected = specified(*batch.views, mix, LABELS)
    loss_fn = UnReMixLoss(mix="free", engine=engine, tile=tile).double()
    assert loss_fn.mix_parameters is not None
    loss_fn.mix_parameters.data = mix.detach().expm1().log()
    loss = loss_fn(*batch.views, labels=LABELS)
    *of_views, slope = with_gradients(expected, batch.z0, batch.z1, mix)
    of_views.append(slope * (1 - (-mix).exp()))  # softplus'(x) = 1 - e^{-softplus(x)}
    found = with_gradients(loss, batch.z0, batch.z1, loss_fn.mix_parameters)
    assert_all_close(found, of_views)


def test_uniform_weights_are_the_peers_supervised_contrastive_loss() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    batch = make_batch(12)
    labels = torch.arange(12) % 5
    z = torch.cat([batch.z0, batch.z1])
    expected = losses.SupConLoss(temperature=0.2)(z, labels.repeat(2))
    loss = InfoNCELoss(temperature=0.2)(batch.z0, batch.z1, labels=labels)
    views = batch.z0, batch.z1
    assert_all_close(with_gradients(loss, *views), with_gradients(expected, *views))


def test_a_second_derivative_follows_the_labels(batch: Batch) -> None:
    def loss(z0: Tensor, z1: Tensor) -> Tensor:
        found: Tensor = InfoNCELoss(tile=3)(z0, z1, labels=LABELS)
        return found

    assert torch.autograd.gradgradcheck(loss, (batch.z0, batch.z1))


def test_importance_has_no_weight_within_a_class(batch: Batch) -> None:
    found = unremix.importance(*batch.views, labels=LABELS)
    positives, negatives = reference.with_classes(
        *reference.masks_both(8), LABELS.repeat(2), LABELS.repeat(2)
    )
    assert torch.equal(found.positives, positives)
    assert torch.equal(found.negatives, negatives)
    assert torch.equal(found.weights > 0, found.weights.masked_fill(~negatives, 0) > 0)
    count = negatives.sum(1).double()
    assert_close(found.weights.sum(1), count)  # of mean 1
    assert_close(
        found.representativeness,
        reference.representativeness(torch.cat([batch.z0, batch.z1]), negatives),
    )
    plain = unremix.importance(*batch.views)
    different = unremix.importance(*batch.views, labels=torch.arange(8))
    assert_close(different.weights, plain.weights)


def test_any_pairs_follow_labels(batch: Batch) -> None:
    """The views of a batch, and queries against a queue of keys that know their classes."""
    loss_fn = UnReMixLoss().double()
    both = stack(Views(batch.z0, batch.h0), Views(batch.z1, batch.h1))
    loss = loss_fn.against(both, both, Pairs.both_views(8), labels=LABELS.repeat(2))
    assert_close(loss, loss_fn(*batch.views, labels=LABELS))

    samples, kept = torch.arange(8), torch.tensor([3, 20, 21, 22, 23])
    queue = make_batch(5, seed=1)
    keys = stack(Views(batch.z1, batch.h1), Views(queue.z0, queue.h0))
    of_keys = torch.cat([LABELS, torch.tensor([-1, 0, 1, 1, 4])])
    pairs = Pairs.queue(samples, kept)
    plain = InfoNCELoss(temperature=0.4)
    anchors = Views(batch.z0, batch.h0)
    loss = plain.against(anchors, keys, pairs, labels=(LABELS, of_keys))
    positives, negatives = reference.with_classes(
        pairs.positive_mask(), pairs.negatives(), LABELS, of_keys
    )
    assert positives.sum() > 8  # keys of the queue are among them
    logits = reference.similarity(batch.z0, keys.embeddings) / 0.4
    expected = reference.info_nce(
        logits, positives, negatives, negatives.double(), temperature=0.4,
        positives_in_denominator=True,
    )  # fmt: skip
    assert_close(loss, expected)


def test_repeated_samples_are_neither_positives_nor_negatives(batch: Batch) -> None:
    ids = torch.tensor([0, 1, 0, 3, 4, 5, 6, 7])  # the first and the third show one sample
    loss = InfoNCELoss().against(
        views := stack(Views(batch.z0), Views(batch.z1)), views, Pairs.both_views(8, ids=ids),
        labels=LABELS.repeat(2),
    )  # fmt: skip
    assert_close(loss, InfoNCELoss()(batch.z0, batch.z1, ids=ids, labels=LABELS))
    pairs = Pairs.both_views(8, ids=ids).labeled(LABELS.repeat(2), LABELS.repeat(2))
    assert not (pairs.positive_mask() | pairs.negatives())[0, [0, 2, 10]].any()


def test_anchors_without_negatives_contribute_nothing(batch: Batch) -> None:
    with pytest.warns(UserWarning, match="16 of 16 anchors have no negatives"):
        loss = UnReMixLoss().double()(*batch.views, labels=torch.zeros(8, dtype=torch.int64))
    assert loss == 0
    assert all(not each.any() for each in torch.autograd.grad(loss, (batch.z0, batch.z1)))

    anchors, keys = Views(batch.z0[:3]), Views(batch.z1[:4])  # all keys are of the first's class
    pairs = Pairs.one_way(3, total=4)
    labels = torch.tensor([0, 1, -1]), torch.zeros(4, dtype=torch.int64)
    with pytest.warns(UserWarning, match="1 of 3 anchors"):
        loss = InfoNCELoss().against(anchors, keys, pairs, labels=labels)
    rest = InfoNCELoss().against(Views(batch.z0[1:3]), keys, pairs[1:3])
    assert_close(loss, rest)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([0, 1, 2], "got list; pass torch.as_tensor"),
        (np.zeros(8, dtype=int), "got ndarray; pass torch.as_tensor"),
        (list("abcdefgh"), "got strings; number them"),
        (np.array(list("abcdefgh")), "got strings; number them"),
        (torch.zeros(3, dtype=torch.int64), r"of shape \(8,\), .* got \(3,\)"),
        (torch.zeros(8), "integers, got torch.float32"),
        (torch.full((8,), -2), "from 0, or -1 .* got -2"),
    ],
)
def test_other_labels_are_refused(batch: Batch, labels: Any, complaint: str) -> None:
    for call in (InfoNCELoss(), partial(unremix.importance)):
        with pytest.raises(ValueError, match=f"^expected labels .*{complaint}"):
            call(*batch.views, labels=labels)


def test_arrays_in_place_of_embeddings_are_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match=r"z0 to be a torch.Tensor, got ndarray"):
        InfoNCELoss()(batch.z0.detach().numpy(), batch.z1)
