"""GRACE on citation and co-purchase graphs: uniform negatives, HCL, UnReMix, ProGCL's mixture.

    .venv-peers/bin/python benchmarks/nodes.py [--data cora citeseer amazon_photo] [--seeds 5]

Needs torch_geometric (``make setup-peers``) and the folder that UNREMIX_DATA names. Every step
contrasts a random part of the nodes, encoded with the whole graph. A linear probe on the frozen
embeddings measures: 10 % of the nodes train it, 10 % choose its C, 80 % are classified. All
weightings share views, encoder, temperature, split and seed. Each result is added to
docs/results/nodes.json as soon as it is there; what is there is not computed again.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from ledger import Ledger, cell, gap, to_markdown
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from torch import Tensor, nn
from torch_geometric.data import Data  # type: ignore[import-untyped]
from torch_geometric.nn import GCN  # type: ignore[import-untyped]

import unremix
from unremix.adapters.pyg import GraphContrast
from unremix.losses import TwoViewLoss

CONTRASTED = 512  # nodes of a step


@dataclass(frozen=True)
class Setting:
    """How GRACE trains on a graph; the first two as in its public configuration.

    Args:
        hidden: Width of encoder and head.
        temperature: τ.
        drop_edges: Of the two views.
        mask_features: Of the two views.
        lr: Adam's rate.
        epochs: Steps.
    """

    hidden: int
    temperature: float
    drop_edges: tuple[float, float]
    mask_features: tuple[float, float]
    lr: float
    epochs: int = 200


SETTINGS = {
    "cora": Setting(128, 0.4, (0.2, 0.4), (0.3, 0.4), 5e-4),
    "citeseer": Setting(256, 0.9, (0.2, 0.0), (0.3, 0.2), 1e-3),
    "amazon_photo": Setting(128, 0.3, (0.3, 0.5), (0.1, 0.1), 1e-3),
}


def read_graph(path: Path) -> Data:
    """A graph of ../data/nodes: sparse features, classes, edges both ways."""
    with np.load(path) as file:
        parts = (file["x_data"], file["x_indices"], file["x_indptr"])
        features = csr_matrix(parts, shape=tuple(file["x_shape"])).toarray()
        edges, classes = file["edge_index"], file["y"]
    return Data(
        x=torch.from_numpy(features).float(),
        edge_index=torch.from_numpy(edges).long(),
        y=torch.from_numpy(classes).long(),
    )


def make_loss(weighting: str, temperature: float, last_layer: nn.Module) -> TwoViewLoss:
    """The loss with one of four weightings."""
    if weighting == "hcl":
        return unremix.HCLLoss(temperature=temperature)
    if weighting == "unremix":
        return unremix.UnReMixLoss(temperature=temperature, last_layer=last_layer)
    rule = "mixture" if weighting == "mixture" else None
    return unremix.InfoNCELoss(temperature=temperature, false_negatives=rule)


WEIGHTINGS = ("uniform", "hcl", "unremix", "mixture")


def some_nodes(graph: Data, generator: torch.Generator) -> Data:
    """The graph with its nodes in random order, of which the first are contrasted."""
    order = torch.randperm(graph.num_nodes, generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return Data(
        x=graph.x[order],
        edge_index=place[graph.edge_index],
        input_id=order[:CONTRASTED],
        batch_size=CONTRASTED,
    )


def train(graph: Data, weighting: str, setting: Setting, seed: int) -> Tensor:
    """Embeddings of all nodes, shape (nodes, hidden)."""
    torch.manual_seed(seed)
    hidden = setting.hidden
    encoder = GCN(graph.num_features, hidden, num_layers=2, out_channels=hidden)
    head = nn.Sequential(nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, hidden))
    loss_fn = make_loss(weighting, setting.temperature, head[-1])
    model = GraphContrast(
        encoder,
        head,
        loss_fn,
        drop_edges=setting.drop_edges,
        mask_features=setting.mask_features,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, weight_decay=1e-5)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(setting.epochs):
        optimizer.zero_grad()
        model(some_nodes(graph, generator)).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        embeddings: Tensor = encoder(graph.x, graph.edge_index)
    return embeddings


def probe(embeddings: Tensor, classes: Tensor, seed: int) -> float:
    """Accuracy of a linear classifier on 80 % of the nodes, in percent."""
    rows, labels = normalize(embeddings.numpy()), classes.numpy()
    order = np.random.default_rng(seed).permutation(len(rows))
    tenth = len(rows) // 10
    fitted, choosing, measured = order[:tenth], order[tenth : 2 * tenth], order[2 * tenth :]
    candidates = [
        LogisticRegression(C=c, max_iter=300).fit(rows[fitted], labels[fitted])
        for c in 10.0 ** np.arange(-2, 5)
    ]
    best = max(candidates, key=lambda one: one.score(rows[choosing], labels[choosing]))
    return 100 * float(best.score(rows[measured], labels[measured]))


def report(ledger: Ledger) -> str:
    """Accuracies, and differences to uniform with the same seed."""
    rows = []
    for data in SETTINGS:
        found = {name: ledger.values("accuracy", data=data, weighting=name) for name in WEIGHTINGS}
        cells = [cell(values) for values in found.values()]
        gaps = [gap(found[name], found["uniform"]) for name in WEIGHTINGS[1:]]
        rows.append([data, *cells, *gaps])
    against = [f"{name} − uniform" for name in WEIGHTINGS[1:]]
    return to_markdown(["data", *WEIGHTINGS, *against], rows)


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if "UNREMIX_DATA" not in os.environ:
        raise SystemExit("expected the folder of the data in UNREMIX_DATA, got nothing; set it")
    torch.set_num_threads(1)
    ledger = Ledger("nodes.json", ("data", "weighting", "seed"))
    for data in given.data:
        setting = SETTINGS[data]
        graph = read_graph(Path(os.environ["UNREMIX_DATA"]) / "nodes" / f"{data}.npz")
        for seed in range(given.seeds):
            for weighting in WEIGHTINGS:
                if (data, weighting, seed) in ledger:
                    continue
                began = time.process_time()
                embeddings = train(graph, weighting, setting, seed)
                accuracy = probe(embeddings, graph.y, seed)
                seconds = time.process_time() - began
                print(f"{data}, {weighting}, seed {seed}: {accuracy:.2f} %, {seconds:.0f} s")
                ledger.add(
                    {
                        "data": data,
                        "weighting": weighting,
                        "seed": seed,
                        "accuracy": accuracy,
                        "cpu_seconds": seconds,
                        "setting": asdict(setting),
                        "contrasted": CONTRASTED,
                    }
                )
    print(report(ledger))


if __name__ == "__main__":
    main()
