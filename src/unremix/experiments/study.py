"""``unremix study``: many settings, paired seeds and a budget, from one YAML file.

A study is a list of stages. A stage is a set of *arms*, each a setting of some options, and a
number of seeds, the same for every arm. Successive halving spends most seeds on the best arms:
with ``seeds: [2, 4, 8]`` every arm gets two seeds, the better half two more, and so on.

The folder of a study holds ``results.jsonl`` (a line per finished run, with its options, command
and versions), ``report.md`` with its figures, and ``runs/`` and ``logs/``. What ``results.jsonl``
has is done, even if ``runs/`` is gone, so the folder can be moved or shared without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from unremix.console.printing import one_line
from unremix.console.values import LARGEST_YAML, bounded, make_options, read_yaml
from unremix.domains.options import code_of, untrusted
from unremix.experiments import plan
from unremix.experiments.plan import Job, check_seeds, train_config
from unremix.experiments.results import Record, Results
from unremix.files.atomic_files import check_name, read_text

MOST_RUNS = 10_000  # of a study

Arm = Mapping[str, Any]
"""A setting: options by name, those of a section with a dot between (``loss.hardness``)."""

Within = str | tuple[str, ...] | None
"""Options whose equal values compete; None: all arms do."""

Name = Any
"""Text, or the number that YAML takes it for."""


@dataclass(frozen=True)
class BestOf:
    """The best arms of an earlier stage."""

    stage: Name
    within: Within = None  # the best of each value of these options; by default one arm
    keep: int = bounded(1, least=1)  # how many of each
    other_than_reference: bool = False  # whether that stage's reference is passed over


@dataclass(frozen=True)
class Stage:
    """A part of a study."""

    factors: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # all combinations are arms
    arms: tuple[Arm, ...] = ()  # further arms, one by one
    best_of: tuple[BestOf, ...] = ()  # further arms: the best of earlier stages
    seeds: int | tuple[int, ...] = (
        3  # of every arm, at most 1,000; a list, such as [2, 4, 8], halves
    )
    first_seed: int = 0  # others than those of an earlier stage make it independent
    keep: float = bounded(0.5, above=0, most=1)  # with halving, the share of arms that is kept
    within: Within = None  # with halving, the options whose equal values compete
    train: Arm = field(default_factory=dict)  # options of the study that are different here
    reference: Arm | None = None  # the first arm by default; where it is named, it gets every seed
    core_minutes: float | None = bounded(above=0, below=math.inf)  # what a run of it is to cost

    @property
    def rungs(self) -> list[int]:
        """Seeds after each rung."""
        return [self.seeds] if isinstance(self.seeds, int) else list(self.seeds)

    @property
    def most_arms(self) -> int:
        """How many arms there are, without making them; a group of ``best_of`` counts as one."""
        combined = math.prod(map(len, self.factors.values())) if self.factors else 0
        return combined + len(self.arms) + len(self.best_of)

    @property
    def own_arms(self) -> list[Arm]:
        """The arms that the stage names itself: all combinations of its factors, then its list.

        Example:
            >>> Stage(factors={"recipe": ["simclr", "hcl"], "temperature": [0.2]}).own_arms
            [{'recipe': 'simclr', 'temperature': 0.2}, {'recipe': 'hcl', 'temperature': 0.2}]
        """
        combined = [
            dict(zip(self.factors, values, strict=True))
            for values in product(*self.factors.values())
        ]
        return [*(combined if self.factors else []), *map(dict, self.arms)]

    def seeds_of(self, rung: int = -1) -> range:
        """The seeds of a rung, the last by default."""
        return range(self.first_seed, self.first_seed + self.rungs[rung])

    def reference_among(self, arms: Sequence[Arm]) -> Arm:
        """The arm that the others are compared with."""
        return arms[0] if self.reference is None else self.reference


@dataclass(frozen=True)
class Study:
    """What a study's file says."""

    stages: Mapping[Name, Stage]  # by name, in their order; at most 10,000 runs in all
    train: Arm = field(default_factory=dict)  # options that all runs share
    measure: str = "knn"  # that arms are ranked by, as evaluation cards name it
    core_hours: float | None = bounded(least=0, below=math.inf)  # what all runs may cost together
    # What one run is expected to cost, until some have been made.
    core_minutes: float = bounded(10.0, above=0, below=math.inf)
    title: Name = "Study"

    def job(self, stage: Stage, arm: Arm, seed: int) -> Job:
        """The run of an arm with a seed; equal options give the same name in every stage."""
        train = train_config(self.train, stage.train, arm, {"seed": seed})
        return plan.make_job(name_of_arm(arm), train)


