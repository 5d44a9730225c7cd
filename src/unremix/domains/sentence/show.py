"""How sentences are shown on a page: in passages, and in the words that the encoder knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from unremix.core.views import Views
from unremix.domains import shown
from unremix.domains.base import Trained
from unremix.domains.sampling import drawn
from unremix.domains.sentence.corpus import EncodedCorpus
from unremix.domains.sentence.model import corpus_features, reader, sentence_features
from unremix.domains.sentence.quickthought import QuickThought
from unremix.domains.sentence.tokens import Numbering, tokenize
from unremix.domains.shown import MOST_ITEMS, SHOWN_VIEWS, Sample
from unremix.files.atomic_files import read_text
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss

PASSAGE = 16  # consecutive sentences that are shown together
FIRST_SENTENCES = 200_000  # of a longer text, only this many are searched


def sample(run: Trained, data: EncodedCorpus, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on sentences; see :class:`unremix.domains.base.Domain`."""
    if not isinstance(model, QuickThought):

        def embedded(items: Tensor) -> Tensor:
            return corpus_features(run.encoder(), data)[0][items].float()

        found = shown.two_view_sample(run, data, model, loss, embedded)
        return replace(found, read_as=_read_as(found.names, run.shape.vocabulary))
    within = min(len(data), FIRST_SENTENCES)
    passages = drawn(-(-within // PASSAGE), MOST_ITEMS // PASSAGE).tolist()
    spans = [(PASSAGE * p, min(PASSAGE, within - PASSAGE * p)) for p in passages]
    encoder, shape = reader(run)
    if len(spans) * PASSAGE >= within:
        features, documents = corpus_features(encoder, data, within)
        texts = data.batch(0, within).texts
    else:
        parts = [data.batch(*span) for span in spans]
        features, documents = sentence_features(encoder, parts)
        texts = torch.cat([part.texts for part in parts])
    numbers = torch.cat([torch.arange(start, start + count) for start, count in spans])
    wanted = set(numbers.tolist())
    readable = (one.text for one in data.source if tokenize(one.text))
    first_texts = enumerate(islice(readable, int(numbers[-1]) + 1))
    names = [text for number, text in first_texts if number in wanted]

    # Passages spread evenly over the text; no neighbors across two of them.
    count = max(1, shown.BATCH // PASSAGE)
    step = max(1, len(spans) // count)
    starts = torch.tensor([0, *(count for _, count in spans)]).cumsum(0)
    used = list(range(len(spans)))[::step][:count]
    batch = torch.cat([torch.arange(int(starts[p]), int(starts[p + 1])) for p in used])
    passage = torch.cat([torch.full((spans[p][1],), p) for p in used])
    anchors, candidates = _both(model, data, [spans[p] for p in used])
    separate = torch.unique(torch.stack([passage, documents[batch]]), dim=1, return_inverse=True)[1]
    breaks = (documents.diff() != 0) | (numbers.diff() != 1)
    how_drawn = ""
    if len(names) < len(data):
        first = f"the first {within:,} of " * (within < len(data))
        how_drawn = f"in passages of up to {PASSAGE}, drawn at random from {first}{len(data):,}"
    return Sample(
        names=names,
        features=features,
        total=len(data),
        how_drawn=how_drawn,
        labels=documents if data.classes is not None else None,
        classes=None if data.classes is None else list(data.classes),
        batch=batch,
        anchors=anchors,
        candidates=candidates,
        pairs=model.pairs(separate, texts[batch]),
        about_batch=(
            f"{len(batch)} sentences in {len(used)} passages of up to {PASSAGE}: each sentence is "
            "an anchor, its neighbors in the text are its positives, and all other sentences are "
            "its negatives."
        ),
        finding="sentences find a neighbor of theirs",
        loss=loss,
        logits="dot",
        passages=torch.cat([breaks.new_zeros(1), breaks]).cumsum(0),
        read_as=_read_as([names[item] for item in batch.tolist()], shape.vocabulary),
    )


def _read_as(texts: list[str], vocabulary: Numbering) -> list[tuple[str, list[str]]]:
    """Some of the texts, and their words as the encoder knows them."""
    few = texts[:: max(1, len(texts) // SHOWN_VIEWS)][:SHOWN_VIEWS]
    return [(text, vocabulary.read(text)) for text in few]


def _both(
    model: QuickThought, data: EncodedCorpus, spans: Sequence[tuple[int, int]]
) -> tuple[Views, Views]:
    """What f and g give for some passages."""
    batches = [data.batch(*span) for span in spans]
    parts = [model.encoder.both(batch.tokens, batch.lengths) for batch in batches]
    views = []
    for side in zip(*parts, strict=True):
        inputs = [h for _, h in side if h is not None]
        z, h = torch.cat([z for z, _ in side]), torch.cat(inputs) if inputs else None
        views.append(shown.as_views(z, h))
    return views[0], views[1]


def ask(query: str) -> list[str]:
    """A query is a sentence, or a .txt file with one on each line.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not query.endswith(".txt"):
        return [query]
    if not Path(query).is_file():
        raise FileNotFoundError(f"expected sentences at {query!r}, found no file")
    return [line.strip() for line in read_text(Path(query)).splitlines()]
