"""The model of a run, and its size, which is known before any memory is allocated for it.

A file of options may name any size. The outline of a model is built on torch's ``meta`` device,
where tensors have a shape and no numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unremix.console.quantities import amount
from unremix.domains import find_domain
from unremix.domains.base import AUTOCAST
from unremix.domains.options import TrainConfig
from unremix.frameworks.base import Framework
from unremix.training.precision import FULL, MIXED, device_kind, fast_precision

Model = TypeVar("Model", bound=nn.Module)


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills tensors: there is nothing to fill, and torch imports sympy for it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        filled = args[0] if args else kwargs.get("tensor")  # as torch.nn.init calls it
        in_place = name.endswith("_") and not name.startswith("_")
        if in_place and isinstance(filled, Tensor) and filled.is_meta:
            return filled
        return func(*args, **kwargs)


def outlined(make: Callable[[], Model], options: str) -> Model | None:
    """The model that a function makes, without its numbers; None if it cannot do without them.

    Args:
        make: Builds the model.
        options: Those that decide its size, for the message.

    Raises:
        ValueError: If it has more bytes than can be counted.
    """
    try:
        with torch.device("meta"), _Unfilled():
            return make()
    except ValueError:
        raise
    except Exception as error:  # what torch raises for sizes has no base of its own
        if "overflow" not in str(error).lower():
            return None  # such as a framework of the user's that computes while it is made
        raise ValueError(
            "expected a model that fits into memory, got one of more bytes than can be counted; "
            f"lower {options}"
        ) from error


def machine_memory() -> int | None:
    """Bytes that a process may take here; None if unknown."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, AttributeError, ValueError, OSError):
        return None
    return whole if limit == resource.RLIM_INFINITY else min(limit, whole)


def refuse_giant(outline: nn.Module | None, options: str) -> None:
    """Refuse a model that is larger than this machine's memory.

    Args:
        outline: The model without its numbers; None if there is no such.
        options: Those that decide its size, for the message.

    Raises:
        ValueError: If it is larger.
    """
    memory = machine_memory()
    if outline is None or memory is None:
        return
    size = sum(one.numel() * one.element_size() for one in outline.state_dict().values())
    if size > memory:
        raise ValueError(
            f"expected a model that fits into memory, which has {amount(memory)}, got one of "
            f"{amount(size)}; lower {options}"
        )


def refuse_other(outline: nn.Module | None, stored: Mapping[str, Tensor], where: str) -> None:
    """Refuse a model that has more numbers than the weights it is to be filled with.

    Args:
        outline: The model without its numbers; None if there is no such.
        stored: The weights.
        where: Where they come from, for the message.

    Raises:
        ValueError: If it has more.
    """
    if outline is None:
        return
    asked = sum(one.numel() for one in outline.state_dict().values())
    # By their memory: a file may show a few numbers as any shape.
    memory = {one.untyped_storage().data_ptr(): one for one in stored.values()}
    found = sum(one.untyped_storage().nbytes() // one.element_size() for one in memory.values())
    if asked > found:
        raise ValueError(
            f"expected the weights of a model of {asked:,} numbers in {where}, got {found:,}; the "
            "options are those of another model: restore config.yaml and shape.json, or train a "
            "new run"
        )


def build_model(
    config: TrainConfig, shape: Any, *, gather: bool = False, outline: Framework | None = None
) -> Framework:
    """The model of a configuration, initialized from its seed; global randomness is untouched.

    Args:
        config: The options.
        shape: What the data decide about the model.
        gather: Whether the negatives come from all processes.
        outline: From :func:`outline_model`, if it is known.

    Raises:
        ValueError: If it is larger than this machine's memory.
    """
    domain = find_domain(config.domain)
    refuse_giant(outline_model(config, shape) if outline is None else outline, domain.sizes)
    model = _make(config, shape, gather=gather)
    domain.fill(model, config, shape)
    embeds_in(config.embeds_in, model.encoder, config.accelerator)
    return model


def outline_model(config: TrainConfig, shape: Any) -> Framework | None:
    """The model without its numbers, which takes no memory; None if it cannot do without them."""
    return outlined(lambda: _make(config, shape), find_domain(config.domain).sizes)


def _make(config: TrainConfig, shape: Any, *, gather: bool = False) -> Framework:
    composition = config.composition()  # which refuses code that only a file names
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        encoder, head = find_domain(config.domain).build(config, shape)
        model = composition.make_framework(encoder, head, gather=gather)
    return model.double() if config.precision == "64-true" else model


def precision_of(config: TrainConfig) -> Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]:
    """The precision that a run computes in here."""
    if config.precision != "auto":
        return config.precision
    gains = find_domain(config.domain).gains_from_bfloat16(config)
    return fast_precision(device_kind(config.accelerator)) if gains else FULL


def settled(config: TrainConfig) -> TrainConfig:
    """The options with a precision in place of auto."""
    return config if config.precision != "auto" else replace(config, precision=precision_of(config))


def embeds_in(precision: str, encoder: Model, accelerator: str = "cpu") -> Model:
    """Let an encoder embed in a precision, where that is fast.

    Args:
        precision: That of its embeddings; not auto.
        encoder: The encoder, or with the head behind it.
        accelerator: Where it computes, as in the options.

    Returns:
        The encoder, which :func:`unremix.domains.base.evaluating` runs so.
    """
    mixed = precision.endswith("mixed") and fast_precision(device_kind(accelerator)) == MIXED
    setattr(encoder, AUTOCAST, mixed)
    return encoder
