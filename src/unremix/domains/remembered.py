"""Features that an encoder has computed, kept for as long as its weights stay as they are.

So the last measurement during training, the evaluation and the report share one pass over the data.
"""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

MOST_BYTES = 1 << 30  # of the features of a split

Computed = TypeVar("Computed")
_kept: WeakKeyDictionary[nn.Module, dict[Any, tuple[Any, Any, Any]]] = WeakKeyDictionary()


def remember(
    encoder: nn.Module | None, split: Any, features: Computed, count: int | None = None
) -> Computed:
    """Keep what an encoder made of a split, or of its first samples; returns it.

    Args:
        encoder: The encoder; nothing is kept without one.
        split: The samples, by their identity; once they are gone, so are the features.
        features: Features (n, F), perhaps with more tensors in a tuple.
        count: How many of the samples; all by default.
    """
    tensors = features if isinstance(features, tuple) else (features,)
    size = sum(one.numel() * one.element_size() for one in tensors if isinstance(one, Tensor))
    if encoder is not None and size <= MOST_BYTES:
        kept, key = _kept.setdefault(encoder, {}), (id(split), count)
        # Kept only while the samples are alive: an encoder may see many splits.
        kept[key] = (ref(split, lambda _: kept.pop(key, None)), _state(encoder), features)
    return features


def recall(encoder: nn.Module | None, split: Any, count: int | None = None) -> Any:
    """What :func:`remember` kept, if the weights are the same; else None."""
    if encoder is None or (id(split), count) not in _kept.get(encoder, {}):
        return None
    whose, state, features = _kept[encoder][id(split), count]
    return features if whose() is split and state == _state(encoder) else None


def forget(encoder: nn.Module) -> None:
    """Forget what an encoder has computed: its weights have changed, perhaps without a trace.

    Fused optimizers write to the weights without telling torch, so each step calls this.
    """
    _kept.pop(encoder, None)


def _state(encoder: nn.Module) -> list[tuple[int, int]]:
    """What changes whenever a weight or a buffer does."""
    return [(id(one), one._version) for one in (*encoder.parameters(), *encoder.buffers())]
