"""Named compositions: framework × mixing × negatives × weighting. Adding one is one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from inspect import signature
from typing import Any, Literal

from torch import nn

from unremix.data.suggestions import did_you_mean
from unremix.frameworks.base import Framework
from unremix.frameworks.infograph import InfoGraph
from unremix.frameworks.moco import MoCo
from unremix.frameworks.negatives import MoCHi, Patches
from unremix.frameworks.quickthought import QuickThought
from unremix.frameworks.simclr import SimCLR
from unremix.frameworks.swav import SwAV
from unremix.losses import PRESETS, HCLLoss, InfoNCELoss, TwoViewLoss, UnReMixLoss
from unremix.views.mixing import IMix, UnMix


@dataclass(frozen=True)
class LossOptions:
    """Options of the loss; None leaves the recipe's own value.

    Args:
        components: Which scores weight the negatives (UnReMix): any of uncertainty, similarity,
            representativeness.
        mix: How they are mixed (UnReMix): learned, free, fixed, adversarial, or one number each.
        scaling: How scores are scaled (UnReMix): minmax, zscore-exp or none.
        mass: Whether weights average 1 (UnReMix): mean or none.
        hardness: β of HCL, or of zscore-exp.
        posterior_temperature: t of the uncertainty's pseudo-posterior (UnReMix).
        gradient: What the uncertainty differentiates (UnReMix): pseudo-label or nt-xent.
        class_prior: τ⁺ of the debiasing.
        similarity_gradient: Whether gradient flows through the similarity in the weights.
        sketch: Dimensions that the last layer's input is projected to (UnReMix).
        layout: both or one-way (SimCLR).
        fidelity: Preset: sound, paper or code.
    """

    components: tuple[str, ...] | None = None
    mix: Literal["learned", "free", "fixed", "adversarial"] | tuple[float, ...] | None = None
    scaling: Literal["minmax", "zscore-exp", "none"] | None = None
    mass: Literal["mean", "none"] | None = None
    hardness: float | None = None
    posterior_temperature: float | None = None
    gradient: Literal["pseudo-label", "nt-xent"] | None = None
    class_prior: float | None = None
    similarity_gradient: bool | None = None
    sketch: int | None = None
    layout: Literal["both", "one-way"] | None = None
    fidelity: Literal["sound", "paper", "code"] | None = None


@dataclass(frozen=True)
class MoCoOptions:
    """Options of MoCo; None leaves the recipe's own value.

    Args:
        queue: Old keys kept as negatives; 4096 by default.
        momentum: m of the key encoder; 0.99 by default.
        symmetric: Whether both views ask.
        group: Images that BatchNorm sees at a time; 32 by default, 0 for the whole batch.
    """

    queue: int | None = None
    momentum: float | None = None
    symmetric: bool | None = None
    group: int | None = None


@dataclass(frozen=True)
class SwAVOptions:
    """Options of SwAV; None leaves the recipe's own value.

    Args:
        prototypes: How many; 100 by default.
        iterations: Of Sinkhorn's algorithm; 3 by default.
        epsilon: ε of the codes; 0.05 by default.
        frozen_epochs: Epochs for which the prototypes stay as they are; 1 by default.
        queue: Earlier features that help to make the codes; 0 by default.
        queue_from_epoch: When they begin to; 15 by default.
        crops: Small crops beside the two views; 0 by default.
    """

    prototypes: int | None = None
    iterations: int | None = None
    epsilon: float | None = None
    frozen_epochs: int | None = None
    queue: int | None = None
    queue_from_epoch: int | None = None
    crops: int | None = None


@dataclass(frozen=True)
class MixOptions:
    """Options of the mixing; None leaves the recipe's own value.

    Args:
        alpha: α of Beta(α, α), from which the shares are drawn; 1 by default.
        cutmix: Probability of CutMix in place of mixup (Un-Mix); 0.5 by default.
    """

    alpha: float | None = None
    cutmix: float | None = None


@dataclass(frozen=True)
class MoCHiOptions:
    """Options of MoCHi's mixed negatives; None leaves the recipe's own value.

    Args:
        hardest: Keys of the queue that are mixed; 512 by default.
        pairs: Mixtures of two keys per query; 512 by default.
        queries: Mixtures of a key with the query; 64 by default.
        warmup_epochs: Epochs without; a twentieth of all by default.
    """

    hardest: int | None = None
    pairs: int | None = None
    queries: int | None = None
    warmup_epochs: int | None = None


@dataclass(frozen=True)
class PatchOptions:
    """Options of the patch negatives; None leaves the recipe's own value.

    Args:
        smallest: Least side of a patch in pixels; a sixteenth of the image's by default.
        largest: Largest side; a third of the image's by default.
        factor: α, multiplies the logit; 2 by default.
    """

    smallest: int | None = None
    largest: int | None = None
    factor: float | None = None


@dataclass(frozen=True)
class InfoGraphOptions:
    """Options of InfoGraph; None leaves the recipe's own value.

    Args:
        objective: jsd, by default, or info-nce.
    """

    objective: Literal["jsd", "info-nce"] | None = None


@dataclass(frozen=True)
class QuickThoughtOptions:
    """Options of Quick-Thought; None leaves the recipe's own value.

    Args:
        reach: How many sentences on either side are positives; 1 by default.
        mask_repeats: Whether sentences of the anchor's own text are left out; they are by default.
    """

    reach: int | None = None
    mask_repeats: bool | None = None


Kind = Literal["framework", "mixing", "negatives", "weighting"]


@dataclass(frozen=True)
class Part:
    """One of the things a recipe is made of.

    Args:
        make: Makes it.
        section: The section of its options.
        options: The options it takes from there.
        summary: What it is.
    """

    make: Callable[..., Any]
    section: str
    options: tuple[str, ...]
    summary: str


def _names(options: type) -> tuple[str, ...]:
    return tuple(option.name for option in fields(options))


PARTS: dict[Kind, dict[str, Part]] = {
    "framework": {
        "simclr": Part(SimCLR, "loss", ("layout",), "SimCLR: negatives from the batch"),
        "moco": Part(MoCo, "moco", _names(MoCoOptions), "MoCo: negatives from a queue"),
        "swav": Part(SwAV, "swav", _names(SwAVOptions), "SwAV: codes, no negatives"),
        "infograph": Part(
            InfoGraph, "infograph", _names(InfoGraphOptions), "InfoGraph: nodes against graphs"
        ),
        "quickthought": Part(
            QuickThought,
            "quickthought",
            _names(QuickThoughtOptions),
            "Quick-Thought: neighbouring sentences",
        ),
    },
    "mixing": {
        "imix": Part(IMix, "mixture", ("alpha",), "i-Mix: mixed views in place of the first"),
        "unmix": Part(UnMix, "mixture", _names(MixOptions), "Un-Mix: mixed views added"),
    },
    "negatives": {
        "mochi": Part(MoCHi, "mochi", _names(MoCHiOptions), "MoCHi: mixtures of hard keys"),
        "patch": Part(Patches, "patch", _names(PatchOptions), "tiled patches of the own image"),
    },
    "weighting": {
        "uniform": Part(InfoNCELoss, "loss", ("class_prior",), "all negatives alike"),
        "hcl": Part(
            HCLLoss,
            "loss",
            ("hardness", "class_prior", "similarity_gradient", "fidelity"),
            "by similarity (HCL)",
        ),
        "unremix": Part(
            UnReMixLoss,
            "loss",
            tuple(name for name in _names(LossOptions) if name != "layout"),
            "by uncertainty, similarity and representativeness",
        ),
    },
}
SECTIONS = ("loss", "moco", "swav", "mixture", "mochi", "patch", "infograph", "quickthought")
FRAMEWORKS = {
    "image": ("simclr", "moco", "swav"),
    "graph": ("simclr", "infograph"),
    "sentence": ("quickthought",),
}
NOTHING = "none"


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
        temperature: τ, unless told otherwise.
        preset: Options it sets, by section, unless told otherwise.
        domain: What kind of data it is for.
        paper: Where the paper has it; empty where it has not.
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
        """The names of its parts; a framework without negatives has no weighting."""
        return {
            "framework": self.framework,
            "mixing": self.mixing,
            "negatives": self.negatives,
            "weighting": NOTHING if self.framework == "swav" else self.weighting,
        }


def _only(component: str) -> dict[str, dict[str, Any]]:
    return {"loss": {"components": (component,)}}


GRAPHS = "the figure on graphs"
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
    raise ValueError(f"expected a {kind} among {', '.join(known)}, received {name!r}{hint}")


def find_recipe(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        ValueError: If there is none; it names the nearest.
    """
    recipe: Recipe = _find("recipe", name, RECIPES)
    return recipe


