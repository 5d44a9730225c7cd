"""What a page shows of a run's data: sampled items, and one batch as the loss sees it.

Each kind of data has a function that gives a :class:`Sample`. The choice of items depends on the
data alone, not on the seed or the recipe, so that runs on the same data show the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from unremix.core.options import Logits
from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.data.graph.dataset import GraphData
from unremix.data.graph.store import GraphBatch
from unremix.data.image.dataset import ImageData
from unremix.data.sentence.dataset import tokenize
from unremix.data.subsets import drawn
from unremix.domains.graph import augmentation_of, graph_features, in_dtype
from unremix.domains.image import features_of
from unremix.domains.sentence import SentenceCorpus, corpus_features, reader
from unremix.frameworks.base import Framework, Projecting
from unremix.frameworks.infograph import InfoGraph
from unremix.frameworks.quickthought import QuickThought
from unremix.losses import TwoViewLoss
from unremix.report.drawings import Drawing, NodeTypes, draw_graph
from unremix.training.run import Run
from unremix.views.graph import augment as augment_graphs
from unremix.views.image import augment
from unremix.views.randomness import keys

MOST_ITEMS = 10_000  # on the map
BATCH = 256  # anchors and candidates of the explorer
PASSAGE = 16  # consecutive sentences that are shown together
FIRST_SENTENCES = 200_000  # of a longer text, only this many are searched
SHOWN_VIEWS = 8
EMBEDDED_AT_ONCE = 128
FIRST_VIEW, SECOND_VIEW = 2, 3  # random streams that training does not use


@dataclass(frozen=True)
class Sample:
    """Some items of a run's data."""

    names: list[str]  # what each of n items is called
    features: Tensor  # their embeddings by the encoder, shape (n, F)
    total: int  # items in the whole data
    how_drawn: str  # how they were drawn from it, in words; empty if they are all
    labels: Tensor | None  # the class of each item, where known; shape (n,)
    classes: list[str] | None  # names of the classes, where known
    batch: Tensor  # the items that are compared with each other, as numbers of items, shape (A,)
    anchors: Views  # embeddings of their first views, A of them
    candidates: Views  # embeddings of their second views, A of them
    pairs: Pairs  # which candidates are positives and negatives of which anchors
    about_batch: str  # a sentence about what is compared with what
    loss: TwoViewLoss | None  # what weights the negatives; None where the framework has none
    logits: Logits = "cosine"  # what the loss compares anchors and candidates by
    passages: Tensor | None = None  # of a text: equal for items that stand together, shape (n,)
    # Reads the pictures of some items, uint8 (k, C, S, S), where there are any.
    images: Callable[[Sequence[int]], Tensor] | None = None
    draw: Callable[[int], Drawing] | None = None  # draws an item, where it is a graph
    node_types: list[str] = field(default_factory=list)  # names of the colors in drawings
    views: Tensor | None = None  # pairs of views as the encoder sees them: uint8 (k, 2, C, S, S)
    # For graphs: the graph and its two views, drawn.
    drawn_views: list[list[Drawing]] = field(default_factory=list)
    # For sentences: a text, and its words as the encoder knows them.
    read_as: list[tuple[str, list[str]]] = field(default_factory=list)


def _how_drawn(items: Tensor, total: int) -> str:
    return f"drawn at random from {total:,}" if len(items) < total else ""


def take_sample(run: Run, data: Any, state: dict[str, Any] | None = None) -> Sample:
    """The sample of a run's data; ``state`` is its latest checkpoint, if already read."""
    run.config = run.config.released(trust=False, where=str(run.path))
    model = run.model
    if model is None:
        model = run.restored(run.load_checkpoint() if state is None else state)
        run.trained = run.trained or model.encoder.eval()  # read once
    kinds: dict[str, Callable[[Run, Any, Framework, TwoViewLoss | None], Sample]] = {
        "image": _images,
        "graph": _graphs,
        "sentence": _sentences,
    }
    take = kinds[run.config.domain]
    loss = getattr(model, "loss", None)
    with torch.no_grad():
        return take(run, data, model.eval(), loss if isinstance(loss, TwoViewLoss) else None)


def _views(z: Tensor, h: Tensor | None) -> Views:
    return Views(z.float(), None if h is None else h.float())


def _projecting(model: Framework) -> Projecting:
    if not isinstance(model, Projecting):
        raise ValueError(
            f"expected a framework with a projection head, got {type(model).__name__}; derive it "
            "from unremix.frameworks.base.Projecting"
        )
    return model


