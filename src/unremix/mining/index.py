"""The most similar rows of a corpus for each query: exactly, in blocks, or by faiss.

Similarity is the cosine everywhere. Letters: B queries, C rows of the corpus, D dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unremix.console.suggestions import needed_for
from unremix.core.checks import check_choice
from unremix.files.seals import read_sealed, write_sealed
from unremix.mining.embeddings import AT_ONCE, Flags, Floats, Integers, digest_of, unit_rows

Kind = Literal["exact", "flat", "ivf", "hnsw"]

GROUP = 32  # similarities of which only the largest is looked at first
WIDTH = 8192  # rows of the corpus that are compared at a time
HNSW_LINKS = 32
HNSW_WIDTH = 128  # of the search for neighbors, when the graph is built and when it is used
LISTS_PER_ROOT = 4  # an IVF index has 4 √C lists
PROBED = 16  # one list in 16 is searched
TRAINED_ON = 40  # rows per list
TRAINING_ROUNDS = 10
GROWTH = 4  # by how much more is asked of faiss where too little remained
LARGEST_GROWTH = 16  # after which the rows are searched exactly

Advance = Callable[[float], None]
"""Called with the share of the work that is done."""


@dataclass(frozen=True)
class Allowed:
    """Which rows may be found for B queries.

    Args:
        highest: The largest similarity allowed, shape (B,).
        query: The query of each forbidden pair, shape (n,).
        row: Its row, shape (n,), ascending.
    """

    highest: Floats
    query: Integers
    row: Integers

    @classmethod
    def everything(cls, queries: int) -> Allowed:
        """All rows of the corpus, for B queries."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(np.full(queries, np.inf, dtype=np.float32), nothing, nothing)

    def of(self, queries: Integers) -> Allowed:
        """The same for some of the queries, given by ascending numbers."""
        place = np.full(len(self.highest), -1, dtype=np.int64)
        place[queries] = np.arange(len(queries))
        kept = place[self.query] >= 0
        return Allowed(self.highest[queries], place[self.query[kept]], self.row[kept])

    def forbids(self, rows: Integers, corpus: int) -> Flags:
        """Whether each of the rows (B, n) is one of its query's forbidden ones."""
        keys = np.arange(len(rows), dtype=np.int64)[:, None] * corpus + rows
        return np.isin(keys, self.query * corpus + self.row)


@dataclass(frozen=True)
class SearchResult:
    """The most similar rows that are allowed.

    Args:
        rows: Most similar first, equal ones by number, shape (B, n); -1 if fewer are allowed.
        similarity: Shape (B, n); -inf if fewer are allowed.
        above: How many rows were refused because they are too similar, shape (B,). An approximate
            index counts those that it came across.
    """

    rows: Integers
    similarity: Floats
    above: Integers


def make_index(corpus: NDArray[Any], kind: Kind = "exact", folder: Path | None = None) -> Index:
    """An index of a corpus.

    Args:
        corpus: Shape (C, D); may be mapped from disk.
        kind: ``exact``: no index, all rows in blocks. By faiss: ``flat`` (exact, a copy in
            memory), ``ivf`` (4 √C lists, one in 16 searched), ``hnsw`` (a graph).
        folder: Keeps an ``ivf`` or ``hnsw`` index, so that it is built once for a corpus. One that
            another user or machine wrote, or that is damaged, is built again.

    Raises:
        ValueError: For another kind.
        ImportError: If faiss is needed and missing.
    """
    check_choice("index", kind, get_args(Kind))
    return ExactIndex(corpus) if kind == "exact" else FaissIndex(corpus, kind, folder)


