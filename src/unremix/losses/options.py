"""The options of the losses: their names, their checks and the fidelity presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Any, Literal

from unremix.losses.blockwise import Tile
from unremix.weights import Mass

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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and above < value < below and value >= least:
        return float(value)
    bounds = [f"above {above:g}"] if above > -inf else []
    bounds += [f"at least {least:g}"] if least > -inf else []
    bounds += [f"below {below:g}"] if below < inf else ["finite"]
    raise ValueError(f"expected {name} to be a number {', '.join(bounds)}, received {value!r}")


def check_tile(tile: Tile) -> Tile:
    """The tile, if it is one."""
    if tile is None or tile == "auto" or (type(tile) is int and tile >= 1):
        return tile
    raise ValueError(
        f"expected tile to be 'auto', None or a number of rows of at least 1, received {tile!r}"
    )
