"""Random views of images, a batch at a time, on the device the images are on.

The operations are those of torchvision and PIL, in SimCLR's order: crop and resize, flip, rotate,
jitter the colors, drop them, blur, solarize, add noise, normalize. Every sample has its own
parameters, drawn from its key. Between operations values stay floats in [0, 1]: unlike a pipeline
on PIL images, this one does not round to 256 levels after each step.

An operation that applies to only some samples is computed for those only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unremix.console.quantities import counted
from unremix.console.values import bounded, check_bounds, make_options
from unremix.frameworks.randomness import uniforms

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ORDERS = tuple(itertools.permutations(range(4)))  # of the four color operations

_TRIES = 10  # crops drawn before the central one is taken, as in torchvision
_DRAWS = 2 * _TRIES + 14  # uniform numbers a sample takes, without noise
_LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2
_CHUNK = 1 << 20  # values treated at a time: a few such tensors fit into a processor's cache
_NO_CHROMA = 1e-12
LARGEST_IMAGE = 1 << 14  # pixels per side


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How views of an image are drawn.

    Args:
        crop_scale: Least and greatest share of the area that a crop keeps.
        crop_ratio: Least and greatest ratio of a crop's width to its height.
        flip: Probability of mirroring left and right.
        jitter: Strengths of brightness, contrast, saturation and hue. The first three draw a factor
            from [max(0, 1 - strength), 1 + strength], hue a shift from [-strength, strength] turns.
        jitter_probability: Of jittering at all; the four operations come in random order.
        grayscale: Probability of dropping the colors.
        blur: Probability of a Gaussian blur, whose kernel spans a tenth of the image.
        blur_sigma: Least and greatest standard deviation of the blur, in pixels.
        solarize: Probability of inverting the values of 128 and more (of 255).
        rotation: Greatest angle of a rotation either way, in degrees; black fills the corners.
        noise: Standard deviation of Gaussian noise, as a share of the full range.
        size: Pixels along a side of a view, or of the middle that stands for the whole image; by
            default those of the image.
        mean: Subtracted from each channel at the end, as a share of the full range.
        std: Divides each channel at the end.

    Raises:
        ValueError: If a probability, a range or a strength makes no sense.

    Example:
        >>> Augmentation(flip=0.0, mean=(0.5,), std=(0.25,)).crop_scale
        (0.08, 1.0)
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = bounded(0.5, least=0, most=1)
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_probability: float = bounded(0.8, least=0, most=1)
    grayscale: float = bounded(0.2, least=0, most=1)
    blur: float = bounded(0.5, least=0, most=1)
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = bounded(0.0, least=0, most=1)
    rotation: float = bounded(0.0, least=0)
    noise: float = bounded(0.0, least=0)
    size: int | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(
                    f"expected {name} as (low, high) with 0 < low <= high, got {low, high}"
                )
        if self.crop_scale[1] > 1:
            raise ValueError(
                f"expected crop_scale of at most 1, got {self.crop_scale}; no crop is larger"
            )
        if len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[HUE] > 0.5:
            raise ValueError(
                "expected jitter as (brightness, contrast, saturation, hue), none negative and hue "
                f"at most 0.5 turns, got {self.jitter}"
            )
        if len(self.mean) != len(self.std) or not self.mean or not all(x > 0 for x in self.std):
            raise ValueError(
                "expected mean and std with one number per channel, std positive, got "
                f"{self.mean} and {self.std}"
            )


SETTINGS: dict[str, Augmentation] = {
    # SimCLR's on CIFAR, as HCL uses it.
    "cifar": Augmentation(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)),
    # SimCLR's on ImageNet, color strength 1.
    "imagenet": Augmentation(
        jitter=(0.8, 0.8, 0.8, 0.2), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    # MoCo-v2's on ImageNet: milder than SimCLR's.
    "moco": Augmentation(
        crop_scale=(0.2, 1.0), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    # One channel, such as digits: mirrored or cropped to a corner, a digit is another digit.
    "gray": Augmentation(
        crop_scale=(0.5, 1.0),
        flip=0.0,
        jitter=(0.4, 0.4, 0.0, 0.0),
        grayscale=0.0,
        blur=0.2,
        blur_sigma=(0.1, 1.0),
        rotation=10.0,
        noise=0.02,
        mean=(0.5,),
        std=(0.25,),
    ),
}


def settings_for(channels: int, image_size: int) -> str:
    """The name in :data:`SETTINGS` of what suits such images.

    Args:
        channels: 1 or 3.
        image_size: Pixels along a side; below 128, the setting for small images.

    Raises:
        ValueError: If no setting has that many channels.

    Example:
        >>> settings_for(3, 32), settings_for(3, 224), settings_for(1, 28)
        ('cifar', 'imagenet', 'gray')
    """
    if channels == 1:
        return "gray"
    if channels == 3:
        return "cifar" if image_size < 128 else "imagenet"
    raise ValueError(
        f"expected images of 1 or 3 channels, got {channels}; for others write an Augmentation"
    )


@dataclass(frozen=True)
class ImageShape:
    """What images decide about the model."""

    channels: int  # 1 or 3
    image_size: int  # pixels per side
    augmentation: str  # name of the setting in unremix.domains.image.views.SETTINGS
    middle: int | None = None  # pixels per side of what the encoder sees; image_size by default
    mean: tuple[float, ...] | None = None  # of a ready encoder; by default those of the setting
    std: tuple[float, ...] | None = None

    @property
    def settings(self) -> Augmentation:
        """The augmentation itself."""
        if self.augmentation not in SETTINGS:
            raise ValueError(
                f"expected an augmentation among {', '.join(SETTINGS)}, got {self.augmentation!r}; "
                "use the version that wrote the run, or train a new one"
            )
        given = {"size": self.middle, "mean": self.mean, "std": self.std}
        own = {name: value for name, value in given.items() if value is not None}
        return replace(SETTINGS[self.augmentation], **own)  # type: ignore[arg-type]

    @property
    def seen(self) -> int:
        """Pixels per side of what the encoder sees."""
        return self.middle or self.image_size

    @property
    def preparation(self) -> str:
        """How images are prepared, in a few words."""
        cut = f", its middle {self.seen}" if self.middle else ""
        numbers = (
            f"{name} {' '.join(f'{one:.4g}' for one in values)}"
            for name, values in (("mean", self.settings.mean), ("std", self.settings.std))
        )
        return f"the central square, resized to {self.image_size}{cut} pixels; {', '.join(numbers)}"


def shape_from(values: dict[str, Any]) -> ImageShape:
    """The shape from plain values."""
    shape: ImageShape = make_options(ImageShape, values)
    sound = 1 <= shape.seen <= shape.image_size <= LARGEST_IMAGE and shape.channels in (1, 3)
    if not sound:
        raise ValueError(f"expected 1 or 3 channels and a size in pixels, got {shape}")
    for name, numbers in (("mean", shape.mean), ("std", shape.std)):
        if numbers is not None and len(numbers) != shape.channels:
            raise ValueError(
                f"expected a {name} of {counted(shape.channels, 'channel')}, got one of "
                f"{counted(len(numbers), 'channel')}"
            )
    return shape


def prepared(
    size: int = 224,
    resize: int | None = None,
    mean: Sequence[float] = SETTINGS["imagenet"].mean,
    std: Sequence[float] = SETTINGS["imagenet"].std,
    channels: int | None = None,
) -> ImageShape:
    """How a ready encoder wants its images: the central square, resized, its middle, normalized.

    Args:
        size: Pixels per side of what it sees.
        resize: Pixels per side before the middle is cut out; ``size`` by default.
        mean: Of each channel, in 0..1.
        std: Of each channel.
        channels: How many; as many as there are means by default.

    Raises:
        TypeError, ValueError: For values that no image can be prepared by.
    """
    kept = resize or size
    shape = shape_from(
        {
            "channels": len(mean) if channels is None else channels, "image_size": kept,
            "augmentation": "gray", "middle": None if kept == size else size,
            "mean": mean, "std": std,
        }
    )  # fmt: skip
    assert shape.settings  # checks the numbers
    return shape


@dataclass(frozen=True)
class Draws:
    """The parameters of B views.

    Args:
        boxes: Top, left, height and width of the crops in whole pixels, float32, shape (B, 4).
        flip: Whether to mirror, bool, shape (B,).
        degrees: Angles, counter-clockwise, shape (B,).
        jitter: Whether to jitter the colors, bool, shape (B,).
        factors: For brightness, contrast and saturation; then the hue's shift; shape (B, 4).
        orders: Which of :data:`ORDERS`, int64, shape (B,).
        grayscale: Whether to drop the colors, bool, shape (B,).
        blur: Whether to blur, bool, shape (B,).
        sigmas: Standard deviations of the blur, shape (B,).
        solarize: Whether to solarize, bool, shape (B,).
    """

    boxes: Tensor
    flip: Tensor
    degrees: Tensor
    jitter: Tensor
    factors: Tensor
    orders: Tensor
    grayscale: Tensor
    blur: Tensor
    sigmas: Tensor
    solarize: Tensor


def draw(settings: Augmentation, keys: Tensor, size: int) -> Draws:
    """The parameters of one view per key (B,), of images of S = ``size`` pixels along a side."""
    u = uniforms(keys, _DRAWS)  # (B, draws)
    crops, u = u[:, : 2 * _TRIES + 2], u[:, 2 * _TRIES + 2 :]
    *blends, hue = settings.jitter
    lowest = _constant(u, (*(max(0.0, 1 - strength) for strength in blends), -hue))
    highest = _constant(u, (*(1 + strength for strength in blends), hue))
    return Draws(
        boxes=crop_boxes(settings, crops, size),
        flip=u[:, 0] < settings.flip,
        degrees=_between(u[:, 1], -settings.rotation, settings.rotation),
        jitter=u[:, 2] < settings.jitter_probability,
        factors=lowest + u[:, 3:7] * (highest - lowest),
        orders=(u[:, 7] * len(ORDERS)).long(),
        grayscale=u[:, 8] < settings.grayscale,
        blur=u[:, 9] < settings.blur,
        sigmas=_between(u[:, 10], *settings.blur_sigma),
        solarize=u[:, 11] < settings.solarize,
    )


def crop_boxes(settings: Augmentation, numbers: Tensor, size: int) -> Tensor:
    """Crops of random area and shape: the first of ten tries that fits, else the largest central.

    Areas are uniform, ratios uniform on a logarithmic scale, sides rounded to whole pixels.

    Args:
        settings: The ranges.
        numbers: Uniform on [0, 1), shape (B, 22): ten areas, ten ratios, two offsets.
        size: S, pixels along a side of the images.

    Returns:
        Top, left, height and width, float32, shape (B, 4).

    Reference:
        torchvision, RandomResizedCrop.
    """
    areas, ratios, offsets = numbers.split([_TRIES, _TRIES, 2], dim=1)
    areas = _between(areas, *settings.crop_scale) * size**2
    ratios = _between(ratios, *(math.log(ratio) for ratio in settings.crop_ratio)).exp()
    widths = (areas * ratios).sqrt().round()  # (B, tries)
    heights = (areas / ratios).sqrt().round()
    fits = (widths > 0) & (widths <= size) & (heights > 0) & (heights <= size)
    first = fits.int().argmax(1, keepdim=True)  # (B, 1)
    sides = torch.cat([heights.gather(1, first), widths.gather(1, first)], dim=1)  # (B, 2)
    corners = (offsets * (size - sides + 1)).floor()
    # The product may round up to the number of places.
    corners = torch.minimum(corners, size - sides)
    narrowest, widest = settings.crop_ratio
    central = (min(size, round(size / narrowest)), min(size, round(size * widest)))
    none = ~fits.any(1, keepdim=True)
    sides = torch.where(none, _constant(sides, central), sides)
    corners = torch.where(none, ((size - sides) / 2).floor(), corners)
    return torch.cat([corners, sides], dim=1)


def crop(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Cut the boxes out, stretch them to one size bilinearly, and mirror some.

    A crop is hardly larger than the result, so that no filter is needed against aliasing. Pixels
    outside a box do not leak in.

    Args:
        images: uint8, shape (B, C, S, S).
        boxes: Top, left, height and width, shape (B, 4).
        flip: Which to mirror, bool, shape (B,).
        size: T, pixels along a side of the result.

    Returns:
        float32 in [0, 1], shape (B, C, T, T).
    """
    middles = torch.arange(size, device=images.device) + 0.5
    corners, sides = boxes[:, :2, None], boxes[:, 2:, None]  # (B, 2, 1)
    places = (middles * (sides / size)).clamp_(min=0.5).minimum(sides - 0.5) + corners  # (B, 2, T)
    rows, columns = places.mul_(2 / images.shape[-1]).sub_(1).unbind(1)  # the image spans [-1, 1]
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    # (x, y) of every pixel in one pass: (x, 0) along a row, plus y times (0, 1).
    across = torch.stack([columns, torch.zeros_like(columns)], dim=2).view(-1, 1, 2 * size)
    only_y = _constant(columns, (0.0, 1.0)).repeat(size)
    grid = torch.addcmul(across, rows[:, :, None], only_y).view(-1, size, size, 2)
    return F.grid_sample(_to_float(images), grid, padding_mode="border", align_corners=False)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate images (B, C, S, S) by degrees (B,) counter-clockwise about the center, bilinearly.

    The corners become black.
    """
    angles = torch.deg2rad(degrees)
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def jitter(images: Tensor, which: Tensor, factors: Tensor, orders: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, in each sample's own order, in place.

    Three of them blend the image with another and clamp to [0, 1]:

    x ← f x + (1 - f) t,  t = 0 (brightness), the mean of gray(x) (contrast), gray(x) (saturation).

    That is one product with a C x C matrix per sample, whichever of the three it is. The hue is
    shifted before, between or after the three; samples are sorted by where, so that each group is
    shifted at once.

    Args:
        images: In [0, 1], shape (B, C, S, S); changed. With one channel saturation and hue do
            nothing.
        which: Which samples to change, bool, shape (B,).
        factors: f of brightness, contrast and saturation; shift of the hue in turns; shape (B, 4).
        orders: Which of :data:`ORDERS`, shape (B,).

    Returns:
        ``images``.
    """
    blends, turns = _order_tables(images.device)
    turn = torch.where(which, turns[orders], len(turns))  # blends before the hue, (B,)
    if _may_count(images):
        sizes = torch.bincount(turn, minlength=len(turns) + 1)[: HUE + 1].tolist()
        chosen = turn.argsort(stable=True)[: sum(sizes)]  # (n,)
        factors, orders = factors[chosen], orders[chosen]
        pixels = images.index_select(0, chosen).flatten(2)  # (n, C, P)
    else:  # all samples are computed in every pass
        pixels = images.flatten(2)
    matrices, to_mean = _blends(factors, blends[orders], _luma(images))  # (n, 3, C, C), (n, 3, C)
    for step in range(HUE + 1):
        if images.shape[1] == 3 and _may_count(images):
            group = slice(sum(sizes[:step]), sum(sizes[: step + 1]))
            shift_hue(pixels[group], factors[group, HUE])
        elif images.shape[1] == 3:
            shifted = shift_hue(pixels.clone(), factors[:, HUE])
            pixels = torch.where((turn == step)[:, None, None], shifted, pixels)
        if step < HUE:
            offset = (pixels.mean(2) * to_mean[:, step]).sum(1)[:, None, None]  # (n, 1, 1)
            pixels = torch.baddbmm(offset, matrices[:, step], pixels).clamp_(0, 1)
    if _may_count(images):
        return images.index_copy_(0, chosen, pixels.view(-1, *images.shape[1:]))
    _change(images, which, lambda _: pixels.view_as(images))
    return images


