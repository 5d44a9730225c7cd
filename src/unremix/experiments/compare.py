"""``unremix compare``: the same training for several recipes and seeds, side by side.

Every run is a process of its own. What is done, what is under way and what is left to do is read
from the comparison's folder, so that starting again resumes it:

``comparison.yaml`` (its options), ``runs/<recipe>-<seed>/`` (run folders), ``logs/``, and at the
end ``results.csv`` (a row per run), ``results.json``, ``table.csv``, ``table.md``, ``report.html``,
``curves.png`` and ``curves.svg``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from unremix.data.image.dataset import has_labels
from unremix.data.printing import to_csv
from unremix.evaluation.card import label_of
from unremix.experiments import tables
from unremix.experiments.display import monitored
from unremix.experiments.engine import Engine
from unremix.experiments.folder import path_for
from unremix.experiments.plan import (
    CompareConfig,
    Plan,
    chosen_recipes,
    command_of,
    make_plan,
    shared_options,
    with_budget,
)
from unremix.experiments.processes import Share
from unremix.experiments.results import Results, outcome_of
from unremix.experiments.tables import Measure, Outcome, TableRow
from unremix.options.config import TrainConfig
from unremix.report.comparison import write_comparison_of
from unremix.report.figures import Panel, learning_curves, write_figure
from unremix.training.record import versions

__all__ = ["CompareConfig", "Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """A comparison that has ended."""

    path: Path
    outcomes: list[Outcome]  # how each run ended
    rows: list[TableRow]

    @property
    def failed(self) -> list[Outcome]:
        """The runs that failed."""
        return [outcome for outcome in self.outcomes if outcome.failure is not None]


FEWEST_SEEDS = 3  # below, a spread is hardly known

CAUTION = (
    "A seed sets initial weights, order of the data, augmentation and the folds of a "
    "cross-validation, alike for all recipes. Each interval is for one difference by itself: among "
    "many, some exclude 0 by chance."
)


def _verdict(plan: Plan, rows: Sequence[TableRow], measures: Sequence[Measure]) -> list[str]:
    """Which recipes differ from the reference beyond the error, for each measure of the table."""
    rivals = [row for row in rows if not row.baseline and row.name != plan.reference]
    if not measures or not rivals:
        return []
    if plan.seeds < FEWEST_SEEDS:
        seeds = "One seed" if plan.seeds == 1 else "Two seeds"
        return [
            f"{seeds} cannot tell whether recipes differ: training with other seeds may reverse "
            "the order. Use at least --seeds 3, better 5."
        ]
    sentences = []
    for measure in tables.in_table(measures):
        sides: dict[str, list[str]] = {"higher": [], "lower": [], "no clear difference": []}
        for row in rivals:
            cell = row.cells.get(measure.path)
            found = None if cell is None else cell.difference
            if found is None or found.low is None or found.high is None:
                continue
            side = "higher" if found.low > 0 else "lower" if found.high < 0 else None
            sides[side or "no clear difference"].append(row.name)
        parts = [f"{side}: {', '.join(names)}" for side, names in sides.items() if names]
        if parts:
            sentences.append(f"{measure.label} against {plan.reference}, {'; '.join(parts)}.")
    return sentences


def _notes(plan: Plan, outcomes: Sequence[Outcome], measures: Sequence[Measure]) -> list[str]:
    """What a reader of the table has to know."""
    notes = []
    if not measures:
        ended = any(outcome.failure is None for outcome in outcomes)
        lacking = "labels" if plan.train.domain != "sentence" else "topics and no SentEval tasks"
        why = f"the data have no {lacking}" if ended else "no run ended well"
        notes.append(f"Nothing was measured: {why}.")
    elif plan.seeds == 1:
        notes.append(f"One seed, so no spread is known. Differences are to {plan.reference}.")
    else:
        notes.append(
            f"Mean ± standard deviation over seeds 0 to {plan.seeds - 1}. Differences are to "
            f"{plan.reference} with the same seed: mean [95 % interval by Student's t]."
        )
    if plan.minutes is None:
        unit = "epoch" if plan.train.epochs == 1 else "epochs"
        notes.append(f"Budget: {plan.train.epochs} {unit} for every run.")
    else:
        notes.append(f"Budget: {plan.minutes:g} min of training for every run.")
        early = [o for o in outcomes if o.epochs is not None and o.epochs >= plan.train.epochs]
        if early:
            notes.append(
                f"{len(early)} of the runs reached --epochs {plan.train.epochs} before their time "
                "was up; allow more epochs to give them as much time as the others."
            )
    notes += [f"{o.recipe}, seed {o.seed} failed: {o.failure}" for o in outcomes if o.failure]
    return notes


def _protocol(cards: Iterable[Mapping[str, Any]], measures: Sequence[Measure]) -> dict[str, str]:
    """How each kind of measure was taken, as the first card that says so puts it."""
    kinds = {measure.path.split(".")[0] for measure in measures}
    found: dict[str, str] = {}
    for card in cards:
        for kind, text in (card.get("protocol") or {}).items():
            if kind in kinds:
                found.setdefault(kind, text)
    return found


def _sentence(how: Any) -> str:
    """A protocol in words; a fold's seed is the run's, so it is left out."""
    if not isinstance(how, Mapping):
        return str(how)
    parts = {name.replace("_", " "): value for name, value in how.items() if name != "seed"}
    return "; ".join(
        f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in parts.items()
    )


def _markdown(
    title: str, grids: Sequence[tables.Grid], notes: Sequence[str], protocol: Mapping[str, str],
    command: str,
) -> str:  # fmt: skip
    parts = [f"# {title}", *(tables.to_markdown(grid).rstrip() for grid in grids), *notes]
    if protocol:
        parts.append(CAUTION)
        parts.append(
            "\n".join(f"- {label_of(kind)}: {_sentence(how)}" for kind, how in protocol.items())
        )
    parts.append(tables.made_by(command))
    return "\n\n".join(parts) + "\n"


def _curves(
    plan: Plan, results: Results, outcomes: Sequence[Outcome], rows: Sequence[TableRow],
    measures: Sequence[Measure], folder: Path,
) -> None:  # fmt: skip
    runs = {
        recipe: [
            results.records[plan.job(o.recipe, o.seed).name]["metrics"]
            for o in outcomes
            if o.recipe == recipe and o.failure is None
        ]
        for recipe in plan.recipes
    }
    every = [row for seeds in runs.values() for seed in seeds for row in seed]
    known = {measure.path: measure for measure in measures}
    panels = [
        Panel(
            name,
            label_of(name),
            percent=name not in known or known[name].percent,
            levels={
                row.name: row.cells[name].summary.mean
                for row in rows
                if row.baseline and name in row.cells
            },
        )
        for name in monitored(every, known)
    ]
    figure = learning_curves(runs, [*panels, Panel("loss", "loss (each recipe has its own)")])
    if figure is not None:
        write_figure(figure, folder / "curves")


def _write_results(plan: Plan, engine: Engine, command: str, console: Console) -> Comparison:
    folder, results = engine.folder, engine.results
    planned = sorted(plan.jobs, key=lambda job: plan.recipes.index(job.row))
    outcomes = []
    for job in planned:
        found = results.outcome(job)
        if job in engine.failures:  # its metrics so far are kept
            found = found or outcome_of(job, folder.find(job), engine.failures[job])
        outcomes += [] if found is None else [found]
    records = [results.records[job.name] for job in planned if job in results]
    measures = tables.measures_among(outcomes)
    rows = tables.table_rows(outcomes, reference=plan.reference)
    grids = tables.grids(rows, measures, reference=plan.reference, epochs=plan.minutes is not None)
    notes = _verdict(plan, rows, measures) + _notes(plan, outcomes, measures)
    protocol = _protocol(records, measures)
    if len(outcomes) < len(planned):
        notes.append(f"Unfinished: {len(planned) - len(outcomes)} of {len(planned)} runs to come.")
    names = [str(record["data"]) for record in records if record["data"]] or [plan.train.data]
    title = f"Comparison on {names[0]}"
    record = {
        "command": command,
        "versions": versions(),
        "reference": plan.reference,
        "train": shared_options(plan.train),
        "protocol": protocol,
        "runs": [asdict(outcome) for outcome in outcomes],
        "table": tables.row_records(rows),
    }
    folder.write("results.csv", to_csv(tables.run_records(outcomes)))
    folder.write("table.csv", to_csv(tables.row_records(rows)))
    folder.write("table.md", _markdown(title, grids, notes, protocol, command))
    folder.write("results.json", json.dumps(record, indent=2) + "\n")
    _curves(plan, results, outcomes, rows, measures, folder.path)
    write_comparison_of(folder.path)
    shown = [tables.to_rich(grid, title=None if n else title) for n, grid in enumerate(grids)]
    last = f"Everything is in {folder.path}/ (open report.html first)"
    tables.show(console, shown, (*notes, last))
    return Comparison(folder.path, outcomes, rows)


def compare(
    config: CompareConfig,
    train: TrainConfig,
    *,
    command: str | None = None,
    console: Console | None = None,
) -> Comparison:
    """Train every recipe with every seed under the same options, and compare them.

    Called again with the same folder, it resumes; finished runs are not repeated.

    Args:
        config: What to compare.
        train: The options that all runs share; its recipe, seed, name, runs, resume and progress do
            not count. Its threads, if given, are those of each process.
        command: The command that asked for it, for the table; made of the options by default.
        console: Where to show progress.

    Returns:
        The comparison: its folder, how each run ended, and the table.

    Raises:
        ValueError: For options that cannot be, or that are not those the folder was begun with.
        BlockingIOError: If another process is at work on the same comparison.
        KeyboardInterrupt: If it was stopped; the same call resumes it.
    """
    console = console or Console(quiet=not config.progress)
    with_budget(train, config.budget)
    asked = chosen_recipes(config.recipes, train.domain)  # mistakes show before anything is made
    path = Path(config.output) if config.output else path_for(train.data)
    engine = Engine(path, console, config.jobs, config.on)
    with engine.alone("comparison"):
        earlier = engine.folder.earlier()
        plan = make_plan(config, train, earlier, str(path))
        share = engine.share(plan.jobs)
        if earlier is not None and plan.minutes is not None:
            _check_threads(earlier["threads"], share)
        more = (plan.recipes, plan.seeds) != (asked, config.seeds)
        if command is None or more:
            command = command_of(plan, config.output, config.jobs, config.on)
        if more:
            engine.say(
                f"{path} was begun with further recipes or seeds, which belong to it: "
                f"{', '.join(plan.recipes)}, {plan.seeds} seeds each"
            )
        record = {
            "recipes": list(plan.recipes),
            "seeds": plan.seeds,
            "reference": plan.reference,
            "threads": share.threads,
            "train": shared_options(plan.train),
        }
        engine.folder.write("comparison.yaml", yaml.safe_dump(record, sort_keys=False))
        if plan.train.domain == "image" and not has_labels(plan.train.data):
            engine.say(
                "The images have no labels, so the table will have no accuracies. Put them into a "
                "folder per class to compare them."
            )
        try:
            engine.run(plan.jobs, again=command)
        except KeyboardInterrupt:
            if any(job in engine.results for job in plan.jobs):
                _write_results(plan, engine, command, Console(quiet=True))
            raise
        return _write_results(plan, engine, command, console)


def _check_threads(earlier: int, share: Share) -> None:
    if earlier != share.threads:
        raise ValueError(
            f"expected {earlier} threads for every run, as in the finished ones, got "
            f"{share.threads}; a budget of time is fair only with equal threads: choose --jobs to "
            "match"
        )
