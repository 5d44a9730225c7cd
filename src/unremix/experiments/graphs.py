"""``unremix reproduce graphs``: the paper's figure on graphs, with its numbers.

A comparison per data set, in a folder of its own; on top of them ``table.md``, ``results.json``
(every run with the accuracy of every fold) and the bar chart ``graphs.png`` and ``graphs.svg``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from unremix.data.graph.dataset import load_graphs
from unremix.experiments.plan import chosen_recipes
from unremix.experiments.record import (
    PERCENT,
    difference_text,
    finished_runs,
    show_table,
    summary_text,
    train_runs,
    write_record,
)
from unremix.experiments.reproduce import GraphsConfig
from unremix.experiments.statistics import Difference, Summary, paired_difference, summarise
from unremix.experiments.tables import Grid
from unremix.experiments.tables import to_markdown as grid_to_markdown
from unremix.report.curves import COLOURS
from unremix.training.config import TrainConfig

# Of the best epoch on the test folds, which flatters; ours is the last epoch.
PUBLISHED = {
    "MUTAG": 0.8901, "PTC_MR": 0.6165, "REDDIT-BINARY": 0.8250, "IMDB-BINARY": 0.7303,
    "IMDB-MULTI": 0.4969,
}  # fmt: skip
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Result:
    """One run.

    Args:
        data: Its data set.
        recipe: Its recipe.
        seed: Its seed.
        epochs: Epochs it was trained.
        accuracy: Mean over the folds.
        folds: Of each fold.
        untrained: Mean over the folds of the same encoder, not trained.
        summed: Likewise of the summed node features.
        mix: The learned shares at the end, if any.
    """

    data: str
    recipe: str
    seed: int
    epochs: int
    accuracy: float
    folds: tuple[float, ...]
    untrained: float
    summed: float
    mix: Mapping[str, float]


def read_results(folder: Path, data: str, recipes: Sequence[str], seeds: int) -> list[Result]:
    """The runs of a comparison that have come to their end.

    Args:
        folder: The comparison.
        data: The data set.
        recipes: Which recipes.
        seeds: Seeds from 0 on, so many.
    """
    found = []
    for run in finished_runs(folder, recipes, seeds):
        results = run.card["results"]
        trained = results["trained"]["svm"]
        found.append(
            Result(
                data,
                run.recipe,
                run.seed,
                run.card["epoch"],
                trained["value"],
                tuple(trained["accuracies"]),
                results["untrained"]["svm"]["value"],
                results["summed node features"]["svm"]["value"],
                run.mix,
            )
        )
    return found


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The rank of each, 1 for the largest; equals share the mean of their ranks.

    Example:
        >>> ranks({"a": 0.7, "b": 0.9, "c": 0.7})
        {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    return {
        name: 1
        + sum(other > value for other in values.values())
        + (sum(other == value for other in values.values()) - 1) / 2
        for name, value in values.items()
    }


@dataclass(frozen=True)
class DataRow:
    """A data set in the table.

    Args:
        data: Its name.
        summaries: Accuracy over seeds, by recipe, and of the untrained encoder.
        differences: To the reference, over the seeds that both have, by recipe.
    """

    data: str
    summaries: dict[str, Summary]
    differences: dict[str, Difference]


def data_rows(results: Sequence[Result], recipes: Sequence[str]) -> list[DataRow]:
    """A row per data set, in the order they come up; the first recipe is the reference."""
    rows = []
    for data in dict.fromkeys(result.data for result in results):
        by_seed: dict[str, dict[int, float]] = {
            recipe: {r.seed: r.accuracy for r in results if (r.data, r.recipe) == (data, recipe)}
            for recipe in recipes
        }
        # Recipes share the untrained encoder of a seed.
        by_seed[UNTRAINED] = {r.seed: r.untrained for r in results if r.data == data}
        reference = by_seed[recipes[0]]
        differences = {}
        for recipe in recipes[1:]:
            seeds = sorted(by_seed[recipe].keys() & reference.keys())
            if seeds:
                differences[recipe] = paired_difference(
                    [by_seed[recipe][seed] for seed in seeds], [reference[seed] for seed in seeds]
                )
        summaries = {
            name: summarise([values[seed] for seed in sorted(values)])
            for name, values in by_seed.items()
            if values
        }
        rows.append(DataRow(data, summaries, differences))
    return rows


def unfinished(rows: Sequence[DataRow], recipes: Sequence[str], seeds: int) -> list[str]:
    """The data sets that lack a run."""
    return [
        row.data
        for row in rows
        if any(
            recipe not in row.summaries or row.summaries[recipe].count < seeds for recipe in recipes
        )
    ]


def average_ranks(rows: Sequence[DataRow], recipes: Sequence[str], seeds: int) -> dict[str, float]:
    """Mean rank of each recipe over the data sets that lack no run."""
    lacking = unfinished(rows, recipes, seeds)
    complete = [row for row in rows if row.data not in lacking]
    found = [ranks({recipe: row.summaries[recipe].mean for recipe in recipes}) for row in complete]
    return {recipe: statistics.fmean(one[recipe] for one in found) for recipe in recipes if found}


def _summary(summary: Summary | None) -> str:
    return summary_text(summary) + ("" if summary is None else f" ({summary.count})")


def to_markdown(
    rows: Sequence[DataRow],
    recipes: Sequence[str],
    seeds: int,
    *,
    epochs: Sequence[int],
    missing: Sequence[str] = (),
) -> str:
    """The table, and what has to be known to read it.

    Args:
        rows: A row per data set.
        recipes: The first is the reference.
        seeds: How many runs of each recipe there are to be.
        epochs: How many the runs were trained for, each number once.
        missing: Data sets that are left out.
    """
    headings = [
        "data set", *recipes, *(f"{recipe} − {recipes[0]}" for recipe in recipes[1:]),
        "untrained", "InfoGraph, published",
    ]  # fmt: skip
    lines = []
    for row in rows:
        published = PUBLISHED.get(row.data)
        lines.append([
            row.data,
            *(_summary(row.summaries.get(recipe)) for recipe in recipes),
            *(difference_text(row.differences.get(recipe)) for recipe in recipes[1:]),
            _summary(row.summaries.get(UNTRAINED)),
            "–" if published is None else PERCENT.number(published),
        ])  # fmt: skip
    average = average_ranks(rows, recipes, seeds)
    lacking = unfinished(rows, recipes, seeds)
    if average:
        shown = [f"{average[recipe]:.2f}" for recipe in recipes]
        lines.append(["average rank", *shown, *[""] * (len(headings) - 1 - len(recipes))])
    table = grid_to_markdown(Grid(headings, lines, 0))
    if lacking:
        table += (
            f"\nUnfinished: {', '.join(lacking)}, where not every recipe has {seeds} runs; they do "
            "not count in the rank.\n"
        )
    if missing:
        table += f"\nLeft out, for want of data or of runs: {', '.join(missing)}.\n"
    return (
        f"{table}\nAfter {' or '.join(map(str, epochs))} epochs. Accuracy in percent, mean ± "
        "standard deviation over seeds (their number); a seed's accuracy is the mean over the "
        "outer folds. Differences pair equal seeds, which share initial weights, order of the "
        "graphs and folds: mean [95 % interval by Student's t]. Published figures are those of "
        "the best epoch on the test folds; ours are those of the last epoch.\n"
    )


def bar_chart(rows: Sequence[DataRow], recipes: Sequence[str]) -> Figure:
    """A group of bars per data set, a bar per recipe, one standard deviation up and down."""
    figure = Figure(figsize=(max(7.5, 2.0 + 1.4 * len(rows)), 3.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(recipes)
    for number, recipe in enumerate(recipes):
        shown = [(place, row) for place, row in enumerate(rows) if recipe in row.summaries]
        summaries = [row.summaries[recipe] for _, row in shown]
        axes.bar(
            [place - 0.4 + (number + 0.5) * width for place, _ in shown],
            [100 * summary.mean for summary in summaries],
            width,
            yerr=[100 * (summary.deviation or math.nan) for summary in summaries],
            color=COLOURS[number % len(COLOURS)], label=recipe, capsize=2, error_kw={"lw": 1},
        )  # fmt: skip
    for place, row in enumerate(rows):
        if UNTRAINED in row.summaries:
            level = 100 * row.summaries[UNTRAINED].mean
            axes.hlines(
                level, place - 0.42, place + 0.42, color="#444444", linestyle=(0, (4, 3)), lw=1.2,
                label="" if place else "untrained encoder",
            )  # fmt: skip
    published = [(place, row) for place, row in enumerate(rows) if row.data in PUBLISHED]
    axes.plot(
        [place - 0.4 + 0.5 * width for place, _ in published],
        [100 * PUBLISHED[row.data] for _, row in published],
        "kD", ms=4, mfc="white", linestyle="none", label="InfoGraph, published (best epoch)",
    )  # fmt: skip
    axes.set_xticks(range(len(rows)), [row.data for row in rows])
    axes.set(ylabel="accuracy, %", ylim=(0, None))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _write(
    config: GraphsConfig, results: Sequence[Result], missing: Sequence[str], command: str
) -> str:
    rows = data_rows(results, config.recipes)
    epochs = sorted({result.epochs for result in results})
    table = to_markdown(rows, config.recipes, config.seeds, epochs=epochs, missing=missing)
    record = {
        "settings": asdict(config),
        "published": PUBLISHED,
        "runs": [asdict(result) for result in results],
        "average_rank": average_ranks(rows, config.recipes, config.seeds),
        "left_out": list(missing),
    }
    chart = bar_chart(rows, config.recipes) if rows else None
    folder = Path(config.output)
    write_record(
        folder, "graphs", table=table, record=record, command=command, trained=config.train,
        figure=chart,
    )  # fmt: skip
    return table


def _train_config(config: GraphsConfig, data: str) -> TrainConfig:
    return TrainConfig(
        data=data,
        domain="graph",
        recipe=config.recipes[0],
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        weight_decay=config.weight_decay,
        accelerator="cpu",
        threads=config.threads,
    )


def _missing(config: GraphsConfig, console: Console) -> list[str]:
    """The data sets that cannot be read; each is told."""
    missing = []
    for data in config.data:
        try:
            load_graphs(data, progress=False)
        except (ValueError, OSError) as error:
            missing.append(Path(data).stem)
            told = f"{missing[-1]} is left out: {error}"
            console.print(told, highlight=False, markup=False, soft_wrap=True)
    return missing


def reproduce(
    config: GraphsConfig,
    *,
    command: str = "unremix reproduce graphs",
    console: Console | None = None,
) -> int:
    """Train every recipe with every seed on every data set, and put the results together.

    Args:
        config: The options.
        command: The command that asked for it, for the table.
        console: Where to show progress.

    Returns:
        0, or 1 if a run failed.

    Raises:
        ValueError: For options that cannot be, or if there is no data set at all.
    """
    chosen_recipes(",".join(config.recipes), "graph")
    console = console or Console(quiet=not config.progress)
    failed = 0
    missing = _missing(config, console) if config.train else []
    folders = {Path(data).stem: Path(config.output) / Path(data).stem for data in config.data}

    def write() -> str:
        results = [
            result
            for name, folder in folders.items()
            for result in read_results(folder, name, config.recipes, config.seeds)
        ]
        found = {result.data for result in results}
        left_out = [name for name in folders if name not in found]
        return _write(config, results, left_out, command) if results else ""

    for data in config.data if config.train else ():
        name = Path(data).stem
        if name in missing:
            continue
        console.print(f"{name}:", highlight=False, markup=False)
        train = _train_config(config, data)
        try:
            failed += train_runs(config, config.recipes, train, folders[name], console, command)
        except KeyboardInterrupt:
            write()  # what there is
            raise
        write()
    table = write()
    if not table:
        where = ", ".join(missing) or config.output
        advice = (
            "put NAME.zip into the folder that UNREMIX_DATA names, or name others with --data"
            if missing or config.train
            else "leave out --train false, or name the folder of earlier runs with --output"
        )
        raise ValueError(
            f"expected at least one data set with a finished run, found none ({where}); {advice}"
        )
    show_table(table, config.output, console)
    return 1 if failed else 0
