"""Images made of images: i-Mix, Un-Mix, and negatives that keep the texture alone.

A mixed image shows two images, and so has two positives among the keys. A mixing therefore returns
the images together with their targets. With L the loss of row i aimed at key j, the loss of a
mixed batch is

    Σ_targets weight · mean_i Σ_p shares_ip L(i, keys_ip),

to which the loss of the views as they were is added where the mixing keeps it. Everything drawn is
a function of keys, which no other operation may draw from: give the mixing a view of its own in
:func:`unremix.frameworks.randomness.keys`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from unremix.console.values import Checked, bounded
from unremix.core.checks import check_number
from unremix.core.gather import JointBatch, exchange_rows
from unremix.frameworks.randomness import uniforms

Box = tuple[int, int, int, int]  # top, bottom, left, right; bottom and right are outside

_SHARE_DRAWS = 2  # numbers that a share λ takes; those of a patch follow


@dataclass(frozen=True)
class Target:
    """What the rows of a mixed batch are aimed at.

    Args:
        weight: Of this target in the loss.
        keys: Rows of the keys that are a row's positives, int64, shape (N, P); counted from this
            process's first, so that those of other processes may be negative or beyond N.
        shares: Share of each positive, float64, shape (N, P); each row sums to 1.
    """

    weight: float
    keys: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Mixed:
    """A mixed batch.

    Args:
        images: Shape (N, C, S, S).
        targets: What they are aimed at; the losses are added.
    """

    images: Tensor
    targets: tuple[Target, ...]


class Mixing(Protocol):
    """A way of mixing the images of a batch."""

    @property
    def keeps_original(self) -> bool:
        """Whether the loss of the views as they were is added."""

    def __call__(
        self,
        images: Tensor,
        sample_keys: Tensor,
        batch_key: Tensor,
        joint: JointBatch | None = None,
    ) -> Mixed:
        """Mix a batch.

        Args:
            images: Shape (N, C, S, S).
            sample_keys: One key per image, int64, shape (N,).
            batch_key: The key of the batch, int64, shape (1,).
            joint: The batch of all processes, where there are several: partners come from it.
        """


def beta(numbers: Tensor, *, alpha: float) -> Tensor:
    """λ ~ Beta(α, α), exactly, from two uniform numbers u and v.

    λ = 1/2 + c sqrt(1 - w) / (2 sqrt(w + (1 - w) c²))  with  w = u^(1/α) and c = cos(2πv).

    At α = 1, where λ is uniform, it is u itself.

    Args:
        numbers: u and v, uniform on [0, 1), shape (..., 2).
        alpha: α.

    Returns:
        λ, float64, shape (...).

    Raises:
        ValueError: If α is not positive and finite.

    Example:
        >>> beta(torch.tensor([[0.25, 0.5]]), alpha=1.0)
        tensor([0.2500], dtype=torch.float64)

    Reference:
        Bailey 1994 draws Student's t with 2α degrees of freedom so; λ is (1 + t/sqrt(2α + t²))/2.
    """
    check_number("alpha", alpha, above=0)
    u, v = numbers.double().unbind(-1)
    if alpha == 1:
        return u
    w = u ** (1 / alpha)
    c = (2 * math.pi * v).cos()  # never 0 in floating point
    return 0.5 + 0.5 * c * (1 - w).sqrt() / (w + (1 - w) * c**2).sqrt()


def permutation(key: Tensor, count: int) -> Tensor:
    """Each of 0 ... N - 1 once, in a random order drawn by a key (1,); int64, shape (N,).

    Example:
        >>> permutation(torch.tensor([7]), 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    coarse, fine = uniforms(key, 2 * count)[0].double().chunk(2)
    # 48 bits, so that ties do not occur.
    return torch.argsort(coarse + fine * 2.0**-24, stable=True)


def mixup(images: Tensor, others: Tensor, lam: Tensor) -> Tensor:
    """λ_i x_i + (1 - λ_i) y_i of images x and their partners y, both (N, C, S, S).

    λ has shape (N,), or (1,) for one that all share; at λ = 1 they are the images themselves.

    Example:
        >>> images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
        >>> mixup(images, images.flip(0), torch.tensor([0.75])).flatten()
        tensor([0.2500, 0.7500])
    """
    # Half precision would round λ and leave the shares as they are.
    precise = torch.promote_types(images.dtype, torch.float32)
    lam = lam.to(images.device, precise)[:, None, None, None]
    return others.to(precise).lerp(images.to(precise), lam).to(images.dtype)


def cutmix_box(size: int, lam: float, center: tuple[int, int]) -> Box:
    """The box of CutMix: a square of side S sqrt(1 - λ), in whole pixels, clipped at the border.

    λ is the share that is to stay; the center is a row and a column, from 0 to S - 1.

    Example:
        >>> cutmix_box(8, 0.75, (4, 7))
        (2, 6, 5, 8)
    """
    side = round(size * math.sqrt(1 - lam))
    top, left = (middle - side // 2 for middle in center)
    return max(top, 0), min(top + side, size), max(left, 0), min(left + side, size)


def cutmix(images: Tensor, others: Tensor, box: Box) -> tuple[Tensor, float]:
    """Paste a box of each image's partner into the image, both (N, C, S, S).

    Returns:
        The images, shape (N, C, S, S), and λ, the share of the area that stayed.

    Example:
        >>> images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
        >>> mixed, lam = cutmix(images, images.flip(0), (0, 1, 0, 2))
        >>> mixed[0, 0], lam
        (tensor([[1., 1.], [0., 0.]]), 0.5)
    """
    top, bottom, left, right = box
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / images.shape[-1] ** 2


def i_mix(images: Tensor, order: Tensor, lam: Tensor, *, joint: JointBatch | None = None) -> Mixed:
    """Mixup whose rows are aimed at both their images, in the shares λ_i and 1 - λ_i.

    Args:
        images: Shape (N, C, S, S).
        order: The partner of each row of the batch of all processes, int64, shape (total,), on the
            CPU.
        lam: λ, shape (N,).
        joint: The batch of all processes, where there are several.

    Returns:
        The mixed images and one target.

    Example:
        >>> images = torch.zeros(2, 1, 4, 4)
        >>> mixed = i_mix(images, torch.tensor([1, 0]), torch.tensor([1.0, 0.75]))
        >>> mixed.targets[0].keys.tolist(), mixed.targets[0].shares.tolist()
        ([[0, 1], [1, 0]], [[1.0, 0.0], [0.75, 0.25]])
    """
    first = 0 if joint is None else joint.offset
    partners = (order[first : first + len(images)] - first).to(images.device, non_blocking=True)
    others = images[partners] if joint is None else exchange_rows(images, order, joint)
    lam = lam.to(images.device, torch.float64)
    own = torch.arange(len(images), device=images.device)
    target = Target(1.0, torch.stack([own, partners], dim=1), torch.stack([lam, 1 - lam], dim=1))
    return Mixed(mixup(images, others, lam), (target,))


def un_mix(
    images: Tensor, lam: float, box: Box | None = None, *, joint: JointBatch | None = None
) -> Mixed:
    """The batch mixed with its reverse, by mixup, or by CutMix where a box is given.

    L(mix, k) and L(flip(mix), k) are the same rows aimed at their own keys and at the keys in
    reverse: so one pass through the encoder serves both.

    Args:
        images: Shape (N, C, S, S).
        lam: λ of mixup; a box brings its own, the share of the area that it leaves.
        box: Top, bottom, left and right of CutMix.
        joint: The batch of all processes, where there are several: it is what is reversed.

    Returns:
        The mixed images and two targets, of weights λ and 1 - λ.

    Example:
        >>> mixed = un_mix(torch.zeros(3, 1, 4, 4), 0.75)
        >>> [(target.weight, target.keys[:, 0].tolist()) for target in mixed.targets]
        [(0.75, [0, 1, 2]), (0.25, [2, 1, 0])]
    """
    own = torch.arange(len(images), device=images.device)
    if joint is None:
        partners, others = own.flip(0), images.flip(0)
    else:
        partners = joint.total - 1 - 2 * joint.offset - own
        others = exchange_rows(images, torch.arange(joint.total).flip(0), joint)
    whole = torch.ones(len(images), 1, dtype=torch.float64, device=images.device)
    if box is None:  # λ is made on the device: copying it there would wait
        mixed = mixup(images, others, torch.full_like(whole[0], lam))
    else:
        mixed, lam = cutmix(images, others, box)
    targets = (Target(lam, own[:, None], whole), Target(1 - lam, partners[:, None], whole))
    return Mixed(mixed, targets)


@dataclass(frozen=True, kw_only=True)
class IMix(Checked):
    """i-Mix: every image with another of the batch, λ its own and at least 1/2.

    λ ~ Beta(α, α) per image, then max(λ, 1 - λ); partners by a random permutation, in which an
    image may meet itself. The mixed views replace the first views.

    Args:
        alpha: α of Beta(α, α), from which the shares are drawn.

    Raises:
        ValueError: If α is not positive and finite.

    Example:
        >>> from unremix.frameworks.randomness import keys
        >>> mixed = IMix()(
        ...     torch.rand(4, 3, 8, 8), keys(0, 0, torch.arange(4), 2), torch.tensor([5])
        ... )
        >>> mixed.images.shape, mixed.targets[0].keys.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4, 2]))

    Reference:
        Lee et al. 2021.
    """

    alpha: float = bounded(1.0, above=0, below=math.inf)
    keeps_original: ClassVar[bool] = False
    summary: ClassVar[str] = "i-Mix: mixed views in place of the first"
    section: ClassVar[str] = "mixture"

    def __call__(
        self,
        images: Tensor,
        sample_keys: Tensor,
        batch_key: Tensor,
        joint: JointBatch | None = None,
    ) -> Mixed:
        """Mix images (N, C, S, S) by keys (N,) and the batch's key (1,)."""
        _check_batch(images, sample_keys, batch_key)
        lam = beta(uniforms(sample_keys, _SHARE_DRAWS), alpha=self.alpha)
        lam = torch.maximum(lam, 1 - lam)
        order = permutation(batch_key, len(images) if joint is None else joint.total)
        return i_mix(images, order, lam, joint=joint)


@dataclass(frozen=True, kw_only=True)
class UnMix(Checked):
    """Un-Mix: the batch with its reverse, by mixup or CutMix, λ the same for all.

    λ ~ Beta(α, α) per batch. The mixed views come on top of the views as they were.

    Args:
        alpha: α of Beta(α, α), from which the shares are drawn.
        cutmix: Probability of CutMix in place of mixup.

    Raises:
        ValueError: If α is not positive and finite or the probability is none.

    Example:
        >>> mixed = UnMix()(torch.rand(4, 3, 8, 8), torch.arange(4), torch.tensor([5]))
        >>> sum(target.weight for target in mixed.targets)
        1.0

    Reference:
        Shen et al. 2022.
    """

    alpha: float = bounded(1.0, above=0, below=math.inf)
    cutmix: float = bounded(0.5, least=0, most=1)
    keeps_original: ClassVar[bool] = True
    summary: ClassVar[str] = "Un-Mix: mixed views added"
    section: ClassVar[str] = "mixture"

    def __call__(
        self,
        images: Tensor,
        sample_keys: Tensor,
        batch_key: Tensor,
        joint: JointBatch | None = None,
    ) -> Mixed:
        """Mix images (N, C, S, S) by the batch's key (1,); the keys of samples play no part."""
        _check_batch(images, sample_keys, batch_key)
        numbers = uniforms(batch_key, _SHARE_DRAWS + 3)[0]
        lam = float(beta(numbers[:_SHARE_DRAWS], alpha=self.alpha))
        choice, row, column = numbers[_SHARE_DRAWS:].tolist()
        if choice >= self.cutmix:
            return un_mix(images, lam, joint=joint)
        size = images.shape[-1]
        box = cutmix_box(size, lam, (int(row * size), int(column * size)))
        return un_mix(images, lam, box, joint=joint)


def patch_negatives(images: Tensor, sample_keys: Tensor, *, smallest: int, largest: int) -> Tensor:
    """Square patches of every image, tiled over the frame: its texture without its meaning.

    The frame is a grid of p × p tiles, p uniform in {smallest, ..., largest}. Each tile shows a
    patch of its own, at a uniform place inside the image.

    Args:
        images: Any type, shape (N, C, S, S).
        sample_keys: One key per image, int64, shape (N,).
        smallest: Least side p, in pixels.
        largest: Greatest side p, in pixels.

    Returns:
        Shape (N, C, S, S).

    Raises:
        ValueError: If no patch of some such side fits into the images, or shapes do not match.

    Example:
        >>> image = torch.arange(16.0).view(1, 1, 4, 4)
        >>> tiled = patch_negatives(image, torch.tensor([3]), smallest=2, largest=2)
        >>> tile = tiled[0, 0, 2:, 2:]
        >>> tile - tile[0, 0]  # four neighbors of the image
        tensor([[0., 1.],
                [4., 5.]])

    Reference:
        Ge et al. 2021; there p is 16 ... 72 of 224 pixels.
    """
    _check_batch(images, sample_keys)
    n, size = images.shape[0], images.shape[-1]
    if not 1 <= smallest <= largest <= size:
        raise ValueError(
            f"expected patches with 1 <= smallest <= largest <= {size}, the images' side, got "
            f"smallest {smallest} and largest {largest}; at 32 pixels 2 and 10 are usual"
        )
    across = -(-size // smallest)  # tiles in a row of the grid, at most
    draws = uniforms(sample_keys, _SHARE_DRAWS + 1 + 2 * across**2)[:, _SHARE_DRAWS:]
    # In float64 the products do not round up to the number of choices.
    of_side, of_corners = draws.to(images.device).double().split([1, 2 * across**2], dim=1)
    side = smallest + (of_side * (largest - smallest + 1)).long()  # (N, 1)
    corners = (of_corners * (size - side + 1)).long().view(n, 2, -1)  # (N, 2, tiles)
    pixel = torch.arange(size, device=images.device)
    tile, within = pixel // side, pixel % side  # (N, S)
    which = (tile[:, :, None] * across + tile[:, None, :]).flatten(1)  # (N, S * S)
    top, left = corners.gather(2, which[:, None].expand(-1, 2, -1)).view(n, 2, size, size).unbind(1)
    places = ((top + within[:, :, None]) * size + left + within[:, None, :]).flatten(1)
    flat = images.flatten(2)  # (N, C, S * S)
    return flat.gather(2, places[:, None].expand(flat.shape)).view(images.shape)


def _check_batch(images: Tensor, sample_keys: Tensor, batch_key: Tensor | None = None) -> None:
    """Refuse images and keys of other shapes and types; with ``batch_key``, whole numbers too."""
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(
            f"expected images of shape (N, C, S, S), got {tuple(images.shape)}; make them square"
        )
    drawn = {"sample_keys": (sample_keys, len(images)), "batch_key": (batch_key, 1)}
    for name, (keys, size) in drawn.items():
        if keys is not None and (keys.shape != (size,) or keys.dtype != torch.int64):
            raise ValueError(
                f"expected int64 {name} of shape ({size},), got {keys.dtype} of shape "
                f"{tuple(keys.shape)}; draw them with unremix.frameworks.randomness.keys"
            )
    if batch_key is not None and not images.is_floating_point():
        raise ValueError(
            f"expected images in floating point, got {images.dtype}; mix the augmented views"
        )
