"""Quick-Thought against loops over sentence pairs, and sentences from the command line."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
import torch.distributed as dist
from batches import assert_close
from building import all_gradients_of, recorded_ids, reference_weights
from crashing import crash_at
from hypothesis import given
from hypothesis import strategies as st
from processes import Report, processes
from torch import Tensor, nn

import unremix
from unremix import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.cli import main
from unremix.core.pairs import Pairs
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.domains.sentence.corpus import NAME_LENGTH, SentenceBatch
from unremix.domains.sentence.encoders import BagOfWords
from unremix.domains.sentence.model import SentenceShape
from unremix.domains.sentence.options import SentenceOptions
from unremix.domains.sentence.quickthought import QuickThought, QuickThoughtOptions, TwinEncoder
from unremix.frameworks.base import Batch
from unremix.losses import TwoViewLoss
from unremix.training.building import build_model
from unremix.training.run import Run

WORDS, SIZE = 30, 5
# Two documents of several sentences around one of a single sentence; sentences 1 and 5 are of the
# same text, and so are 7 and its neighbor 8.
DOCUMENTS = (0, 0, 0, 0, 1, 2, 2, 2, 2)
TEXTS = (10, 11, 12, 13, 14, 11, 16, 17, 17)


def make_batch(
    documents: tuple[int, ...] = DOCUMENTS,
    texts: tuple[int, ...] = TEXTS,
    part: slice = slice(None),
) -> Batch:
    """A sentence of each text: the same words for the same text."""
    tokens, lengths = torch.zeros(len(texts), 4, dtype=torch.long), []
    for row, text in enumerate(texts):
        generator = torch.Generator().manual_seed(text)
        length = 1 + text % 4
        tokens[row, :length] = torch.randint(2, WORDS, (length,), generator=generator)
        lengths.append(length)
    sentences = SentenceBatch(
        tokens[part],
        torch.tensor(lengths)[part],
        torch.tensor(documents)[part],
        torch.tensor(texts)[part],
    )
    number = torch.arange(len(sentences))
    return Batch((sentences,), number, number, number[:1])


def make_model(
    loss: TwoViewLoss, *, output: int | None = None, bias: bool = True, **options: Any
) -> QuickThought:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = BagOfWords(WORDS, words=SIZE), BagOfWords(WORDS, words=SIZE)
        maps = None
        if output is not None:
            maps = (nn.Linear(SIZE, output, bias=bias), nn.Linear(SIZE, output, bias=bias))
        model = QuickThought(
            TwinEncoder(first, second, maps), loss, options=QuickThoughtOptions(**options)
        ).double()
    for table in (first.words, second.words):
        table.weight.data *= 20  # products of the size of 1
    for parameter in loss.parameters():  # unequal shares, so that each matters
        parameter.data += torch.tensor([0.3, -0.2, 0.1])
    return model


def embed(model: QuickThought, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    (f, f_inputs), (g, g_inputs) = model.encoder.both(batch.views[0].tokens, batch.views[0].lengths)
    return f, f_inputs, g, g_inputs


def assert_same(actual: Tensor, expected: Tensor, model: QuickThought) -> None:
    """Equal values and equal gradients."""
    assert_close(actual, expected)
    found, wanted = all_gradients_of(actual, model), all_gradients_of(expected, model)
    for name, gradient in wanted.items():
        assert_close(found[name], gradient, 1e-8)


# The loss.


@pytest.mark.parametrize("reach", [1, 2, 20])
@pytest.mark.parametrize("mask_repeats", [True, False])
def test_uniform_weights_give_quick_thoughts_cross_entropy(reach: int, mask_repeats: bool) -> None:
    model = make_model(InfoNCELoss(temperature=1.0), reach=reach, mask_repeats=mask_repeats)
    batch = make_batch()
    f, _, g, _ = embed(model, batch)
    texts = TEXTS if mask_repeats else None
    positives, negatives = reference.masks_windows(DOCUMENTS, reach=reach, texts=texts)
    actual = model(batch)
    assert_same(actual, reference.quickthought(f, g, positives, negatives), model)

    # The same by torch: a target for each sentence that has a neighbor.
    scores = (f @ g.T).masked_fill(~(positives | negatives), -torch.inf)
    answered = positives.any(1)
    target = positives.double() / positives.sum(1, keepdim=True).clamp(min=1)
    log_probabilities = scores.log_softmax(1).masked_fill(~positives, 0.0)
    assert_close(actual, -(target * log_probabilities).sum(1)[answered].mean())
    # torch multiplies -inf by a target of 0, so what is left out is far below in place of -inf.
    low = scores.masked_fill(scores.isinf(), -1e6)
    assert_close(actual, nn.functional.cross_entropy(low[answered], target[answered]))


@pytest.mark.parametrize("reach", [1, 2])
@pytest.mark.parametrize("mask_repeats", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_as_the_public_code_keeps_the_sentence_itself(
    reach: int, mask_repeats: bool, mapped: bool
) -> None:
    """Its own score is set to 0 and stays in the denominator."""
    options: dict[str, Any] = {"reach": reach, "mask_repeats": mask_repeats}
    options["output"] = 4 if mapped else None
    model = make_model(InfoNCELoss(temperature=1.0), fidelity="code", **options)
    batch = make_batch()
    f, _, g, _ = embed(model, batch)
    losses = []
    for i, (document, text) in enumerate(zip(DOCUMENTS, TEXTS, strict=True)):
        scores, targets = [], []
        for j in range(len(DOCUMENTS)):
            neighbor = i != j and abs(i - j) <= reach and DOCUMENTS[j] == document
            if mask_repeats and TEXTS[j] == text and not neighbor and i != j:
                continue
            scores.append(torch.zeros((), dtype=torch.float64) if i == j else f[i] @ g[j])
            targets.append(float(neighbor))
        if any(targets):
            target = torch.tensor(targets, dtype=torch.float64)
            losses.append(-(target / target.sum() * torch.stack(scores).log_softmax(0)).sum())
    actual = model(batch)
    assert_same(actual, torch.stack(losses).mean(), model)
    sound = make_model(InfoNCELoss(temperature=1.0), **options)
    assert float((actual - sound(batch)).detach()) > 0.01  # one more in the denominator


@pytest.mark.parametrize("make", [InfoNCELoss, HCLLoss, UnReMixLoss])
def test_every_weighting_goes_with_the_public_code(make: Any) -> None:
    options = {"class_prior": 0.0} if make is HCLLoss else {}
    for output in (None, 4):
        model = make_model(make(temperature=1.0, **options), output=output, fidelity="code")
        loss = model(make_batch())
        assert loss.isfinite()
        assert all(part.isfinite().all() for part in all_gradients_of(loss, model).values())


def test_an_unknown_fidelity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fidelity to be .*'code'"):
        make_model(InfoNCELoss(temperature=1.0), fidelity="codes")


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    texts=st.lists(st.integers(10, 14), min_size=20, max_size=20),
    reach=st.integers(1, 3),
    mask_repeats=st.booleans(),
)
def test_windows_equal_a_loop(
    lengths: list[int], texts: list[int], reach: int, mask_repeats: bool
) -> None:
    documents = [number for number, length in enumerate(lengths) for _ in range(length)]
    texts = texts[: len(documents)]
    pairs = Pairs.windows(
        torch.tensor(documents), reach=reach, texts=torch.tensor(texts) if mask_repeats else None
    )
    positives, negatives = reference.masks_windows(
        documents, reach=reach, texts=texts if mask_repeats else None
    )
    assert torch.equal(pairs.positive_mask(), positives)
    assert torch.equal(pairs.negatives(), negatives)
    assert not negatives.diagonal().any()


UNREMIX: dict[str, dict[str, Any]] = {
    "minmax": {},
    "zscore-exp": {"scaling": "zscore-exp", "hardness": 0.7},
    "no mass": {"mass": "none"},
    "similarity gradient": {"similarity_gradient": True},
    "tiles": {"tile": 4},
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mapped", ["map", "map without bias", "none"])
@pytest.mark.parametrize("name", UNREMIX)
def test_unremix_equals_the_loop(name: str, mapped: str) -> None:
    """The uncertainty uses h where a linear map follows the encoders, else the bias form."""
    loss_fn = UnReMixLoss(temperature=1.0, **UNREMIX[name])
    output = None if mapped == "none" else 4
    model = make_model(loss_fn, output=output, bias=mapped == "map", reach=2)
    batch = make_batch()
    f, f_inputs, g, g_inputs = embed(model, batch)
    assert (f_inputs is None) == (mapped == "none")
    positives, negatives = reference.masks_windows(DOCUMENTS, reach=2, texts=TEXTS)
    similarity = reference.similarity(f, g)
    through = loss_fn.weighting.similarity_gradient
    scores = [
        reference.uncertainty(
            f, g, f_inputs, g_inputs, negatives, positives, use_bias=mapped != "map without bias"
        ),
        similarity if through else similarity.detach(),
        reference.representativeness(g, negatives).detach(),
    ]
    weights = reference.weights(
        scores, loss_fn.lambdas(), negatives,
        scaling=UNREMIX[name].get("scaling", "minmax"), mass=loss_fn.weighting.mass,
        hardness=loss_fn.weighting.sharpness,
    )  # fmt: skip
    expected = reference.info_nce(
        reference.dots(f, g), positives, negatives, weights, temperature=1.0,
        positives_in_denominator=True,
    )  # fmt: skip
    assert_same(model(batch), expected, model)


def test_h_matters_to_the_weights() -> None:
    """With a map, other weights than by the outputs alone."""
    batch = make_batch()
    model = make_model(UnReMixLoss(temperature=1.0), output=4)
    f, f_inputs, g, g_inputs = embed(model, batch)
    assert f_inputs is not None
    assert g_inputs is not None
    pairs = Pairs.windows(torch.tensor(DOCUMENTS), texts=torch.tensor(TEXTS))
    mix, weighting = torch.tensor([1.0, 0, 0]).double(), model.loss.weighting
    with_h = reference_weights(f, g, f_inputs, g_inputs, pairs, mix, weighting)
    scores = reference.uncertainty(
        f, g, None, None, pairs.negatives(), pairs.positive_mask()
    )  # fmt: skip
    without = reference.weights([scores], mix[:1], pairs.negatives(), scaling="minmax", mass="mean")
    assert float((with_h - without).abs().max()) > 0.1


@pytest.mark.parametrize("similarity_gradient", [True, False])
def test_hcl_equals_the_loop(similarity_gradient: bool) -> None:
    loss_fn = HCLLoss(
        temperature=1.0, hardness=1.5, class_prior=0.0, similarity_gradient=similarity_gradient
    )
    model = make_model(loss_fn)
    batch = make_batch()
    f, _, g, _ = embed(model, batch)
    positives, negatives = reference.masks_windows(DOCUMENTS, texts=TEXTS)
    similarity = reference.similarity(f, g)
    weights = reference.hcl_weights(
        similarity if similarity_gradient else similarity.detach(), negatives,
        hardness=1.5, temperature=1.0,
    )  # fmt: skip
    expected = reference.info_nce(
        reference.dots(f, g), positives, negatives, weights, temperature=1.0,
        positives_in_denominator=True,
    )  # fmt: skip
    assert_same(model(batch), expected, model)


@pytest.mark.parametrize(
    ("documents", "texts"),
    [
        ((0, 1, 2), (10, 11, 12)),  # no neighbors
        ((0, 0), (10, 11)),  # no negatives
        ((0, 0, 0), (10, 10, 10)),
        ((0,), (10,)),
    ],
)
@pytest.mark.parametrize("make", [InfoNCELoss, HCLLoss, UnReMixLoss])
def test_nothing_to_learn_is_a_loss_of_0(
    make: Any, documents: tuple[int, ...], texts: tuple[int, ...]
) -> None:
    options = {"class_prior": 0.0} if make is HCLLoss else {}
    model = make_model(make(temperature=1.0, **options), output=4)
    loss = model(make_batch(documents, texts))
    assert float(loss.detach()) == 0
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_some_without_negatives_do_no_harm() -> None:
    """Sentences 1 and 2 have no negative; 0 and 3 have one."""
    model = make_model(UnReMixLoss(temperature=1.0), reach=2)
    batch = make_batch((0, 0, 0, 0), (10, 11, 12, 13))
    loss = model(batch)
    assert loss.isfinite()
    assert all(part.isfinite().all() for part in all_gradients_of(loss, model).values())


def test_what_quick_thought_refuses() -> None:
    with pytest.raises(ValueError, match="class_prior=0 on Quick-Thought"):
        make_model(HCLLoss(temperature=1.0))
    with pytest.raises(ValueError, match="pseudo-label"):
        make_model(UnReMixLoss(temperature=1.0, gradient="nt-xent"))
    with pytest.raises(ValueError, match="reach to be at least 1"):
        make_model(InfoNCELoss(temperature=1.0), reach=0)


# Two processes share a batch.


MODELS: dict[str, Any] = {
    "uniform": InfoNCELoss,
    "hcl": lambda **options: HCLLoss(class_prior=0.0, **options),
    "unremix": UnReMixLoss,
}
# A document goes on in the second process; then the second process has no neighbors of its own.
SPLITS = {
    "one document in both": (DOCUMENTS, 2),
    "all in one": ((0, 0, 0, 0, 0, 0, 0, 1, 2), 7),
    "nothing": (tuple(range(9)), 4),
}


def of_each_process(world: int) -> Report:
    found: Report = {}
    for split, (documents, cut) in SPLITS.items():
        part = slice(None, cut) if dist.get_rank() == 0 else slice(cut, None)
        for name, make in MODELS.items():
            model = make_model(make(temperature=1.0, gather=True), output=4)
            loss = model(make_batch(documents, part=part))
            parts = {"loss": loss.detach(), **all_gradients_of(loss, model)}
            found[split, name] = {key: part.clone().contiguous() for key, part in parts.items()}
            for tensor in found[split, name].values():
                dist.all_reduce(tensor)
                tensor /= world
    return found


def test_scores_see_which_sentences_they_score() -> None:
    seen: list[list[int]] = []

    batch = make_batch()
    batch = replace(batch, samples=batch.samples + 20)
    model = make_model(UnReMixLoss(components=[recorded_ids(seen)], mix="fixed", temperature=1.0))
    model(batch)
    assert seen == [batch.samples.tolist()] * 2


@pytest.mark.slow
@pytest.mark.xdist_group("gather")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    reports = processes(2, of_each_process, tmp_path)
    for split, (documents, _) in SPLITS.items():
        for name, make in MODELS.items():
            model = make_model(make(temperature=1.0), output=4)
            loss = model(make_batch(documents))
            expected = {"loss": loss.detach(), **all_gradients_of(loss, model)}
            for report in reports:
                for key, tensor in expected.items():
                    assert_close(report[split, name][key], tensor, 1e-8)


# From the command line.


COMMON = [
    "--accelerator", "cpu", "--threads", "1", "--batch_size", "20", "--sentence.words", "8",
    "--sentence.units", "6", "--progress", "false",
]  # fmt: skip
THINGS = ("cats", "dogs", "ships", "stars", "trees")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents about one thing each, of one to six sentences."""
    lines = []
    for number in range(30):
        thing = THINGS[number % 5]
        for row in range(1 + number % 6):
            lines.append(f"The {thing} of day {row} were seen by {number}.")
        lines.append("")
    lines[1:1] = ["The cats and " + "very " * 100 + "old dogs.", "…"]
    file = tmp_path_factory.mktemp("text") / "things.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small TREC in SentEval's layout: what is asked about is what it is labeled by."""
    folder = tmp_path_factory.mktemp("senteval") / "downstream"
    (folder / "TREC").mkdir(parents=True)
    kinds = ("ABBR", "DESC", "ENTY", "HUM", "LOC")
    for name, count in (("train_5500.label", 75), ("TREC_10.label", 25)):
        lines = [
            f"{kinds[number % 5]}:kind What {THINGS[number % 5]} were seen by {number} ?\n"
            for number in range(count)
        ]
        (folder / "TREC" / name).write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def trained(text: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    runs = tmp_path_factory.mktemp("runs")
    arguments = [
        "--data", str(text), "--runs", str(runs), "--name", "run", "--epochs", "2",
        "--log_every", "2", "--sentence.senteval", str(tasks), "--sentence.tasks", "[TREC]",
    ]  # fmt: skip
    assert main(["train", "--domain", "sentence", *arguments, *COMMON]) == 0
    return unremix.load(runs / "run")


def test_train_on_a_text_file(trained: Run) -> None:
    card = trained.evaluation
    assert card is not None
    assert card["recipe"] == "quickthought-unremix"
    assert card["data"] == "things"
    assert card["train_sentences"] == 107
    assert card["documents"] == 30
    assert set(card["results"]) == {"trained", "untrained"}
    for result in card["results"].values():
        assert result["features"] == 12
        assert result["TREC"]["accuracy"]["count"] == 25
    assert "TREC" in card["protocol"]["test"]
    assert (trained.path / "report.html").exists()


def test_rows_within_an_epoch(trained: Run) -> None:
    """107 sentences make 6 steps, and every second one a row, with the mean loss since."""
    rows = trained.metrics()
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert [row["epoch"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    assert [row["step"] for row in rows if "effective_rank" in row] == [6, 12]
    for row in rows:
        shares = [value for name, value in row.items() if name.startswith("mix_")]
        assert sum(shares) == pytest.approx(1)
        assert math.isfinite(row["loss"])


def test_a_row_holds_the_mean_loss_since_the_row_before(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    stepping = QuickThought.forward

    def watched(self: QuickThought, batch: Batch) -> Tensor:
        losses.append(float((loss := stepping(self, batch)).detach()))
        return loss

    monkeypatch.setattr(QuickThought, "forward", watched)
    unremix.train(replace(trained.config, runs=str(tmp_path), log_every=4, progress=False))
    rows = unremix.load(tmp_path / "run").metrics()
    parts = [losses[:4], losses[4:6], losses[6:10], losses[10:]]
    assert [row["loss"] for row in rows] == pytest.approx([sum(p) / len(p) for p in parts])


def test_evaluate_embed_and_report(
    trained: Run, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.path, run)
    before = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").unlink()
    (run / "report.html").unlink()
    assert main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text())["results"] == before["results"]
    assert "TREC" in capsys.readouterr().out
    assert main(["embed", str(run), "-o", str(tmp_path / "e.npz")]) == 0
    lines = [line for line in text.read_text().splitlines() if line]
    with np.load(tmp_path / "e.npz", allow_pickle=False) as arrays:
        assert arrays["embeddings"].shape == (107, 12)
        assert arrays["embeddings"].dtype == np.float32
        assert "labels" not in arrays
        names = arrays["names"].tolist()
        found = unremix.load(run).embed(lines)
        assert_close(torch.from_numpy(arrays["embeddings"]), found, 1e-5)
    long = next(line for line in lines if len(line) > NAME_LENGTH)
    assert names == [line if line != long else long[: NAME_LENGTH - 1] + "…" for line in lines]
    assert main(["report", str(run)]) == 0
    assert "quickthought-unremix" in (run / "report.html").read_text()


def test_embed_another_text(trained: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("The cats were seen.\n\nUnheard-of words!\n")
    out = tmp_path / "other.parquet"
    pytest.importorskip("pyarrow.parquet")
    assert main(["embed", str(trained.path), "--data", str(other), "-o", str(out)]) == 0
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out)
    assert table["names"].to_pylist() == ["The cats were seen.", "Unheard-of words!"]
    expected = unremix.load(trained.path).embed(["The cats were seen.", "Unheard-of words!"])
    assert_close(torch.tensor(table["embeddings"].to_pylist()), expected, 1e-5)


def test_embed_takes_sentences_only(trained: Run) -> None:
    with pytest.raises(ValueError, match=r"got one string; embed\(\['one'\]"):
        trained.embed("one")
    with pytest.raises(ValueError, match="expected sentences, got 1"):
        trained.embed([1, 2])
    with pytest.raises(ValueError, match="list of sentences, got int 3"):
        trained.embed(3)
    assert trained.embed([]).shape == (0, 12)
    assert str(trained.path) in repr(trained)
    assert "TREC" in repr(trained)


def test_another_text_is_measured_by_itself(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.path, run)
    other = tmp_path / "other.txt"
    other.write_text("The cats were seen.\nSo were the ships.\n")
    assert main(["evaluate", str(run), "--data", str(other)]) == 0
    card = json.loads((run / "evaluation-other.json").read_text())
    assert card["results"] is None  # SentEval's sentences are not of this text
    assert 1 <= card["health"]["effective_rank"] <= 2  # of two sentences
    shown = capsys.readouterr().out.replace("\n", "")
    assert "SentEval" in shown
    assert "evaluation-other.json" in shown
    assert "report.html" not in shown


def test_lines_in_a_log(trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(trained.config, runs=str(tmp_path), checkpoint_every=3, progress=True)
    with crash_at(3):
        unremix.train(config)
    shown = capsys.readouterr().out
    assert "step 2/12 · loss" in shown
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "step 3 of 12" in " ".join(shown.split())
    assert "step 2/12" not in shown
    assert "step 8/12 · loss" in shown


@pytest.mark.parametrize("steps", [3, 9])
def test_a_crash_changes_nothing(steps: int, trained: Run, tmp_path: Path) -> None:
    config = replace(trained.config, runs=str(tmp_path), checkpoint_every=3, progress=False)
    with crash_at(steps):
        unremix.train(config)
    assert main(["train", "--resume", str(tmp_path / "run"), "--progress", "false"]) == 0
    resumed = unremix.load(tmp_path / "run")
    one, other = trained.load_checkpoint(), resumed.load_checkpoint()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    assert resumed.metrics() == trained.metrics()
    assert resumed.evaluation is not None
    assert trained.evaluation is not None
    assert resumed.evaluation["results"] == trained.evaluation["results"]


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("quickthought", ["--sentence.encoder", "bow", "--quickthought.reach", "2"]),
        ("quickthought-hcl", ["--sentence.encoder", "transformer"]),
        ("quickthought-unremix", ["--sentence.output", "5", "--sentence.bidirectional", "true"]),
    ],
)
def test_the_embedded_text(recipe: str, options: list[str], tmp_path: Path) -> None:
    """Other recipes and encoders on a part of the Python documentation, which has topics."""
    arguments = ["train", "--recipe", recipe, "--limit", "200", "--sentence.senteval", "none"]
    name = ["--runs", str(tmp_path), "--name", "run", "--epochs", "1"]
    assert main([*arguments, *options, *name, *COMMON]) == 0
    run = unremix.load(tmp_path / "run")
    assert math.isfinite(run.metrics()[-1]["loss"])
    assert run.evaluation is not None
    assert run.evaluation["data"] == "pydocs"
    assert run.evaluation["results"]["trained"]["knn"]["count"] == 200
    assert main(["embed", str(tmp_path / "run")]) == 0
    with np.load(tmp_path / "run" / "embeddings.npz") as arrays:
        assert arrays["labels"].shape == (200,)
        assert len(set(arrays["labels"].tolist())) > 1


def test_neither_topics_nor_tasks(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--domain", "sentence", "--data", str(text), "--runs", str(tmp_path)]
    assert main([*arguments, "--name", "run", "--sentence.senteval", "none", *COMMON]) == 0
    run = unremix.load(tmp_path / "run")
    assert run.evaluation is not None
    assert run.evaluation["results"] is None
    assert "left out, as asked" in run.evaluation["note"]
    assert "effective rank" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("warm_runs")
def test_compare(text: Path, tasks: Path, tmp_path: Path) -> None:
    arguments = [
        "compare", "--recipes", "quickthought,quickthought-unremix", "--seeds", "1",
        "--data", str(text), "--output", str(tmp_path / "c"), "--accelerator", "cpu",
        "--batch_size", "20", "--sentence.words", "8", "--sentence.units", "6", "--jobs", "1",
        "--sentence.senteval", str(tasks), "--sentence.tasks", "[TREC]", "--progress", "false",
    ]  # fmt: skip
    assert main(arguments) == 0
    table = (tmp_path / "c" / "table.md").read_text()
    assert "quickthought-unremix" in table
    assert "TREC accuracy − quickthought" in table


@pytest.mark.slow
def test_two_processes_train_as_one(text: Path, tmp_path: Path) -> None:
    """Each holds half of every batch; neighbors meet across them."""
    for name, devices in (("one", "1"), ("two", "2")):
        arguments = [
            "--recipe", "quickthought-unremix", "--data", str(text), "--runs", str(tmp_path),
            "--sentence.senteval", "none", "--precision", "64-true", "--name", name,
            "--devices", devices, *COMMON,
        ]  # fmt: skip
        # A process of its own: the second one is started by the same command line.
        subprocess.run([sys.executable, "-m", "unremix", "train", *arguments], check=True)
    one, two = (unremix.load(tmp_path / name) for name in ("one", "two"))
    for name, tensor in one.load_checkpoint()["model"].items():
        assert_close(two.load_checkpoint()["model"][name], tensor, 1e-8)
    assert two.metrics()[-1]["loss"] == pytest.approx(one.metrics()[-1]["loss"])


def test_word_vectors(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = tmp_path / "vectors.txt"
    rows = [f"{word} " + " ".join([str(value)] * 8) for word, value in (("cats", 3), ("the", -2))]
    vectors.write_text("\n".join(rows))
    arguments = ["train", "--domain", "sentence", "--data", str(text), "--runs", str(tmp_path)]
    further = ["--epochs", "0", "--sentence.senteval", "none", *COMMON]
    words = ["--sentence.word_vectors", str(vectors)]
    assert main([*arguments, *words, "--name", "with", *further]) == 0
    assert "has 2 of the 46 words" in (tmp_path / "with" / "warnings.txt").read_text()
    assert main([*arguments, *words, *further, "--sentence.words", "4"]) == 1
    assert "got 8; add --sentence.words 8" in capsys.readouterr().err
    assert main([*arguments, "--name", "without", *further]) == 0
    given_, drawn = (unremix.load(tmp_path / name) for name in ("with", "without"))
    known = given_.shape.vocabulary.words
    for one in ("first", "second"):
        first, other = (getattr(run.encoder(), one).words.weight for run in (given_, drawn))
        assert torch.equal(first[known.index("cats")], torch.full((8,), 3.0))
        assert torch.equal(first[known.index("the")], torch.full((8,), -2.0))
        assert torch.equal(first[known.index("dogs")], other[known.index("dogs")])


def test_further_words(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that training never saw differs from other unknown words if a file has it."""
    vectors = tmp_path / "vectors.txt"
    known = ["cats", "the", "dogs", "zeppelin"]
    vectors.write_text(
        "".join(f"{word} {number} {number**2}\n" for number, word in enumerate(known))
    )
    arguments = ["train", "--domain", "sentence", "--data", str(text), "--runs", str(tmp_path)]
    further = ["--epochs", "0", "--sentence.senteval", "none", *COMMON]
    assert main([*arguments, "--name", "with", "--sentence.expand", str(vectors), *further]) == 0
    assert main([*arguments, "--name", "without", *further]) == 0
    wide, narrow = (unremix.load(tmp_path / name) for name in ("with", "without"))
    sentences = ["the cats", "the zeppelin", "the quux"]
    assert_close(wide.embed(sentences)[[0, 2]], narrow.embed(sentences)[[0, 2]], 1e-5)
    assert torch.equal(narrow.embed(sentences)[1], narrow.embed(sentences)[2])
    assert not torch.allclose(wide.embed(sentences)[1], wide.embed(sentences)[2])
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences))
    assert main(["embed", str(tmp_path / "with"), "--data", str(other)]) == 0
    with np.load(tmp_path / "with" / "embeddings.npz") as arrays:
        assert_close(torch.from_numpy(arrays["embeddings"]), wide.embed(sentences), 1e-5)
    vectors.write_text("cats 1 2\n")
    assert main([*arguments, "--name", "few", "--sentence.expand", str(vectors), *further]) == 1
    assert "words in both tables, got 1" in capsys.readouterr().err


BAD: list[tuple[list[str], str]] = [
    (["--sentence.expand", "no-such-file"], "no-such-file"),
    (["--data", "no-such-text"], "no-such-text"),
    (["--recipe", "simclr", "--domain", "sentence"], "sentence data"),
    (["--chunk", "4"], "chunk"),
    (["--log_every", "0"], "log_every"),
    (["--recipe", "quickthought", "--loss.hardness", "2"], "would do nothing"),
    (["--loss.class_prior", "0.1"], "class_prior=0 on Quick-Thought"),
    (["--loss.gradient", "nt-xent"], "pseudo-label"),
    (["--quickthought.reach", "0"], "reach to be at least 1"),
    (["--sentence.encoder", "transformer", "--sentence.words", "7"], "heads that divide"),
    (["--sentence.word_vectors", "none.txt"], "none.txt"),
    (["--sentence.senteval", "no-such-folder"], "no-such-folder"),
    (["--sentence.tasks", "[TREC,STS]"], "STS"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_options_are_told_in_one_line(
    arguments: list[str], message: str, text: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    defaults = {"--data": str(text), "--recipe": "quickthought-unremix"}
    given_ = [word for name in defaults if name not in arguments for word in (name, defaults[name])]
    runs = tmp_path / "runs"
    assert main(["train", *COMMON, *given_, *arguments, "--runs", str(runs)]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    assert not [path for path in runs.glob("*") if path.name != ".cache"]


BAD_TEXTS = {
    "empty": ("", "at least one sentence"),
    "blank": (" \n\n\t\n", "at least one sentence"),
    "one sentence each": ("One here.\n\nOne there.\n\nOne more.\n", "sentences with neighbors"),
    "two sentences": ("One here.\nOne there.\n", "batch_size"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_texts_are_told_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = BAD_TEXTS[name]
    file = tmp_path / "bad.txt"
    file.write_text(content)
    runs = tmp_path / "runs"
    arguments = ["train", "--domain", "sentence", "--data", str(file), "--runs", str(runs)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*files without text")
        assert main([*arguments, *COMMON]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not [path for path in runs.glob("*") if path.name != ".cache"]


def test_a_text_that_changed_is_told(trained: Run, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "changing.txt"
    file.write_text("The cats.\nThe dogs.\n")
    corpus = find_domain("sentence").load_for(trained, str(file))
    assert corpus.names == ["The cats.", "The dogs."]
    file.write_text("The cats.\n")
    with pytest.raises(ValueError, match="has changed"):
        _ = corpus.names


# Options.


def test_options_reach_the_model() -> None:
    config = TrainConfig(
        recipe="quickthought-unremix",
        loss=dict(scaling="zscore-exp", hardness=2.0),
        quickthought=dict(reach=3, mask_repeats=False),
        sentence=SentenceOptions(words=4, units=6, output=5),
    )
    model = build_model(config, SentenceShape(("the", "cat"), (2, 1), 0))
    assert isinstance(model, QuickThought)
    assert (model.options.reach, model.options.mask_repeats) == (3, False)
    assert model.loss.weighting.sharpness == 2.0
    assert model.loss.temperature == 1.0
    assert model.encoder.features == 10
    assert set(model.mix) == {"uncertainty", "similarity", "representativeness"}
    assert model.undecayed() == list(model.loss.parameters())
    f, g = model.encoder.first, model.encoder.second
    assert isinstance(f.words, nn.Embedding)
    assert isinstance(g.words, nn.Embedding)
    assert f.words.weight.shape == (4, 4)  # padding and unknown as well
    assert not torch.equal(f.words.weight, g.words.weight)


def test_defaults_of_sentences() -> None:
    config = TrainConfig(recipe="quickthought")
    assert (config.domain, config.clip, config.lr, config.batch_size, config.log_every) == (
        "sentence", 5.0, 5e-3, 400, 50,
    )  # fmt: skip
    assert (config.optimizer, config.data, config.epochs) == ("adam", "pydocs", 30)
    assert TrainConfig(recipe="quickthought", data="books", clip=1.0).epochs == 1
    assert TrainConfig(recipe="quickthought", clip=1.0).clip == 1.0
    assert TrainConfig().clip is None
    assert TrainConfig().log_every is None


def test_gradients_are_clipped(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is too long is shortened to the norm asked for."""
    norms = []

    def watch(self: QuickThought) -> None:
        parts = [
            parameter.grad.norm() for parameter in self.parameters() if parameter.grad is not None
        ]
        norms.append(float(torch.stack(parts).norm()))

    monkeypatch.setattr(QuickThought, "after_step", watch)
    config = replace(
        trained.config, runs=str(tmp_path), clip=1e-5, epochs=1, progress=False,
        sentence=replace(trained.config.sentence, senteval="none"),
    )  # fmt: skip
    unremix.train(config)
    assert norms == pytest.approx([1e-5] * 6, rel=1e-2)
