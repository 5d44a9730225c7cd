"""Mixed images against loops over samples and pixels; draws against scipy's distributions."""

from __future__ import annotations

import itertools
import math
from functools import partial

import building
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unremix.frameworks.mixing import (
    IMix,
    Mixed,
    Mixing,
    UnMix,
    beta,
    cutmix,
    cutmix_box,
    i_mix,
    mixup,
    patch_negatives,
    permutation,
    un_mix,
)
from unremix.frameworks.randomness import keys, uniforms

stats = pytest.importorskip("scipy.stats")


def pictures(n: int, size: int, channels: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """Images in which every value occurs once: where a pixel comes from can be read off."""
    return torch.arange(n * channels * size**2, dtype=dtype).view(n, channels, size, size)


sample_keys = partial(building.sample_keys, view=2)


def batch_key(seed: int = 0) -> Tensor:
    return keys(seed, 0, torch.tensor([0]), view=3)


def batch_keys(count: int) -> list[Tensor]:
    return list(keys(0, 0, torch.arange(count), view=3).split(1))


def assert_targets_fit(mixed: Mixed) -> None:
    """Every target has N rows of positives among the keys, whose shares sum to 1."""
    n = len(mixed.images)
    for target in mixed.targets:
        assert target.keys.dtype == torch.int64
        assert target.shares.dtype == torch.float64
        assert target.keys.shape == target.shares.shape
        assert len(target.keys) == n
        assert ((target.keys >= 0) & (target.keys < n)).all()
        assert (target.shares >= 0).all()
        torch.testing.assert_close(target.shares.sum(1), torch.ones(n, dtype=torch.float64))
    assert sum(target.weight for target in mixed.targets) == pytest.approx(1.0)


def looped_loss(mixed: Mixed, losses: Tensor) -> float:
    """The loss of a mixed batch as the module defines it, of L(i, j) in a matrix (N, N)."""
    total = 0.0
    for target in mixed.targets:
        for i in range(len(losses)):
            for key, share in zip(target.keys[i], target.shares[i], strict=True):
                total += target.weight * float(share * losses[i, key]) / len(losses)
    return total


class TestBeta:
    @pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 1.5, 8.0, 200.0])
    def test_distribution(self, alpha: float) -> None:
        lam = beta(uniforms(sample_keys(20_000), 2), alpha=alpha)
        found = stats.kstest(lam.numpy(), stats.beta(alpha, alpha).cdf)
        assert found.pvalue > 0.01, found

    def test_distribution_that_rounds_to_zero_and_one(self) -> None:
        """Of Beta(0.05, 0.05) a sixth lies nearer to 0 or 1 than float64 can tell."""
        count, at = 20_000, torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
        lam = beta(uniforms(sample_keys(count), 2), alpha=0.05)
        found = (lam[:, None] <= at).double().mean(0)
        expected = torch.from_numpy(stats.beta(0.05, 0.05).cdf(at.numpy()))
        assert ((found - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt()).all()

    def test_a_wrong_parameter_would_be_noticed(self) -> None:
        lam = beta(uniforms(sample_keys(20_000), 2), alpha=1.5)
        assert stats.kstest(lam.numpy(), stats.beta(1.4, 1.4).cdf).pvalue < 0.01

    def test_one_is_the_uniform_number_itself(self) -> None:
        numbers = uniforms(sample_keys(100), 2)
        assert torch.equal(beta(numbers, alpha=1.0), numbers[:, 0].double())

    @pytest.mark.parametrize("alpha", [0.9999, 1.0001])
    def test_the_formula_near_one_is_uniform_too(self, alpha: float) -> None:
        lam = beta(uniforms(sample_keys(20_000), 2), alpha=alpha)
        assert stats.kstest(lam.numpy(), "uniform").pvalue > 0.01

    @given(
        u=st.sampled_from([0.0, 2**-24, 0.5, 1 - 2**-24]),
        v=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1 - 2**-24]),
        alpha=st.sampled_from([1e-6, 0.01, 0.3, 1.0, 2.0, 1e6]),
    )
    def test_extreme_numbers_stay_in_range(self, u: float, v: float, alpha: float) -> None:
        lam = beta(torch.tensor([u, v], dtype=torch.float64), alpha=alpha)
        assert lam.shape == ()
        assert 0 <= float(lam) <= 1

    @pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
    def test_bad_alpha(self, alpha: float) -> None:
        for make in (lambda: beta(torch.zeros(2), alpha=alpha), lambda: IMix(alpha=alpha)):
            with pytest.raises(ValueError, match=r"expected alpha .* got"):
                make()
        with pytest.raises(ValueError, match="expected alpha"):
            UnMix(alpha=alpha)


