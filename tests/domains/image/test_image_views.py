"""Views of images: against PIL, operation by operation; randomness; independence of the batch."""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from building import sample_keys
from torch import Tensor

from unremix.domains.image import views as image
from unremix.domains.image.views import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    ORDERS,
    SATURATION,
    SETTINGS,
    Augmentation,
    augment,
    draw,
    plain,
    settings_for,
)
from unremix.frameworks import randomness
from unremix.frameworks.randomness import keys, uniforms

Image = pytest.importorskip("PIL.Image")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")
ImageOps = pytest.importorskip("PIL.ImageOps")

NOTHING = Augmentation(
    crop_scale=(1.0, 1.0),
    crop_ratio=(1.0, 1.0),
    flip=0.0,
    jitter_probability=0.0,
    grayscale=0.0,
    blur=0.0,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
)


def photographs(count: int, size: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Smooth colors with some noise: uint8, shape (count, channels, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    noise = 0.05 * torch.randn(smooth.shape, generator=generator)
    return ((smooth + noise).clamp(0, 1) * 255).round().to(torch.uint8)


def to_pil(picture: Tensor) -> Image.Image:
    array = picture.permute(1, 2, 0).numpy()
    return Image.fromarray(array if array.shape[2] == 3 else array[:, :, 0])


def from_pil(picture: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(picture, dtype=np.float32))
    return (array.permute(2, 0, 1) if array.ndim == 3 else array[None]) / 255


def distance(result: Tensor, pictures: list[Image.Image]) -> float:
    """Greatest difference, in levels of 255."""
    return float((result - torch.stack([from_pil(p) for p in pictures])).abs().max()) * 255


# Randomness


def test_uniforms_are_splitmix64() -> None:
    word, mask = 1234567, (1 << 64) - 1
    expected = []
    for _ in range(4):
        word = (word + 0x9E3779B97F4A7C15) & mask
        z = word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(((z ^ (z >> 31)) >> 40) / 2**24)
    # The first number of this seed is published with the generator.
    assert expected[0] == (6457827717110365317 >> 40) / 2**24
    assert uniforms(torch.tensor([1234567]), 4)[0].tolist() == expected


def test_keys_agree_with_python_and_differ() -> None:
    samples = torch.tensor([0, 1, 2, 10**12, -1])
    word = 0
    for part in (-5, 2, 1):
        word = randomness._mix_int(word + randomness._WEYL + part)
    expected = [randomness._mix_int(word + randomness._WEYL * s) for s in samples.tolist()]
    assert keys(-5, 2, samples, 1).tolist() == [randomness._signed(w) for w in expected]
    grid = [
        keys(seed, epoch, torch.arange(200), view)
        for seed, epoch, view in itertools.product(range(4), range(4), range(4))
    ]
    assert torch.cat(grid).unique().numel() == 64 * 200


def test_keys_want_integers() -> None:
    with pytest.raises(ValueError, match="integers"):
        keys(0, 0, torch.rand(3), 0)
    assert torch.equal(keys(0, 0, torch.arange(3).int(), 0), keys(0, 0, torch.arange(3), 0))


def test_uniforms_moments_and_range() -> None:
    u = uniforms(sample_keys(20_000), 32).double()
    count = u.numel()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 1 / 2) < 4 / math.sqrt(12 * count)
    assert abs(float(u.var()) - 1 / 12) < 4 * math.sqrt(1 / 180 / count)


@pytest.mark.parametrize("axis", ["sample", "epoch", "view", "seed"])
def test_uniforms_are_uncorrelated(axis: str) -> None:
    count, columns = 20_000, 8
    numbers = torch.arange(count)
    first = keys(0, 0, numbers, 0)
    second = {
        "sample": keys(0, 0, numbers + 1, 0),
        "epoch": keys(0, 1, numbers, 0),
        "view": keys(0, 0, numbers, 1),
        "seed": keys(1, 0, numbers, 0),
    }[axis]
    both = torch.cat([uniforms(first, columns), uniforms(second, columns)], dim=1).double()
    correlation = torch.corrcoef(both.T) - torch.eye(2 * columns, dtype=torch.double)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(count)


def test_uniforms_fill_bins_evenly() -> None:
    u = uniforms(sample_keys(25_600), 16)
    bins = 256
    for column in u.T:
        observed = torch.bincount((column * bins).long(), minlength=bins).double()
        expected = len(column) / bins
        chi_square = float(((observed - expected) ** 2).sum() / expected)
        assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))
    pairs = (u[:, :-1] * 16).long() * 16 + (u[:, 1:] * 16).long()
    observed = torch.bincount(pairs.flatten(), minlength=bins).double()
    expected = pairs.numel() / bins
    chi_square = float(((observed - expected) ** 2).sum() / expected)
    assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))


