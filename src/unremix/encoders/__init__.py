"""Encoders: from views to features, and from features to embeddings."""

from unremix.encoders.heads import projection_head
from unremix.encoders.registry import External, make_encoder
from unremix.encoders.resnet import ResNet, to_torchvision
from unremix.encoders.small import SmallCNN

__all__ = [
    "External",
    "ResNet",
    "SmallCNN",
    "make_encoder",
    "projection_head",
    "to_torchvision",
]
