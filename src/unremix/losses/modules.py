"""The losses as modules: two views' embeddings in, a scalar out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor, nn

from unremix.losses.blockwise import Tile
from unremix.losses.options import (
    GRADIENTS,
    MASSES,
    MIXES,
    PRESETS,
    SCALINGS,
    Fidelity,
    Layout,
    Mix,
    ScalingName,
    choose,
    number,
)
from unremix.losses.two_views import Importance, TwoViewLoss
from unremix.scores import COMPONENTS, Component, Gradient, Score
from unremix.watch import LastLayer
from unremix.weights import Mass, Weighting, name_of
from unremix.weights import hardness as hardness_weighting

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InfoNCELoss(TwoViewLoss):
    """Plain InfoNCE (NT-Xent): every negative counts alike.

    L_i = -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_j e^{s_ij/τ}) )

    Args:
        temperature: τ.
        layout: ``both`` (SimCLR) or ``one-way``.
        class_prior: τ⁺; above 0 this is the debiased contrastive loss of Chuang et al. 2020.
        gather: Whether the negatives come from all processes.
        tile: Rows per block: ``auto``, a number, or None for all at once.

    Relations:
        Equals lightly's ``NTXentLoss`` and, with layout ``both``, SimCLR's NT-Xent.

    Example:
        >>> loss_fn = InfoNCELoss(temperature=0.5)
        >>> loss_fn(torch.eye(4), torch.eye(4))
        tensor(0.5944)

    Reference:
        Chen et al. 2020 (SimCLR), Eq. 1.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.5,
        layout: Layout = "both",
        class_prior: float = 0.0,
        gather: bool = False,
        tile: Tile = "auto",
    ) -> None:
        super().__init__(
            temperature=temperature,
            layout=layout,
            class_prior=class_prior,
            gather=gather,
            tile=tile,
        )


