"""Mining for sentence-transformers, against that library's own function."""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
datasets = pytest.importorskip("datasets", reason="needs datasets")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.util import mine_hard_negatives as theirs  # noqa: E402

from unremix.adapters.sentence_transformers import mine_hard_negatives as ours  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Letters(nn.Module):
    """Embeds a text by a fixed random projection of its letters and pairs of letters."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(4096, 24, generator=generator))
        self.encoded = 0

    def preprocess(self, texts: list[str], **_: Any) -> dict[str, Tensor]:
        self.encoded += len(texts)
        rows = torch.zeros(len(texts), 4096)
        for number, text in enumerate(texts):
            for first, second in pairwise(text):
                rows[number, (ord(first) * 61 + ord(second)) % 4096] += 1
        return {"counts": rows}

    tokenize = preprocess

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        return {"sentence_embedding": features["counts"] @ self.table}

    def get_sentence_embedding_dimension(self) -> int:
        return 24

    get_embedding_dimension = get_sentence_embedding_dimension

    def save(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


@pytest.fixture
def model() -> Any:
    return SentenceTransformer(modules=[Letters()], device="cpu")


WORDS = [
    "river",
    "stone",
    "cloud",
    "maple",
    "ember",
    "frost",
    "lantern",
    "harbor",
    "velvet",
    "copper",
    "meadow",
    "thunder",
]


def pairs() -> Any:
    """Questions and answers that share words; every fifth question has two answers."""
    generator = torch.Generator().manual_seed(1)
    rows: dict[str, list[str]] = {"query": [], "answer": []}
    for number in range(60):
        picked = [WORDS[i] for i in torch.randint(9, (5,), generator=generator).tolist()]
        question = f"what about {' '.join(picked)} {number}?"
        for answer in range(1 + (number % 5 == 0)):
            rows["query"].append(question)
            rows["answer"].append(f"{' '.join(picked[answer:])} is number {number} of {answer}.")
    return datasets.Dataset.from_dict(rows)


COMMON: dict[str, Any] = {"num_negatives": 3, "verbose": False, "sampling_strategy": "top"}


@pytest.mark.parametrize(
    "options",
    [
        {"relative_margin": 0.05},
        {"relative_margin": None, "absolute_margin": 0.1},
        {"relative_margin": 0.0, "max_score": 0.8, "min_score": 0.1},
        {"relative_margin": None, "range_min": 4, "range_max": 40},
        {"relative_margin": None, "corpus": [f"{word} and more" for word in WORDS]},
        {"relative_margin": None, "max_score": -0.99},  # nothing is left
    ],
)
@pytest.mark.parametrize("output_format", ["triplet", "n-tuple", "labeled-pair", "labeled-list"])
@pytest.mark.parametrize("output_scores", [False, True])
def test_top_equals_the_library(
    model: Any, options: dict[str, Any], output_format: str, output_scores: bool
) -> None:
    settings = COMMON | options | {"output_format": output_format, "output_scores": output_scores}
    expected = theirs(pairs(), model, **({"range_max": 60} | settings))
    found = ours(pairs(), model, duplicate_threshold=2, **settings)
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        if name in ("score", "scores"):
            for one, other in zip(found[name], expected[name], strict=True):
                assert one == pytest.approx(other, abs=1e-5)
        else:
            assert list(found[name]) == list(expected[name])


class Overlap:
    """A cross-encoder of a kind: shared letters beside a number of the pair, so that none tie."""

    def predict(self, pairs: list[tuple[str, str]], **options: Any) -> Any:
        hashed = [int.from_bytes(f"{a}|{b}".encode(), "big") % 9973 / 9973 for a, b in pairs]
        shared = [len(set(a) & set(b)) for a, b in pairs]
        scores = torch.tensor(shared) - 10 + torch.tensor(hashed)
        return scores if options.get("convert_to_tensor") else scores.numpy()


def single_pairs() -> Any:
    """A positive for each anchor, among its most similar texts."""
    rows = pairs()
    return rows.select([n for n in range(len(rows)) if rows["answer"][n].endswith("of 0.")])


@pytest.mark.parametrize(
    "options",
    [
        {"relative_margin": 0.05, "range_max": 59},
        {"absolute_margin": 1.0, "relative_margin": None, "range_max": 59, "range_min": 2},
        {"relative_margin": None, "max_score": 2.0, "min_score": -4.0, "range_max": 59},
    ],
)
@pytest.mark.parametrize("output_format", ["triplet", "labeled-list"])
def test_a_cross_encoder_is_used_as_the_library_uses_it(
    model: Any, options: dict[str, Any], output_format: str
) -> None:
    settings = COMMON | options | {"output_format": output_format, "output_scores": True}
    encoder: Any = Overlap()
    expected = theirs(single_pairs(), model, cross_encoder=encoder, **settings)
    found = ours(single_pairs(), model, cross_encoder=encoder, duplicate_threshold=2, **settings)
    assert len(expected) > 0
    for name in expected.column_names:
        if name == "scores":
            for one, other in zip(found[name], expected[name], strict=True):
                assert one == pytest.approx(other, abs=1e-4)
        else:
            assert list(found[name]) == list(expected[name])
    plain = ours(single_pairs(), model, duplicate_threshold=2, **settings)
    assert list(plain["scores"]) != list(found["scores"])


def test_positives_are_included_as_the_library_does(model: Any) -> None:
    settings = COMMON | {"num_negatives": 10, "include_positives": True, "range_max": 40}
    expected = theirs(pairs(), model, **settings)
    found = ours(pairs(), model, **settings)
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        assert list(found[name]) == list(expected[name])
    assert any(row["answer"] == row["negative_1"] for row in found)


def test_the_window_ends_where_the_library_ends_it(model: Any) -> None:
    """A positive that is found takes a place beyond the last rank in both."""
    settings = COMMON | {"num_negatives": 6, "relative_margin": 0.3, "range_max": 12}
    expected = theirs(single_pairs(), model, **settings)
    found = ours(single_pairs(), model, duplicate_threshold=2, **settings)
    assert 0 < len(expected) < 6 * len(single_pairs())  # the margin leaves too few of 12
    assert list(found["negative"]) == list(expected["negative"])


def test_importance_is_the_default_and_returns_no_positive(model: Any) -> None:
    found = ours(pairs(), model, num_negatives=4, verbose=False)
    top = ours(pairs(), model, num_negatives=4, verbose=False, sampling_strategy="top")
    positives: dict[str, set[str]] = {}
    for row in pairs():
        positives.setdefault(row["query"], set()).add(row["answer"])
    assert all(row["negative"] not in positives[row["query"]] for row in found)
    assert list(found["negative"]) != list(top["negative"])
    assert len(found) == 4 * len(pairs())


def test_embeddings_are_kept_until_the_model_changes(model: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"verbose": False, "cache_folder": str(tmp_path)}
    first = ours(pairs(), model, **settings)
    letters = model[0]
    before = letters.encoded
    again = ours(pairs(), model, **settings)
    assert letters.encoded == before
    assert list(first["negative"]) == list(again["negative"])
    with torch.no_grad():
        letters.table += 0.5
    ours(pairs(), model, **settings)
    assert letters.encoded > before
    before = letters.encoded
    for name, value in {"truncate_dim": 12, "prompts": {"query": "?", "document": ""}}.items():
        setattr(model, name, value)
        ours(pairs(), model, **settings)
        assert letters.encoded > before
        before = letters.encoded


@pytest.mark.parametrize("use_faiss", [True, "ivf"])
def test_faiss_serves(model: Any, use_faiss: Any) -> None:
    pytest.importorskip("faiss")
    exact = ours(pairs(), model, verbose=False)
    found = ours(pairs(), model, verbose=False, use_faiss=use_faiss)
    assert len(found) == len(exact) == 3 * len(pairs())
    if use_faiss is True:
        assert list(found["negative"]) == list(exact["negative"])


def test_mistakes_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="column 'question', got query, answer"):
        ours(pairs(), model, "question")
    with pytest.raises(ValueError, match="expected output_format to be one of"):
        ours(pairs(), model, output_format="tuple")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"range_max .* at least 5, got 4; .*range_min"):
        ours(pairs(), model, range_min=2, range_max=4)
    with pytest.raises(ValueError, match="num_negatives to be a whole number of at least 1, got 0"):
        ours(pairs(), model, num_negatives=0)
    with pytest.raises(ValueError, match="two columns, got 0 rows"):
        ours(pairs().select([]), model)


def test_several_processes_embed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's pool is asked for, used and ended; its processes would need its torchvision."""
    seen: list[Any] = []
    alone = {name: getattr(model, name) for name in ("encode_query", "encode_document")}

    def start(target_devices: list[str] | None = None) -> dict[str, Any]:
        seen.append(target_devices)
        return {"pool": True}

    def encode(name: str, texts: list[str], pool: Any = None, **options: Any) -> Any:
        seen.append((name, pool))
        return alone[name](texts, **options)

    expected = ours(pairs(), model, verbose=False)
    monkeypatch.setattr(model, "start_multi_process_pool", start)
    monkeypatch.setattr(model, "stop_multi_process_pool", seen.append)
    for name in alone:
        monkeypatch.setattr(model, name, partial(encode, name))
    pool = {"pool": True}
    for given, devices in ((True, None), (["cpu", "cpu"], ["cpu", "cpu"])):
        seen.clear()
        found = ours(pairs(), model, use_multi_process=given, verbose=False)
        assert found[:] == expected[:]
        query, document = [devices, ("encode_query", pool), pool], ("encode_document", pool)
        assert seen == [*query, devices, document, pool]
