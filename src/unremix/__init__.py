"""Contrastive learning with importance-weighted negatives (UnReMix, arXiv 2206.01197)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unremix.audit import Audit, audit

if TYPE_CHECKING:
    from unremix.core.chunks import InChunks, cached
    from unremix.core.contrast import Importance
    from unremix.experiments.compare import compare_recipes as compare
    from unremix.losses import HCLLoss, InfoNCELoss, UnReMixLoss, importance
    from unremix.mining.mine import Mined, mine_hard_negatives
    from unremix.pipeline import OpenRun as load
    from unremix.pipeline import evaluate, train
    from unremix.report.classify import classify
    from unremix.signals.false_negatives import FalseNegatives
    from unremix.training.finding import encoder, load_exported
    from unremix.training.ready import ReadyEncoder
    from unremix.training.run import Run

__all__ = [
    "Audit",
    "FalseNegatives",
    "HCLLoss",
    "Importance",
    "InChunks",
    "InfoNCELoss",
    "Mined",
    "ReadyEncoder",
    "Run",
    "UnReMixLoss",
    "audit",
    "cached",
    "classify",
    "compare",
    "encoder",
    "evaluate",
    "importance",
    "load",
    "load_exported",
    "mine_hard_negatives",
    "train",
]
__version__ = "1.0.0"

# Imported when asked for: the losses need torch, training needs the extra [train], and the command
# line answers `--help` without either.
_HOMES = {
    "FalseNegatives": "unremix.signals.false_negatives:FalseNegatives",
    "HCLLoss": "unremix.losses:HCLLoss",
    "Importance": "unremix.core.contrast:Importance",
    "InChunks": "unremix.core.chunks:InChunks",
    "InfoNCELoss": "unremix.losses:InfoNCELoss",
    "Mined": "unremix.mining.mine:Mined",
    "ReadyEncoder": "unremix.training.ready:ReadyEncoder",
    "Run": "unremix.training.run:Run",
    "UnReMixLoss": "unremix.losses:UnReMixLoss",
    "cached": "unremix.core.chunks:cached",
    "classify": "unremix.report.classify:classify",
    "compare": "unremix.experiments.compare:compare_recipes",
    "encoder": "unremix.training.finding:encoder",
    "evaluate": "unremix.pipeline:evaluate",
    "importance": "unremix.losses:importance",
    "load": "unremix.pipeline:OpenRun",
    "load_exported": "unremix.training.finding:load_exported",
    "mine_hard_negatives": "unremix.mining.mine:mine_hard_negatives",
    "train": "unremix.pipeline:train",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "adapters":  # its modules import their libraries when asked for
        return import_module("unremix.adapters")
    if name not in _HOMES:
        raise AttributeError(f"module 'unremix' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("unremix"):
            raise
        purpose, extras = ("training", "train,report")
        if module.startswith("unremix.mining"):
            purpose, extras = ("mining", "mine")
        raise ImportError(
            f"expected the packages for {purpose}, but {error.name} is missing; "
            f'pip install "unremix[{extras}]"'
        ) from error
