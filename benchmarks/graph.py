"""Time an epoch of InfoGraph: with UnReMix's weights, with HCL's, and with masks made in a loop.

    python benchmarks/graph.py [--quick] [--data PROTEINS] [--rounds 7] [--threads 2] [--cpu-time]
        [--strict]

How to read the table. The contenders take turns on the same epoch of batches of 128 graphs: taking
the batch, GIN and discriminators, loss, gradient, Adam. "Loop over nodes" is InfoGraph in the
manner of its public implementation: torch_geometric's loader, convolutions and pooling, and dense
masks that a Python loop fills node by node. Only ratios mean something elsewhere; they are of
medians, with those of minima beside them. All numbers go to benchmarks/results/graph.json. PROTEINS
is looked for in the folder that UNREMIX_DATA names; --quick takes a part of the embedded syntax
trees.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from rivals import looped_jsd
from timing import Clock, race, ratio
from torch import nn

from unremix.config import TrainConfig
from unremix.data.graph import GraphData
from unremix.domains.graph import GraphDomain
from unremix.files import write_whole
from unremix.frameworks.infograph import Discriminator
from unremix.losses.jsd import jsd
from unremix.optimisers import make_optimiser
from unremix.pairs import Pairs
from unremix.scores import Views

RESULTS = Path(__file__).parent / "results"
LOOP = "loop over nodes"
RECIPES = ("infograph", "infograph-hcl", "infograph-unremix")
MOST_OVER_INFOGRAPH = 1.25
LEAST_OVER_LOOP = 3.0


class Public:
    """An epoch as the public implementation has it, from torch_geometric's own parts.

    Its loader, convolutions and pooling, and masks filled in a loop over nodes.

    Args:
        config: The options.
        data: The graphs.
    """

    def __init__(self, config: TrainConfig, data: GraphData) -> None:
        from torch_geometric.loader import DataLoader  # type: ignore[import-untyped]
        from torch_geometric.nn import GINConv  # type: ignore[import-untyped]

        width, layers = config.graph.hidden, config.graph.layers
        sizes = [data.features] + [width] * layers
        self.loader = DataLoader(data.train.graphs, batch_size=config.batch_size, shuffle=True)
        self.convolutions = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width)))
            for size in sizes[:-1]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.nodes, self.graphs = Discriminator(width * layers), Discriminator(width * layers)
        parts = (self.convolutions, self.norms, self.nodes, self.graphs)
        parameters = [parameter for part in parts for parameter in part.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=config.lr)

    def __call__(self) -> None:
        """All steps of an epoch."""
        from torch_geometric.nn import global_add_pool

        for batch in self.loader:
            self.optimizer.zero_grad()
            x, outputs = batch.x, []
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = norm(convolution(x, batch.edge_index).relu())
                outputs.append(x)
            whole = torch.cat([global_add_pool(x, batch.batch) for x in outputs], dim=1)
            nodes = torch.cat(outputs, dim=1)
            loss = looped_jsd(self.nodes(nodes), self.graphs(whole), batch.batch)
            loss.backward()
            self.optimizer.step()
            loss.item()


class Epoch:
    """An epoch of one contender.

    Args:
        recipe: Which.
        config: The options.
        data: The graphs.
    """

    def __init__(self, recipe: str, config: TrainConfig, data: GraphData) -> None:
        self.domain, self.data = GraphDomain(), data
        self.config = TrainConfig(
            data=config.data, recipe=recipe, limit=config.limit, progress=False
        )
        self.shape = self.domain.shape(data, self.config)
        self.model = self.domain.build(self.config, self.shape)
        self.optimizer = make_optimiser(
            self.model,
            self.model.undecayed(),
            name="adam",
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
        )

    def __call__(self) -> None:
        """All steps of an epoch, the same batches each time."""
        for step in range(self.domain.steps(self.data, self.config)):
            indices = self.domain.indices(self.data, self.config, step)
            batch = self.domain.batch(
                self.domain.fetch(self.data, indices),
                indices,
                self.model,
                self.config,
                self.shape,
                step=step,
                epoch=0,
            )
            self.optimizer.zero_grad()
            loss = self.model(batch)
            loss.backward()
            self.optimizer.step()
            loss.item()


def check_the_loop() -> None:
    """Both compute the same loss, or their times could not be compared."""
    nodes, graphs, owner = torch.randn(9, 4), torch.randn(3, 4), torch.arange(9) % 3
    ours = jsd(Views(nodes), Views(graphs), Pairs.membership(owner, 3))
    torch.testing.assert_close(looped_jsd(nodes, graphs, owner), ours)


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, for a smoke test")
    parser.add_argument("--data", default="PROTEINS")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time on one thread")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    arguments = parser.parse_args()
    clock: Clock = "cpu" if arguments.cpu_time else "wall"
    torch.set_num_threads(1 if arguments.cpu_time else arguments.threads)
    rounds = 2 if arguments.quick else arguments.rounds
    patience = 0.0 if arguments.quick else 60.0  # for other processes to be quiet, in seconds
    source, limit = ("stdlib-ast", 256) if arguments.quick else (arguments.data, None)
    config = TrainConfig(data=source, recipe="infograph", limit=limit, progress=False)
    console = Console()
    try:
        data = GraphDomain().load(config)
    except (ValueError, OSError) as error:
        console.print(f"{error}\nName its folder by UNREMIX_DATA, or use --quick.", markup=False)
        return 1
    check_the_loop()
    epochs: dict[str, Callable[[], None]] = {name: Epoch(name, config, data) for name in RECIPES}
    epochs[LOOP] = Public(config, data)
    found = race(epochs, rounds, clock=clock, patience=patience)
    graphs, nodes = len(data.train), len(data.train.store.x)
    table = Table(title=f"An epoch of {data.name}: {graphs} graphs, {nodes} nodes, batch 128")
    for column in ("", "ms", "× InfoGraph, medians", "minima"):
        table.add_column(column, justify="left" if not column else "right")
    ratios = {}
    for name in epochs:
        against = ratio(found.seconds[name], found.seconds["infograph"])
        ratios[name] = against
        table.add_row(
            name,
            f"{1000 * median(found.seconds[name]):.0f}",
            f"{against.medians:.3f}",
            f"{against.minima:.3f}",
        )
    console.print(table)
    held = {
        f"UnReMix at most {MOST_OVER_INFOGRAPH} × InfoGraph": ratios["infograph-unremix"].medians
        <= MOST_OVER_INFOGRAPH,
        f"InfoGraph at least {LEAST_OVER_LOOP:g} × faster than the loop": ratios[LOOP].medians
        >= LEAST_OVER_LOOP,
    }
    for target, holds in held.items():
        console.print(f"{'✓' if holds else '✗'} {target}")
    console.print(f"{found.disturbed} calls were disturbed by other processes")
    report = {
        "machine": {"torch": torch.__version__, "python": platform.python_version(),
                    "threads": torch.get_num_threads()},
        "settings": {"rounds": rounds, "data": data.name, "graphs": graphs, "nodes": nodes,
                     "clock": clock},
        "seconds": found.seconds,
        "ratios": {name: asdict(value) for name, value in ratios.items()},
        "targets": held,
        "disturbed": found.disturbed,
    }  # fmt: skip
    suffix = ("-quick" if arguments.quick else "") + ("-cpu-time" if arguments.cpu_time else "")
    text = json.dumps(report, indent=1)
    write_whole(RESULTS / f"graph{suffix}.json", lambda file: file.write_text(text))
    return int(arguments.strict and not all(held.values()))


if __name__ == "__main__":
    sys.exit(main())
