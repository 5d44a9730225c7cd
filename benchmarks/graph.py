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

import sys
from collections.abc import Callable

import torch
from measuring import conclude, read_options, show_race
from rich.console import Console
from rivals import looped_jsd
from torch import nn

from unremix.core.contrast import contrast
from unremix.core.objectives import JensenShannon
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.problem import Options
from unremix.core.views import Views
from unremix.domains import find_domain
from unremix.domains.base import make_batch
from unremix.domains.graph.dataset import GraphData
from unremix.domains.graph.infograph import Discriminator
from unremix.domains.options import TrainConfig
from unremix.training.building import build_model
from unremix.training.optimizers import make_optimizer

LOOP = "loop over nodes"
RECIPES = ("infograph", "infograph-hcl", "infograph-unremix")
MOST_OVER_INFOGRAPH = 1.3
LEAST_OVER_LOOP = 3.0


class Public:
    """An epoch as the public implementation has it, from torch_geometric's own parts.

    Its loader, convolutions and pooling, and masks filled in a loop over nodes.

    Args:
        config: The options.
        data: The graphs.
    """

    def __init__(self, config: TrainConfig, data: GraphData) -> None:
        from torch_geometric.data import Data  # type: ignore[import-untyped]
        from torch_geometric.loader import DataLoader  # type: ignore[import-untyped]
        from torch_geometric.nn import GINConv  # type: ignore[import-untyped]

        width, layers = config.graph.hidden, config.graph.layers
        sizes = [data.encoding.width] + [width] * layers
        batches = (data.train.store.batch(one) for one in torch.arange(len(data.train)).split(1))
        graphs = [Data(x=one.x, edge_index=one.edge_index) for one in batches]
        self.loader = DataLoader(graphs, batch_size=config.batch_size, shuffle=True)
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
        self.domain, self.data = find_domain("graph"), data
        self.config = TrainConfig(
            data=config.data, recipe=recipe, limit=config.limit, progress=False
        )
        self.shape = self.domain.shape(data, self.config)
        self.model = build_model(self.config, self.shape)
        self.optimizer = make_optimizer(
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
            batch = make_batch(
                self.domain,
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
    compared = ContrastInput(Views(nodes), Views(graphs), Pairs.membership(owner, 3))
    ours = contrast(compared, Options(objective=JensenShannon(), logits="dot"), temperature=1.0)
    torch.testing.assert_close(looped_jsd(nodes, graphs, owner), ours)


def main() -> int:
    """Measure, print, save."""
    options = read_options(__doc__ or "", rounds=7, data="PROTEINS")
    source, limit = ("stdlib-ast", 256) if options.quick else (options.data, None)
    config = TrainConfig(data=source, recipe="infograph", limit=limit, progress=False)
    try:
        data = find_domain("graph").load(config)
    except (ValueError, OSError) as error:
        message = f"{error}\nName its folder by UNREMIX_DATA, or use --quick."
        Console().print(message, markup=False)
        return 1
    check_the_loop()
    epochs: dict[str, Callable[[], None]] = {name: Epoch(name, config, data) for name in RECIPES}
    epochs[LOOP] = Public(config, data)
    found = options.race(epochs)
    graphs, nodes = len(data.train), len(data.train.store.x)
    ratios = show_race(
        found,
        f"An epoch of {data.name}: {graphs} graphs, {nodes} nodes, batch 128",
        reference="infograph",
        column="ms",
        amount=lambda seconds: f"{1000 * seconds:.0f}",
    )
    targets = {
        f"UnReMix at most {MOST_OVER_INFOGRAPH} × InfoGraph": ratios["infograph-unremix"].medians
        <= MOST_OVER_INFOGRAPH,
        f"InfoGraph at least {LEAST_OVER_LOOP:g} × faster than the loop": ratios[LOOP].medians
        >= LEAST_OVER_LOOP,
    }
    settings = {"data": data.name, "graphs": graphs, "nodes": nodes}
    return conclude("graph", options, found, ratios, targets, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
