"""Runs a study: what each rung lacks, within the budget, and then the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from unremix.data.printing import one_line
from unremix.data.suggestions import did_you_mean
from unremix.experiments.engine import Engine
from unremix.experiments.executors import On
from unremix.experiments.plan import Job
from unremix.experiments.processes import Runner
from unremix.experiments.results import Results
from unremix.experiments.study import (
    Study,
    core_minutes,
    is_complete,
    jobs_at,
    planned,
    read_study,
)
from unremix.experiments.study_report import write_report


def check_measure(study: Study, results: Results) -> None:
    """See that finished runs have the study's measure; which there are, only runs tell.

    Raises:
        ValueError: If one does not have it.
    """
    for name in study.stages:
        for job in jobs_at(study, name, 0, results):
            if job in results:
                results.value(job, study.measure)


def show_plan(study: Study, results: Results, console: Console) -> None:
    """Say what is to be run and what it costs."""
    minutes = core_minutes(study, results)
    table = Table(title=one_line(str(study.title)))
    for heading in ("stage", "arms", "runs", "to do", "core-hours"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    hours = 0.0
    for name, arms, runs, to_do in planned(study, results):
        hours += to_do * minutes / 60
        table.add_row(
            one_line(str(name)), str(arms), str(runs), str(to_do), f"{to_do * minutes / 60:.1f}"
        )
    console.print(table)
    spent = results.core_hours
    limit = "" if study.core_hours is None else f" of {study.core_hours:g} allowed"
    console.print(
        f"{minutes:.1f} core-minutes a run; {spent:.1f} core-hours spent, {hours:.1f} to come"
        f"{limit}.",
        highlight=False,
    )
    if study.core_hours is not None and spent + hours > study.core_hours:
        console.print("The budget ends before the study does; the report says how far it came.")


def run_study(
    path: str | Path,
    *,
    output: str | None = None,
    stage: str | None = None,
    jobs: int | None = None,
    on: On = "local",
    dry_run: bool = False,
    trust: bool = False,
    console: Console | None = None,
) -> Path:
    """Run what is left of a study, within its budget, and write its report.

    The arguments are those of ``unremix study``.

    Returns:
        The folder.

    Raises:
        ValueError: For a study that cannot be.
        BlockingIOError: If another process is at work on it.
        KeyboardInterrupt: If it was stopped; the same call resumes it.
    """
    console = console or Console(markup=False)
    study = read_study(path, trust=trust)
    if stage is not None and stage not in study.stages:
        hint = did_you_mean(stage, study.stages)
        raise ValueError(f"expected one of {', '.join(study.stages)}, got {stage!r}{hint}")
    engine = Engine(Path(output) if output else Path(path).with_suffix(""), console, jobs, on)
    check_measure(study, engine.results)
    show_plan(study, engine.results, console)
    if dry_run:
        return engine.path
    with engine.alone("study"):
        try:
            for name in study.stages if stage is None else [stage]:
                for best in study.stages[name].best_of:
                    if not is_complete(study, best.stage, engine.results):
                        raise ValueError(
                            f"expected stage {best.stage!r} to be complete before {name!r}, which "
                            "takes the best of it, got missing runs; run that stage first"
                        )
                for rung in range(len(study.stages[name].rungs)):
                    if not _run_rung(study, name, rung, engine):
                        return engine.path
        finally:
            if engine.results.records:
                write_report(study, engine.results, engine.path)
                console.print(f"The report is in {engine.path}/report.md", highlight=False)
    return engine.path


def _run_rung(study: Study, name: str, rung: int, engine: Engine) -> bool:
    """Run what a rung lacks; return whether the study can continue."""
    results = engine.results
    jobs = jobs_at(study, name, rung, results)
    if all(job.name in results.records for job in jobs):
        return True
    engine.say(f"{name}, {study.stages[name].rungs[rung]} seeds")

    def keep_to_budget(runner: Runner) -> None:
        if study.core_hours is not None:
            hours = study.core_hours - results.core_hours
            affordable = int(60 * hours / core_minutes(study, results)) - len(runner.working)
            del runner.waiting[max(0, affordable) :]

    def check(job: Job) -> None:  # the first run tells whether there is such a measure
        results.value(job, study.measure)

    engine.run(jobs, keep_to_budget, ended=check, about={"stage": name})
    lacking = [job for job in jobs if job.name not in results.records]
    if lacking:
        why = f"{len(engine.failures)} runs failed" if engine.failures else "the budget is spent"
        engine.say(f"{name}: {len(lacking)} of {len(jobs)} runs are missing ({why})")
    return not lacking
