"""``unremix compare``: the same training for several recipes and seeds, side by side.

Every run is a separate process. The comparison's folder holds its whole state, so starting again
resumes it:

``comparison.yaml`` (its options), ``runs/<recipe>-<seed>/`` (run folders), ``logs/``, and at the
end ``results.csv`` (a row per run), ``results.json``, ``table.csv``, ``table.md``, ``report.html``,
``curves.png`` and ``curves.svg``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from unremix.console.printing import to_csv
from unremix.console.values import write_yaml
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.evaluation.card import label_of
from unremix.experiments import tables
from unremix.experiments.laboratory import Laboratory, monitored
from unremix.experiments.plan import (
    CompareConfig,
    Plan,
    chosen_recipes,
    command_of,
    make_plan,
    shared_options,
    with_budget,
)
from unremix.experiments.results import Record
from unremix.experiments.tables import Measure, TableRow
from unremix.files.atomic_files import write_text
from unremix.files.bounds import shorten
from unremix.pipeline import written
from unremix.report.charts import Chart, mean_line
from unremix.report.comparison import read_comparison, write_comparison_of
from unremix.report.figures import learning_curves, write_figure
from unremix.training.record import versions

__all__ = ["CompareConfig", "FinishedComparison", "compare", "compare_recipes"]


@dataclass(frozen=True)
class FinishedComparison:
    """A comparison that has ended."""

    path: Path
    records: list[Record]  # what came out of each run
    rows: list[TableRow]

    @property
    def failed(self) -> list[Record]:
        """The runs that failed."""
        return [record for record in self.records if record.failure is not None]


OF_A_RUN = ("seed", "precision", "failure", "epochs", "loss", "results")  # in results.json
ENDINGS = (".tar", ".gz", ".tgz", ".zip", ".npz", ".jsonl", ".txt")  # of data in one file
FEWEST_SEEDS = 3  # fewer do not show the spread

CAUTION = (
    "A seed sets initial weights, order of the data, augmentation and the folds of a "
    "cross-validation, alike for all recipes. Each interval is for one difference by itself: among "
    "many, some exclude 0 by chance."
)


def path_for(data: str) -> Path:
    """Where a comparison on some data is by default: in a folder of their name, without endings.

    Example:
        >>> path_for("downloads/cifar-10-python.tar.gz").as_posix()
        'comparisons/cifar-10-python'
    """
    path = Path(data).resolve()
    while path.suffix.lower() in ENDINGS:
        path = path.with_suffix("")
    return Path("comparisons") / path.name


def earlier_options(folder: Path) -> dict[str, Any] | None:
    """What comparison.yaml says, if there is one.

    Raises:
        ValueError: If the folder is that of something else.
    """
    file = folder / "comparison.yaml"
    if file.exists():
        options = read_comparison(folder)
        for name, kind in (("seeds", int), ("threads", int), ("train", dict)):
            if not isinstance(options.get(name), kind):
                raise ValueError(
                    f"expected {name} as unremix wrote it in {file}, got "
                    f"{shorten(options.get(name))}; restore a copy, or choose another --output"
                )
        return options
    strange = [entry.name for entry in folder.iterdir() if entry.name != ".locks"]
    if strange:
        raise ValueError(
            f"expected a new folder or one of a comparison, got {str(folder)!r} with "
            f"{strange[0]!r} and no comparison.yaml; choose another --output"
        )
    return None


def _verdict(plan: Plan, rows: Sequence[TableRow], measures: Sequence[Measure]) -> list[str]:
    """Which recipes differ clearly from the reference, for each measure of the table."""
    rivals = [row for row in rows if row.baseline or row.name != plan.reference]
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
            gap = row.difference(measure)
            if gap is not None and gap.low is not None and gap.high is not None:
                clear = "higher" if gap.low > 0 else "lower" if gap.high < 0 else None
                sides[clear or "no clear difference"].append(row.name)
        groups = [f"{side}: {', '.join(names)}" for side, names in sides.items() if names]
        if groups:
            sentences.append(f"{measure.label} against {plan.reference}, {'; '.join(groups)}.")
    return sentences


def _notes(plan: Plan, records: Sequence[Record], measures: Sequence[Measure]) -> list[str]:
    """What a reader of the table has to know."""
    if not measures:
        ended = any(record.failure is None for record in records)
        lacking = find_domain(plan.train.domain).lacking
        why = f"the data have no {lacking}" if ended else "no run ended well"
        notes = [f"Nothing was measured: {why}."]
    elif plan.seeds == 1:
        notes = [f"One seed, so no spread is known. Differences are to {plan.reference}."]
    else:
        notes = [
            f"Mean ± standard deviation over seeds 0 to {plan.seeds - 1}. Differences are to "
            f"{plan.reference} with the same seed: mean [95 % interval by Student's t]."
        ]
    if plan.minutes is None:
        unit = "epoch" if plan.train.epochs == 1 else "epochs"
        notes.append(f"Budget: {plan.train.epochs} {unit} for every run.")
    else:
        notes.append(f"Budget: {plan.minutes:g} min of training for every run.")
        early = sum(one.epochs is not None and one.epochs >= plan.train.epochs for one in records)
        if early:
            notes.append(
                f"{early} of the runs reached --epochs {plan.train.epochs} before their time "
                "was up; allow more epochs to give them as much time as the others."
            )
    notes += [f"{one.row}, seed {one.seed} failed: {one.failure}" for one in records if one.failure]
    missing = len(plan.jobs) - len(records)
    return notes + [f"Unfinished: {missing} of {len(plan.jobs)} runs to come."] * (missing > 0)


def _protocol(records: Sequence[Record], measures: Sequence[Measure]) -> dict[str, Any]:
    """How each kind of measure was taken, as the first record that says so puts it."""
    kinds = {measure.path.split(".")[0] for measure in measures}
    protocol: dict[str, Any] = {}
    for record in records:
        for kind, how in (record.protocol or {}).items():
            if kind in kinds:
                protocol.setdefault(kind, how)
    return protocol


def _sentence(how: Any) -> str:
    """A protocol in words; a fold's seed is the run's, so it is left out."""
    if not isinstance(how, Mapping):
        return str(how)
    named = {name.replace("_", " "): value for name, value in how.items() if name != "seed"}
    return "; ".join(
        f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in named.items()
    )


def _curves(
    plan: Plan, records: Sequence[Record], rows: Sequence[TableRow], measures: Sequence[Measure],
    folder: Path,
) -> None:  # fmt: skip
    well = [one for one in records if one.failure is None]
    runs = {name: [one.metrics for one in well if one.row == name] for name in plan.recipes}
    percent = {measure.path: measure.percent for measure in measures}

    def chart(path: str, title: str, percent: bool = False) -> Chart:
        lines = [mean_line(name, metrics, path) for name, metrics in runs.items()]
        floors = [row for row in rows if row.baseline and path in row.cells]
        levels = {row.name: row.cells[path].summary.mean for row in floors}
        return Chart(title, lines, levels, percent)

    columns = monitored((row for one in well for row in one.metrics), percent)
    charts = [chart(path, label_of(path), percent.get(path, True)) for path in columns]
    figure = learning_curves([*charts, chart("loss", "loss (each recipe has its own)")])
    if figure is not None:
        write_figure(figure, folder / "curves")


def _write_results(
    plan: Plan, laboratory: Laboratory, command: str, console: Console
) -> FinishedComparison:
    folder = laboratory.path
    planned = sorted(plan.jobs, key=lambda job: plan.recipes.index(job.row))
    records = [record for job in planned if (record := laboratory.record(job)) is not None]
    measures = tables.measures_among(records)
    rows = tables.table_rows(records, reference=plan.reference)
    asked: dict[str, Any] = {"reference": plan.reference, "epochs": plan.minutes is not None}
    grids = tables.grids(rows, measures, **asked)
    notes = _notes(plan, records, measures)
    verdict, protocol = _verdict(plan, rows, measures), _protocol(records, measures)
    title = f"Comparison on {next((one.data for one in records if one.data), plan.train.data)}"
    said = [f"- {label_of(kind)}: {_sentence(how)}" for kind, how in protocol.items()]
    paragraphs = [f"# {title}", *(grid.to_markdown() for grid in grids), *verdict, *notes]
    paragraphs += [CAUTION, "\n".join(said)] if said else []
    facts = {
        "command": command,
        "versions": versions(),
        "reference": plan.reference,
        "train": shared_options(plan.train),
        "protocol": protocol,
        "runs": [
            {"recipe": one.row, **{name: getattr(one, name) for name in OF_A_RUN}}
            for one in records
        ],
        "table": tables.row_records(rows),
    }
    write_text(folder / "results.csv", to_csv(tables.run_records(records)))
    tables.write_tables(
        folder, [*paragraphs, tables.made_by(command)], tables.row_records(rows), facts
    )
    _curves(plan, records, rows, measures, folder)
    write_comparison_of(folder)
    if console.is_terminal and max(grid.width for grid in grids) > console.width:
        grids = tables.grids(rows, measures, **asked, apart=True)
    titles = [title, *[None] * len(grids)]
    shown = [
        tables.to_rich(grid.headings, grid.lines, title=heading, baselines=grid.baselines)
        for grid, heading in zip(grids, titles, strict=False)
    ]
    last = f"Everything is in {folder}/ (open report.html first)"
    tables.show(console, shown, (*verdict, *notes, last))
    return FinishedComparison(folder, records, rows)


def compare(
    config: CompareConfig,
    train: TrainConfig,
    *,
    command: str | None = None,
    console: Console | None = None,
) -> FinishedComparison:
    """Train every recipe with every seed under the same options, and compare them.

    Called again with the same folder, it resumes; finished runs are not repeated.

    Args:
        config: What to compare.
        train: The options that all runs share; its recipe, seed, name, runs, resume and progress do
            not count. Its threads, if given, are those of each process.
        command: The command that asked for it, for the table; by default one of the options.
        console: Where to show progress.

    Returns:
        The comparison: its folder, how each run ended, and the table.

    Raises:
        ValueError: For invalid options, or options that differ from those the folder has.
        BlockingIOError: If another process is at work on the same comparison.
        KeyboardInterrupt: If it was stopped; the same call resumes it.
    """
    console = console or Console(quiet=not config.progress)
    with_budget(train, config.budget)
    asked = chosen_recipes(config.recipes, train.domain)  # mistakes show before anything is made
    path = Path(config.output) if config.output else path_for(train.data)
    laboratory = Laboratory(path, console, config.jobs, config.on)
    with laboratory.alone("comparison"):
        earlier = earlier_options(path)
        plan = make_plan(config, train, earlier, str(path))
        share = laboratory.share(plan.jobs)
        if earlier is not None and plan.minutes is not None and earlier["threads"] != share.threads:
            raise ValueError(
                f"expected {earlier['threads']} threads for every run, as in the finished ones, "
                f"got {share.threads}; a budget of time is fair only with equal threads: choose "
                "--jobs to match"
            )
        more = (plan.recipes, plan.seeds) != (asked, config.seeds)
        if command is None or more:
            command = command_of(plan, config.output, config.jobs, config.on)
        if more:
            laboratory.say(
                f"{path} was begun with further recipes or seeds, which belong to it: "
                f"{', '.join(plan.recipes)}, {plan.seeds} seeds each"
            )
        options = {
            "recipes": list(plan.recipes),
            "seeds": plan.seeds,
            "reference": plan.reference,
            "threads": share.threads,
            "train": shared_options(plan.train),
        }
        domain = find_domain(plan.train.domain)
        if domain.classes(plan.train) == 0:
            raise ValueError(
                f"expected {domain.unit} with labels to compare recipes by, got none in "
                f"{plan.train.data!r}. {domain.to_label} to compare them, or train one recipe with "
                "'unremix train'"
            )
        write_text(path / "comparison.yaml", write_yaml(options))
        try:
            laboratory.run(plan.jobs, again=command)
        except KeyboardInterrupt:
            if laboratory.results.of(plan.jobs):
                _write_results(plan, laboratory, command, Console(quiet=True))
            raise
        return _write_results(plan, laboratory, command, console)


def compare_recipes(
    recipes: str | Sequence[str],
    *,
    data: Any = None,
    classes: Sequence[Any] | None = None,
    reference: str | None = None,
    seeds: int = 3,
    jobs: int | None = None,
    output: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> FinishedComparison:
    """Train several recipes with several seeds, side by side; the same as ``unremix compare``.

    Args:
        recipes: Their names.
        data: As for :func:`unremix.train`, also in memory.
        classes: The class of each item in memory; a comparison needs labels.
        reference: The recipe that the others are compared with; the first by default.
        seeds: Runs of each recipe.
        jobs: Runs at a time; by default one per GPU, or one per core.
        output: Folder of the comparison; comparisons/<data> by default.
        progress: Whether to show progress and the table.
        options: Those of training that all runs share, by name.

    Returns:
        The comparison: its folder, how each run ended, and the table.

    Raises:
        ValueError: For invalid options, or options that differ from those the folder has.

    Example:
        ``unremix.compare(["simclr", "unremix-simclr"], data="photos", epochs=50)``
    """
    names = recipes if isinstance(recipes, str) else ",".join(recipes)
    asked = {"recipe": names.partition(",")[0], **options}
    if asked["recipe"] == "all":
        del asked["recipe"]
    config = CompareConfig(
        recipes=names,
        reference=reference,
        seeds=seeds,
        jobs=jobs,
        output=None if output is None else str(output),
        progress=progress,
    )
    return compare(config, TrainConfig(**written(data, classes, asked)))
