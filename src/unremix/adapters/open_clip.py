"""open_clip: weighted negatives in place of ``ClipLoss``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from unremix.adapters import needed_for
from unremix.adapters.weighted import AdapterOptions, Weighted, weighted_loss
from unremix.core.gather import JointBatch, gather_rows
from unremix.core.pairs import Pairs
from unremix.core.precision import at_least_float32
from unremix.core.views import Views
from unremix.losses import accepts

with needed_for("open_clip"):
    from open_clip.loss import gather_features


@dataclass(frozen=True)
class Options(AdapterOptions):
    """The options of :class:`UnReMixClipLoss`, with :class:`AdapterOptions`.

    Args:
        local_loss: With several processes: whether each computes the loss of its own rows alone;
            their mean is the loss of the joint batch.
        gather_with_grad: With several processes: whether gradient flows through the exchange.
        cache_labels: As in ``ClipLoss``; the loss does not depend on it.
        rank: The number of this process.
        world_size: The number of processes.
        use_horovod: Always False: processes are those of ``torch.distributed``.
        last_layer: What makes the image and the text features, a pair: linear layers, or parameters
            P of features h P. For open_clip's ViT, ``(model.visual.proj, model.text_projection)``;
            for its ResNets, ``(model.visual.attnpool.c_proj, model.text_projection)``. Without it,
            the uncertainty ignores the layers' inputs.
        projection: Another name of it, for a pair of parameters.
    """

    local_loss: bool = False
    gather_with_grad: bool = False
    cache_labels: bool = False
    rank: int = 0
    world_size: int = 1
    use_horovod: bool = False
    last_layer: tuple[nn.Module | Tensor, nn.Module | Tensor] | None = field(
        default=None, kw_only=True
    )
    projection: tuple[Tensor, Tensor] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_horovod:
            raise ValueError(
                "expected use_horovod=False, got True; start the processes with torchrun"
            )


class UnReMixClipLoss(Weighted, nn.Module):
    """Images against texts and texts against images, with weighted negatives.

    Its options are those of :class:`Options`.

    Relations:
        With ``components=()`` this equals open_clip's ``ClipLoss`` of normalized features, value
        and gradient. A logit bias cancels in it, as it does there.
    """

    @accepts(Options)
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.local_loss = options.local_loss
        self.gather_with_grad = options.gather_with_grad
        self.rank = options.rank
        self.world_size = options.world_size
        self.weighted = weighted_loss(
            options,
            layout="symmetric",
            gather="equal" if self.local_loss and self.world_size > 1 else False,
        )

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
        *,
        labels: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch.

        Args:
            image_features: Normalized, shape (N, D).
            text_features: Normalized, shape (N, D).
            logit_scale: 1/τ; gradient flows to a tensor.
            logit_bias: Added to all logits, where the model has one; it cancels.
            output_dict: Whether to return ``{"contrastive_loss": loss}``.
            labels: The class of each pair, -1 where it has none, shape (N,): images and texts of
                one class are positives of each other.

        Returns:
            A scalar, or a dictionary with it.
        """
        if isinstance(logit_scale, Tensor):  # before the division, which would round
            logit_scale = at_least_float32(logit_scale)
        loss = self._loss(
            at_least_float32(image_features),
            at_least_float32(text_features),
            1 / logit_scale,
            labels,
        )
        if isinstance(logit_bias, Tensor):  # connected, so that its gradient is 0 and not missing
            loss = loss + 0 * logit_bias.sum()
        return {"contrastive_loss": loss} if output_dict else loss

    def _loss(
        self,
        images: Tensor,
        texts: Tensor,
        temperature: Tensor | float,
        labels: Tensor | None,
    ) -> Tensor:
        if self.world_size == 1:
            loss: Tensor = self.weighted(images, texts, labels=labels, temperature=temperature)
            return loss
        own = self.weighted.views_of(images, texts)
        gathered = gather_features(  # with gradient as open_clip would have it
            images,
            texts,
            local_loss=self.local_loss,
            gather_with_grad=self.gather_with_grad,
            rank=self.rank,
            world_size=self.world_size,
        )
        joint = JointBatch((len(images),) * self.world_size, self.rank)

        def of_all(constants: Tensor | None) -> Tensor | None:
            return None if constants is None else gather_rows(constants, joint)

        everything = [
            Views(z, of_all(each.inputs), outputs=of_all(each.outputs))
            for z, each in zip(gathered, own, strict=True)
        ]
        all_labels = of_all(labels)
        count, offset = (len(images), joint.offset) if self.local_loss else (joint.total, 0)
        pairs = Pairs.one_way(count, offset=offset, total=joint.total, device=images.device)
        if not self.local_loss:
            own, labels = everything, all_labels
        known = None if labels is None or all_labels is None else (labels, all_labels)
        against = partial(self.weighted.against, pairs=pairs, labels=known, temperature=temperature)
        return (against(own[0], everything[1]) + against(own[1], everything[0])) / 2
