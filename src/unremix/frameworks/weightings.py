"""The weightings of the negatives as parts of a recipe: options that make a loss."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from unremix.losses import PRESETS, HCLLoss, InfoNCELoss, UnReMixLoss


@dataclass(frozen=True)
class Uniform:
    """All negatives count alike.

    Args:
        class_prior: τ⁺ of the debiasing.
        decoupled: Whether the positive is left out of the denominator.
    """

    summary: ClassVar[str] = "all negatives alike"
    section: ClassVar[str] = "loss"

    class_prior: float = 0.0
    decoupled: bool = False

    def __call__(self, **given: Any) -> InfoNCELoss:
        """The loss; ``given`` are the options that it shares with the others."""
        return InfoNCELoss(**asdict(self), **given)


@dataclass(frozen=True)
class HCL:
    """Negatives weighted by similarity.

    Args:
        hardness: β of HCL.
        class_prior: τ⁺ of the debiasing.
        similarity_gradient: Whether gradient flows through the similarity in the weights.
        decoupled: Whether the positive is left out of the denominator.
        fidelity: Preset: sound, paper or code.
    """

    summary: ClassVar[str] = "by similarity (HCL)"
    section: ClassVar[str] = "loss"

    hardness: float = 1.0
    class_prior: float = 0.1
    similarity_gradient: bool = True
    decoupled: bool = False
    fidelity: Literal["sound", "paper", "code"] = "sound"

    def __call__(self, **given: Any) -> HCLLoss:
        """The loss; ``given`` are the options that it shares with the others."""
        return HCLLoss(**asdict(self), **given)


@dataclass(frozen=True)
class UnReMix:
    """Negatives weighted by uncertainty, similarity and representativeness.

    Args:
        components: Which scores weight the negatives: any of uncertainty, similarity,
            representativeness.
        mix: How the scores are mixed: learned, free, fixed, adversarial, or one number each.
        scaling: How scores are scaled: minmax, zscore-exp or none.
        mass: Whether weights average 1: mean or none.
        hardness: β of zscore-exp.
        posterior_temperature: t of the uncertainty's pseudo-posterior.
        gradient: What the uncertainty differentiates: pseudo-label or nt-xent.
        class_prior: τ⁺ of the debiasing.
        similarity_gradient: Whether gradient flows through the similarity in the weights.
        decoupled: Whether the positive is left out of the denominator.
        sketch: Dimensions that the last layer's input is projected to.
        fidelity: Preset: sound, paper or code.
    """

    summary: ClassVar[str] = "by uncertainty, similarity and representativeness"
    section: ClassVar[str] = "loss"

    components: tuple[str, ...] = ("uncertainty", "similarity", "representativeness")
    mix: Literal["learned", "free", "fixed", "adversarial"] | tuple[float, ...] = "learned"
    scaling: Literal["minmax", "zscore-exp", "none"] | None = None
    mass: Literal["mean", "none"] | None = None
    hardness: float | None = field(default=None, metadata={"unset": "1, of zscore-exp only"})
    posterior_temperature: float = 1.0
    gradient: Literal["pseudo-label", "nt-xent"] = "pseudo-label"
    class_prior: float | None = None
    similarity_gradient: bool | None = None
    decoupled: bool = False
    sketch: int | None = field(default=None, metadata={"unset": "none: not projected"})
    fidelity: Literal["sound", "paper", "code"] = "sound"

    def __call__(self, **given: Any) -> UnReMixLoss:
        """The loss; ``given`` are the options that it shares with the others."""
        return UnReMixLoss(**asdict(self), **given)

    def settled(self, *, epochs: int) -> UnReMix:
        """The same with the values of the preset where there are none."""
        names = ("scaling", "mass", "class_prior", "similarity_gradient")
        preset = PRESETS.get(self.fidelity)  # a name that does not exist is the loss's to refuse
        unset = [name for name in names if preset and getattr(self, name) is None]
        return replace(self, **{name: getattr(preset, name) for name in unset})
