"""``unremix reproduce sentences``: the paper's Table 4.

Quick-Thought, HCL and UnReMix on ordered text, measured on SentEval's tasks, beside the paper's
figures and two floors: encoders that were not trained, and bags of words. Two comparisons, ``gru``
and ``bow``, in folders of their own; on top of them ``table.md``, ``results.json`` (every run) and
the bar chart ``sentences.png`` and ``sentences.svg``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from unremix.config import SentenceOptions, TrainConfig
from unremix.evaluation.card import measures_of
from unremix.evaluation.senteval_files import find_folder
from unremix.experiments.compare import compare, versions
from unremix.experiments.plan import CompareConfig, chosen_recipes
from unremix.experiments.reproduce import SentencesConfig
from unremix.experiments.statistics import Summary, paired_difference, summarise
from unremix.files import write_whole
from unremix.report.curves import COLOURS, write_figure
from unremix.run import Run

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
    for recipe in recipes:
        for seed in range(seeds):
            path = folder / "runs" / f"{recipe}-{seed}"
            if not (path / "evaluation.json").exists():
                continue
            run = Run(path)
            card, rows = run.evaluation or {}, run.metrics()
            for kind, result in (card.get("results") or {}).items():
                name = names.get(kind, recipe)
                last = rows[-1] if rows and kind == TRAINED else {}
                mix = {key[4:]: share for key, share in last.items() if key[:4] == "mix_"}
                steps = card["step"] if kind == TRAINED else 0
                one = Result(name, seed, steps, _values(result), mix)
                found.setdefault((name, seed), one)
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


def _summary(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    spread = "–" if summary.deviation is None else f"{100 * summary.deviation:.1f}"
    return f"{100 * summary.mean:.1f} ± {spread}"


def _difference(results: Sequence[Result], name: str, reference: str, column: str) -> str:
    values, others = (_by_seed(results, one, column) for one in (name, reference))
    seeds = sorted(values.keys() & others.keys())
    if not seeds:
        return "–"
    found = paired_difference([values[seed] for seed in seeds], [others[seed] for seed in seeds])
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f} [–]"
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def row_names(results: Sequence[Result], recipes: Sequence[str]) -> list[str]:
    """The rows of the table: recipes first, then floors, as far as there are any."""
    order = [*recipes, BAG[TRAINED], RANDOM, BAG[UNTRAINED]]
    present = {result.name for result in results}
    return [name for name in order if name in present]


def _grid(rows: Sequence[Sequence[str]]) -> str:
    lines = [["", *COLUMNS.values()], ["---", *["--:"] * len(COLUMNS)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_markdown(results: Sequence[Result], recipes: Sequence[str]) -> str:
    """Values, differences to the first recipe and the paper's, and how to read them."""
    names = row_names(results, recipes)
    found = {name: summaries(results, name) for name in names}
    values = [[name, *(_summary(found[name].get(column)) for column in COLUMNS)] for name in names]
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
    count = len({result.seed for result in results if result.name in recipes})
    return (
        f"{_grid([*values, *published])}\n\n"
        f"Differences to {recipes[0]}:\n\n{_grid(differences)}\n\n"
        "In percent: Pearson's correlation for SICK, F1 of paraphrases for MSRP F1, else "
        f"accuracy. Mean ± standard deviation over {count} seeds. Differences pair equal seeds, "
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
            yerr=[100 * (summary.deviation or 0.0) for summary in found.values()],
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
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    table, made = to_markdown(results, config.recipes), versions()
    record = {
        "command": command,
        "versions": made,
        "settings": asdict(replace(config, train=True)),
        "columns": COLUMNS,
        "paper": {name: dict(zip(COLUMNS, row, strict=True)) for name, row in PAPER.items()},
        "runs": [asdict(result) for result in results],
    }
    text = (
        f"# Sentences\n\n{table}\nMade by\n\n```bash\n{command}\n```\n\nwith unremix "
        f"{made['unremix']}, torch {made['torch']}, Python {made['python']}.\n"
    )
    write_whole(
        folder / "results.json", lambda file: file.write_text(json.dumps(record, indent=1) + "\n")
    )
    write_whole(folder / "table.md", lambda file: file.write_text(text))
    if results:
        write_figure(bar_chart(results, config.recipes), folder / "sentences")
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
            comparison = compare(
                CompareConfig(
                    recipes=",".join(recipes),
                    reference=recipes[0],
                    seeds=config.seeds,
                    jobs=config.jobs,
                    output=str(folder),
                    progress=config.progress,
                ),
                train_config(config, encoder),
                console=console,
            )
            failed += len(comparison.failed)
        results += read_results(folder, recipes, config.seeds, names)
        table = write_results(config, results, command)
    if not results:
        raise ValueError(
            f"expected at least one finished run, found none in {config.output}; look into its "
            "logs, or train with --train true"
        )
    console.print(table, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Everything is in {config.output}/ (open table.md first)", highlight=False)
    return 1 if failed else 0
