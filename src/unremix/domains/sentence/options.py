"""What a sentence run can be told, and the recipes for sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unremix.frameworks.recipe import Recipe


@dataclass(frozen=True)
class SentenceOptions:
    """Options for sentences.

    Args:
        format: How the text is laid out: lines (one sentence each, blank lines between documents),
            prose, or auto.
        vocabulary: Words known, the most frequent ones; 50,000 in the paper.
        max_length: Words kept of a sentence.
        encoder: gru, bow (a bag of words) or transformer.
        words: Size of a word's vector; 620 in the paper.
        units: Size of the GRU's state; 1200 in the paper.
        bidirectional: Whether half of the units read backwards.
        output: Size of a linear map after each encoder; none by default.
        word_vectors: A file of word vectors to start from.
        expand: A file of word vectors, of any size: words of it that training did not know are
            known when embedding and measuring, by a linear map fitted on those that it did.
        senteval: Folder of SentEval's tasks to measure at the end, auto to look below the folder
            that UNREMIX_DATA names, or none.
        tasks: Which of them.
    """

    format: Literal["auto", "lines", "prose"] = "auto"
    vocabulary: int = 20_000
    max_length: int = 30
    encoder: Literal["gru", "bow", "transformer"] = "gru"
    words: int = 300
    units: int = 300
    bidirectional: bool = False
    output: int | None = None
    word_vectors: str | None = None
    expand: str | None = None
    senteval: str = "auto"
    tasks: tuple[str, ...] = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC", "SICK")


PAPER = "Table 4"
RECIPES = (
    Recipe("quickthought", "Quick-Thought", "quickthought", temperature=1.0, paper=PAPER),
    Recipe("quickthought-hcl", "Quick-Thought with HCL's weights", "quickthought", "hcl",
           temperature=1.0, preset={"loss": {"class_prior": 0.0}}, paper=PAPER),
    Recipe("quickthought-unremix", "UnReMix on Quick-Thought", "quickthought", "unremix",
           temperature=1.0, paper=PAPER),
)  # fmt: skip
