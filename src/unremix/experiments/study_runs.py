"""Runs a study: what each rung lacks, within the budget, and then the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from unremix.console.printing import one_line
from unremix.console.suggestions import did_you_mean
from unremix.experiments import tables
from unremix.experiments.executors import On
from unremix.experiments.laboratory import Laboratory, Runner
from unremix.experiments.plan import Job
from unremix.experiments.results import TRAINED
from unremix.experiments.study import Standing, read_study
from unremix.experiments.study_report import write_report


def check_measure(standing: Standing, jobs: list[Job]) -> None:
    """Check that finished runs have the study's measure.

    Raises:
        ValueError: If a run lacks it.
    """
    measure = standing.study.measure
    for record in standing.results.of(jobs):
        if record.measure(measure) is None:
            known = ", ".join(record.results.get(TRAINED, {})) or "none"
            raise ValueError(
                f"expected the measure {measure!r} of every run, got {known} of {record.row}, seed "
                f"{record.seed}; change measure in the study's file"
            )


def show_plan(standing: Standing, console: Console) -> None:
    """Print the runs that are left and what they cost."""
    study, lines, to_come = standing.study, [], 0.0
    for name, arms, runs, to_do in standing.planned():
        minutes = standing.core_minutes(name)
        hours = to_do * minutes / 60
        to_come += hours
        counts = map(str, (arms, runs, to_do))
        lines.append([one_line(str(name)), *counts, f"{minutes:.1f}", f"{hours:.1f}"])
    headings = ("stage", "arms", "runs", "to do", "core-minutes a run", "core-hours")
    console.print(tables.to_rich(headings, lines, title=one_line(str(study.title))))
    spent = standing.results.core_hours
    limit = "" if study.core_hours is None else f" of {study.core_hours:g} allowed"
    console.print(
        f"{spent:.1f} core-hours spent, {to_come:.1f} to come{limit}.",
        highlight=False,
    )
    if study.core_hours is not None and spent + to_come > study.core_hours:
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
        ValueError: For an invalid study.
        BlockingIOError: If another process is at work on it.
        KeyboardInterrupt: If it was stopped; the same call resumes it.
    """
    console = console or Console(markup=False)
    study = read_study(path, trust=trust)
    if stage is not None and stage not in study.stages:
        hint = did_you_mean(stage, study.stages)
        raise ValueError(f"expected one of {', '.join(study.stages)}, got {stage!r}{hint}")
    folder = Path(output) if output else Path(path).with_suffix("")
    laboratory = Laboratory(folder, console, jobs, on)
    standing = Standing(study, laboratory.results)
    check_measure(standing, [job for name in study.stages for job in standing.jobs(name, 0)])
    show_plan(standing, console)
    if dry_run:
        return folder
    with laboratory.alone("study"):
        try:
            for name in study.stages if stage is None else [stage]:
                for best in study.stages[name].best_of:
                    if not standing.is_complete(best.stage):
                        raise ValueError(
                            f"expected stage {best.stage!r} to be complete before {name!r}, which "
                            "takes the best of it, got missing runs; run that stage first"
                        )
                for rung in range(len(study.stages[name].rungs)):
                    if not _run_rung(standing, name, rung, laboratory):
                        return folder
        finally:
            if laboratory.results.records:
                write_report(standing, folder)
                console.print(f"The report is in {folder}/report.md", highlight=False)
    return folder


def _run_rung(standing: Standing, name: str, rung: int, laboratory: Laboratory) -> bool:
    """Run what a rung lacks; return whether the study can continue."""
    study, results = standing.study, standing.results
    jobs = standing.jobs(name, rung)
    if all(job in results for job in jobs):
        return True
    laboratory.say(f"{name}, {study.stages[name].rungs[rung]} seeds")

    def keep_to_budget(runner: Runner) -> None:
        if study.core_hours is not None:
            minutes = 60 * (study.core_hours - results.core_hours)
            affordable = int(minutes / standing.core_minutes(name)) - len(runner.working)
            del runner.waiting[max(0, affordable) :]

    def check(job: Job) -> None:  # the measure may not exist, which the first run shows
        check_measure(standing, [job])

    laboratory.run(jobs, keep_to_budget, ended=check, about={"stage": name})
    missing = sum(job not in results for job in jobs)
    if missing:
        failed = len(laboratory.failures)
        why = f"{failed} runs failed" if failed else "the budget is spent"
        laboratory.say(f"{name}: {missing} of {len(jobs)} runs are missing ({why})")
    return not missing
