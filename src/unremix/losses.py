"""The losses as modules: two views' embeddings in, a scalar out. Thin layers over the core."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor, nn

from unremix.core.checks import (
    check_call,
    check_choice,
    check_count,
    check_finite,
    check_labels,
    check_number,
    check_temperature,
    check_tensors,
    check_two_views,
    check_views,
    checks_on,
)
from unremix.core.contrast import Importance, contrast, contrast_both_ways, importance_of
from unremix.core.gather import (
    JointBatch,
    find_joint_batch,
    gather_rows,
    gather_views,
    is_distributed,
    mean_gradient,
    withdraw,
)
from unremix.core.last_layer import Watched, watch
from unremix.core.last_layer.sketch import sketch
from unremix.core.objectives import InfoNCE, JensenShannon, ObjectiveName
from unremix.core.pairs import ContrastInput, Layout, Pairs, arrange, with_labels
from unremix.core.precision import at_least_float32, full_precision
from unremix.core.problem import Computation, Logits, Options
from unremix.core.scores import PAPER_COMPONENTS, Component, Gradient, Score
from unremix.core.views import ExtraNegatives, Views
from unremix.core.weights import Mass, Weighting, hard_negatives, name_of
from unremix.signals.false_negatives import FalseNegatives as FalseNegatives  # for adapters
from unremix.signals.false_negatives import FindsFalseNegatives
from unremix.signals.false_negatives import Rule as Rule

Fidelity = Literal["sound", "paper", "code"]
MixName = Literal["learned", "free", "fixed", "adversarial"]
Mix = MixName | Sequence[float]
ScalingName = Literal["minmax", "zscore-exp", "none"]
Gather = bool | Literal["equal"]
V = TypeVar("V", Views, ExtraNegatives)
P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="LossOptions")
W = TypeVar("W", bound="WeightingOptions")

FORGOTTEN_AFTER = 100  # calls in which the mix of a training moves
WORTH_SHARING = 64  # pairs, from which on the directions of a symmetric loss share what they can
LARGEST_LOGIT_SCALE = 100.0  # 1/τ of a learned temperature, as in CLIP


@dataclass(frozen=True)
class Preset:
    """The values of options that are not given; docs/fidelity.md explains each."""

    layout: Layout
    scaling: ScalingName
    mass: Mass
    similarity_gradient: bool
    class_prior: float
    hcl_exponent: Literal["cosine", "logit"]


PRESETS: dict[str, Preset] = {
    "sound": Preset("both", "minmax", "mean", False, 0.0, "logit"),
    "paper": Preset("one-way", "none", "none", False, 0.0, "cosine"),
    "code": Preset("both", "none", "mean", True, 0.1, "logit"),
}


@dataclass(frozen=True, kw_only=True)
class LossOptions(Computation):
    """The options that all losses share, with those of :class:`unremix.core.problem.Computation`.

    Args:
        temperature: τ.
        decoupled: Whether the positive is left out of the denominator.
        learnable_temperature: Whether τ is learned, as CLIP's logit scale.
        false_negatives: What is done about negatives that are probably false: a rule (``ring``,
            ``threshold``, ``rank``, ``mixture``) or :class:`unremix.FalseNegatives`, which says on
            what evidence. None: nothing.
        gather: Whether the negatives come from all processes; ``equal`` where all are known to hold
            the same number of samples, which saves an exchange.
    """

    temperature: float = 0.5
    decoupled: bool = False
    learnable_temperature: bool = False
    false_negatives: FalseNegatives | Rule | None = None
    gather: Gather = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, above=0)
        if not isinstance(self.gather, bool) and self.gather != "equal":
            raise ValueError(
                f"expected gather to be True, False or 'equal', got {self.gather!r}; change it"
            )
        if self.false_negatives is not None and getattr(self, "fidelity", "") == "paper":
            raise ValueError(
                "expected false_negatives=None with fidelity='paper', which has none, got "
                f"{self.false_negatives!r}; use fidelity='sound'"
            )

    def settled(self: L) -> L:
        """The same with a value for every option whose None stands for one."""
        return self

    def weighting(self) -> Weighting:
        """How negatives are weighted, as the core takes it: uniformly."""
        return Weighting()


@dataclass(frozen=True, kw_only=True)
class InfoNCEOptions(LossOptions):
    """The options of :class:`InfoNCELoss`, with those of :class:`LossOptions`.

    Args:
        layout: As in :class:`UnReMixOptions`.
        class_prior: τ⁺ of the debiasing.
    """

    layout: Layout = "both"
    class_prior: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HCLOptions(LossOptions):
    """The options of :class:`HCLLoss`, with those of :class:`LossOptions`.

    Args:
        hardness: β of HCL; 0 leaves all weights 1.
        class_prior: τ⁺ of the debiasing.
        layout: As in :class:`UnReMixOptions`; ``both`` by default.
        similarity_gradient: Whether gradient flows through the similarity in the weights. By
            default it does, as published.
        fidelity: Preset: ``sound``, ``paper`` or ``code``.
    """

    hardness: float = 1.0
    class_prior: float = 0.1
    layout: Layout | None = None
    similarity_gradient: bool | None = field(default=None, metadata={"unset": "true"})
    fidelity: Fidelity = "sound"

    def __post_init__(self) -> None:
        check_choice("fidelity", self.fidelity, tuple(PRESETS))
        check_number("hardness", self.hardness, least=0)
        super().__post_init__()

    def settled(self) -> HCLOptions:
        """See :meth:`LossOptions.settled`."""
        flows = self.similarity_gradient is not False
        return replace(self, layout=self.layout or "both", similarity_gradient=flows)

    def weighting(self) -> Weighting:
        """See :meth:`LossOptions.weighting`."""
        return hard_negatives(
            float(self.hardness),
            similarity_gradient=self.similarity_gradient is not False,
            over_temperature=PRESETS[self.fidelity].hcl_exponent == "logit",
        )


@dataclass(frozen=True, kw_only=True)
class WeightingOptions:
    """How UnReMix weights negatives; the losses of all adapters have these options too.

    Options that are None take the value of the ``fidelity`` preset (docs/fidelity.md). Functions
    among the components score a :class:`unremix.core.scores.Block`.

    Args:
        components: Which scores weight the negatives: any of ``uncertainty``, ``similarity``,
            ``representativeness``; in Python also functions
            ``score(block) -> (B, M)``.
        mix: How the scores are mixed (λ): ``learned`` (a softmax of parameters), ``free``
            (non-negative parameters), ``fixed`` (equal), ``adversarial`` (learned to make the loss
            hard), or one number per component.
        scaling: How scores are scaled: ``minmax``, ``zscore-exp`` or ``none``.
        mass: ``mean`` (the weights average 1) or ``none``.
        hardness: β, the sharpness of ``zscore-exp``; only with that scaling, 1 by default.
        posterior_temperature: t of the uncertainty's pseudo-posterior.
        similarity_gradient: Whether gradient flows to the embeddings through the similarity in the
            weights.
        fidelity: Preset: ``sound``, ``paper`` (as printed) or ``code`` (as the baselines' public
            code).

    Raises:
        ValueError: For options that do not exist or contradict each other.
    """

    components: Sequence[str | Score | Component] = field(
        default=PAPER_COMPONENTS, metadata={"command_line": tuple[str, ...]}
    )
    mix: Mix = field(default="learned", metadata={"command_line": MixName | tuple[float, ...]})
    scaling: ScalingName | None = None
    mass: Mass | None = None
    hardness: float | None = field(default=None, metadata={"unset": "1, of zscore-exp only"})
    posterior_temperature: float = 1.0
    similarity_gradient: bool | None = None
    fidelity: Fidelity = "sound"

    def __post_init__(self) -> None:
        preset = PRESETS[check_choice("fidelity", self.fidelity, tuple(PRESETS))]
        if isinstance(self.components, str):
            raise ValueError(
                f"expected components to be a sequence of names, got {self.components!r}; "
                f"write ({self.components!r},)"
            )
        names = [name_of(component) for component in self.components]
        if len(set(names)) < len(names):
            raise ValueError(
                f"expected each component once, got {', '.join(names)}; leave out the repeats, or "
                "give each function a name of its own"
            )
        scaling = preset.scaling if self.scaling is None else self.scaling
        check_choice("scaling", scaling, get_args(ScalingName))
        if self.hardness is not None:
            if scaling != "zscore-exp":
                raise ValueError(
                    f"expected hardness only with scaling='zscore-exp', got {self.hardness} with "
                    f"{scaling!r}; leave it out or change the scaling"
                )
            check_number("hardness", self.hardness, least=0)
        if isinstance(self.mix, str):
            check_choice("mix", self.mix, get_args(MixName))
            return
        given = [check_number("each number of mix", each, least=0) for each in self.mix]
        if len(given) != len(names) or (given and sum(given) == 0):
            raise ValueError(
                f"expected mix to be one of {', '.join(get_args(MixName))} or {len(names)} "
                f"numbers, not all 0, one per component, got {tuple(self.mix)!r}; change it"
            )

    def settled(self: W) -> W:
        """The same with the values of the preset in place of None."""
        preset = vars(PRESETS[self.fidelity])
        unset: Any = {name: preset[name] for name in preset if getattr(self, name, "") is None}
        return replace(self, **unset)

    def weighting(self) -> Weighting:
        """The same as the core takes it."""
        how, sharpness = self.settled(), None
        if how.scaling == "zscore-exp":
            sharpness = 1.0 if how.hardness is None else float(how.hardness)
        return Weighting(
            tuple(how.components),
            scaling="zscore" if how.scaling == "zscore-exp" else how.scaling or "none",
            sharpness=sharpness,
            mass=how.mass or "none",
            similarity_gradient=bool(how.similarity_gradient and how.components),
        )


@dataclass(frozen=True, kw_only=True)
class UnReMixOptions(WeightingOptions, LossOptions):
    """The options of :class:`UnReMixLoss`: these, and those of the two classes it is made of.

    :func:`unremix.core.last_layer.sketch.sketch` explains ``sketch``.

    Args:
        last_layer: The linear layer that makes the embeddings; it is watched for its input h, and
            not registered as a submodule. Where BatchNorm or an activation follows it, pass the
            head, or its part from the linear layer on: the pseudo-posterior and δ are then computed
            from the directions of W h + b, which is not the chain rule through BatchNorm. For two
            encoders, pass a pair; inputs of different widths have no inner product, and enter as
            |h_i| |h_j|. Without ``last_layer``, and without h0 and h1 in the call, the uncertainty
            ignores the layer's input.
        projection: In place of ``last_layer``, the parameter P, shape (H, D), of embeddings
            z = h P; or a pair, for two encoders.
        gradient: What the uncertainty differentiates: ``pseudo-label`` or ``nt-xent``.
        layout: ``both``: all 2N views are anchors and candidates; ``one-way``: first views against
            second views; ``symmetric``: one-way in both directions, averaged.
        class_prior: τ⁺ of HCL's debiasing.
        bias: Whether the layer behind h0 and h1 has a bias; for a watched layer this is known.
        sketch: Dimensions that the last layer's input h is projected to.
    """

    last_layer: nn.Module | tuple[nn.Module | Tensor, nn.Module | Tensor] | None = None
    projection: Tensor | tuple[Tensor, Tensor] | None = None
    gradient: Gradient = "pseudo-label"
    layout: Layout | None = None
    class_prior: float | None = None
    bias: bool = True
    sketch: int | None = field(default=None, metadata={"unset": "none: not projected"})

    def __post_init__(self) -> None:
        WeightingOptions.__post_init__(self)
        LossOptions.__post_init__(self)
        if self.sketch is not None:
            check_count("sketch", self.sketch, 1, "use a number of dimensions, or None")


def with_gradient(loss: Tensor, compared: ContrastInput) -> Tensor:
    """The loss; its backward pass is an error where no gradient would reach the embeddings."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    views = compared.anchors, compared.candidates
    if traced or not loss.requires_grad or any(each.embeddings.requires_grad for each in views):
        return loss

    def refuse(_: Tensor) -> None:
        raise ValueError(
            "expected embeddings with gradient, got none, so that only the loss's own parameters "
            "would learn; embed outside torch.no_grad(), or, to train those alone on purpose, pass "
            "embeddings.requires_grad_()"
        )

    loss.register_hook(refuse)
    return loss


