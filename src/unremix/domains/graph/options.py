"""What a graph run can be told, and the recipes for graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unremix.console.values import bounded
from unremix.frameworks.recipe import Recipe

KINDS = ("nodes", "edges", "attributes", "subgraph", "identity")


@dataclass(frozen=True)
class GraphOptions:
    """Options for graphs.

    Args:
        hidden: Size of each layer of the encoder.
        layers: Layers of the encoder.
        use_attributes: Whether node attributes are features; by default those of JSON lines are,
            those of TU data sets are not.
        kinds: How a view changes a graph (GraphCL): nodes, edges, attributes, subgraph,
            identity.
        ratio: The share of nodes or edges that a view changes (GraphCL).
        classifiers: What measures the embeddings: any of rbf, linear (both SVM) and logistic.
        folds: Outer folds of the measurement.
        repeats: How often they are drawn.
    """

    hidden: int = bounded(32, least=1)
    layers: int = bounded(3, least=1, most=1000)
    use_attributes: bool | None = None
    kinds: tuple[str, ...] = ("nodes", "edges", "attributes", "subgraph")
    ratio: float = bounded(0.2, least=0, below=1)
    classifiers: tuple[Literal["rbf", "linear", "logistic"], ...] = ("rbf",)
    folds: int = bounded(10, least=2)
    repeats: int = bounded(1, least=1)


PAPER = "Figure 5"
RECIPES = (
    Recipe("infograph", "InfoGraph", "infograph", temperature=1.0, paper=PAPER),
    Recipe("infograph-hcl", "InfoGraph with HCL's hard negatives", "infograph", "hcl",
           temperature=1.0, paper=PAPER),
    Recipe("infograph-unremix", "UnReMix on InfoGraph", "infograph", "unremix", temperature=1.0,
           paper=PAPER),
    Recipe("graphcl", "GraphCL: two views of each graph", temperature=0.2),
    Recipe("graphcl-hcl", "GraphCL with HCL's weights", "simclr", "hcl", temperature=0.2),
    Recipe("graphcl-unremix", "UnReMix on GraphCL", "simclr", "unremix", temperature=0.2),
)  # fmt: skip
