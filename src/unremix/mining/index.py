"""The most similar rows of a corpus for each query: exactly, in blocks, or by faiss.

Similarity is the cosine everywhere. Letters: B queries, C rows of the corpus, D dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unremix.console.suggestions import needed_for
from unremix.core.checks import check_choice
from unremix.files.seals import read_sealed, write_sealed
from unremix.mining.embeddings import AT_ONCE, Flags, Floats, Integers, digest_of, unit_rows

Kind = Literal["exact", "flat", "ivf", "hnsw"]

WIDTH = 8192  # rows of the corpus that are compared at a time
HNSW_LINKS = 32
HNSW_WIDTH = 128  # of the search for neighbors, when the graph is built and when it is used
LISTS_PER_ROOT = 4  # an IVF index has 4 √C lists
PROBED = 16  # one list in 16 is searched
TRAINED_ON = 40  # rows per list
TRAINING_ROUNDS = 10
GROWTH = 4  # times as many rows are asked of faiss where too few remained
LARGEST_GROWTH = 16  # after which the rows are searched exactly

Advance = Callable[[float], None]
"""Called with the share of the work that is done."""


@dataclass(frozen=True)
class Allowed:
    """Which rows may be found for B queries.

    Args:
        highest: The largest similarity allowed, shape (B,).
        query: The query of each forbidden pair, shape (n,).
        row: Its row, shape (n,).
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


class SearchResult(NamedTuple):
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

    @classmethod
    def nothing(cls, queries: int, count: int) -> SearchResult:
        """No rows yet for B queries, ``count`` for each at most."""
        rows = np.full((queries, count), -1, dtype=np.int64)
        above = np.zeros(queries, dtype=np.int64)
        return cls(rows, np.full((queries, count), -np.inf, dtype=np.float32), above)


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

    The products are NumPy's. Only what exceeds the least similarity found so far is sorted, so that
    choosing costs little beside the products: 1,000 queries in 1,000,000 rows of 384 take less than
    faiss's ``IndexFlatIP`` (benchmarks/mining.py).

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
        order = np.argsort(allowed.row, kind="stable")
        query_of, forbidden = allowed.query[order], allowed.row[order]
        rows, similarity, above = found = SearchResult.nothing(size, min(count, total))
        waiting: list[tuple[Integers, Integers, Floats]] = []  # query, row and similarity
        products = np.empty((size, WIDTH), dtype=np.float32)
        for start in range(0, total, WIDTH):
            units = unit_rows(self.corpus[start : start + WIDTH])
            stop = start + len(units)
            products[:, len(units) :] = -np.inf
            np.matmul(queries, units.T, out=products[:, : len(units)])
            some = slice(*np.searchsorted(forbidden, (start, stop)))
            products[query_of[some], forbidden[some] - start] = -np.inf
            too_high = products > allowed.highest[:, None]
            above += too_high.sum(1)
            products[too_high] = -np.inf
            least = similarity[:, -1]  # a further row has to exceed it
            if (least == -np.inf).sum() * WIDTH >= rows.size:  # too little yet: the block's largest
                last = torch.from_numpy(products).topk(min(count, WIDTH), dim=1).values[:, -1]
                least = np.nextafter(last.numpy(), -np.inf, dtype=np.float32)
            # On a matrix nonzero takes ten times as long.
            query, column = np.divmod(np.flatnonzero(products > least[:, None]), WIDTH)
            waiting.append((query, start + column, products[query, column]))
            if stop == total or sum(len(query) for query, *_ in waiting) >= rows.size:
                _merge(rows, similarity, waiting)
                waiting = []
            if advance is not None:
                advance(stop / total)
        return found


def _merge(
    rows: Integers, similarity: Floats, further: list[tuple[Integers, Integers, Floats]]
) -> None:
    """Put further rows (n,) of some queries (n,) among the most similar ones, both (B, count)."""
    known = np.nonzero(rows >= 0)
    parts = zip((known[0], rows[known], similarity[known]), *further, strict=True)
    query, row, value = map(np.concatenate, parts)
    order = np.lexsort((row, -value, query))
    query = query[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    kept = rank < rows.shape[1]
    place, order = (query[kept], rank[kept]), order[kept]
    rows[place], similarity[place] = row[order], value[order]


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
        found = SearchResult.nothing(len(queries), count)
        short, asked = np.arange(len(queries)), count + int(forbidden)

        def take(result: SearchResult) -> None:
            found.rows[short], found.similarity[short], found.above[short] = result

        while len(short):
            result = self._ask(queries[short], min(asked, total), count, allowed.of(short))
            take(result)
            short = short[result.rows[:, -1] < 0]
            if asked >= min(count * LARGEST_GROWTH, total):
                break
            asked *= GROWTH
        if len(short) and (self.kind != "flat" or asked < total):
            take(ExactIndex(self.corpus).search(queries[short], count, allowed.of(short)))
        if advance is not None:
            advance(1.0)
        return found

    def _ask(self, queries: Floats, asked: int, count: int, allowed: Allowed) -> SearchResult:
        if self.kind == "hnsw":
            self.index.hnsw.efSearch = max(HNSW_WIDTH, 2 * asked)
        similarity, rows = self.index.search(queries, asked)
        usable = (rows >= 0) & ~allowed.forbids(rows, len(self.corpus))
        too_high = similarity > allowed.highest[:, None]
        above = (usable & too_high).sum(1)
        usable &= ~too_high
        rows, similarity = np.where(usable, rows, -1), np.where(usable, similarity, -np.inf)
        # Faiss leaves the order of equal similarities open.
        order = np.lexsort((rows, -similarity))[:, :count]
        rows, similarity = (np.take_along_axis(each, order, 1) for each in (rows, similarity))
        return SearchResult(rows, similarity, above)


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
