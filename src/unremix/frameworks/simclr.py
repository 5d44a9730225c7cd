"""SimCLR: two views through one encoder and one head, negatives from the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unremix.losses.two_views import TwoViewLoss


class SimCLR(nn.Module):
    """An encoder, a projection head and a loss on the embeddings of two views.

    The head's last layer is linear, so its input h is at hand for the uncertainty: no hook needed.

    Args:
        encoder: Images (N, C, S, S) to features (N, F).
        head: Features to embeddings (N, D); its last module is ``nn.Linear``.
        loss: Of two views' embeddings.
    """

    def __init__(self, encoder: nn.Module, head: nn.Sequential, loss: TwoViewLoss) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.loss = loss
        last = head[-1]
        if not isinstance(last, nn.Linear):
            raise ValueError(
                f"expected the head's last module to be torch.nn.Linear, received "
                f"{type(last).__name__}"
            )
        loss.bias = last.bias is not None

    @property
    def dtype(self) -> torch.dtype:
        """What the images must be converted to."""
        dtype: torch.dtype = next(self.encoder.parameters()).dtype
        return dtype

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings z, shape (N, D), and the last layer's input h, shape (N, H)."""
        h = self.head[:-1](self.encoder(images))
        return self.head[-1](h), h

    def forward(self, view0: Tensor, view1: Tensor) -> Tensor:
        """The loss of a batch; each view is normalised by its own batch statistics, as in HCL."""
        (z0, h0), (z1, h1) = self.embed(view0), self.embed(view1)
        loss: Tensor = self.loss(z0, z1, h0, h1)
        return loss
