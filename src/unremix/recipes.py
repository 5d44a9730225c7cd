"""Named compositions: framework × mixing × negatives × weighting. Adding one is one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

from torch import nn

from unremix.data.suggestions import did_you_mean
from unremix.frameworks.base import Framework
from unremix.frameworks.infograph import InfoGraph
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.parts import (
    merged,
    option_fields,
    options_type,
    section_of,
    written,
)
from unremix.frameworks.quickthought import QuickThought
from unremix.frameworks.simclr import SimCLR
from unremix.frameworks.swav import SwAV
from unremix.frameworks.weightings import HCL, Uniform, UnReMix
from unremix.losses import TwoViewLoss
from unremix.views.mixing import IMix, UnMix

Kind = Literal["framework", "mixing", "negatives", "weighting"]
NOTHING = "none"

# A part says for itself what it is (summary), which options it has and in which section of the
# command line, which domains it is for, and by its constructor what it needs.
PARTS: dict[Kind, dict[str, Callable[..., Any]]] = {
    "framework": {
        "simclr": SimCLR,
        "moco": MoCo,
        "swav": SwAV,
        "infograph": InfoGraph,
        "quickthought": QuickThought,
    },
    "mixing": {"imix": IMix, "unmix": UnMix},
    "negatives": {"mochi": MoCHi, "patch": Patches},
    "weighting": {"uniform": Uniform, "hcl": HCL, "unremix": UnReMix},
}


def takes(framework: str, what: str) -> bool:
    """Whether a framework has a use for a loss, a mixing or further negatives."""
    return what in signature(PARTS["framework"][framework]).parameters


def frameworks_for(domain: str) -> list[str]:
    """The names of the frameworks for a kind of data."""
    known = PARTS["framework"].items()
    return [name for name, part in known if domain in getattr(part, "domains", ("image",))]


def sections() -> dict[str, type]:
    """The options of all parts, by section: dataclasses whose fields are None until given."""
    return merged(PARTS)


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
        domain: What kind of data it is for.
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
    domain: str = "image"
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


def _only(component: str) -> dict[str, dict[str, Any]]:
    return {"loss": {"components": (component,)}}


GRAPHS = "Figure 5"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("simclr", "SimCLR, all negatives alike"),
        Recipe("debiased", "SimCLR, debiased", preset={"loss": {"class_prior": 0.1}}),
        Recipe("hcl", "HCL: SimCLR, weighted by similarity", weighting="hcl",
               paper="Tables 1, 2 and 6"),
        Recipe("moco", "MoCo-v2", "moco", temperature=0.1, paper="Tables 1 and 6"),
        Recipe("mochi", "MoCHi: MoCo with mixed hard negatives", "moco", "uniform", NOTHING,
               "mochi", temperature=0.1, paper="Table 1"),
        Recipe("swav", "SwAV", "swav", temperature=0.1, paper="Table 1"),
        Recipe("imix", "i-Mix on MoCo", "moco", "uniform", "imix", temperature=0.2,
               preset={"moco": {"momentum": 0.999}}, paper="Table 1"),
        Recipe("patch", "MoCo with patch-based negatives", "moco", "uniform", NOTHING, "patch",
               temperature=0.2, preset={"moco": {"queue": 16384}}, paper="Table 1"),
        Recipe("unmix", "Un-Mix on SimCLR", "simclr", "uniform", "unmix", paper="Table 1"),
        Recipe("unremix", "UnReMix on Un-Mix", "simclr", "unremix", "unmix", paper="Table 1"),
        Recipe("unremix-simclr", "UnReMix on SimCLR", "simclr", "unremix",
               paper="Tables 2, 3 and 5"),
        Recipe("unremix-moco", "UnReMix on MoCo", "moco", "unremix", temperature=0.1,
               paper="Table 6"),
        Recipe("unremix-u", "uncertainty only", "simclr", "unremix",
               preset=_only("uncertainty"), paper="Table 2"),
        Recipe("unremix-s", "similarity only, scaled as UnReMix", "simclr", "unremix",
               preset=_only("similarity")),
        Recipe("unremix-r", "representativeness only", "simclr", "unremix",
               preset=_only("representativeness"), paper="Table 2"),
        Recipe("unremix-fixed", "equal mix", "simclr", "unremix",
               preset={"loss": {"mix": "fixed"}}, paper="Table 3"),
        Recipe("unremix-nt-xent", "gradient of NT-Xent", "simclr", "unremix",
               preset={"loss": {"gradient": "nt-xent"}}, paper="Table 5"),
        Recipe("infograph", "InfoGraph", "infograph", temperature=1.0, domain="graph",
               paper=GRAPHS),
        Recipe("infograph-hcl", "InfoGraph with HCL's hard negatives", "infograph", "hcl",
               temperature=1.0, domain="graph", paper=GRAPHS),
        Recipe("infograph-unremix", "UnReMix on InfoGraph", "infograph", "unremix",
               temperature=1.0, domain="graph", paper=GRAPHS),
        Recipe("graphcl", "GraphCL: two views of each graph", temperature=0.2, domain="graph"),
        Recipe("graphcl-hcl", "GraphCL with HCL's weights", "simclr", "hcl", temperature=0.2,
               domain="graph"),
        Recipe("graphcl-unremix", "UnReMix on GraphCL", "simclr", "unremix", temperature=0.2,
               domain="graph"),
        Recipe("quickthought", "Quick-Thought", "quickthought", temperature=1.0, domain="sentence",
               paper="Table 4"),
        Recipe("quickthought-hcl", "Quick-Thought with HCL's weights", "quickthought", "hcl",
               temperature=1.0, preset={"loss": {"class_prior": 0.0}}, domain="sentence",
               paper="Table 4"),
        Recipe("quickthought-unremix", "UnReMix on Quick-Thought", "quickthought", "unremix",
               temperature=1.0, domain="sentence", paper="Table 4"),
    )
}  # fmt: skip


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
    recipe: Recipe = _find("recipe", name, RECIPES)
    return recipe


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
    found = []
    bare = Composition(recipe.parts, {}, recipe.temperature)
    for kind, name in recipe.parts.items():
        options = {} if name == NOTHING else option_fields(PARTS[kind][name])
        if not options:
            continue
        section, usual = section_of(PARTS[kind][name]), bare.make_options(kind)
        preset = recipe.preset.get(section, {})
        for option, its in options.items():
            default = its.metadata.get("unset", written(getattr(usual, option)))
            value = written(preset[option]) if option in preset else default
            found.append(OptionValue(kind, f"--{section}.{option}", value, value != default))
    return found


@dataclass(frozen=True)
class Composition:
    """What a recipe and changes to it come to."""

    parts: dict[Kind, str]  # the name of each part; ``none`` where there is none
    options: dict[str, dict[str, Any]]  # options of each section, those of the recipe included
    temperature: float  # τ
    epochs: int = 200  # of the whole training

    @property
    def framework(self) -> Callable[..., Any]:
        """The framework, which says what it takes and serves."""
        return PARTS["framework"][self.parts["framework"]]

    @property
    def has_weights(self) -> bool:
        """Whether there are negatives to weight."""
        return self.parts["weighting"] != NOTHING

    def make_options(self, kind: Kind) -> Any:
        """The complete options of a part; a part that is its own options is made."""
        part = PARTS[kind][self.parts[kind]]
        chosen, known = self.options.get(section_of(part), {}), option_fields(part)
        make = options_type(part)
        if make is None:
            return part() if kind != "framework" else None
        made = make(**{name: value for name, value in chosen.items() if name in known})
        return made.settled(epochs=self.epochs) if hasattr(made, "settled") else made

    def make_loss(self, *, gather: bool = False) -> TwoViewLoss | None:
        """The loss, where there are negatives."""
        if not self.has_weights:
            return None
        shared = getattr(self.framework, "loss_options", ())
        given = vars(self.make_options("framework")) if shared else {}
        further = {name: given[name] for name in shared if given[name] is not None}
        loss: TwoViewLoss = self.make_options("weighting")(
            temperature=self.temperature, gather=gather, **further
        )
        return loss

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
            "options": self.make_options("framework"),
        }
        kinds: tuple[Kind, ...] = ("mixing", "negatives")
        for kind in kinds:
            available[kind] = None if self.parts[kind] == NOTHING else self.make_options(kind)
        wanted = signature(self.framework).parameters
        framework: Framework = self.framework(
            **{name: value for name, value in available.items() if name in wanted}
        )
        return framework


def compose(
    recipe: Recipe,
    *,
    changes: Mapping[Kind, str | None] | None = None,
    options: Mapping[str, Any] | None = None,
    temperature: float | None = None,
    epochs: int = 200,
) -> Composition:
    """What a recipe and changes to it come to.

    Args:
        recipe: The recipe.
        changes: Other parts; None leaves the recipe's.
        options: Options by section, as dictionaries or dataclasses; None leaves the recipe's value.
        temperature: τ; None leaves the recipe's.
        epochs: Of the whole training, on which some defaults depend.

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
        parts[kind] = name
    if parts["weighting"] == NOTHING:
        parts["weighting"] = recipe.weighting
    _check_parts(parts, given, recipe.domain)
    known_parts = [part for known in PARTS.values() for part in known.values()]
    used: dict[str, list[str]] = {section_of(part): [] for part in known_parts if section_of(part)}
    for kind, name in parts.items():
        if name != NOTHING and option_fields(PARTS[kind][name]):
            used[section_of(PARTS[kind][name])] += option_fields(PARTS[kind][name])
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
    return Composition(parts, chosen, temperature, epochs)


def _check_parts(parts: dict[Kind, str], given: Mapping[Kind, str], domain: str) -> None:
    framework, known = parts["framework"], frameworks_for(domain)
    if framework not in known:
        raise ValueError(
            f"expected a framework for {domain} data, got {framework!r}; use {' or '.join(known)}"
        )
    kinds: tuple[Kind, ...] = ("mixing", "negatives")
    for kind in kinds:
        part = PARTS[kind].get(parts[kind])
        domains = (domain,) if part is None else getattr(part, "domains", ("image",))
        if domain not in domains:
            raise ValueError(
                f"expected {' or '.join(domains)} data for {kind} {parts[kind]!r}, got {domain} "
                "data; leave it out"
            )
    idle: list[Kind] = [
        kind for kind in kinds if parts[kind] != NOTHING and not takes(framework, kind)
    ]
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
