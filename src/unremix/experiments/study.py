"""``unremix study``: many settings, paired seeds and a budget, from one YAML file.

A study is a list of stages. A stage is a set of *arms*, each a setting of some options, and a
number of seeds, the same for every arm. Successive halving spends most seeds on the best arms:
with ``seeds: [2, 4, 8]`` every arm gets two seeds, the better half two more, and so on.

The folder of a study holds ``results.jsonl`` (a line per finished run, with its options, command
and versions), ``report.md`` with its figures, and ``runs/`` and ``logs/``. What ``results.jsonl``
has is done, also where ``runs/`` is gone, so the folder can be moved or shared without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from unremix.data.atomic_files import read_text
from unremix.data.bounds import shorten
from unremix.data.printing import one_line
from unremix.data.suggestions import did_you_mean
from unremix.evaluation.statistics import summarize
from unremix.experiments import plan
from unremix.experiments.plan import Job, check_seeds, train_config
from unremix.experiments.results import Results
from unremix.experiments.tables import TRAINED
from unremix.options.config import code_of, fits, untrusted
from unremix.training.run import LARGEST_CONFIG

MOST_RUNS = 10_000  # of a study

Arm = Mapping[str, Any]
"""A setting: options by name, those of a section with a dot between (``loss.hardness``)."""


@dataclass(frozen=True)
class BestOf:
    """The best arms of an earlier stage."""

    stage: str
    within: str | None = None  # the best of each value of this option; by default one arm
    keep: int = 1  # how many of each
    other_than_reference: bool = False  # whether that stage's reference is passed over


@dataclass(frozen=True)
class Stage:
    """A part of a study."""

    factors: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # all combinations are arms
    arms: Sequence[Arm] = ()  # further arms, one by one
    best_of: Sequence[BestOf] = ()  # further arms: the best of earlier stages
    seeds: int | Sequence[int] = 3  # of every arm, at most 1,000; a list, such as [2, 4, 8], halves
    first_seed: int = 0  # others than those of an earlier stage make it independent
    keep: float = 0.5  # with halving, the share of arms that is kept
    within: str | None = None  # with halving, the option whose equal values compete
    train: Arm = field(default_factory=dict)  # options of the study that are different here
    reference: Arm | None = None  # the first arm by default; where it is named, it gets every seed

    @property
    def rungs(self) -> list[int]:
        """Seeds after each rung."""
        return [self.seeds] if isinstance(self.seeds, int) else list(self.seeds)


@dataclass(frozen=True)
class Study:
    """What a study's file says."""

    stages: Mapping[str, Stage]  # by name, in their order; at most 10,000 runs in all
    train: Arm = field(default_factory=dict)  # options that all runs share
    measure: str = "knn"  # that arms are ranked by, as evaluation cards name it
    core_hours: float | None = None  # what all runs may cost together
    core_minutes: float = 10.0  # what one run is expected to cost, until some have been made
    title: str = "Study"


