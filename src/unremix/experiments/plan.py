"""What an experiment consists of: its runs, their options, and what has to stay the same."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from unremix.console.values import bounded, check_bounds
from unremix.domains.options import TrainConfig, flat_options, make_config, nested_options
from unremix.recipes import RECIPES, find_recipe
from unremix.training.building import settled

# Not shared by the runs.
OWN = ("recipe", "seed", "name", "runs", "resume", "progress", "threads", "given")
DEFAULTS = 1  # raised when a default of an option changes, so that runs with the old one differ
FIRST_DEFAULTS = {"precision": "32-true"}  # names of runs are as they were with these
LARGEST_BUDGET = 1e12  # epochs, or any unit of time
MOST_SEEDS = 1000  # of a recipe, arm or row

UNITS = {"second": 1 / 60, "minute": 1.0, "hour": 60.0}


@dataclass(frozen=True)
class CompareConfig:
    """Options of a comparison, besides those of the training that all its runs share.

    Args:
        recipes: Comma-separated names, or all; ``unremix recipes`` lists them.
        reference: The recipe that the others are compared with; the first by default.
        seeds: Runs of each recipe, with seeds from 0 on; at most 1,000.
        budget: What every run gets. "20 epochs" is --epochs 20 and overrides a --config file. "10
            minutes" is a time: a run ends with the epoch in which its time is up, or after
            --epochs, which still sets the schedule of the learning rate.
        jobs: Runs at a time; by default one per GPU, or one per core. The cores are shared out.
        output: Folder of the comparison; comparisons/<data> by default. The same folder again
            resumes it; recipes and seeds can be added.
        on: Where runs are executed: on this machine (local), on Ray, or on SLURM. A cluster needs
            an output folder that all its nodes share.
        progress: Whether to show progress and the table.
    """

    recipes: str
    reference: str | None = None
    seeds: int = bounded(3, least=1)
    budget: str | None = None
    jobs: int | None = bounded(least=1)
    output: str | None = None
    on: Literal["local", "ray", "slurm"] = "local"
    progress: bool = True

    def __post_init__(self) -> None:
        check_bounds(self)
        check_seeds(self.seeds)


def check_seeds(seeds: int, where: str = "") -> None:
    """Refuse fewer than one seed, and far too many.

    Args:
        seeds: How many.
        where: The file that asks for them, if it is one.

    Raises:
        ValueError: If there is none, or more than :data:`MOST_SEEDS`.
    """
    said = f" in {where}" if where else ""
    if seeds < 1:
        raise ValueError(f"expected seeds to be at least 1{said}, got {seeds}; use more")
    if seeds > MOST_SEEDS:
        raise ValueError(f"expected at most {MOST_SEEDS} seeds{said}, got {seeds}; use fewer")


@dataclass(frozen=True)
class Job:
    """One training of an experiment."""

    row: str  # the row of the table that it belongs to, such as its recipe
    seed: int
    name: str  # the name of its folder, which identifies the job
    train: TrainConfig = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def processes(self) -> int:
        """How many processes it has; if it uses GPUs, each has one."""
        return self.train.devices if isinstance(self.train.devices, int) else 1


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison."""

    recipes: tuple[str, ...]
    seeds: int  # runs of each
    reference: str  # the recipe compared with
    train: TrainConfig  # the options that the runs share

    def job(self, recipe: str, seed: int) -> Job:
        """The run of a recipe with a seed."""
        train = replace(self.train, recipe=recipe, seed=seed)
        return Job(recipe, seed, f"{recipe}-{seed}", train)

    @property
    def jobs(self) -> list[Job]:
        """The runs: first one of each recipe, so that there is soon something to compare."""
        return [self.job(recipe, seed) for seed in range(self.seeds) for recipe in self.recipes]

    @property
    def minutes(self) -> float | None:
        """The time each run has, if it is time that they share."""
        return self.train.max_minutes


def chosen_recipes(names: str, domain: str) -> tuple[str, ...]:
    """The recipes of a list with commas; ``all`` are those of the domain that use no labels.

    Raises:
        ValueError: For an unknown recipe, or an empty list.

    Example:
        >>> chosen_recipes("simclr, hcl,simclr", "image")
        ('simclr', 'hcl')
    """
    if names.strip() == "all":
        return tuple(
            name
            for name, recipe in RECIPES.items()
            if getattr(recipe, "domain", domain) == domain and not recipe.labels
        )
    listed = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not listed:
        raise ValueError(f"expected recipes with commas between, or 'all', got {names!r}")
    return tuple(find_recipe(name).name for name in listed)


def domain_of(names: str) -> str | None:
    """Domain of the first recipe; None if unknown.

    Example:
        >>> domain_of("infograph,infograph-hcl")
        'graph'
    """
    recipe = RECIPES.get(names.split(",")[0].strip())
    return (recipe and recipe.domain) or None  # a recipe of your own may leave it out


def read_budget(budget: str | None) -> tuple[int | None, float | None]:
    """The epochs or the minutes of a budget; neither where it leaves them to --epochs.

    Raises:
        ValueError: If the budget is neither.

    Example:
        >>> read_budget("20 epochs"), read_budget("2 hours"), read_budget("epochs")
        ((20, None), (None, 120.0), (None, None))
    """
    if budget is None or budget.strip() == "epochs":
        return None, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(epoch|second|minute|hour)?s?", budget.strip())
    amount = 0.0 if match is None else float(match[1])
    if amount > LARGEST_BUDGET:
        raise ValueError(f"expected a budget of at most {LARGEST_BUDGET:g}, got more; lower it")
    if match is not None and match[2] in UNITS and amount > 0:
        return None, amount * UNITS[match[2]]
    if match is None or match[2] in UNITS or amount != int(amount):
        raise ValueError(f"expected a budget such as '20 epochs' or '10 minutes', got {budget!r}")
    return int(amount), None


