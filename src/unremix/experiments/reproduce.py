"""``unremix reproduce``: the paper's tables and figures, each by its name.

All names of a scale share one folder: ``runs/``, ``logs/`` and ``results.jsonl`` with a line per
finished run. Equal options give the same run, so one run serves several tables. Beside them each
name has a folder with ``table.md``, ``table.csv``, ``results.json`` and its figures.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from unremix.console.quantities import counted, duration, roughly
from unremix.console.suggestions import did_you_mean
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.experiments import tables
from unremix.experiments.dry_run import estimate
from unremix.experiments.executors import On
from unremix.experiments.laboratory import Laboratory
from unremix.experiments.paper.experiments import EXPERIMENTS
from unremix.experiments.paper.records import EMBEDDED, Experiment, Made, Setting, placed
from unremix.experiments.paper.scales import SCALES, Options, ScaleName, Source, write_shards
from unremix.experiments.plan import Job, check_seeds
from unremix.files.locate import candidates
from unremix.report.figures import write_figure
from unremix.training.record import versions

ALL = "all"
STEPS_SECONDS = 8.0  # that a dry run spends on the steps of one run


def chosen(name: str) -> list[Experiment]:
    """The experiments of a name; ``table4`` or ``figure4`` is all that the paper has there.

    Raises:
        ValueError: For an unknown name; the message suggests the nearest.
    """
    if name == ALL:
        return list(EXPERIMENTS.values())
    asked, name = name, _key(name)
    known: dict[str, list[Experiment]] = {}
    for experiment in EXPERIMENTS.values():
        for one in dict.fromkeys([experiment.name, *map(_key, experiment.places)]):
            known.setdefault(one, []).append(experiment)
    if name not in known:
        hint = did_you_mean(name, [*known, ALL])
        raise ValueError(
            f"expected one of {', '.join(EXPERIMENTS)} or {ALL}, or a number of the paper such as "
            f"figure3, got {asked!r}{hint}"
        )
    return known[name]


def _key(name: str) -> str:
    """How a name is looked up: Figure 3 is figure3."""
    return name.lower().replace(" ", "")


def sources_of(experiment: Experiment, scale: ScaleName, data: Sequence[str]) -> tuple[Source, ...]:
    """The data sets of an experiment, or others in their place.

    Known ones among the others keep their figures in the paper, and those of the scale their
    options; others have the options of the data set in whose place they are. An experiment without
    runs needs none.

    Raises:
        ValueError: If a data set is named twice, or one is named where none is needed.
    """
    usual = SCALES[scale][experiment.kind].sources if experiment.rows else ()
    if not data:
        return usual
    if not experiment.rows:
        raise ValueError(
            f"expected no --data for {experiment.name}, which brings its own, got {data[0]!r}; "
            "leave it out"
        )
    repeated = [one for one, count in Counter(data).items() if count > 1]
    if repeated:
        raise ValueError(f"expected different data sets, got {repeated[0]!r} twice; name it once")
    known = {
        source.data: source
        for of_kind in SCALES.values()
        for source in of_kind[experiment.kind].sources
    }
    own = {source.data: source for source in usual}
    chosen_sources: list[Source] = []
    for number, path in enumerate(data):
        name = Path(path).name
        like = usual[min(number, len(usual) - 1)] if usual else Source("", "", "")
        like = own.get(name, like)
        source = known.get(path, known.get(name, Source("", path, Path(name).stem)))
        source = replace(source, data=path, config=like.config, generated=False)
        titles = (source.title, path, *(f"{path} ({place})" for place in range(2, 3 + number)))
        slugs = {one.slug for one in chosen_sources}
        named = (replace(source, title=title) for title in titles)
        chosen_sources.append(next(one for one in named if one.slug not in slugs))
    return tuple(chosen_sources)


def lacking(setting: Setting, source: Source) -> str | None:
    """What an experiment lacks to use a data set, and where to get it; None if nothing."""
    put_it = "put it into the folder that UNREMIX_DATA names, or give its path as --data"
    places = candidates(source.data, folders=("", "tu"), suffixes=("", ".zip"))
    needs_no_file = source.generated or source.data in EMBEDDED or "{" in source.data
    if not needs_no_file and not any(place.exists() for place in places):
        where = f"; get it from {source.where}" if source.where else ""
        return f"{source.data} was not found{where}; {put_it}"
    train = setting.job(setting.rows_on(source)[0], source, 0).train
    try:
        find_domain(train.domain).check(train)
    except (FileNotFoundError, ValueError) as error:
        return f"{error}; {put_it}"
    own = not source.paper and setting.experiment.needs_labels
    return _lacking_classes(setting, source, train) if own else None


def _lacking_classes(setting: Setting, source: Source, train: TrainConfig) -> str | None:
    """What the labels of other data lack for an experiment; None if nothing."""
    domain = find_domain(train.domain)
    try:
        classes = domain.classes(train)
    except (OSError, ValueError) as error:
        return str(error)
    if classes == 0:
        return (
            f"expected labels, which {setting.experiment.name} needs, found none; "
            f"{domain.to_label[0].lower()}{domain.to_label[1:]}"
        )
    needed = max(row.options.get("loss.negative_classes", 1) for row in setting.rows_on(source))
    if classes is not None and classes < needed:
        return f"expected at least {needed} classes, found {classes}; use other data"
    return None


def reproduce(
    name: str,
    *,
    scale: ScaleName = "cpu",
    seeds: int | None = None,
    data: Sequence[str] = (),
    output: str | None = None,
    options: Options | None = None,
    jobs: int | None = None,
    on: On = "local",
    dry_run: bool = False,
    command: str | None = None,
    console: Console | None = None,
) -> int:
    """Train what is missing, and write tables and figures beside the paper's.

    The arguments are those of ``unremix reproduce``; ``command`` is what was typed, for the tables.

    Returns:
        0; 1 if a run failed.

    Raises:
        ValueError: For a name, scale or options that do not exist, or if no data set is there.
        BlockingIOError: If another process is at work in the folder.
        KeyboardInterrupt: If it was stopped; the same call resumes it.
    """
    console = console or Console()
    experiments = chosen(name)
    if scale not in SCALES:
        hint = did_you_mean(scale, SCALES)
        raise ValueError(f"expected a scale among {', '.join(SCALES)}, got {scale!r}{hint}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"expected seeds to be at least 1, got {seeds}")
    check_seeds(seeds or 1)
    if data and name == ALL:
        raise ValueError("expected --data for one table or figure, got it for all; name one")
    laboratory = Laboratory(Path(output or f"reproductions/{scale}"), console, jobs, on)
    settings = []
    for experiment in experiments:
        size = SCALES[scale][experiment.kind]
        sources = tuple(placed(one, laboratory.path) for one in sources_of(experiment, scale, data))
        setting = Setting(
            experiment, scale, sources, experiment.seeds or seeds or size.seeds, options or {},
            laboratory,
        )  # fmt: skip
        settings.append(setting)
        if not experiment.rows and (seeds is not None or options):
            laboratory.say(f"{experiment.name} trains nothing: seeds and options are not used")
        elif seeds is not None and seeds != setting.seeds:
            laboratory.say(
                f"{experiment.name} shows a single encoder: one seed in place of {seeds}"
            )
        try:
            _ = setting.jobs  # options that do not exist are refused here
        except TypeError as error:  # by the configuration, whose words say what is expected
            raise ValueError(str(error)) from error
    if dry_run:
        show_cost(settings, console)
        return 0
    settings = [kept for one in settings if (kept := _with_data(one)) is not None]
    if not settings:
        raise ValueError(
            f"expected at least one data set for {name}, found none; the lines above say what is "
            "missing, --data names others, and --scale smoke needs none"
        )
    command = command or f"unremix reproduce {name} --scale {scale}"
    with laboratory.alone("reproduction"):
        for source in {source.data: source for one in settings for source in one.sources}.values():
            if source.generated and not Path(source.data).exists():
                write_shards(Path(source.data))
        return _run(settings, laboratory, command)


def _with_data(setting: Setting) -> Setting | None:
    """The setting without the data sets that are not there and are needed; each is named."""
    kept = []
    to_train_on = {job.train.data for job in setting.to_do}
    for source in setting.sources:
        needed = setting.experiment.needs_encoders or source.data in to_train_on
        why = lacking(setting, source) if needed else None
        if why is None:
            kept.append(source)
        else:
            setting.laboratory.say(f"{setting.experiment.name} without {source.title}: {why}")
    if kept or not setting.experiment.rows:
        return replace(setting, sources=tuple(kept))
    if not setting.sources:
        setting.laboratory.say(_without_data(setting))
    return None


def _without_data(setting: Setting) -> str:
    return (
        f"{setting.experiment.name} is left out: there are no data for it at the scale "
        f"{setting.scale}; use smoke or paper, or name some with --data"
    )


def _run(settings: Sequence[Setting], laboratory: Laboratory, command: str) -> int:
    unique: dict[str, Job] = {}
    for setting in settings:
        for job in setting.jobs:
            unique.setdefault(job.name, job)
    jobs = list(unique.values())
    without_encoder = [
        job for setting in settings if setting.experiment.needs_encoders for job in setting.to_do
    ]
    written: dict[str, bool] = {}  # by name: whether it could be

    def try_write(setting: Setting) -> None:
        name = setting.experiment.name
        try:
            write(setting, command)
            written[name] = True
        except ValueError as error:  # of the data; the others go on
            written[name] = False
            laboratory.say(f"{name} is left out: {error}")

    def write_finished(_: Job | None = None) -> None:
        for setting in settings:
            if setting.experiment.name not in written and not setting.to_do:
                try_write(setting)

    missing = {
        job.name
        for setting in settings
        for job in setting.to_do
        if not laboratory.folder.is_done(job)  # and only its record is missing
    }
    if missing:
        to_do = counted(len(missing), "run")
        laboratory.say(f"{to_do} to do, {_cost_of(missing, jobs, laboratory)}")
    try:
        if jobs:
            laboratory.run(jobs, ended=write_finished, again=command, with_folder=without_encoder)
    finally:
        write_finished()
        for setting in settings:  # what there is of the others
            begun = any(job in laboratory.results for job in setting.jobs)
            left = setting.experiment.name not in written
            if left and begun and not setting.experiment.needs_encoders:
                try_write(setting)
    for name, well in written.items():
        if well:
            text = (laboratory.path / name / "table.md").read_text(encoding="utf-8")
            laboratory.say(text.partition("\nMade by\n")[0])
    if any(written.values()):
        laboratory.say(
            f"Everything is in {laboratory.path}/, in a folder per name (open table.md first)"
        )
    return 0 if not laboratory.failures and all(written.values()) else 1


def _cost_of(missing: Collection[str], jobs: Sequence[Job], laboratory: Laboratory) -> str:
    """What some of the jobs cost, in words: as much as those of the same data that are done."""
    alike = defaultdict(list)
    for job in jobs:
        alike[job.train.data, job.train.epochs].append(job)
    total, unknown = 0.0, 0
    for group in alike.values():
        left = sum(job.name in missing for job in group)
        known = laboratory.results.cpu_seconds(group)
        total += fmean(known) * left if known else 0.0
        unknown += 0 if known else left
    if not total:
        return "--dry_run estimates the time"
    others = f", {unknown} of them not counted: --dry_run estimates those" if unknown else ""
    return f"about {roughly(total)} of computing in all{others}"


def write(setting: Setting, command: str) -> Made:
    """Write ``table.md``, ``table.csv``, ``results.json`` and the figures of an experiment."""
    experiment, folder = setting.experiment, setting.laboratory.path / setting.experiment.name
    made = experiment.make(setting)
    jobs, place = setting.jobs, ", ".join(experiment.places)
    missing = len(jobs) - len(setting.laboratory.results.of(jobs))
    paragraphs = [f"# {experiment.title} ({place}), scale {setting.scale}"]
    for title, grid in made.grids:
        paragraphs += [*([f"{title}:"] if title else []), grid.to_markdown()]
    paragraphs += [*made.notes, *experiment.notes]
    if setting.scale == "smoke" and jobs:
        paragraphs.append("The scale smoke shows that everything runs; its figures mean nothing.")
    if missing:
        paragraphs.append(f"Unfinished: {missing} of {len(jobs)} runs to come.")
    paragraphs += [f"![{name}]({name}.svg)" for name in made.figures]
    facts = {
        "name": experiment.name,
        "place": place,
        "scale": setting.scale,
        "seeds": len({job.train.seed for job in jobs}),
        "command": command,
        "versions": versions(),
        "data": {source.title: source.data for source in setting.sources},
        "paper_percent": {
            row.name: {f"{path} on {data}": one for (data, path), one in row.published.items()}
            for row in setting.rows
            if row.published
        },
        "runs": _runs(setting),
        "records": list(made.records),
        **made.facts,
    }
    tables.write_tables(
        folder, [*paragraphs, tables.made_by(command)], made.records, facts, indent=1
    )
    for name, figure in made.figures.items():
        write_figure(figure, folder / name)
    return made


def _runs(setting: Setting) -> list[dict[str, Any]]:
    """Every finished run, with its options as a command and every measure."""
    kept = (
        "name", "seed", "precision", "epochs", "steps", "loss", "results", "cpu_seconds", "command",
    )  # fmt: skip
    return [
        {
            "row": row.name,
            "data": source.title,
            **{key: getattr(record, key) for key in kept},
            "mix": {
                column[4:]: share
                for metrics in record.metrics[-1:]
                for column, share in metrics.items()
                if column.startswith("mix_")
            },
        }
        for row in setting.rows
        for source in setting.sources_of(row)
        for record in setting.records(row, source)
    ]


def show_cost(settings: Sequence[Setting], console: Console) -> None:
    """Say what is to be run and what it costs: ``--dry_run``.

    A run's cost is the mean CPU time of the finished ones; before there are any it is estimated
    from a few steps of the reference row, on random images where the data are not there.
    """
    lines: list[list[str]] = []
    notes: list[str] = []
    listed: set[str] = set()
    planned: set[str] = set()
    costs: dict[tuple[str, str, int], float | None] = {}
    total, unknown = 0.0, 0
    for setting in settings:
        experiment, laboratory = setting.experiment, setting.laboratory
        missing = {job for job in setting.to_do if not laboratory.folder.is_done(job)}
        before = len(lines)
        for source in setting.sources:
            every = setting.jobs_on(source)
            left = [job for job in every if job in missing and job.name not in planned]
            jobs = [job for job in every if job.name not in listed or job in left]
            listed |= {job.name for job in jobs}
            planned |= {job.name for job in left}
            again = len(laboratory.results.of(left))
            if again:
                notes.append(
                    f"{experiment.name}, {source.title}: {counted(again, 'run')} again, for the "
                    "encoders, which are not there."
                )
            if not jobs:
                continue
            key = (experiment.kind, source.data, jobs[0].train.epochs)
            if key not in costs:
                costs[key] = _cost(setting, source, jobs, notes)
            one, count = costs[key], len(left)
            total, unknown = total + (one or 0.0) * count, unknown + (one is None) * count
            counts = (len(setting.rows_on(source)), setting.seeds, key[-1], len(jobs), count)
            times = ["unknown"] * 2 if one is None else [duration(one), duration(one * count)]
            lines.append([experiment.name, source.title, *map(str, counts), *times])
        if not experiment.rows:
            notes.append(f"{experiment.name} needs no training.")
        elif not setting.sources:
            notes.append(_without_data(setting))
        elif len(lines) == before:
            notes.append(f"No further runs for {experiment.name}.")
    if lines:
        sums = [f"{duration(total)}, one run at a time"] if total or not unknown else []
        sums += [f"{unknown} runs of unknown cost"] if unknown else []
        notes.append(
            f"In all {' and '.join(sums)}. The cost of a run is the mean CPU time of the finished "
            "ones, wherever they ran. Before there are any, it is estimated from a few training "
            "steps of the reference row on this machine, without start and evaluation, which "
            "dominate short runs. Nothing was written."
        )
    headings = ("name", "data", "rows", "seeds", "epochs", "runs", "to do", "a run", "all")
    title = "Runs; those that an earlier name has are counted there"
    table = tables.to_rich(headings, lines, title=title, texts=2, box=None)
    tables.show(console, [table] if lines else [], dict.fromkeys(notes))


def _cost(setting: Setting, source: Source, jobs: Sequence[Job], notes: list[str]) -> float | None:
    """Seconds of a run; None if its data are not there and cannot be made up."""
    laboratory, name = setting.laboratory, f"{setting.experiment.name}, {source.title}"
    known = laboratory.results.cpu_seconds(jobs)
    if not known:
        laboratory.say(f"timing a few steps of {name}")
    why = lacking(setting, source)
    if known:
        notes += [] if why is None else [why]
        return fmean(known)
    try:
        rows = setting.rows_on(source)
        row = next((one for one in rows if one.name == setting.experiment.reference), rows[0])
        train = replace(setting.job(row, source, 0).train, progress=False)
        seconds = estimate(train, seconds=STEPS_SECONDS).seconds
    except (FileNotFoundError, ValueError) as error:
        notes.append(why or f"{name}: {error}")
        return None
    if why is not None:
        notes.append(f"{why}; the estimate is of random images in its place")
    return seconds
