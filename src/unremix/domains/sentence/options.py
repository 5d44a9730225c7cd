"""What a sentence run can be told, and the recipes for sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unremix.console.values import bounded
from unremix.frameworks.recipe import Recipe


@dataclass(frozen=True)
class SentenceOptions:
    """Options for sentences.

    Args:
        format: How the text is laid out: lines (one sentence each, blank lines between documents),
            prose, or auto.
        text: A table's column of texts; by default text, sentence, content or the like.
        label: A table's column of topics; by default label, topic, class or the like, if there is
            one; none for none.
        vocabulary: Words known, the most frequent ones; 50,000 in the paper.
        max_length: Words kept of a sentence.
        tokens: Tokens kept of a sentence by a pretrained encoder; as many as it takes by default.
        encoder: gru, bow (a bag of words) or transformer; pretrained is what --encoder names.
        words: Size of a word's vector; 620 in the paper.
        units: Size of the GRU's state; 1200 in the paper.
        bidirectional: Whether half of the units read backwards.
        output: Size of a linear map after each encoder; none by default.
        views: How SimCSE's views of a sentence differ: dropout, mask (words are masked), or auto,
            which is dropout where the encoder has some.
        masked: The share of words that are masked.
        word_vectors: A file of word vectors to start from.
        expand: A file of word vectors, of any size: words of it that training did not know are
            known when embedding and measuring, by a linear map fitted on those that it did.
        senteval: Folder of SentEval's tasks to measure at the end, auto to look below the folder
            that UNREMIX_DATA names, or none.
        tasks: Which of them.
    """

    format: Literal["auto", "lines", "prose"] = "auto"
    text: str | None = None
    label: str | None = None
    vocabulary: int = 20_000
    max_length: int = 30
    tokens: int | None = bounded(None, least=1)
    encoder: Literal["gru", "bow", "transformer", "pretrained"] = "gru"
    words: int = 300
    units: int = 300
    bidirectional: bool = False
    output: int | None = None
    views: Literal["auto", "dropout", "mask"] = "auto"
    masked: float = bounded(0.15, above=0, below=1)
    word_vectors: str | None = None
    expand: str | None = None
    senteval: str = "auto"
    tasks: tuple[str, ...] = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC", "SICK")

    @property
    def length(self) -> int:
        """Words or tokens kept of a sentence."""
        return self.tokens or self.max_length


PAPER = "Table 4"
ONE_WAY = {"loss": {"layout": "one-way"}}
RECIPES = (
    Recipe("quickthought", "Quick-Thought", "quickthought", temperature=1.0, paper=PAPER),
    Recipe("quickthought-hcl", "Quick-Thought with HCL's weights", "quickthought", "hcl",
           temperature=1.0, preset={"loss": {"class_prior": 0.0}}, paper=PAPER),
    Recipe("quickthought-unremix", "UnReMix on Quick-Thought", "quickthought", "unremix",
           temperature=1.0, paper=PAPER),
    Recipe("simcse", "SimCSE", "simclr", temperature=0.05, preset=ONE_WAY),
    Recipe("simcse-unremix", "UnReMix on SimCSE", "simclr", "unremix", temperature=0.05,
           preset=ONE_WAY),
)  # fmt: skip
