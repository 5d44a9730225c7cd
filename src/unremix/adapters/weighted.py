"""What the losses of all adapters share: the options of the weights, and the mix."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from unremix import losses
from unremix.core.last_layer import LayerInputs
from unremix.core.pairs import Layout
from unremix.core.views import Views


def weighted_loss(
    options: losses.WeightingOptions,
    *,
    layout: Layout,
    temperature: float = 0.5,
    gather: bool = False,
    last_layer: nn.Module | tuple[nn.Module, nn.Module] | None = None,
    projection: tuple[Tensor, Tensor] | None = None,
) -> losses.UnReMixLoss:
    """The loss that an adapter calls: :class:`unremix.UnReMixLoss` with options of its user.

    Example:
        >>> options = losses.WeightingOptions(components=["similarity"])
        >>> weighted_loss(options, layout="both").mix
        {'similarity': 1.0}
    """
    chosen: dict[str, Any] = {
        its.name: getattr(options, its.name) for its in fields(losses.WeightingOptions)
    }
    return losses.UnReMixLoss(
        layout=layout,
        temperature=temperature,
        gather=gather,
        last_layer=last_layer,
        projection=projection,
        class_prior=0.0,
        **chosen,
    )


def with_inputs(embeddings: Tensor, known: LayerInputs) -> Views:
    """Embeddings (N, D) with all that is known of their layer, alike on every process."""
    outputs = embeddings.detach() if known.outputs is None else known.outputs
    return Views(embeddings, known.inputs, outputs=outputs)


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
