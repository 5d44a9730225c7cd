"""SimCLR: two views through one encoder and one head, negatives from the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from unremix.core.problem import stack
from unremix.frameworks.base import Batch, Embedded
from unremix.frameworks.contrastive import Contrastive


@dataclass(frozen=True)
class SimCLROptions:
    """Options of SimCLR.

    Args:
        layout: both or one-way.
    """

    layout: Literal["both", "one-way"] | None = field(default=None, metadata={"unset": "both"})


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
    domains = ("image", "graph")

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The second views, then the first views: as they are, mixed, or both."""
        return batch.views[1], *self.anchor_images(batch, 0)

    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss of the views as they are, and of the mixed ones."""
        (z1, h1), *first = embedded
        total = z1.new_zeros(())
        if self.keeps_original:
            z0, h0 = first.pop(0)
            own = self.further((z0, h0), batch)
            if own is not None and self.loss.layout == "both":
                further = self.further((z1, h1), batch, view=1)
                assert further is not None
                own = stack(own, further)
            total = total + self.loss(z0, z1, h0, h1, ids=batch.samples, own=own)
        mixed = self.mixed(batch.views[0], batch)
        if mixed is not None:
            ((z, h),) = first
            own = self.further((z, h), batch, mixed=mixed)
            for target in mixed.targets:
                if target.weight:
                    loss = self.loss.towards(
                        z, z1, h, h1, keys=target.keys, shares=target.shares,
                        ids=batch.samples, own=own,
                    )  # fmt: skip
                    total = total + target.weight * loss
        return total