@dataclass(frozen=True)
class OptionValue:
    """An option of a recipe, as ``unremix recipes`` shows it.

    Args:
        kind: The kind of the part that takes it.
        option: Its name on the command line.
        value: Its value, written as there; in words where it depends on something else.
        changed: Whether the recipe sets it otherwise than the part does by itself.
    """

    kind: Kind
    option: str
    value: str
    changed: bool


# What parts make of an option that is not given, where their signature does not say so.
UNSET: dict[tuple[str, str], str] = {
    ("hcl", "similarity_gradient"): "true",
    ("unremix", "hardness"): "1, of zscore-exp only",
    ("unremix", "sketch"): "none: not projected",
    ("mochi", "warmup_epochs"): "a twentieth of the epochs",
    ("patch", "smallest"): "a sixteenth of the image's side",
    ("patch", "largest"): "a third of the image's side",
}


def _written(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f'"[{", ".join(map(_written, value))}]"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def options_of(recipe: Recipe) -> list[OptionValue]:
    """Every option of a recipe's parts and its value.

    Example:
        >>> [(one.option, one.value) for one in options_of(RECIPES["unremix-u"]) if one.changed]
        [('--loss.components', '"[uncertainty]"')]
        >>> [(one.option, one.value) for one in options_of(RECIPES["debiased"])]
        [('--loss.layout', 'both'), ('--loss.class_prior', '0.1')]
    """
    found = []
    for kind, name in recipe.parts.items():
        if name == NOTHING:
            continue
        part = PARTS[kind][name]
        preset = recipe.preset.get(part.section, {})
        # The layout is SimCLR's to offer, but the loss's to know.
        maker = PARTS["weighting"][recipe.weighting].make if part.section == "loss" else part.make
        known = signature(maker).parameters
        fidelity = recipe.preset.get("loss", {}).get("fidelity", "sound")
        for option in part.options:
            default = known[option].default if option in known else None
            if default is None and part.section == "loss":
                default = getattr(PRESETS[fidelity], option, None)
            usual = UNSET.get((name, option), _written(default))
            value = _written(preset[option]) if option in preset else usual
            found.append(OptionValue(kind, f"--{part.section}.{option}", value, value != usual))
    return found


@dataclass(frozen=True)
class Composition:
    """What a recipe and changes to it come to.

    Args:
        parts: The name of each part; ``none`` where there is none.
        options: Options of each section, those of the recipe included.
        temperature: τ.
    """

    parts: dict[Kind, str]
    options: dict[str, dict[str, Any]]
    temperature: float

    def _make(self, kind: Kind, *given: Any, **further: Any) -> Any:
        name = self.parts[kind]
        if name == NOTHING:
            return None
        part = PARTS[kind][name]
        chosen = self.options.get(part.section, {})
        if kind == "framework":
            chosen = {} if name == "simclr" else chosen  # its only option is the loss's
        return part.make(*given, **further, **{k: v for k, v in chosen.items()
                                               if k in part.options})  # fmt: skip

    def make_loss(self, *, gather: bool = False) -> TwoViewLoss | None:
        """The loss, where there are negatives."""
        further: dict[str, Any] = {"temperature": self.temperature, "gather": gather}
        layout = self.options.get("loss", {}).get("layout")
        if layout is not None and self.parts["framework"] == "simclr":
            further["layout"] = layout
        loss: TwoViewLoss | None = self._make("weighting", **further)
        return loss

    def make_framework(
        self, encoder: nn.Module, head: nn.Sequential, *, gather: bool = False
    ) -> Framework:
        """The framework with all its parts.

        Args:
            encoder: Views of N samples to features (N, F).
            head: Features to embeddings (N, D); not used by InfoGraph and Quick-Thought.
            gather: Whether the negatives come from all processes.
        """
        framework: Framework
        loss = self.make_loss(gather=gather)
        if loss is None:
            framework = self._make("framework", encoder, head, temperature=self.temperature)
            return framework
        if self.parts["framework"] in ("infograph", "quickthought"):
            framework = self._make("framework", encoder, loss)
            return framework
        mixing, negatives = self._make("mixing"), self._make("negatives")
        framework = self._make("framework", encoder, head, loss, mixing=mixing, negatives=negatives)
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
        options: Dataclasses of options by section; their None leaves the recipe's value.
        temperature: τ; None leaves the recipe's.
        epochs: Of the whole training; MoCHi's warm-up is a twentieth of it, as published.

    Raises:
        ValueError: For parts that do not go together, and for options that would do nothing.

    Example:
        >>> compose(RECIPES["moco"], changes={"weighting": "hcl"}).parts["weighting"]
        'hcl'
    """
    parts = recipe.parts
    for kind, name in (changes or {}).items():
        if name is None:
            continue
        if name != NOTHING or kind in ("framework", "weighting"):
            _find(kind, name, PARTS[kind])
        parts[kind] = name
    if parts["framework"] != "swav" and parts["weighting"] == NOTHING:
        parts["weighting"] = recipe.weighting
    _check_parts(parts, changes or {}, recipe.domain)
    used: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for kind, name in parts.items():
        if name != NOTHING:
            part = PARTS[kind][name]
            used[part.section] += part.options
    chosen: dict[str, dict[str, Any]] = {
        section: {k: v for k, v in recipe.preset.get(section, {}).items() if k in used[section]}
        for section in SECTIONS
    }
    if parts["negatives"] == "mochi":
        chosen["mochi"].setdefault("warmup_epochs", epochs // 20)
    for section, given in (options or {}).items():
        for name, value in asdict(given).items():
            if value is None:
                continue
            if name not in used[section]:
                takes = ", ".join(f"--{section}.{one}" for one in used[section])
                takes = takes or f"none of --{section}"
                raise ValueError(
                    f"expected options that recipe {recipe.name!r} uses ({takes}), received "
                    f"--{section}.{name}, which would do nothing; leave it out or choose another "
                    "recipe"
                )
            chosen[section][name] = value
    temperature = recipe.temperature if temperature is None else temperature
    return Composition(parts, chosen, temperature)


def _check_parts(parts: dict[Kind, str], changes: Mapping[Kind, str | None], domain: str) -> None:
    if parts["framework"] not in FRAMEWORKS[domain]:
        raise ValueError(
            f"expected a framework for {domain} data ({', '.join(FRAMEWORKS[domain])}), received "
            f"{parts['framework']!r}"
        )
    for kind in ("mixing", "negatives"):
        if domain != "image" and parts[kind] != NOTHING:
            raise ValueError(
                f"expected images for {kind} {parts[kind]!r}, received {domain} data; leave it out"
            )
    if parts["framework"] == "swav":
        idle: list[Kind] = ["mixing", "negatives"]
        idle = [kind for kind in idle if parts[kind] != NOTHING]
        if changes.get("weighting") is not None:
            idle.append("weighting")
        if idle:
            raise ValueError(
                f"expected a framework with negatives for {' and '.join(idle)}, received 'swav', "
                "which has none; use simclr or moco"
            )
        parts["weighting"] = NOTHING
    if parts["negatives"] == "mochi" and parts["framework"] != "moco":
        raise ValueError(
            "expected a framework with a queue for negatives='mochi', received "
            f"{parts['framework']!r}; use moco"
        )