class TestPermutation:
    def test_all_orders_are_equally_likely(self) -> None:
        orders = [tuple(permutation(key, 4).tolist()) for key in batch_keys(4800)]
        counts = [orders.count(order) for order in itertools.permutations(range(4))]
        assert sum(counts) == 4800
        assert stats.chisquare(counts).pvalue > 0.01

    @pytest.mark.parametrize("n", [1, 2, 7, 5000])
    def test_every_row_once_and_the_same_for_the_same_key(self, n: int) -> None:
        order = permutation(batch_key(), n)
        assert torch.equal(order.sort().values, torch.arange(n))
        assert torch.equal(order, permutation(batch_key(), n))
        assert n < 7 or not torch.equal(order, permutation(batch_key(1), n))


class TestMixup:
    @settings(max_examples=30)
    @given(n=st.integers(1, 5), size=st.integers(1, 4), seed=st.integers(0, 50))
    def test_equals_a_loop(self, n: int, size: int, seed: int) -> None:
        images = torch.randn(n, 3, size, size, dtype=torch.float64)
        partners = permutation(batch_key(seed), n)
        lam = uniforms(sample_keys(n, seed), 1)[:, 0].double()
        mixed = mixup(images, images[partners], lam)
        for i in range(n):
            expected = lam[i] * images[i] + (1 - lam[i]) * images[partners[i]]
            torch.testing.assert_close(mixed[i], expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_one_gives_the_images_back_exactly_and_zero_the_partners(
        self, dtype: torch.dtype
    ) -> None:
        images = torch.randn(5, 3, 4, 4).to(dtype)
        partners = torch.tensor([4, 3, 2, 1, 0])
        assert torch.equal(mixup(images, images[partners], torch.ones(5)), images)
        assert torch.equal(mixup(images, images[partners], torch.zeros(1)), images.flip(0))
        assert mixup(images, images[partners], torch.ones(1)).dtype == dtype

    def test_half_precision_does_not_round_the_share(self) -> None:
        images = torch.tensor([0.0, 256.0], dtype=torch.bfloat16).view(2, 1, 1, 1)
        lam = torch.tensor([257 / 512, 1.0])  # between two numbers of bfloat16
        mixed = mixup(images, images.flip(0), lam)
        assert float(mixed[0]) == 127.5

    def test_the_images_stay_as_they_are(self) -> None:
        images = pictures(4, 6)
        IMix()(images, sample_keys(4), batch_key())
        UnMix(cutmix=0.0)(images, sample_keys(4), batch_key())
        UnMix(cutmix=1.0)(images, sample_keys(4), batch_key())
        patch_negatives(images, sample_keys(4), smallest=1, largest=3)
        assert torch.equal(images, pictures(4, 6))


class TestIMix:
    @settings(max_examples=30)
    @given(n=st.integers(1, 7), size=st.integers(1, 5), seed=st.integers(0, 50))
    def test_images_and_targets_equal_a_loop(self, n: int, size: int, seed: int) -> None:
        images = pictures(n, size)
        mixed = IMix()(images, sample_keys(n, seed), batch_key(seed))
        assert_targets_fit(mixed)
        (target,) = mixed.targets
        assert target.weight == 1
        assert torch.equal(target.keys[:, 0], torch.arange(n))
        assert torch.equal(target.keys[:, 1].sort().values, torch.arange(n))
        for i in range(n):
            lam, rest = target.shares[i].tolist()
            partner = int(target.keys[i, 1])
            assert lam >= 0.5
            assert rest == 1 - lam
            torch.testing.assert_close(mixed.images[i], lam * images[i] + rest * images[partner])

    def test_shares_are_the_larger_part_of_the_distribution(self) -> None:
        for alpha in (0.4, 1.0, 3.0):
            mixed = IMix(alpha=alpha)(torch.zeros(4000, 1, 1, 1), sample_keys(4000), batch_key())
            lam = mixed.targets[0].shares[:, 0].numpy()
            folded = stats.beta(alpha, alpha)
            assert stats.kstest(lam, lambda x, d=folded: 2 * d.cdf(x) - 1).pvalue > 0.01

    def test_every_sample_has_a_share_of_its_own_key(self) -> None:
        n = 6
        mixed = IMix()(pictures(n, 3), sample_keys(n), batch_key())
        shares = mixed.targets[0].shares
        assert shares[:, 0].unique().numel() == n
        reversed_keys = IMix()(pictures(n, 3), sample_keys(n).flip(0), batch_key())
        assert torch.equal(reversed_keys.targets[0].shares, shares.flip(0))
        assert torch.equal(reversed_keys.targets[0].keys, mixed.targets[0].keys)
        other_batch = IMix()(pictures(n, 3), sample_keys(n), batch_key(1))
        assert torch.equal(other_batch.targets[0].shares, shares)
        assert not torch.equal(other_batch.targets[0].keys, mixed.targets[0].keys)

    def test_share_one_reduces_to_the_base(self) -> None:
        images, partners = torch.randn(5, 3, 4, 4), permutation(batch_key(), 5)
        mixed = i_mix(images, partners, torch.ones(5))
        assert torch.equal(mixed.images, images)
        losses = torch.rand(5, 5, dtype=torch.float64)
        assert looped_loss(mixed, losses) == pytest.approx(float(losses.diagonal().mean()))

    def test_loss_is_that_of_the_paper(self) -> None:
        partners = torch.tensor([2, 0, 1])
        lam = torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64)
        mixed = i_mix(pictures(3, 2), partners, lam)
        losses = torch.rand(3, 3, dtype=torch.float64)
        expected = sum(
            lam[i] * losses[i, i] + (1 - lam[i]) * losses[i, partners[i]] for i in range(3)
        )
        assert looped_loss(mixed, losses) == pytest.approx(float(expected) / 3)


