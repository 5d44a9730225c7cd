"""Named compositions: framework × weighting. Adding one is one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from unremix.losses.modules import HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.losses.two_views import TwoViewLoss


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
        layout: both or one-way.
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


INFO_NCE = ("class_prior", "layout")
HCL = ("hardness", "class_prior", "similarity_gradient", "layout", "fidelity")
UNREMIX = tuple(field.name for field in fields(LossOptions))


@dataclass(frozen=True)
class Recipe:
    """A named composition.

    Args:
        name: Its name.
        summary: One line.
        loss: Makes the loss.
        options: The loss options it takes.
        preset: Loss options it sets, unless told otherwise.
    """

    name: str
    summary: str
    loss: Callable[..., TwoViewLoss]
    options: tuple[str, ...]
    preset: dict[str, Any]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("simclr", "SimCLR, all negatives alike", InfoNCELoss, INFO_NCE, {}),
        Recipe("debiased", "SimCLR, debiased", InfoNCELoss, INFO_NCE, {"class_prior": 0.1}),
        Recipe("hcl", "SimCLR, negatives weighted by similarity (HCL)", HCLLoss, HCL, {}),
        Recipe(
            "unremix-simclr",
            "SimCLR, negatives weighted by uncertainty, similarity and representativeness",
            UnReMixLoss,
            UNREMIX,
            {},
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        ValueError: If there is none; it names the nearest.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = get_close_matches(name, RECIPES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"expected a recipe among {', '.join(RECIPES)}, received {name!r}{hint}")


def make_loss(
    recipe: Recipe, options: LossOptions, *, temperature: float, gather: bool = False
) -> TwoViewLoss:
    """The loss of a recipe.

    Args:
        recipe: Which.
        options: Overrides; one that the recipe has no use for is an error.
        temperature: τ.
        gather: Whether the negatives come from all processes.

    Raises:
        ValueError: For an option that would do nothing.
    """
    given = {name: value for name, value in asdict(options).items() if value is not None}
    idle = [name for name in given if name not in recipe.options]
    if idle:
        raise ValueError(
            f"expected loss options that recipe {recipe.name!r} uses "
            f"({', '.join(recipe.options)}), received {', '.join(idle)}; leave them out or choose "
            "another recipe"
        )
    return recipe.loss(temperature=temperature, gather=gather, **{**recipe.preset, **given})