class ExactIndex:
    """All rows, a block at a time; the corpus may stay on disk.

    The products are NumPy's. A block's similarities are reduced to the largest of each 32 before
    they are compared with what was found so far, so that choosing costs little beside the
    products: 1,000 queries in 1,000,000 rows of 384 take less than faiss's ``IndexFlatIP``
    (benchmarks/mining.py).

    Args:
        corpus: Shape (C, D).
    """

    kind: Kind = "exact"

    def __init__(self, corpus: NDArray[Any]) -> None:
        self.corpus = corpus

    def search(
        self,
        queries: Floats,
        count: int,
        allowed: Allowed | None = None,
        advance: Advance | None = None,
    ) -> SearchResult:
        """The most similar rows that are allowed.

        Args:
            queries: Of length 1, shape (B, D).
            count: How many.
            allowed: Which; all by default.
            advance: Called with the share of the search that is done.
        """
        size, total = len(queries), len(self.corpus)
        allowed = Allowed.everything(size) if allowed is None else allowed
        best = Best(size, min(count, total))
        above = np.zeros(size, dtype=np.int64)
        products = np.empty((size, WIDTH), dtype=np.float32)
        highest = allowed.highest[:, None]
        for start in range(0, total, WIDTH):
            units = unit_rows(self.corpus[start : start + WIDTH])
            width = len(units)
            products[:, width:] = -np.inf
            np.matmul(queries, units.T, out=products[:, :width])
            some = slice(*np.searchsorted(allowed.row, (start, start + width)))
            products[allowed.query[some], allowed.row[some] - start] = -np.inf
            least = best.least
            if not best.mostly_full:  # little to compare with yet: the block's own largest
                too_high = products > highest
                above += too_high.sum(1)
                products[too_high] = -np.inf
                last = torch.from_numpy(products).topk(min(best.count, WIDTH), dim=1).values[:, -1]
                least = np.nextafter(last.numpy(), -np.inf, dtype=np.float32)
            query, column = _larger(products, least)
            values = products[query, column]
            refused = values > allowed.highest[query]
            above += np.bincount(query[refused], minlength=size)
            query, column, values = query[~refused], column[~refused], values[~refused]
            best.add(query, start + column, values)
            if advance is not None:
                advance((start + width) / total)
        return SearchResult(*best.sorted(), above)


def _larger(products: Floats, least: Floats) -> tuple[Integers, Integers]:
    """Where products (B, W) exceed a bound of their row (B,): rows and columns, in order."""
    groups = products.reshape(len(products), -1, GROUP)
    largest = torch.from_numpy(groups).amax(2).numpy()
    row, group = np.nonzero(largest > least[:, None])
    which, within = np.nonzero(groups[row, group] > least[row, None])
    return row[which], group[which] * GROUP + within


class Best:
    """The largest values of each of B queries, ``count`` of each, out of many that come along."""

    def __init__(self, queries: int, count: int) -> None:
        self.queries, self.count = queries, count
        self.query = self.row = np.empty(0, dtype=np.int64)
        self.value = np.empty(0, dtype=np.float32)
        self.least = np.full(queries, -np.inf, dtype=np.float32)  # a further value has to exceed it
        self.waiting: list[tuple[Integers, Integers, Floats]] = []

    @property
    def mostly_full(self) -> bool:
        """Whether enough queries have all their values for a comparison with the least to pay."""
        return int((self.least == -np.inf).sum()) * WIDTH < self.queries * self.count

    def add(self, query: Integers, row: Integers, value: Floats) -> None:
        """Take further values, each (n,), of rows with higher numbers than before."""
        self.waiting.append((query, row, value))
        if sum(len(part[0]) for part in self.waiting) >= self.queries * self.count:
            self._merge()

    def _merge(self) -> None:
        parts = zip((self.query, self.row, self.value), *self.waiting, strict=True)
        query, row, value = (np.concatenate(part) for part in parts)
        order = np.lexsort((row, -value, query))
        query = query[order]
        rank = np.arange(len(query)) - np.searchsorted(query, np.arange(self.queries))[query]
        kept = rank < self.count
        order = order[kept]
        self.query, self.row, self.value = query[kept], row[order], value[order]
        last = rank[kept] == self.count - 1
        self.least[self.query[last]] = self.value[last]
        self.waiting = []

    def sorted(self) -> tuple[Integers, Floats]:
        """Rows and values, largest first, each (B, count); padded with -1 and -inf."""
        if self.waiting:
            self._merge()
        rows = np.full((self.queries, self.count), -1, dtype=np.int64)
        values = np.full((self.queries, self.count), -np.inf, dtype=np.float32)
        starts = np.searchsorted(self.query, np.arange(self.queries))
        place = np.arange(len(self.query)) - starts[self.query]
        rows[self.query, place], values[self.query, place] = self.row, self.value
        return rows, values