def _images(run: Run, data: ImageData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    settings, parts = run.shape.settings, [data.train]
    if data.test is not None and (data.test.labels is not None or data.train.labels is None):
        parts.append(data.test)  # without labels it would hide those of the training images
    sizes = [len(part) for part in parts]
    items = drawn(sum(sizes), MOST_ITEMS)

    def images(numbers: Sequence[int]) -> Tensor:
        """Pictures of items, in their order."""
        wanted = items[torch.as_tensor(numbers, dtype=torch.long)]
        later = wanted >= sizes[0]
        found = [parts[0].images.batch(wanted[~later])]
        if later.any():
            found.append(parts[1].images.batch(wanted[later] - sizes[0]))
        back = torch.argsort(torch.cat([(~later).nonzero()[:, 0], later.nonzero()[:, 0]]))
        return torch.cat(found)[back]

    encoder = run.encoder()
    features = torch.cat(
        [
            features_of(encoder, images(part.tolist()), settings, batch=EMBEDDED_AT_ONCE)
            for part in torch.arange(len(items)).split(512)
        ]
    )
    known = [part.labels for part in parts if part.labels is not None]
    names = [name for part in parts for name in part.names]
    of_training = int((items < sizes[0]).sum())
    batch = torch.randperm(of_training, generator=torch.Generator().manual_seed(1))[:BATCH]
    model = _projecting(model)
    pictures = images(batch.tolist())

    def embed(view: int) -> tuple[Tensor, Tensor]:
        parts = []
        for part in torch.arange(len(batch)).split(EMBEDDED_AT_ONCE):
            key = keys(run.config.seed, 0, items[batch[part]], view)
            shown = augment(pictures[part], settings, key)
            parts.append(model.embed(shown.to(model.dtype)))
        return torch.cat([z for z, _ in parts]), torch.cat([h for _, h in parts])

    few = batch[:SHOWN_VIEWS]
    mean = torch.tensor(settings.mean).view(-1, 1, 1)
    std = torch.tensor(settings.std).view(-1, 1, 1)
    shown = [
        augment(images(few.tolist()), settings, keys(run.config.seed, 0, items[few], view))
        for view in (FIRST_VIEW, SECOND_VIEW)
    ]
    views = [(255 * (view * std + mean)).round().clamp(0, 255).byte() for view in shown]
    return Sample(
        names=[names[index] for index in items.tolist()],
        features=features,
        total=sum(sizes),
        how_drawn=_how_drawn(items, sum(sizes)),
        labels=torch.cat(known)[items] if len(known) == len(parts) else None,
        classes=None if data.train.classes is None else list(data.train.classes),
        batch=batch,
        anchors=_views(*embed(FIRST_VIEW)),
        candidates=_views(*embed(SECOND_VIEW)),
        pairs=Pairs.one_way(len(batch)),
        about_batch=(
            f"One batch of {len(batch)} training images: the first view of each is an anchor, the "
            "second views of all others are its negatives."
        ),
        loss=loss,
        images=images,
        views=torch.stack(views, dim=1),
    )


def _graphs(run: Run, data: GraphData, model: Framework, loss: TwoViewLoss | None) -> Sample:
    graphs = data.train
    items = drawn(len(graphs), MOST_ITEMS)
    features = graph_features(run.encoder(), graphs.store)[items]
    batch = torch.randperm(len(items), generator=torch.Generator().manual_seed(1))[:BATCH]
    fetched = in_dtype(graphs.store.batch(items[batch]), model.dtype)
    types = NodeTypes.fit(graphs.store, run.shape.encoding)
    of_node = types.of(graphs.store)
    about, drawn_views = "", []
    marked: dict[int, int] = {}
    if isinstance(model, InfoGraph):
        nodes, whole = model.encoder.nodes_and_graphs(fetched)
        degrees = torch.bincount(fetched.edge_index[0], minlength=len(fetched.x))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), fetched.sizes.cumsum(0)])
        best = [
            start + int(degrees[start:end].argmax()) for start, end in pairwise(starts.tolist())
        ]
        marked = {
            item: node - int(start)
            for item, node, start in zip(batch.tolist(), best, starts[:-1], strict=True)
        }
        anchors = _views(model.nodes(nodes[best]), nodes[best])
        candidates = _views(model.graphs(whole), whole)
        about = (
            f"One batch of {len(batch)} graphs: the most connected node of each (circled) is an "
            "anchor, all other graphs are its negatives. Training takes every node as an anchor."
        )
    else:
        model = _projecting(model)
        settings = augmentation_of(run.config)
        views = [
            augment_graphs(fetched, settings, keys(run.config.seed, 0, items[batch], view))
            for view in (FIRST_VIEW, SECOND_VIEW)
        ]
        anchors, candidates = (_views(*model.embed(view)) for view in views)
        about = (
            f"One batch of {len(batch)} graphs: the first view of each is an anchor, the second "
            "views of all others are its negatives."
        )
        few = items[batch[: SHOWN_VIEWS // 2]]
        store = graphs.store
        original = store.batch(few)
        seen = [
            augment_graphs(original, settings, keys(run.config.seed, 0, few, view))
            for view in (FIRST_VIEW, SECOND_VIEW)
        ]
        drawn_views = [
            [_draw_one(part, number, types) for part in (original, *seen)]
            for number in range(len(few))
        ]

    def draw(item: int) -> Drawing:
        number = int(items[item])
        start, end = graphs.store.node_starts[number : number + 2].tolist()
        first, last = graphs.store.edge_starts[number : number + 2].tolist()
        edges = graphs.store.edge_index[:, first:last] - start
        return draw_graph(edges, of_node[start:end], marked.get(item))

    return Sample(
        names=[graphs.names[index] for index in items.tolist()],
        features=features.float(),
        total=len(graphs),
        how_drawn=_how_drawn(items, len(graphs)),
        labels=None if graphs.labels is None else graphs.labels[items],
        classes=None if graphs.classes is None else list(graphs.classes),
        batch=batch,
        anchors=anchors,
        candidates=candidates,
        pairs=Pairs.one_way(len(batch)),
        about_batch=about,
        loss=loss,
        logits="dot" if isinstance(model, InfoGraph) else "cosine",
        draw=draw,
        node_types=types.names,
        drawn_views=drawn_views,
    )


def _draw_one(batch: GraphBatch, number: int, types: NodeTypes) -> Drawing:
    members = (batch.graph == number).nonzero()[:, 0]
    start = int(members[0]) if len(members) else 0
    edges = batch.edge_index[:, batch.graph[batch.edge_index[0]] == number] - start
    return draw_graph(edges, types.of(batch)[members])


def _sentences(
    run: Run, data: SentenceCorpus, model: Framework, loss: TwoViewLoss | None
) -> Sample:
    if not isinstance(model, QuickThought):
        raise ValueError(f"expected a model of Quick-Thought, got {type(model).__name__}")
    within = min(len(data), FIRST_SENTENCES)
    passages = drawn(-(-within // PASSAGE), MOST_ITEMS // PASSAGE).tolist()
    spans = [(PASSAGE * p, min(PASSAGE, within - PASSAGE * p)) for p in passages]
    encoder, vocabulary = reader(run)
    encoder.eval()
    if len(spans) * PASSAGE >= within:
        features, documents = corpus_features(encoder, data, within)
        texts = data.batch(0, within).texts
    else:
        parts = [data.batch(*span) for span in spans]
        features = torch.cat([encoder(part.tokens, part.lengths).float() for part in parts])
        documents = torch.cat([part.documents for part in parts])
        texts = torch.cat([part.texts for part in parts])
    numbers = torch.cat([torch.arange(start, start + count) for start, count in spans])
    wanted = set(numbers.tolist())
    readable = (one.text for one in data.source if tokenize(one.text))
    names = [
        text for number, text in enumerate(islice(readable, int(numbers[-1]) + 1))
        if number in wanted
    ]  # fmt: skip

    # Passages spread evenly over the text; no neighbors across two of them.
    count = max(1, BATCH // PASSAGE)
    step = max(1, len(spans) // count)
    starts = torch.tensor([0, *(count for _, count in spans)]).cumsum(0)
    used = list(range(len(spans)))[::step][:count]
    batch = torch.cat([torch.arange(int(starts[p]), int(starts[p + 1])) for p in used])
    passage = torch.cat([torch.full((spans[p][1],), p) for p in used])
    anchors, candidates = _both(model, data, [spans[p] for p in used])
    separate = torch.unique(torch.stack([passage, documents[batch]]), dim=1, return_inverse=True)[1]
    options = model.options
    pairs = Pairs.windows(
        separate, reach=options.reach, texts=texts[batch] if options.mask_repeats else None
    )
    breaks = (documents.diff() != 0) | (numbers.diff() != 1)
    how_drawn = ""
    if len(names) < len(data):
        first = f"the first {within:,} of " * (within < len(data))
        how_drawn = f"in passages of up to {PASSAGE}, drawn at random from {first}{len(data):,}"
    known = {*vocabulary.words}
    read_as = [
        (names[item], [word if word in known else "…" for word in tokenize(names[item])])
        for item in batch[:: max(1, len(batch) // SHOWN_VIEWS)][:SHOWN_VIEWS].tolist()
    ]
    return Sample(
        names=names,
        features=features,
        total=len(data),
        how_drawn=how_drawn,
        labels=documents if data.topics is not None else None,
        classes=None if data.topics is None else list(data.topics),
        batch=batch,
        anchors=anchors,
        candidates=candidates,
        pairs=pairs,
        about_batch=(
            f"{len(batch)} sentences in {len(used)} passages of up to {PASSAGE}: each sentence is "
            "an anchor, its neighbors in the text are its positives, and all other sentences are "
            "its negatives."
        ),
        loss=loss,
        logits="dot",
        passages=torch.cat([breaks.new_zeros(1), breaks]).cumsum(0),
        read_as=read_as,
    )


def _both(
    model: QuickThought, data: SentenceCorpus, spans: Sequence[tuple[int, int]]
) -> tuple[Views, Views]:
    """What f and g give for some passages."""
    first: list[tuple[Tensor, Tensor | None]] = []
    second: list[tuple[Tensor, Tensor | None]] = []
    for span in spans:
        part = data.batch(*span)
        f, g = model.encoder.both(part.tokens, part.lengths)
        first.append(f)
        second.append(g)

    def joined(parts: list[tuple[Tensor, Tensor | None]]) -> Views:
        inputs = [h for _, h in parts if h is not None]
        return _views(torch.cat([z for z, _ in parts]), torch.cat(inputs) if inputs else None)

    return joined(first), joined(second)