def test_more_uniforms_append() -> None:
    assert torch.equal(uniforms(sample_keys(5), 40)[:, :7], uniforms(sample_keys(5), 7))


def test_gaussians() -> None:
    numbers = image.gaussians(sample_keys(2_000), 101).double()
    assert numbers.shape == (2_000, 101)
    assert abs(float(numbers.mean())) < 0.01
    assert abs(float(numbers.std()) - 1) < 0.01
    assert abs(float((numbers**4).mean()) - 3) < 0.1


# Operations against PIL


@pytest.mark.parametrize("size", [32, 48])
def test_crop_and_flip(size: int) -> None:
    images = photographs(12, size)
    settings = Augmentation(mean=(0.5,), std=(0.5,))
    boxes = draw(settings, sample_keys(12), size).boxes
    boxes[0] = torch.tensor([0, 0, size, size])
    boxes[1] = torch.tensor([size - 1, size - 1, 1, 1])
    boxes[2] = torch.tensor([3, 0, 1, size])
    flip = torch.arange(12) % 2 == 0
    expected = []
    for picture, box, mirrored in zip(images, boxes.int().tolist(), flip, strict=True):
        top, left, height, width = box
        pil = to_pil(picture).crop((left, top, left + width, top + height))
        pil = pil.resize((size, size), Image.Resampling.BILINEAR)
        expected.append(ImageOps.mirror(pil) if mirrored else pil)
    assert distance(image.crop(images, boxes, flip, size), expected) < 1.1


def test_rotate() -> None:
    size = 33
    images = photographs(6, size)
    degrees = torch.tensor([0.0, 10.0, -25.0, 90.0, 45.0, -3.0])
    result = image.rotate(images.float() / 255, degrees)
    expected = torch.stack(
        [
            from_pil(to_pil(picture).rotate(angle, Image.Resampling.BILINEAR))
            for picture, angle in zip(images, degrees.tolist(), strict=True)
        ]
    )
    y, x = torch.meshgrid(torch.arange(size) - 16.0, torch.arange(size) - 16.0, indexing="ij")
    inside = (x**2 + y**2).sqrt() < 15  # PIL treats the border otherwise
    assert float(((result - expected)[:, :, inside]).abs().max()) * 255 < 1.1
    assert float(image.rotate(torch.ones(1, 1, 8, 8), torch.tensor([45.0]))[0, 0, 0, 0]) == 0


def pil_hue(picture: Image.Image, turns: float) -> Image.Image:
    """Through HSV in float; PIL's own HSV has 256 hues only."""
    array = np.array(picture, dtype=np.float64) / 255
    shifted = [
        colorsys.hsv_to_rgb((h + turns) % 1, s, v)
        for h, s, v in (colorsys.rgb_to_hsv(*rgb) for rgb in array.reshape(-1, 3))
    ]
    levels = np.round(np.array(shifted).reshape(array.shape) * 255)
    return Image.fromarray(levels.astype(np.uint8))


def pil_jitter(picture: Image.Image, operation: int, factor: float) -> Image.Image:
    if operation == HUE:
        return pil_hue(picture, factor)
    enhancer = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[operation]
    return enhancer(picture).enhance(factor)


@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, SATURATION, HUE])
def test_jitter_one_operation(operation: int) -> None:
    images = photographs(8, 16)
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(8, 1)
    factors[:, operation] = torch.linspace(-0.5, 0.5, 8) * (1 if operation == HUE else 1.6)
    if operation != HUE:
        factors[:, operation] += 1
    expected = [
        pil_jitter(to_pil(picture), operation, float(factor))
        for picture, factor in zip(images, factors[:, operation], strict=True)
    ]
    every = torch.ones(8, dtype=torch.bool)
    result = image.jitter(images.float() / 255, every, factors, torch.arange(8))
    assert distance(result, expected) < 2