class FaissIndex:
    """An index of faiss. Queries for which it finds too few allowed rows search all rows exactly.

    Args:
        corpus: Shape (C, D).
        kind: flat, ivf or hnsw.
        folder: See :func:`make_index`.
    """

    def __init__(self, corpus: NDArray[Any], kind: Kind, folder: Path | None = None) -> None:
        with needed_for(f"the index {kind!r}", "use the index 'exact'"):
            import faiss
        self.corpus, self.kind = corpus, kind
        self.index: Any
        kept = None
        if folder is not None and kind != "flat":  # a flat one is nothing but a copy
            kept = folder / f"{kind}-{digest_of(corpus, kind)}.faiss"
        found = None if kept is None else read_sealed(kept)  # faiss trusts the numbers in a file
        if found is not None:
            self.index = faiss.deserialize_index(np.frombuffer(found, np.uint8))
        else:
            self.index = _build(corpus, kind)
            if kept is not None:
                write_sealed(kept, lambda file: faiss.write_index(self.index, str(file)))
        if kind == "ivf":
            self.index.nprobe = max(1, self.index.nlist // PROBED)

    def search(
        self,
        queries: Floats,
        count: int,
        allowed: Allowed | None = None,
        advance: Advance | None = None,
    ) -> SearchResult:
        """See :meth:`ExactIndex.search`."""
        total = len(self.corpus)
        count = min(count, total)
        allowed = Allowed.everything(len(queries)) if allowed is None else allowed
        forbidden = np.bincount(allowed.query, minlength=len(queries)).max(initial=0)
        rows = np.full((len(queries), count), -1, dtype=np.int64)
        similarity = np.full((len(queries), count), -np.inf, dtype=np.float32)
        above = np.zeros(len(queries), dtype=np.int64)
        short, asked, exactly = np.arange(len(queries)), count + int(forbidden), False
        while len(short):
            if exactly:
                result = ExactIndex(self.corpus).search(queries[short], count, allowed.of(short))
            else:
                result = self._ask(queries[short], min(asked, total), count, allowed.of(short))
            rows[short], similarity[short], above[short] = (
                result.rows,
                result.similarity,
                result.above,
            )
            if exactly or (self.kind == "flat" and asked >= total):
                break
            short = short[result.rows[:, -1] < 0]
            exactly = asked >= min(count * LARGEST_GROWTH, total)
            asked *= GROWTH
        if advance is not None:
            advance(1.0)
        return SearchResult(rows, similarity, above)

    def _ask(self, queries: Floats, asked: int, count: int, allowed: Allowed) -> SearchResult:
        if self.kind == "hnsw":
            self.index.hnsw.efSearch = max(HNSW_WIDTH, 2 * asked)
        similarity, rows = self.index.search(queries, asked)
        # faiss leaves the order of equal similarities open.
        order = np.lexsort((rows, -similarity))
        rows = np.take_along_axis(rows, order, 1)
        similarity = np.take_along_axis(similarity, order, 1)
        usable = (rows >= 0) & ~allowed.forbids(rows, len(self.corpus))
        too_high = similarity > allowed.highest[:, None]
        above = (usable & too_high).sum(1)
        usable &= ~too_high
        first = np.argsort(~usable, axis=1, kind="stable")[:, :count]
        rows = np.where(usable, rows, -1)
        similarity = np.where(usable, similarity, -np.inf).astype(np.float32)
        return SearchResult(
            np.take_along_axis(rows, first, 1), np.take_along_axis(similarity, first, 1), above
        )


Index = ExactIndex | FaissIndex
"""A corpus that can be searched. What one kind of index finds is never taken for another's."""


def _build(corpus: NDArray[Any], kind: Kind) -> Any:
    """A faiss index of all rows, added a block at a time."""
    import faiss

    total, dimensions = corpus.shape
    lists = max(1, round(LISTS_PER_ROOT * total**0.5))
    described = {"flat": "Flat", "ivf": f"IVF{lists},Flat", "hnsw": f"HNSW{HNSW_LINKS},Flat"}
    index: Any = faiss.index_factory(dimensions, described[kind], faiss.METRIC_INNER_PRODUCT)
    if kind == "ivf":
        index.cp.niter = TRAINING_ROUNDS
        index.cp.min_points_per_centroid = 1  # small corpora are no reason for a warning
        sample = np.unique(np.linspace(0, total - 1, min(total, TRAINED_ON * lists)).astype(int))
        index.train(unit_rows(corpus[sample]))
    threads = faiss.omp_get_max_threads()
    if kind == "hnsw":  # threads would race, and each build would give another graph
        index.hnsw.efConstruction = HNSW_WIDTH
        if total > 200_000 and threads > 1:
            warnings.warn(
                f"an hnsw index of {total:,} rows is built by one thread, so that it is the same "
                "each time; 'ivf' is built faster",
                stacklevel=3,
            )
        faiss.omp_set_num_threads(1)
    try:
        step = max(1, AT_ONCE // dimensions)
        for start in range(0, total, step):
            index.add(unit_rows(corpus[start : start + step]))
    finally:
        faiss.omp_set_num_threads(threads)
    return index