class TestCutMix:
    @settings(max_examples=100)
    @given(size=st.integers(1, 20), lam=st.floats(0, 1), data=st.data())
    def test_box_lies_inside_and_has_the_side_asked_for(
        self, size: int, lam: float, data: st.DataObject
    ) -> None:
        row, column = (data.draw(st.integers(0, size - 1)) for _ in range(2))
        top, bottom, left, right = cutmix_box(size, lam, (row, column))
        assert 0 <= top <= bottom <= size
        assert 0 <= left <= right <= size
        side = size * math.sqrt(1 - lam)
        for start, end, middle in ((top, bottom, row), (left, right, column)):
            if start > 0 and end < size:
                assert abs(end - start - side) <= 0.5
                assert abs((start + end) / 2 - middle) <= 0.5
            else:
                assert end - start <= side + 0.5

    def test_boxes_by_hand(self) -> None:
        assert cutmix_box(8, 0.75, (4, 4)) == (2, 6, 2, 6)
        assert cutmix_box(8, 0.75, (0, 7)) == (0, 2, 5, 8)
        assert cutmix_box(5, 0.64, (2, 2)) == (1, 4, 1, 4)
        assert cutmix_box(8, 1.0, (4, 4)) == (4, 4, 4, 4)
        assert cutmix_box(8, 0.0, (4, 4)) == (0, 8, 0, 8)

    @settings(max_examples=60)
    @given(n=st.integers(1, 5), size=st.integers(1, 7), lam=st.floats(0, 1), data=st.data())
    def test_share_and_pixels_counted_one_by_one(
        self, n: int, size: int, lam: float, data: st.DataObject
    ) -> None:
        center = (data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1)))
        images = pictures(n, size)
        box = cutmix_box(size, lam, center)
        mixed = un_mix(images, lam, box)
        assert_targets_fit(mixed)
        kept = 0
        for r, c in itertools.product(range(size), range(size)):
            pasted = box[0] <= r < box[1] and box[2] <= c < box[3]
            kept += not pasted
            for i in range(n):
                source = n - 1 - i if pasted else i
                assert torch.equal(mixed.images[i, :, r, c], images[source, :, r, c])
        assert mixed.targets[0].weight == pytest.approx(kept / size**2)
        assert mixed.targets[1].weight == pytest.approx(1 - kept / size**2)

    def test_partners_other_than_the_reverse(self) -> None:
        images, partners = pictures(3, 4), torch.tensor([1, 2, 0])
        mixed, lam = cutmix(images, images[partners], (1, 3, 0, 4))
        assert lam == 0.5
        assert torch.equal(mixed[:, :, 1:3], images[partners][:, :, 1:3])
        assert torch.equal(mixed[:, :, 0], images[:, :, 0])


