"""Negatives made for one anchor alone: mixtures of its hardest ones, patches of its own image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unremix.console.values import Checked, bounded
from unremix.core.precision import normalize
from unremix.core.views import ExtraNegatives, Views, describe, map_tensors
from unremix.frameworks.base import Embedded
from unremix.frameworks.contrastive import Contrastive
from unremix.frameworks.mixing import patch_negatives
from unremix.frameworks.randomness import uniforms


@dataclass(frozen=True)
class MoCHi(Checked):
    """Mixtures of the hardest keys of the queue, with each other and with the query.

    normalize(a n_i + (1 - a) n_j), a in (0, 1), i ≠ j, and normalize(b q + (1 - b) n), b in
    (0, 1/2), of the hardest negatives n; |z| and h are mixed alike. They are never enqueued. A key
    of a sample that the anchor shows, its own or one mixed into it, is no negative. An anchor with
    one key left mixes it with itself. One with none has -q in their place, which counts least.

    Args:
        hardest: How many keys, the most similar, are mixed.
        pairs: Mixtures of two keys per query.
        queries: Mixtures of a key with the query.
        warmup_epochs: Epochs without; by default a twentieth of the training, as published.

    Raises:
        ValueError: For negative numbers, or fewer than two keys to mix; when called, for a
            framework without a queue.

    Reference:
        Kalantidis et al. 2020.
    """

    summary: ClassVar[str] = "MoCHi: mixtures of hard keys"
    section: ClassVar[str] = "mochi"
    needs_queue: ClassVar[bool] = True

    hardest: int = bounded(512, least=2)
    pairs: int = bounded(512, least=0)
    queries: int = bounded(64, least=0)
    warmup_epochs: int | None = bounded(least=0, unset="a twentieth of the epochs")

    def settled(self, *, epochs: int) -> MoCHi:
        """The same with the warm-up that a training of so many epochs has."""
        return self if self.warmup_epochs is not None else replace(self, warmup_epochs=epochs // 20)

    @torch.no_grad()
    def __call__(
        self,
        framework: Contrastive,
        anchors: Embedded,
        images: Tensor,
        samples: Tensor,
        keys: Tensor,
        epoch: int,
    ) -> ExtraNegatives | None:
        """See :class:`unremix.frameworks.contrastive.Negatives`."""
        memory = framework.memory
        if memory is None:
            raise ValueError(
                f"expected a framework with a queue, got {type(framework).__name__}; use MoCo"
            )
        if epoch < (self.warmup_epochs or 0) or self.pairs + self.queries == 0:
            return None
        dtype, kept = memory.embeddings.dtype, memory.inputs.shape[1] > 0
        asked = Views(anchors[0].to(dtype), anchors[1].to(dtype) if kept else None)
        (_, query), (_, queue) = describe(asked), describe(memory.views)
        hardest = min(self.hardest, len(memory))
        if hardest < 2:
            return None
        own_key = (samples[:, :, None] == memory.samples).any(1)  # (N, Q)
        count = (len(memory) - own_key.sum(1, keepdim=True)).clamp(max=hardest)  # (N, 1)
        nothing = (count == 0)[..., None]  # (N, 1, 1)
        count = count.clamp(min=1)  # an index that exists
        similarity = (query.units @ queue.units.T).masked_fill_(own_key, -2.0)
        chosen = similarity.topk(hardest, dim=1).indices  # (N, hardest); own keys come last

        drawn = uniforms(keys, 3 * self.pairs + 2 * self.queries)
        of_pairs, of_queries = drawn.split([3 * self.pairs, 2 * self.queries], dim=1)
        first, step, share = of_pairs.chunk(3, dim=1)
        i = (first * count).long()
        j = (i + 1 + (step * (count - 1)).long()) % count
        k, half = of_queries.chunk(2, dim=1)
        left = chosen.gather(1, torch.cat([i, (k * count).long()], dim=1))  # (N, S)
        right = chosen.gather(1, j)
        # The share of ``left``; the rest is that of ``right``, or of the query.
        a = torch.cat([1 - share, 1 - half / 2], dim=1).to(dtype)[..., None]

        def mixture(of_queue: Tensor, of_query: Tensor) -> Tensor:
            others = of_query[:, None].expand(-1, self.queries, *of_query.shape[1:])
            other = torch.cat([of_queue[right], others], dim=1)
            weight = a if other.dim() == 3 else a[..., 0]
            return torch.lerp(other, of_queue[left], weight)

        mixed = map_tensors(mixture, queue, query)
        z = normalize(mixed.units)[0] * mixed.lengths[..., None]
        z = torch.where(nothing, -asked.embeddings[:, None], z)
        return ExtraNegatives(z, mixed.inputs)


@dataclass(frozen=True)
class Patches(Checked):
    """Patches of the anchor's own image, tiled over the frame: its texture without its meaning.

    Args:
        smallest: Least side of the patch in pixels; by default a sixteenth of the image's side.
        largest: Largest side; by default a third, rounded down.
        factor: α, multiplies the logit.

    Raises:
        ValueError: If α is not positive.

    Reference:
        Ge et al. 2021, patch-based non-semantic negatives.
    """

    summary: ClassVar[str] = "tiled patches of the own image"
    section: ClassVar[str] = "patch"

    smallest: int | None = bounded(least=1, unset="a sixteenth of the image's side")
    largest: int | None = bounded(least=1, unset="a third of the image's side")
    factor: float = bounded(2.0, above=0)

    @torch.no_grad()
    def __call__(
        self,
        framework: Contrastive,
        anchors: Embedded,
        images: Tensor,
        samples: Tensor,
        keys: Tensor,
        epoch: int,
    ) -> ExtraNegatives:
        """See :class:`unremix.frameworks.contrastive.Negatives`."""
        size = images.shape[-1]
        smallest = max(1, size // 16) if self.smallest is None else self.smallest
        largest = max(smallest, size // 3) if self.largest is None else self.largest
        patches = patch_negatives(images, keys, smallest=smallest, largest=largest)
        z, h = framework.embed_keys(patches, keys)
        needs_inputs = framework.loss.weighting.needs_gradients
        inputs = h[:, None] if needs_inputs else None
        return ExtraNegatives(z[:, None], inputs, logit_factor=self.factor)
