from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from unremix.domains.image.encoders import chosen_name, make_encoder
from unremix.domains.image.resnet import ResNet, SmallCNN
from unremix.evaluation import (
    Accuracy,
    Health,
    effective_rank,
    health,
    knn_accuracy,
    knn_predict,
    leave_one_out_knn,
    linear_probe,
    warnings_of,
)

Split = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.mark.parametrize(
    ("asked", "size", "name"),
    [
        ("auto", 16, "small"),
        ("auto", 17, "resnet18"),
        ("small", 32, "small"),
        ("resnet18", 8, "resnet18"),
        ("resnet34", 64, "resnet34"),
        ("resnet50", 32, "resnet50"),
        ("tiny:encoder", 8, "tiny:encoder"),
    ],
)
def test_an_encoder_is_named(asked: str, size: int, name: str) -> None:
    assert chosen_name(asked, size) == name
    encoder = make_encoder(asked, channels=1, image_size=size, width=4)
    if isinstance(encoder, ResNet):
        assert name == f"resnet{encoder.depth}"
    else:
        assert isinstance(encoder, SmallCNN) == (name == "small")


@pytest.fixture(scope="module")
def digits() -> Split:
    """Training features and labels, test features and labels."""
    data = load_digits()
    features = torch.from_numpy(data.data / 16).float()
    labels = torch.from_numpy(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1300], order[1300:]
    return features[train], labels[train], features[test], labels[test]


