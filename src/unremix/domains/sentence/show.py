"""How sentences are shown on a page: in passages, and in the words that the encoder knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.domains.base import Trained
from unremix.domains.sampling import drawn
from unremix.domains.sentence.corpus import EncodedCorpus
from unremix.domains.sentence.model import corpus_features, reader, sentence_features
from unremix.domains.sentence.quickthought import QuickThought
from unremix.domains.sentence.tokens import tokenize
from unremix.domains.shown import (
    BATCH,
    MOST_ITEMS,
    SHOWN_VIEWS,
    Sample,
    as_views,
    two_view_sample,
)
from unremix.files.atomic_files import read_text
from unremix.frameworks.base import Framework
from unremix.losses import TwoViewLoss

PASSAGE = 16  # consecutive sentences that are shown together
FIRST_SENTENCES = 200_000  # of a longer text, only this many are searched


def sample(run: Trained, data: EncodedCorpus, model: Framework, loss: TwoViewLoss | None) -> Sample:
    """What a page shows of a run on sentences; see :class:`unremix.domains.base.Domain`."""
    if not isinstance(model, QuickThought):
        found = two_view_sample(
            run,
            data,
            model,
            loss,
            lambda items: corpus_features(run.encoder(), data)[0][items].float(),
        )
        few = found.names[:: max(1, len(found.names) // SHOWN_VIEWS)][:SHOWN_VIEWS]
        return replace(found, read_as=[(text, run.shape.vocabulary.read(text)) for text in few])
    within = min(len(data), FIRST_SENTENCES)
    passages = drawn(-(-within // PASSAGE), MOST_ITEMS // PASSAGE).tolist()
    spans = [(PASSAGE * p, min(PASSAGE, within - PASSAGE * p)) for p in passages]
    encoder, vocabulary = reader(run)
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
    read_as = [
        (names[item], vocabulary.read(names[item]))
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
        finding="sentences find a neighbor of theirs",
        loss=loss,
        logits="dot",
        passages=torch.cat([breaks.new_zeros(1), breaks]).cumsum(0),
        read_as=read_as,
    )


def _both(
    model: QuickThought, data: EncodedCorpus, spans: Sequence[tuple[int, int]]
) -> tuple[Views, Views]:
    """What f and g give for some passages."""
    batches = [data.batch(*span) for span in spans]
    parts = [model.encoder.both(batch.tokens, batch.lengths) for batch in batches]
    first, second = (
        as_views(
            torch.cat([z for z, _ in side]),
            None if side[0][1] is None else torch.cat([h for _, h in side if h is not None]),
        )
        for side in zip(*parts, strict=True)
    )
    return first, second


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
