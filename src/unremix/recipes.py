"""Every recipe and part by name: those of all kinds of data.

To add a recipe of your own: ``RECIPES["mine"] = Recipe("mine", "what it is", "moco", "hcl")``.
"""

from __future__ import annotations

import unremix.domains  # noqa: F401  (fills the tables)
from unremix.frameworks.recipe import (
    NOTHING,
    PARTS,
    RECIPES,
    Composition,
    Kind,
    OptionValue,
    Recipe,
    compose,
    find_recipe,
    frameworks_for,
    options_of,
    sections,
    serves,
    takes,
)

__all__ = [
    "NOTHING",
    "PARTS",
    "RECIPES",
    "Composition",
    "Kind",
    "OptionValue",
    "Recipe",
    "compose",
    "find_recipe",
    "frameworks_for",
    "options_of",
    "sections",
    "serves",
    "takes",
]
