"""``unremix reproduce sentences``: the paper's Table 4.

Quick-Thought, HCL and UnReMix on ordered text, measured on SentEval's tasks, beside the paper's
figures and two floors: encoders that were not trained, and bags of words. Two comparisons, ``gru``
and ``bow``, in folders of their own; on top of them ``table.md``, ``results.json`` (every run) and
the bar chart ``sentences.png`` and ``sentences.svg``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from unremix.data.sentence.senteval_files import find_folder
from unremix.evaluation.card import measures_of
from unremix.experiments.plan import chosen_recipes
from unremix.experiments.record import (
    difference_text,
    finished_runs,
    show_table,
    summary_text,
    train_runs,
    write_record,
)
from unremix.experiments.reproduce import SentencesConfig
from unremix.experiments.statistics import Summary, paired_difference, summarise
from unremix.experiments.tables import Grid
from unremix.experiments.tables import to_markdown as grid_to_markdown
from unremix.report.curves import COLOURS
from unremix.training.config import SentenceOptions, TrainConfig

COLUMNS = {
    "SICK.pearson": "SICK",
    "CR.accuracy": "CR",
    "SUBJ.accuracy": "SUBJ",
    "MPQA.accuracy": "MPQA",
    "TREC.accuracy": "TREC",
    "MRPC.accuracy": "MSRP",
    "MRPC.f1": "MSRP F1",
}
TASKS = tuple(dict.fromkeys(column.split(".")[0] for column in COLUMNS))
# Table 4, on BookCorpus.
PAPER = {
    "quickthought": (67.7, 67.5, 79.9, 80.3, 66.0, 68.0, 80.1),
    "quickthought-hcl": (60.6, 62.7, 74.1, 79.3, 58.6, 68.3, 79.8),
    "quickthought-unremix": (74.7, 78.0, 86.8, 78.7, 82.8, 70.7, 80.9),
}
TRAINED, UNTRAINED = "trained", "untrained"
BAG = {TRAINED: "bags of words, trained as Quick-Thought", UNTRAINED: "bags of words, untrained"}
RANDOM = "GRU, untrained"


@dataclass(frozen=True)
class Result:
    """One encoder.

    Args:
        name: Its recipe, or the floor it is.
        seed: Its seed.
        steps: Steps it was trained.
        values: By the column's path, from 0 to 1.
        mix: The learned shares at the end, if any.
    """

    name: str
    seed: int
    steps: int
    values: Mapping[str, float]
    mix: Mapping[str, float]


def _values(result: Mapping[str, Any]) -> dict[str, float]:
    found = measures_of(result)
    return {path: found[path]["value"] for path in COLUMNS if path in found}


def read_results(
    folder: Path, recipes: Sequence[str], seeds: int, names: Mapping[str, str]
) -> list[Result]:
    """The runs of a comparison that have come to their end, and their encoders untrained.

    Args:
        folder: The comparison.
        recipes: Which recipes.
        seeds: Seeds from 0 on, so many.
        names: What to call trained and untrained encoders; trained ones by their recipe where it
            is left out. Recipes share the untrained encoder of a seed, which counts once.
    """
    found: dict[tuple[str, int], Result] = {}
    for run in finished_runs(folder, recipes, seeds):
        for kind, result in run.card["results"].items():
            name, trained = names.get(kind, run.recipe), kind == TRAINED
            one = Result(
                name,
                run.seed,
                run.card["step"] if trained else 0,
                _values(result),
                run.mix if trained else {},
            )
            found.setdefault((name, run.seed), one)
    return list(found.values())


def _by_seed(results: Sequence[Result], name: str, column: str) -> dict[int, float]:
    return {
        result.seed: result.values[column]
        for result in sorted(results, key=lambda result: result.seed)
        if result.name == name and column in result.values
    }


def summaries(results: Sequence[Result], name: str) -> dict[str, Summary]:
    """Mean and deviation over seeds of each column that a row has."""
    return {
        column: summarise(list(values.values()))
        for column in COLUMNS
        if (values := _by_seed(results, name, column))
    }


def _difference(results: Sequence[Result], name: str, reference: str, column: str) -> str:
    values, others = (_by_seed(results, one, column) for one in (name, reference))
    seeds = sorted(values.keys() & others.keys())
    return difference_text(
        paired_difference([values[seed] for seed in seeds], [others[seed] for seed in seeds])
        if seeds
        else None
    )


def row_names(results: Sequence[Result], recipes: Sequence[str]) -> list[str]:
    """The rows of the table: recipes first, then floors, as far as there are any."""
    order = [*recipes, BAG[TRAINED], RANDOM, BAG[UNTRAINED]]
    present = {result.name for result in results}
    return [name for name in order if name in present]


def _grid(rows: list[list[str]]) -> str:
    return grid_to_markdown(Grid(["", *COLUMNS.values()], rows, 0))


def to_markdown(results: Sequence[Result], recipes: Sequence[str]) -> str:
    """Values, differences to the first recipe and the paper's, and how to read them."""
    names = row_names(results, recipes)
    found = {name: summaries(results, name) for name in names}
    seeds = {name: len({one.seed for one in results if one.name == name}) for name in names}
    most = max(seeds.values(), default=0)
    values = [
        [
            name if seeds[name] == most else f"{name} ({seeds[name]} of {most} seeds)",
            *(summary_text(found[name].get(column)) for column in COLUMNS),
        ]
        for name in names
    ]
    published = [
        [f"{recipe}, paper", *(f"{value:.1f}" for value in PAPER[recipe])]
        for recipe in recipes
        if recipe in PAPER
    ]
    differences = [
        [name, *(_difference(results, name, recipes[0], column) for column in COLUMNS)]
        for name in names
        if name != recipes[0]
    ]
    return (
        f"{_grid([*values, *published])}\n"
        f"Differences to {recipes[0]}:\n\n{_grid(differences)}\n"
        "In percent: Pearson's correlation for SICK, F1 of paraphrases for MSRP F1, else "
        f"accuracy. Mean ± standard deviation over {most} seeds. Differences pair equal seeds, "
        "which share initial weights and order of the text: mean [95 % interval by Student's t]; "
        "each interval is for one difference by itself. The paper's rows are from encoders trained "
        "on BookCorpus.\n"
    )


