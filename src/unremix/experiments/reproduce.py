"""``unremix reproduce``: the paper's tables and figures, each by its name.

All names of a scale share one folder: ``runs/``, ``logs/`` and ``results.jsonl`` with a line per
finished run. Equal options give the same run, so one run serves several tables. Beside them each
name has a folder with ``table.md``, ``table.csv``, ``results.json`` and its figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from unremix.console.quantities import counted, duration, roughly
from unremix.console.suggestions import did_you_mean
from unremix.domains import find_domain
from unremix.experiments import tables
from unremix.experiments.dry_run import estimate
from unremix.experiments.executors import On
from unremix.experiments.laboratory import Laboratory
from unremix.experiments.paper.catalog import EXPERIMENTS
from unremix.experiments.paper.experiment import EMBEDDED, Experiment, Made, Setting, placed
from unremix.experiments.paper.scales import SCALES, Options, ScaleName, Source, write_shards
from unremix.experiments.plan import Job, check_seeds
from unremix.files.locate import candidates
from unremix.report.figures import write_figure
from unremix.training.record import versions

ALL = "all"
STEPS_SECONDS = 8.0  # that a dry run spends on the steps of one run
OF_A_RUN = (  # in results.json
    "name", "seed", "precision", "epochs", "steps", "loss", "results", "cpu_seconds", "command",
)  # fmt: skip


def chosen(name: str) -> list[Experiment]:
    """The experiments of a name; ``table4`` or ``figure4`` is all that the paper has there.

    Raises:
        ValueError: For an unknown name; the message suggests the nearest.
    """
    known: dict[str, list[Experiment]] = {ALL: list(EXPERIMENTS.values())}
    for experiment in EXPERIMENTS.values():
        for key in dict.fromkeys(map(_key, (experiment.name, *experiment.places))):
            known.setdefault(key, []).append(experiment)
    if _key(name) not in known:
        raise ValueError(
            f"expected one of {', '.join(EXPERIMENTS)} or {ALL}, or a number of the paper such as "
            f"figure3, got {name!r}{did_you_mean(_key(name), known)}"
        )
    return known[_key(name)]


def _key(name: str) -> str:
    """How a name is looked up: Figure 3 is figure3."""
    return name.lower().replace(" ", "")


def sources_of(experiment: Experiment, scale: ScaleName, data: Sequence[str]) -> tuple[Source, ...]:
    """The data sets of an experiment, or others in their place.

    A data set of the paper keeps its published numbers, and one of the scale its options; any other
    takes the options of the data set that it replaces. An experiment without runs needs none.

    Raises:
        ValueError: If a data set is named twice, or one is named where none is needed.
    """
    usual = SCALES[scale][experiment.kind].sources if experiment.rows else ()
    if data and not experiment.rows:
        raise ValueError(
            f"expected no --data for {experiment.name}, which brings its own, got {data[0]!r}; "
            "leave it out"
        )
    known = {one.data: one for kinds in SCALES.values() for one in kinds[experiment.kind].sources}
    own = {source.data: source for source in usual}
    named: list[Source] = []
    for number, path in enumerate(data):
        if path in data[:number]:
            raise ValueError(f"expected different data sets, got {path!r} twice; name it once")
        name = Path(path).name
        like = own.get(name, usual[min(number, len(usual) - 1)] if usual else Source("", "", ""))
        source = known.get(path, known.get(name, Source("", path, Path(name).stem)))
        source = replace(source, data=path, config=like.config, generated=False)
        titles = (source.title, path, *(f"{path} ({place})" for place in range(2, 3 + number)))
        slugs = {one.slug for one in named}
        titled = (replace(source, title=title) for title in titles)
        named.append(next(one for one in titled if one.slug not in slugs))
    return tuple(named) or usual


def lacking(setting: Setting, source: Source) -> str | None:
    """What an experiment lacks to use a data set, and where to get it; None if nothing."""
    put_it = "put it into the folder that UNREMIX_DATA names, or give its path as --data"
    places = candidates(source.data, folders=("", "tu"), suffixes=("", ".zip"))
    needs_no_file = source.generated or source.data in EMBEDDED or "{" in source.data
    if not needs_no_file and not any(place.exists() for place in places):
        where = f"; get it from {source.where}" if source.where else ""
        return f"{source.data} was not found{where}; {put_it}"
    rows = setting.rows_on(source)
    train = setting.job(rows[0], source, 0).train
    domain = find_domain(train.domain)
    try:
        domain.check(train)
    except (FileNotFoundError, ValueError) as error:
        return f"{error}; {put_it}"
    if source.paper or not setting.experiment.needs_labels:
        return None
    try:
        classes = domain.classes(train)
    except (OSError, ValueError) as error:
        return str(error)
    if classes == 0:
        return (
            f"expected labels, which {setting.experiment.name} needs, found none; "
            f"{domain.to_label[0].lower()}{domain.to_label[1:]}"
        )
    needed = max(row.options.get("loss.negative_classes", 1) for row in rows)
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
    check_seeds(1 if seeds is None else seeds)
    if data and name == ALL:
        raise ValueError("expected --data for one table or figure, got it for all; name one")
    laboratory = Laboratory(Path(output or f"reproductions/{scale}"), console, jobs, on)
    settings = []
    for experiment in experiments:
        count = experiment.seeds or seeds or SCALES[scale][experiment.kind].seeds
        sources = tuple(placed(one, laboratory.path) for one in sources_of(experiment, scale, data))
        settings.append(Setting(experiment, scale, sources, count, options or {}, laboratory))
        if not experiment.rows and (seeds is not None or options):
            laboratory.say(f"{experiment.name} trains nothing: seeds and options are not used")
        elif seeds not in (None, count):
            laboratory.say(
                f"{experiment.name} shows a single encoder: one seed in place of {seeds}"
            )
        try:
            _ = settings[-1].jobs  # options that do not exist are refused here
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
    with laboratory.alone("reproduction"):
        for source in {source.data: source for one in settings for source in one.sources}.values():
            if source.generated and not Path(source.data).exists():
                write_shards(Path(source.data))
        return _run(settings, laboratory, command or f"unremix reproduce {name} --scale {scale}")


def _with_data(setting: Setting) -> Setting | None:
    """The setting without the data sets that are not there and are needed; each is named."""
    experiment, say = setting.experiment, setting.laboratory.say
    to_train_on = {job.train.data for job in setting.to_do}
    kept = []
    for source in setting.sources:
        needed = experiment.needs_encoders or source.data in to_train_on
        why = lacking(setting, source) if needed else None
        if why is None:
            kept.append(source)
        else:
            say(f"{experiment.name} without {source.title}: {why}")
    if experiment.rows and not setting.sources:
        say(_without_data(setting))
    return replace(setting, sources=tuple(kept)) if kept or not experiment.rows else None


def _without_data(setting: Setting) -> str:
    return (
        f"{setting.experiment.name} is left out: there are no data for it at the scale "
        f"{setting.scale}; use smoke or paper, or name some with --data"
    )


def _run(settings: Sequence[Setting], laboratory: Laboratory, command: str) -> int:
    jobs = list({job.name: job for one in settings for job in one.jobs}.values())
    without_encoder = [
        job for one in settings if one.experiment.needs_encoders for job in one.to_do
    ]
    written: dict[str, bool] = {}  # by name: whether it could be

    def write_ready(begun: bool = False) -> None:
        """Write what is finished; with ``begun``, also experiments with some of their runs."""
        for setting in settings:
            experiment, name = setting.experiment, setting.experiment.name
            some = any(job in laboratory.results for job in setting.jobs)
            if name in written or (
                setting.to_do and not (begun and some and not experiment.needs_encoders)
            ):
                continue
            try:
                write(setting, command)
                written[name] = True
            except ValueError as error:  # of the data; the others continue
                written[name] = False
                laboratory.say(f"{name} is left out: {error}")

    if missing := {job.name: job for one in settings for job in one.unmade}:
        costs = _known_costs(jobs, laboratory)
        known = [costs[_alike(job)] for job in missing.values() if _alike(job) in costs]
        cost = f"about {roughly(sum(known))} of computing in all"
        if len(known) < len(missing):
            cost = "--dry_run estimates the time"
        laboratory.say(f"{counted(len(missing), 'run')} to do, {cost}")
    try:
        if jobs:
            laboratory.run(
                jobs, ended=lambda _: write_ready(), again=command, with_folder=without_encoder
            )
    finally:
        write_ready(begun=True)
    for name, well in written.items():
        if well:
            text = (laboratory.path / name / "table.md").read_text(encoding="utf-8")
            laboratory.say(text.partition("\nMade by\n")[0])
    if any(written.values()):
        laboratory.say(
            f"Everything is in {laboratory.path}/, in a folder per name (open table.md first)"
        )
    return 0 if not laboratory.failures and all(written.values()) else 1


def _alike(job: Job) -> tuple[str, int]:
    """What runs of about the same cost have in common."""
    return job.train.data, job.train.epochs


def _known_costs(jobs: Iterable[Job], laboratory: Laboratory) -> dict[tuple[str, int], float]:
    """The mean CPU time of finished runs that are alike, in seconds."""
    alike = defaultdict(list)
    for job in {job.name: job for job in jobs}.values():
        alike[_alike(job)].append(job)
    known = {key: laboratory.results.cpu_seconds(same) for key, same in alike.items()}
    return {key: fmean(seconds) for key, seconds in known.items() if seconds}


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
        paragraphs.append("The scale smoke shows that everything runs; its numbers mean nothing.")
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
    return [
        {
            "row": row.name,
            "data": source.title,
            **{key: getattr(record, key) for key in OF_A_RUN},
            "mix": {
                column[4:]: share
                for metrics in record.metrics[-1:]
                for column, share in metrics.items()
                if column.startswith("mix_")
            },
        }
        for row, source, record in setting.finished
    ]


def show_cost(settings: Sequence[Setting], console: Console) -> None:
    """Print the runs that are left and what they cost: ``--dry_run``.

    A run's cost is the mean CPU time of the finished ones; before there are any it is estimated
    from a few steps of the reference row, on random images where the data are not there.
    """
    lines: list[list[str]] = []
    notes: list[str] = []
    listed: set[str] = set()  # names of runs
    planned: set[str] = set()  # those of them that are to be made
    known = _known_costs((job for one in settings for job in one.jobs), settings[0].laboratory)
    costs: dict[tuple[str, int], float | None] = {}
    total, unknown = 0.0, 0
    for setting in settings:
        experiment, results, before = setting.experiment, setting.laboratory.results, len(lines)
        unmade = {job.name for job in setting.unmade} - planned
        for source in setting.sources:
            title = f"{experiment.name}, {source.title}"
            every = [job for _, data, job in setting.runs if data == source]
            left = [job for job in every if job.name in unmade]
            jobs = [job for job in every if job.name in unmade or job.name not in listed]
            if again := len(results.of(left)):
                runs = counted(again, "run")
                notes.append(f"{title}: {runs} again, for the encoders, which are not there.")
            if not jobs:
                continue
            listed |= {job.name for job in jobs}
            key, count = _alike(jobs[0]), len(left)
            if key not in costs:
                why, guess = lacking(setting, source), ""
                try:
                    costs[key] = known[key] if key in known else _estimated(setting, source)
                    guess = "; the estimate is of random images in its place" * (key not in known)
                except (FileNotFoundError, ValueError) as error:
                    costs[key], why = None, why or f"{title}: {error}"
                notes += [] if why is None else [why + guess]
            one = costs[key]
            total, unknown = total + (one or 0.0) * count, unknown + (one is None) * count
            counts = (len(setting.rows_on(source)), setting.seeds, key[-1], len(jobs), count)
            times = ["unknown"] * 2 if one is None else [duration(one), duration(one * count)]
            lines.append([experiment.name, source.title, *map(str, counts), *times])
        planned |= unmade
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


def _estimated(setting: Setting, source: Source) -> float:
    """Seconds of a run of the reference row.

    Raises:
        FileNotFoundError: If its data are not there and cannot be made up.
        ValueError: If it cannot be run.
    """
    setting.laboratory.say(f"timing a few steps of {setting.experiment.name}, {source.title}")
    rows = setting.rows_on(source)
    row = next((one for one in rows if one.name == setting.experiment.reference), rows[0])
    train = replace(setting.job(row, source, 0).train, progress=False)
    return estimate(train, seconds=STEPS_SECONDS).seconds
