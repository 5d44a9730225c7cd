"""What an image run can be told, and the recipes for images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unremix.console.values import bounded
from unremix.domains.image.encoders import LIBRARIES
from unremix.domains.image.views import LARGEST_IMAGE
from unremix.frameworks.recipe import NOTHING, Recipe


@dataclass(frozen=True)
class ImageOptions:
    """Options for images.

    Args:
        backbone: auto, small, resnet18, resnet34, resnet50, timm:NAME, torchvision:NAME,
            package.module:callable or file.py:callable.
        image_size: Pixels per side; by default the median short side, at most 224.
        width: Channels of a ResNet's first stage.
        stem: Stem of a ResNet: cifar, imagenet or auto; auto is cifar up to 32 pixels, imagenet
            above.
        augmentation: auto, or a name from unremix.domains.image.views.SETTINGS.
        pretrained: Whether --backbone timm:NAME starts from timm's pretrained weights.
    """

    backbone: str = bounded("auto")
    image_size: int | None = bounded(None, least=1, most=LARGEST_IMAGE)
    width: int = bounded(64, least=1)
    stem: Literal["auto", "cifar", "imagenet"] = bounded("auto")
    augmentation: str = bounded("auto", after="head_batch_norm")
    pretrained: bool = bounded(False, rare=True, after="init")


def code_in(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The callable that the options name as a backbone, if it is one of the user's own.

    Example:
        >>> (
        ...     code_in({"backbone": "timm:vit_tiny_patch16_224"}),
        ...     code_in({"backbone": "mine:encoder"}),
        ... )
        ((), ('mine:encoder',))
    """
    backbone = str(options.get("backbone") or "")
    source, colon, _ = backbone.partition(":")
    return (backbone,) if colon and source not in LIBRARIES else ()


def _only(component: str) -> dict[str, dict[str, Any]]:
    return {"loss": {"components": (component,)}}


RECIPES = (
    Recipe("simclr", "SimCLR, all negatives alike"),
    Recipe("debiased", "SimCLR, debiased", preset={"loss": {"class_prior": 0.1}}),
    Recipe("hcl", "HCL: SimCLR, weighted by similarity", weighting="hcl",
           paper="Tables 1, 2 and 6"),
    Recipe("moco", "MoCo-v2", "moco", temperature=0.1, paper="Tables 1 and 6"),
    Recipe("mochi", "MoCHi: MoCo with mixed hard negatives", "moco", "uniform", NOTHING,
           "mochi", temperature=0.1, paper="Table 1"),
    Recipe("swav", "SwAV", "swav", temperature=0.1, paper="Table 1"),
    Recipe("imix", "i-Mix on MoCo", "moco", "uniform", "imix", temperature=0.2,
           preset={"moco": {"momentum": 0.999}}, paper="Table 1"),
    Recipe("patch", "MoCo with patch-based negatives", "moco", "uniform", NOTHING, "patch",
           temperature=0.2, preset={"moco": {"queue": 16384}}, paper="Table 1"),
    Recipe("unmix", "Un-Mix on SimCLR", "simclr", "uniform", "unmix", paper="Table 1"),
    Recipe("unremix", "UnReMix on Un-Mix", "simclr", "unremix", "unmix", paper="Table 1"),
    Recipe("unremix-simclr", "UnReMix on SimCLR", "simclr", "unremix", paper="Tables 2, 3 and 5"),
    Recipe("unremix-moco", "UnReMix on MoCo", "moco", "unremix", temperature=0.1, paper="Table 6"),
    Recipe("unremix-u", "uncertainty only", "simclr", "unremix", preset=_only("uncertainty"),
           paper="Table 2"),
    Recipe("unremix-s", "similarity only, scaled as UnReMix", "simclr", "unremix",
           preset=_only("similarity")),
    Recipe("unremix-r", "representativeness only", "simclr", "unremix",
           preset=_only("representativeness"), paper="Table 2"),
    Recipe("unremix-fixed", "equal mix", "simclr", "unremix", preset={"loss": {"mix": "fixed"}},
           paper="Table 3"),
    Recipe("supcon", "SupCon: labels say who is a positive", temperature=0.1, labels=True),
    Recipe("supcon-hcl", "SupCon with HCL's weights", "simclr", "hcl", temperature=0.1, labels=True,
           preset={"loss": {"class_prior": 0.0}}),
    Recipe("supcon-unremix", "UnReMix on SupCon", "simclr", "unremix", temperature=0.1,
           labels=True),
    Recipe("unremix-nt-xent", "gradient of NT-Xent", "simclr", "unremix",
           preset={"loss": {"gradient": "nt-xent"}}, paper="Table 5"),
)  # fmt: skip
