"""Images: read from folders, archives and arrays, augmented, encoded by a CNN."""

from __future__ import annotations

from unremix.domains.base import Domain, Items
from unremix.domains.image import encoders, export, items, model, options, show, views
from unremix.domains.image.reading import count_classes
from unremix.domains.options import SELECTIVE

DOMAIN = Domain(
    name="image",
    unit="images",
    reads="the embedded digits; a folder or zip of images, CIFAR's python files, idx files, an "
    ".npz, or WebDataset shards",
    items=Items(
        called="pictures",
        example='["photo.jpg"]',
        accepted="of paths, PIL images or arrays",
        task="image-feature-extraction",
    ),
    is_default=True,
    options=options.ImageOptions,
    section="",
    defaults={"data": "digits", "recipe": "unremix-simclr", "epochs": 100},
    uses=frozenset(SELECTIVE),
    embedded={"digits": {}},
    sizes=model.SIZES,
    check=model.check,
    code=options.code_in,
    faster=model.faster,
    recipes=options.RECIPES,
    parts={
        "framework": ("simclr", "moco", "swav"),
        "mixing": ("imix", "unmix"),
        "negatives": ("mochi", "patch"),
    },
    load=model.load,
    holds=items.holds,
    write=items.write,
    load_for=model.load_for,
    source=model.source_of,
    shape=model.shape_of,
    shape_from=views.shape_from,
    fingerprint=model.fingerprint_of,
    classes=lambda config: count_classes(config.data),
    imagine=model.imagine,
    to_label="Put them into a folder per class",
    build=model.build,
    starts_from=lambda config: config.own.backbone if config.own.pretrained else config.init,
    prefixes=encoders.LIBRARIES,
    ready=model.ready,
    download=lambda name, shape: encoders.download(name, shape.channels),
    at_hand=encoders.at_hand,
    describe=model.describe,
    steps=lambda data, config: len(data.train) // config.batch_size,  # of whole batches
    indices=model.indices_of,
    fetch=lambda data, indices: data.train.images.batch(indices),
    views=model.views,
    view=lambda images, shape, key: model.view(images, shape.settings, key),
    ahead=model.ahead,
    expect=lambda data, indices: data.train.images.expect(indices),
    embed=model.embed,
    features=model.LABELED.features,
    cut=model.cut,
    exports=export.EXPORTS,
    observe=model.LABELED.observe,
    evaluate=model.LABELED.evaluate,
    sample=show.sample,
    thumbnails=show.thumbnails,
    ask=show.ask,
    preview=show.preview,
    names_of=show.names_of,
)
