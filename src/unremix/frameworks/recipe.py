"""Compositions of parts: framework × mixing × negatives × weighting.

The parts and the recipes of a kind of data are added when it is registered
(:func:`unremix.domains.base.register`); :mod:`unremix.recipes` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal, cast

from torch import nn

from unremix.console.suggestions import did_you_mean
from unremix.frameworks.base import Framework
from unremix.frameworks.mixing import IMix, UnMix
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.parts import (
    option_fields,
    options_by_section,
    options_type,
    section_of,
    written,
)
from unremix.frameworks.simclr import SimCLR
from unremix.frameworks.swav import SwAV
from unremix.frameworks.weightings import HCL, Uniform, UnReMix
from unremix.losses import TwoViewLoss

Kind = Literal["framework", "mixing", "negatives", "weighting"]
NOTHING = "none"

# A part says for itself what it is (summary), which options it has and in which section of the
# command line, and by its constructor what it needs.
PARTS: dict[Kind, dict[str, Callable[..., Any]]] = {
    "framework": {"simclr": SimCLR, "moco": MoCo, "swav": SwAV},
    "mixing": {"imix": IMix, "unmix": UnMix},
    "negatives": {"mochi": MoCHi, "patch": Patches},
    "weighting": {"uniform": Uniform, "hcl": HCL, "unremix": UnReMix},
}


def takes(framework: str, what: str) -> bool:
    """Whether a framework has a use for a loss, a mixing or further negatives."""
    return what in signature(PARTS["framework"][framework]).parameters


def frameworks_for(domain: str) -> list[str]:
    """The names of the frameworks for a kind of data."""
    return [name for name in PARTS["framework"] if serves("framework", name, domain)]


def sections() -> dict[str, type]:
    """The options of all parts, by section: dataclasses whose fields are None until given."""
    return options_by_section(tuple(part for known in PARTS.values() for part in known.items()))


@dataclass(frozen=True)
class Recipe:
    """A named composition.

    Args:
        name: Its name.
        summary: One line.
        framework: Name of the framework.
        weighting: Name of the weighting.
        mixing: Name of the mixing, or none.
        negatives: Name of what makes further negatives, or none.
        temperature: τ, unless given.
        preset: Options it sets, by section, unless given.
        labels: Whether samples of one class are positives of each other, unless given.
        domain: What kind of data it is for; set when that is registered, else the default one.
        paper: Where the paper has it; empty where it does not.
    """

    name: str
    summary: str
    framework: str = "simclr"
    weighting: str = "uniform"
    mixing: str = NOTHING
    negatives: str = NOTHING
    temperature: float = 0.5
    preset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: bool = False
    domain: str = ""
    paper: str = ""

    @property
    def parts(self) -> dict[Kind, str]:
        """The names of its parts; a framework without a loss has no weighting."""
        return {
            "framework": self.framework,
            "mixing": self.mixing,
            "negatives": self.negatives,
            "weighting": self.weighting if takes(self.framework, "loss") else NOTHING,
        }


RECIPES: dict[str, Recipe] = {}
# The names of the parts that each kind of data lists; parts that none lists serve all.
SERVED: dict[str, Mapping[Kind, tuple[str, ...]]] = {}


def serves(kind: Kind, name: str, domain: str) -> bool:
    """Whether a part is for a kind of data."""
    return domain in domains_of(kind, name)


def domains_of(kind: Kind, name: str) -> list[str]:
    """The kinds of data that a part is for."""
    listing = [domain for domain, parts in SERVED.items() if name in parts.get(kind, ())]
    return listing or list(SERVED)


def _find(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known)
    raise ValueError(f"expected a {kind} among {', '.join(known)}, got {name!r}{hint}")


def find_recipe(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        ValueError: If there is none; it names the nearest.
    """
    return cast(Recipe, _find("recipe", name, RECIPES))


