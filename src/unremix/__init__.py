"""Contrastive learning with importance-weighted negatives (UnReMix, arXiv 2206.01197)."""

from unremix.audit import Audit, audit
from unremix.losses.modules import HCLLoss, InfoNCELoss, UnReMixLoss, importance
from unremix.losses.two_views import Importance

__all__ = [
    "Audit",
    "HCLLoss",
    "Importance",
    "InfoNCELoss",
    "UnReMixLoss",
    "audit",
    "importance",
]
__version__ = "0.1.0"
