"""SimCSE: a sentence twice, by other dropout or with other words masked, has to find itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from unremix.domains.sentence.corpus import SentenceBatch
from unremix.domains.sentence.encoders import positions
from unremix.domains.sentence.tokens import Numbering
from unremix.frameworks.randomness import uniforms


class SingleEncoder(nn.Module):
    """One encoder of sentences, which may see them under dropout.

    Args:
        inner: Maps tokens (n, L) and lengths (n,) to (n, features).
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.features: int = inner.features  # type: ignore[assignment]

    def forward(self, tokens: Tensor | SentenceBatch, lengths: Tensor | None = None) -> Tensor:
        """Sentences (n, L) of lengths (n,), or a view of them, to (n, features)."""
        if not isinstance(tokens, SentenceBatch):
            found: Tensor = self.inner(tokens, lengths)
            return found
        with _dropout(self.inner, tokens.seed, tokens.tokens.device):
            found = self.inner(tokens.tokens, tokens.lengths)
        return found


@contextmanager
def _dropout(module: nn.Module, seed: int | None, device: torch.device) -> Iterator[None]:
    """Dropout drawn from a seed, in eval mode as well; without a seed, none."""
    before = module.training
    module.train(seed is not None)
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.manual_seed(seed)
            yield
    finally:
        module.train(before)


def has_dropout(encoder: nn.Module) -> bool:
    """Whether two passes of a sentence differ in training."""
    return any(isinstance(one, nn.Dropout) and one.p > 0 for one in encoder.modules())


def masked(batch: SentenceBatch, keys: Tensor, share: float, numbering: Numbering) -> SentenceBatch:
    """Sentences with a random share of their tokens masked, by a key for each, shape (n,).

    Marks of the beginning and end stay, and so does at least one token of each sentence.
    """
    tokens = batch.tokens
    known = positions(tokens, batch.lengths)
    marks = torch.tensor(sorted(numbering.marks), device=tokens.device)
    words = known & ~torch.isin(tokens, marks)
    drawn = uniforms(keys, tokens.shape[1])
    spared = drawn == drawn.masked_fill(~words, -1).amax(1, keepdim=True)
    chosen = words & (drawn < share) & ~spared
    return replace(batch, tokens=tokens.masked_fill(chosen, numbering.mask))
