"""The adapter for pytorch-metric-learning against its NTXentLoss, in its wrappers and trainer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from batches import leaf, with_gradients
from pytorch_metric_learning import (
    distances,
    losses,
    miners,
    reducers,
    regularizers,
    testers,
    trainers,
)
from pytorch_metric_learning.utils import distributed
from torch import Tensor, nn

import unremix
from unremix.adapters.metric_learning import UnReMixLoss, UnReMixMiner

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 4, 4])


def embedded(count: int = len(LABELS)) -> Tensor:
    return leaf(count, 5)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_without_components_it_is_nt_xent(temperature: float) -> None:
    embeddings = embedded()
    ours, theirs = UnReMixLoss(temperature, components=()), losses.NTXentLoss(temperature)
    torch.testing.assert_close(
        with_gradients(ours(embeddings, LABELS), embeddings),
        with_gradients(theirs(embeddings, LABELS), embeddings),
    )


MINERS = {
    "pairs": miners.MultiSimilarityMiner(epsilon=0.5),
    "triplets": miners.TripletMarginMiner(margin=2.0, type_of_triplets="all"),
    "hardest": miners.BatchHardMiner(),
    "ours": UnReMixMiner(negatives_per_anchor=3),
}


@pytest.mark.parametrize("miner", MINERS)
def test_miners(miner: str) -> None:
    embeddings = embedded()
    found = MINERS[miner](embeddings, LABELS)
    ours, theirs = UnReMixLoss(0.5, components=()), losses.NTXentLoss(0.5)
    torch.testing.assert_close(
        with_gradients(ours(embeddings, LABELS, found), embeddings),
        with_gradients(theirs(embeddings, LABELS, found), embeddings),
    )
    without_labels = ours(embeddings, indices_tuple=found)
    torch.testing.assert_close(without_labels, ours(embeddings, LABELS, found))
    assert UnReMixLoss(0.5)(embeddings, LABELS, found).isfinite()


def test_reference_embeddings() -> None:
    embeddings, references = embedded(), embedded(7)
    labels = torch.tensor([0, 1, 1, 2, 3, 5, 5])
    ours, theirs = UnReMixLoss(0.5, components=()), losses.NTXentLoss(0.5)
    given = {"ref_emb": references, "ref_labels": labels}
    torch.testing.assert_close(
        with_gradients(ours(embeddings, LABELS, **given), embeddings, references),
        with_gradients(theirs(embeddings, LABELS, **given), embeddings, references),
    )


@pytest.mark.parametrize(
    "reducer",
    [
        reducers.MeanReducer(),
        reducers.AvgNonZeroReducer(),
        reducers.ThresholdReducer(high=1.5),
        reducers.PerAnchorReducer(),
        reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.double)),
        reducers.DoNothingReducer(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_reducers(reducer: Any) -> None:
    embeddings = embedded()
    ours = UnReMixLoss(0.5, components=(), reducer=reducer)(embeddings, LABELS)
    theirs = losses.NTXentLoss(0.5, reducer=reducer)(embeddings, LABELS)
    if isinstance(ours, dict):
        ours, theirs = ours["loss"]["losses"], theirs["loss"]["losses"]
    torch.testing.assert_close(ours, theirs)


def test_regularizers() -> None:
    embeddings = embedded()
    options = {"embedding_regularizer": regularizers.LpRegularizer(), "embedding_reg_weight": 0.3}
    ours = UnReMixLoss(0.5, components=(), **options)(embeddings, LABELS)
    torch.testing.assert_close(ours, losses.NTXentLoss(0.5, **options)(embeddings, LABELS))


@pytest.mark.parametrize("symmetric", [True, False])
def test_self_supervised(symmetric: bool) -> None:
    first, second = embedded(), embedded()
    ours, theirs = (
        losses.SelfSupervisedLoss(each, symmetric=symmetric)(first, second)
        for each in (UnReMixLoss(0.5, components=()), losses.NTXentLoss(0.5))
    )
    torch.testing.assert_close(
        with_gradients(ours, first, second), with_gradients(theirs, first, second)
    )
    weighted = losses.SelfSupervisedLoss(UnReMixLoss(0.5), symmetric=symmetric)(first, second)
    layout = "both" if symmetric else "one-way"
    plain = unremix.UnReMixLoss(temperature=0.5, layout=layout)
    torch.testing.assert_close(weighted, plain(first, second))


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner()])
def test_cross_batch_memory(miner: Any) -> None:
    memories = [
        losses.CrossBatchMemory(each, 5, memory_size=32, miner=miner)
        for each in (UnReMixLoss(0.5, components=()), losses.NTXentLoss(0.5), UnReMixLoss(0.5))
    ]
    for _ in range(5):
        embeddings = embedded()
        ours, theirs, weighted = (each(embeddings, LABELS) for each in memories)
        torch.testing.assert_close(
            with_gradients(ours, embeddings), with_gradients(theirs, embeddings)
        )
        assert weighted.isfinite()


DISTANCES = {
    "dot": distances.DotProductSimilarity(normalize_embeddings=False),
    "euclidean": distances.LpDistance(),
    "cosine": distances.CosineSimilarity(),
}


@pytest.mark.parametrize("distance", DISTANCES)
def test_distances(distance: str) -> None:
    embeddings, measure = embedded(), DISTANCES[distance]
    ours = UnReMixLoss(0.5, components=(), distance=measure)(embeddings, LABELS)
    theirs = losses.NTXentLoss(0.5, distance=measure)(embeddings, LABELS)
    torch.testing.assert_close(with_gradients(ours, embeddings), with_gradients(theirs, embeddings))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Computed in float32, and returned in the precision of the embeddings, as the library's."""
    embeddings = embedded().to(dtype)
    for components in ((), ("uncertainty", "similarity", "representativeness")):
        loss_fn = UnReMixLoss(0.5, components=components)
        loss = loss_fn(embeddings, LABELS)
        torch.testing.assert_close(loss, loss_fn(embeddings.float(), LABELS).to(dtype))
        assert loss.dtype == dtype
    theirs = losses.NTXentLoss(0.5)(embeddings, LABELS)
    ours = UnReMixLoss(0.5, components=())(embeddings, LABELS)
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("options", [{"decoupled": True}, {"class_prior": 0.1}])
def test_options_of_the_objective(options: dict[str, Any]) -> None:
    """Of two views, those of the plain loss."""
    first, second = embedded(), embedded()
    wrapped = losses.SelfSupervisedLoss(UnReMixLoss(0.5, **options))(first, second)
    plain = unremix.UnReMixLoss(temperature=0.5, **options)
    torch.testing.assert_close(wrapped, plain(first, second))
    with pytest.raises(ValueError, match="class_prior=0 with a distance"):
        UnReMixLoss(class_prior=0.1, distance=distances.LpDistance())


