"""Kinds of data, by name: those in this folder and those of installed packages.

A module of yours adds one by :func:`register` on its last line. It is imported if an installed
package names it in the entry-point group ``unremix.domains``, or if ``--imports`` does.
docs/domains.md shows how.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from unremix.domains.base import DOMAINS, Domain, default_domain, find_domain, register

__all__ = ["DOMAINS", "Domain", "default_domain", "find_domain", "register"]


def _discover() -> None:
    folders = [one.name for one in iter_modules(__path__) if one.ispkg]
    built_in: list[Domain] = [import_module(f"{__name__}.{one}").DOMAIN for one in folders]
    for domain in sorted(built_in, key=lambda one: not one.is_default):
        register(domain)
    for point in entry_points(group="unremix.domains"):
        if point.module in sys.modules and not hasattr(sys.modules[point.module], point.attr):
            continue  # it is what imports us, and will register itself
        try:
            register(point.load())
        except Exception as error:  # of a package of somebody else's
            warnings.warn(
                f"expected a kind of data from {point.value}, got {type(error).__name__}: {error}; "
                "repair or remove that package",
                stacklevel=2,
            )


_discover()
