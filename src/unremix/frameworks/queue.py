"""Queues of fixed length: the oldest rows make room for new ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unremix.core.checks import check_positive
from unremix.core.views import Views


def enqueue(queue: Tensor, pointer: int, rows: Tensor) -> int:
    """Write rows over the oldest ones of a queue; of more rows than fit, the last stay.

    Args:
        queue: Shape (L, ...); changed in place.
        pointer: Where the oldest row stands.
        rows: From the oldest to the latest, shape (n, ...).

    Returns:
        Where the oldest row stands now.

    Example:
        >>> queue = torch.tensor([1, 2, 3])
        >>> enqueue(queue, 0, torch.tensor([4, 5])), queue
        (2, tensor([4, 5, 3]))
    """
    length, end = len(queue), pointer + len(rows)
    rows = rows[-length:]
    places = torch.arange(end - len(rows), end, device=queue.device) % length
    queue[places] = rows.to(queue)
    return end % length


class Queue(nn.Module):
    """The latest keys, first in, first out: z = |z| f, h and the sample of each.

    Any number of keys may be added at a time, and any number kept. It starts empty: until it is
    full, only what was added counts. Its state, pointer included, is part of ``state_dict``.

    Args:
        size: Keys kept.
        width: D.
        input_width: H; 0 where h is not needed.

    Raises:
        ValueError: If no key is to be kept.

    Example:
        >>> queue = Queue(2, width=1)
        >>> queue.add(torch.tensor([[1.0], [2.0], [3.0]]), None, torch.tensor([7, 8, 9]))
        >>> queue.samples
        tensor([8, 9])
    """

    embeddings: Tensor
    inputs: Tensor
    sample_ids: Tensor
    added: Tensor

    def __init__(self, size: int, width: int, input_width: int = 0) -> None:
        super().__init__()
        check_positive(size=size)
        self.size = size
        self.register_buffer("embeddings", torch.zeros(size, width))
        self.register_buffer("inputs", torch.zeros(size, input_width))
        self.register_buffer("sample_ids", torch.zeros(size, dtype=torch.long))
        self.register_buffer("added", torch.zeros((), dtype=torch.long))
        self._count = 0  # the same on the host, so that nothing waits for the device

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._count = int(self.added)

    def __len__(self) -> int:
        return min(self._count, self.size)

    @property
    def views(self) -> Views:
        """The keys, oldest first."""
        order = self._order()
        h = self.inputs[order] if self.inputs.shape[1] else None
        return Views(self.embeddings[order], h, self.sample_ids[order])

    @property
    def samples(self) -> Tensor:
        """The sample of each key, oldest first."""
        return self.sample_ids[self._order()]

    def _order(self) -> Tensor:
        added, kept = self._count, len(self)
        return torch.arange(added - kept, added, device=self.added.device) % self.size

    @torch.no_grad()
    def add(self, embeddings: Tensor, inputs: Tensor | None, samples: Tensor) -> None:
        """Add keys; the oldest make room.

        Args:
            embeddings: z, shape (n, D).
            inputs: h, shape (n, H), where they are kept.
            samples: Shape (n,).
        """
        enqueue(self.embeddings, self._count, embeddings)
        if self.inputs.shape[1] and inputs is not None:
            enqueue(self.inputs, self._count, inputs)
        enqueue(self.sample_ids, self._count, samples)
        self.added += len(samples)
        self._count += len(samples)
