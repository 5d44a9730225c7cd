"""Mining against plain loops: the pool, the scores, the choice, and what is never returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from building import draw_rows as draw
from numpy.typing import NDArray
from torch import Tensor

import unremix
from unremix.mining import mine as module
from unremix.mining.mine import Mined, mine_hard_negatives

Array = NDArray[np.float32]


def unit(rows: Array) -> Array:
    found: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def problem(seed: int = 0) -> tuple[Array, Array, list[list[int]]]:
    """Anchors near their positives in a small corpus."""
    corpus = draw(200, seed=seed)
    anchors = corpus[:12] + 0.6 * draw(12, seed=seed + 1)
    return anchors, corpus, [[n] if n % 3 else [n, n + 40] for n in range(12)]


def output_gradient(view: Array, classes: Array, temperature: float) -> Tensor:
    """δ by autograd: cross-entropy over the classes against the most probable one."""
    z = torch.tensor(view, dtype=torch.float64, requires_grad=True)
    logits = torch.tensor(classes, dtype=torch.float64) @ (z / z.norm()) / temperature
    loss = torch.nn.functional.cross_entropy(logits[None], logits.argmax()[None])
    (gradient,) = torch.autograd.grad(loss, z)
    return gradient


def scaled(values: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = (values - values.min()) / (values.max() - values.min())
    return found


def mine_by_hand(
    anchor: Array,
    corpus: Array,
    positives: list[int],
    k: int,
    pool_size: int,
    mix: tuple[float, float, float],
    temperature: float,
) -> tuple[list[int], list[float]]:
    """One anchor, step by step as the documentation says it."""
    f, rows = unit(anchor[None])[0], unit(corpus)
    bound = min(float(f @ rows[p]) for p in positives)
    bound -= 0.05 * abs(bound)
    order = np.argsort(-(rows @ f), kind="stable")
    pool = [j for j in order if j not in positives and f @ rows[j] <= bound][:pool_size]
    pool = [j for j in pool if max(rows[j] @ rows[p] for p in positives) < 0.95]
    own = output_gradient(f, rows[pool], temperature)
    u, s, r = np.empty(len(pool)), np.empty(len(pool)), np.empty(len(pool))
    for place, j in enumerate(pool):
        others = [other for other in pool if other != j]
        u[place] = float(own @ output_gradient(rows[j], rows[others], temperature))
        s[place] = f @ rows[j]
        r[place] = np.mean([1 - rows[j] @ rows[other] for other in others])
    fixed = mix[0] * scaled(u) + mix[1] * scaled(s)
    chosen: list[int] = []
    values = []
    for _ in range(k):
        left = [place for place in range(len(pool)) if place not in chosen]
        if chosen:
            r = np.array([np.mean([1 - rows[j] @ rows[pool[c]] for c in chosen]) for j in pool])
        total = fixed[left] + mix[2] * scaled(r[left])
        chosen.append(left[int(np.argmax(total))])
        values.append(float(total.max()))
    return [int(pool[place]) for place in chosen], values


@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("mix", [(1 / 3, 1 / 3, 1 / 3), (0.7, 0.1, 0.2)])
def test_equals_plain_loops(temperature: float, mix: tuple[float, float, float]) -> None:
    anchors, corpus, positives = problem()
    mined = mine_hard_negatives(
        anchors, corpus, positives, 4, pool=20, mix=mix, posterior_temperature=temperature
    )
    for number, anchor in enumerate(anchors):
        rows, values = mine_by_hand(anchor, corpus, positives[number], 4, 20, mix, temperature)
        assert mined.indices[number].tolist() == rows
        np.testing.assert_allclose(mined.scores[number], values, atol=2e-4)
    cosine = np.einsum("ad,akd->ak", unit(anchors), unit(corpus)[mined.indices])
    np.testing.assert_allclose(mined.similarity, cosine, atol=1e-6)


def test_similarity_alone_is_the_top_of_the_pool() -> None:
    anchors, corpus, positives = problem()
    alone = mine_hard_negatives(anchors, corpus, positives, 5, components=["similarity"])
    top = mine_hard_negatives(anchors, corpus, positives, 5, sampling="top")
    assert (alone.indices == top.indices).all()
    assert (np.diff(top.similarity) <= 0).all()
    assert (top.scores == top.similarity).all()
    assert np.isnan(top.uncertainty).all()


@pytest.mark.parametrize("sampling", ["importance", "top", "random"])
@pytest.mark.parametrize("kind", ["exact", "flat", "ivf", "hnsw"])
def test_what_must_not_be_returned_is_not(sampling: Any, kind: Any) -> None:
    anchors, corpus, positives = problem(seed=5)
    corpus[150] = corpus[3] * 2 + 0.01  # a near-duplicate of a positive of anchor 3
    texts = [f"text {n}" for n in range(200)]
    texts[160], texts[161] = " TEXT  4", "question 5"  # of a positive; of an anchor
    questions = [f"question {n}" for n in range(12)]
    own = np.arange(12) + 100
    mined = mine_hard_negatives(
        anchors,
        corpus,
        positives,
        5,
        anchor_rows=own,
        anchor_texts=questions,
        corpus_texts=texts,
        sampling=sampling,
        index=kind,
        pool=190,
        max_score=0.8,
    )
    if kind == "exact":
        given = {"anchor_texts": np.array(questions), "corpus_texts": np.array(texts)}
        options: dict[str, Any] = {"sampling": sampling, "pool": 190, "max_score": 0.8}
        arrays = mine_hard_negatives(
            anchors, corpus, positives, 5, anchor_rows=own, **given, **options
        )
        assert (arrays.indices == mined.indices).all()
    f, rows = unit(anchors), unit(corpus)
    for number, found in enumerate(mined.indices):
        assert (found >= 0).all()
        assert len(set(found)) == 5
        assert not set(found) & {*positives[number], int(own[number])}
        least = min(float(f[number] @ rows[p]) for p in positives[number])
        highest = min(least - 0.05 * abs(least), 0.8) + 1e-6
        assert (rows[found] @ f[number] <= highest).all()
        assert (rows[found] @ rows[positives[number]].T < 0.95).all()
    assert 160 not in mined.indices[4]
    assert 161 not in mined.indices[5]
    assert mined.left_out["same_text"].tolist() == [0] * 4 + [1, 1] + [0] * 6
    assert mined.left_out["own_row"].tolist() == [1] * 12
    assert mined.left_out["positive"].tolist() == [len(one) for one in positives]
    if kind == "exact":
        least = np.array([min(f[n] @ rows[p] for p in positives[n]) for n in range(12)])
        bound = np.minimum(least - 0.05 * abs(least), 0.8)
        counted = f @ rows.T > bound[:, None]
        counted[np.arange(12), own] = False
        for number in range(12):
            counted[number, positives[number]] = False
        counted[4, 160] = counted[5, 161] = False
        assert mined.left_out["too_similar"].tolist() == counted.sum(1).tolist()


def test_an_anchor_is_not_its_own_negative_in_its_own_corpus() -> None:
    corpus = draw(60)
    mined = mine_hard_negatives(corpus, corpus, [[]] * 60, 3, relative_margin=None)
    assert not (mined.indices == np.arange(60)[:, None]).any()
    assert mined.left_out["own_row"].all()
    assert (mined.positive_similarity == np.inf).all()


def test_the_pool_grows_until_enough_remain() -> None:
    """All but the farthest rows are near-duplicates of the positive, or of each other."""
    generator = np.random.default_rng(0)
    positive = unit(draw(1))[0]
    duplicates = positive + 0.001 * generator.standard_normal((400, 8))
    far = draw(6, seed=9)
    corpus = np.concatenate([positive[None], duplicates, far]).astype(np.float32)
    anchor = unit(positive[None] + 0.1)
    mined = mine_hard_negatives(anchor, corpus, [0], 6, pool=10, relative_margin=None)
    assert sorted(mined.indices[0].tolist()) == list(range(401, 407))
    assert mined.left_out["near_duplicate"] == [400]

    copies = np.concatenate([positive[None], np.tile(far[:1], (300, 1)), far[1:]])
    mined = mine_hard_negatives(anchor, copies, [0], 6, pool=10, relative_margin=None)
    assert sorted(mined.indices[0].tolist()) == [1, *range(301, 306)]
    assert mined.left_out["copy"] == [299]


def test_too_few_are_reported() -> None:
    corpus = unit(draw(30))
    anchors = corpus[:2].copy()
    last = np.argsort(corpus @ anchors[1])[2]  # only two rows are farther from the second anchor
    mined = mine_hard_negatives(anchors, corpus, [[0], [int(last)]], 5, relative_margin=0.0)
    assert mined.found.tolist() == [5, 2]
    assert mined.short.tolist() == [1]
    assert (mined.indices[1, 2:] == -1).all()
    assert np.isnan(mined.scores[1, 2:]).all()
    assert np.isnan(mined.similarity[1, 2:]).all()
    assert "fewer than 5 negatives for 1 anchor" in mined.summary()[-1]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["exact", "flat", "hnsw"])
def test_a_corpus_that_is_too_small_ends_the_search(kind: Any) -> None:
    corpus = draw(5)
    mined = mine_hard_negatives(draw(2, seed=1), corpus, [[], []], 10, index=kind)
    assert [sorted(row) for row in mined.indices[:, :5].tolist()] == [[0, 1, 2, 3, 4]] * 2
    assert mined.short.tolist() == [0, 1]
    skipped = mine_hard_negatives(draw(2, seed=1), corpus, [[], []], 2, skip=4, index=kind)
    assert skipped.found.tolist() == [1, 1]
    copied = mine_hard_negatives(draw(2, seed=1), corpus[[0] * 5], [[], []], 2, index=kind)
    assert copied.found.tolist() == [1, 1]


def test_min_score_and_skip() -> None:
    anchors, corpus, positives = problem()
    top = mine_hard_negatives(anchors, corpus, positives, 8, sampling="top")
    skipped = mine_hard_negatives(anchors, corpus, positives, 5, sampling="top", skip=3)
    assert (skipped.indices == top.indices[:, 3:]).all()
    bounded = mine_hard_negatives(anchors, corpus, positives, 8, sampling="top", min_score=0.4)
    assert (bounded.indices == np.where(top.similarity >= 0.4, top.indices, -1)).all()


@pytest.mark.parametrize("kind", ["exact", "flat"])
def test_the_window_ends_at_a_rank(kind: Any) -> None:
    """Ranks count rows above the margin, but no positives, whatever the pool."""
    if kind != "exact":
        pytest.importorskip("faiss")
    anchors, corpus, positives = problem()
    options: dict[str, Any] = {"sampling": "top", "duplicate_threshold": 2, "index": kind}
    found = mine_hard_negatives(
        anchors, corpus, positives, 5, range_max=12, pool=6, skip=1, max_score=0.7, **options
    )
    products = unit(anchors) @ unit(corpus).T
    bound = np.minimum(found.positive_similarity * np.float32(0.95), 0.7)
    cut = 0
    for number, own in enumerate(positives):
        ranked = [j for j in np.argsort(-products[number], kind="stable") if j not in own]
        kept = [j for j in ranked[:12] if products[number, j] <= bound[number]][1:6]
        cut += len(kept) < 5
        assert found.indices[number].tolist() == kept + [-1] * (5 - len(kept))
    assert 0 < cut < 12


def test_positives_may_be_candidates() -> None:
    """All of the corpus in order, as a reranker is evaluated; nothing is held back."""
    anchors, corpus, positives = problem()
    corpus[199] = corpus[positives[2][0]] * 3  # a near-duplicate of a positive, and a copy of it
    options: dict[str, Any] = {"sampling": "top", "include_positives": True}
    found = mine_hard_negatives(anchors, corpus, positives, 8, **options)
    products = unit(anchors) @ unit(corpus[:199]).T
    assert (found.indices == np.argsort(-products, kind="stable")[:, :8]).all()
    assert found.left_out["positive"].sum() == found.left_out["near_duplicate"].sum() == 0
    named = [f"text {n}" for n in range(200)]
    named[150] = "Anchor 0"
    texts = {"anchor_texts": [f"anchor {n}" for n in range(12)], "corpus_texts": named}
    again = mine_hard_negatives(anchors, corpus, positives, 199, **options, **texts)
    assert set(again.indices[0]) == {*range(199), -1} - {150}  # its own text is no candidate


def letters(pairs: list[tuple[str, str]]) -> Tensor:
    """A cross-encoder of a kind: scores in [-8, 8] that cosines know nothing of."""
    return torch.tensor([8 * np.sin(7 * int(a[1:]) + 3 * int(b[1:])) for a, b in pairs])


@pytest.mark.parametrize("sampling", ["top", "importance"])
def test_a_cross_encoder_scores_the_pool(sampling: Any) -> None:
    anchors, corpus, positives = problem()
    texts = [f"a{n}" for n in range(12)], [f"c{n}" for n in range(200)]
    options: dict[str, Any] = {"anchor_texts": texts[0], "corpus_texts": texts[1], "pool": 40}
    found = mine_hard_negatives(
        anchors, corpus, positives, 4, cross_encoder=letters, sampling=sampling, skip=2,
        relative_margin=0.1, min_score=-7, components=["similarity"], duplicate_threshold=2,
        **options,
    )  # fmt: skip
    products = unit(anchors) @ unit(corpus).T
    for number, own in enumerate(positives):
        score = [float(letters([(f"a{number}", f"c{j}")])[0]) for j in range(200)]
        least = min(score[j] for j in own)
        assert found.positive_similarity[number] == pytest.approx(least)
        ranked = [j for j in np.argsort(-products[number], kind="stable") if j not in own][:40]
        kept = [j for j in ranked if -7 <= score[j] <= least - 0.1 * abs(least)]
        kept = sorted(kept, key=lambda j: -score[j])[2:6]
        assert [j for j in found.indices[number].tolist() if j >= 0] == kept
        assert found.similarity[number, : len(kept)] == pytest.approx([score[j] for j in kept])
    assert 0 < len(found.short) < 12


def test_a_cross_encoder_enters_the_mix() -> None:
    """A score that is twice the cosine leaves the choice as it is; its negative does not."""
    anchors, corpus, positives = problem()
    texts = {
        "anchor_texts": [str(n) for n in range(12)],
        "corpus_texts": list(map(str, range(200))),
    }
    products = unit(anchors) @ unit(corpus).T
    plain = mine_hard_negatives(anchors, corpus, positives, 5, relative_margin=None, **texts)

    def mined(factor: float) -> Mined:
        return mine_hard_negatives(
            anchors, corpus, positives, 5, relative_margin=None, **texts,
            cross_encoder=lambda pairs: [factor * products[int(a), int(b)] for a, b in pairs],
        )  # fmt: skip

    assert (mined(2).indices == plain.indices).all()
    assert (mined(-1).indices != plain.indices).any()


def test_another_cross_encoder_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    anchors, corpus, positives = problem()
    texts = {
        "anchor_texts": [f"a{n}" for n in range(12)],
        "corpus_texts": [f"c{n}" for n in range(200)],
    }
    found = [
        mine_hard_negatives(
            anchors, corpus, positives, 3, relative_margin=None, sampling="top", folder=tmp_path,
            cross_encoder=scorer, **texts,
        ).indices
        for scorer in (letters, lambda pairs: -letters(pairs))
    ]  # fmt: skip
    assert (found[0] != found[1]).any()


def test_random_draws_from_the_pool_by_the_seed() -> None:
    anchors, corpus, positives = problem()
    options = {"sampling": "random", "pool": 20}
    pool = mine_hard_negatives(anchors, corpus, positives, 20, sampling="top", pool=20)
    first = mine_hard_negatives(anchors, corpus, positives, 5, seed=1, **options)
    again = mine_hard_negatives(anchors, corpus, positives, 5, seed=1, **options)
    other = mine_hard_negatives(anchors, corpus, positives, 5, seed=2, **options)
    assert (first.indices == again.indices).all()
    assert (first.indices != other.indices).any()
    for number in range(12):
        assert set(first.indices[number]) <= set(pool.indices[number])
    alone = mine_hard_negatives(anchors[:3], corpus, positives[:3], 5, seed=1, **options)
    assert (alone.indices == first.indices[:3]).all()


def test_tensors_files_and_arrays_give_the_same(tmp_path: Path) -> None:
    anchors, corpus, positives = problem()
    expected = mine_hard_negatives(anchors, corpus, positives, 5)
    np.savez(tmp_path / "corpus.npz", embeddings=corpus)
    np.save(tmp_path / "anchors.npy", anchors)
    paths = mine_hard_negatives(tmp_path / "anchors.npy", tmp_path / "corpus.npz", positives, 5)
    tensors = mine_hard_negatives(torch.tensor(anchors), torch.tensor(corpus), positives, 5)
    padded = np.array([one + [-1] * (2 - len(one)) for one in positives])
    as_array = mine_hard_negatives(anchors * 3, corpus, padded, 5)
    for found in (paths, tensors, as_array):
        assert (found.indices == expected.indices).all()


def same(one: Mined, other: Mined) -> None:
    for name, value in vars(one).items():
        if name == "left_out":
            for reason, counts in value.items():
                assert (counts == other.left_out[reason]).all()
        else:
            np.testing.assert_array_equal(value, getattr(other, name))


@pytest.mark.parametrize("at_once", [1, 5, 64])
def test_blocks_change_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    anchors, corpus, positives = problem()
    expected = mine_hard_negatives(anchors, corpus, positives, 5)
    monkeypatch.setattr(module, "ANCHORS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 50_000)
    found = mine_hard_negatives(anchors, corpus, positives, 5)
    assert (found.indices == expected.indices).all()
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)


def test_an_interrupted_call_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchors, corpus, positives = problem()
    monkeypatch.setattr(module, "ANCHORS_AT_ONCE", 5)
    expected = mine_hard_negatives(anchors, corpus, positives, 5)

    def interrupt(done: float) -> None:
        if done > 0.9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine_hard_negatives(anchors, corpus, positives, 5, folder=tmp_path, advance=interrupt)
    searched: list[int] = []
    original = module.Miner.mine

    def counted(self: Any, part: slice, advance: Any) -> Any:
        searched.append(part.start)
        return original(self, part, advance)

    monkeypatch.setattr(module.Miner, "mine", counted)
    shares: list[float] = []
    found = mine_hard_negatives(
        anchors, corpus, positives, 5, folder=tmp_path, advance=shares.append
    )
    assert searched == [10]
    same(found, expected)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    # Anything else that decides the result starts over.
    mine_hard_negatives(anchors, corpus + 1e-3, positives, 5, folder=tmp_path)
    mine_hard_negatives(anchors, corpus, positives, 5, folder=tmp_path, relative_margin=0.1)
    assert searched == [10, 0, 5, 10, 0, 5, 10]


def test_kept_blocks_are_of_the_same_positives_texts_and_index(tmp_path: Path) -> None:
    anchors, corpus = draw(2, seed=1), draw(30)
    texts = [f"text {row // 2}" for row in range(30)]
    options: dict[str, Any] = {"k": 26, "relative_margin": None, "duplicate_threshold": 2}
    for positives in ([[0, 1], [2]], [[0], [1, 2]]):  # the same rows in other lists
        for more in ({}, {"corpus_texts": texts}):
            expected = mine_hard_negatives(anchors, corpus, positives, **options, **more)
            kept = mine_hard_negatives(
                anchors, corpus, positives, folder=tmp_path, **options, **more
            )
            same(kept, expected)
    mine_hard_negatives(anchors, corpus, [0, 1], index="flat", folder=tmp_path, **options)
    before = len(list(tmp_path.glob("mined-*")))
    mine_hard_negatives(anchors, corpus, [0, 1], folder=tmp_path, **options)
    assert len(list(tmp_path.glob("mined-*"))) == before + 1


def test_equal_and_zero_rows_are_finite() -> None:
    corpus = np.ones((20, 4), dtype=np.float32)
    corpus[10:] = 0
    corpus[0, 1:] = 0
    mined = mine_hard_negatives(corpus[:2], corpus, [0, 0], 3)
    assert np.isfinite(mined.scores[mined.indices >= 0]).all()
    assert (mined.left_out["copy"] > 0).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k to be .*at least 1, got 0"),
        ({"k": 2.5}, "k to be a whole number .*got 2.5"),
        ({"positives": dict.fromkeys(range(12), 0)}, "positives of 12 anchors, got dict"),
        ({"mix": (0.0, 0.0, 0.0)}, r"between 1e-06 and 1e\+06, got "),
        ({"mix": (1e308, 1e308, 1e308)}, r"between 1e-06 and 1e\+06, got "),
        ({"mix": (1e-320, 1e-320, 0.0)}, r"between 1e-06 and 1e\+06, got "),
        ({"pool": 3}, "pool to be .*at least 5, got 3"),
        ({"range_max": 3}, "pool to be .*at least 5, got 3"),
        ({"cross_encoder": letters}, "anchor_texts and corpus_texts with cross_encoder"),
        (
            {
                "cross_encoder": lambda pairs: [[0.0, 1.0]] * len(pairs),
                "anchor_texts": ["a"] * 12,
                "corpus_texts": list(map(str, range(200))),
            },
            r"each of 16 pairs .*, got shape \(16, 2\)",
        ),
        ({"skip": -1}, "skip to be .*at least 0, got -1"),
        ({"positives": [0]}, "positives of 12 anchors, got 1"),
        ({"positives": [[0.5]] * 12}, "row numbers as .*anchor 0"),
        ({"positives": [[300]] * 12}, r"rows 0 … 199 .*, got 300 for anchor 0"),
        ({"corpus": draw(20, 9)}, "anchors and corpus .*, got 8 and 9"),
        ({"components": ["similarty"]}, "did you mean 'similarity'"),
        ({"components": []}, "components, at least one"),
        ({"mix": (1.0,)}, "mix of 3 numbers, .*got 1"),
        ({"mix": "learned"}, "mix to be .*fixed, got 'learned'"),
        ({"sampling": "best"}, "sampling to be one of"),
        ({"relative_margin": -0.1}, "relative_margin to be .*at least 0"),
        ({"absolute_margin": -0.1}, "absolute_margin to be .*at least 0"),
        ({"posterior_temperature": 0.0}, "posterior_temperature to be .*above 0"),
        ({"anchor_rows": [0]}, "anchor_rows as 12 whole numbers"),
        ({"anchor_rows": [200] * 12}, "anchor_rows among -1 … 199, got 200 to 200"),
        ({"corpus_texts": ["a"]}, "200 corpus_texts, got 1"),
        ({"anchor_texts": ["a"] * 12}, "corpus_texts with anchor_texts, got none"),
    ],
)
def test_mistakes_are_refused(change: dict[str, Any], message: str) -> None:
    anchors, corpus, positives = problem()
    options: dict[str, Any] = {
        "anchors": anchors, "corpus": corpus, "positives": positives, "k": 5
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        unremix.mine_hard_negatives(**(options | change))