class TestUnMix:
    @pytest.mark.parametrize("n", [1, 2, 5])
    @pytest.mark.parametrize("probability", [0.0, 1.0])
    def test_targets_and_partners(self, n: int, probability: float) -> None:
        images = pictures(n, 6)
        for seed in range(20):
            mixed = UnMix(cutmix=probability)(images, sample_keys(n), batch_key(seed))
            assert_targets_fit(mixed)
            own, other = mixed.targets
            assert own.keys[:, 0].tolist() == list(range(n))
            assert other.keys[:, 0].tolist() == list(range(n))[::-1]
            if n == 1:  # its own partner
                torch.testing.assert_close(mixed.images, images)
            if probability == 0:
                expected = own.weight * images + other.weight * images.flip(0)
                torch.testing.assert_close(mixed.images, expected)
            else:
                pasted = (mixed.images != images).any(1)  # (N, S, S)
                if n == 5:
                    assert not pasted[2].any()  # the middle one is its own partner
                if n > 1:
                    assert all(torch.equal(pasted[0], pasted[i]) for i in (1, n - 1) if i != 2)
                    assert float(pasted[0].double().mean()) == pytest.approx(other.weight)

    def test_mixed_and_flipped_batches_are_the_same_rows(self) -> None:
        """Σ_i L(flip(mix)_i, k_i) = Σ_i L(mix_i, k_flip(i)), the form the targets have."""
        images = pictures(5, 4)
        mixed = un_mix(images, 0.3)
        query_of = {tuple(row.flatten().tolist()): i for i, row in enumerate(mixed.images)}
        losses = torch.rand(5, 5, dtype=torch.float64)
        expected = 0.0
        for weight, batch in ((0.3, mixed.images), (0.7, mixed.images.flip(0))):
            for key, row in enumerate(batch):
                expected += weight * float(losses[query_of[tuple(row.flatten().tolist())], key]) / 5
        assert looped_loss(mixed, losses) == pytest.approx(expected)

    @pytest.mark.parametrize("box", [None, (3, 3, 2, 2)])
    def test_share_one_reduces_to_the_base(self, box: tuple[int, int, int, int] | None) -> None:
        images = torch.randn(5, 3, 4, 4)
        mixed = un_mix(images, 1.0, box)
        assert torch.equal(mixed.images, images)
        assert [target.weight for target in mixed.targets] == [1, 0]
        losses = torch.rand(5, 5, dtype=torch.float64)
        assert looped_loss(mixed, losses) == pytest.approx(float(losses.diagonal().mean()))

    def test_draws(self) -> None:
        """How often CutMix comes, where its box lies, and how mixup's λ is distributed."""
        images, trials = pictures(2, 8), 3000
        by_mixup, centers = [], []
        for key in batch_keys(trials):
            mixed = UnMix(alpha=0.5, cutmix=0.3)(images, sample_keys(2), key)
            from_other = (mixed.images == images.flip(0)).any(1)[0]
            is_own = (mixed.images == images).any(1)[0]
            if (from_other | is_own).all():  # no blend: CutMix
                if from_other.any() and is_own.any():
                    centers.append(from_other.nonzero().double().mean(0))
            else:
                by_mixup.append(mixed.targets[0].weight)
        assert stats.kstest(by_mixup, stats.beta(0.5, 0.5).cdf).pvalue > 0.01
        # Mixup with λ so near 0 or 1 that it equals an image does not occur here.
        assert stats.binomtest(len(by_mixup), trials, 0.7).pvalue > 0.01
        mean = torch.stack(centers).mean(0)
        assert ((mean - 3.5).abs() < 0.5).all()

    def test_centers_are_uniform(self) -> None:
        images, size = pictures(2, 8), 8
        tops = []
        for key in batch_keys(8000):
            lam, _, _, row, column = uniforms(key, 5)[0].double().tolist()
            box = cutmix_box(size, lam, (int(row * size), int(column * size)))
            if len(tops) < 200:
                mixed = UnMix(cutmix=1.0)(images, sample_keys(2), key)
                assert torch.equal(mixed.images, un_mix(images, lam, box).images)
            tops.append(int(row * size))
        assert stats.chisquare([tops.count(row) for row in range(size)]).pvalue > 0.01

    def test_the_samples_keys_play_no_part(self) -> None:
        first = UnMix()(pictures(4, 5), sample_keys(4), batch_key())
        second = UnMix()(pictures(4, 5), sample_keys(4, seed=9), batch_key())
        assert torch.equal(first.images, second.images)


