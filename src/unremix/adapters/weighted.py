"""What the losses of all adapters share: the options of the weights, and the mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from torch import Tensor, nn

from unremix import losses
from unremix.core.scores import Component, Score
from unremix.core.traced import Found
from unremix.core.two_views import Layout
from unremix.core.views import Views
from unremix.core.weights import Mass


class WeightingOptions(TypedDict, total=False):
    """How negatives are weighted; the options of :class:`unremix.UnReMixLoss` of the same names.

    Args:
        components: What is mixed; by default uncertainty, similarity and representativeness.
        mix: λ; ``learned`` by default.
        scaling: How scores become weights.
        mass: The sum of the weights.
        hardness: Sharpness of ``zscore-exp``.
        posterior_temperature: t of the pseudo-posterior.
        similarity_gradient: Whether gradient flows to the embeddings through the similarity.
        fidelity: The preset of the options that are not given.
    """

    components: Sequence[str | Score | Component]
    mix: losses.Mix
    scaling: losses.ScalingName | None
    mass: Mass | None
    hardness: float | None
    posterior_temperature: float
    similarity_gradient: bool | None
    fidelity: losses.Fidelity


def weighted_loss(
    options: WeightingOptions,
    *,
    layout: Layout,
    temperature: float = 0.5,
    gather: bool = False,
    last_layer: nn.Module | tuple[nn.Module, nn.Module] | None = None,
    projection: tuple[Tensor, Tensor] | None = None,
) -> losses.UnReMixLoss:
    """The loss that an adapter calls: :class:`unremix.UnReMixLoss` with options of its user.

    Raises:
        TypeError: For an option that adapters do not have.

    Example:
        >>> weighted_loss({"components": ["similarity"]}, layout="both").mix
        {'similarity': 1.0}
    """
    known = WeightingOptions.__optional_keys__
    if unknown := sorted(options.keys() - known):
        raise TypeError(
            f"expected options among {', '.join(sorted(known))}, got {', '.join(unknown)}; "
            "leave out what is not among them"
        )
    return losses.UnReMixLoss(
        layout=layout,
        temperature=temperature,
        gather=gather,
        last_layer=last_layer,
        projection=projection,
        class_prior=0.0,
        **options,
    )


def with_inputs(embeddings: Tensor, found: Found) -> Views:
    """Embeddings (N, D) with all that is known of their layer, alike on every process."""
    outputs = embeddings.detach() if found.outputs is None else found.outputs
    return Views(embeddings, found.inputs, outputs=outputs)


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