def _read_stage(name: str, options: Mapping[str, Any]) -> Stage:
    where, prefix = f"stage {name!r}", f"stages.{name}."
    best = options.get("best_of") or ()
    several = [best] if isinstance(best, Mapping) else best
    made = [make_options(BestOf, one, f"{prefix}best_of.") for one in several]
    stage = make_options(Stage, {**options, "best_of": made}, prefix)
    if not (stage.factors or stage.arms or stage.best_of):
        raise ValueError(f"expected factors, arms or best_of in {where}, got none of them")
    for option, values in stage.factors.items():
        if not isinstance(values, list | tuple):
            raise TypeError(f"expected a list of values of {option} in {where}, got {values!r}")
    for seeds in stage.rungs:
        check_seeds(seeds, where)
    if not stage.rungs or stage.rungs[0] < 1 or stage.rungs != sorted(set(stage.rungs)):
        raise ValueError(f"expected growing numbers of seeds in {where}, got {stage.rungs}")
    return stage


def _read(path: str | Path, *, trust: bool) -> Study:
    options = read_yaml(read_text(Path(path), LARGEST_YAML), where=path)
    if not isinstance(options, dict) or not isinstance(options.get("stages"), dict):
        raise ValueError(f"expected stages by name in {path}, got none; see docs/comparing.md")
    for name in options["stages"]:
        check_name(str(name), f"the name of a stage in {path}")
    stages = {name: _read_stage(name, stage or {}) for name, stage in options["stages"].items()}
    study = make_options(Study, {**options, "stages": stages})
    runs = sum(stage.most_arms * stage.rungs[-1] for stage in stages.values())
    if runs > MOST_RUNS:
        raise ValueError(
            f"expected at most {MOST_RUNS} runs in {path}, got {runs}, every combination of the "
            "factors with every seed; use fewer values or seeds, or several studies"
        )
    names = list(stages)
    for name, stage in stages.items():
        arms, earlier = stage.own_arms, names[: names.index(name)]
        if stage.reference is not None and not stage.best_of and stage.reference not in arms:
            raise ValueError(
                f"expected the reference of stage {name!r} among its arms, got "
                f"{stage.reference}; add it to arms"
            )
        for best in stage.best_of:
            if best.stage not in earlier:
                raise ValueError(
                    f"expected best_of of stage {name!r} to name an earlier stage, got "
                    f"{best.stage!r}; earlier are {', '.join(map(str, earlier)) or 'none'}"
                )
        for arm in ({}, *arms):  # none: those of best_of are trained with these options, too
            merged = {**study.train, **stage.train, **arm}
            code = code_of(merged)
            if code and not trust:
                raise ValueError(untrusted([str(one) for one in code], str(path)))
        for arm in arms:
            study.job(stage, arm, 0)  # options that do not exist are refused here
    return study