def exact_jitter(picture: np.ndarray, operation: int, factor: float) -> np.ndarray:
    """As PIL does it, but without rounding; shape (3, S, S) in [0, 1]."""
    if operation == HUE:
        shifted = [
            colorsys.hsv_to_rgb((h + factor) % 1, s, v)
            for h, s, v in (colorsys.rgb_to_hsv(*rgb) for rgb in picture.reshape(3, -1).T)
        ]
        return np.array(shifted).T.reshape(picture.shape)
    luma = np.tensordot([0.2989, 0.587, 0.114], picture, 1)
    other = {BRIGHTNESS: 0.0, CONTRAST: luma.mean(), SATURATION: luma}[operation]
    return np.clip(factor * picture + (1 - factor) * other, 0, 1)


def test_jitter_in_every_order() -> None:
    images = photographs(24, 12)
    factors = draw(SETTINGS["cifar"], sample_keys(24), 12).factors
    every = torch.ones(24, dtype=torch.bool)
    result = image.jitter(images.float() / 255, every, factors, torch.arange(24))
    rounded = []
    for n, (row, order) in enumerate(zip(factors.tolist(), ORDERS, strict=True)):
        pil, exact = to_pil(images[n]), images[n].double().numpy() / 255
        for operation in order:
            pil = pil_jitter(pil, operation, row[operation])
            exact = exact_jitter(exact, operation, row[operation])
        np.testing.assert_allclose(result[n].numpy(), exact, atol=1e-5)
        rounded.append(pil)
    # PIL cuts to whole levels four times, and what is lost the next factor may amplify.
    assert distance(result, rounded) < 6
    wrong = image.jitter(images.float() / 255, every, factors, torch.arange(24).flip(0))
    assert distance(wrong, rounded) > 10


def test_jitter_only_those_asked_for() -> None:
    images = photographs(6, 8).float() / 255
    which = torch.tensor([True, False, True, False, False, True])
    draws = draw(SETTINGS["cifar"], sample_keys(6), 8)
    result = image.jitter(images.clone(), which, draws.factors, draws.orders)
    assert torch.equal(result[~which], images[~which])
    assert not torch.isclose(result[which], images[which]).all()
    nothing = image.jitter(images.clone(), which & False, draws.factors, draws.orders)
    assert torch.equal(nothing, images)