def _blends(factors: Tensor, sequence: Tensor, luma: Tensor) -> tuple[Tensor, Tensor]:
    """Each blend as M x + w·mean(x): M of shape (B, 3, C, C), w of shape (B, 3, C)."""
    factor = factors.gather(1, sequence)[..., None]  # (B, 3, 1)
    rest = (1 - factor) * luma  # (B, 3, C)
    operation = sequence[..., None]
    matrices = factor[..., None] * torch.eye(len(luma), device=luma.device)
    matrices = matrices + (rest * (operation == SATURATION))[..., None, :]
    return matrices, rest * (operation == CONTRAST)


def shift_hue(pixels: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue in HSV, in place; value and saturation stay.

    With v the greatest, m the least of the channels and c = v - m, the hue's distance from red is
    θ = (v - 2m + g + b - r) / 6c turns, towards green where g > b, else towards blue. A channel
    whose own hue lies δ turns from the new one is m + c clamp(2 - 6δ, 0, 1).

    Args:
        pixels: In [0, 1], shape (B, 3, P); changed.
        shift: Turns, from -1/2 to 1/2, shape (B,).

    Returns:
        ``pixels``.
    """
    red, green, blue = pixels.unbind(1)  # (B, P)
    greatest = torch.maximum(red, green)
    torch.maximum(greatest, blue, out=greatest)
    least = torch.minimum(red, green)
    torch.minimum(least, blue, out=least)
    chroma = (greatest - least).mul_(6)  # 6c
    hue = greatest.sub_(least, alpha=2).add_(green).add_(blue).sub_(red)
    hue.div_(chroma + _NO_CHROMA)
    torch.copysign(hue, green - blue, out=hue)
    hue.add_(shift[:, None] + 1).frac_()  # at least 1 - 1/2 - 1/2 turns, hence not negative

    # Green and blue: m + 2c - 6c clamp(δ, 1/6, 1/3). Red's own hue is at both ends of [0, 1], so
    # its distance is taken from cyan, opposite: m - c + 6c clamp(1/2 - δ, 1/6, 1/3).
    upper = least.add(chroma, alpha=1 / 3)
    lower = least.sub_(chroma, alpha=1 / 6)
    for channel, center, base, sign in (
        (red, 1 / 2, lower, 1),
        (green, 1 / 3, upper, -1),
        (blue, 2 / 3, upper, -1),
    ):
        torch.sub(hue, center, out=channel).abs_().clamp_(1 / 6, 1 / 3)
        torch.addcmul(base, channel, chroma, value=sign, out=channel)
    return pixels


def gray(images: Tensor) -> Tensor:
    """Luma 0.2989 r + 0.587 g + 0.114 b in every channel of images (B, C, S, S), if C is not 1."""
    if images.shape[1] == 1:
        return images
    luma = _luma(images) @ images.flatten(2)  # (B, P)
    return luma.view(-1, 1, *images.shape[2:]).expand_as(images)


def blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """Gaussian blur G x Gᵀ of images x (B, C, S, S), G a band matrix per sample.

    Borders are reflected. The standard deviations (B,) are in pixels. The kernel spans
    2 max(1, ⌊S/10⌋ div 2) + 1 pixels: 3 at 32 pixels, 23 at 224, as in SimCLR.
    """
    batch, channels, size, _ = images.shape
    radius = max(1, size // 10 // 2)
    distances = torch.arange(radius + 1, device=images.device)
    weights = (-0.5 * (distances / sigmas[:, None]) ** 2).exp()  # (B, R + 1)
    # Subnormal numbers would slow the products down many times over.
    weights = weights.masked_fill(weights < 1e-9, 0.0)
    weights /= 2 * weights.sum(1, keepdim=True) - weights[:, :1]
    bands = (weights @ _band_basis(size, radius, images.device)).view(batch, size, size)
    # One large product per sample along either axis, rather than one per channel.
    along_rows = images.reshape(batch, channels * size, size) @ bands.mT
    along_rows = along_rows.view(images.shape).transpose(1, 2)  # (B, S, C, S)
    both = bands @ along_rows.reshape(batch, size, channels * size)
    return both.view(batch, size, channels, size).transpose(1, 2)


def solarize(images: Tensor) -> Tensor:
    """Invert values in [0, 1] that, of 255, round to 128 or more."""
    return torch.where(images >= 0.5, 1 - images, images)


def gaussians(keys: Tensor, count: int) -> Tensor:
    """Standard normal numbers that no other operation uses, (B, count), by Box and Muller."""
    half = (count + 1) // 2
    radii, angles = uniforms(keys, _DRAWS + 2 * half)[:, _DRAWS:].split(half, dim=1)
    radii = (1 - radii).log_().mul_(-2).sqrt_()
    angles = angles * (2 * math.pi)
    return torch.cat([radii * angles.cos(), radii * angles.sin()], dim=1)[:, :count]


def augment(images: Tensor, settings: Augmentation, keys: Tensor) -> Tensor:
    """A random view of every image; each depends on its image and its key alone.

    Args:
        images: uint8, shape (B, C, S, S).
        settings: What to draw from.
        keys: From :func:`unremix.frameworks.randomness.keys`, shape (B,).

    Returns:
        Normalized, float32, shape (B, C, S, S).

    Raises:
        ValueError: If the images have another type or shape, or the keys do not match.

    Example:
        >>> from unremix.frameworks.randomness import keys
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, SETTINGS["cifar"], keys(0, 0, torch.arange(2), view=0)).shape
        torch.Size([2, 3, 32, 32])
    """
    _check(images, settings)
    if keys.shape != images.shape[:1]:
        raise ValueError(
            f"expected keys of shape ({len(images)},), one per image, got {tuple(keys.shape)}; "
            "draw them with unremix.frameworks.randomness.keys"
        )
    size = settings.size or images.shape[-1]
    result = images.new_empty((*images.shape[:2], size, size), dtype=torch.float32)
    parts = math.ceil(images.numel() / _CHUNK) or 1
    for inputs, outputs, some in zip(
        images.chunk(parts), result.chunk(parts), keys.chunk(parts), strict=True
    ):
        _normalize(_distort(inputs, settings, some), settings, outputs)
    return result


def plain(images: Tensor, settings: Augmentation) -> Tensor:
    """The images as they are, normalized: for evaluation.

    Args:
        images: uint8, shape (B, C, S, S).
        settings: Gives the size, mean and standard deviation.

    Returns:
        float32, shape (B, C, S, S), or the middle of this size.

    Raises:
        ValueError: If the images have another type or shape.

    Example:
        >>> white = torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)
        >>> plain(white, SETTINGS["gray"]).unique()
        tensor([2.])
    """
    _check(images, settings)
    if settings.size is not None:
        first = (images.shape[-1] - settings.size) // 2
        images = images[..., first:, first:][..., : settings.size, : settings.size]
    floats = _to_float(images)
    return _normalize(floats, settings, floats)


def _distort(images: Tensor, settings: Augmentation, keys: Tensor) -> Tensor:
    """Everything but the normalization: uint8 (B, C, S, S) -> float32 in [0, 1]."""
    draws = draw(settings, keys, images.shape[-1])
    x = crop(images, draws.boxes, draws.flip, settings.size or images.shape[-1])
    if settings.rotation:
        x = rotate(x, draws.degrees)
    if settings.jitter_probability and any(settings.jitter):
        jitter(x, draws.jitter, draws.factors, draws.orders)
    if settings.grayscale and x.shape[1] > 1:
        _change(x, draws.grayscale, gray)
    if settings.blur:
        _change(x, draws.blur, blur, draws.sigmas)
    if settings.solarize:
        _change(x, draws.solarize, solarize)
    if settings.noise:
        x.add_(gaussians(keys, x[:1].numel()).view(x.shape), alpha=settings.noise).clamp_(0, 1)
    return x


def _may_count(x: Tensor) -> bool:
    """Whether to count which samples are changed; of an accelerator, the host would wait for it."""
    return x.device.type == "cpu"


def _change(x: Tensor, which: Tensor, change: Callable[..., Tensor], *given: Tensor) -> None:
    """Change the chosen samples of (B, C, S, S), in place, by what is given of each, (B, ...)."""
    if _may_count(x):
        chosen = which.nonzero()[:, 0]
        x.index_copy_(0, chosen, change(x[chosen], *(one[chosen] for one in given)))
    else:
        x.copy_(torch.where(which[:, None, None, None], change(x, *given), x))


def _to_float(images: Tensor) -> Tensor:
    """From 0 ... 255 to [0, 1]."""
    return images.float().mul_(1 / 255)


def _normalize(images: Tensor, settings: Augmentation, result: Tensor) -> Tensor:
    mean, std = _constant(images, (settings.mean, settings.std))[:, :, None, None]
    return torch.sub(images, mean, out=result).div_(std)


def _check(images: Tensor, settings: Augmentation) -> None:
    channels = len(settings.mean)
    if (
        images.dtype != torch.uint8
        or images.ndim != 4
        or images.shape[1] != channels
        or images.shape[2] != images.shape[3]
    ):
        raise ValueError(
            f"expected images as uint8 of shape (B, {channels}, S, S) for these settings, got "
            f"{images.dtype} of shape {tuple(images.shape)}; settings_for names the right settings"
        )


def _between(numbers: Tensor, low: float, high: float) -> Tensor:
    """Numbers in [0, 1) stretched to [low, high)."""
    return low + numbers * (high - low)


def _luma(images: Tensor) -> Tensor:
    """Weights of the channels in the gray image, shape (C,)."""
    return _constant(images, _LUMA if images.shape[1] == 3 else (1.0,))


def _constant(like: Tensor, values: tuple[Any, ...]) -> Tensor:
    """Numbers on the device of a tensor and of its kind, which are copied there once."""
    return _copied(values, like.dtype, like.device)


@lru_cache(maxsize=64)
def _copied(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device="cpu").to(device)


@lru_cache(maxsize=8)
def _order_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each order: its blends, shape (24, 3), and how many come before the hue, shape (24,)."""
    blends = tuple(tuple(one for one in order if one != HUE) for order in ORDERS)
    turns = tuple(order.index(HUE) for order in ORDERS)
    return _copied(blends, torch.int64, device), _copied(turns, torch.int64, device)


@lru_cache(maxsize=8)
def _band_basis(size: int, radius: int, device: torch.device) -> Tensor:
    """Matrices that add up each pixel's two neighbors at a distance, shape (R + 1, S * S)."""
    basis = torch.zeros(radius + 1, size, size)
    pixels = torch.arange(size)
    for distance in range(radius + 1):
        for neighbors in {pixels + distance, pixels - distance} if distance else {pixels}:
            inside = (size - 1) - ((size - 1) - neighbors.abs()).abs()  # reflected at both ends
            basis[distance].index_put_((pixels, inside), torch.ones(size), accumulate=True)
    return basis.view(radius + 1, -1).to(device)
