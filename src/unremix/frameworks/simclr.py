"""SimCLR: two views through one encoder and one head, negatives from the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor, nn

from unremix.core.contrast import Importance
from unremix.core.pairs import Pairs
from unremix.core.views import Views, stack
from unremix.frameworks.base import Batch, Embedded
from unremix.frameworks.contrastive import Contrastive, Negatives
from unremix.frameworks.mixing import Mixing
from unremix.losses import TwoViewLoss


@dataclass(frozen=True)
class SimCLROptions:
    """Options of SimCLR.

    Args:
        layout: both or one-way.
        negative_classes: Take negatives from the first so many classes only. For a study of how
            diverse negatives have to be: it uses labels.
        same_class: Whether samples of the anchor's class are negatives, as ever, or excluded. For a
            study of how much any choice of negatives can give: it uses labels.
    """

    layout: Literal["both", "one-way"] | None = field(default=None, metadata={"unset": "both"})
    negative_classes: int | None = field(default=None, metadata={"unset": "none: of all classes"})
    same_class: Literal["negatives", "excluded"] | None = field(
        default=None, metadata={"unset": "negatives"}
    )

    @property
    def needs_labels(self) -> bool:
        """Whether classes decide which samples are negatives."""
        return self.negative_classes is not None or self.same_class == "excluded"


class SimCLR(Contrastive):
    """Two views of a batch against each other; all other samples' views are negatives.

    Mixed views are aimed, one way, at the second views.

    Reference:
        Chen et al. 2020.
    """

    summary = "SimCLR: negatives from the batch"
    section = "loss"
    Options = SimCLROptions
    loss_options = ("layout",)

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Sequential,
        loss: TwoViewLoss,
        *,
        mixing: Mixing | None = None,
        negatives: Negatives | None = None,
        labels: bool = False,
        options: SimCLROptions | None = None,
    ) -> None:
        super().__init__(encoder, head, loss, mixing=mixing, negatives=negatives, labels=labels)
        self.options = options or SimCLROptions()
        few = self.options.negative_classes
        if few is not None and few < 1:
            raise ValueError(
                f"expected negative_classes of at least 1, got {few}; leave it out for all"
            )
        if self.options.needs_labels and (labels or mixing is not None or negatives is not None):
            raise ValueError(
                "expected negatives chosen by class without mixing, further negatives or labels as "
                "positives, got both; leave one of them out"
            )

    @property
    def needs_labels(self) -> bool:
        """Whether classes decide which samples are positives, or which are negatives."""
        return self.labels_are_positives or self.options.needs_labels

    def pairs(self, samples: Tensor) -> Pairs:
        """Both views of a batch of samples (N,), with negatives of the chosen classes only.

        Raises:
            ValueError: If the labels are not known.
        """
        classes, few = self.classes_of(samples), self.options.negative_classes
        assert classes is not None
        ids = classes if self.options.same_class == "excluded" else None
        pairs = Pairs.both_views(samples.shape[0], ids=ids, device=samples.device)
        if few is None:
            return pairs
        excluded = classes.repeat(2) >= few  # (2N,)
        return replace(pairs, excluded=excluded[None], non_negatives=None)

    def importance(self, first: Embedded, second: Embedded, samples: Tensor) -> Importance | None:
        """See :meth:`Projecting.importance`; without negatives of excluded classes."""
        if self.labels is None or not self.options.needs_labels:
            return super().importance(first, second, samples)
        pairs = self.pairs(samples)
        if not pairs.has_negatives():
            return None
        views = stack(Views(*first, samples), Views(*second, samples))
        return self.loss.importance_against(views, views, pairs)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The second views, then the first views: as they are, mixed, or both."""
        return batch.views[1], *self.anchor_images(batch, 0)

    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss of the views as they are, and of the mixed ones."""
        (z1, h1), *first = embedded
        total = z1.new_zeros(())
        if self.keeps_original:
            z0, h0 = first.pop(0)
            extra = self.further((z0, h0), batch)
            if extra is not None and self.loss.layout == "both":
                further = self.further((z1, h1), batch, view=1)
                assert further is not None
                extra = stack(extra, further)
            if not self.options.needs_labels:
                known = {
                    "ids": self.known_ids(batch.samples),
                    "labels": self.classes_of(batch.samples),
                }
                total = total + self.loss(z0, z1, h0, h1, extra=extra, **known)
            else:
                if self.loss.gathers:
                    raise ValueError(
                        "expected one process for negatives by class, which are of one batch, "
                        "got several; start the run without torchrun"
                    )
                pairs = self.pairs(batch.samples)
                views = stack(Views(z0, h0, batch.samples), Views(z1, h1, batch.samples))
                if pairs.has_negatives():  # a small batch may have no image of these classes
                    total = total + self.loss.against(views, views, pairs)
                else:
                    total = total + 0.0 * views.embeddings.sum()
        mixed = self.mixed(batch.views[0], batch)
        if mixed is not None:
            ((z, h),) = first
            extra = self.further((z, h), batch, mixed=mixed)
            for target in mixed.targets:
                if target.weight:
                    loss = self.loss.aimed(
                        z, z1, h, h1, keys=target.keys, shares=target.shares,
                        ids=self.known_ids(batch.samples), extra=extra,
                    )  # fmt: skip
                    total = total + target.weight * loss
        return total
