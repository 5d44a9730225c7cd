"""Two operators of torchvision by name, without which it does not import; nothing here calls them.

torchvision is installed without what it was compiled for, so that it does not replace torch.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
