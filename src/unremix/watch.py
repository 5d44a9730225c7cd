"""Watch a linear layer and keep its latest inputs."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# How far z may be from W h + b, relative to the largest |z|, and still be the layer's output.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Recorder:
    """A forward hook that keeps the inputs of the last two calls; it knows neither layer nor loss.

    Copies and pickles start empty.
    """

    def __init__(self) -> None:
        self.recordings: deque[tuple[Tensor, torch.dtype]] = deque(maxlen=2)

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Record the input of a forward call."""
        self.recordings.append((inputs[0].detach(), output.dtype))

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()


def _unhook(layer: weakref.ref[nn.Linear], recorder: Recorder) -> None:
    watched = layer()
    if watched is not None:
        for key, hook in list(watched._forward_hooks.items()):
            if hook is recorder:
                del watched._forward_hooks[key]


class LastLayer:
    """The inputs h with which a linear layer made given outputs z.

    The layer is referred to, not owned. Copying or pickling this together with the layer's model
    gives a pair that belong together; a copy made without the model keeps watching the original.

    Args:
        layer: The layer.

    Raises:
        ValueError: If it is not linear.
    """

    def __init__(self, layer: nn.Linear) -> None:
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"expected last_layer to be a torch.nn.Linear, received {type(layer).__name__}; "
                "hand over the projection head's last linear layer, or h0 and h1 with each call"
            )
        self.layer = layer
        self.recorder = Recorder()
        self.original: weakref.ref[LastLayer] | None = None
        layer.register_forward_hook(self.recorder)
        self._unhook_with_me()

    def _unhook_with_me(self) -> None:
        weakref.finalize(self, _unhook, weakref.ref(self.layer), self.recorder)

    @property
    def bias(self) -> bool:
        """Whether the layer has a bias."""
        return self.layer.bias is not None

    def __getstate__(self) -> dict[str, Any]:
        # The layer's own hooks refer to the same recorder, so the two stay together.
        return {"layer": self.layer, "recorder": self.recorder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.layer, self.recorder = state["layer"], state["recorder"]
        self.original = None
        self._unhook_with_me()

    def __deepcopy__(self, memo: dict[int, Any]) -> LastLayer:
        from copy import deepcopy

        twin = LastLayer.__new__(LastLayer)
        memo[id(self)] = twin
        twin.__setstate__(deepcopy(self.__getstate__(), memo))
        twin.original = weakref.ref(self)
        return twin

    def inputs_of(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """H for each of the given outputs, which must come from the last one or two calls.

        An input counts only if the layer, as it is now, maps it to the output given: nothing stale
        is ever returned.

        Args:
            outputs: z, each (N, D); parts of one call, or of two.

        Returns:
            h, each (N, H), without gradient.

        Raises:
            ValueError: If there is no such recording.
        """
        found = [self._find(output) for output in outputs]
        if all(h is not None for h in found):
            return tuple(h for h in found if h is not None)
        original = self.original() if self.original is not None else None
        if original is not None and not self.recorder.recordings:
            return original.inputs_of(*outputs)
        if not self.recorder.recordings:
            raise ValueError(
                "expected last_layer to have run before the loss, received no recording: its "
                "forward was never called (or ran inside a model compiled before the loss was "
                "made); pass the embeddings through last_layer itself, or hand h0 and h1 over"
            )
        shapes = [tuple(h.shape) for h, _ in self.recorder.recordings]
        missing = [f"z{i} {tuple(outputs[i].shape)}" for i, h in enumerate(found) if h is None]
        raise ValueError(
            f"expected embeddings that last_layer made in its last two calls, received "
            f"{' and '.join(missing)} which it did not make from the recorded inputs of shape "
            f"{shapes}; hand over its outputs unchanged and from this step, or h0 and h1"
        )

    def _find(self, output: Tensor) -> Tensor | None:
        size = output.shape[0]
        for recorded, dtype in reversed(self.recorder.recordings):
            if recorded.dim() != 2 or recorded.shape[0] not in (size, 2 * size):
                continue
            h: Tensor
            for h in recorded.split(size):
                if self._makes(h, output, dtype):
                    return h
        return None

    @torch.no_grad()
    def _makes(self, h: Tensor, output: Tensor, dtype: torch.dtype) -> bool:
        weight, bias = self.layer.weight, self.layer.bias
        if h.shape[1] != weight.shape[1] or output.shape[1] != weight.shape[0]:
            return False
        # In the precision the layer ran in, autocast included.
        made = linear(h.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        difference = (made - output.detach().to(made)).abs().max()
        return bool(difference <= TOLERANCE[dtype] * made.abs().max())
