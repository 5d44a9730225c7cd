"""The input h of a head's last layer: read from autograd's graph, or recorded when it runs."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unremix.core.last_layer.recorded import Watch, recorded
from unremix.core.last_layer.traced import LayerInputs, traced


class LastLayer:
    """The inputs h with which a linear layer made given embeddings z.

    The embeddings are the layer's output W h + b, or what follows the layer makes of it, such as
    BatchNorm, an activation or normalization.

    The layer is referred to, not owned. Copying or pickling this together with the layer's model
    gives a pair that belong together. A copy made without the model watches the original layer, a
    pickle made without it watches none.

    Args:
        layer: A linear layer, or a module whose last linear layer it is: a head, or the part of a
            head from the linear layer on.

    Raises:
        ValueError: If it holds no linear layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        linear, end = _split(layer)
        self.bias = linear.bias is not None
        self.watches = [Watch(linear, end)]

    def __getstate__(self) -> dict[str, Any]:
        watched = [watch.modules() for watch in self.watches if watch.layer() is not None]
        return {"bias": self.bias, "watched": watched[0] if watched else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.bias, watched = state["bias"], state["watched"]
        self.watches = [] if watched is None else [Watch(*watched)]

    def __deepcopy__(self, memo: dict[int, Any]) -> LastLayer:
        twin = LastLayer.__new__(LastLayer)
        twin.__setstate__(deepcopy(self.__getstate__(), memo))
        # The copied layer outlives the copying only if a model was copied that holds it.
        twin.watches += self.watches
        return twin

    def release(self) -> None:
        """Let the next call of the layer take the place of those that are kept."""
        for watch in self.watches:
            watch.recorder.used = True

    @torch.no_grad()
    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[LayerInputs, ...]:
        """h for each of the given embeddings.

        Autograd's graph tells which input the layer's weight was multiplied with. Without it, a
        recorded input counts only if the layer, as it is now, maps it to the embeddings given, up
        to their lengths: nothing stale is ever returned.

        Args:
            embeddings: z, each (N, D); parts of one call, a call each, or several calls each.
            check: Whether to wait for the comparison and raise an error where none fits. Without
                it, inputs that do not fit are NaN, and so is the loss.

        Returns:
            h of each, and W h + b where that is not z.

        Raises:
            ValueError: If h is not found.
        """
        self.watches = [watch for watch in self.watches if watch.layer() is not None][:1]
        layer = self.watches[0].layer() if self.watches else None
        if layer is None:
            raise ValueError(
                "expected last_layer to exist, got a loss whose layer was deleted or not pickled "
                "with it; make a new loss with last_layer=..., or pass h0 and h1"
            )
        self.release()
        return tuple(
            self._find(f"z{number}", each, layer, check) for number, each in enumerate(embeddings)
        )

    def _find(self, name: str, given: Tensor, layer: nn.Linear, check: bool) -> LayerInputs:
        watch = self.watches[0]
        inputs = None
        if not torch.compiler.is_compiling():  # there, no graph exists yet
            inputs = traced(given, layer.weight, layer.weight, layer.bias)
        if inputs is None:
            inputs = recorded(given, layer, watch, check=check)
        if inputs is not None:
            return inputs
        if not (recordings := watch.recorder.recordings):
            raise ValueError(
                "expected last_layer to have run before the loss, got no recording: it was never "
                "called, or by a model that was compiled before the loss was made; make the loss "
                "before the first call and pass what last_layer made, or h0 and h1"
            )
        known = [each.h for each in recordings[:4] if each.h is not None]
        shapes = " and ".join(str(tuple(h.shape)) for h in known)
        raise ValueError(
            "expected embeddings that last_layer made in its last calls, got "
            f"{name} {tuple(given.shape)}, which it does not make of the recorded inputs {shapes}; "
            "pass its outputs from this step; if BatchNorm or an activation follows the linear "
            "layer, pass both as last_layer, such as head[-2:]; or pass h0 and h1"
        )


class Projection:
    """The inputs h with which a parameter P, shape (H, D), made embeddings z = h P, as in CLIP.

    They are read from autograd's graph, so the embeddings need one.

    Args:
        parameter: P, a tensor with gradient; it is referred to, and no parameter of the loss.

    Raises:
        ValueError: If it is not such a tensor.
    """

    bias = False

    def __init__(self, parameter: Tensor) -> None:
        is_tensor = isinstance(parameter, Tensor)
        if not is_tensor or parameter.dim() != 2 or not parameter.requires_grad:
            got = type(parameter).__name__
            if is_tensor:
                got = f"shape {tuple(parameter.shape)}, requires_grad={parameter.requires_grad}"
            raise ValueError(
                "expected projection to be a parameter of shape (H, D) with gradient, that "
                f"embeddings h @ projection are made with, got {got}; pass h0 and h1 with each call"
            )
        self.parameters = [parameter]

    def __deepcopy__(self, memo: dict[int, Any]) -> Projection:
        twin = Projection.__new__(Projection)
        # The copy is used only if a model was copied that holds it.
        twin.parameters = [deepcopy(self.parameters[0], memo), *self.parameters]
        return twin

    def release(self) -> None:
        """Nothing is kept."""

    @torch.no_grad()
    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[LayerInputs, ...]:
        """h for each of the given embeddings, as :meth:`LastLayer.find`."""
        inputs = []
        for number, given in enumerate(embeddings):
            known = (traced(given, each, each.T) for each in self.parameters)
            one = next((each for each in known if each is not None), None)
            if one is None:
                raise ValueError(
                    f"expected embeddings h @ projection with a gradient, got {tuple(given.shape)} "
                    f"of view {number} in whose graph no such product is found (without gradient, "
                    "under torch.compile, or projections in another order); name the layers by "
                    "last_layer=, compile the encoder's parts alone, or leave the projection out"
                )
            inputs.append(one)
        return tuple(inputs)


class TwoLayers:
    """The layers of two encoders, of the first views and of the second.

    Inputs of different widths have no inner product: their lengths take their place.

    Args:
        first: Of the first views.
        second: Of the second views.
    """

    def __init__(self, first: LastLayer | Projection, second: LastLayer | Projection) -> None:
        self.layers = (first, second)
        self.bias = first.bias and second.bias

    def release(self) -> None:
        """As :meth:`LastLayer.release`."""
        for layer in self.layers:
            layer.release()

    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[LayerInputs, ...]:
        """h of both views, as :meth:`LastLayer.find`."""
        pairs = zip(self.layers, embeddings, strict=True)
        inputs = [layer.find(each, check=check)[0] for layer, each in pairs]
        if len({each.inputs.shape[1] for each in inputs}) > 1:
            lengths = [each.inputs.norm(dim=1, keepdim=True) for each in inputs]
            inputs = [replace(each, inputs=h) for each, h in zip(inputs, lengths, strict=True)]
        return tuple(inputs)


Watched = LastLayer | Projection | TwoLayers


def watch(
    last_layer: nn.Module | tuple[nn.Module | Tensor, nn.Module | Tensor] | None,
    projection: Tensor | tuple[Tensor, Tensor] | None,
) -> Watched | None:
    """Where h comes from, if it is known; the arguments are those of the losses."""
    if last_layer is not None and projection is not None:
        raise ValueError(
            "expected last_layer or projection, got both; pass the one that makes the embeddings"
        )
    given: Any = last_layer if projection is None else projection
    if given is None:
        return None
    encoders = given if isinstance(given, tuple) else (given,)
    if isinstance(given, tuple) and len(given) != 2:
        name = "last_layer" if projection is None else "projection"
        raise ValueError(
            f"expected {name} to be one or a pair, got {len(given)}; pass one for each encoder"
        )
    layers = [
        LastLayer(each) if projection is None and not isinstance(each, Tensor) else Projection(each)
        for each in encoders
    ]
    return TwoLayers(*layers) if len(layers) == 2 else layers[0]


def _split(module: nn.Module) -> tuple[nn.Linear, nn.Module | None]:
    """The last linear layer of a module, and the module that ends it, where it is another."""
    modules = module.modules() if isinstance(module, nn.Module) else ()
    layers = [each for each in modules if isinstance(each, nn.Linear)]
    if not layers:
        raise ValueError(
            "expected last_layer to be a torch.nn.Linear, or a module that holds one, got "
            f"{type(module).__name__}; pass the projection head, or its part from the last linear "
            "layer on, such as head[-2:], or h0 and h1 with each call"
        )
    # Slicing a Sequential makes a new one that is never called itself; its last module is.
    end = module
    while isinstance(end, nn.Sequential):
        end = end[-1]
    return layers[-1], None if end is layers[-1] else end
