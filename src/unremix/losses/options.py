"""The options of the losses: their names, their checks and the fidelity presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from numbers import Real
from typing import Any, Literal, get_args

from torch import Tensor

from unremix.losses.blockwise import Products, Tile
from unremix.scores import Views
from unremix.weights import Mass, Weighting

Layout = Literal["both", "one-way"]
Fidelity = Literal["sound", "paper", "code"]
Mix = Literal["learned", "free", "fixed", "adversarial"] | Sequence[float]
ScalingName = Literal["minmax", "zscore-exp", "none"]

MIXES = ("learned", "free", "fixed", "adversarial")
SCALINGS = ("minmax", "zscore-exp", "none")
MASSES = ("mean", "none")
GRADIENTS = ("pseudo-label", "nt-xent")
LAYOUTS = ("both", "one-way")


@dataclass(frozen=True)
class Preset:
    """What the options of a loss are where they are not given; docs/fidelity.md explains each."""

    layout: Layout
    scaling: ScalingName
    mass: Mass
    similarity_gradient: bool
    class_prior: float
    hcl_exponent: Literal["cosine", "logit"]


PRESETS: dict[str, Preset] = {
    "sound": Preset("both", "minmax", "mean", False, 0.0, "logit"),
    "paper": Preset("one-way", "none", "none", False, 0.0, "cosine"),
    "code": Preset("both", "none", "mean", True, 0.1, "logit"),
}


def choose(name: str, value: Any, choices: Sequence[str]) -> Any:
    """The value, if it is one of the choices; else a ValueError that names the nearest."""
    if value in choices:
        return value
    near = get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"expected {name} to be one of {', '.join(choices)}, received {value!r}{hint}")


def number(
    name: str, value: float, *, above: float = -inf, least: float = -inf, below: float = inf
) -> float:
    """The value as a float, if it is a number in the bounds."""
    given: object = value  # NumPy's numbers among them
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if is_number and above < value < below and value >= least:
        return float(value)
    bounds = [f"above {above:g}"] if above > -inf else []
    bounds += [f"at least {least:g}"] if least > -inf else []
    bounds += [f"below {below:g}"] if below < inf else ["finite"]
    raise ValueError(f"expected {name} to be a number {', '.join(bounds)}, received {value!r}")


def check_call(
    views: Sequence[Views],
    weighting: Weighting,
    mix: Tensor | None,
    *,
    temperature: float,
    posterior_temperature: float,
    products: str,
    gradient: str,
    tile: Tile,
) -> None:
    """Whether the arguments of a loss that is a function make sense, one by one."""
    for each in views:
        if not isinstance(each, Views):
            raise ValueError(
                f"expected unremix.scores.Views, received {type(each).__name__}; hand over "
                "Views(z), or Views(z, h) with the input h of the last layer"
            )
    if mix is not None and mix.numel() and not weighting.components:
        raise ValueError(
            "expected no mix, since the weighting has no components and all weights are 1, "
            f"received {mix.numel()} shares; name components in weighting=Weighting(...)"
        )
    number("temperature", temperature, above=0)
    number("posterior_temperature", posterior_temperature, above=0)
    choose("products", products, get_args(Products))
    choose("gradient", gradient, GRADIENTS)
    check_tile(tile)


def check_tile(tile: Tile) -> Tile:
    """The tile, if it is one."""
    if tile is None or tile == "auto" or (type(tile) is int and tile >= 1):
        return tile
    raise ValueError(
        f"expected tile to be 'auto', None or a number of rows of at least 1, received {tile!r}"
    )