def random_classes(
    count: int, size: int = 6, classes: int = 4, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[:classes] = torch.arange(classes)[:count]
    return features, labels


def looped_shares(
    bank: Tensor, labels: Tensor, query: Tensor, k: int, temperature: float, classes: int
) -> list[float]:
    nearest = sorted(
        ((reference.cosine(query, row), int(y)) for row, y in zip(bank, labels, strict=True)),
        reverse=True,
    )[:k]
    votes = [0.0] * classes
    for similarity, label in nearest:
        votes[label] += math.exp(similarity / temperature)
    return [vote / sum(votes) for vote in votes]


class TestAccuracy:
    def test_binomial_standard_error(self) -> None:
        found = Accuracy.of(torch.arange(100) < 80)
        assert (found.value, found.count) == (0.8, 100)
        assert found.standard_error == pytest.approx(0.04)
        assert str(found) == "80.00 % [71.12, 86.66]"

    @pytest.mark.parametrize(("right", "count"), [(0, 14), (14, 14), (1, 1), (37, 100), (5, 9)])
    def test_interval_equals_scipy(self, right: int, count: int) -> None:
        found = Accuracy.of(torch.arange(count) < right)
        expected = binomtest(right, count).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert found.low < found.high  # 0 of 14 is not 0.0 ± 0.0 %


class TestNeighbors:
    @settings(max_examples=40)
    @given(
        n=st.integers(2, 12),
        m=st.integers(1, 6),
        k=st.integers(1, 20),
        temperature=st.sampled_from([0.05, 0.5, 2.0]),
        seed=st.integers(0, 100),
    )
    def test_shares_equal_a_loop(
        self, n: int, m: int, k: int, temperature: float, seed: int
    ) -> None:
        bank, labels = random_classes(n, seed=seed)
        queries, _ = random_classes(m, seed=seed + 1000)
        shares = knn_predict(bank, labels, queries, k=k, temperature=temperature, num_classes=5)
        expected = [looped_shares(bank, labels, query, k, temperature, 5) for query in queries]
        torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64))

    @pytest.mark.parametrize(("k", "temperature"), [(1, 0.5), (20, 0.5), (200, 0.1)])
    def test_equals_scikit_learn(self, digits: Split, k: int, temperature: float) -> None:
        bank, labels, queries, truth = digits
        other = KNeighborsClassifier(
            k, metric="cosine", algorithm="brute",
            weights=lambda distance: np.exp((1 - distance) / temperature),
        ).fit(bank.double(), labels)  # fmt: skip
        shares = knn_predict(bank.double(), labels, queries.double(), k=k, temperature=temperature)
        expected = torch.from_numpy(other.predict_proba(queries.double()))
        torch.testing.assert_close(shares, expected, rtol=1e-6, atol=1e-6)
        found = knn_accuracy(bank, labels, queries, truth, k=k, temperature=temperature)
        assert found.value == pytest.approx(other.score(queries.double(), truth), abs=0.003)
        assert found.count == 497

    @settings(max_examples=25)
    @given(
        n=st.integers(4, 12),
        k=st.integers(1, 20),
        seed=st.integers(0, 100),
    )
    def test_leave_one_out_equals_a_loop(self, n: int, k: int, seed: int) -> None:
        features, labels = random_classes(n, seed=seed)
        right = 0
        for i in range(n):
            others = torch.arange(n) != i
            votes = looped_shares(features[others], labels[others], features[i], k, 0.5, 4)
            right += votes.index(max(votes)) == int(labels[i])
        found = leave_one_out_knn(features, labels, k=k)
        assert found.value == pytest.approx(right / n)
        assert found.count == n

    def test_memory_is_bounded_by_the_tile(
        self, digits: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bank, labels, queries, truth = digits
        whole, others = knn_predict(bank, labels, queries), knn_predict(queries, truth)
        monkeypatch.setattr("unremix.evaluation.knn.TILE_ENTRIES", 5000)  # a few queries at a time
        torch.testing.assert_close(knn_predict(bank, labels, queries), whole)
        torch.testing.assert_close(knn_predict(queries, truth), others)

    def test_only_directions_count(self) -> None:
        bank, labels = random_classes(9)
        queries, _ = random_classes(5, seed=1)
        scaled = bank * torch.arange(1.0, 10)[:, None]
        torch.testing.assert_close(
            knn_predict(bank, labels, queries), knn_predict(scaled, labels, queries * 7)
        )

    def test_a_low_temperature_does_not_overflow(self) -> None:
        shares = knn_predict(torch.eye(3), torch.arange(3), torch.eye(3), temperature=1e-3)
        assert torch.equal(shares, torch.eye(3))

    def test_half_precision_and_zero_vectors(self) -> None:
        bank = torch.eye(3, dtype=torch.bfloat16)
        shares = knn_predict(bank, torch.arange(3), torch.zeros(1, 3))
        torch.testing.assert_close(shares, torch.full((1, 3), 1 / 3))

    def test_other_integer_types_and_gradients_are_accepted(self) -> None:
        bank = torch.eye(3, requires_grad=True)
        labels = torch.arange(3, dtype=torch.int16)
        found = knn_accuracy(bank, labels, bank, labels)
        assert (found.value, found.standard_error, found.count) == (1.0, 0.0, 3)
        assert not knn_predict(bank, labels, bank).requires_grad


@pytest.mark.parametrize("evaluate", [knn_accuracy, linear_probe])
class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({0: torch.zeros(0, 3)}, r"at least one row"),
            ({2: torch.zeros(4, 0)}, r"at least one row"),
            ({0: torch.zeros(4)}, r"got \(4,\)"),
            ({0: torch.ones(4, 3).long()}, r"convert with \.float"),
            ({0: torch.full((4, 3), math.nan)}, r"NaN or infinity in 4 of 4 rows"),
            ({2: torch.tensor([[1.0, math.inf, 0]] * 4)}, r"NaN or infinity in 4 of 4"),
            ({2: torch.ones(4, 2)}, r"got 3 and 2 columns"),
            ({1: torch.tensor([0, 1])}, r"got \(2,\)"),
            ({1: torch.eye(4).long()}, r"argmax"),
            ({1: torch.tensor([0.0, 1, 2, 1])}, r"convert with \.long"),
            ({1: torch.tensor([0, 1, -1, 1])}, r"got -1; leave samples without label out"),
            ({1: torch.ones(4).long()}, r"only class 1"),
            ({3: torch.tensor([0, 1, 3, 1])}, r"number of classes, 3, got 3"),
            ({3: torch.tensor([0, -1, 0, 1])}, r"got -1"),
        ],
    )
    def test_features_and_labels_that_do_not_fit(
        self, evaluate: object, changes: dict[int, Tensor], message: str
    ) -> None:
        features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([0, 1, 2, 1])
        given = [features, labels, features, labels]
        for position, value in changes.items():
            given[position] = value
        with pytest.raises(ValueError, match=message):
            evaluate(*given)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: knn_accuracy(x, y, x, y, k=0),
        lambda x, y: knn_accuracy(x, y, x, y, temperature=0.0),
        lambda x, y: leave_one_out_knn(x, y * 0),
        lambda x, y: knn_predict(x[:1], y[:1]),
        lambda x, y: knn_predict(x, y, x, num_classes=2),
        lambda x, y: linear_probe(x, y, x, y, epochs=0),
        lambda x, y: linear_probe(x, y, x, y, batch_size=0),
        lambda x, y: linear_probe(x, y, x, y, lr=0.0),
        lambda x, y: linear_probe(x, y, x, y, weight_decay=-1.0),
        lambda x, y: health(x, x[:2]),
        lambda x, y: health(x[:1], x[:1]),
        lambda x, y: health(x, x * math.nan),
        lambda x, y: effective_rank(x[:0]),
        lambda x, y: warnings_of(health(x, x), dimensions=0),
        lambda x, y: warnings_of(health(x, x), dimensions=3, samples=1),
    ],
)
def test_impossible_options_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"(?s)expected .*got "):
        call(torch.eye(3), torch.arange(3))


