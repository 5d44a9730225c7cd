"""SimCSE on encoders of our own: views, batches, loss, runs that resume, and what they leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import unremix
from unremix.domains.options import TrainConfig
from unremix.domains.sentence.corpus import SentenceBatch
from unremix.domains.sentence.model import shape_from
from unremix.domains.sentence.simcse import SingleEncoder, masked
from unremix.domains.sentence.tokens import Vocabulary
from unremix.frameworks.randomness import keys
from unremix.report.sources import open_source

SMALL: dict[str, Any] = {
    "recipe": "simcse-unremix", "limit": 120, "epochs": 2, "batch_size": 16, "threads": 1,
    "progress": False, "accelerator": "cpu",
    "sentence": {"encoder": "bow", "words": 8, "senteval": "none"},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unremix.Run:
    return unremix.train(runs=str(tmp_path_factory.mktemp("runs")), name="whole", **SMALL)


def batch_of(lengths: list[int]) -> SentenceBatch:
    rows = [torch.arange(2, 2 + length) for length in lengths]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    zeros = torch.zeros(len(lengths), dtype=torch.long)
    return SentenceBatch(tokens, torch.tensor(lengths), zeros, zeros)


def test_masks_take_their_share_of_words_and_never_all() -> None:
    batch, words = batch_of([400, 1, 30]), Vocabulary([f"w{n}" for n in range(500)])
    view = masked(batch, keys(0, 0, torch.arange(3), 0), 0.25, words)
    changed = view.tokens != batch.tokens
    assert (view.tokens[changed] == words.mask).all()
    assert abs(float(changed[0].float().mean()) - 0.25) < 0.06
    assert not changed[1].any()
    assert not changed[2, 30:].any()
    other = masked(batch, keys(0, 0, torch.arange(3), 1), 0.25, words)
    assert (view.tokens != other.tokens).any()
    alone = masked(batch_of([30]), keys(0, 0, torch.tensor([2]), 0), 0.25, words)
    assert alone.tokens[0].equal(view.tokens[2, :30])  # a view depends on its sample alone


class Dropping(nn.Module):
    """Embeds words and drops some of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop, self.features = nn.Embedding(600, 16), nn.Dropout(0.5), 16

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.drop(self.table(tokens)).mean(1)
        return embedded


def test_dropout_follows_its_seed_in_any_mode_and_leaves_no_trace() -> None:
    encoder, batch = SingleEncoder(Dropping()), batch_of([5, 7])
    plain = encoder.eval()(batch.tokens, batch.lengths)
    before = torch.random.get_rng_state()
    views = [
        encoder.train(mode)(replace(batch, seed=seed))
        for mode, seed in ((True, 1), (False, 1), (True, 2), (True, None))
    ]
    assert torch.random.get_rng_state().equal(before)
    assert views[0].equal(views[1])
    assert not views[0].equal(views[2])
    assert views[3].equal(plain)
    assert encoder.inner.drop.training


def test_the_loss_of_simcse_is_its_cross_entropy() -> None:
    config = TrainConfig(**{**SMALL, "recipe": "simcse"})
    loss = config.composition().make_loss()
    assert loss is not None
    z0, z1 = torch.randn(2, 6, 5, dtype=torch.float64)
    scores = normalize(z0, dim=1) @ normalize(z1, dim=1).T / 0.05
    # The second views are the anchors of our one-way layout.
    expected = {float(cross_entropy(one, torch.arange(6))) for one in (scores, scores.T)}
    assert min(abs(float(loss(z0, z1)) - one) for one in expected) < 1e-9


def test_a_run_resumes_exports_and_embeds_alike(run: unremix.Run, tmp_path: Path) -> None:
    assert run.evaluation is not None
    assert (run.path / "report.html").exists()
    assert run.shape.single
    halves = unremix.train(runs=str(tmp_path), name="halves", **{**SMALL, "epochs": 1})
    halves = unremix.train(resume=str(halves.path), epochs=2, progress=False)
    texts = ["The import system is described here.", "A list is a sequence."]
    expected = unremix.load(run.path).embed(texts)
    assert expected.shape == (2, 8)
    assert halves.embed(texts).equal(expected)
    from unremix.training.export import export_encoder

    file = export_encoder(run.path, "safetensors", tmp_path / "encoder.safetensors").path
    assert unremix.load_exported(file).embed(texts).equal(expected)
    untrained = run.encoder(trained=False)
    assert not untrained.inner.words.weight.equal(run.encoder().inner.words.weight)


def test_rows_of_a_table_are_embedded_with_their_topics(run: unremix.Run, tmp_path: Path) -> None:
    table = tmp_path / "mail.csv"
    lines = [f"{'import a module' if n % 2 else 'a list of items'} {n},{n % 2}" for n in range(12)]
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    source = open_source(str(run.path), data=str(table))
    assert source.labels == [str(n % 2) for n in range(12)]
    assert source.names[3] == "import a module 3"
    assert source.features.embeddings.equal(run.embed(source.names))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentence": {"encoder": "pretrained"}}, "--encoder NAME"),
        ({"sentence": {"encoder": "bow", "views": "dropout"}}, "use mask"),
        ({"sentence": {"encoder": "bow", "output": 4}}, "two encoders"),
        ({"recipe": "quickthought", "encoder": "transformers:x"}, "simcse"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        unremix.train(runs=str(tmp_path), **{**SMALL, **options})


@pytest.mark.parametrize("wrong", [{"pooling": "sum"}, {"max_length": 0}, {"lower": "yes"}])
def test_a_shape_that_nothing_wrote_is_refused(wrong: dict[str, Any]) -> None:
    values = {"tokenizer": "{}", "network": "{}", "pooling": "cls", "normalize": True,
              "max_length": 8}  # fmt: skip
    assert shape_from(values).single
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        shape_from({**values, **wrong})