class HCLLoss(TwoViewLoss):
    """Hard negatives by similarity: w ∝ e^{β s/τ}, of mean 1, with debiasing.

    Args:
        temperature: τ.
        hardness: β; 0 leaves all weights 1.
        class_prior: τ⁺ of the debiasing.
        layout: ``both`` or ``one-way``.
        similarity_gradient: Whether gradient flows through the weights; by default it does, as
            published.
        gather: Whether the negatives come from all processes.
        tile: Rows per block: ``auto``, a number, or None for all at once.
        fidelity: ``paper`` puts β s, not β s/τ, in the exponent.

    Relations:
        With ``hardness=0`` and ``class_prior=0`` this is :class:`InfoNCELoss`.

    Example:
        >>> loss_fn = HCLLoss(temperature=0.5, hardness=1.0, class_prior=0.1)
        >>> loss_fn(torch.eye(4), torch.eye(4))
        tensor(0.2115)

    Reference:
        Robinson et al. 2021, Eq. 4.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.5,
        hardness: float = 1.0,
        class_prior: float = 0.1,
        layout: Layout | None = None,
        similarity_gradient: bool | None = None,
        gather: bool = False,
        tile: Tile = "auto",
        fidelity: Fidelity = "sound",
    ) -> None:
        choose("fidelity", fidelity, tuple(PRESETS))
        super().__init__(
            temperature=temperature,
            layout="both" if layout is None else layout,
            class_prior=class_prior,
            gather=gather,
            tile=tile,
        )
        self.hardness = number("hardness", hardness, least=0)
        self.fidelity = fidelity
        in_logits = PRESETS[fidelity].hcl_exponent == "logit"
        self.weighting = hardness_weighting(
            self.hardness / self.temperature if in_logits else self.hardness,
            similarity_gradient=similarity_gradient is not False,
        )


class UnReMixLoss(TwoViewLoss):
    """Negatives weighted by uncertainty, similarity and representativeness.

    L_i = -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_j w_ij e^{s_ij/τ}) ),
    w_ij = λ_u U_ij + λ_s S_ij + λ_r R_ij

    Options that are None take the value of the ``fidelity`` preset (docs/fidelity.md).

    Args:
        temperature: τ.
        last_layer: The linear layer that makes the embeddings; it is watched for its input h, and
            not registered as a submodule. Without it, and without h0 and h1 in the call, the
            uncertainty leaves h out.
        components: Any of ``uncertainty``, ``similarity``, ``representativeness``, or functions
            ``score(rows, context) -> (B, M)``.
        mix: λ: ``learned`` (a softmax of parameters), ``free`` (non-negative parameters), ``fixed``
            (equal), ``adversarial`` (learned to make the loss hard), or one number per component.
        scaling: ``minmax``, ``zscore-exp`` or ``none``.
        mass: ``mean`` (average weight 1) or ``none``.
        hardness: Sharpness of ``zscore-exp``, 1 by default; only with that scaling.
        posterior_temperature: t of the pseudo-posterior.
        gradient: What the uncertainty differentiates: ``pseudo-label`` or ``nt-xent``.
        layout: ``both`` or ``one-way``.
        class_prior: τ⁺ of HCL's debiasing.
        bias: Whether the layer behind h0 and h1 has a bias; a watched layer says so itself.
        sketch: Project h to so many dimensions; see :func:`unremix.scores.sketch`.
        similarity_gradient: Whether gradient flows to the embeddings through the similarity.
        gather: Whether the negatives come from all processes.
        tile: Rows per block: ``auto``, a number, or None for all at once.
        fidelity: ``sound``, ``paper`` (as printed) or ``code`` (as the baselines' public code).

    Raises:
        ValueError: For options that do not exist or contradict each other.

    Relations:
        With ``components=()`` this is :class:`InfoNCELoss`.

    Example:
        >>> head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        >>> loss_fn = UnReMixLoss(temperature=0.5, last_layer=head[-1])
        >>> loss = loss_fn(head(torch.randn(32, 16)), head(torch.randn(32, 16)))
        >>> loss.backward()
        >>> sorted(loss_fn.mix)
        ['representativeness', 'similarity', 'uncertainty']

    Reference:
        Tabassum et al. 2022, Eq. 1 to 5 and Algorithm 1.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.5,
        last_layer: nn.Linear | None = None,
        components: Sequence[str | Score | Component] = tuple(COMPONENTS),
        mix: Mix = "learned",
        scaling: ScalingName | None = None,
        mass: Mass | None = None,
        hardness: float | None = None,
        posterior_temperature: float = 1.0,
        gradient: Gradient = "pseudo-label",
        layout: Layout | None = None,
        class_prior: float | None = None,
        bias: bool = True,
        sketch: int | None = None,
        similarity_gradient: bool | None = None,
        gather: bool = False,
        tile: Tile = "auto",
        fidelity: Fidelity = "sound",
    ) -> None:
        preset = PRESETS[choose("fidelity", fidelity, tuple(PRESETS))]
        super().__init__(
            temperature=temperature,
            layout=preset.layout if layout is None else layout,
            class_prior=preset.class_prior if class_prior is None else class_prior,
            gather=gather,
            tile=tile,
        )
        scaling = choose("scaling", preset.scaling if scaling is None else scaling, SCALINGS)
        if hardness is not None and scaling != "zscore-exp":
            raise ValueError(
                f"expected hardness only with scaling='zscore-exp', received hardness={hardness} "
                f"with scaling={scaling!r}; leave it out or change the scaling"
            )
        if isinstance(components, str):
            raise ValueError(
                f"expected components to be a sequence of names, received {components!r}; "
                f"write ({components!r},)"
            )
        for component in components:
            if isinstance(component, str):
                choose("each of components", component, tuple(COMPONENTS))
            elif not callable(component) and not isinstance(component, Component):
                raise ValueError(
                    "expected components to be names or functions, received "
                    f"{type(component).__name__}"
                )
        names = [name_of(component) for component in components]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each component once, received {', '.join(names)}")
        sharpness = None
        if scaling == "zscore-exp":
            sharpness = number("hardness", 1.0 if hardness is None else hardness, least=0)
        gradient_through = preset.similarity_gradient
        self.weighting = Weighting(
            components=tuple(components),
            scaling="zscore" if scaling == "zscore-exp" else scaling,
            sharpness=sharpness,
            mass=choose("mass", preset.mass if mass is None else mass, MASSES),
            similarity_gradient=gradient_through
            if similarity_gradient is None
            else similarity_gradient,
        )
        self.posterior_temperature = number("posterior_temperature", posterior_temperature, above=0)
        self.gradient = choose("gradient", gradient, GRADIENTS)
        if sketch is not None and (type(sketch) is not int or sketch < 1):
            raise ValueError(
                f"expected sketch to be None or a number of dimensions, received {sketch!r}"
            )
        self.sketch = sketch
        self.bias = bias
        self.last_layer = None if last_layer is None else LastLayer(last_layer)
        if self.last_layer is not None:
            self.bias = self.last_layer.bias
        self.component_names = tuple(names)
        self._set_mix(mix, len(names))

    def _set_mix(self, mix: Mix, count: int) -> None:
        if isinstance(mix, str):
            self.mix_kind: str = choose("mix", mix, MIXES)
        else:
            self.mix_kind = "given"
            shares = [number("each number of mix", share, least=0) for share in mix]
            if len(shares) != count or (count and sum(shares) == 0):
                raise ValueError(
                    f"expected mix to be one of {', '.join(MIXES)} or {count} numbers, not all 0, "
                    f"one per component, received {tuple(mix)!r}"
                )
        self.mix_parameters: nn.Parameter | None = None
        self.mix_shares: Tensor
        if self.mix_kind == "given":
            self.register_buffer("mix_shares", torch.tensor(shares), persistent=False)
        elif self.mix_kind == "fixed":
            equal = torch.full((count,), 1 / max(count, 1))
            self.register_buffer("mix_shares", equal, persistent=False)
        elif self.mix_kind == "free":
            if self.weighting.mass == "none":
                warnings.warn(
                    "mix='free' with mass='none' lets the loss fall by shrinking all weights to 0; "
                    "use mass='mean' or mix='learned'",
                    stacklevel=4,
                )
            # softplus of this is 1/count: the same start as the other mixes.
            start = torch.full((count,), 1 / max(count, 1)).expm1().log()
            self.mix_parameters = nn.Parameter(start)
        else:
            self.mix_parameters = nn.Parameter(torch.zeros(count))

    def lambdas(self) -> Tensor:
        """λ, one number per component, shape (K,), with gradient where it is learned."""
        if self.mix_parameters is None:
            return self.mix_shares
        if self.mix_kind == "free":
            return nn.functional.softplus(self.mix_parameters)
        learned = self.mix_parameters.softmax(0)
        if self.mix_kind == "adversarial":
            return 2 * learned.detach() - learned  # the same value, the gradient reversed
        return learned

    @property
    def mix(self) -> dict[str, float]:
        """The share λ of each component."""
        return dict(zip(self.component_names, self.lambdas().tolist(), strict=True))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        shares = ", ".join(f"{name}={share:.3f}" for name, share in self.mix.items())
        return f"temperature={self.temperature:g}, layout={self.layout!r}, mix=({shares})"


