"""A plugin of pytest: the adapter's loss, with uniform weights, under the name of the library's.

``UNREMIX_IN_PLACE_OF`` names the library; without it, its own loss stays.
"""

from __future__ import annotations

import os
from functools import partial

import torchvision_operators  # noqa: F401, before the libraries

PEER = os.environ.get("UNREMIX_IN_PLACE_OF")
if PEER == "pytorch-metric-learning":
    from pytorch_metric_learning import losses

    from unremix.adapters import metric_learning

    losses.NTXentLoss = partial(metric_learning.UnReMixLoss, components=())
elif PEER == "lightly":
    import lightly.loss

    from unremix.adapters import lightly as adapter

    lightly.loss.NTXentLoss = partial(adapter.UnReMixLoss, components=())