def read_study(path: str | Path, *, trust: bool = False) -> Study:
    """A study from its YAML file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: For what a study does not have, or options that do not exist.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"expected the YAML file of a study, got {str(path)!r}, which does not exist"
        )
    try:
        return _read(path, trust=trust)
    except (yaml.YAMLError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"expected a study in {path}, got a file that is none ({one_line(str(error))[:300]}); "
            "see docs/study.md"
        ) from error


def _read(path: str | Path, *, trust: bool) -> Study:
    options = yaml.safe_load(read_text(Path(path), LARGEST_CONFIG))
    if not isinstance(options, dict) or not isinstance(options.get("stages"), dict):
        raise ValueError(f"expected stages by name in {path}, got none; see docs/study.md")
    stages = {name: _read_stage(name, stage or {}) for name, stage in options["stages"].items()}
    study: Study = _make(Study, {**options, "stages": stages}, str(path))
    if not isinstance(study.measure, str):
        raise TypeError(f"expected measure to be a name, got {shorten(study.measure)}")
    _check_number("core_minutes", study.core_minutes, str(path), above=0)
    _check_number("core_hours", study.core_hours or 0, str(path))
    runs = sum(_arms_named(stage) * stage.rungs[-1] for stage in stages.values())
    if runs > MOST_RUNS:
        raise ValueError(
            f"expected at most {MOST_RUNS} runs in {path}, got {runs}, every combination of the "
            "factors with every seed; use fewer values or seeds, or several studies"
        )
    for name, stage in study.stages.items():
        named = stage.reference is not None and not stage.best_of
        if named and stage.reference not in given_arms(stage):
            raise ValueError(
                f"expected the reference of stage {name!r} among its arms, got "
                f"{stage.reference}; add it to arms"
            )
        earlier = list(study.stages)[: list(study.stages).index(name)]
        for best in stage.best_of:
            if best.stage not in earlier:
                raise ValueError(
                    f"expected best_of of stage {name!r} to name an earlier stage, got "
                    f"{best.stage!r}; earlier are {', '.join(earlier) or 'none'}"
                )
        arms = given_arms(stage)
        for arm in ({}, *arms):  # none: those of best_of are trained with these options, too
            options = {**study.train, **stage.train, **arm}
            code = code_of(options.get("imports") or (), str(options.get("backbone") or ""))
            if code and not trust:
                raise ValueError(untrusted([str(one) for one in code], str(path)))
        for arm in arms:
            make_job(study, stage, arm, 0)  # options that do not exist are refused here
    return study


def _make(kind: type, options: Mapping[str, Any], where: str) -> Any:
    known = [its.name for its in fields(kind)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"; choose among {', '.join(known)}"
            raise ValueError(f"expected parts of a study in {where}, got {name!r}{hint}")
    return kind(**options)


def _read_stage(name: str, options: Mapping[str, Any]) -> Stage:
    where = f"stage {name!r}"
    best = options.get("best_of") or ()
    several = [best] if isinstance(best, Mapping) else best
    options = {**options, "best_of": tuple(_make(BestOf, one, where) for one in several)}
    stage: Stage = _make(Stage, options, where)
    if not (stage.factors or stage.arms or stage.best_of):
        raise ValueError(f"expected factors, arms or best_of in {where}, got none of them")
    if not all(isinstance(arm, Mapping) for arm in stage.arms):
        raise TypeError(f"expected arms of options by name in {where}, got others")
    for option in ("factors", "train", "reference"):
        if not isinstance(getattr(stage, option) or {}, Mapping):
            raise TypeError(f"expected {option} of {where} by name, got others")
    for option, values in stage.factors.items():
        if not isinstance(values, list | tuple):
            raise TypeError(f"expected a list of values of {option} in {where}, got {values!r}")
    for within in (stage.within, *(best.within for best in stage.best_of)):
        if not isinstance(within, str | None):
            raise TypeError(f"expected within of {where} to be the name of an option, got another")
    for best in stage.best_of:
        _check_number("keep", best.keep, f"best_of of {where}", above=0, kind=int)
        if not isinstance(best.other_than_reference, bool):
            raise TypeError(f"expected other_than_reference of {where} to be true or false")
    _check_number("first_seed", stage.first_seed, where, kind=int)
    _check_number("keep", stage.keep, where)
    for seeds in stage.rungs:
        _check_number("seeds", seeds, where, kind=int)
        check_seeds(seeds, where)
    if not stage.rungs or stage.rungs[0] < 1 or stage.rungs != sorted(set(stage.rungs)):
        raise ValueError(f"expected growing numbers of seeds in {where}, got {stage.seeds}")
    if not 0 < stage.keep <= 1:
        raise ValueError(f"expected keep above 0 and at most 1 in {where}, got {stage.keep}")
    return stage


def _check_number(
    name: str, value: Any, where: str, *, above: float = -math.inf, kind: Any = float
) -> None:
    if not fits(value, kind) or not above < value < math.inf:
        what = "a whole number" if kind is int else "a number"
        least = f" above {above:g}" if above > -math.inf else ""
        raise TypeError(f"expected {name} of {where} to be {what}{least}, got {shorten(value)}")


def _arms_named(stage: Stage) -> int:
    """How many arms a stage has at most, without making them."""
    combined = math.prod(map(len, stage.factors.values())) if stage.factors else 0
    return combined + len(stage.arms) + len(stage.best_of)


def given_arms(stage: Stage) -> list[dict[str, Any]]:
    """The arms that a stage names itself: all combinations of its factors, then its list.

    Example:
        >>> given_arms(Stage(factors={"recipe": ["simclr", "hcl"], "temperature": [0.2]}))
        [{'recipe': 'simclr', 'temperature': 0.2}, {'recipe': 'hcl', 'temperature': 0.2}]
    """
    combined = [
        dict(zip(stage.factors, values, strict=True)) for values in product(*stage.factors.values())
    ]
    return (combined if stage.factors else []) + [dict(arm) for arm in stage.arms]


def label_of(arm: Arm) -> str:
    """What to call an arm.

    Example:
        >>> label_of({"recipe": "hcl", "temperature": 0.2, "loss.hardness": 2.0})
        'hcl temperature=0.2 hardness=2.0'
    """
    words = [str(arm["recipe"])] if "recipe" in arm else []
    words += [
        f"{name.rpartition('.')[2]}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in arm.items()
        if name != "recipe"
    ]
    return " ".join(words)


def make_job(study: Study, stage: Stage, arm: Arm, seed: int) -> Job:
    """The run of an arm with a seed; equal options give the same name in every stage."""
    train = train_config(study.train, stage.train, arm, {"seed": seed})
    return plan.make_job(label_of(arm), train)


def core_minutes(study: Study, results: Results) -> float:
    """What a run costs: the mean of those made, or what the study expects."""
    if not results.records:
        return study.core_minutes
    return 60 * results.core_hours / len(results.records)


def group_of(arm: Arm, within: str | None) -> str:
    """Which arms an arm competes with: those of the same value of an option, or all."""
    return "" if within is None else json.dumps(arm.get(within))


def groups_of(arms: Iterable[Arm], within: str | None) -> list[str]:
    """The groups of some arms, in their order."""
    return list(dict.fromkeys(group_of(arm, within) for arm in arms))


def reference_of(stage: Stage, arms: Sequence[Arm]) -> Arm:
    """The arm of a stage that its others are compared with."""
    return arms[0] if stage.reference is None else stage.reference


def values_of(
    study: Study, stage: Stage, arm: Arm, seeds: Iterable[int], results: Results
) -> list[float]:
    """The study's measure of an arm's finished runs, as far as they have it."""
    jobs = [make_job(study, stage, arm, seed) for seed in seeds]
    records = [results.records[job.name] for job in jobs if job in results]
    found = [record["results"].get(TRAINED, {}).get(study.measure) for record in records]
    return [float(one["value"]) for one in found if one is not None]


def best_arms(
    study: Study, stage: Stage, arms: Sequence[Arm], seeds: Iterable[int], results: Results,
    *, within: str | None, keep: float | int,
) -> list[Arm]:  # fmt: skip
    """The arms with the highest mean of the study's measure, in their order.

    Arms compete with those that share their value of the option ``within``. ``keep`` is how many of
    each group are kept, or the share of them (a float), rounded up. Arms without results are out.
    """
    seeds = list(seeds)
    means: list[tuple[float, int]] = []
    for number, arm in enumerate(arms):
        found = values_of(study, stage, arm, seeds, results)
        if found:
            means.append((summarize(found).mean, number))
    chosen: list[int] = []
    for group in groups_of(arms, within):
        own = [one for one in means if group_of(arms[one[1]], within) == group]
        count = keep if isinstance(keep, int) else math.ceil(keep * len(own))
        chosen += [number for _, number in sorted(own, key=lambda one: (-one[0], one[1]))[:count]]
    return [arms[number] for number in sorted(chosen)]


def arms_of(study: Study, name: str, results: Results) -> list[Arm]:
    """All arms of a stage; those that are the best of a stage that has no results are missing."""
    stage = study.stages[name]
    arms: list[Arm] = list(given_arms(stage))
    for best in stage.best_of:
        source = study.stages[best.stage]
        candidates = final_arms(study, best.stage, results)
        if best.other_than_reference:
            there = arms_of(study, best.stage, results)
            candidates = [arm for arm in candidates if arm != reference_of(source, there)]
        arms += best_arms(
            study, source, candidates, seeds_of(source), results,
            within=best.within, keep=best.keep,
        )  # fmt: skip
    return [arm for number, arm in enumerate(arms) if arm not in arms[:number]]


def seeds_of(stage: Stage, rung: int = -1) -> range:
    """The seeds of a rung, the last by default."""
    return range(stage.first_seed, stage.first_seed + stage.rungs[rung])


def arms_at(study: Study, name: str, rung: int, results: Results) -> list[Arm]:
    """The arms that are left at a rung, from 0."""
    stage, arms = study.stages[name], arms_of(study, name, results)
    for passed in range(rung):
        best = best_arms(
            study, stage, arms, seeds_of(stage, passed), results,
            within=stage.within, keep=float(stage.keep),
        )  # fmt: skip
        arms = [arm for arm in arms if arm in best or arm == stage.reference]
    return arms


def final_arms(study: Study, name: str, results: Results) -> list[Arm]:
    """The arms of a stage's last rung."""
    return arms_at(study, name, len(study.stages[name].rungs) - 1, results)


