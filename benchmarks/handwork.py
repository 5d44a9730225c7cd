"""Handwork against the library it stands in for, as a ratio of times in one run.

    python benchmarks/handwork.py logistic recurrence svm neighbors

Ratios above 1 speak for the handwork. What falls near 1 or below is to be replaced.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch_geometric.nn import GINConv

from unremix.domains.graph.dataset import load_graphs
from unremix.domains.graph.encoders import Neighbors, sum_neighbors
from unremix.domains.sentence.gru import GRUEncoder
from unremix.domains.sentence.senteval import NESTED, Search, nested_folds
from unremix.evaluation.svm import C_GRID, svm_accuracy


def ratio(name: str, own: Callable[[], object], library: Callable[[], object], rounds: int) -> None:
    times: list[list[float]] = [[], []]
    for _ in range(rounds + (rounds > 1)):  # the first of several rounds warms up
        for function, found in zip((own, library), times, strict=True):
            started = time.process_time()  # of one thread; other programs do not count
            function()
            found.append(time.process_time() - started)
    ours, theirs = (median(found[rounds > 1 :]) for found in times)
    print(f"{name}: {ours:.3f} s against {theirs:.3f} s, {theirs / ours:.2f} times", flush=True)


def problem(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes, and features as correlated as embeddings are."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(count, size, generator=generator) * torch.logspace(0, -2, size)
    noise = 2 * torch.randn(count, generator=generator)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    x = (base @ turn).double()
    return x * (2 / x.square().sum(1).mean().sqrt()), (base[:, :20].sum(1) + noise > 0).long()


def logistic() -> None:
    """SentEval's nested cross-validation; a tenth of it by the library, times ten."""
    for count, size in ((3775, 600), (3775, 2400)):
        x, y = problem(count, size)
        splits = StratifiedKFold(10, shuffle=True, random_state=0)
        train, _ = next(iter(splits.split(x, y)))

        def own(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            nested_folds(x, y, Search(0, 10, NESTED))

        started = time.process_time()
        own()
        ours = time.process_time() - started
        started = time.process_time()
        model = LogisticRegression(max_iter=1000)
        GridSearchCV(model, {"C": NESTED}, cv=splits).fit(x[train].numpy(), y[train].numpy())
        theirs = 10 * (time.process_time() - started)
        what = f"logistic, {count} samples of {size} features, nested 10 folds"
        print(f"{what}: {ours:.1f} s against {theirs:.1f} s, {theirs / ours:.2f} times", flush=True)


def recurrence() -> None:
    """A GRU on sentences of 5 to 30 words, batches of 400."""
    generator = torch.Generator().manual_seed(0)
    for words, units, bidirectional in ((300, 300, False), (300, 600, True), (620, 1200, True)):
        encoder = GRUEncoder(20_000, words=words, units=units, bidirectional=bidirectional)
        lengths = torch.randint(5, 31, (400,), generator=generator)
        tokens = (torch.rand(400, 30, generator=generator) ** 4 * 19_990).long() + 2
        tokens[torch.arange(30) >= lengths[:, None]] = 0

        def step(forward: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> None:
            forward(*inputs).square().sum().backward()

        inputs = (tokens, lengths)
        ratio(
            f"GRU, {words} to {units}{', both ways' * bidirectional}, forward and backward",
            lambda encoder=encoder, inputs=inputs: step(encoder, inputs),
            lambda encoder=encoder, inputs=inputs: step(encoder._by_library, inputs),
            rounds=5,
        )


def svm() -> None:
    """Nested folds of the RBF kernel, its matrix shared by all C."""
    x, y = problem(600, 96)

    def library() -> None:
        pipeline = make_pipeline(StandardScaler(), SVC())
        inner = StratifiedKFold(5, shuffle=True, random_state=0)
        outer = StratifiedKFold(10, shuffle=True, random_state=0)
        search = GridSearchCV(pipeline, {"svc__C": C_GRID}, cv=inner)
        cross_val_score(search, np.asarray(x), np.asarray(y), cv=outer)

    ratio("SVM, 600 samples of 96 features", lambda: svm_accuracy(x, y, jobs=1), library, rounds=1)


def neighbors() -> None:
    """Sums over the neighbors of nodes, three layers forward and backward, of 128 graphs."""
    store = load_graphs("stdlib-ast", progress=False).train.store
    batch = store.batch(3 * torch.arange(128))
    source, target = batch.edge_index
    count = len(batch.x)
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(0))
    layer = GINConv(torch.nn.Identity())

    def thrice(add_up: Callable[[torch.Tensor], torch.Tensor]) -> None:
        inputs = x.clone().requires_grad_()
        for _ in range(3):
            add_up(inputs).sum().backward()

    def own() -> None:
        incoming, outgoing = (
            Neighbors.of(target, source, count),
            Neighbors.of(source, target, count),
        )
        thrice(lambda inputs: sum_neighbors(inputs, incoming, outgoing))

    def index_add() -> None:
        thrice(lambda inputs: torch.zeros_like(inputs).index_add(0, target, inputs[source]))

    def convolution() -> None:
        thrice(lambda inputs: layer(inputs, batch.edge_index))

    ratio("sums over neighbors against index_add", own, index_add, rounds=50)
    ratio("sums over neighbors against GINConv", own, convolution, rounds=50)


def main() -> None:
    names = {"logistic": logistic, "recurrence": recurrence, "svm": svm, "neighbors": neighbors}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *names], default=[])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in parser.parse_args().names or names:
        names[name]()


if __name__ == "__main__":
    main()