def is_patch(image: Tensor, part: Tensor) -> bool:
    """Whether a part (C, a, b) stands somewhere in an image (C, S, S)."""
    _, height, width = part.shape
    size = image.shape[-1]
    return any(
        torch.equal(image[:, top : top + height, left : left + width], part)
        for top in range(size - height + 1)
        for left in range(size - width + 1)
    )


class TestPatchNegatives:
    @settings(max_examples=60)
    @given(n=st.integers(1, 4), size=st.integers(1, 9), seed=st.integers(0, 50), data=st.data())
    def test_equals_a_loop_over_pixels(
        self, n: int, size: int, seed: int, data: st.DataObject
    ) -> None:
        smallest = data.draw(st.integers(1, size))
        largest = data.draw(st.integers(smallest, size))
        images, sample = pictures(n, size), sample_keys(n, seed)
        tiled = patch_negatives(images, sample, smallest=smallest, largest=largest)
        across = math.ceil(size / smallest)
        numbers = uniforms(sample, 3 + 2 * across**2).double()
        for i in range(n):
            p = smallest + int(numbers[i, 2] * (largest - smallest + 1))
            assert smallest <= p <= largest
            for r, c in itertools.product(range(size), range(size)):
                tile = r // p * across + c // p
                top, left = (
                    int(numbers[i, 3 + which * across**2 + tile] * (size - p + 1))
                    for which in (0, 1)
                )
                assert top + p <= size
                assert left + p <= size
                expected = images[i, :, top + r % p, left + c % p]
                assert torch.equal(tiled[i, :, r, c], expected)

    @settings(max_examples=60)
    @given(n=st.integers(1, 4), size=st.integers(1, 9), seed=st.integers(0, 50), data=st.data())
    def test_every_tile_is_a_patch_of_its_image(
        self, n: int, size: int, seed: int, data: st.DataObject
    ) -> None:
        """Without a word on how they are drawn: every pixel of the images is unique."""
        smallest = data.draw(st.integers(1, size))
        largest = data.draw(st.integers(smallest, size))
        pixels = torch.arange(n * 2 * size**2).view(n, 2, size, size)
        tiled = patch_negatives(pixels, sample_keys(n, seed), smallest=smallest, largest=largest)
        for image, result in zip(pixels, tiled, strict=True):
            assert any(
                all(
                    is_patch(image, result[:, r : r + p, c : c + p])
                    for r in range(0, size, p)
                    for c in range(0, size, p)
                )
                for p in range(smallest, largest + 1)
            )

    def test_tiles_differ(self) -> None:
        """Of 4 × 4 tiles with 13 × 13 places each, few coincide; no two keys agree."""
        n, size, p = 50, 16, 4
        images = torch.arange(size**2).view(1, 1, size, size).expand(n, 1, size, size)
        tiled = patch_negatives(images, sample_keys(n), smallest=p, largest=p)
        corners = tiled[:, 0, ::p, ::p].flatten(1)  # where each tile was cut
        distinct = torch.tensor([len(row.unique()) for row in corners])
        assert int(distinct.min()) >= 11
        assert float(distinct.double().mean()) > 14.5  # 16 less 120/169 coincidences
        assert len(corners.unique(dim=0)) == n

    def test_same_keys_give_the_same(self) -> None:
        images = pictures(6, 8)
        first, second, other = (
            patch_negatives(images, sample_keys(6, seed), smallest=2, largest=4)
            for seed in (0, 0, 1)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, other)

    def test_sides_and_places_are_uniform(self) -> None:
        """Read off the result: which pixels follow their neighbor, and where tiles begin."""
        n, size = 6000, 6
        tiled = patch_negatives(
            pictures(1, size, 1).expand(n, 1, size, size).long(),
            sample_keys(n),
            smallest=2,
            largest=4,
        )[:, 0]
        # A column begins a tile where in some row its pixel does not follow the one to its left.
        begins = (tiled[:, :, 1:] != tiled[:, :, :-1] + 1).any(1)  # (N, S - 1)
        # By chance a tile may continue the one beside it in all rows; rarely in this many places.
        sides = torch.where(begins.any(1), begins.int().argmax(1) + 1, size)
        counts = [int((sides == p).sum()) for p in range(1, size + 1)]
        assert sum(counts[1:4]) > 0.98 * n
        assert counts[0] == 0
        assert all(abs(count - n / 3) < 150 for count in counts[1:4])  # 4 standard deviations
        for p in (2, 3, 4):
            places = [r * size + c for r in range(size - p + 1) for c in range(size - p + 1)]
            for first, second in ((0, 0), (0, p), (p, 0)):  # of three tiles
                corner = tiled[sides == p, first, second]
                counts = [int((corner == place).sum()) for place in places]
                assert sum(counts) > 0.9 * len(corner)
                assert stats.chisquare(counts).pvalue > 0.001

    def test_depends_on_its_own_image_and_key_alone(self) -> None:
        images, sample = torch.randn(5, 3, 12, 12), sample_keys(5)
        tiled = patch_negatives(images, sample, smallest=2, largest=6)
        order = torch.tensor([3, 1])
        some = patch_negatives(images[order], sample[order], smallest=2, largest=6)
        assert torch.equal(some, tiled[order])

    def test_a_patch_as_large_as_the_image_is_the_image(self) -> None:
        images = (torch.rand(3, 3, 7, 7) * 255).to(torch.uint8)
        assert torch.equal(patch_negatives(images, sample_keys(3), smallest=7, largest=7), images)

    def test_images_in_another_memory_format(self) -> None:
        images = torch.randn(3, 3, 7, 7)
        options = {"smallest": 2, "largest": 5}
        other = images.contiguous(memory_format=torch.channels_last)
        assert torch.equal(
            patch_negatives(other, sample_keys(3), **options),
            patch_negatives(images, sample_keys(3), **options),
        )

    @pytest.mark.parametrize(("smallest", "largest"), [(0, 3), (4, 3), (2, 9), (-1, 2)])
    def test_sides_that_do_not_fit(self, smallest: int, largest: int) -> None:
        with pytest.raises(ValueError, match=r"patches .* <= 8, .* got .*; at 32"):
            patch_negatives(pictures(2, 8), sample_keys(2), smallest=smallest, largest=largest)


