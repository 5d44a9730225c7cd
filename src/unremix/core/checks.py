"""Checks of options and tensors, and the errors they raise: expected, got, remedy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from unremix.core.views import Views


def check_choice(name: str, value: Any, choices: Sequence[str]) -> Any:
    """The value, if it is one of the choices; else a ValueError that names the nearest."""
    if isinstance(value, str) and value in choices:
        return value
    near = get_close_matches(str(value), choices, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "choose one of these"
    raise ValueError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}; {remedy}")


def check_number(
    name: str,
    value: float,
    *,
    above: float = -inf,
    least: float = -inf,
    below: float = inf,
    most: float = inf,
) -> float:
    """The value as a float, if it is a number in the bounds; else a ValueError."""
    given: object = value  # NumPy's numbers are accepted too
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if is_number and above < value < below and least <= value <= most:
        return float(value)
    limits = {"above": above, "at least": least, "at most": most, "below": below}
    bounds = [f"{words} {limit:g}" for words, limit in limits.items() if abs(limit) < inf]
    if most == below:  # there is no upper one
        bounds.append("finite")
    raise ValueError(
        f"expected {name} to be a number {', '.join(bounds)}, got {value!r}; change it"
    )


def check_count(name: str, value: int, least: int, remedy: str) -> None:
    """Refuse all but whole numbers of at least ``least``; ``remedy`` ends the error."""
    given: object = value  # NumPy's numbers are accepted too
    if isinstance(given, bool) or not isinstance(given, Integral) or value < least:
        raise ValueError(
            f"expected {name} to be a whole number of at least {least}, got {value!r}; {remedy}"
        )


def check_positive(**counts: int | None) -> None:
    """Refuse all but whole numbers of at least 1, each under its name; None is not given."""
    for name, count in counts.items():
        if count is not None:
            check_count(name, count, 1, "change it")


def checks_on(check: bool | None, like: Tensor) -> bool:
    """Whether to make checks that wait for the device.

    Args:
        check: True or False decides; None makes them for tensors on the CPU.
        like: A tensor on the device. Nothing is checked while ``torch.compile`` traces.
    """
    if torch.compiler.is_compiling():
        return False
    return like.device.type == "cpu" if check is None else check


def to_device_of(like: Tensor, value: Tensor, name: str) -> Tensor:
    """A tensor of the loss on the device of the embeddings; warns where it has to be copied there.

    Args:
        like: The embeddings.
        value: The tensor.
        name: What it is, for the message.
    """
    if value.device != like.device and not torch.compiler.is_compiling():
        warnings.warn(
            f"expected the loss on {like.device}, got its {name} on {value.device}, from where it "
            "is copied in every step; call loss_fn.to(device)",
            stacklevel=5,
        )
    return value.to(like.device)


def check_temperature(temperature: Tensor | float, check: bool | None) -> None:
    """Refuse a temperature that is not one number and, where checks are made, not above 0."""
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, above=0)
    elif temperature.numel() != 1:
        raise ValueError(
            f"expected temperature to be one number, got a tensor of shape "
            f"{tuple(temperature.shape)}; pass one for all anchors"
        )
    elif checks_on(check, temperature):
        check_number("temperature", float(temperature.detach()), above=0)


def check_indices(name: str, indices: Tensor, count: int) -> None:
    """Refuse indices that are not integers in one row and, on the CPU, not among 0 … count - 1."""
    if indices.dim() != 1:
        raise ValueError(
            f"expected {name} of shape (N,), got {tuple(indices.shape)}; use .flatten()"
        )
    _check_whole(name, indices)
    if not checks_on(None, indices) or indices.numel() == 0:
        return
    least, largest = (int(each) for each in torch.aminmax(indices))
    if least < 0 or largest >= count:
        raise ValueError(
            f"expected {name} among 0 … {count - 1}, got {least} to {largest}; "
            "number them from 0, and pass how many there are"
        )


def _check_whole(name: str, numbers: Tensor) -> None:
    """Refuse a tensor of other numbers than integers, which would be cut to integers."""
    if numbers.is_floating_point() or numbers.is_complex():
        raise ValueError(f"expected {name} to be integers, got {numbers.dtype}; use .long()")


def check_two_views(letter: str, first: Tensor, second: Tensor, rows: int | None = None) -> None:
    """Refuse two views' tensors, both (N, D), whose shapes or dtypes do not go together.

    Args:
        letter: ``z`` or ``h``, for the message.
        first: Of the first views.
        second: Of the second views.
        rows: N, where it is known.
    """
    names, size = f"{letter}0 and {letter}1", "D" if letter == "z" else "H"
    if first.dim() != 2 or first.shape != second.shape:
        raise ValueError(
            f"expected {names} of one shape (N, {size}), got {tuple(first.shape)} and "
            f"{tuple(second.shape)}; flatten all but the batch dimension"
        )
    if 0 in first.shape:
        raise ValueError(
            f"expected {names} with at least one row and one column, got shape "
            f"{tuple(first.shape)}; skip empty batches"
        )
    if rows is not None and first.shape[0] != rows:
        raise ValueError(
            f"expected {names} with one row per embedding, {rows}, got {first.shape[0]} rows; "
            "pass the inputs of the same samples"
        )
    if not first.is_floating_point() or first.dtype != second.dtype:
        raise ValueError(
            f"expected {names} of one floating-point dtype, got {first.dtype} and "
            f"{second.dtype}; convert one with .to()"
        )


def check_tensors(**given: Any) -> None:
    """Refuse arguments that are not tensors, each under its name."""
    for name, each in given.items():
        if each is None or isinstance(each, Tensor):
            continue
        kind, remedy = type(each).__name__, f"pass torch.as_tensor({name})"
        first: object = each
        while isinstance(first, Sequence) and len(first) and not isinstance(first, str):
            first = first[0]
        if isinstance(first, str) or getattr(getattr(each, "dtype", None), "kind", "i") in "OSU":
            kind, remedy = "strings", "number them from 0, and pass the numbers as a tensor"
        raise ValueError(f"expected {name} to be a torch.Tensor, got {kind}; {remedy}")


def check_views(*views: Any) -> None:
    """Refuse anchors and candidates that are not views."""
    for each in views:
        if not isinstance(each, Views):
            raise ValueError(
                f"expected unremix.core.views.Views, got {type(each).__name__}; pass Views(z), "
                "or Views(z, h) with the input h of the last layer"
            )


def check_labels(labels: Tensor, rows: int, check: bool | None) -> None:
    """Refuse labels that are not one integer per row; where checks are made, below -1 too."""
    if labels.shape != (rows,):
        raise ValueError(
            f"expected labels of shape ({rows},), one per pair, got {tuple(labels.shape)}; "
            "pass the class of each sample once, -1 where it is unlabeled"
        )
    _check_whole("labels", labels)
    if checks_on(check, labels) and bool((labels.long() < -1).any()):
        raise ValueError(
            f"expected labels from 0, or -1 for unlabeled, got {int(labels.min())}; renumber them"
        )


def check_call(first: Views, second: Views, check: bool | None) -> None:
    """Refuse two views of a batch whose tensors do not fit each other."""
    h0, h1, rows, ids = first.inputs, second.inputs, len(first.embeddings), first.ids
    check_two_views("z", first.embeddings, second.embeddings)
    if h0 is not None and h1 is not None:
        check_two_views("h", h0, h1, rows=rows)
    elif h0 is not h1:
        only = "h1" if h0 is None else "h0"
        raise ValueError(f"expected h0 and h1 together, got only {only}; pass both or neither")
    if ids is not None and ids.shape != (rows,):
        raise ValueError(
            f"expected ids of shape ({rows},), one per pair, got {tuple(ids.shape)}; "
            "pass the numbers of the samples"
        )
    if ids is not None:
        _check_whole("ids", ids)
    if first.labels is not None:
        check_labels(first.labels, rows, check)


def check_finite(**tensors: Tensor | None) -> None:
    """Refuse NaN and infinity in tensors of shape (N, ...), each under its name."""
    for name, tensor in tensors.items():
        if tensor is None or bool(tensor.sum().isfinite()):  # one pass, if all is well
            continue
        broken = int((~tensor.isfinite()).flatten(1).any(dim=1).sum())
        if broken:
            raise ValueError(
                f"expected finite {name}, got NaN or infinity in {broken} of {tensor.shape[0]} "
                "rows; look for a diverged model (lower the learning rate) or broken input"
            )
