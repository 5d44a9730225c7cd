"""The inputs h of a layer, recorded when it runs; and which of them made given embeddings."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from unremix.core.last_layer.traced import LayerInputs

# How far z may be from W h + b, relative to the largest |W h + b|, and still be the layer's output.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Recorded inputs that are kept between two calls of the loss, in bytes; beyond it, two calls.
LARGEST_RECORDINGS = 2**30


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
    of parts. In evaluation and in compiled models two are; see also :func:`recording`. A
    copy or pickle of the layer carries it along; there it records nothing.

    Attributes:
        mode: What all recorders do: within ``parts`` they keep all calls, within ``none`` no call.
    """

    mode: ClassVar[str] = "usual"

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.used = False
        self.size = 0
        # Not a list of tensors: torch.compile would look into it, and compile the model again
        # whenever the shape of a recorded input changes.
        self.latest = Recording()

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Record the input of a forward call."""
        if not self.active or not inputs or Recorder.mode == "none":
            return
        keeps_all = layer.training or Recorder.mode == "parts"
        h, earlier = inputs[0].detach(), self.latest
        if torch.compiler.is_compiling() or not keeps_all:
            earlier.previous = None
        else:
            size = h.numel() * h.element_size()
            self.size += size
            if self.used or self.size > LARGEST_RECORDINGS:
                earlier.previous, self.used, self.size = None, False, size
        self.latest = Recording(h, output.dtype, None, earlier)

    def record_end(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Record what the modules after the layer made of it; a hook of the last of them."""
        if self.active and Recorder.mode != "none" and isinstance(output, Tensor):
            self.latest.end = output.detach()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (False,)

    @property
    def recordings(self) -> list[Recording]:
        """The calls that are kept, the latest first."""
        calls, each = [], self.latest
        while each is not None and each.h is not None:
            calls.append(each)
            each = each.previous  # type: ignore[assignment]
        return calls


@contextmanager
def recording(mode: str) -> Iterator[None]:
    """Within it, all recorders have a mode: ``parts``, for a batch that is embedded in parts."""
    before, Recorder.mode = Recorder.mode, mode
    try:
        yield
    finally:
        Recorder.mode = before


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


def recorded(given: Tensor, layer: nn.Linear, watch: Watch, *, check: bool) -> LayerInputs | None:
    """What the recordings tell of embeddings: those that the layer, as it is now, maps to them.

    Args:
        given: z, shape (N, D).
        layer: The layer.
        watch: Its watch.
        check: Whether to wait for the comparison; without it, inputs that do not fit are NaN.

    Returns:
        h and, where z may be something else, W h + b; None if nothing fits.
    """
    fits = list(_fits(layer, watch.recorder.recordings, given))
    if not fits:
        return None
    misfits = torch.stack([_misfit(given, fit.end) for fit in fits])
    if not check:
        return _best(fits, misfits, given)
    if not bool(misfits.min() <= 1):
        return None
    best = fits[int(misfits.argmin())]
    exact = watch.end is None and bool(_error(given, best.made) <= 1)
    return LayerInputs(best.inputs.to(given.dtype), None if exact else best.made.to(given.dtype))


def whole(parameter: Tensor) -> Tensor:
    """A parameter, also where each process holds a part of it (FSDP); all ask for it together."""
    full: Tensor | None = getattr(parameter, "full_tensor", lambda: None)()
    return parameter if full is None else full


class Fit(NamedTuple):
    """Recorded rows that may be those of given embeddings."""

    inputs: Tensor  # h, shape (N, H)
    made: Tensor  # W h + b, shape (N, D)
    end: Tensor  # what the modules after the layer made of it, shape (N, D)


def _fits(layer: nn.Linear, recordings: list[Recording], given: Tensor) -> Iterator[Fit]:
    """The rows of the recordings that are as many as those of ``given``, by their shapes alone.

    Recordings are run as a whole and in their own precision: bit for bit what the layer made.
    """
    weight = whole(layer.weight)
    bias = None if layer.bias is None else whole(layer.bias)
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


def _best(fits: list[Fit], misfits: Tensor, given: Tensor) -> LayerInputs:
    """The rows that fit best, without waiting for the device; NaN if they do not fit."""
    best = misfits.argmin(keepdim=True)
    inputs, made = (
        torch.stack([each.to(given.dtype) for each in tensors]).index_select(0, best)[0]
        for tensors in ([fit.inputs for fit in fits], [fit.made for fit in fits])
    )
    return LayerInputs(torch.where(misfits.min() <= 1, inputs, torch.nan), made)


def _misfit(given: Tensor, end: Tensor) -> Tensor:
    """How far embeddings, or their directions, are from what was made; a scalar, at most 1."""
    directions = normalize(given.to(end), dim=1), normalize(end, dim=1)
    return torch.minimum(_error(given, end), _error(*directions))


def _error(given: Tensor, made: Tensor) -> Tensor:
    """The largest error relative to the largest value, in units of what is tolerated; a scalar."""
    scale = made.abs().max().clamp(min=torch.finfo(made.dtype).tiny)
    error: Tensor = (made - given.to(made)).abs().max() / scale
    return error.float() / TOLERANCE[made.dtype]
