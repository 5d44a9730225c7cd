"""sentence-transformers: hard negatives for a dataset of pairs, with its argument names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from unremix.adapters import needed_for
from unremix.core.checks import check_choice, check_count
from unremix.core.scores import PAPER_COMPONENTS
from unremix.mining.embeddings import Floats, digest_of, kept_embeddings, unit_rows
from unremix.mining.index import Kind
from unremix.mining.mine import Sampling
from unremix.mining.mine import mine_hard_negatives as mine
from unremix.mining.pairs import Lists, Rescoring, ScorePairs, similarity_of_pairs

with needed_for("sentence_transformers"):
    from transformers import TrainerCallback

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import CrossEncoder, SentenceTransformer

Format = Literal["triplet", "n-tuple", "labeled-pair", "labeled-list"]


def mine_hard_negatives(
    dataset: Dataset,
    model: SentenceTransformer,
    anchor_column_name: str | None = None,
    positive_column_name: str | None = None,
    corpus: list[str] | None = None,
    cross_encoder: CrossEncoder | ScorePairs | None = None,
    *,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = 0.05,
    num_negatives: int = 3,
    sampling_strategy: Sampling = "importance",
    query_prompt_name: str | None = None,
    query_prompt: str | None = None,
    corpus_prompt_name: str | None = None,
    corpus_prompt: str | None = None,
    include_positives: bool = False,
    output_format: Format = "triplet",
    output_scores: bool = False,
    batch_size: int = 32,
    use_faiss: bool | Kind = False,
    use_multi_process: bool | list[str] = False,
    verbose: bool = True,
    cache_folder: str | None = None,
    duplicate_threshold: float = 0.95,
    components: Sequence[str] = PAPER_COMPONENTS,
    mix: Literal["fixed"] | Sequence[float] = "fixed",
    posterior_temperature: float = 0.05,
    seed: int = 0,
) -> Dataset:
    """Add hard negatives to a dataset of (anchor, positive) pairs.

    Takes the arguments of ``sentence_transformers.util.mine_hard_negatives`` and returns the same
    formats. With ``sampling_strategy="top"`` and ``duplicate_threshold=2`` it finds the same
    negatives, except that it looks further where that function finds too few, unless ``range_max``
    or a cross-encoder says how far, and leaves out the text of the anchor, texts that differ from
    it or from a positive in case and white space only, and further rows with equal embeddings.
    Similarity is the cosine for every model. It has no ``faiss_batch_size``.

    Args:
        dataset: Pairs; an anchor in several rows has several positives.
        model: Embeds both columns.
        anchor_column_name: By default the first column.
        positive_column_name: By default the second column.
        corpus: Further texts to find negatives in.
        cross_encoder: Scores the candidates, or any function of a list of pairs of texts does; its
            scores stand for the similarity in bounds, order, mix and output, with or without a
            bound.
        range_min: How many of the most similar candidates to pass over.
        range_max: The last rank of a candidate. By default candidates are 10 per negative and at
            least 50, and more are looked for if these are too few.
        max_score: The largest similarity of a negative.
        min_score: The smallest.
        absolute_margin: See :func:`unremix.mine_hard_negatives`.
        relative_margin: See there; None for no margin.
        num_negatives: k.
        sampling_strategy: ``importance``, ``top`` or ``random``.
        query_prompt_name: For embedding the anchors.
        query_prompt: Likewise; takes precedence over ``query_prompt_name``.
        corpus_prompt_name: For embedding the corpus.
        corpus_prompt: Likewise; takes precedence over ``corpus_prompt_name``.
        include_positives: Whether positives are candidates too, as a reranker is evaluated. Then
            margins and ``duplicate_threshold`` do not apply, and the format is ``n-tuple``.
        output_format: ``triplet``, ``n-tuple``, ``labeled-pair`` or ``labeled-list``. An n-tuple
            needs all its negatives: anchors with fewer are left out.
        output_scores: Whether to add the similarities of the positive and the negatives.
        batch_size: For embedding.
        use_faiss: False for the exact search in blocks; True for ``flat``; or ``ivf``, ``hnsw``.
        use_multi_process: Whether several processes embed: one per device of the library's
            choice, or of those named, such as ``["cpu", "cpu"]``.
        verbose: Whether to print what was found and left out.
        cache_folder: Keeps embeddings, index and finished blocks.
        duplicate_threshold: The cosine from which a text is a near-duplicate of a positive.
        components: What is mixed; see :func:`unremix.mine_hard_negatives`, also for the rest.
        mix: λ.
        posterior_temperature: t.
        seed: Of ``random``.

    Raises:
        ValueError: If the dataset is empty or lacks a column, or an option is out of range.
    """
    check_choice("output_format", output_format, get_args(Format))
    if include_positives:  # as the library: in other formats each candidate is called a negative
        output_format = "n-tuple"
    check_count("num_negatives", num_negatives, 1, "ask for one or more")
    if range_max is not None:
        remedy = "enlarge it to range_min + num_negatives"
        check_count("range_max", range_max, range_min + num_negatives, remedy)
    anchor_name, positive_name = _columns(dataset, anchor_column_name, positive_column_name)
    all_anchors, all_positives = list(dataset[anchor_name]), list(dataset[positive_name])
    texts = list(dict.fromkeys([*(corpus or ()), *all_positives]))
    row_of = {text: row for row, text in enumerate(texts)}
    rows_of: dict[str, dict[int, None]] = {anchor: {} for anchor in all_anchors}  # in their order
    for anchor, positive in zip(all_anchors, all_positives, strict=True):
        rows_of[anchor][row_of[positive]] = None
    anchors, positives = list(rows_of), [list(its) for its in rows_of.values()]
    folder = None if cache_folder is None else Path(cache_folder)

    def embed(what: Literal["query", "document"], some: list[str], **prompts: Any) -> Floats:
        encode = model.encode_query if what == "query" else model.encode_document
        kept = None
        if folder is not None:
            kept = folder / f"{what}-{digest_of(*_identity(model), prompts, some)}.npy"
        options = {"batch_size": batch_size, "show_progress_bar": verbose, **prompts}

        def encoded() -> Floats:
            if not use_multi_process:
                return encode(some, convert_to_numpy=True, **options)  # type: ignore[no-any-return]
            named = None if use_multi_process is True else use_multi_process
            pool = model.start_multi_process_pool(target_devices=named)
            try:
                return encode(some, pool=pool, **options)  # type: ignore[no-any-return]
            finally:
                model.stop_multi_process_pool(pool)

        return kept_embeddings(kept, encoded)

    queries = embed("query", anchors, prompt_name=query_prompt_name, prompt=query_prompt)
    rows = embed("document", texts, prompt_name=corpus_prompt_name, prompt=corpus_prompt)
    index: Kind = "exact" if use_faiss is False else "flat" if use_faiss is True else use_faiss
    score: ScorePairs | None = getattr(cross_encoder, "predict", cross_encoder)
    mined = mine(
        queries,
        rows,
        positives,
        num_negatives,
        anchor_texts=anchors,
        corpus_texts=texts,
        relative_margin=relative_margin,
        absolute_margin=absolute_margin,
        max_score=max_score,
        min_score=min_score,
        duplicate_threshold=duplicate_threshold,
        components=components,
        mix=mix,
        posterior_temperature=posterior_temperature,
        sampling=sampling_strategy,
        skip=range_min,
        range_max=range_max,
        include_positives=include_positives,
        cross_encoder=score,
        index=index,
        folder=folder,
        seed=seed,
    )
    if verbose:
        print(*mined.summary(), sep="\n")
    given = Lists.of(positives)
    if score is None:
        similarity = similarity_of_pairs(unit_rows(queries), rows, given)
    else:
        similarity = Rescoring(score, anchors, texts).of(given.anchors, given.rows)
    negatives = [
        [(texts[row], float(value)) for row, value in zip(found, values, strict=True) if row >= 0]
        for found, values in zip(mined.indices, mined.similarity, strict=True)
    ]
    pairs = [
        (anchors[number], texts[row], value, negatives[number])
        for number, row, value in zip(given.anchors, given.rows, similarity.tolist(), strict=True)
    ]
    names = anchor_name, positive_name
    columns = _formatted(output_format, output_scores, names, pairs, mined.indices.shape[1])
    from datasets import Dataset

    made: Dataset = Dataset.from_dict(columns)
    return made


class MiningCallback(TrainerCallback):
    """Mines hard negatives again every so many steps, with the model as it then is.

    Args:
        pairs: Anchors and positives in the first two columns, or in those that ``options`` name.
        model: The model that is trained.
        every: Steps of the trainer between two rounds.
        options: Those of :func:`mine_hard_negatives`, except the format.

    Attributes:
        dataset: For the trainer: the pairs with ``num_negatives`` further columns, always those
            mined last. Pairs for which the first round finds fewer are left out; where a later one
            does, they keep what they have.

    Example:
        ``SentenceTransformerTrainer(model, args, train_dataset=callback.dataset, loss=loss,
        callbacks=[callback])``
    """

    def __init__(self, pairs: Dataset, model: SentenceTransformer, every: int, **options: Any):
        if refused := {"output_format", "output_scores", "include_positives"} & options.keys():
            raise ValueError(
                "expected options of mine_hard_negatives except output_format, output_scores and "
                f"include_positives, got {', '.join(sorted(refused))}; leave it out: the data are "
                "anchors, positives and negatives"
            )
        check_count("every", every, 1, "use a number of steps between two rounds")
        self.pairs, self.model, self.every = pairs, model, every
        self.options = {"verbose": False, **options}
        self.mined: dict[tuple[str, str], list[str]] = {}
        self.dataset = self._mine()
        if not len(self.dataset):
            raise ValueError(
                "expected pairs with enough negatives, got none; lower num_negatives, or let the "
                "margins allow more"
            )
        self.dataset.set_transform(self._with_negatives)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mine with the model that training resumes with."""
        if state.global_step:
            self._mine()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mine when it is time."""
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._mine()

    def _mine(self) -> Dataset:
        """Pairs with their negatives, which are remembered."""
        trained = self.model.training
        found = mine_hard_negatives(self.pairs, self.model, output_format="n-tuple", **self.options)
        self.model.train(trained)  # embedding ends in evaluation
        rows = zip(*(found[name] for name in found.column_names), strict=True)
        self.mined |= {(anchor, positive): others for anchor, positive, *others in rows}
        return found

    def _with_negatives(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The rows of a batch with the negatives mined last."""
        anchors, positives, *others = batch
        pairs = zip(batch[anchors], batch[positives], strict=True)
        columns = zip(*(self.mined[pair] for pair in pairs), strict=True)
        mined = dict(zip(others, map(list, columns), strict=True))
        return {anchors: batch[anchors], positives: batch[positives], **mined}


