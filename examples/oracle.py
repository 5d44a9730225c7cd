"""How much could any weighting of the negatives win? An oracle that knows the classes tells.

    python examples/oracle.py [--data MUTAG] [--seeds 5] [--epochs 200] [--repeats 3] [--limit N]

InfoGraph is trained with uniform weights, with UnReMix's, and with those of an oracle: graphs of
the node's own class, the false negatives, get weight 0; all others get the same weight. The oracle
is a score of your own: a function from a block of anchors to a score per candidate. Labels are used
for nothing else in training. The table gives the SVM's accuracy on the frozen embeddings.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unremix import UnReMixLoss
from unremix.core.scores import Block
from unremix.domains import find_domain
from unremix.domains.base import make_batch
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.measure import plan_evaluation
from unremix.domains.graph.model import graph_features
from unremix.domains.options import TrainConfig
from unremix.evaluation.svm import SVMResult, svm_accuracy
from unremix.training.building import build_model
from unremix.training.optimizers import make_optimizer

ORACLE = "oracle"
WEIGHTINGS = {"uniform": "infograph", "UnReMix": "infograph-unremix", ORACLE: "infograph"}


class Oracle:
    """Scores graphs of another class than the anchor's by 1, of its own by 0."""

    def __init__(self) -> None:
        self.classes = torch.empty(0, dtype=torch.int64)

    def look_at(self, classes: Tensor) -> None:
        """The class of each graph of the batch, shape (G,)."""
        self.classes = classes

    def __call__(self, block: Block) -> Tensor:
        """Shape (B, G)."""
        own_graph = block.negatives.int().argmin(1)  # the one graph that is not a negative
        own_class = self.classes[own_graph]  # (B,)
        return (own_class[:, None] != self.classes).to(block.similarity.dtype)


def accuracy(data: GraphData, config: TrainConfig, weighting: str, repeats: int) -> SVMResult:
    """Train, and measure the embeddings."""
    domain, oracle, labels = find_domain("graph"), Oracle(), data.train.labels
    plan = plan_evaluation(data, config)
    assert labels is not None
    assert plan is not None
    shape = domain.shape(data, config)
    model = build_model(config, shape)
    if weighting == ORACLE:
        model.loss = UnReMixLoss(temperature=1.0, components=(oracle,), mix="fixed")
    optimizer = make_optimizer(
        model, model.undecayed(), name="adam", lr=config.lr, weight_decay=config.weight_decay
    )
    steps = domain.steps(data, config)
    for step in range(config.epochs * steps):
        indices = domain.indices(data, config, step)
        graphs = domain.fetch(data, indices)
        oracle.look_at(labels[indices])
        batch = make_batch(
            domain,
            graphs, indices, model, config, shape, step=step, epoch=step // steps
        )  # fmt: skip
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    features = graph_features(model.encoder, data.train.store)[plan.kept]
    return svm_accuracy(
        features, labels[plan.kept], folds=plan.outer, inner_folds=plan.inner, seed=config.seed,
        repeats=repeats,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="stdlib-ast")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3, help="draws of the folds")
    parser.add_argument("--limit", type=int, help="graphs, at most")
    parser.add_argument("--threads", type=int, help="fewer than there are cores")
    parser.add_argument("--output", help="a file for every fold, a line of JSON per run")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    console, found = Console(), {name: [] for name in WEIGHTINGS}
    for seed in range(options.seeds):
        for name, recipe in WEIGHTINGS.items():
            config = TrainConfig(
                data=options.data, recipe=recipe, seed=seed, epochs=options.epochs,
                limit=options.limit, progress=False,
            )  # fmt: skip
            data = find_domain("graph").load(config)
            result = accuracy(data, config, name, options.repeats)
            found[name].append(100 * result.mean)
            console.print(f"seed {seed}, {name}: {result}", highlight=False)
            if options.output:
                row = {"data": data.name, "weighting": name, "seed": seed}
                row |= {"accuracy": result.mean, "folds": list(result.accuracies)}
                with open(options.output, "a") as file:
                    file.write(json.dumps(row) + "\n")
    table = Table("weights", "accuracy, %", "minus uniform")
    for name, values in found.items():
        difference = statistics.fmean(values) - statistics.fmean(found["uniform"])
        table.add_row(name, f"{statistics.fmean(values):.1f}", f"{difference:+.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
