"""pytorch-metric-learning: a weighted loss in place of ``NTXentLoss``, and a miner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unremix import losses
from unremix.adapters import needed_for
from unremix.adapters.weighted import AdapterOptions, Weighted, weighted_loss, weights_of
from unremix.core.checks import check_number
from unremix.core.gather import is_distributed
from unremix.core.pairs import ContrastInput, Pairs
from unremix.core.precision import at_least_float32, full_precision
from unremix.core.views import Views
from unremix.losses import WeightingOptions, accepts

with needed_for("metric_learning"):
    from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction, NTXentLoss
    from pytorch_metric_learning.miners import BaseMiner
    from pytorch_metric_learning.reducers import BaseReducer
    from pytorch_metric_learning.regularizers import BaseRegularizer
    from pytorch_metric_learning.utils import common_functions, loss_and_miner_utils


@dataclass(frozen=True)
class Options(AdapterOptions):
    """The options of :class:`UnReMixLoss`, with those of :class:`AdapterOptions`.

    Args:
        temperature: τ.
        last_layer: The linear layer that makes the embeddings; it is watched for its input, which
            is used where the embeddings are compared with each other. Without it, and with
            ``ref_emb``, the uncertainty ignores the layer's input.
        distance: The library's distance or similarity, of which the logits are made; the cosine by
            default. The weights always use the cosine.
        reducer: The library's reducer of the losses of positive pairs; their mean by default.
        embedding_regularizer: The library's regularizer of the embeddings.
        embedding_reg_weight: Its weight.
    """

    temperature: float = 0.07
    last_layer: nn.Module | None = field(default=None, kw_only=True)
    distance: BaseDistance | None = field(default=None, kw_only=True)
    reducer: BaseReducer | None = field(default=None, kw_only=True)
    embedding_regularizer: BaseRegularizer | None = field(default=None, kw_only=True)
    embedding_reg_weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_prior and not isinstance(self.distance, CosineSimilarity | None):
            raise ValueError(
                "expected class_prior=0 with a distance other than CosineSimilarity, got "
                f"{self.class_prior}; leave it out: the debiased sum is bounded below only for "
                "cosines"
            )


class UnReMixLoss(Weighted, BaseMetricLossFunction):
    """Negative pairs weighted by uncertainty, similarity and representativeness.

    Takes what ``NTXentLoss`` takes: labels or an ``indices_tuple`` of a miner, ``ref_emb``; works
    in the library's wrappers (CrossBatchMemory, SelfSupervisedLoss, DistributedLossWrapper),
    trainers and testers.

    Its options are those of :class:`Options`.

    Relations:
        With ``components=()`` this equals the library's ``NTXentLoss``, value and gradient, up to
        a loss of 87 per pair, where that one clips and has no gradient.

    Example:
        >>> loss_fn = UnReMixLoss()
        >>> loss_fn(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """

    @accepts(Options)
    def __init__(self, options: Options) -> None:
        super().__init__(
            distance=options.distance,
            reducer=options.reducer,
            embedding_regularizer=options.embedding_regularizer,
            embedding_reg_weight=options.embedding_reg_weight,
        )
        self.weighted = weighted_loss(options, layout="both")
        self.temperature = self.weighted.temperature
        self.add_to_recordable_attributes(list_of_names=["temperature"], is_stat=False)

    def _get_name(self) -> str:
        return "UnReMixLoss"

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        """The losses of the positive pairs, for the library's reducers.

        Args:
            embeddings: Shape (N, D).
            labels: Shape (N,); not needed with an ``indices_tuple``.
            indices_tuple: Pairs or triplets of a miner; by default all pairs.
            ref_emb: What the embeddings are compared with, shape (M, D); themselves by default.
            ref_labels: Shape (M,).
        """
        common_functions.labels_or_indices_tuple_required(labels, indices_tuple)
        indices = loss_and_miner_utils.convert_to_pairs(indices_tuple, labels, ref_labels)
        anchor, positive, other_anchor, negative = indices
        # The library takes one pair of either kind for none.
        if len(anchor) == 0 or len(other_anchor) == 0 or all(len(each) <= 1 for each in indices):
            zero: dict[str, Any] = self.zero_losses()
            return zero
        among_themselves, dtype = ref_emb is embeddings, embeddings.dtype
        embeddings, ref_emb = at_least_float32(embeddings), at_least_float32(ref_emb)
        with full_precision(embeddings.device):
            # A miner may name a pair more than once: it counts as often.
            counts = embeddings.new_zeros(len(embeddings), len(ref_emb))
            once = counts.new_ones(())
            counts = counts.index_put((other_anchor, negative), once, accumulate=True)
            positives = torch.zeros_like(counts, dtype=torch.bool)
            positives[anchor, positive] = True
            pairs = Pairs.from_masks(positives & (counts == 0), counts > 0)
            if among_themselves:
                (anchors,) = self.weighted.views_of(embeddings)
                compared = ContrastInput(anchors, anchors, pairs)
            elif ref_labels is not None and _is_joint(embeddings, ref_emb):
                everyone = Views(ref_emb)
                compared = ContrastInput(everyone, everyone, _by_class(ref_labels))
            else:
                compared = ContrastInput(Views(embeddings), Views(ref_emb.to(embeddings)), pairs)
            weights, _ = weights_of(self.weighted, compared, of=pairs)
            sign = 1 if self.distance.is_inverted else -1
            logits = sign * self.distance(embeddings, ref_emb) / self.temperature
            objective = self.weighted.options.objective
            sums = objective.sum_negatives(logits, weights * counts, pairs.negatives())
            of_pairs = logits[anchor, positive][:, None]
            losses_of_pairs = objective.against_positives(
                sums[anchor],
                of_pairs,
                torch.ones_like(of_pairs),
                counts.sum(1)[anchor],
                -1 / self.temperature,
            )
            losses_of_pairs = losses.with_gradient(losses_of_pairs, compared)
        return {
            "loss": {
                "losses": losses_of_pairs.to(dtype),  # in which reducers compute
                "indices": (anchor, positive),
                "reduction_type": "pos_pair",
            }
        }

    def get_default_distance(self) -> CosineSimilarity:
        """The library's name of what is compared."""
        return CosineSimilarity()


# CrossBatchMemory and SelfSupervisedLoss know by the names of their classes which losses they can
# call: this one takes every call that NTXentLoss takes.
UnReMixLoss.__name__ = NTXentLoss.__name__


def _is_joint(embeddings: Tensor, ref_emb: Tensor) -> bool:
    """Whether these are the embeddings of all processes, with those of this one first.

    So ``DistributedLossWrapper(efficient=True)`` compares: all of them are anchors somewhere. The
    keys of a memory have no gradient.
    """
    if not is_distributed() or ref_emb.requires_grad != embeddings.requires_grad:
        return False
    count, processes = len(embeddings), torch.distributed.get_world_size()
    return len(ref_emb) == count * processes and torch.equal(ref_emb[:count], embeddings)


def _by_class(labels: Tensor) -> Pairs:
    """All against all: embeddings of other classes are negatives."""
    itself = torch.arange(len(labels), device=labels.device)[:, None]
    return Pairs(itself, torch.ones(itself.shape, device=labels.device), labels[:, None], labels)


@dataclass(frozen=True)
class MinerOptions(WeightingOptions):
    """The options of :class:`UnReMixMiner`, with those of :class:`unremix.losses.WeightingOptions`.

    Args:
        negatives_per_anchor: How many negatives are mined for each anchor.
        temperature: τ; scales the uncertainty alone.
        mix: λ, one number per component, or ``fixed``: equal.
    """

    negatives_per_anchor: int = 10
    temperature: float = field(default=0.07, kw_only=True)
    mix: losses.Mix = field(default="fixed", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("negatives_per_anchor", self.negatives_per_anchor, least=1)
        if self.mix in ("learned", "free", "adversarial"):
            raise ValueError(
                f"expected a mix that is not learned, got {self.mix!r}; a miner has no gradient: "
                "pass 'fixed', or one number per component"
            )


class UnReMixMiner(BaseMiner):
    """All positive pairs, and for each anchor the negatives of the largest weights.

    Its options are those of :class:`MinerOptions`.

    Example:
        >>> miner = UnReMixMiner(negatives_per_anchor=2)
        >>> found = miner(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> [len(each) for each in found]  # 6 positive pairs, 2 negatives for each of 6 anchors
        [6, 6, 12, 12]
    """

    @accepts(MinerOptions)
    def __init__(self, options: MinerOptions) -> None:
        super().__init__()
        self.negatives_per_anchor = int(options.negatives_per_anchor)
        self.weighted = weighted_loss(options, layout="both")

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pairs (anchor, positive) and (anchor, negative), as four tensors of indices."""
        indices = loss_and_miner_utils.get_all_pairs_indices(labels, ref_labels)
        anchor, positive, other_anchor, negative = indices
        if len(other_anchor) == 0:
            return anchor, positive, other_anchor, negative
        shape = (len(embeddings), len(ref_emb))
        negatives = torch.zeros(shape, dtype=torch.bool, device=embeddings.device)
        negatives[other_anchor, negative] = True
        views = Views(at_least_float32(embeddings))
        candidates = views if ref_emb is embeddings else Views(at_least_float32(ref_emb))
        pairs = Pairs.from_masks(torch.zeros_like(negatives), negatives)
        weights, _ = weights_of(self.weighted, ContrastInput(views, candidates, pairs))
        weights = torch.where(negatives, weights, -1.0)
        count = min(self.negatives_per_anchor, weights.shape[1])
        heaviest, where = weights.topk(count, dim=1)
        rows, columns = torch.nonzero(heaviest >= 0, as_tuple=True)
        return anchor, positive, rows, where[rows, columns]

    def get_default_distance(self) -> CosineSimilarity:
        """The library's name of what is compared."""
        return CosineSimilarity()