class TestLinearProbe:
    def test_accuracy_is_that_of_logistic_regression(self, digits: Split) -> None:
        train, labels, test, truth = digits
        other = LogisticRegression(C=100.0, max_iter=1000).fit(train.numpy(), labels.numpy())
        found = linear_probe(*digits, epochs=100, lr=1e-2)
        assert found.top1.value == pytest.approx(other.score(test.numpy(), truth.numpy()), abs=0.02)
        assert found.top1.count == 497
        assert found.top5 is not None
        assert found.top5.value > found.top1.value
        assert found.train_top1 >= found.top1.value
        assert found.curve[-1] == found.top1.value

    def test_it_equals_a_linear_layer_with_autograd_and_adam(self) -> None:
        seed, classes = 3, 7
        features, labels = random_classes(12, classes=classes)
        test, truth = random_classes(40, classes=classes, seed=1)
        size = features.shape[1]
        seen = []
        found = linear_probe(
            features, labels, test, truth, epochs=3, lr=0.1, weight_decay=0.01, batch_size=5,
            seed=seed, progress=lambda epoch, value: seen.append((epoch, value)),
        )  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(size)
        start = torch.empty(classes, size + 1).uniform_(-bound, bound, generator=generator)
        layer = torch.nn.Linear(size, classes).double()
        with torch.no_grad():
            layer.weight.copy_(start[:, :-1])
            layer.bias.copy_(start[:, -1])
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.01)
        for epoch in range(3):
            order = torch.randperm(12, generator=generator)
            for rows in (order[:5], order[5:10], order[10:]):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(layer(features[rows]), labels[rows]).backward()
                optimizer.step()
            right = (layer(test).argmax(1) == truth).double().mean()
            assert seen[epoch] == (epoch + 1, pytest.approx(right.item()))
        assert found.curve == tuple(value for _, value in seen)
        assert found.top1.value == found.curve[-1]
        among_five = [
            int(label) in sorted(range(classes), key=row.__getitem__)[-5:]
            for row, label in zip(layer(test).tolist(), truth, strict=True)
        ]
        assert found.top5 is not None
        assert found.top5.value == pytest.approx(sum(among_five) / 40)
        right = (layer(features).argmax(1) == labels).double().mean()
        assert found.train_top1 == pytest.approx(right.item())

    def test_the_seed_decides_and_the_global_state_stays(self, digits: Split) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = linear_probe(*digits, epochs=3)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert linear_probe(*digits, epochs=3) == first
        assert linear_probe(*digits, epochs=3, seed=1) != first

    def test_it_works_in_inference_mode(self, digits: Split) -> None:
        outside = linear_probe(*digits, epochs=2)
        with torch.inference_mode():
            train, labels, test, truth = digits
            inside = linear_probe(train * 1, labels, test * 1, truth, epochs=2)
        assert inside == outside

    def test_features_made_in_inference_mode_can_be_probed_outside(self, digits: Split) -> None:
        train, labels, test, truth = digits
        with torch.inference_mode():
            train = train * 1
        linear_probe(train, labels, test, truth, epochs=1)

    @pytest.mark.parametrize(("classes", "known"), [(5, False), (6, True)])
    def test_top5_needs_six_classes(self, classes: int, known: bool) -> None:
        features, labels = random_classes(30, classes=classes)
        found = linear_probe(features, labels, features, labels, epochs=1)
        assert (found.top5 is not None) == known


