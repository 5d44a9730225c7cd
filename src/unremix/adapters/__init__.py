"""The loss where people already work: one module per library, imported when asked for.

Each needs its library and nothing else; ``import unremix`` imports none of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType

from unremix.console.suggestions import expecting

# The package that each adapter serves, as pip knows it.
PACKAGES = {
    "lightly": "lightly>=1.5",
    "metric_learning": "pytorch-metric-learning>=2.6",
    "open_clip": "open_clip_torch>=2.24",
    "pyg": "torch_geometric>=2.6",
    "sentence_transformers": "sentence-transformers>=6.2",
}

__all__ = sorted(PACKAGES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> ModuleType:
    if name not in PACKAGES:
        raise AttributeError(f"module 'unremix.adapters' has no attribute {name!r}")
    return import_module(f"unremix.adapters.{name}")


def needed_for(adapter: str) -> AbstractContextManager[None]:
    """Says what to install where the library of an adapter cannot be imported."""
    package = PACKAGES[adapter]
    what = f"{package} for unremix.adapters.{adapter}"
    return expecting(what, f'pip install "{package}"', ImportError)