def accepts(
    options: Callable[P, T],
) -> Callable[[Callable[[Any, T], None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor of one argument, its options, the signature of their class.

    Args:
        options: A dataclass: the only place with the names of the options and their defaults.

    Example:
        >>> class Doubled:
        ...     @accepts(InfoNCEOptions)
        ...     def __init__(self, options: InfoNCEOptions) -> None:
        ...         self.temperature = 2 * options.temperature
        >>> Doubled(temperature=0.2).temperature
        0.4
    """
    known = signature(options)
    last = {its.name for its in fields(Computation)}
    ordered = sorted(known.parameters.values(), key=lambda option: option.name in last)

    def decorate(constructor: Callable[[Any, T], None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(constructor)
        def construct(self: Any, /, *args: P.args, **given: P.kwargs) -> None:
            if unknown := sorted(given.keys() - known.parameters.keys()):
                raise TypeError(
                    f"expected options among {', '.join(each.name for each in ordered)}, got "
                    f"{', '.join(unknown)}; leave out what is not among them"
                )
            constructor(self, options(*args, **given))

        itself = Parameter("self", Parameter.POSITIONAL_ONLY)
        made: Any = construct
        made.__signature__ = known.replace(parameters=[itself, *ordered])
        return construct

    return decorate


class TwoViewLoss(FindsFalseNegatives):
    """What the losses share: two views become anchors, candidates and pairs for the core.

    Args:
        given: Its options, settled.
        layout: As in :class:`UnReMixOptions`.
        class_prior: τ⁺ of the debiasing.
    """

    def __init__(
        self, given: LossOptions, layout: Layout | None, class_prior: float | None
    ) -> None:
        super().__init__(FalseNegatives.of(given.false_negatives))
        self.gather = given.gather
        self.class_prior = class_prior or 0.0
        names = {its.name for its in fields(Options)} & {its.name for its in fields(given)}
        self.options = Options(
            replace(given.weighting(), filter=self.false_negatives),
            InfoNCE(self.class_prior, decoupled=given.decoupled),
            **{name: getattr(given, name) for name in names},
        )
        self.temperature = float(given.temperature)
        self.layout: Layout = check_choice("layout", layout, get_args(Layout))
        self.last_layer: Watched | None = None
        self.sketch: int | None = None
        self.logit_scale: nn.Parameter | None = None
        if given.learnable_temperature:
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / self.temperature)))
        self._warned = False

    @property
    def weighting(self) -> Weighting:
        """How negatives are weighted."""
        return self.options.weighting

    @property
    def gathers(self) -> bool:
        """Whether there are other processes to take negatives from."""
        return bool(self.gather) and is_distributed()

    @property
    def takes_ids(self) -> bool:
        """Whether a score or a rule for false negatives needs ``ids=``."""
        remembers = self.false_negatives is not None and self.false_negatives.needs_ids
        return remembers or self.weighting.needs_ids

    def lambdas(self) -> Tensor | None:
        """λ, one number per component, shape (K,), with gradient where it is learned."""
        return None

    def current_temperature(self) -> Tensor | float:
        """τ, with gradient where it is learned."""
        if self.logit_scale is None:
            return self.temperature
        with torch.no_grad():  # as CLIP does after a step
            self.logit_scale.clamp_(max=math.log(LARGEST_LOGIT_SCALE))
        return (-self.logit_scale).exp()

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """The loss's own parameters for an optimizer: a learning rate of their own, no decay.

        Example:
            >>> loss_fn = UnReMixLoss()
            >>> optimizer = torch.optim.AdamW(loss_fn.param_groups(lr=1e-3))
        """
        return [{"params": list(self.parameters()), "lr": lr, "weight_decay": 0.0}]

    def forward(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None = None,
        h1: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        positives_in_denominator: bool = True,
        temperature: Tensor | float | None = None,
        extra: ExtraNegatives | None = None,
    ) -> Tensor:
        """The loss of a batch of N pairs of views.

        Args:
            z0: Embeddings of the first views, not normalized, shape (N, D).
            z1: Embeddings of the second views, shape (N, D).
            h0: Inputs of the last layer for the first views, shape (N, H); used by the uncertainty.
            h1: Likewise for the second views.
            ids: Which sample each pair shows, shape (N,): pairs with the same id are not negatives
                of each other, and scores with a memory by sample see the ids.
            labels: The class of each pair, shape (N,), integers; -1 stands for unlabeled. Views of
                one class are positives of each other, with equal shares, and never negatives. An
                unlabeled view has its other view as its only positive, and stays a negative of all
                others. An anchor without negatives left contributes nothing, which a warning says.
            positives_in_denominator: With labels, whether the other positives stand in the
                denominator of each, as in SupCon (Khosla et al. 2020, L_out). Without them a
                positive does not repel the others of its class (SINCERE, arXiv 2309.14277).
            temperature: τ of this call in place of the loss's own; gradient flows to a tensor.
            extra: Further negatives of each anchor alone: of [z0; z1] with layout ``both``, of z0
                with ``one-way``.

        Returns:
            The loss, a scalar, in float32 or better. With ``gather``, the mean over processes is
            the loss of the joint batch. A batch of one pair has no negatives: its loss is 0.

        Raises:
            ValueError: For input no loss can be computed from.
        """
        check_tensors(z0=z0, z1=z1, h0=h0, h1=h1, ids=ids, labels=labels)
        with full_precision(z0.device):
            if extra is not None and self.layout == "symmetric":
                raise ValueError(
                    "expected no extra negatives with layout='symmetric', got some; use 'one-way'"
                )
            first, second = self._prepare(Views(z0, h0, ids, labels=labels), Views(z1, h1))
            if z0.shape[0] == 1 and extra is None and not self.gathers:
                return self._loss_of_one_pair(first, second, temperature)
            joint = self.joint_batch(first)
            compared = [arrange(first, second, self.layout, joint)]
            if self.layout == "symmetric":
                compared.append(arrange(second, first, self.layout, joint))
            options = self._options(positives_in_denominator and labels is not None)
            return self._loss(compared, options, extra, temperature)

    def aimed(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None = None,
        h1: Tensor | None = None,
        *,
        keys: Tensor,
        shares: Tensor,
        ids: Tensor | None = None,
        extra: ExtraNegatives | None = None,
    ) -> Tensor:
        """The loss of mixed views z0, each aimed at several second views z1, by their shares.

        One way: N anchors z0 against candidates z1. ``keys``, shape (N, P), says which second views
        each anchor is aimed at, and ``shares``, shape (N, P), the share π of each in its loss; the
        other arguments are those of :meth:`forward`. The views an anchor is aimed at stand in the
        denominator of one another, so that with uniform weights this is the cross-entropy against
        the shares. With ``decoupled`` none of them does.
        """
        check_tensors(z0=z0, z1=z1, h0=h0, h1=h1, ids=ids, keys=keys, shares=shares)
        with full_precision(z0.device):
            self.check_evidence("mixed views")
            first, second = self._prepare(Views(z0, h0, ids), Views(z1, h1))
            compared = arrange(first, second, self.layout, self.joint_batch(first), (keys, shares))
            return self._loss([compared], self._options(positives_in_denominator=True), extra)

    def against(
        self,
        anchors: Views,
        candidates: Views,
        pairs: Pairs,
        *,
        labels: Tensor | tuple[Tensor, Tensor] | None = None,
        extra: ExtraNegatives | None = None,
        positives_in_denominator: bool | None = None,
        logits: Logits = "cosine",
        objective: ObjectiveName = "info-nce",
        temperature: Tensor | float | None = None,
    ) -> Tensor:
        """The loss of any anchors, candidates and pairs, such as queries against a queue.

        Args:
            anchors: N views of this process.
            candidates: M views, which all processes hold if there are several.
            pairs: Positives and negatives.
            labels: As in :meth:`forward`: of the anchors, shape (N,), and of the candidates, shape
                (M,); or one tensor where they are the same. An anchor's negatives of its own class
                become positives; what the pairs leave out stays out.
            extra: Further negatives of each anchor alone.
            positives_in_denominator: Whether an anchor's other positives stand in the denominator;
                by default only with labels.
            logits: ``cosine``: f·f/τ; ``dot``: z·z/τ.
            objective: InfoNCE, or the Jensen-Shannon estimate, which has neither a class prior nor
                a denominator to leave positives out of.
            temperature: τ of this call in place of the loss's own; gradient flows to a tensor.

        Returns:
            The loss, as :meth:`forward`.
        """
        check_views(anchors, candidates)
        with full_precision(anchors.embeddings.device):
            compared = self.compare(anchors, candidates, pairs, labels)
            anchors, candidates = compared.anchors, compared.candidates
            if positives_in_denominator is None:
                positives_in_denominator = anchors.labels is not None
            if checks_on(self.options.check, anchors.embeddings):
                # A NaN in an unused candidate reaches only the gradient.
                check_finite(
                    anchors=anchors.embeddings,
                    candidates=candidates.embeddings,
                    anchor_inputs=anchors.inputs,
                    candidate_inputs=candidates.inputs,
                    extra_negatives=None if extra is None else extra.embeddings,
                    extra_inputs=None if extra is None else extra.inputs,
                )
            options = self._options(positives_in_denominator, logits, objective)
            return self._loss([compared], options, extra, temperature)

    def compare(
        self,
        anchors: Views,
        candidates: Views,
        pairs: Pairs,
        labels: Tensor | tuple[Tensor, Tensor] | None = None,
        *,
        alone: bool = False,
    ) -> ContrastInput:
        """What :meth:`against` compares: its arguments in working precision.

        Of all processes, unless ``alone``.
        """
        anchors, candidates = self._labeled(anchors, candidates, labels)
        joint, everyone = None if alone else self.joint_batch(anchors), None
        shared = candidates is anchors
        anchors = self.describe_views(self._ready(anchors))
        candidates = anchors if shared else self.describe_views(self._ready(candidates))
        if joint is not None and not shared and self.weighting.needs_gradients:
            known = Views(anchors.embeddings.detach(), outputs=anchors.outputs)
            everyone = gather_views(known, joint)
        return ContrastInput(anchors, candidates, pairs, joint=joint, everyone=everyone)

    def settle(self, compared: ContrastInput, *, update: bool) -> ContrastInput:
        """The same with pairs that follow the labels, and thresholds where a rule asks for them.

        Args:
            compared: What is compared.
            update: Whether the rule learns from it.
        """
        compared = with_labels(compared)
        if self.thresholds is None:
            return compared
        limits = self.find_thresholds(compared, tile=self.options.tile, update=update)
        limited = replace(compared.anchors, thresholds=limits)
        shared = compared.candidates is compared.anchors
        return replace(
            compared, anchors=limited, candidates=limited if shared else compared.candidates
        )

    def remember(self, ids: Tensor, *features: Tensor) -> None:
        """See :meth:`FindsFalseNegatives.remember`; with ``gather``, of all processes' batches."""
        if self.gathers and self.bank is not None:
            joint = find_joint_batch(features[0], equal=self.gather == "equal")
            ids, features = gather_rows(ids, joint), tuple(gather_rows(x, joint) for x in features)
        super().remember(ids, *features)

    @torch.no_grad()
    def importance(
        self,
        z0: Tensor,
        z1: Tensor,
        h0: Tensor | None = None,
        h1: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Importance:
        """All scores and weights of a batch, for analysis; this process's batch only.

        The arguments are those of :meth:`forward`; memory grows with N².
        """
        check_tensors(z0=z0, z1=z1, h0=h0, h1=h1, ids=ids, labels=labels)
        with full_precision(z0.device):
            if self.layout == "symmetric":
                raise ValueError(
                    "expected layout 'both' or 'one-way' for importance, got 'symmetric', which "
                    "has two tables; use layout='one-way' in each direction"
                )
            first = Views(z0, h0, ids, labels=labels)
            first, second = self._prepare(first, Views(z1, h1), alone=True)
            return self._examine(arrange(first, second, self.layout))

    @torch.no_grad()
    def importance_against(
        self,
        anchors: Views,
        candidates: Views,
        pairs: Pairs,
        *,
        labels: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Importance:
        """All scores and weights of any anchors, candidates and pairs; see :meth:`against`."""
        check_views(anchors, candidates)
        with full_precision(anchors.embeddings.device):
            return self._examine(self.compare(anchors, candidates, pairs, labels, alone=True))

    def views_of(self, *embeddings: Tensor, all_scores: bool = False) -> list[Views]:
        """Embeddings, each (N, D), with what is known of the layer that made them, if it is needed.

        Args:
            embeddings: Of the first views, then of the second, which may have a layer of their own.
            all_scores: Whether all scores are computed, not those of the weights alone.
        """
        views, layer = [Views(each) for each in embeddings], self.last_layer
        if layer is None:
            return views
        if not (all_scores or self.weighting.needs_gradients):
            layer.release()
            return views
        found = layer.find(*embeddings, check=checks_on(self.options.check, embeddings[0]))
        views = [replace(each, **vars(its)) for each, its in zip(views, found, strict=True)]
        if not is_distributed() and all(each.outputs is None for each in views):
            return views
        return [  # all processes share what the layer made, or none does
            each if each.outputs is not None else replace(each, outputs=each.embeddings.detach())
            for each in views
        ]

    def learned(
        self, temperature: Tensor | float | None = None
    ) -> tuple[Tensor | None, Tensor | float]:
        """λ and τ of a call. With several processes, their gradient is the mean over all.

        So what every process holds stays equal everywhere, with or without
        DistributedDataParallel. Every call exchanges once, whatever it computes.
        """
        mix = self.lambdas()
        temperature = self.current_temperature() if temperature is None else temperature
        if not is_distributed():
            return mix, temperature
        shared = mean_gradient(temperature) if isinstance(temperature, Tensor) else temperature
        return None if mix is None else mean_gradient(mix), shared

    def nothing(self, *embeddings: Tensor, temperature: Tensor | float | None = None) -> Tensor:
        """A loss of 0 for a batch without pairs, connected to everything that others learn."""
        given = [at_least_float32(each) for each in embeddings]
        everything = [*given, *self.parameters(), *self.learned(temperature)]
        # Each number times 0: a sum of large ones would overflow first.
        sums = [(each * 0.0).sum() for each in everything if isinstance(each, Tensor)]
        return torch.stack(sums).sum().abs()

    def _loss_of_one_pair(
        self, first: Views, second: Views, temperature: Tensor | float | None
    ) -> Tensor:
        """The loss of a batch without negatives, which is checked as any other."""
        if temperature is not None:
            check_temperature(temperature, self.options.check)
        if not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(
                "a batch of one pair has no negatives: its loss is 0; use larger batches, or drop "
                "the last, incomplete one",
                stacklevel=5,
            )
        return self.nothing(first.embeddings, second.embeddings, temperature=temperature)

    def _options(
        self,
        positives_in_denominator: bool = False,
        logits: Logits = "cosine",
        objective: ObjectiveName = "info-nce",
    ) -> Options:
        """This loss's options for one call."""
        usual = self.options.objective
        assert isinstance(usual, InfoNCE)
        if check_choice("objective", objective, get_args(ObjectiveName)) == "info-nce":
            made = replace(usual, positives_in_denominator=positives_in_denominator)
            return replace(self.options, logits=logits, objective=made)
        if usual.decoupled:
            raise ValueError(
                "expected decoupled=False with jsd, which has no denominator, got True; omit it"
            )
        return replace(self.options, logits=logits, objective=JensenShannon())

    def _ready(self, views: V) -> V:
        """In working precision, the inputs of the last layer projected where asked."""
        embeddings, h = at_least_float32(views.embeddings), views.inputs
        if h is not None:
            h = h.detach().to(embeddings.dtype)
            h = h if self.sketch is None else sketch(h, self.sketch)
        return replace(views, embeddings=embeddings, inputs=h)

    def _loss(
        self,
        compared: Sequence[ContrastInput],
        options: Options,
        extra: ExtraNegatives | None = None,
        temperature: Tensor | float | None = None,
    ) -> Tensor:
        """The mean loss of comparisons; an error if it, or its gradient at the mix, overflows."""
        mix, temperature = self.learned(temperature)
        settled = [self.settle(each, update=self.training) for each in compared]
        if extra is not None:
            settled = [replace(each, extra=self._ready(extra)) for each in settled]
        if len(settled) == 2 and _are_opposite(*settled):
            forth, back = settled
            losses = contrast_both_ways(forth, back, options, temperature=temperature, mix=mix)
        else:
            losses = [contrast(each, options, temperature=temperature, mix=mix) for each in settled]
        loss = torch.stack(losses).mean()
        if checks_on(options.check, loss):
            dtypes = {loss.dtype, *(each.dtype for each in self.parameters())}
            largest = min(torch.finfo(dtype).max for dtype in dtypes)
            if not abs(loss.item()) <= largest:
                raise ValueError(
                    f"expected a finite loss, at most {largest:.2g}, got {loss.item()} from finite "
                    "input: numbers overflow; scale the input down, or use mass='mean'"
                )
        return with_gradient(loss, compared[0])

    def _examine(self, compared: ContrastInput) -> Importance:
        compared = self.settle(compared, update=False)
        return importance_of(compared, self.options, self.current_temperature(), self.lambdas())

    def _labeled(
        self, anchors: Views, candidates: Views, labels: Tensor | tuple[Tensor, Tensor] | None
    ) -> tuple[Views, Views]:
        """Anchors and candidates with the labels of a call; the same views stay the same."""
        if labels is None:
            return anchors, candidates
        both, labeled = labels if isinstance(labels, tuple) else (labels, labels), []
        for each, views in zip(both, (anchors, candidates), strict=True):
            check_tensors(labels=each)
            check_labels(each, len(views.embeddings), self.options.check)
            labeled.append(replace(views, labels=each.to(anchors.embeddings.device)))
        return labeled[0], labeled[0] if candidates is anchors else labeled[1]

    def joint_batch(self, views: Views) -> JointBatch | None:
        """This process's part of the joint batch, given its views, where the loss gathers."""
        if not self.gathers:
            return None
        return find_joint_batch(
            views.embeddings, views.inputs, labels=views.labels, equal=self.gather == "equal"
        )

    def _prepare(self, first: Views, second: Views, *, alone: bool = False) -> tuple[Views, Views]:
        """Two views with everything that the scores need; ``alone``: of all scores.

        Ids and labels are those of ``first``. Unless ``alone``, a failure is reported to the other
        processes.
        """
        try:
            check_call(first, second, self.options.check)
            ids, labels = (
                None
                if each is None
                else each.to(first.embeddings.device, torch.int64, non_blocking=True)
                for each in (first.ids, first.labels)
            )
            views = [first, second]
            if first.inputs is None:
                views = self.views_of(first.embeddings, second.embeddings, all_scores=alone)
                if views[0].inputs is not None and views[1].inputs is not None:
                    check_two_views("h", views[0].inputs, views[1].inputs, len(first.embeddings))
            elif self.last_layer is not None:
                self.last_layer.release()
            ready = (self._ready(replace(each, ids=ids, labels=labels)) for each in views)
            first, second = self.describe_samples(*ready)
            if checks_on(self.options.check, first.embeddings):
                # The loss does not show NaN in unused inputs, nor in which process it arose.
                check_finite(
                    z0=first.embeddings, z1=second.embeddings, h0=first.inputs, h1=second.inputs
                )
        except ValueError:
            if self.gathers and self.gather != "equal" and not alone:
                withdraw()
            raise
        return first, second


def _are_opposite(forth: ContrastInput, back: ContrastInput) -> bool:
    """Whether, of two directions of one layout, each has the other's anchors as candidates.

    What they share saves nothing in a small batch, whose products round otherwise when transposed.
    """
    same = back.anchors is forth.candidates and back.candidates is forth.anchors
    return same and forth.joint is None and forth.pairs.num_anchors >= WORTH_SHARING


class InfoNCELoss(TwoViewLoss):
    """Plain InfoNCE (NT-Xent): all negatives have weight 1.

    L_i = -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_j e^{s_ij/τ}) )

    Its options are those of :class:`InfoNCEOptions`.

    Relations:
        Equals lightly's ``NTXentLoss`` and, with layout ``both``, SimCLR's NT-Xent. With
        ``decoupled`` it equals lightly's ``DCLLoss``; with layout ``symmetric``, CLIP's loss; with
        a ``class_prior`` above 0, the debiased contrastive loss of Chuang et al. 2020.

    Example:
        >>> loss_fn = InfoNCELoss(temperature=0.5)
        >>> loss_fn(torch.eye(4), torch.eye(4))
        tensor(0.5944)

    Reference:
        Chen et al. 2020 (SimCLR), Eq. 1; Yeh et al. 2022 (decoupled).
    """

    @accepts(InfoNCEOptions)
    def __init__(self, given: InfoNCEOptions) -> None:
        super().__init__(given, given.layout, given.class_prior)


class HCLLoss(TwoViewLoss):
    """Hard negatives by similarity: w ∝ e^{β s/τ}, of mean 1, with debiasing.

    Its options are those of :class:`HCLOptions`. ``fidelity="paper"`` puts β s, not β s/τ, in the
    exponent.

    Relations:
        With ``hardness=0`` and ``class_prior=0`` this is :class:`InfoNCELoss`.

    Example:
        >>> loss_fn = HCLLoss(temperature=0.5, hardness=1.0, class_prior=0.1)
        >>> loss_fn(torch.eye(4), torch.eye(4))
        tensor(0.2115)

    Reference:
        Robinson et al. 2021, Eq. 4.
    """

    @accepts(HCLOptions)
    def __init__(self, given: HCLOptions) -> None:
        given = given.settled()
        self.hardness = float(given.hardness)
        self.fidelity = given.fidelity
        super().__init__(given, given.layout, given.class_prior)


class UnReMixLoss(TwoViewLoss):
    """Negatives weighted by uncertainty, similarity and representativeness.

    L_i = -log( e^{s_ip/τ} / (e^{s_ip/τ} + Σ_j w_ij e^{s_ij/τ}) )
    w_ij = λ_u U_ij + λ_s S_ij + λ_r R_ij

    Its options are those of :class:`UnReMixOptions`. The mix is a parameter: move the loss to the
    device of the embeddings, with ``.to(device)``.

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

    @accepts(UnReMixOptions)
    def __init__(self, given: UnReMixOptions) -> None:
        given = given.settled()
        watched = watch(given.last_layer, given.projection)
        if watched is not None:
            given = replace(given, bias=watched.bias)
        super().__init__(given, given.layout, given.class_prior)
        self.sketch = given.sketch
        self.last_layer = watched
        self.component_names = tuple(name_of(each) for each in given.components)
        named = zip(self.component_names, self.weighting.resolved, strict=True)
        modules = {name: its.score for name, its in named if isinstance(its.score, nn.Module)}
        if modules:  # scores with parameters or buffers of their own
            self.score_modules = nn.ModuleDict(modules)
        self._set_mix(given.mix, len(self.component_names))
        self._calls = 0  # until it is known whether the mix moves
        self._first_mix = torch.empty(0)

    def _set_mix(self, mix: Mix, count: int) -> None:
        """Make the parameters that λ is learned by, or keep λ as it is given."""
        self.mix_parameters: nn.Parameter | None = None
        self.given_lambdas: Tensor
        self.mix_kind = mix if isinstance(mix, str) else "given"
        start = torch.full((count,), 1 / max(count, 1))
        if not isinstance(mix, str):
            start = torch.tensor([float(each) for each in mix])
        if self.mix_kind in ("given", "fixed") or count == 0:
            self.register_buffer("given_lambdas", start, persistent=False)
        elif self.mix_kind == "free":
            if self.weighting.mass == "none":
                warnings.warn(
                    "mix='free' with mass='none' lets the loss fall by shrinking all weights to 0; "
                    "use mass='mean' or mix='learned'",
                    stacklevel=4,
                )
            # softplus of this is 1/count: the same start as the other mixes.
            self.mix_parameters = nn.Parameter(start.expm1().log())
        else:
            self.mix_parameters = nn.Parameter(torch.zeros(count))

    def learned(
        self, temperature: Tensor | float | None = None
    ) -> tuple[Tensor | None, Tensor | float]:
        """See :meth:`TwoViewLoss.learned`; notices once a mix that no optimizer moves."""
        learns = self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if learns and (mine := self.mix_parameters) is not None and self._calls < FORGOTTEN_AFTER:
            self._calls += 1
            if self._calls == 1:
                self._first_mix = mine.detach().clone()
            elif self._calls == FORGOTTEN_AFTER and mine.grad is not None:
                moved = not torch.equal(mine.detach(), self._first_mix.to(mine.device))
                if bool(mine.grad.any()) and not moved:
                    warnings.warn(
                        f"the mix has a gradient and has not moved in {FORGOTTEN_AFTER} calls; add "
                        "loss_fn.param_groups(lr=...) to the optimizer, or use mix='fixed'",
                        stacklevel=2,
                    )
        return super().learned(temperature)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        if not self.component_names:  # kept by earlier versions, without any number in it
            state.pop(f"{prefix}mix_parameters", None)
        super()._load_from_state_dict(state, prefix, *others)

    def lambdas(self) -> Tensor:
        """λ, one number per component, shape (K,), with gradient where it is learned."""
        if self.mix_parameters is None:
            return self.given_lambdas
        if self.mix_kind == "free":
            return nn.functional.softplus(self.mix_parameters)
        learned = self.mix_parameters.softmax(0)
        if self.mix_kind == "adversarial":
            return 2 * learned.detach() - learned  # the same value, the gradient reversed
        return learned

    @property
    def mix(self) -> dict[str, float]:
        """λ of each component."""
        return dict(zip(self.component_names, self.lambdas().tolist(), strict=True))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        mix = ", ".join(f"{name}={lambda_k:.3f}" for name, lambda_k in self.mix.items())
        return f"temperature={self.temperature:g}, layout={self.layout!r}, mix=({mix})"


def importance(
    z0: Tensor,
    z1: Tensor,
    h0: Tensor | None = None,
    h1: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    **options: Any,
) -> Importance:
    """Scores and weights of every negative of a batch, for analysis.

    To see the learned mix of a loss in training, call its own ``importance`` method.

    Args:
        z0: Embeddings of the first views, shape (N, D).
        z1: Embeddings of the second views, shape (N, D).
        h0: Inputs of the last layer for the first views, shape (N, H).
        h1: Likewise for the second views.
        labels: The class of each sample, shape (N,), as in :meth:`TwoViewLoss.forward`.
        options: Those of :class:`UnReMixOptions`; a learned mix is at its start, equal shares.

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
    return UnReMixLoss(**options).importance(z0, z1, h0, h1, labels=labels)