def test_embeddings_without_gradient_are_refused() -> None:
    """Only the mix would learn."""
    loss = UnReMixLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    with pytest.raises(ValueError, match="expected embeddings with gradient"):
        loss.backward()


def test_the_library_is_left_as_it_is() -> None:
    for wrapper in (losses.CrossBatchMemory, losses.SelfSupervisedLoss):
        assert "UnReMixLoss" not in wrapper.supported_losses()
    assert repr(UnReMixLoss()).startswith("UnReMixLoss(")
    loss_fn = pickle.loads(pickle.dumps(UnReMixLoss(0.3)))
    assert type(loss_fn) is UnReMixLoss


def test_a_state_of_the_library_s_loss_is_loaded() -> None:
    UnReMixLoss(components=()).load_state_dict(losses.NTXentLoss().state_dict())


def test_the_last_layer_is_found() -> None:
    head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    loss_fn = losses.SelfSupervisedLoss(UnReMixLoss(0.5, last_layer=head[-1]))
    views = torch.randn(2, 9, 6)
    z0, z1 = (head(view) for view in views)
    plain = unremix.UnReMixLoss(temperature=0.5)
    hidden = [head[:2](view) for view in views]
    torch.testing.assert_close(loss_fn(z0, z1), plain(z0, z1, *hidden))


@pytest.mark.parametrize("labels", [torch.zeros(4).long(), torch.arange(4)])
def test_no_pairs_give_a_loss_of_zero(labels: Tensor) -> None:
    embeddings = torch.randn(4, 5, requires_grad=True)
    loss = UnReMixLoss()(embeddings, labels)
    loss.backward()
    assert loss == 0


def test_distributed_wrapper(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        embeddings = embedded()
        wrapped = distributed.DistributedLossWrapper(UnReMixLoss(0.5, components=()))
        torch.testing.assert_close(
            wrapped(embeddings, LABELS), losses.NTXentLoss(0.5)(embeddings, LABELS)
        )
    finally:
        dist.destroy_process_group()


def test_trainer_and_tester(tmp_path: Path) -> None:
    features = torch.randn(64, 6)
    labels = torch.arange(64) % 4
    data = torch.utils.data.TensorDataset(features + labels[:, None], labels)
    trunk = nn.Linear(6, 5)
    loss_fn = UnReMixLoss(0.5)
    optimizer = torch.optim.Adam([*trunk.parameters(), *loss_fn.parameters()], lr=0.05)
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk}, optimizers={"trunk_optimizer": optimizer}, batch_size=16,
        loss_funcs={"metric_loss": loss_fn}, dataset=data, iterations_per_epoch=5,
        mining_funcs={"tuple_miner": UnReMixMiner(5)}, dataloader_num_workers=0,
    )  # fmt: skip
    before = loss_fn.mix
    trainer.train(num_epochs=1)
    assert loss_fn.mix != before
    tester = testers.GlobalEmbeddingSpaceTester(dataloader_num_workers=0)
    embedded, found = tester.get_all_embeddings(data, trunk, None)
    assert embedded.shape == (64, 5)
    assert torch.equal(found.flatten().cpu(), labels)


# The miner


def test_the_miner_takes_the_heaviest_negatives() -> None:
    embeddings = embedded()
    anchor, positive, other, negative = UnReMixMiner(3, mix=(0.0, 1.0, 0.0))(embeddings, LABELS)
    everything = losses.NTXentLoss().distance(embeddings, embeddings)
    assert set(zip(anchor.tolist(), positive.tolist(), strict=True)) == {
        (i, j) for i in range(10) for j in range(10) if i != j and LABELS[i] == LABELS[j]
    }
    for row in range(10):
        allowed = [j for j in range(10) if LABELS[j] != LABELS[row]]
        best = sorted(allowed, key=lambda j: -float(everything[row, j]))[:3]
        assert set(negative[other == row].tolist()) == set(best)


def test_fewer_negatives_than_asked_for() -> None:
    *_, other, negative = UnReMixMiner(50)(embedded(4), torch.tensor([0, 0, 0, 1]))
    assert sorted(zip(other.tolist(), negative.tolist(), strict=True)) == [
        (0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)
    ]  # fmt: skip


def test_a_miner_learns_nothing() -> None:
    with pytest.raises(ValueError, match="expected a mix that is not learned"):
        UnReMixMiner(mix="learned")