def read_study(path: str | Path, *, trust: bool = False) -> Study:
    """A study from its YAML file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: For an invalid study, or options that do not exist.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"expected the YAML file of a study, got {str(path)!r}, which does not exist"
        )
    try:
        return _read(path, trust=trust)
    except (RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"expected a study in {path}, got something else ({one_line(str(error))[:300]}); "
            "see docs/comparing.md"
        ) from error


def name_of_arm(arm: Arm) -> str:
    """What to call an arm of a study.

    Example:
        >>> name_of_arm({"recipe": "hcl", "temperature": 0.2, "loss.hardness": 2.0})
        'hcl temperature=0.2 hardness=2.0'
    """
    words = [str(arm["recipe"])] if "recipe" in arm else []
    words += [
        f"{name.rpartition('.')[2]}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in arm.items()
        if name != "recipe"
    ]
    return " ".join(words)


def group_of(arm: Arm, within: Within) -> str:
    """Which arms an arm competes with: those of the same values of some options, or all."""
    names = (within,) if isinstance(within, str) else within or ()
    return json.dumps([arm.get(name) for name in names])


def groups_of(arms: Iterable[Arm], within: Within) -> list[str]:
    """The groups of some arms, in their order."""
    return list(dict.fromkeys(group_of(arm, within) for arm in arms))


@dataclass(frozen=True)
class Standing:
    """The state of a study: the arms and runs that its results have decided so far."""

    study: Study
    results: Results

    def records(self, stage: Stage, arms: Iterable[Arm], seeds: Sequence[int]) -> list[Record]:
        """What came out of the finished runs of some arms."""
        return self.results.of(self.study.job(stage, arm, seed) for arm in arms for seed in seeds)

    def values(self, stage: Stage, arm: Arm, seeds: Sequence[int]) -> list[float]:
        """The study's measure of those of an arm's finished runs that have it."""
        measured = [one.measure(self.study.measure) for one in self.records(stage, [arm], seeds)]
        return [value for value in measured if value is not None]

    def best(
        self, stage: Stage, arms: Sequence[Arm], seeds: Sequence[int], *, within: Within,
        keep: float | int,
    ) -> list[Arm]:  # fmt: skip
        """The arms with the highest mean of the study's measure, in their order.

        Arms compete with those that share their values of the options ``within``. ``keep`` is how
        many of each group are kept, or the share of them (a float), rounded up. Arms without
        results are out.
        """
        values = [self.values(stage, arm, seeds) for arm in arms]
        chosen: list[int] = []
        for group in groups_of(arms, within):
            numbers = [
                n for n, arm in enumerate(arms) if values[n] and group_of(arm, within) == group
            ]
            count = keep if isinstance(keep, int) else math.ceil(keep * len(numbers))
            chosen += sorted(numbers, key=lambda n: -fmean(values[n]))[:count]
        return [arms[number] for number in sorted(chosen)]

    def arms(self, name: str) -> list[Arm]:
        """All arms of a stage; the best of a stage that has no results are missing."""
        stage = self.study.stages[name]
        arms = stage.own_arms
        for best in stage.best_of:
            source, candidates = self.study.stages[best.stage], self.arms_at(best.stage)
            if best.other_than_reference:
                reference = source.reference_among(self.arms(best.stage))
                candidates = [arm for arm in candidates if arm != reference]
            seeds = source.seeds_of()
            arms += self.best(source, candidates, seeds, within=best.within, keep=best.keep)
        return [arm for number, arm in enumerate(arms) if arm not in arms[:number]]

    def arms_at(self, name: str, rung: int = -1) -> list[Arm]:
        """The arms that are left at a rung, from 0; at the last by default."""
        stage, arms = self.study.stages[name], self.arms(name)
        for passed in range(rung % len(stage.rungs)):
            seeds, keep = stage.seeds_of(passed), float(stage.keep)
            best = self.best(stage, arms, seeds, within=stage.within, keep=keep)
            arms = [arm for arm in arms if arm in best or arm == stage.reference]
        return arms

    def final_best(self, name: str, keep: int) -> list[Arm]:
        """The best arms of each group of a stage, among those that no rung has dropped."""
        stage, arms = self.study.stages[name], self.arms_at(name)
        return self.best(stage, arms, stage.seeds_of(), within=stage.within, keep=keep)

    def jobs(self, name: str, rung: int) -> list[Job]:
        """The runs of a rung, seed by seed, so that a spent budget leaves complete pairs."""
        stage, arms = self.study.stages[name], self.arms_at(name, rung)
        return [self.study.job(stage, arm, s) for s in stage.seeds_of(rung) for arm in arms]

    def is_complete(self, name: str) -> bool:
        """Whether every run of a stage has ended."""
        rungs = range(len(self.study.stages[name].rungs))
        jobs = [job for rung in rungs for job in self.jobs(name, rung)]
        return bool(jobs) and all(job in self.results for job in jobs)

    def core_minutes(self, name: str) -> float:
        """What a run of a stage costs: the mean of those made, or what the file expects."""
        stage, made = self.study.stages[name], len(self.results.records)
        known = self.results.cpu_seconds(self.jobs(name, -1))
        if known:
            return fmean(known) / 60
        if stage.core_minutes is not None:
            return stage.core_minutes
        return 60 * self.results.core_hours / made if made else self.study.core_minutes

    def planned(self) -> list[tuple[str, int, int, int]]:
        """For each rung: its stage, arms, runs and missing runs.

        Arms of later rungs and of ``best_of`` are estimated until the runs that choose them have
        ended.
        """
        rungs = []
        for name, stage in self.study.stages.items():
            known = all(self.is_complete(best.stage) for best in stage.best_of)
            count = len(stage.own_arms)
            for best in stage.best_of:
                arms = self.study.stages[best.stage].own_arms
                count += best.keep * len(groups_of(arms, best.within))
            before = 0
            for rung, seeds in enumerate(stage.rungs):
                to_do = count * (seeds - before)
                if known:
                    count = len(self.arms_at(name, rung))
                    to_do = sum(job not in self.results for job in self.jobs(name, rung))
                    known = to_do == 0
                rungs.append((name, count, count * seeds, to_do))
                least = len(groups_of(stage.own_arms, stage.within))
                count, before = max(least, math.ceil(stage.keep * count)), seeds
        return rungs