def _columns(dataset: Dataset, anchor: str | None, positive: str | None) -> tuple[str, str]:
    names = dataset.column_names
    for wanted in (anchor, positive):
        if wanted is not None and wanted not in names:
            raise ValueError(
                f"expected a column {wanted!r}, got {', '.join(names)}; name one of these"
            )
    if len(names) < 2 or not len(dataset):
        raise ValueError(
            f"expected pairs in two columns, got {len(dataset)} rows of {', '.join(names)}; "
            "pass a dataset of anchors and positives"
        )
    first = names[0] if anchor is None else anchor
    others = [name for name in names if name != first]
    return first, others[0] if positive is None else positive


def _identity(model: SentenceTransformer) -> list[Any]:
    """What embeddings depend on: a model that was trained or set up differently has one name."""
    import torch

    def bytes_of(tensor: torch.Tensor) -> Any:
        return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()

    weights = model.state_dict().items()
    digests = [
        f"{name} {digest_of(bytes_of(tensor))}" for name, tensor in weights if tensor.numel()
    ]
    # The modules in words name their options: pooling, longest text.
    return [digests, str(model), model.prompts, model.default_prompt_name, model.truncate_dim]


def _formatted(
    output_format: Format,
    output_scores: bool,
    names: tuple[str, str],
    pairs: list[tuple[str, str, float, list[tuple[str, float]]]],
    k: int,
) -> dict[str, list[Any]]:
    """The columns of a format.

    Args:
        output_format: The format.
        output_scores: Whether similarities are among them.
        names: Of the columns of anchors and positives.
        pairs: Anchor, positive, their similarity, and the anchor's negatives with theirs.
        k: Negatives that were asked for.
    """
    last = {anchor: positive for anchor, positive, *_ in pairs}
    rows: list[tuple[Any, ...]] = []
    for anchor, positive, score, found in pairs:
        negatives, scores = [text for text, _ in found], [score, *(value for _, value in found)]
        if output_format == "triplet":
            rows += [(anchor, positive, text, [score, value]) for text, value in found]
        elif output_format == "n-tuple" and len(found) == k:
            rows.append((anchor, positive, *negatives, scores))
        elif output_format == "labeled-list" and found:
            labels = [1, *([0] * len(found))]
            rows.append((anchor, [positive, *negatives], labels, scores))
        elif output_format == "labeled-pair":
            rows.append((anchor, positive, 1, score))
            if last[anchor] == positive:
                rows += [(anchor, text, 0, value) for text, value in found]
    further = {
        "triplet": ["negative", "scores"],
        "n-tuple": [*(f"negative_{place}" for place in range(1, k + 1)), "scores"],
        "labeled-pair": ["label", "score"],
        "labeled-list": ["labels", "scores"],
    }
    drop = {"label", "labels"} if output_scores else {"score", "scores"}
    columns = enumerate([*names, *further[output_format]])
    return {name: [row[place] for row in rows] for place, name in columns if name not in drop}
