"""Near-duplicates and clusters of a collection of embeddings, found with the same index."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unremix.core.checks import check_number
from unremix.mining.embeddings import Floats, Integers
from unremix.mining.index import Advance, Index

NEIGHBORS = 20  # of each row that are looked at for duplicates
AT_ONCE = 1024
NEAR_DUPLICATE = 0.1  # of the usual distance to the nearest neighbor
SMALLEST_DISTANCE = 1e-6  # what rounding leaves between two copies
FULL_KMEANS = 20_000  # rows; more are clustered in mini-batches


@dataclass(frozen=True)
class Duplicates:
    """Groups of rows that are near-duplicates of each other.

    Args:
        groups: The rows of each group, ascending; the largest group first.
        similarity: The cosine of each row and the row most similar to it, shape (n,).
    """

    groups: list[Integers]
    similarity: Floats


def find_duplicates(
    index: Index, units: Floats, threshold: float, advance: Advance | None = None
) -> Duplicates:
    """Rows that a chain of near-duplicates connects.

    Args:
        index: Of the rows.
        units: The rows, of length 1, shape (n, D).
        threshold: The cosine from which two rows are near-duplicates.
        advance: Called with the share of the search that is done.

    Example:
        >>> from unremix.mining.index import ExactIndex
        >>> rows = np.float32([[1, 0], [0, 1], [0.999, 0.04], [0, 1]])
        >>> [group.tolist() for group in find_duplicates(ExactIndex(rows), rows, 0.99).groups]
        [[0, 2], [1, 3]]
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    check_number("threshold", threshold, above=-1, most=1)
    total = len(units)
    nearest = np.full(total, -np.inf, dtype=np.float32)
    first, second = [], []
    for start in range(0, total, AT_ONCE):
        stop = min(start + AT_ONCE, total)
        found = index.search(units[start:stop], NEIGHBORS + 1)
        rows = np.arange(start, stop)[:, None]
        other = (found.rows >= 0) & (found.rows != rows)
        nearest[start:stop] = np.where(other, found.similarity, -np.inf).max(1)
        close = other & (found.similarity >= threshold)
        first.append(np.broadcast_to(rows, close.shape)[close])
        second.append(found.rows[close])
        if advance is not None:
            advance(stop / total)
    pairs = np.concatenate(first), np.concatenate(second)
    links = coo_array((np.ones(len(pairs[0]), dtype=bool), pairs), shape=(total, total))
    _, component = connected_components(links, directed=False)
    order = np.argsort(component, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(component[order])) + 1)
    groups = [group for group in groups if len(group) > 1]
    return Duplicates(sorted(groups, key=lambda group: (-len(group), group[0])), nearest)


def fitting_threshold(similarity: Floats) -> float | None:
    """A threshold that fits the encoder: a tenth of the usual distance to the nearest row.

    Args:
        similarity: The cosine of each row and the row most similar to it, shape (n,).

    Returns:
        A cosine with two digits of its distance from 1; None if most rows have a copy.

    Example:
        >>> fitting_threshold(np.float32([0.9, 0.958, 0.97]))
        0.9958
    """
    distance = NEAR_DUPLICATE * (1 - float(np.median(similarity)))
    return None if distance < SMALLEST_DISTANCE else round(1 - float(f"{distance:.2g}"), 7)


@dataclass(frozen=True)
class Clusters:
    """Rows in clusters; the largest cluster has number 0.

    Args:
        members: The rows of each cluster, the most central first.
        cluster: The cluster of each row, shape (n,).
        similarity: The cosine of each row and its cluster's center, shape (n,).
    """

    members: list[Integers]
    cluster: Integers
    similarity: Floats


def usual_clusters(total: int) -> int:
    """√(n/2) clusters of n rows, at least 2 if there are 2 rows.

    Example:
        >>> usual_clusters(20_000)
        100
    """
    return min(total, max(2, round(math.sqrt(total / 2))))


def find_clusters(units: Floats, count: int | None = None, seed: int = 0) -> Clusters:
    """Clusters by k-means on the sphere: rows and centers of length 1.

    Args:
        units: Of length 1, shape (n, D).
        count: How many; √(n/2) by default.
        seed: Of the start.

    Raises:
        ValueError: If there are fewer rows than clusters.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans  # type: ignore[import-untyped]

    count = usual_clusters(len(units)) if count is None else count
    if not 1 <= count <= len(units):
        raise ValueError(
            f"expected 1 to {len(units)} clusters of as many rows, got {count}; ask for fewer"
        )
    kind = KMeans if len(units) <= FULL_KMEANS else MiniBatchKMeans
    found = kind(count, random_state=seed, n_init=3).fit(units)
    centers = found.cluster_centers_
    centers = centers / np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-12)
    sizes = np.bincount(found.labels_, minlength=count)
    place = np.empty(count, dtype=np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(count)
    cluster = place[found.labels_]
    similarity = np.einsum("nd,nd->n", units, centers[found.labels_]).astype(np.float32)
    order = np.lexsort((np.arange(len(units)), -similarity, cluster))
    members = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    return Clusters(members, cluster, similarity)