class Options(TypedDict, total=False):
    """The options of :class:`UnReMixLoss` that matter for :func:`importance`."""

    temperature: float
    components: Sequence[str | Score | Component]
    mix: Mix
    scaling: ScalingName | None
    mass: Mass | None
    hardness: float | None
    posterior_temperature: float
    gradient: Gradient
    layout: Layout | None
    class_prior: float | None
    bias: bool
    sketch: int | None
    similarity_gradient: bool | None
    gather: bool
    tile: Tile
    fidelity: Fidelity


def importance(
    z0: Tensor,
    z1: Tensor,
    h0: Tensor | None = None,
    h1: Tensor | None = None,
    **options: Unpack[Options],
) -> Importance:
    """Scores and weights of every negative of a batch, for analysis.

    For the learned mix of a loss at hand, call its own ``importance`` method.

    Args:
        z0: Embeddings of the first views, shape (N, D).
        z1: Embeddings of the second views, shape (N, D).
        h0: Inputs of the last layer for the first views, shape (N, H).
        h1: Likewise for the second views.
        options: Those of :class:`UnReMixLoss`; a learned mix is at its start, equal shares.

    Returns:
        Scores, weights and masks, each (A, C).

    Example:
        >>> found = importance(torch.eye(3), torch.eye(3), layout="one-way")
        >>> found.negatives
        tensor([[False,  True,  True],
                [ True, False,  True],
                [ True,  True, False]])
        >>> found.weights.sum(1).round(decimals=3)  # two negatives each, of average weight 1
        tensor([2., 2., 2.])
    """
    return UnReMixLoss(**options).importance(z0, z1, h0, h1)