@dataclass(frozen=True)
class OptionValue:
    """An option of a recipe, as ``unremix recipes`` shows it."""

    kind: Kind  # the kind of the part that takes it
    option: str  # its name on the command line
    value: str  # its value, written as there; in words where it depends on something else
    changed: bool  # whether the recipe sets it to something else than the part does


def options_of(recipe: Recipe) -> list[OptionValue]:
    """Every option of a recipe's parts and its value.

    Example:
        >>> [(one.option, one.value) for one in options_of(RECIPES["unremix-u"]) if one.changed]
        [('--loss.components', '"[uncertainty]"')]
        >>> next(one.value for one in options_of(RECIPES["debiased"]) if "prior" in one.option)
        '0.1'
    """
    values = []
    bare = Composition(recipe.parts, {}, recipe.temperature)
    for kind, name in recipe.parts.items():
        if name == NOTHING:
            continue
        options, section = option_fields(PARTS[kind][name]), section_of(PARTS[kind][name])
        usual = bare.make_options(kind)
        preset = recipe.preset.get(section, {})
        for option, its in options.items():
            default = its.metadata.get("unset", written(getattr(usual, option)))
            value = written(preset[option]) if option in preset else default
            values.append(OptionValue(kind, f"--{section}.{option}", value, value != default))
    return values


@dataclass(frozen=True)
class Composition:
    """A recipe with changes applied."""

    parts: dict[Kind, str]  # the name of each part; ``none`` where there is none
    options: dict[str, dict[str, Any]]  # options of each section, those of the recipe included
    temperature: float  # τ
    epochs: int = 200  # of the whole training
    labels: bool = False  # whether samples of one class are positives of each other

    @property
    def framework(self) -> Callable[..., Any]:
        """The framework, which says what it takes and serves."""
        return PARTS["framework"][self.parts["framework"]]

    @property
    def has_weights(self) -> bool:
        """Whether there are negatives to weight."""
        return self.parts["weighting"] != NOTHING

    def make_options(self, kind: Kind) -> Any:
        """The complete options of a part; a part that is its own options is made.

        None where there is no such part.
        """
        if self.parts[kind] == NOTHING:
            return None
        part = PARTS[kind][self.parts[kind]]
        chosen, known = self.options.get(section_of(part), {}), option_fields(part)
        make = options_type(part)
        if make is None:
            return part() if kind != "framework" else None
        made = make(**{name: value for name, value in chosen.items() if name in known})
        return made.settled(epochs=self.epochs) if hasattr(made, "settled") else made

    def make_loss(self, *, gather: bool = False) -> TwoViewLoss | None:
        """The loss, where there are negatives."""
        make = self.make_options("weighting")
        if make is None:
            return None
        shared = getattr(self.framework, "loss_options", ())
        given = vars(self.make_options("framework")) if shared else {}
        further = {name: given[name] for name in shared if given[name] is not None}
        return cast(TwoViewLoss, make(temperature=self.temperature, gather=gather, **further))

    def make_framework(
        self, encoder: nn.Module, head: nn.Sequential, *, gather: bool = False
    ) -> Framework:
        """The framework with all its parts.

        Args:
            encoder: Views of N samples to features (N, F).
            head: Features to embeddings (N, D), for the frameworks that have one.
            gather: Whether the negatives come from all processes.
        """
        available = {
            "encoder": encoder,
            "head": head,
            "loss": self.make_loss(gather=gather),
            "temperature": self.temperature,
            "labels": self.labels,
            "options": self.make_options("framework"),
            "mixing": self.make_options("mixing"),
            "negatives": self.make_options("negatives"),
        }
        wanted = signature(self.framework).parameters
        chosen = {name: value for name, value in available.items() if name in wanted}
        return cast(Framework, self.framework(**chosen))


