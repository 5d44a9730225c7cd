"""The input h of a head's last layer, recorded when the layer runs."""

from __future__ import annotations

import weakref
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# How far z may be from W h + b, relative to the largest |W h + b|, and still be the layer's output.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass
class Recording:
    """A call of the layer: its input h, if there was a call, and the precision of its output."""

    h: Tensor | None = None
    dtype: torch.dtype = torch.float32


class Recorder:
    """A forward hook that keeps the inputs of the last two calls; it knows neither layer nor loss.

    A copy or pickle of the layer carries it along; there it records nothing.
    """

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        # Not a list of tensors: torch.compile would look into it, and compile the model again
        # whenever the shape of a recorded input changes.
        self.latest = Recording()
        self.previous = Recording()

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Record the input of a forward call."""
        if self.active and inputs:
            self.previous = self.latest
            self.latest = Recording(inputs[0].detach(), output.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inactive, ()

    @property
    def recordings(self) -> list[tuple[Tensor, torch.dtype]]:
        """Input and precision of the last two calls, the latest first."""
        both = (self.latest, self.previous)
        return [(recording.h, recording.dtype) for recording in both if recording.h is not None]


def _inactive() -> Recorder:
    return Recorder(active=False)


class Watch:
    """A recorder at a layer; it comes off when the watch is deleted. The layer is not kept alive.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        # What a copied layer brought along would grow with every copy of a copy.
        for key, hook in list(layer._forward_hooks.items()):
            if isinstance(hook, Recorder) and not hook.active:
                del layer._forward_hooks[key]
        self.layer = weakref.ref(layer)
        self.recorder = Recorder()
        weakref.finalize(self, layer.register_forward_hook(self.recorder).remove)


class LastLayer:
    """The inputs h with which a linear layer made given outputs z.

    The layer is referred to, not owned. Copying or pickling this together with the layer's model
    gives a pair that belong together. A copy made without the model watches the original layer, a
    pickle made without it watches none.

    Args:
        layer: The layer.

    Raises:
        ValueError: If it is not linear.
    """

    def __init__(self, layer: nn.Linear) -> None:
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"expected last_layer to be a torch.nn.Linear, got {type(layer).__name__}; "
                "pass the projection head's last linear layer, or h0 and h1 with each call"
            )
        self.bias = layer.bias is not None
        self.watches = [Watch(layer)]

    def __getstate__(self) -> dict[str, Any]:
        layers = [layer for watch in self.watches if (layer := watch.layer()) is not None]
        return {"bias": self.bias, "layer": layers[0] if layers else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.bias, layer = state["bias"], state["layer"]
        self.watches = [] if layer is None else [Watch(layer)]

    def __deepcopy__(self, memo: dict[int, Any]) -> LastLayer:
        twin = LastLayer.__new__(LastLayer)
        twin.__setstate__(deepcopy(self.__getstate__(), memo))
        # The copied layer outlives the copying only if a model was copied that holds it.
        twin.watches += self.watches
        return twin

    @torch.no_grad()
    def inputs_of(self, *outputs: Tensor, check: bool = True) -> tuple[Tensor, ...]:
        """h for each of the given outputs, which must come from the last one or two calls.

        An input counts only if the layer, as it is now, maps it to the output given: nothing stale
        is ever returned.

        Args:
            outputs: z, each (N, D); parts of one call, or of two.
            check: Whether to wait for the comparison and raise an error where none fits. Without
                it, inputs that do not fit are NaN, and so is the loss.

        Returns:
            h, each (N, H), without gradient.

        Raises:
            ValueError: If there is no such recording.
        """
        layer, recordings = self._look()
        found = []
        for number, output in enumerate(outputs):
            fits = [
                (part.to(output.dtype), _misfit(output, made))
                for h, dtype in recordings
                for part, made in _parts(layer, h, dtype, output)
            ]
            inputs, misfit = _best(fits) if fits else (None, None)
            if inputs is None or misfit is None or (check and not bool(misfit <= 1)):
                shapes = " and ".join(str(tuple(h.shape)) for h, _ in recordings)
                raise ValueError(
                    "expected embeddings that last_layer made in its last two calls, got "
                    f"z{number} {tuple(output.shape)}, which it does not make of the recorded "
                    f"inputs {shapes}; pass its outputs unchanged and from this step, or h0 and h1"
                )
            found.append(inputs if check else torch.where(misfit <= 1, inputs, torch.nan))
        return tuple(found)

    def _look(self) -> tuple[nn.Linear, list[tuple[Tensor, torch.dtype]]]:
        """The layer and its recordings, the latest first."""
        self.watches = [watch for watch in self.watches if watch.layer() is not None][:1]
        layer = self.watches[0].layer() if self.watches else None
        if layer is None:
            raise ValueError(
                "expected last_layer to exist, got a loss whose layer was deleted or not pickled "
                "with it; make a new loss with last_layer=..., or pass h0 and h1"
            )
        recordings = self.watches[0].recorder.recordings
        if not recordings:
            raise ValueError(
                "expected last_layer to have run before the loss, got no recording: it was never "
                "called, or by a model that was compiled before the loss was made; make the loss "
                "before the first call and pass what last_layer made, or h0 and h1"
            )
        return layer, recordings


def _parts(
    layer: nn.Linear, h: Tensor, dtype: torch.dtype, output: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The parts of a recording with as many rows as ``output``, and what the layer makes of them.

    The recording is run as a whole and in its own precision: bit for bit what the layer made.
    """
    weight, bias, size = layer.weight, layer.bias, output.shape[0]
    fits = h.dim() == 2 and h.shape[0] in (size, 2 * size) and h.shape[1] == weight.shape[1]
    if not fits or weight.shape[0] != output.shape[1]:
        return []
    made = linear(h.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return list(zip(h.split(size), made.split(size), strict=True))


def _misfit(output: Tensor, made: Tensor) -> Tensor:
    """How far an output is from what was made, in units of what is tolerated; a scalar."""
    scale = made.abs().max().clamp(min=torch.finfo(made.dtype).tiny)
    error: Tensor = (made - output.to(made)).abs().max() / scale
    return error.float() / TOLERANCE[made.dtype]


def _best(fits: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The inputs that fit best, and how badly they fit, without waiting for the device."""
    misfits = torch.stack([misfit for _, misfit in fits])
    best = misfits.argmin(keepdim=True)
    return torch.stack([inputs for inputs, _ in fits]).index_select(0, best)[0], misfits.min()