MIXINGS: list[Mixing] = [IMix(), IMix(alpha=0.3), UnMix(cutmix=0.0), UnMix(cutmix=1.0)]


@pytest.mark.parametrize("mixing", MIXINGS, ids=repr)
class TestEvery:
    def test_same_keys_give_the_same(self, mixing: Mixing) -> None:
        images = pictures(6, 8)
        first, second = (mixing(images, sample_keys(6), batch_key(3)) for _ in range(2))
        other = mixing(images, sample_keys(6), batch_key(4))
        assert torch.equal(first.images, second.images)
        assert not torch.equal(first.images, other.images)
        for one, two in zip(first.targets, second.targets, strict=True):
            assert one.weight == two.weight
            assert torch.equal(one.keys, two.keys)
            assert torch.equal(one.shares, two.shares)

    def test_no_generator_moves(self, mixing: Mixing) -> None:
        before = torch.get_rng_state()
        mixing(pictures(6, 8), sample_keys(6), batch_key())
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_keeps_type_and_shape(self, mixing: Mixing, dtype: torch.dtype) -> None:
        mixed = mixing(torch.rand(5, 3, 8, 8).to(dtype), sample_keys(5), batch_key())
        assert mixed.images.dtype == dtype
        assert mixed.images.shape == (5, 3, 8, 8)
        assert_targets_fit(mixed)

    def test_bad_input(self, mixing: Mixing) -> None:
        good = pictures(4, 6), sample_keys(4), batch_key()
        cases: list[tuple[tuple[Tensor, Tensor, Tensor], str]] = [
            ((good[0][0], *good[1:]), r"images of shape \(N, C, S, S\), got"),
            ((good[0][:, :, :3], *good[1:]), r"images of shape \(N, C, S, S\), got"),
            ((good[0].to(torch.uint8), *good[1:]), "floating point, got torch.uint8; mix"),
            ((good[0], good[1][:3], good[2]), r"sample_keys of shape \(4,\), .*got .*; draw"),
            ((good[0], good[1].double(), good[2]), "int64 sample_keys .* got torch.float64"),
            ((good[0], good[1], good[1]), r"batch_key of shape \(1,\), got .*; draw"),
            ((good[0], good[1], good[2].int()), "int64 batch_key .* got torch.int32"),
        ]
        for arguments, message in cases:
            with pytest.raises(ValueError, match=message):
                mixing(*arguments)


def test_whether_the_original_loss_is_kept() -> None:
    assert not IMix().keeps_original
    assert UnMix().keeps_original


def test_share_and_patch_of_one_key_are_independent() -> None:
    n = 5000
    sample = sample_keys(n)
    lam = beta(uniforms(sample, 2), alpha=1.0)
    tiled = patch_negatives(pictures(1, 16, 1).expand(n, 1, 16, 16), sample, smallest=1, largest=8)
    corner = tiled[:, 0, 0, 0]
    assert abs(stats.spearmanr(lam.numpy(), corner.numpy()).statistic) < 4 / math.sqrt(n)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_bad_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="cutmix to be at"):
        UnMix(cutmix=probability)