class TestHealth:
    @pytest.mark.parametrize("spectrum", [(1.0, 1, 1, 1), (4.0, 2, 1, 1), (1.0, 0, 0, 0)])
    @pytest.mark.parametrize("count", [64, 4])
    def test_effective_rank_of_a_known_spectrum(
        self, spectrum: tuple[float, ...], count: int
    ) -> None:
        size = 4 if count > 4 else 12
        torch.manual_seed(0)
        # Columns orthonormal and of mean zero: the covariance has exactly this spectrum.
        kept = min(len(spectrum), count - 1)
        basis = torch.linalg.qr(
            torch.cat([torch.ones(count, 1), torch.randn(count, kept)], 1).double()
        ).Q[:, 1:]
        turn = torch.linalg.qr(torch.randn(size, size).double()).Q[:kept]
        values = torch.tensor(spectrum[:kept], dtype=torch.float64)
        features = (basis * values.sqrt()) @ turn + 5
        shares = [value / sum(spectrum[:kept]) for value in spectrum[:kept]]
        entropy = -sum(share * math.log(share) for share in shares if share)
        assert effective_rank(features) == pytest.approx(math.exp(entropy), rel=1e-6)

    def test_effective_rank_where_nothing_varies(self) -> None:
        assert effective_rank(torch.full((5, 3), 0.1)) == 0
        assert effective_rank(torch.zeros(5, 3)) == 0
        assert effective_rank(torch.ones(1, 3)) == 0

    @settings(max_examples=30)
    @given(n=st.integers(2, 8), size=st.integers(1, 5), seed=st.integers(0, 100))
    def test_alignment_uniformity_and_spread_equal_loops(
        self, n: int, size: int, seed: int
    ) -> None:
        z0, z1 = random_classes(n, size, 1, seed)[0], random_classes(n, size, 1, seed + 1000)[0]
        found = health(z0, z1, effective_negatives=3.5)
        f0, f1 = ([row / row.norm() for row in z] for z in (z0, z1))
        alignment = sum(float((a - b) @ (a - b)) for a, b in zip(f0, f1, strict=True)) / n
        uniformity = 0.0
        for f in (f0, f1):
            potentials = [
                math.exp(-2 * float((f[i] - f[j]) @ (f[i] - f[j])))
                for i in range(n)
                for j in range(n)
                if i != j
            ]
            uniformity += math.log(sum(potentials) / len(potentials)) / 2
        deviations = [float(np.std([float(row[d]) for row in f0 + f1])) for d in range(size)]
        assert found.alignment == pytest.approx(alignment)
        assert found.uniformity == pytest.approx(uniformity, abs=1e-9)
        assert found.spread == pytest.approx(sum(deviations) / size * math.sqrt(size), abs=1e-9)
        assert found.effective_negatives == 3.5
        assert 0 <= found.spread <= 1 + 1e-9
        assert found.effective_rank <= min(size, 2 * n - 1) + 1e-6

    def test_uniformity_in_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z0, z1 = random_classes(20)[0], random_classes(20, seed=1)[0]
        whole = health(z0, z1)
        # The package's name `health` is the function; this is its module.
        monkeypatch.setattr(sys.modules[Health.__module__], "TILE_ENTRIES", 60)  # 3 rows at a time
        assert health(z0, z1).uniformity == pytest.approx(whole.uniformity, rel=1e-12)

    def test_a_cloud_on_the_sphere_is_well_spread(self) -> None:
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(4000, 16, generator=generator)
        found = health(z, z + 0.1 * torch.randn(4000, 16, generator=generator))
        assert found.spread == pytest.approx(1, abs=0.01)
        assert found.effective_rank == pytest.approx(16, abs=0.1)
        assert warnings_of(found, dimensions=16) == []

    def test_zero_embeddings_count_as_zero_vectors(self) -> None:
        found = health(torch.zeros(3, 4), torch.zeros(3, 4))
        assert found == Health(0.0, 0.0, 0.0, 0.0)


