"""How good a sentence encoder is: topics of documents by kNN, and SentEval's tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unremix.domains.base import Measuring, Trained
from unremix.domains.labeled import FeatureObserver, begin_card, leave_one_out
from unremix.domains.options import TrainConfig
from unremix.domains.sentence import senteval
from unremix.domains.sentence.corpus import EncodedCorpus
from unremix.domains.sentence.model import AnyShape, corpus_features, encode_texts, reader
from unremix.domains.sentence.senteval_files import asked_folder
from unremix.domains.sentence.tokens import Numbering, Vocabulary
from unremix.domains.sentence.word_vectors import check_expansion, load_word_vectors
from unremix.evaluation.cache import cached
from unremix.evaluation.health import effective_rank

WATCHED = 2000  # sentences that are measured at an epoch's end


def observe(
    data: EncodedCorpus, shape: AnyShape, config: TrainConfig, say: Callable[[str], None]
) -> FeatureObserver:
    """What is measured at an epoch's end; says what becomes of files of word vectors."""
    given, expand, vocabulary = config.own.word_vectors, config.own.expand, shape.vocabulary
    if given is not None and isinstance(vocabulary, Vocabulary):
        count, total = len(load_word_vectors(given, vocabulary)[0]), len(vocabulary) - 2
        say(f"{given} has {count:,} of the {total:,} words; others start at random.")
    if expand is not None and isinstance(vocabulary, Vocabulary):  # before hours of training
        shared = check_expansion(expand, vocabulary)
        say(f"Further words will be known by a map fitted on the {shared:,} words of {expand}.")

    def watched(encoder: nn.Module) -> tuple[Tensor, Tensor | None]:
        features, documents = corpus_features(encoder, data, WATCHED)
        return features, None if data.classes is None else documents

    warning = (
        "The embeddings use hardly more than one dimension (effective rank {rank}). Early in "
        "training that is usual: train on more text or for more --epochs. If the loss has long "
        "stopped falling, they have collapsed: lower --lr."
    )
    return FeatureObserver(watched, config, say, least=2, warning=warning, always=True)


def _measure(
    encoder: nn.Module,
    data: EncodedCorpus,
    vocabulary: Numbering,
    config: TrainConfig,
    folder: str | None,
    progress: Measuring | None,
) -> tuple[dict[str, Any], Any]:
    result: dict[str, Any] = {}
    protocol = None
    if data.classes is not None:
        features, documents = corpus_features(encoder, data)
        result["features"] = features.shape[1]
        result["knn"] = asdict(leave_one_out(features, documents, config))
    if folder is not None:
        encode = partial(encode_texts, encoder, vocabulary=vocabulary, max_length=config.own.length)
        found = senteval.evaluate(encode, folder, config.own.tasks, progress=progress)
        result["features"] = found["encoder"]["features"]
        result |= found["tasks"]
        protocol = found["protocol"]
    return result, protocol


def evaluate(
    run: Trained, data: EncodedCorpus, *, own: bool = True, progress: Measuring | None = None
) -> dict[str, Any]:
    """Measure a run's encoders, trained and before, on topics where the text has any.

    With another text than the run's own, SentEval's tasks, which do not look at it, are left out.
    Arguments and result are those of ``evaluate`` in :class:`unremix.domains.base.Domain`.
    """
    config = run.config
    folder = asked_folder(config.own.senteval) if own else None
    facts: dict[str, Any] = {"train_sentences": len(data), "documents": data.documents}
    facts["unknown_words"] = f"{data.unknown / data.tokens:.2%} of the text"
    both = "outputs of both encoders side by side"
    layer = f"{'output of the encoder' if run.shape.single else both}; eval mode"
    card = begin_card(run, data.name, facts, layer=layer, health=("effective_rank",), own=own)
    if not own and len(data) > 1:
        features, _ = corpus_features(reader(run)[0], data, WATCHED)
        card["health"]["effective_rank"] = effective_rank(features)
    topics = data.classes is not None
    if folder is None and not topics:
        why = "for SentEval's tasks name their folder with --sentence.senteval or UNREMIX_DATA"
        if not own:
            why = "SentEval's tasks do not depend on it and are in evaluation.json"
        elif config.own.senteval == "none":
            why = "SentEval's tasks were left out, as asked"
        card["note"] = f"the text has no topics to distinguish; {why}"
        return card
    results, monitored = {}, {}
    protocol: dict[str, Any] = {"standard_error": "over the sentences measured; one training run"}
    for kind, network in run.encoders().items():
        encoder, shape = reader(run, network)
        vocabulary = shape.vocabulary
        measure = partial(_measure, encoder, data, vocabulary, config, folder, progress)
        if kind == "trained":
            results[kind], tasks = measure()
        else:  # recipes share it
            text = data.name if topics else None  # otherwise it is not looked at
            neighbors = (config.knn_k, config.knn_temperature)
            asked = (vocabulary.words, text, folder, asdict(config.own), *neighbors)
            weights = encoder.state_dict().values()
            results[kind], tasks = cached(Path(config.runs), asked, weights, measure)
        protocol |= tasks or {}
        if topics:
            features, documents = corpus_features(encoder, data, WATCHED)
            if len(documents.unique()) > 1:
                monitored[kind] = asdict(leave_one_out(features, documents, config))
    if monitored:
        card["monitored"] = monitored  # what the curve of the epochs is compared with
    if topics:
        protocol["knn"] = "topic of a sentence by its nearest sentences, leaving one out, cosine"
    return card | {"results": results, "protocol": protocol}
