"""Two views of N samples become anchors, candidates and pairs, as the core takes them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unremix.core.checks import check_two_views
from unremix.core.gather import Part, gather_views
from unremix.core.pairs import Pairs
from unremix.core.problem import Comparison
from unremix.core.views import Views, stack

Layout = Literal["both", "one-way", "symmetric"]


def arrange(
    first: Views,
    second: Views,
    layout: Layout,
    part: Part | None = None,
    aims: tuple[Tensor, Tensor] | None = None,
) -> Comparison:
    """Anchors, candidates and pairs of a layout.

    Args:
        first: First views of N samples.
        second: Their second views.
        layout: ``both``: all 2N views are anchors and candidates; else first views against second
            views.
        part: This process's part, where the candidates are those of all processes.
        aims: Keys and shares, both (N, P): each first view is aimed at these second views.
    """
    n, device = first.embeddings.shape[0], first.embeddings.device
    offset, total = (0, n) if part is None else (part.offset, part.total)
    all_first, all_second = first, second
    if part is not None:
        all_first, all_second = gather_views(first, part), gather_views(second, part)
    ids = all_first.ids
    if aims is None and layout == "both":
        pairs = Pairs.both_views(n, offset=offset, total=total, ids=ids, device=device)
        candidates = stack(all_first, all_second)
        if part is None:
            return Comparison(candidates, candidates, pairs)
        anchors = stack(first, second)
        return Comparison(anchors, candidates, pairs, part=part, everyone=candidates)
    if aims is None:
        pairs = Pairs.one_way(n, offset=offset, total=total, ids=ids, device=device)
    else:
        pairs = Pairs.towards(*aims, offset=offset, total=total, ids=ids)
    everyone = None if part is None else all_first
    return Comparison(first, all_second, pairs, part=part, everyone=everyone)


def check_call(
    z0: Tensor, z1: Tensor, h0: Tensor | None, h1: Tensor | None, ids: Tensor | None
) -> None:
    """Refuse tensors of a call that do not fit each other."""
    check_two_views("z", z0, z1)
    if (h0 is None) != (h1 is None):
        raise ValueError(
            f"expected h0 and h1 together, got only {'h1' if h0 is None else 'h0'}; "
            "pass both or neither"
        )
    if ids is not None and ids.shape != z0.shape[:1]:
        raise ValueError(
            f"expected ids of shape ({z0.shape[0]},), one per pair, got {tuple(ids.shape)}; "
            "pass the numbers of the samples"
        )
    if h0 is not None and h1 is not None:
        check_two_views("h", h0, h1, rows=z0.shape[0])


def named(first: Views, second: Views) -> dict[str, Tensor | None]:
    """The tensors of two views under the names of the call."""
    return {
        "z0": first.embeddings,
        "z1": second.embeddings,
        "h0": first.inputs,
        "h1": second.inputs,
    }
