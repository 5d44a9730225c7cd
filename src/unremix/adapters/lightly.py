"""lightly: weighted negatives in place of ``NTXentLoss``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from unremix.adapters import needed_for
from unremix.adapters.weighted import AdapterOptions, Weighted, weighted_loss
from unremix.core.pairs import Pairs
from unremix.core.views import Views
from unremix.losses import accepts

with needed_for("lightly"):
    from lightly.models.modules.memory_bank import MemoryBankModule


@dataclass(frozen=True)
class Options(AdapterOptions):
    """The options of :class:`UnReMixLoss`, with those of :class:`AdapterOptions`.

    Args:
        temperature: τ.
        memory_bank_size: (size, D) of the memory bank; 0 for none.
        gather_distributed: Whether the negatives, or what enters the memory bank, come from all
            processes.
        last_layer: The projection head, or its part from the last linear layer on; it is watched
            for that layer's input. Without it the uncertainty ignores the layer's input. A memory
            bank does not know the inputs: leave it out there.
    """

    temperature: float = 0.5
    memory_bank_size: int | Sequence[int] = 0
    gather_distributed: bool = False
    last_layer: nn.Module | None = field(default=None, kw_only=True)


class UnReMixLoss(Weighted, nn.Module):
    """Negatives weighted by uncertainty, similarity and representativeness.

    The negatives are the other views of the batch, as in SimCLR, or a memory bank, as in MoCo.

    Its options are those of :class:`Options`.

    Relations:
        With ``components=()`` this equals lightly's ``NTXentLoss``, value and gradient.

    Example:
        >>> loss_fn = UnReMixLoss(temperature=0.5)
        >>> loss_fn(torch.eye(4), torch.eye(4)).shape
        torch.Size([])
    """

    @accepts(Options)
    def __init__(self, options: Options) -> None:
        super().__init__()
        if options.gather_distributed and not torch.distributed.is_available():
            raise ValueError(
                "expected a torch with torch.distributed for gather_distributed=True, got one "
                "without; leave it out"
            )
        self.memory_bank = MemoryBankModule(
            size=options.memory_bank_size, gather_distributed=options.gather_distributed
        )
        has_bank = self.memory_bank.size[0] > 0
        if has_bank and options.last_layer is not None:
            raise ValueError(
                "expected last_layer=None with a memory bank, which keeps no inputs of the layer, "
                "got a layer; leave it out"
            )
        self.weighted = weighted_loss(
            options, layout="both", gather=options.gather_distributed and not has_bank
        )

    def forward(self, out0: Tensor, out1: Tensor, *, labels: Tensor | None = None) -> Tensor:
        """The loss of a batch.

        Args:
            out0: Projections of the first views, shape (N, D).
            out1: Projections of the second views, shape (N, D).
            labels: The class of each pair, -1 where it has none, shape (N,): pairs of one class are
                positives of each other. Not with a memory bank, which keeps no classes.

        Returns:
            A scalar.
        """
        if labels is not None and self.memory_bank.size[0] > 0:
            raise ValueError(
                "expected labels=None with a memory bank, which keeps no classes, got labels; "
                "leave them or the bank out"
            )
        keys, bank = self.memory_bank(normalize(out1, dim=1), update=out0.requires_grad)
        if bank is None:
            loss: Tensor = self.weighted(out0, out1, labels=labels)
            return loss
        count, size = out0.shape[0], bank.shape[1]
        pairs = Pairs.queue(
            torch.arange(count, device=out0.device),
            torch.arange(count, count + size, device=out0.device),
        )
        candidates = torch.cat([keys, bank.T.to(keys)])
        return self.weighted.against(Views(out0), Views(candidates), pairs)
