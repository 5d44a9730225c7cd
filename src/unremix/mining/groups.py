"""Near-duplicates and clusters of a collection of embeddings, found with the same index."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from unremix.core.checks import check_number
from unremix.mining.embeddings import Floats, Integers
from unremix.mining.index import Advance, Index

NEIGHBORS = 20  # of each row that are looked at for duplicates
AT_ONCE = 1024
FITTED = (0.5, 0.8)  # quantiles of the distance to the nearest row, beyond those of duplicates
BY_CHANCE = 0.5  # rows expected above the threshold that are no duplicates
NEARER = 0.5  # at most, of the usual distance
SMALLEST_DISTANCE = 1e-6  # what rounding leaves between two copies
FULL_KMEANS = 20_000  # rows; more are clustered in mini-batches


@dataclass(frozen=True)
class Duplicates:
    """Groups of rows that are near-duplicates of each other.

    Args:
        groups: The rows of each group, ascending; the largest group first.
        similarity: The cosine of each row and the row most similar to it, shape (n,).
        threshold: The cosine from which two rows are near-duplicates.
    """

    groups: list[Integers]
    similarity: Floats
    threshold: float


def find_duplicates(
    index: Index, units: Floats, threshold: float | None = None, advance: Advance | None = None
) -> Duplicates:
    """Rows that a chain of near-duplicates connects.

    Args:
        index: Of the rows.
        units: The rows, of length 1, shape (n, D).
        threshold: The cosine from which two rows are near-duplicates; None for the one of
            :func:`fitting_threshold`.
        advance: Called with the share of the search that is done.

    Example:
        >>> from unremix.mining.index import ExactIndex
        >>> rows = np.float32([[1, 0], [0, 1], [0.999, 0.04], [0, 1]])
        >>> [group.tolist() for group in find_duplicates(ExactIndex(rows), rows, 0.99).groups]
        [[0, 2], [1, 3]]
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    if threshold is not None:
        check_number("threshold", threshold, above=-1, most=1)
    total = len(units)
    nearest = np.full(total, -np.inf, dtype=np.float32)
    first, second, cosine = [], [], []
    for start in range(0, total, AT_ONCE):
        stop = min(start + AT_ONCE, total)
        result = index.search(units[start:stop], NEIGHBORS + 1)
        rows = np.arange(start, stop)[:, None]
        other = (result.rows >= 0) & (result.rows != rows)
        nearest[start:stop] = np.where(other, result.similarity, -np.inf).max(1)
        close = other if threshold is None else other & (result.similarity >= threshold)
        first.append(np.broadcast_to(rows, close.shape)[close])
        second.append(result.rows[close])
        cosine.append(result.similarity[close])
        if advance is not None:
            advance(stop / total)
    threshold = fitting_threshold(nearest) if threshold is None else threshold
    near = np.concatenate(cosine) >= threshold
    pairs = np.concatenate(first)[near], np.concatenate(second)[near]
    links = coo_array((np.ones(len(pairs[0]), dtype=bool), pairs), shape=(total, total))
    _, component = connected_components(links, directed=False)
    order = np.argsort(component, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(component[order])) + 1)
    groups = [group for group in groups if len(group) > 1]
    groups.sort(key=lambda group: (-len(group), group[0]))
    return Duplicates(groups, nearest, threshold)


def fitting_threshold(similarity: Floats) -> float:
    """A threshold that fits the data: a cosine that only duplicates are likely to reach.

    The distance d = 1 - cos to the nearest of many rows is about Weibull distributed, P(d < x) =
    1 - exp(-(x/s)^m). Scale s and shape m are fitted to its median and 80 % quantile, which
    duplicates do not move until they are most of the rows. At the threshold, half a row is
    expected by chance; it is at most half the usual distance, for data on a lattice.

    Args:
        similarity: The cosine of each row and the row most similar to it, shape (n,).

    Returns:
        A cosine with two digits of its distance from 1.

    Example:
        >>> rows = np.linspace(0.5, 0.7, 100, dtype=np.float32)
        >>> fitting_threshold(rows), fitting_threshold(np.append(rows, [0.9, 0.9, 0.97, 0.97]))
        (0.82, 0.83)
    """
    low, high = FITTED
    distance = np.log(np.maximum(1 - np.asarray(similarity, np.float64), SMALLEST_DISTANCE))
    median, far = np.quantile(distance, FITTED)

    def weibull(share: float) -> float:  # the logarithm of the quantile, for s = m = 1
        return math.log(-math.log1p(-share))

    inverse_shape = (far - median) / (weibull(high) - weibull(low))
    chance = min(low, BY_CHANCE / len(distance))
    limit = math.exp(median + inverse_shape * (weibull(chance) - weibull(low)))
    limit = max(SMALLEST_DISTANCE, min(limit, NEARER * math.exp(median)))
    return round(1 - float(f"{limit:.2g}"), 7)


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different rows than clusters: then some are empty
        fitted = kind(count, random_state=seed, n_init=3).fit(units)
    centers = fitted.cluster_centers_
    centers = centers / np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-12)
    sizes = np.bincount(fitted.labels_, minlength=count)
    place = np.empty(count, dtype=np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(count)
    cluster = place[fitted.labels_]
    similarity = np.einsum("nd,nd->n", units, centers[fitted.labels_]).astype(np.float32)
    order = np.lexsort((np.arange(len(units)), -similarity, cluster))
    members = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    return Clusters(members, cluster, similarity)
