"""Two dimensions of many: where each item lies on the map."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

LANDMARKS = 1500  # t-SNE of 1,500 items takes 4 s on one core, of 10,000 a minute and a half
COMPONENTS = 50
NEAREST = 3


def project(features: NDArray[np.float32]) -> tuple[NDArray[np.float32], str]:
    """Place items on a plane, those with similar embeddings close together.

    UMAP if it is installed; else PCA to 50 dimensions, then t-SNE. Of more than 1,500 items, t-SNE
    places 1,500; each of the others comes to lie among the three most similar of them.

    Args:
        features: Embeddings of unit length, shape (n, F).

    Returns:
        Positions within the square from 0 to 1, shape (n, 2), and the name of the method.

    Example:
        >>> positions, how = project(np.eye(3, dtype=np.float32))
        >>> positions.shape, how
        ((3, 2), 'PCA')
    """
    count = len(features)
    if count < 8 or _are_equal(features):
        return _square(_pca(features, 2)), "PCA"
    try:
        from umap import UMAP  # type: ignore[import-not-found]
    except ImportError:  # another package of this name included
        UMAP = None
    if UMAP is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # UMAP's own, such as threads and a seed
            placed = UMAP(metric="cosine", random_state=0).fit_transform(features)
        return _square(placed), "UMAP"
    reduced = _pca(features, COMPONENTS)
    order = np.random.default_rng(0).permutation(count)
    landmarks, others = np.sort(order[:LANDMARKS]), np.sort(order[LANDMARKS:])
    if _are_equal(reduced[landmarks]):  # t-SNE divides by their spread, and crashes
        return _square(reduced[:, :2]), "PCA"
    positions = np.empty((count, 2), np.float32)
    positions[landmarks] = _square(_tsne(reduced[landmarks]))
    if not len(others):
        return _square(positions), "PCA, then t-SNE"
    for part in np.array_split(others, -(-len(others) // 1024)):
        similarity = features[part] @ features[landmarks].T  # (B, L)
        nearest = np.argpartition(-similarity, NEAREST, axis=1)[:, :NEAREST]
        values = np.take_along_axis(similarity, nearest, 1)
        weights = np.exp((values - values.max(1, keepdims=True)) / 0.02)
        weights /= weights.sum(1, keepdims=True)
        around = positions[landmarks][nearest]  # (B, 3, 2)
        positions[part] = (weights[:, :, None] * around).sum(1)
    # Items whose nearest landmark is the same would hide each other.
    positions[others] += np.random.default_rng(1).normal(0, 0.004, (len(others), 2))
    return _square(positions), f"PCA, then t-SNE of {LANDMARKS:,} items; the others among these"


def _are_equal(rows: NDArray[np.float32]) -> bool:
    """Whether rows differ by rounding alone, as those of a collapsed encoder do."""
    return float(np.ptp(rows, axis=0).max()) < 1e-5


def _tsne(reduced: NDArray[np.float32]) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(reduced) - 1) / 3)
    found: NDArray[np.float32] = TSNE(
        init="pca", perplexity=perplexity, max_iter=400, random_state=0
    ).fit_transform(reduced)
    return found


def _pca(features: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    centered = features - features.mean(0)
    _, vectors = np.linalg.eigh(centered.T @ centered)
    found: NDArray[np.float32] = centered @ vectors[:, ::-1][:, :size]
    padded: NDArray[np.float32] = np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))
    return padded


def _square(points: NDArray[np.float32]) -> NDArray[np.float32]:
    low, high = points.min(0), points.max(0)
    span = np.maximum(high - low, 1e-9)
    scaled: NDArray[np.float32] = ((points - low) / span).astype(np.float32)
    return scaled
