"""SimCLR: two views through one encoder and one head, negatives from the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from unremix.console.values import Checked, bounded
from unremix.core.contrast import Importance
from unremix.core.pairs import Pairs
from unremix.core.views import Views, stack
from unremix.frameworks.base import Batch, Embedded
from unremix.frameworks.contrastive import Contrastive


@dataclass(frozen=True)
class SimCLROptions(Checked):
    """Options of SimCLR.

    Args:
        layout: both or one-way.
        negative_classes: Take negatives from the first so many classes only. For a study of how
            diverse negatives have to be: it uses labels.
        same_class: Whether samples of the anchor's class are negatives, as ever, or excluded. For a
            study of how much any choice of negatives can give: it uses labels.
    """

    layout: Literal["both", "one-way"] | None = bounded(unset="both")
    negative_classes: int | None = bounded(least=1, unset="none: of all classes")
    same_class: Literal["negatives", "excluded"] | None = bounded(unset="negatives")

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

    options: SimCLROptions

    def set_up(self) -> None:
        """See :meth:`Contrastive.set_up`."""
        others = self.labels_are_positives, self.mixing, self.negatives
        if self.options.needs_labels and any(others):
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
        return batch.views[1], *(images for images, _ in self.asked(batch, 0))

    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss of the views as they are, and of the mixed ones."""
        (z1, h1), *first = embedded
        if self.options.needs_labels:
            return self._by_class(Views(*first[0], batch.samples), Views(z1, h1, batch.samples))
        ids, total = batch.samples if self.loss.takes_ids else None, z1.new_zeros(())
        if self.keeps_original:
            z0, h0 = first.pop(0)
            extra = self.further((z0, h0), batch)
            if extra is not None and self.loss.layout == "both":
                further = self.further((z1, h1), batch, view=1)
                assert further is not None
                extra = stack(extra, further)
            labels = self.classes_of(batch.samples)
            total = total + self.loss(z0, z1, h0, h1, ids=ids, labels=labels, extra=extra)
        if (mixed := self.mixed(batch.views[0], batch)) is not None:
            ((z, h),) = first
            extra = self.further((z, h), batch, mixed=mixed)
            for target in mixed.targets:
                if target.weight:
                    aims = {"keys": target.keys, "shares": target.shares}
                    loss = self.loss.aimed(z, z1, h, h1, **aims, ids=ids, extra=extra)
                    total = total + target.weight * loss
        return total

    def _by_class(self, first: Views, second: Views) -> Tensor:
        """The loss against negatives of the chosen classes; 0 where a small batch has none."""
        if self.loss.gathers:
            raise ValueError(
                "expected one process for negatives by class, which are of one batch, got several; "
                "start the run without torchrun"
            )
        assert first.ids is not None
        views, pairs = stack(first, second), self.pairs(first.ids)
        if not pairs.has_negatives():
            return self.loss.nothing(views.embeddings)
        return self.loss.against(views, views, pairs)