def compose(
    recipe: Recipe,
    *,
    changes: Mapping[Kind, str | None] | None = None,
    options: Mapping[str, Any] | None = None,
    temperature: float | None = None,
    epochs: int = 200,
    labels: bool | None = None,
) -> Composition:
    """A recipe with changes applied.

    Args:
        recipe: The recipe.
        changes: Other parts; None leaves the recipe's.
        options: Options by section, as dictionaries or dataclasses; None leaves the recipe's value.
        temperature: τ; None leaves the recipe's.
        epochs: Of the whole training, on which some defaults depend.
        labels: Whether samples of one class are positives of each other; None leaves the recipe's.

    Raises:
        ValueError: For parts that do not go together, and for options that would do nothing.

    Example:
        >>> compose(RECIPES["moco"], changes={"weighting": "hcl"}).parts["weighting"]
        'hcl'
    """
    parts, given = recipe.parts, {k: v for k, v in (changes or {}).items() if v is not None}
    for kind, name in given.items():
        if name != NOTHING or kind in ("framework", "weighting"):
            _find(kind, name, PARTS[kind])
    parts |= given
    if parts["weighting"] == NOTHING:
        parts["weighting"] = recipe.weighting
    _check_parts(parts, given, recipe.domain)
    used: dict[str, list[str]] = {section: [] for section in sections()}
    for kind, name in parts.items():
        if name != NOTHING:
            part = PARTS[kind][name]
            used.setdefault(section_of(part), []).extend(option_fields(part))
    chosen: dict[str, dict[str, Any]] = {
        section: {k: v for k, v in recipe.preset.get(section, {}).items() if k in names}
        for section, names in used.items()
    }
    for section, values in (options or {}).items():
        for name, value in dict(values if isinstance(values, Mapping) else vars(values)).items():
            if value is None:
                continue
            if name not in used.get(section, []):
                known = ", ".join(f"--{section}.{one}" for one in used.get(section, []))
                raise ValueError(
                    f"expected options that recipe {recipe.name!r} uses "
                    f"({known or f'none of --{section}'}), got --{section}.{name}, which would do "
                    "nothing; leave it out or choose another recipe"
                )
            chosen[section][name] = value
    temperature = recipe.temperature if temperature is None else temperature
    labels = recipe.labels if labels is None else labels
    if labels and not takes(parts["framework"], "labels"):
        able = [name for name in frameworks_for(recipe.domain) if takes(name, "labels")]
        raise ValueError(
            f"expected a framework that takes labels, got {parts['framework']!r}; use "
            f"--framework {' or '.join(able)}, or leave --labels out"
        )
    return Composition(parts, chosen, temperature, epochs, labels)


def _check_parts(parts: dict[Kind, str], given: Mapping[Kind, str], domain: str) -> None:
    framework, known = parts["framework"], frameworks_for(domain)
    if framework not in known:
        raise ValueError(
            f"expected a framework for {domain} data, got {framework!r}; use {' or '.join(known)}"
        )
    idle: list[str] = []
    for kind in ("mixing", "negatives"):
        name = parts[kind]
        if name in PARTS[kind] and domain not in (able := domains_of(kind, name)):
            raise ValueError(
                f"expected {' or '.join(able)} data for {kind} {name!r}, got {domain}; leave it out"
            )
        if name != NOTHING and not takes(framework, kind):
            idle.append(kind)
    if not takes(framework, "loss"):
        idle += ["weighting"] if "weighting" in given else []
        parts["weighting"] = NOTHING
    if idle:
        needed = "loss" if idle[0] == "weighting" else idle[0]
        able = [name for name in known if takes(name, needed)]
        raise ValueError(
            f"expected a framework with negatives for {' and '.join(idle)}, got {framework!r}, "
            f"which has none; use {' or '.join(able)}"
        )
    negatives = PARTS["negatives"].get(parts["negatives"])
    queues = [name for name in known if getattr(PARTS["framework"][name], "has_queue", False)]
    if getattr(negatives, "needs_queue", False) and framework not in queues:
        raise ValueError(
            f"expected a framework with a queue for negatives={parts['negatives']!r}, got "
            f"{framework!r}; use {' or '.join(queues)}"
        )
