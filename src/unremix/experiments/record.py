"""What the experiments of ``unremix reproduce`` have in common: their runs and what they write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from unremix.data.atomic_files import read_text, write_text
from unremix.experiments.compare import compare, versions
from unremix.experiments.plan import CompareConfig
from unremix.experiments.reproduce import GraphsConfig, SentencesConfig
from unremix.experiments.statistics import Difference, Summary
from unremix.experiments.tables import Measure
from unremix.report.curves import write_figure
from unremix.training.config import TrainConfig
from unremix.training.run import Run

PERCENT = Measure("", "", percent=True, decimals=1)


@dataclass(frozen=True)
class Finished:
    """A run that has come to its end.

    Args:
        recipe: Its recipe.
        seed: Its seed.
        card: Its evaluation card, which has results.
        mix: The learned shares at the end, if any.
    """

    recipe: str
    seed: int
    card: dict[str, Any]
    mix: dict[str, float]


def train_runs(
    config: GraphsConfig | SentencesConfig,
    recipes: Sequence[str],
    train: TrainConfig,
    folder: Path,
    console: Console,
    command: str,
) -> int:
    """Compare recipes, the first being the reference, and return how many runs failed.

    Args:
        config: The experiment's options.
        recipes: Which.
        train: The options of a run.
        folder: Of the comparison; it goes on where it was.
        console: Where to show progress.
        command: What goes on with the experiment, if it is stopped.
    """
    comparison = CompareConfig(
        recipes=",".join(recipes),
        reference=recipes[0],
        seeds=config.seeds,
        jobs=config.jobs,
        output=str(folder),
        progress=config.progress,
    )
    return len(compare(comparison, train, again=command, console=console).failed)


def finished_runs(folder: Path, recipes: Sequence[str], seeds: int) -> Iterator[Finished]:
    """The runs of a comparison that have come to their end, recipe by recipe.

    Args:
        folder: The comparison.
        recipes: Which recipes.
        seeds: Seeds from 0 on, so many.
    """
    for recipe in recipes:
        for seed in range(seeds):
            path = folder / "runs" / f"{recipe}-{seed}"
            if not (path / "evaluation.json").exists():
                continue
            run = Run(path)
            card, rows = run.evaluation, run.metrics()
            if card is None or card.get("results") is None:
                continue
            last = rows[-1] if rows else {}
            mix = {name[4:]: share for name, share in last.items() if name[:4] == "mix_"}
            yield Finished(recipe, seed, card, mix)


def summary_text(summary: Summary | None) -> str:
    """Mean ± deviation in percent, or a dash."""
    return "–" if summary is None else PERCENT.summary(summary)


def difference_text(difference: Difference | None) -> str:
    """Mean difference and interval in percent, or a dash."""
    return "–" if difference is None else PERCENT.difference(difference)


def write_record(
    folder: Path,
    name: str,
    *,
    table: str,
    record: Mapping[str, Any],
    command: str,
    trained: bool,
    figure: Figure | None,
) -> None:
    """Write ``table.md``, ``results.json`` and the chart.

    Args:
        folder: Where to.
        name: Of the experiment, and of the chart's files.
        table: In Markdown.
        record: What goes to ``results.json``, after the command and the versions.
        command: What was asked for.
        trained: Whether that made the runs. If not, command, versions and settings of the record
            that stands there, if any, are those of the runs, and stay.
        figure: The chart, if there is anything to show.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    whole = {"command": command, "versions": versions(), **record}
    if not trained and path.exists():
        earlier = json.loads(read_text(path))
        kept = ("command", "versions", "settings")
        whole |= {key: earlier[key] for key in kept if key in earlier}
        trained = True
    made = whole["versions"]
    text = (
        f"# {name.capitalize()}\n\n{table}\n{'Made' if trained else 'Put together'} by\n\n"
        f"```bash\n{whole['command']}\n```\n\nwith unremix "
        f"{made['unremix']}, torch {made['torch']}, Python {made['python']}.\n"
    )
    content = json.dumps(whole, indent=1) + "\n"
    write_text(path, content)
    write_text(folder / "table.md", text)
    if figure is not None:
        write_figure(figure, folder / name)


def show_table(table: str, folder: str, console: Console) -> None:
    """Print the table, and where everything is."""
    console.print(table, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Everything is in {folder}/ (open table.md first)", highlight=False, markup=False
    )
