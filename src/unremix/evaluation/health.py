"""Is training going well? Measures that need no labels, and what they mean in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unremix.core.checks import check_count, check_positive
from unremix.core.precision import noise, normalize
from unremix.evaluation.checks import checked_features

TILE_ENTRIES = 2**24  # distances held at a time: 64 MB in float32
SHARPNESS = 2.0  # Wang and Isola's t

# At a spread of 0.1 two samples have a cosine of about 1 - 0.1² = 0.99.
COLLAPSED_SPREAD = 0.1
# Healthy runs on ten classes of digits use 7 to 9 of 128 dimensions (6 %), collapsed ones under 4.
LOW_RANK_SHARE = 0.03
# Independent views are as far apart as two samples, a ratio of at least 1.
UNALIGNED_RATIO = 0.9
# A drop by half between two measurements is far larger than the noise between batches.
SUDDEN_DROP = 0.5
# Augmentation moves an embedding by far more than rounding does.
IDENTICAL_VIEWS = 1e-6
# A gradient made of fewer negatives follows single samples, which are often false negatives.
FEW_NEGATIVES = 3.0


@dataclass(frozen=True)
class Health:
    """What :func:`health` found.

    Args:
        spread: Standard deviation of the unit embeddings per dimension, mean over dimensions, times
            sqrt(D): 1 for an isotropic cloud, 0 when all embeddings are the same.
        effective_rank: The number of dimensions in use, see :func:`effective_rank`.
        alignment: Mean |f0 - f1|² of positives: 0 for the same direction, 2 for independent ones.
        uniformity: log mean exp(-2 |f_i - f_j|²) over pairs of different samples, mean of both
            views: 0 at worst, towards -4 for many dimensions at best.
        effective_negatives: Equally weighted negatives that would average as much as the weighted
            ones do, if known. It depends on how many samples are compared: give that of a batch.
    """

    spread: float
    effective_rank: float
    alignment: float
    uniformity: float
    effective_negatives: float | None = None


# The name and meaning of each measure. They show a collapse, not how good healthy embeddings are.
MEANINGS = {
    "spread": ("spread", "near 0 all embeddings are the same, near 1 they spread evenly"),
    "effective_rank": (
        "effective rank", "dimensions in use; near 1 is a collapse, more is not better by itself"
    ),
    "alignment": ("alignment", "how far two views of a sample are apart, at most 2 if unrelated"),
    "uniformity": ("uniformity", "from -4 for evenly spread samples to 0 for all in one place"),
    "effective_negatives": (
        "effective negatives", "that an anchor learns from; below 3 single samples decide"
    ),
}  # fmt: skip


def health_in_words(figures: Mapping[str, float]) -> list[str]:
    """The measures that need no labels, one line each, with what they mean.

    Args:
        figures: By the names of :class:`Health`.

    Example:
        >>> health_in_words({"spread": 0.27})
        ['spread 0.27 (near 0 all embeddings are the same, near 1 they spread evenly)']
    """
    lines = []
    for name, value in figures.items():
        title, meaning = MEANINGS[name]
        lines.append(f"{title} {value:.2f} ({meaning})")
    return lines


@torch.no_grad()
def effective_rank(features: Tensor) -> float:
    """The number of dimensions in which features vary, counting each by its share of the variance.

    exp(-Σ_k p_k log p_k) with p the eigenvalues of the covariance, divided by their sum: D for an
    isotropic cloud, 1 for a line, 0 where nothing varies. At most n - 1.

    Args:
        features: Shape (n, D).

    Raises:
        ValueError: If the features are empty or not finite.

    Example:
        >>> round(effective_rank(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])), 3)
        2.0

    Reference:
        Roy and Vetterli 2007, there on singular values; Garrido et al. 2023 (RankMe).
    """
    features = checked_features(features, "the features").double()
    centered = features - features.mean(0)
    # Both products have the same nonzero eigenvalues; take the smaller.
    wide = centered.shape[1] > centered.shape[0]
    values = torch.linalg.eigvalsh(centered @ centered.T if wide else centered.T @ centered)
    values = values.clamp_(min=0)
    total = float(values.sum())
    if total <= noise(values) ** 2 * float(features.square().sum()):
        return 0.0
    shares = values / total
    return math.exp(float(torch.special.entr(shares).sum()))


def _uniformity(units: Tensor) -> float:
    """Log mean exp(-2 |f_i - f_j|²) over i ≠ j, a tile of rows at a time."""
    count = units.shape[0]
    tile = max(1, TILE_ENTRIES // count)
    squares = units.square().sum(1)  # 1, and 0 for a zero vector
    total = 0.0
    for start in range(0, count, tile):
        rows = slice(start, start + tile)
        distance = torch.addmm(squares, units[rows], units.T, alpha=-2)  # (B, n)
        distance.add_(squares[rows, None]).clamp_(min=0)
        potential = distance.mul_(-SHARPNESS).exp_()
        potential.diagonal(start).zero_()
        total += float(potential.sum(dtype=torch.float64))
    return math.log(total / (count * (count - 1)))


@torch.no_grad()
def health(z0: Tensor, z1: Tensor, *, effective_negatives: float | None = None) -> Health:
    """Measure the embeddings of two views; only their directions count.

    Args:
        z0: Embeddings of the first views, shape (N, D).
        z1: Of the second views of the same samples, shape (N, D).
        effective_negatives: From :func:`unremix.audit` or the weights, to be kept with the rest.

    Raises:
        ValueError: If there are fewer than two samples, the shapes differ or an embedding is not
            finite.

    Example:
        >>> z = torch.eye(4)
        >>> found = health(z, z)
        >>> found.alignment, round(found.uniformity, 3), round(found.effective_rank, 3)
        (0.0, -4.0, 3.0)

    Reference:
        Alignment and uniformity: Wang and Isola 2020, Eq. 1 and 2 with α = 2 and t = 2.
    """
    z0, z1 = checked_features(z0, "the embeddings z0"), checked_features(z1, "the embeddings z1")
    if z0.shape != z1.shape or z0.shape[0] < 2:
        raise ValueError(
            "expected embeddings of two views of at least two samples, both of shape (N, D), "
            f"got {tuple(z0.shape)} and {tuple(z1.shape)}; give the views of one batch"
        )
    f0, f1 = normalize(z0)[0], normalize(z1.to(z0))[0]
    both = torch.cat([f0, f1])  # (2N, D)
    return Health(
        spread=float(both.std(0, correction=0).mean()) * math.sqrt(both.shape[1]),
        effective_rank=effective_rank(both),
        alignment=float((f0 - f1).square().sum(1).mean()),
        uniformity=(_uniformity(f0) + _uniformity(f1)) / 2,
        effective_negatives=effective_negatives,
    )


def warnings_of(
    health: Health,
    previous: Health | None = None,
    *,
    dimensions: int,
    samples: int | None = None,
) -> list[str]:
    """What is wrong, in plain words, and what to try; empty if nothing is.

    Ask after the first epoch, not before: the embeddings of an untrained network lie in a narrow
    cone, which is called a collapse. A falling effective rank alone is no warning, since it falls
    in healthy runs too while classes form.

    Args:
        health: The latest measurement.
        previous: The one before, to notice a sudden change.
        dimensions: D of the embeddings.
        samples: N of the measurement, if known: 2N views vary in at most 2N - 1 dimensions.

    Returns:
        One text per finding, the gravest first.

    Raises:
        ValueError: If there is no dimension, or fewer than two samples.

    Example:
        >>> found = health(torch.ones(4, 8), torch.ones(4, 8))
        >>> print(warnings_of(found, dimensions=8)[0])
        The embeddings have collapsed: all point almost the same way (spread 0.00, 1 is well
        spread). Lower the learning rate, raise the temperature or check the augmentation.
    """
    check_positive(dimensions=dimensions)
    if samples is not None:
        check_count("samples", samples, 2, "measure more")
    problems = []
    collapsed = health.spread < COLLAPSED_SPREAD
    if collapsed:
        problems.append(
            "The embeddings have collapsed: all point almost the same way "
            f"(spread {health.spread:.2f}, 1 is well spread). Lower the learning rate, raise the "
            "temperature or check the augmentation."
        )
    elif previous is not None and health.spread < SUDDEN_DROP * previous.spread:
        problems.append(
            "The embeddings are drawing together: their spread fell from "
            f"{previous.spread:.2f} to {health.spread:.2f} since the last check and may soon "
            "collapse. Lower the learning rate."
        )
    usable = dimensions if samples is None else min(dimensions, 2 * samples - 1)
    if not collapsed and health.effective_rank < LOW_RANK_SHARE * usable:
        problems.append(
            f"Only {health.effective_rank:.1f} of {usable} dimensions are in use: the embeddings "
            "lie close to a few directions. Lower the temperature, train with larger batches, or "
            "check that the views keep what distinguishes samples."
        )
    # By Jensen's inequality two samples are at least this far apart on average.
    strangers = -health.uniformity / SHARPNESS
    if not collapsed and health.alignment > UNALIGNED_RATIO * strangers:
        problems.append(
            "The two views of a sample are hardly closer to each other than to other samples "
            f"(squared distance {health.alignment:.2f}, other samples {strangers:.2f}). Weaken the "
            "augmentation, train longer, or check that row i of both views is the same sample."
        )
    if not collapsed and health.alignment < IDENTICAL_VIEWS:
        problems.append(
            "The two views of every sample are the same, so there is nothing to learn from them. "
            "Check that the augmentation is on and differs for each view."
        )
    if health.effective_negatives is not None and health.effective_negatives < FEW_NEGATIVES:
        problems.append(
            f"An anchor learns from {health.effective_negatives:.1f} negatives only, and so few "
            "may all be of its own class. Lower the hardness or train with larger batches."
        )
    return problems
