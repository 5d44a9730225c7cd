"""Time mining against the search of faiss alone, and measure its memory.

    python benchmarks/mining.py [--quick] [--rounds 5] [--threads 2] [--cpu-time] [--strict]

How to read the table. 1,000 anchors against 1,000,000 rows of 384 dimensions, which lie on disk and
are mapped into memory; 10 negatives each out of pools of 100. "faiss flat, search alone" is
``IndexFlatIP.search`` for the 100 nearest rows, with the index in memory beforehand; likewise
``ivf``. Mining reads the corpus, searches it, applies the rules against false negatives and chooses
by the three scores. Only ratios mean something elsewhere; they are of medians, with those of minima
beside them. The corpus is 1,000 random centers with noise. All numbers go to
benchmarks/results/mining.json. --quick takes 20,000 rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import faiss
import numpy as np
import torch
from measuring import conclude, read_options, show_race
from numpy.typing import NDArray
from rich.console import Console
from threadpoolctl import threadpool_limits

from unremix.mining.embeddings import unit_rows
from unremix.mining.index import FaissIndex, make_index
from unremix.mining.mine import mine_hard_negatives

ANCHORS, DIMENSIONS, K, POOL = 1000, 384, 10, 100
CENTERS, SPREAD = 1000, 1.0
MOST_OVER_FAISS = 1.3
MOST_BYTES = 4 * 2**30
PEAK = """
import json, resource, sys
import numpy as np
from unremix.mining.mine import mine_hard_negatives
corpus, anchors = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mine_hard_negatives(anchors, corpus, np.arange(len(anchors)), 10, index=sys.argv[3])
print(json.dumps([before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def write_corpus(path: Path, rows: int) -> NDArray[np.float32]:
    """Rows around random centers, on disk; returns anchors near the first of them."""
    generator = np.random.default_rng(0)
    corpus = np.lib.format.open_memmap(path, "w+", np.float32, (rows, DIMENSIONS))
    centers = generator.standard_normal((CENTERS, DIMENSIONS), dtype=np.float32)
    for start in range(0, rows, 50_000):
        part = corpus[start : start + 50_000]
        noise = generator.standard_normal(part.shape, dtype=np.float32)
        part[:] = centers[generator.integers(CENTERS, size=len(part))] + SPREAD * noise
    corpus.flush()
    noise = generator.standard_normal((ANCHORS, DIMENSIONS), dtype=np.float32)
    anchors: NDArray[np.float32] = corpus[:ANCHORS] + 0.8 * noise
    return anchors


def peak_bytes(folder: Path, index: str) -> tuple[int, int]:
    """The most memory that a process of its own holds: before mining, and in all."""
    paths = [str(folder / "corpus.npy"), str(folder / "anchors.npy")]
    command = [sys.executable, "-c", PEAK, *paths, index]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    before, most = json.loads(found.stdout)
    return before * 1024, most * 1024


def main() -> int:
    options = read_options(__doc__ or "", rounds=5)
    threads = torch.get_num_threads()
    os.environ |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    faiss.omp_set_num_threads(threads)
    rows = 20_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as name, threadpool_limits(threads):
        folder = Path(name)
        anchors = write_corpus(folder / "corpus.npy", rows)
        np.save(folder / "anchors.npy", anchors)
        peaks = {index: peak_bytes(folder, index) for index in ("exact", "flat")}
        corpus = np.load(folder / "corpus.npy", mmap_mode="r")
        queries, positives = unit_rows(anchors), np.arange(ANCHORS)
        flat, ivf = make_index(corpus, "flat"), make_index(corpus, "ivf")
        assert isinstance(flat, FaissIndex)
        assert isinstance(ivf, FaissIndex)
        exact = mine_hard_negatives(anchors, corpus, positives, K)
        near = mine_hard_negatives(anchors, corpus, positives, K, index=ivf)
        shared = np.mean(
            [len({*a} & {*b}) / K for a, b in zip(exact.indices, near.indices, strict=True)]
        )
        half = anchors[: ANCHORS // 2]
        found = options.race(
            {
                "faiss flat, search alone": lambda: flat.index.search(queries, POOL),
                "mining, exact": lambda: mine_hard_negatives(anchors, corpus, positives, K),
                "mining, half the anchors": lambda: mine_hard_negatives(
                    half, corpus, positives[: ANCHORS // 2], K
                ),
                "mining, flat": lambda: mine_hard_negatives(
                    anchors, corpus, positives, K, index=flat
                ),
                "faiss ivf, search alone": lambda: ivf.index.search(queries, POOL),
                "mining, ivf": lambda: mine_hard_negatives(
                    anchors, corpus, positives, K, index=ivf
                ),
            }
        )
    title = f"{ANCHORS:,} anchors, {rows:,} rows of {DIMENSIONS}"
    ratios = show_race(
        found,
        title,
        reference="faiss flat, search alone",
        column="seconds",
        amount=lambda seconds: f"{seconds:.2f}",
    )
    by_ivf = ratios["mining, ivf"].medians / ratios["faiss ivf, search alone"].medians
    linear = ratios["mining, exact"].medians / ratios["mining, half the anchors"].medians
    console = Console()
    for index, (before, most) in peaks.items():
        console.print(f"memory, {index}: {most / 2**30:.2f} GiB ({before / 2**30:.2f} before)")
    console.print(f"ivf: {by_ivf:.2f} × its search; {shared:.1%} of the exact negatives")
    console.print(f"twice the anchors take {linear:.2f} times as long")
    targets = {
        f"mining, flat, at most {MOST_OVER_FAISS} × its search": ratios["mining, flat"].medians
        <= MOST_OVER_FAISS,
        f"mining, ivf, at most {MOST_OVER_FAISS} × its search": by_ivf <= MOST_OVER_FAISS,
        "at most 4 GiB": all(most <= MOST_BYTES for _, most in peaks.values()),
        "linear in anchors": linear <= 2.2,
    }
    further = {
        "peak_bytes": {index: most for index, (_, most) in peaks.items()},
        "ivf_over_its_search": by_ivf,
        "ivf_shared_with_exact": float(shared),
        "double_anchors": linear,
    }
    settings = {"anchors": ANCHORS, "rows": rows, "dimensions": DIMENSIONS, "k": K, "pool": POOL}
    return conclude("mining", options, found, ratios, targets, settings=settings, further=further)


if __name__ == "__main__":
    sys.exit(main())
