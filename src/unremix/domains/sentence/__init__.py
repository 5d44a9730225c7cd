"""Sentences in the order of a text: read from lines or prose, encoded by two recurrent networks."""

from __future__ import annotations

from unremix.domains.base import Domain, Items
from unremix.domains.sentence import measure, model, options, pretrained, show, text_files
from unremix.domains.sentence.quickthought import QuickThought

DOMAIN = Domain(
    name="sentence",
    unit="sentences",
    reads="the embedded pydocs; ordered text in .txt or .gz files; texts in a .csv or .jsonl",
    items=Items(
        called="sentences", example='["A sentence.", "Another one."]', accepted="of strings"
    ),
    options=options.SentenceOptions,
    section="sentence",
    defaults={
        "data": "pydocs",
        "recipe": "quickthought-unremix",
        "epochs": 1,
        "batch_size": 400,
        "lr": 5e-3,
        "weight_decay": 0.0,
        "clip": 5.0,
        "log_every": 50,
    },
    embedded={"pydocs": {"epochs": 30}},  # a hundredth of a usual text
    # The last layer learns at SimCSE's own rate, a tenth of this.
    from_library={"recipe": "simcse-unremix", "batch_size": 64, "lr": 3e-4},
    sizes=model.SIZES,
    # Under autocast a GRU on a CPU takes three times as long.
    gains_from_bfloat16=lambda config: config.own.encoder in ("transformer", "pretrained"),
    check=model.check,
    recipes=options.RECIPES,
    frameworks={"quickthought": QuickThought},
    parts={"framework": ("simclr",)},
    recognizes=text_files.recognizes,
    load=model.load,
    holds=text_files.holds,
    write=text_files.write,
    load_for=model.load_for,
    shape=model.shape_of,
    shape_from=model.shape_from,
    fingerprint=model.fingerprint_of,
    size=len,
    lacking="topics and no SentEval tasks",
    build=model.build,
    prefixes=pretrained.LIBRARIES,
    ready=model.ready,
    at_hand=pretrained.at_hand,
    fill=model.fill,
    describe=model.describe,
    steps=model.steps,
    indices=model.indices_of,
    fetch=model.fetch,
    views=model.views,
    reader=model.reader,
    embed=model.embed,
    features=model.features,
    cut=model.cut,
    architecture=("encoder", "words", "units", "bidirectional", "output", "max_length", "tokens"),
    observe=measure.observe,
    evaluate=measure.evaluate,
    sample=show.sample,
    ask=show.ask,
)