def with_budget(train: TrainConfig, budget: str | None) -> TrainConfig:
    """The options with the epochs or the time of a budget.

    Raises:
        ValueError: If the budget is neither, or epochs were given that differ from it.

    Example:
        >>> with_budget(TrainConfig(), "20 epochs").epochs
        20
    """
    epochs, minutes = read_budget(budget)
    if epochs is not None and "epochs" in (train.given or ()) and train.epochs != epochs:
        raise ValueError(
            f"expected either --budget or --epochs, got {budget!r} and {train.epochs}; leave one "
            "of them out"
        )
    epochs = train.epochs if epochs is None else epochs
    return replace(train, epochs=epochs, max_minutes=minutes or train.max_minutes)


def shared_options(train: TrainConfig) -> dict[str, Any]:
    """The options that all runs share, by name; nested ones with a dot between.

    Example:
        >>> shared_options(TrainConfig(epochs=3))["epochs"]
        3
    """
    return {name: value for name, value in flat_options(train.options()).items() if name not in OWN}


def train_config(*options: Mapping[str, Any]) -> TrainConfig:
    """The options of a run by name, those of a section with a dot between; later ones win.

    Raises:
        ValueError: For an option that does not exist.

    Example:
        >>> train_config({"recipe": "hcl"}, {"loss.hardness": 2.0}).loss.hardness
        2.0
    """
    return make_config(nested_options({name: some[name] for some in options for name in some}))


def make_job(row: str, train: TrainConfig) -> Job:
    """A run that is named by its options: equal options give the same name everywhere.

    Only options that differ from the defaults count, so that a new option does not rename old runs.
    The first default of an option that has got another one counts as the default here.
    """
    identity = f"{DEFAULTS} {train_command(train, FIRST_DEFAULTS)}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    return Job(row, train.seed, f"{train.recipe}-{digest}-{train.seed}", train)


def train_command(train: TrainConfig, defaults: Mapping[str, Any] | None = None) -> str:
    """The command of a run.

    Args:
        train: Its options.
        defaults: Of some options, in place of theirs.

    Example:
        >>> train_command(TrainConfig(recipe="hcl", epochs=5, seed=3))
        'unremix train --recipe hcl --seed 3 --epochs 5'
    """
    words = ["unremix", "train", "--recipe", train.recipe, "--seed", str(train.seed)]
    return shlex.join(words + _changed(train, {**_usual_options(train.recipe), **(defaults or {})}))


@cache
def _usual_options(recipe: str | None = None) -> dict[str, Any]:
    """The options that runs share, at their defaults."""
    return shared_options(TrainConfig(recipe=recipe))


def _changed(train: TrainConfig, usual: Mapping[str, Any]) -> list[str]:
    """The options that differ from the usual ones, as words of a command."""
    words: list[str] = []
    for name, value in shared_options(train).items():
        if value != usual.get(name):
            words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return words


def make_plan(
    config: CompareConfig,
    train: TrainConfig,
    earlier: Mapping[str, Any] | None = None,
    folder: str = "the folder",
) -> Plan:
    """The plan: what was asked for now, and what the folder was begun with.

    The folder's ``comparison.yaml``, if there is one, says what was asked for earlier.

    Raises:
        ValueError: For invalid options, or options that differ from the earlier ones.
    """
    train = with_budget(train, config.budget)
    recipes, seeds = chosen_recipes(config.recipes, train.domain), config.seeds
    reference = config.reference
    if train.precision == "auto":
        # Alike on all machines: as the folder has it, or else as it is fast on this one.
        known = (earlier or {}).get("train", {}).get("precision")
        train = settled(train) if known is None else replace(train, precision=known)
    if earlier is not None:
        _check_same(earlier["train"], shared_options(train), folder)
        recipes = tuple(dict.fromkeys([*earlier["recipes"], *recipes]))
        seeds = max(seeds, earlier["seeds"])
        check_seeds(seeds, folder)
        reference = reference or earlier["reference"]
    if reference is None:
        reference = recipes[0]
    if reference not in recipes:
        raise ValueError(
            f"expected a reference among {', '.join(recipes)}, got {reference!r}; add it to "
            "--recipes"
        )
    return Plan(recipes, seeds, reference, train)


def _check_same(earlier: Mapping[str, Any], asked: Mapping[str, Any], folder: str) -> None:
    # For options that are newer than the folder.
    defaults = shared_options(TrainConfig(domain=asked["domain"]))
    changed = [
        f"{name} {earlier.get(name, defaults.get(name))!r} there, {value!r} here"
        for name, value in asked.items()
        if value != earlier.get(name, defaults.get(name))
    ]
    if changed:
        raise ValueError(
            f"expected the options that the comparison in {folder} was begun with, got others "
            f"({'; '.join(changed)}); only recipes and seeds can be added: use the same options, "
            "or another --output"
        )


def command_of(
    plan: Plan, output: str | None = None, jobs: int | None = None, on: str = "local"
) -> str:
    """The command that makes a whole comparison.

    Example:
        >>> command_of(Plan(("simclr", "hcl"), 3, "simclr", TrainConfig(epochs=5)))
        'unremix compare --recipes simclr,hcl --seeds 3 --epochs 5'
    """
    words = ["unremix", "compare", "--recipes", ",".join(plan.recipes), "--seeds", str(plan.seeds)]
    if plan.reference != plan.recipes[0]:
        words += ["--reference", plan.reference]
    words += _changed(plan.train, _usual_options())
    words += [] if jobs is None else ["--jobs", str(jobs)]
    words += [] if on == "local" else ["--on", on]
    return shlex.join(words + ([] if output is None else ["--output", output]))