def noisy(z: Tensor, amount: float, seed: int = 1) -> Tensor:
    return z + amount * torch.randn(z.shape, generator=torch.Generator().manual_seed(seed))


class TestWarnings:
    good = Health(
        spread=0.9, effective_rank=60.0, alignment=0.4, uniformity=-3.0, effective_negatives=80.0
    )

    def test_nothing_is_said_of_good_embeddings(self) -> None:
        assert warnings_of(self.good, dimensions=128) == []
        assert warnings_of(self.good, self.good, dimensions=128, samples=256) == []

    def test_collapse(self) -> None:
        z = noisy(torch.ones(64, 32), 0.01)
        (said,) = warnings_of(health(z, noisy(z, 0.01, 2)), dimensions=32)
        assert said.startswith("The embeddings have collapsed: all point almost the same way")
        assert "Lower the learning rate" in said

    def test_few_dimensions(self) -> None:
        torch.manual_seed(0)
        z = torch.randn(200, 3) @ torch.randn(3, 128)
        (said,) = warnings_of(health(z, noisy(z, 0.01)), dimensions=128)
        assert said.startswith("Only 3.0 ")
        assert "of 128 dimensions" in said

    def test_few_samples_cannot_fill_many_dimensions(self) -> None:
        torch.manual_seed(0)
        z = torch.randn(6, 512)
        found = health(z, noisy(z, 0.2))
        assert "of 512 dimensions" in warnings_of(found, dimensions=512)[0]
        assert warnings_of(found, dimensions=512, samples=6) == []

    def test_views_that_are_not_of_the_same_samples(self) -> None:
        torch.manual_seed(0)
        for offset in (0.0, 1.0):  # around the origin, and in a cone
            z = torch.randn(200, 16) + offset
            found = health(z, noisy(z, 0.2)[torch.randperm(200)])
            (said,) = warnings_of(found, dimensions=16)
            assert "hardly closer" in said
            assert warnings_of(health(z, noisy(z, 0.2)), dimensions=16) == []

    def test_views_that_are_the_same(self) -> None:
        torch.manual_seed(0)
        z = torch.randn(200, 16)
        (said,) = warnings_of(health(z, z), dimensions=16)
        assert said.startswith("The two views of every sample are the same")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"spread": 0.3}, "spread fell from 0.90 to 0.30"),
            ({"effective_negatives": 1.6}, "learns from 1.6 negatives only"),
        ],
    )
    def test_sudden_changes_and_few_negatives(self, change: dict[str, float], words: str) -> None:
        (said,) = warnings_of(replace(self.good, **change), self.good, dimensions=128)
        assert words in said

    def test_a_run_on_digits_that_learns_is_left_in_peace(self) -> None:
        # Measured with InfoNCE on digits: before training, and after 10 and 20 epochs.
        untrained = Health(0.078, 22.4, 0.0098, -0.0255)
        early, later = Health(0.974, 7.4, 0.404, -2.62), Health(0.981, 8.5, 0.299, -2.74)
        assert warnings_of(early, untrained, dimensions=128, samples=512) == []
        assert warnings_of(later, early, dimensions=128, samples=512) == []

    def test_every_warning_says_what_to_do(self) -> None:
        bad = Health(0.3, 1.2, 1.9, -2.0, 1.0)
        said = warnings_of(bad, self.good, dimensions=128)
        assert len(said) == 4
        assert all(any(verb in text for verb in ("Lower", "Weaken", "Check")) for text in said)
