"""The weightings of the negatives as parts of a recipe: options that make a loss."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from unremix.losses import PRESETS, HCLLoss, InfoNCELoss, UnReMixLoss
from unremix.signals.false_negatives import FalseNegatives


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """Options about negatives that are probably false, which all weightings share.

    Args:
        false_negatives: What is done about negatives that are probably false: ring, threshold, rank
            or mixture.
        evidence: How similar two samples are, for that: similarity, four-views, bank or
            shared-neighbors.
        false_negative_share: The share of negatives that are probably false.
    """

    section: ClassVar[str] = "loss"
    loss: ClassVar[type[InfoNCELoss] | type[HCLLoss] | type[UnReMixLoss]]

    false_negatives: Literal["ring", "threshold", "rank", "mixture"] | None = field(
        default=None, metadata={"unset": "none: nothing"}
    )
    evidence: Literal["similarity", "four-views", "bank", "shared-neighbors"] | None = field(
        default=None, metadata={"unset": "similarity, with false_negatives only"}
    )
    false_negative_share: float | None = field(
        default=None, metadata={"unset": "0.1, with false_negatives only"}
    )

    def __call__(self, **given: Any) -> InfoNCELoss | HCLLoss | UnReMixLoss:
        """The loss; ``given`` are the options that all losses share."""
        return self.loss(**self.loss_options(), **given)

    def loss_options(self) -> dict[str, Any]:
        """All options as the losses take them: what concerns false negatives is one.

        Raises:
            ValueError: For evidence or a share without a rule that would use it.

        Example:
            >>> made = Uniform(false_negatives="ring", false_negative_share=0.2).loss_options()
            >>> made["false_negatives"].rule, made["false_negatives"].share
            ('ring', 0.2)
        """
        rest = asdict(self)
        rule, evidence = rest.pop("false_negatives"), rest.pop("evidence")
        given = {"evidence": evidence, "share": rest.pop("false_negative_share")}
        given = {name: value for name, value in given.items() if value is not None}
        if rule is None and given:
            raise ValueError(
                f"expected false_negatives with {' and '.join(given)}, got none, so that it would "
                "do nothing; add false_negatives, such as ring"
            )
        return {**rest, "false_negatives": None if rule is None else FalseNegatives(rule, **given)}


@dataclass(frozen=True)
class Uniform(Filtered):
    """All negatives count alike.

    Args:
        class_prior: τ⁺ of the debiasing.
        decoupled: Whether the positive is left out of the denominator.
    """

    summary: ClassVar[str] = "all negatives alike"
    loss = InfoNCELoss

    class_prior: float = 0.0
    decoupled: bool = False


@dataclass(frozen=True)
class HCL(Filtered):
    """Negatives weighted by similarity.

    Args:
        hardness: β of HCL.
        class_prior: τ⁺ of the debiasing.
        similarity_gradient: Whether gradient flows through the similarity in the weights.
        decoupled: Whether the positive is left out of the denominator.
        fidelity: Preset: sound, paper or code.
    """

    summary: ClassVar[str] = "by similarity (HCL)"
    loss = HCLLoss

    hardness: float = 1.0
    class_prior: float = 0.1
    similarity_gradient: bool = True
    decoupled: bool = False
    fidelity: Literal["sound", "paper", "code"] = "sound"


@dataclass(frozen=True)
class UnReMix(Filtered):
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
    loss = UnReMixLoss

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

    def settled(self, *, epochs: int) -> UnReMix:
        """The same with the values of the preset where there are none."""
        names = ("scaling", "mass", "class_prior", "similarity_gradient")
        preset = PRESETS.get(self.fidelity)  # a name that does not exist is the loss's to refuse
        unset = [name for name in names if preset and getattr(self, name) is None]
        return replace(self, **{name: getattr(preset, name) for name in unset})
