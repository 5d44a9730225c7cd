"""The weightings of the negatives as parts of a recipe: options that make a loss."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

from unremix.frameworks.parts import described
from unremix.losses import (
    HCLLoss,
    HCLOptions,
    InfoNCELoss,
    InfoNCEOptions,
    LossOptions,
    TwoViewLoss,
    UnReMixLoss,
    UnReMixOptions,
)
from unremix.signals.false_negatives import Evidence, FalseNegatives, Rule

W = TypeVar("W", bound="RecipeWeighting")

# Decided by the framework, the run or the machine.
DECIDED_ELSEWHERE = {
    "temperature", "last_layer", "projection", "layout", "bias", "gather", "tile", "engine",
    "check",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecipeWeighting:
    """A weighting as part of a recipe; about false negatives, all have these options.

    Args:
        false_negatives: What is done about negatives that are probably false: ring, threshold, rank
            or mixture.
        evidence: How similar two samples are, for that: similarity, four-views, bank or
            shared-neighbors.
        false_negative_share: The share of negatives that are probably false.
    """

    section: ClassVar[str] = "loss"
    loss: ClassVar[type[TwoViewLoss]]
    options: ClassVar[type[LossOptions]]

    false_negatives: Rule | None = field(default=None, metadata={"unset": "none: nothing"})
    evidence: Evidence | None = field(
        default=None,
        metadata={"unset": f"{FalseNegatives.evidence}, with false_negatives only"},
    )
    false_negative_share: float | None = field(
        default=None, metadata={"unset": f"{FalseNegatives.share:g}, with false_negatives only"}
    )

    def __call__(self, **given: Any) -> Any:
        """The loss; ``given`` are options that a framework or a run decides."""
        make: Any = self.loss
        return make(**self.loss_options(), **given)

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

    def settled(self: W, *, epochs: int) -> W:
        """The same with a value for every option whose None stands for one."""
        values = vars(self.options(**self.loss_options()).settled())
        unset = [name for name, value in vars(self).items() if value is None and name in values]
        return replace(self, **{name: values[name] for name in unset})


def _as_part(name: str, loss: type[TwoViewLoss], options: type[LossOptions], summary: str) -> Any:
    """A loss as part of a recipe: those of its options that a recipe decides, for files too."""
    hints, texts = get_type_hints(options), described(options)
    shared = {its.name for its in fields(LossOptions)}
    known = {its.name for its in fields(RecipeWeighting)} | DECIDED_ELSEWHERE
    chosen = [its for its in fields(options) if its.name not in known]
    chosen.sort(key=lambda its: its.name in shared)
    typed = [
        (its.name, its.metadata.get("command_line", hints[its.name]), copy(its)) for its in chosen
    ]
    told = [f"    {its.name}: {texts[its.name].replace('``', '')}" for its in chosen]
    return make_dataclass(
        name,
        typed,
        bases=(RecipeWeighting,),
        frozen=True,
        namespace={
            "__doc__": "\n".join([(loss.__doc__ or "").partition("\n")[0], "", "Args:", *told]),
            "__module__": __name__,
            "loss": loss,
            "options": options,
            "summary": summary,
        },
    )


Uniform = _as_part("Uniform", InfoNCELoss, InfoNCEOptions, "all negatives alike")
HCL = _as_part("HCL", HCLLoss, HCLOptions, "by similarity (HCL)")
UnReMix = _as_part(
    "UnReMix", UnReMixLoss, UnReMixOptions, "by uncertainty, similarity and representativeness"
)
