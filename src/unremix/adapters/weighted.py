"""What the losses of all adapters share: the options of the loss, and the mix."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from unremix import losses
from unremix.core.pairs import Layout
from unremix.losses import FalseNegatives, Rule


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(losses.WeightingOptions):
    """The options that the losses of all adapters share, with :class:`WeightingOptions`.

    Args:
        class_prior: τ⁺ of the debiasing: the share of negatives that are truly positives.
        decoupled: Whether the positive is left out of the denominator.
        false_negatives: What is done about negatives that are probably false: a rule (``ring``,
            ``rank``, ``mixture``) or :class:`unremix.FalseNegatives` on evidence that needs no ids.
    """

    class_prior: float = 0.0
    decoupled: bool = False
    false_negatives: FalseNegatives | Rule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self.false_negatives
        rule = FalseNegatives(rule) if isinstance(rule, str) else rule
        if rule is not None and (rule.needs_ids or rule.needs_two_views):
            raise ValueError(
                "expected false_negatives that need the embeddings alone, as adapters have no ids, "
                f"got rule {rule.rule!r} on {rule.evidence!r}; use 'ring', 'rank' or 'mixture' on "
                "'similarity', or unremix.UnReMixLoss"
            )


def weighted_loss(
    options: losses.WeightingOptions,
    *,
    layout: Layout,
    gather: losses.Gather = False,
    **otherwise: Any,
) -> losses.UnReMixLoss:
    """The loss that an adapter calls: :class:`unremix.UnReMixLoss` with options of its user.

    Args:
        options: Those of the adapter; the loss takes all that it has under the same name.
        layout: As the loss takes it, and so ``gather``.
        gather: Whether the negatives come from all processes.
        otherwise: Options of the loss that the adapter has under another name.

    Example:
        >>> weighted_loss(AdapterOptions(components=["similarity"]), layout="both").mix
        {'similarity': 1.0}
    """
    known = {its.name for its in fields(losses.UnReMixOptions)}
    chosen = {its.name: getattr(options, its.name) for its in fields(options) if its.name in known}
    return losses.UnReMixLoss(layout=layout, gather=gather, **(chosen | otherwise))


class Weighted:
    """What an adapter's loss offers besides the call of its library."""

    weighted: losses.UnReMixLoss

    @property
    def mix(self) -> dict[str, float]:
        """The share λ of each component."""
        return self.weighted.mix

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """The mix for an optimizer: a learning rate of its own, no decay."""
        return self.weighted.param_groups(lr)
