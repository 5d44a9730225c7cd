"""What the user may have meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one received, if any is near.

    Args:
        name: What was received.
        known: What would have been understood.

    Example:
        >>> did_you_mean("resnet81", ["resnet18", "small"])
        "; did you mean 'resnet18'?"
        >>> did_you_mean("vgg", ["resnet18", "small"])
        ''
    """
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
