"""What the losses of all adapters share: the options of the loss, the mix, and the weights alone.

Libraries that do the rest themselves take the weighted negatives of each anchor as tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from unremix import losses
from unremix.core.contrast import make_problem
from unremix.core.engines import eager
from unremix.core.objectives import InfoNCE
from unremix.core.pairs import ContrastInput, Layout, Pairs
from unremix.core.precision import full_precision
from unremix.core.problem import Logits
from unremix.core.weights import mix_or_equal
from unremix.core.weights import weights_of as weights_of_block
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
        rule = FalseNegatives.of(self.false_negatives)
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


def weights_of(
    loss: losses.UnReMixLoss,
    compared: ContrastInput,
    *,
    of: Pairs | None = None,
    logits: Logits = "cosine",
) -> tuple[Tensor, Tensor]:
    """The weights w of all negatives, 0 elsewhere, and all logits l, both (N, M).

    All at once: memory grows with N M, and autograd differentiates it.

    Args:
        loss: Says how negatives are weighted.
        compared: Anchors, candidates and pairs, as :meth:`unremix.losses.TwoViewLoss.compare`
            makes them.
        of: The pairs of the first N anchors, where only their weights are wanted. Others take part
            as classes of the candidates.
        logits: As in :meth:`unremix.losses.TwoViewLoss.against`.
    """
    options = replace(loss.options, logits=logits)
    with full_precision(compared.anchors.embeddings.device):
        compared = loss.settle(compared, update=loss.training)
        learned, temperature = loss.learned()
        problem, (anchors, candidates) = make_problem(compared, options, temperature, eager.ENGINE)
        if of is not None:
            wanted = slice(of.num_anchors)
            problem, anchors = replace(problem[wanted], pairs=of), anchors[wanted]
        products, block = problem.compare(anchors, candidates)
        mix = mix_or_equal(learned, options.weighting, products)
        weights = weights_of_block(block, mix, options.weighting, temperature)
        return weights, products / temperature


def weighted_negatives(
    loss: losses.UnReMixLoss, side: ContrastInput, *, logits: Logits = "cosine"
) -> tuple[Tensor, Tensor]:
    """log Σ_j w_ij e^{l_ij} over the negatives of each anchor, shape (N,), and l, shape (N, M).

    Args:
        loss: Says how negatives are weighted.
        side: N views of this process, M candidates, and which of them are negatives.
        logits: As in :meth:`unremix.losses.TwoViewLoss.against`.
    """
    compared = loss.compare(side.anchors, side.candidates, side.pairs)
    weights, products = weights_of(loss, compared, logits=logits)
    return InfoNCE().sum_negatives(products, weights, side.pairs.negatives()), products