@pytest.mark.parametrize("name", ["cifar", "imagenet", "gray"])
def test_an_accelerator_counts_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes all samples and keeps those asked for; the views are the same."""
    settings = replace(SETTINGS[name], solarize=0.3)
    images = photographs(24, 12)[:, : len(settings.mean)]
    expected = augment(images, settings, sample_keys(24))
    monkeypatch.setattr(image, "_may_count", lambda images: False)
    with monkeypatch.context() as patch:
        for reading in ("nonzero", "tolist"):
            patch.setattr(torch.Tensor, reading, None)
        found = augment(images, settings, sample_keys(24))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_hue_of_all_corners_of_the_cube() -> None:
    levels = torch.tensor([0.0, 0.2, 0.5, 1.0])
    colors = torch.cartesian_prod(levels, levels, levels)  # (64, 3), grays and ties included
    for turns in torch.linspace(-0.5, 0.5, 13).tolist():
        expected = torch.tensor(
            [
                colorsys.hsv_to_rgb((h + turns) % 1, s, v)
                for h, s, v in (colorsys.rgb_to_hsv(*rgb) for rgb in colors.tolist())
            ]
        )
        result = image.shift_hue(colors.T[None].clone(), torch.tensor([turns]))
        torch.testing.assert_close(result[0].T, expected, atol=2e-6, rtol=0)


def test_hue_matches_pillows_hsv() -> None:
    images = photographs(4, 16)
    expected = []
    for picture in images:
        hue, saturation, value = to_pil(picture).convert("HSV").split()
        levels = (np.array(hue).astype(np.int64) + 16).astype(np.uint8)
        shifted = Image.merge("HSV", (Image.fromarray(levels), saturation, value))
        expected.append(shifted.convert("RGB"))
    pixels = (images.float() / 255).flatten(2)
    result = image.shift_hue(pixels, torch.full((4,), 16 / 255)).view(4, 3, 16, 16)
    difference = (result - torch.stack([from_pil(p) for p in expected])).abs() * 255
    # Pillow cuts hue and saturation to 256 levels; one level of hue moves a channel by up to 6.
    assert float(difference.max()) < 12
    assert float(difference.mean()) < 2


def test_gray() -> None:
    images = photographs(3, 16)
    expected = [to_pil(picture).convert("L").convert("RGB") for picture in images]
    assert distance(image.gray(images.float() / 255), expected) < 0.6
    one = torch.rand(2, 1, 8, 8)
    assert torch.equal(image.gray(one), one)


@pytest.mark.parametrize("size", [4, 28, 32, 96])
def test_blur_against_numpy(size: int) -> None:
    images = photographs(5, size)
    sigmas = torch.tensor([0.1, 0.4, 1.0, 1.7, 2.0])
    radius = max(1, size // 10 // 2)
    result = image.blur(images.float() / 255, sigmas)
    for picture, sigma, blurred in zip(images, sigmas.tolist(), result, strict=True):
        kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
        kernel /= kernel.sum()
        padded = np.pad(
            picture.numpy() / 255, ((0, 0), (radius, radius), (radius, radius)), "reflect"
        )
        rows = np.apply_along_axis(np.convolve, 1, padded, kernel, "valid")
        expected = np.apply_along_axis(np.convolve, 2, rows, kernel, "valid")
        np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-5)


def test_solarize() -> None:
    images = photographs(2, 16)
    images[0, 0, 0, :4] = torch.tensor([127, 128, 0, 255])
    expected = [ImageOps.solarize(to_pil(picture), 128) for picture in images]
    assert distance(image.solarize(images.float() / 255), expected) < 0.01


def test_whole_pipeline_against_pil() -> None:
    count, size = 24, 32
    settings = Augmentation(solarize=0.3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    images, view_keys = photographs(count, size), sample_keys(count)
    draws = draw(settings, view_keys, size)
    mean, std = (
        torch.tensor(settings.mean)[:, None, None],
        torch.tensor(settings.std)[:, None, None],
    )
    result = augment(images, settings, view_keys) * std + mean
    differences = []
    for n, (top, left, height, width) in enumerate(draws.boxes.int().tolist()):
        pil = to_pil(images[n]).crop((left, top, left + width, top + height))
        pil = pil.resize((size, size), Image.Resampling.BILINEAR)
        if draws.flip[n]:
            pil = ImageOps.mirror(pil)
        if draws.jitter[n]:
            for operation in ORDERS[int(draws.orders[n])]:
                pil = pil_jitter(pil, operation, float(draws.factors[n, operation]))
        if draws.grayscale[n]:
            pil = pil.convert("L").convert("RGB")
        expected = from_pil(pil)
        if draws.blur[n]:
            expected = image.blur(expected[None], draws.sigmas[n : n + 1])[0]
        if draws.solarize[n]:
            # What lies at the threshold may be inverted on one side only.
            near = (expected - 0.5).abs() < 6 / 255
            expected = torch.where(near, result[n], image.solarize(expected))
        differences.append((result[n] - expected).abs() * 255)
    # PIL cuts to whole levels after every operation.
    assert float(torch.stack(differences).max()) < 6
    assert float(torch.stack(differences).mean()) < 1


# The whole


@pytest.mark.parametrize(("name", "channels", "size"), [("cifar", 3, 32), ("gray", 1, 28)])
def test_a_view_depends_on_its_image_and_key_alone(name: str, channels: int, size: int) -> None:
    images, view_keys = photographs(40, size, channels), sample_keys(40)
    settings = SETTINGS[name]
    whole = augment(images, settings, view_keys)
    assert torch.equal(whole, augment(images, settings, view_keys))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        augment(images[order], settings, view_keys[order]), whole[order], atol=5e-6, rtol=0
    )
    for n in range(0, 40, 7):
        alone = augment(images[n : n + 1], settings, view_keys[n : n + 1])
        torch.testing.assert_close(alone[0], whole[n], atol=5e-6, rtol=0)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images, view_keys = photographs(30, 16), sample_keys(30)
    whole = augment(images, SETTINGS["cifar"], view_keys)
    monkeypatch.setattr(image, "_CHUNK", 7 * images[:1].numel())
    torch.testing.assert_close(
        augment(images, SETTINGS["cifar"], view_keys), whole, atol=5e-6, rtol=0
    )


def test_views_and_epochs_differ() -> None:
    images, samples = photographs(8, 16), torch.arange(8)
    views = [
        augment(images, SETTINGS["cifar"], keys(0, epoch, samples, view))
        for epoch, view in ((0, 0), (0, 1), (1, 0))
    ]
    for a, b in itertools.combinations(views, 2):
        assert bool(((a - b).abs().amax((1, 2, 3)) > 0.01).all())


@pytest.mark.parametrize("size", [4, 5, 31])
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_any_size_stays_finite(name: str, size: int) -> None:
    settings = SETTINGS[name]
    channels = len(settings.mean)
    images = photographs(64, size, channels)
    images[:3] = torch.tensor([0, 255, 128], dtype=torch.uint8)[:, None, None, None]
    before = images.clone()
    result = augment(images, settings, sample_keys(64))
    assert torch.equal(images, before)
    assert result.dtype == torch.float32
    assert result.shape == images.shape
    assert result.is_contiguous()
    mean, std = torch.tensor(settings.mean), torch.tensor(settings.std)
    values = result * std[:, None, None] + mean[:, None, None]
    assert bool(values.isfinite().all())
    assert -1e-5 < float(values.min()) <= float(values.max()) < 1 + 1e-5


def test_nothing_is_plain() -> None:
    images = photographs(5, 20)
    result = augment(images, NOTHING, sample_keys(5))
    torch.testing.assert_close(result, plain(images, NOTHING), atol=2e-6, rtol=0)
    torch.testing.assert_close(plain(images, NOTHING), images.float() / 255)


def test_plain_normalizes() -> None:
    settings = SETTINGS["cifar"]
    images = photographs(5, 8)
    mean, std = torch.tensor(settings.mean), torch.tensor(settings.std)
    expected = (images.float() / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(plain(images, settings), expected)


def test_empty_batch() -> None:
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    assert augment(empty, SETTINGS["cifar"], sample_keys(0)).shape == (0, 3, 8, 8)
    assert plain(empty, SETTINGS["cifar"]).shape == (0, 3, 8, 8)


def test_noise_has_its_standard_deviation() -> None:
    settings = Augmentation(
        **{**vars(NOTHING), "noise": 0.1, "mean": (0.5,), "std": (1.0,)}  # type: ignore[arg-type]
    )
    images = torch.full((200, 1, 16, 16), 128, dtype=torch.uint8)
    result = augment(images, settings, sample_keys(200))
    assert abs(float(result.std()) - 0.1) < 0.002
    assert abs(float(result.mean())) < 0.01


# Distributions


def test_probabilities() -> None:
    count = 20_000
    settings = Augmentation(solarize=0.1, rotation=15.0, mean=(0.5,), std=(0.5,))
    draws = draw(settings, sample_keys(count), 32)
    for drawn, probability in (
        (draws.flip, 0.5),
        (draws.jitter, 0.8),
        (draws.grayscale, 0.2),
        (draws.blur, 0.5),
        (draws.solarize, 0.1),
    ):
        error = 4 * math.sqrt(probability * (1 - probability) / count)
        assert abs(float(drawn.float().mean()) - probability) < error
    low, high = torch.tensor([0.6, 0.6, 0.6, -0.1]), torch.tensor([1.4, 1.4, 1.4, 0.1])
    assert bool(((draws.factors >= low) & (draws.factors <= high)).all())
    torch.testing.assert_close(draws.factors.mean(0), (low + high) / 2, atol=0.008, rtol=0)
    counts = torch.bincount(draws.orders, minlength=24).double()
    assert len(counts) == 24
    assert float(((counts - count / 24) ** 2).sum() / (count / 24)) < 60
    assert float(draws.degrees.abs().max()) <= 15
    assert 0.1 <= float(draws.sigmas.min()) < 0.12 < 1.98 < float(draws.sigmas.max()) <= 2


def torchvision_box(size: int, scale: tuple[float, float], ratio: tuple[float, float], rng):
    for _ in range(10):
        area = size * size * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= size and 0 < height <= size:
            top, left = rng.integers(0, size - height + 1), rng.integers(0, size - width + 1)
            return top, left, height, width
    if ratio[0] > 1:
        width, height = size, round(size / ratio[0])
    elif ratio[1] < 1:
        width, height = round(size * ratio[1]), size
    else:
        width = height = size
    return (size - height) // 2, (size - width) // 2, height, width


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.7, 1.0), (1.2, 1.6)), ((0.5, 1.0), (1 / 3, 3.0))],
)
def test_crops_are_distributed_as_torchvisions(
    scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    count, size = 8_000, 32
    settings = Augmentation(crop_scale=scale, crop_ratio=ratio, mean=(0.5,), std=(0.5,))
    boxes = draw(settings, sample_keys(count), size).boxes.double().numpy()
    rng = np.random.default_rng(0)
    expected = np.array([torchvision_box(size, scale, ratio, rng) for _ in range(count)], float)
    assert bool((boxes == boxes.round()).all())
    assert boxes[:, :2].min() >= 0
    assert (boxes[:, :2] + boxes[:, 2:]).max() <= size

    def statistics(these: np.ndarray) -> list[np.ndarray]:
        top, left, height, width = these.T
        return [top, left, height, width, height * width, np.log(width / height), top * height]

    for ours, theirs in zip(statistics(boxes), statistics(expected), strict=True):
        error = math.sqrt((ours.var() + theirs.var()) / count)
        assert abs(ours.mean() - theirs.mean()) < 4.5 * error
        points = np.sort(np.concatenate([ours, theirs]))
        steps = [np.searchsorted(np.sort(x), points, side="right") / count for x in (ours, theirs)]
        assert np.abs(steps[0] - steps[1]).max() < 1.95 * math.sqrt(2 / count)  # p about 0.001


@pytest.mark.parametrize("ratio", [(1.5, 2.0), (0.25, 0.5)])
def test_crop_falls_back_to_the_center(ratio: tuple[float, float]) -> None:
    settings = Augmentation(crop_scale=(1.0, 1.0), crop_ratio=ratio, mean=(0.5,), std=(0.5,))
    boxes = draw(settings, sample_keys(4), 32).boxes
    rng = np.random.default_rng(0)
    expected = torch.tensor([torchvision_box(32, (1.0, 1.0), ratio, rng)]).float()
    assert torch.equal(boxes, expected.expand(4, 4))


# Settings and errors


def test_settings_for() -> None:
    assert settings_for(1, 28) == "gray"
    assert settings_for(3, 32) == settings_for(3, 96) == "cifar"
    assert settings_for(3, 224) == "imagenet"
    with pytest.raises(ValueError, match="1 or 3 channels"):
        settings_for(2, 32)
    assert SETTINGS["cifar"].jitter == (0.4, 0.4, 0.4, 0.1)
    assert SETTINGS["imagenet"].jitter == (0.8, 0.8, 0.8, 0.2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip": 1.5},
        {"crop_scale": (0.5, 0.2)},
        {"crop_scale": (0.5, 1.2)},
        {"blur_sigma": (0.0, 1.0)},
        {"jitter": (0.4, 0.4, 0.4, 0.6)},
        {"jitter": (0.4, -0.4, 0.4, 0.1)},
        {"rotation": -1.0},
        {"noise": -0.1},
        {"std": (0.0,)},
        {"std": (1.0, 1.0)},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Augmentation(**{"mean": (0.5,), "std": (0.5,), **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images.float(),
        lambda images: images[0],
        lambda images: images[:, :1],
        lambda images: images[:, :, :5],
    ],
)
def test_images_of_another_kind(change: Callable[[Tensor], Tensor]) -> None:
    images = change(photographs(2, 8))
    with pytest.raises(ValueError, match=r"uint8 of shape \(B, 3, S, S\)"):
        augment(images, SETTINGS["cifar"], sample_keys(2))
    with pytest.raises(ValueError, match="uint8"):
        plain(images, SETTINGS["cifar"])


def test_keys_of_another_shape() -> None:
    with pytest.raises(ValueError, match="one per image"):
        augment(photographs(2, 8), SETTINGS["cifar"], sample_keys(3))