def bar_chart(results: Sequence[Result], recipes: Sequence[str]) -> Figure:
    """A group of bars per column, one standard deviation up and down; the paper's as diamonds."""
    names = row_names(results, recipes)
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / max(1, len(names))
    places = {column: place for place, column in enumerate(COLUMNS)}
    for number, name in enumerate(names):
        found = summaries(results, name)
        at = [places[column] - 0.42 + (number + 0.5) * width for column in found]
        axes.bar(
            at,
            [100 * summary.mean for summary in found.values()],
            width,
            yerr=[100 * (summary.deviation or math.nan) for summary in found.values()],
            color=COLOURS[number] if name in recipes else ("#bbbbbb", "#888888", "#dddddd")[
                number - len([one for one in names if one in recipes])
            ],
            label=name, capsize=2, error_kw={"lw": 1},
        )  # fmt: skip
        if name in PAPER:
            axes.plot(
                [place - 0.42 + (number + 0.5) * width for place in places.values()], PAPER[name],
                "kD", ms=4, mfc="white", linestyle="none", label="" if number else "paper's",
            )  # fmt: skip
    axes.set_xticks(range(len(COLUMNS)), list(COLUMNS.values()))
    axes.set(ylabel="%", ylim=(30, 100))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def write_results(config: SentencesConfig, results: Sequence[Result], command: str) -> str:
    """Write table, record and chart, and return the table."""
    table = to_markdown(results, config.recipes)
    record = {
        "settings": asdict(config),
        "columns": COLUMNS,
        "paper": {name: dict(zip(COLUMNS, row, strict=True)) for name, row in PAPER.items()},
        "runs": [asdict(result) for result in results],
    }
    chart = bar_chart(results, config.recipes) if results else None
    folder = Path(config.output)
    write_record(
        folder, "sentences", table=table, record=record, command=command, trained=config.train,
        figure=chart,
    )  # fmt: skip
    return table


def train_config(config: SentencesConfig, encoder: str) -> TrainConfig:
    """The options of a run.

    Args:
        config: Those of the experiment.
        encoder: gru or bow.
    """
    return TrainConfig(
        data=config.data,
        domain="sentence",
        recipe=config.recipes[0],
        limit=config.limit,
        epochs=config.epochs,
        lr=config.lr,
        accelerator="cpu",
        threads=config.threads,
        sentence=SentenceOptions(
            encoder=encoder,  # type: ignore[arg-type]
            words=config.size,
            units=config.size,
            senteval=config.senteval,
            tasks=TASKS,
        ),
    )


def reproduce(
    config: SentencesConfig,
    *,
    command: str = "unremix reproduce sentences",
    console: Console | None = None,
) -> int:
    """Train every recipe with every seed, measure all on SentEval's tasks, set them side by side.

    Args:
        config: The options.
        command: The command that asked for it, for the table.
        console: Where to show progress.

    Returns:
        0, or 1 if a run failed.

    Raises:
        FileNotFoundError: If there is no text or no SentEval folder.
        ValueError: For options that cannot be, or if there is no finished run.
    """
    chosen_recipes(",".join(config.recipes), "sentence")
    find_folder(config.senteval)
    console = console or Console(quiet=not config.progress)
    parts: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
        ("gru", config.recipes, {UNTRAINED: RANDOM})
    ]
    if config.bag_of_words:
        parts.append(("bow", config.recipes[:1], BAG))
    results: list[Result] = []
    failed = 0
    for encoder, recipes, names in parts:
        folder = Path(config.output) / encoder
        if config.train:
            train = train_config(config, encoder)
            failed += train_runs(config, recipes, train, folder, console, command)
        results += read_results(folder, recipes, config.seeds, names)
        table = write_results(config, results, command)
    if not results:
        raise ValueError(
            f"expected at least one finished run, found none in {config.output}; look into its "
            "logs, or train with --train true"
        )
    show_table(table, config.output, console)
    return 1 if failed else 0
