"""``unremix reproduce``: the experiments by name, each with its options. Adding one is one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GraphsConfig:
    """Options of the graph experiment; by default the paper's.

    Args:
        data: TU data sets; those whose files are missing are left out.
        recipes: Recipes; all are compared with the first.
        seeds: Runs of each recipe on each data set, with seeds from 0 on.
        epochs: Of each run.
        batch_size: Graphs per step.
        lr: Learning rate of Adam.
        weight_decay: Its weight decay.
        threads: Of each process; the cores are shared out by default.
        jobs: Runs at a time; by default one per core.
        output: Folder; the same folder again goes on where it was.
        train: Whether to train what is missing; if not, what there is is put into tables.
        progress: Whether to show progress and tables.
    """

    data: tuple[str, ...] = (
        "MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI",
    )  # fmt: skip
    recipes: tuple[str, ...] = ("infograph", "infograph-hcl", "infograph-unremix")
    seeds: int = 5
    epochs: int = 200
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 1e-6
    threads: int | None = None
    jobs: int | None = None
    output: str = "reproductions/graphs"
    train: bool = True
    progress: bool = True


@dataclass(frozen=True)
class SentencesConfig:
    """Options of the sentence experiment.

    Args:
        data: Ordered text.
        senteval: Folder of SentEval's tasks.
        recipes: Recipes; all are compared with the first.
        seeds: Runs of each recipe, with seeds from 0 on.
        limit: Sentences to train on.
        epochs: Passes over them.
        lr: Learning rate; the paper's 5e-4 is too small for so few steps.
        size: Of a word's vector and of the GRU's state.
        bag_of_words: Whether to train bags of words as well, as a floor.
        threads: Of each process; the cores are shared out by default.
        jobs: Runs at a time; by default one per core.
        output: Folder; the same folder again goes on where it was.
        train: Whether to train what is missing; if not, what there is is put into tables.
        progress: Whether to show progress and tables.
    """

    data: str = "books"
    senteval: str = "senteval"
    recipes: tuple[str, ...] = ("quickthought", "quickthought-hcl", "quickthought-unremix")
    seeds: int = 3
    limit: int = 300_000
    epochs: int = 1
    lr: float = 5e-3
    size: int = 300
    bag_of_words: bool = True
    threads: int | None = None
    jobs: int | None = None
    output: str = "reproductions/sentences"
    train: bool = True
    progress: bool = True


def _graphs(config: Any, command: str) -> int:
    from unremix.experiments.graphs import reproduce

    return reproduce(config, command=command)


def _sentences(config: Any, command: str) -> int:
    from unremix.experiments.sentences import reproduce

    return reproduce(config, command=command)


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Args:
        summary: What it is.
        options: Its options, a dataclass.
        run: Runs it, given options and the command that asked for it; returns the exit code.
    """

    summary: str
    options: type
    run: Callable[[Any, str], int]


EXPERIMENTS = {
    "graphs": Experiment("InfoGraph, HCL and UnReMix on TU data sets", GraphsConfig, _graphs),
    "sentences": Experiment(
        "Quick-Thought, HCL and UnReMix on books, by SentEval", SentencesConfig, _sentences
    ),
}
