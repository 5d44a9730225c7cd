"""Graphs: read from TU data sets and JSON lines, encoded by a GIN."""

from __future__ import annotations

from unremix.domains.base import Domain, Items
from unremix.domains.graph import json_lines, measure, model, options, show
from unremix.domains.graph.dataset import recognizes
from unremix.domains.graph.infograph import InfoGraph

DOMAIN = Domain(
    name="graph",
    unit="graphs",
    reads="the embedded stdlib-ast; a TU data set, or JSON lines",
    items=Items(
        called="graphs",
        example="graphs",
        accepted="of torch_geometric.data.Data",
        before="from torch_geometric.data import Data\n"
        "# graphs: a list of Data with the node features of the training data\n",
        task="graph-ml",
    ),
    options=options.GraphOptions,
    section="graph",
    defaults={"data": "stdlib-ast", "recipe": "infograph-unremix", "epochs": 20, "batch_size": 128},
    embedded={"stdlib-ast": {}},
    sizes=model.SIZES,
    gains_from_bfloat16=lambda _: False,  # sums over edges, and matrices of a few columns
    check=model.check,
    recipes=options.RECIPES,
    frameworks={"infograph": InfoGraph},
    parts={"framework": ("simclr",)},
    recognizes=recognizes,
    load=model.load,
    holds=json_lines.holds,
    write=json_lines.write,
    load_for=model.load_for,
    shape=lambda data, config: model.GraphShape(data.encoding),
    shape_from=model.shape_from,
    fingerprint=model.fingerprint_of,
    build=model.build,
    describe=model.describe,
    fetch=model.fetch,
    views=model.views,
    embed=model.embed,
    features=model.features,
    cut=model.cut,
    architecture=("hidden", "layers"),
    observe=measure.observe,
    evaluate=measure.evaluate,
    sample=show.sample,
)
