"""Contrastive learning with importance-weighted negatives (UnReMix, arXiv 2206.01197)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unremix.audit import Audit, audit
from unremix.losses.modules import HCLLoss, InfoNCELoss, UnReMixLoss, importance
from unremix.losses.two_views import Importance

if TYPE_CHECKING:
    from unremix.pipeline import evaluate, train
    from unremix.training.exported import load_exported
    from unremix.training.run import Run
    from unremix.training.run import Run as load

__all__ = [
    "Audit",
    "HCLLoss",
    "Importance",
    "InfoNCELoss",
    "Run",
    "UnReMixLoss",
    "audit",
    "evaluate",
    "importance",
    "load",
    "load_exported",
    "train",
]
__version__ = "0.1.0"

# The losses need torch alone; training needs the extra [train] and is imported when asked for.
_TRAINING = {
    "train": ("unremix.pipeline", "train"),
    "evaluate": ("unremix.pipeline", "evaluate"),
    "load": ("unremix.training.run", "Run"),
    "load_exported": ("unremix.training.exported", "load_exported"),
    "Run": ("unremix.training.run", "Run"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _TRAINING:
        raise AttributeError(f"module 'unremix' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _TRAINING[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("unremix"):
            raise
        raise ImportError(
            f"expected the packages for training, but {error.name} is missing; "
            'pip install "unremix[train,report]"'
        ) from error