def jobs_at(study: Study, name: str, rung: int, results: Results) -> list[Job]:
    """The runs of a rung, seed by seed, so that the budget's end leaves whole pairs."""
    stage, arms = study.stages[name], arms_at(study, name, rung, results)
    return [make_job(study, stage, arm, seed) for seed in seeds_of(stage, rung) for arm in arms]


def is_complete(study: Study, name: str, results: Results) -> bool:
    """Whether every run of a stage has ended."""
    rungs = range(len(study.stages[name].rungs))
    jobs = [job for rung in rungs for job in jobs_at(study, name, rung, results)]
    return bool(jobs) and all(job in results for job in jobs)


def planned(study: Study, results: Results) -> list[tuple[str, int, int, int]]:
    """Of each rung: its stage, arms, runs and runs to be made, as far as they are known.

    Arms of later rungs and of ``best_of`` are estimated until the runs that choose them have ended.
    """
    found = []
    for name, stage in study.stages.items():
        known = all(is_complete(study, best.stage, results) for best in stage.best_of)
        count = len(given_arms(stage)) + sum(
            best.keep * len(groups_of(given_arms(study.stages[best.stage]), best.within))
            for best in stage.best_of
        )
        before = 0
        for rung, seeds in enumerate(stage.rungs):
            to_do = count * (seeds - before)
            if known:
                count = len(arms_at(study, name, rung, results))
                to_do = sum(job not in results for job in jobs_at(study, name, rung, results))
                known = to_do == 0
            found.append((name, count, count * seeds, to_do))
            least = len(groups_of(given_arms(stage), stage.within))
            count, before = max(least, math.ceil(stage.keep * count)), seeds
    return found
