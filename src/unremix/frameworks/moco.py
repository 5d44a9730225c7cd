"""MoCo-v2: queries against the keys of a slowly moving encoder, old keys as negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unremix.console.values import Checked, bounded
from unremix.core.gather import find_joint_batch, gather_views, is_distributed
from unremix.core.pairs import Pairs
from unremix.core.views import ExtraNegatives, Views, stack
from unremix.frameworks.base import Batch, Embedded, refuse_nt_xent
from unremix.frameworks.contrastive import Contrastive
from unremix.frameworks.mixing import Mixed, Target, permutation
from unremix.frameworks.queue import Queue
from unremix.frameworks.randomness import SHUFFLED


@dataclass(frozen=True)
class MoCoOptions(Checked):
    """Options of MoCo.

    Args:
        queue: Old keys kept as negatives.
        momentum: m of the key encoder.
        symmetric: Whether both views ask; the loss is then the mean of both ways (public code sums
            them, which doubles the learning rate).
        group: Images that BatchNorm sees at a time; 0 for the whole batch.

    Raises:
        ValueError: For numbers out of range.
    """

    queue: int = bounded(4096, least=1)
    momentum: float = bounded(0.99, least=0, most=1)
    symmetric: bool = False
    group: int = bounded(32, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group == 1:
            raise ValueError(
                "expected group of at least 2, or 0 for the whole batch, got 1; raise it"
            )


class MoCo(Contrastive):
    """One view asks, the other answers through the key encoder; negatives are the queue's keys.

    The key encoder starts equal to the query encoder and follows it, θ_k ← m θ_k + (1 - m) θ_q,
    after every step. The queue starts empty, not with random vectors as in the published code: the
    very first batch takes its own keys as negatives. A key in the queue that shows the anchor's own
    sample is left out.

    BatchNorm sees groups of images, and keys are shuffled before they are grouped, as if every
    group were on a GPU of its own: else the statistics of a batch would tell which key belongs to
    which query.

    Args:
        encoder: As :class:`Contrastive`, and so ``head``, ``loss`` and ``negatives``.
        mixing: Mixes the images of the queries; i-Mix takes the other keys of the batch as
            negatives too.
        labels: Whether old keys of the query's class are positives of it.
        options: The queue, the momentum and the groups.

    Raises:
        ValueError: For parts that do not go together.

    Reference:
        He et al. 2020, Chen et al. 2020 (MoCo-v2).
    """

    summary = "MoCo: negatives from a queue"
    section = "moco"
    Options = MoCoOptions
    has_queue = True

    options: MoCoOptions
    memory: Queue

    def set_up(self) -> None:
        """See :meth:`Contrastive.set_up`."""
        self.loss.check_evidence("a queue of keys", ids=True)
        refuse_nt_xent(self.loss, "with a queue, whose old keys have no positive")
        self.key_encoder = deepcopy(self.encoder).requires_grad_(False)
        self.key_head = deepcopy(self.head).requires_grad_(False)
        last = self.last_layer
        input_width = last.in_features if self.loss.weighting.needs_gradients else 0
        self.memory = Queue(self.options.queue, last.out_features, input_width)
        self._fresh: list[Views] = []

    def embed(self, images: Tensor) -> Embedded:
        """Embeddings z, shape (N, D), and the last layer's input h, shape (N, H)."""
        return self._in_groups(super().embed, images)

    @torch.no_grad()
    def embed_keys(self, images: Tensor, keys: Tensor) -> Embedded:
        """Z and h by the key encoder, the images shuffled before they are grouped."""
        order = permutation(keys[:1] + SHUFFLED, images.shape[0])

        def forward(images: Tensor) -> Embedded:
            h = self.key_head[:-1](self.key_encoder(images))
            return self.key_head[-1](h), h

        z, h = self._in_groups(forward, images[order])
        back = torch.argsort(order)
        return z[back], h[back]

    def _in_groups(self, forward: Callable[[Tensor], Embedded], images: Tensor) -> Embedded:
        count = images.shape[0] // self.options.group if self.options.group else 1
        if not self.training or count < 2:
            return forward(images)
        parts = [forward(some) for some in images.tensor_split(count)]
        return torch.cat([z for z, _ in parts]), torch.cat([h for _, h in parts])

    @property
    def _ways(self) -> tuple[tuple[int, int], ...]:
        """Which view asks, and which answers."""
        return ((0, 1), (1, 0)) if self.options.symmetric else ((0, 1),)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The queries: the views as they are, mixed, or both."""
        return tuple(images for asks, _ in self._ways for images, _ in self.asked(batch, asks))

    def objective(self, embedded: Sequence[Embedded], batch: Batch) -> Tensor:
        """The loss of the queries against their keys and the queue."""
        queries = iter(embedded)
        self._fresh = []
        losses = []
        for asks, answers in self._ways:
            z, h = self.embed_keys(batch.views[answers], batch.batch_key + answers)
            keys, first = self._of_all(Views(z, h, batch.samples))
            self._fresh.append(keys)
            itself = torch.arange(len(z), device=z.device)[:, None]
            own = Target(1.0, itself, torch.ones_like(itself, dtype=z.dtype))
            for _, mixed in self.asked(batch, asks):
                query = next(queries)
                extra = self.further(query, batch, asks, mixed)
                for target in (own,) if mixed is None else mixed.targets:
                    if target.weight:
                        loss = self._loss(query, keys, first, batch, extra, target, mixed)
                        losses.append(target.weight * loss)
        return torch.stack(losses).sum() / len(self._ways)

    def _of_all(self, keys: Views) -> tuple[Views, int]:
        """The keys of all processes, and where those of this one begin."""
        if not self.memory.inputs.shape[1]:
            keys = replace(keys, inputs=None)
        if not is_distributed():
            return keys, 0
        joint = find_joint_batch(keys.embeddings, keys.inputs, equal=self.loss.gather == "equal")
        return gather_views(keys, joint), joint.offset

    def _loss(
        self,
        query: Embedded,
        keys: Views,
        first: int,
        batch: Batch,
        extra: ExtraNegatives | None,
        target: Target,
        mixed: Mixed | None,
    ) -> Tensor:
        """The loss of queries against the batch's keys, of which theirs begin at ``first``."""
        assert keys.ids is not None
        pairs = Pairs.queue(
            keys.ids,
            self.memory.samples,
            batch_negatives=not self.keeps_original or len(self.memory) == 0,
            keys=target.keys + first,
            shares=target.shares,
        )
        old = self.memory.views
        dtype = old.embeddings.dtype
        z, h = keys.embeddings.to(dtype), keys.inputs
        candidates = stack(Views(z, None if h is None else h.to(dtype), keys.ids), old)
        anchors = Views(query[0], None if h is None else query[1], batch.samples)
        labels = None
        if self.labels is not None:
            assert candidates.ids is not None
            labels = self.labels[batch.samples], self.labels[candidates.ids]
        return self.loss.against(
            anchors, candidates, pairs, labels=labels, extra=extra,
            positives_in_denominator=mixed is not None or labels is not None,
        )  # fmt: skip

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the key encoder follow, and keep the batch's keys."""
        for query, key in ((self.encoder, self.key_encoder), (self.head, self.key_head)):
            for leading, following in zip(query.parameters(), key.parameters(), strict=True):
                following.lerp_(leading, 1 - self.options.momentum)
        for keys in self._fresh:
            assert keys.ids is not None
            self.memory.add(keys.embeddings, keys.inputs, keys.ids)
        self._fresh = []
