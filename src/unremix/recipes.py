"""Every recipe and part by name: those of all kinds of data.

To add a recipe of your own: ``RECIPES["mine"] = Recipe("mine", "what it is", "moco", "hcl")``.
"""

from __future__ import annotations

import unremix.domains  # noqa: F401  (fills the tables)
from unremix.frameworks.recipe import NOTHING as NOTHING
from unremix.frameworks.recipe import PARTS as PARTS
from unremix.frameworks.recipe import RECIPES as RECIPES
from unremix.frameworks.recipe import Composition as Composition
from unremix.frameworks.recipe import Kind as Kind
from unremix.frameworks.recipe import OptionValue as OptionValue
from unremix.frameworks.recipe import Recipe as Recipe
from unremix.frameworks.recipe import compose as compose
from unremix.frameworks.recipe import find_recipe as find_recipe
from unremix.frameworks.recipe import frameworks_for as frameworks_for
from unremix.frameworks.recipe import options_of as options_of
from unremix.frameworks.recipe import sections as sections
from unremix.frameworks.recipe import serves as serves
from unremix.frameworks.recipe import takes as takes
