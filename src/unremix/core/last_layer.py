"""The input h of a head's last layer: recorded when it runs, or read from autograd's graph."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

# How far z may be from W h + b, relative to the largest |W h + b|, and still be the layer's output.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Recorded inputs that are kept between two calls of the loss, in bytes; beyond it, two calls.
LARGEST_RECORDINGS = 2**30
# Nodes of autograd's graph that multiply by a weight: where they keep h, and which parent is W.
MULTIPLICATIONS = {
    "AddmmBackward0": ("_saved_mat1", 2),
    "MmBackward0": ("_saved_self", 1),
    "LinearBackward0": ("_saved_input", 1),
}
# Nodes that leave every row in its place: normalization, activations, arithmetic.
ROW_BY_ROW = {
    *("Add", "Clamp", "ClampMax", "ClampMin", "Div", "Elu", "Gelu", "Hardswish", "LeakyRelu"),
    *("CudnnBatchNorm", "MiopenBatchNorm", "NativeBatchNorm", "NativeLayerNorm", "NativeDropout"),
    *("Mul", "Relu", "Sigmoid", "Silu", "Softplus", "Sub", "Tanh", "ToCopy"),
}


@dataclass(frozen=True)
class Found:
    """What is known of the layer that embeddings come from.

    Args:
        inputs: h, shape (N, H), without gradient.
        outputs: W h + b, shape (N, D), where the embeddings are made of it and may differ from it;
            None where they are the same.
    """

    inputs: Tensor
    outputs: Tensor | None = None


@dataclass
class Recording:
    """A call of the layer; a link of a chain.

    Args:
        h: Its input, if there was a call.
        dtype: The precision of its output.
        end: What the modules after it made of its output, where there are any.
        previous: The call before it, where it is kept.
    """

    h: Tensor | None = None
    dtype: torch.dtype = torch.float32
    end: Tensor | None = None
    previous: Recording | None = None


class Recorder:
    """A forward hook that keeps inputs of the layer; it knows neither layer nor loss.

    All calls in training since the last use are kept, so that a batch may be embedded in any number
    of parts. In evaluation and in compiled models two are, or in evaluation all if ``keeps_all``. A
    copy or pickle of the layer carries it along; there it records nothing.
    """

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.keeps_all = False
        self.used = False
        self.size = 0
        # Not a list of tensors: torch.compile would look into it, and compile the model again
        # whenever the shape of a recorded input changes.
        self.latest = Recording()

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Record the input of a forward call."""
        if not self.active or not inputs:
            return
        h, earlier = inputs[0].detach(), self.latest
        if torch.compiler.is_compiling() or not (layer.training or self.keeps_all):
            earlier.previous = None
        else:
            size = h.numel() * h.element_size()
            self.size += size
            if self.used or self.size > LARGEST_RECORDINGS:
                earlier.previous, self.used, self.size = None, False, size
        self.latest = Recording(h, output.dtype, None, earlier)

    def record_end(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Record what the modules after the layer made of it; a hook of the last of them."""
        if self.active and isinstance(output, Tensor):
            self.latest.end = output.detach()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (False,)

    @property
    def recordings(self) -> list[Recording]:
        """The calls that are kept, the latest first."""
        found, each = [], self.latest
        while each is not None and each.h is not None:
            found.append(each)
            each = each.previous  # type: ignore[assignment]
        return found


class Watch:
    """A recorder at a layer; it comes off when the watch is deleted. The layer is not kept alive.

    Args:
        layer: The layer.
        end: The module whose output is the embeddings, where it is not the layer.
    """

    def __init__(self, layer: nn.Linear, end: nn.Module | None = None) -> None:
        self.layer = weakref.ref(layer)
        self.end = None if end is None else weakref.ref(end)
        self.recorder = Recorder()
        self._attach(layer, self.recorder)
        if end is not None:
            self._attach(end, self.recorder.record_end)

    def modules(self) -> tuple[nn.Linear | None, nn.Module | None]:
        """The layer and the end, as far as they exist."""
        return self.layer(), None if self.end is None else self.end()

    def _attach(self, module: nn.Module, hook: Callable[..., None]) -> None:
        # What a copied module brought along would grow with every copy of a copy.
        for key, other in list(module._forward_hooks.items()):
            owner = getattr(other, "__self__", other)
            if isinstance(owner, Recorder) and not owner.active:
                del module._forward_hooks[key]
        weakref.finalize(self, module.register_forward_hook(hook).remove)


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
        found, end = _split(layer)
        self.bias = found.bias is not None
        self.watches = [Watch(found, end)]

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

    @contextmanager
    def keeping_all_calls(self) -> Iterator[None]:
        """Within it, all calls are kept in evaluation too: a batch may be embedded in parts."""
        recorders = [watch.recorder for watch in self.watches]
        for recorder in recorders:
            recorder.keeps_all = True
        try:
            yield
        finally:
            for recorder in recorders:
                recorder.keeps_all = False

    @torch.no_grad()
    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[Found, ...]:
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
        self.watches[0].recorder.used = True
        return tuple(
            self._find(f"z{number}", each, layer, check) for number, each in enumerate(embeddings)
        )

    def _find(self, name: str, given: Tensor, layer: nn.Linear, check: bool) -> Found:
        recordings = self.watches[0].recorder.recordings
        if (found := traced(given, layer.weight, layer.weight, layer.bias)) is not None:
            return found
        fits = list(_fits(layer, recordings, given))
        if fits:
            misfits = torch.stack([_misfit(given, fit.end) for fit in fits])
            if not check:
                return _best(fits, misfits, given)
            best = fits[int(misfits.argmin())]
            if bool(misfits.min() <= 1):
                inputs = best.inputs.to(given.dtype)
                nothing_follows = self.watches[0].end is None
                exact = nothing_follows and bool(_error(given, best.made) <= 1)
                return Found(inputs, None if exact else best.made.to(given.dtype))
        if not recordings:
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
            got = (
                f"shape {tuple(parameter.shape)}, requires_grad={parameter.requires_grad}"
                if is_tensor
                else type(parameter).__name__
            )
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

    @torch.no_grad()
    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[Found, ...]:
        """h for each of the given embeddings, as :meth:`LastLayer.find`."""
        found = []
        for number, given in enumerate(embeddings):
            known = (traced(given, each, each.T) for each in self.parameters)
            one = next((each for each in known if each is not None), None)
            if one is None:
                raise ValueError(
                    f"expected embeddings h @ projection with autograd's graph, got "
                    f"z{number} {tuple(given.shape)} without such a product; multiply rows (N, H) "
                    "by the parameter itself, with gradient; where there is none, as in an "
                    "evaluation, pass h0 and h1, or use a loss without projection"
                )
            found.append(one)
        return tuple(found)


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

    def find(self, *embeddings: Tensor, check: bool = True) -> tuple[Found, ...]:
        """h of both views, as :meth:`LastLayer.find`."""
        pairs = zip(self.layers, embeddings, strict=True)
        found = [layer.find(each, check=check)[0] for layer, each in pairs]
        if len({each.inputs.shape[1] for each in found}) > 1:
            lengths = [each.inputs.norm(dim=1, keepdim=True) for each in found]
            found = [replace(each, inputs=h) for each, h in zip(found, lengths, strict=True)]
        return tuple(found)


Watched = LastLayer | Projection | TwoLayers


def watch(
    last_layer: nn.Module | tuple[nn.Module, nn.Module] | None,
    projection: Tensor | tuple[Tensor, Tensor] | None,
) -> Watched | None:
    """Where h comes from, if it is known; the arguments are those of the losses."""
    if last_layer is not None and projection is not None:
        raise ValueError(
            "expected last_layer or projection, got both; pass the one that makes the embeddings"
        )
    kind: Any = LastLayer if projection is None else Projection
    given: Any = last_layer if projection is None else projection
    if not isinstance(given, tuple):
        return None if given is None else kind(given)
    if len(given) != 2:
        name = "last_layer" if projection is None else "projection"
        raise ValueError(
            f"expected {name} to be one or a pair, got {len(given)}; pass one for each encoder"
        )
    return TwoLayers(*(kind(each) for each in given))


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
    # A part of a Sequential is a Sequential of its own that nobody calls; its last module is.
    end = module
    while isinstance(end, nn.Sequential):
        end = end[-1]
    return layers[-1], None if end is layers[-1] else end


def traced(given: Tensor, leaf: Tensor, weight: Tensor, bias: Tensor | None = None) -> Found | None:
    """What autograd's graph knows of z = W h + b, possibly followed by operations row by row.

    Args:
        given: z, shape (N, D).
        leaf: W or its transpose, as the model holds it.
        weight: W, shape (D, H).
        bias: b, shape (D,).

    Returns:
        h and, where z may be something else, W h + b; None if the graph does not tell.
    """
    top: Any = given.grad_fn  # its saved values are attributes that types do not know
    start, step, size = 0, 1, given.shape[0]
    part = top is not None and top.name() in ("SplitBackward0", "SliceBackward0")
    if part:  # z is some rows of what was made in one call
        if top._saved_dim not in (0, 2**64 - given.dim()):
            return None
        whole = top.name() == "SplitBackward0"
        start = given.output_nr * top._saved_split_size if whole else top._saved_start
        step = 1 if whole else top._saved_step
        top = top.next_functions[0][0]
    while top is not None and top.name() == "ToCopyBackward0":  # the same in another precision
        top = top.next_functions[0][0]
    products = _products(top, leaf)
    if len(products) != 1:  # none, or a mixture of several calls
        return None
    (node,) = products
    try:
        h = getattr(node, MULTIPLICATIONS[node.name()][0])
    except RuntimeError:  # freed by a backward pass
        return None
    if h is None or h.dim() != 2 or not (part or h.shape[0] == size):
        return None
    if start >= 2**63:  # counted from the end
        start += h.shape[0] - 2**64
    h = h[start : start + size * step : step].detach()
    if h.shape[0] != size:
        return None
    made = None if node is top else linear(h.to(weight), weight, bias).to(given.dtype)
    return Found(h.to(given.dtype), made)


def _products(top: Any, leaf: Tensor) -> list[Any]:
    """The nodes that multiply by a leaf, from which operations row by row lead to a node."""
    found: list[Any] = []
    waiting: list[Any] = [top]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() in MULTIPLICATIONS:
            weight = node.next_functions[MULTIPLICATIONS[node.name()][1]][0]
            if _leads_to(weight, leaf):
                found.append(node)
        elif node.name().rstrip("0123456789").removesuffix("Backward") in ROW_BY_ROW:
            waiting += [parent for parent, _ in node.next_functions]
    return found


def _leads_to(node: Any, leaf: Tensor) -> bool:
    """Whether a node of the graph is a leaf, up to its precision and its transpose."""
    same = ("TBackward0", "ToCopyBackward0", "TransposeBackward0")
    while node is not None and node.name() in same:
        node = node.next_functions[0][0]
    return node is not None and getattr(node, "variable", None) is leaf


class Fit(NamedTuple):
    """Recorded rows that may be those of given embeddings."""

    inputs: Tensor  # h, shape (N, H)
    made: Tensor  # W h + b, shape (N, D)
    end: Tensor  # what the modules after the layer made of it, shape (N, D)


def _fits(layer: nn.Linear, recordings: list[Recording], given: Tensor) -> Iterator[Fit]:
    """The rows of the recordings that are as many as those of ``given``, by their shapes alone.

    Recordings are run as a whole and in their own precision: bit for bit what the layer made.
    """
    weight, bias = layer.weight, layer.bias
    calls: list[Fit] = []  # the latest first
    for recording in recordings:
        h, dtype, end = recording.h, recording.dtype, recording.end
        if h is None or h.dim() != 2 or h.shape[1] != weight.shape[1]:
            continue
        made = linear(h.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        if end is None:
            end = made
        if end.dim() == 2 and end.shape == (h.shape[0], given.shape[1]):
            calls.append(Fit(h, made, end))
    size = given.shape[0]
    for call in calls:
        if call.inputs.shape[0] % size == 0:
            yield from _cut(call, size)
    # Calls with parts of a batch: all of one view, then of the other; in turns; both in each call.
    halves = [_cut(call, -(-call.inputs.shape[0] // 2)) for call in calls]
    first, second = ([half[k] for half in halves if k < len(half)] for k in (0, 1))
    for sequence in (calls, calls[::2], calls[1::2], first, second):
        gathered: list[Fit] = []
        for call in sequence:
            gathered.insert(0, call)
            rows = sum(each.inputs.shape[0] for each in gathered)
            if rows == size and len(gathered) > 1:
                yield Fit(*(torch.cat(each) for each in zip(*gathered, strict=True)))
            if rows >= size:
                gathered = []


def _cut(call: Fit, size: int) -> list[Fit]:
    """Parts of a call, of so many rows each."""
    return [Fit(*part) for part in zip(*(each.split(size) for each in call), strict=True)]


def _best(fits: list[Fit], misfits: Tensor, given: Tensor) -> Found:
    """The rows that fit best, without waiting for the device; NaN if they do not fit."""
    best = misfits.argmin(keepdim=True)
    inputs, made = (
        torch.stack([each.to(given.dtype) for each in tensors]).index_select(0, best)[0]
        for tensors in ([fit.inputs for fit in fits], [fit.made for fit in fits])
    )
    return Found(torch.where(misfits.min() <= 1, inputs, torch.nan), made)


def _misfit(given: Tensor, end: Tensor) -> Tensor:
    """How far embeddings, or their directions, are from what was made; a scalar, at most 1."""
    directions = normalize(given.to(end), dim=1), normalize(end, dim=1)
    return torch.minimum(_error(given, end), _error(*directions))


def _error(given: Tensor, made: Tensor) -> Tensor:
    """The largest error relative to the largest value, in units of what is tolerated; a scalar."""
    scale = made.abs().max().clamp(min=torch.finfo(made.dtype).tiny)
    error: Tensor = (made - given.to(made)).abs().max() / scale
    return error.float() / TOLERANCE[made.dtype]


def sketch(inputs: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Project h to ``size`` dimensions so that inner products are kept on average.

    h' = sqrt(H/size) Qᵀ h with Q a random orthonormal (H, size): E[h'_i · h'_j] = h_i · h_j over
    draws of Q. At ``size`` ≥ H nothing is projected.

    Args:
        inputs: h, shape (..., H).
        size: Dimensions kept.
        seed: Draws Q; the same seed gives the same Q.

    Returns:
        Shape (..., min(size, H)).
    """
    width = inputs.shape[-1]
    if size >= width:
        return inputs
    return inputs @ _projection(width, size, seed, inputs.dtype, inputs.device)


def _projection(*settings: Any) -> Tensor:
    """Q as :func:`_draw_projection` makes it; ``torch.compile`` takes it for a constant."""
    return _draw_projection(*settings)


# What torch.compiler.assume_constant_result does, which would import Dynamo, for seconds.
_projection._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _draw_projection(
    width: int, size: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(gaussian)
    # Signs make the factorization unique, so that Q is uniformly distributed.
    scaled: Tensor = basis * triangle.diagonal().sign() * math.sqrt(width / size)
    return scaled.to(device, dtype)
