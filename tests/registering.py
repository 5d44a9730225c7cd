"""Parts, recipes and kinds of data that a test adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unremix.domains import DOMAINS
from unremix.frameworks.recipe import PARTS, RECIPES, SERVED


@contextmanager
def forgetting() -> Iterator[None]:
    """Whatever is registered inside is gone afterwards."""
    known: list[dict[str, Any]] = [DOMAINS, RECIPES, SERVED, *PARTS.values()]
    earlier = [dict(one) for one in known]
    try:
        yield
    finally:
        for one, before in zip(known, earlier, strict=True):
            one.clear()
            one.update(before)
