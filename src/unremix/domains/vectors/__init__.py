"""Rows of numbers: tables and embeddings of other models, encoded by an MLP."""

from __future__ import annotations

from unremix.domains.base import Domain, Items
from unremix.domains.options import SELECTIVE
from unremix.domains.vectors import files, model, options, show
from unremix.domains.vectors.dataset import EMBEDDED, recognizes
from unremix.domains.vectors.encoding import shape_from

DOMAIN = Domain(
    name="vectors",
    unit="rows",
    reads="the embedded breast-cancer and wine; a .csv, .parquet, .npy, .npz or .safetensors",
    items=Items(
        called="rows",
        example="rows",
        accepted="of rows, each a list or a dictionary; or an array (n, columns)",
        before="# rows: an array (n, columns), or a list of dictionaries by column\n",
    ),
    options=options.VectorOptions,
    section="vectors",
    defaults={
        "data": "breast-cancer",
        "recipe": "scarf",
        "epochs": 100,
        "batch_size": 128,
        "weight_decay": 0.0,
        "head_hidden": (256,),
        "head_output": 256,
        "head_batch_norm": False,
    },
    uses=frozenset(SELECTIVE) - {"stream"},
    embedded={name: {} for name in EMBEDDED},
    sizes=model.SIZES,
    recipes=options.RECIPES,
    parts={"framework": ("simclr",)},
    recognizes=recognizes,
    holds=files.holds,
    write=files.write,
    load=model.load,
    load_for=model.load_for,
    shape=lambda data, config: data.shape,
    shape_from=shape_from,
    fingerprint=model.fingerprint_of,
    to_label="Name their column with --vectors.label",
    build=model.build,
    describe=model.describe,
    fetch=lambda data, indices: data,  # it is in memory
    views=model.views,
    embed=model.embed,
    features=model.LABELED.features,
    architecture=("hidden", "layers"),
    observe=model.LABELED.observe,
    evaluate=model.LABELED.evaluate,
    sample=show.sample,
    thumbnails=show.thumbnails,
)
