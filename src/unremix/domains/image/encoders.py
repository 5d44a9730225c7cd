"""Image encoders by name: ours, timm's, torchvision's, or any callable that makes a module."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.suggestions import did_you_mean, expecting
from unremix.domains.image.resnet import ResNet, SmallCNN, Stem

DEPTH_OF = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
NAMES = ("auto", "small", *DEPTH_OF)
FORMS = "'timm:NAME', 'torchvision:NAME' or 'package.module:callable'"

LARGEST_SMALL = 16  # pixels: a ResNet halves the image three times, which leaves 2 of 16
LARGEST_CIFAR = 32  # pixels: without the stem's two halvings every stage does 16 times the work

CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls them


class External(nn.Module):
    """A module from elsewhere, with the size of its output as ``features``.

    Args:
        model: From images (B, C, S, S) to (B, features) or (B, features, 1, 1). It stays reachable
            as ``.model``, whose state dict has its own names.
        features: Size of the output.
    """

    def __init__(self, model: nn.Module, features: int) -> None:
        super().__init__()
        self.model = model
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) to (B, features)."""
        output: Tensor = self.model(images)
        return output.flatten(1)


def chosen_name(name: str, image_size: int) -> str:
    """The encoder that ``auto`` stands for; other names as they are."""
    if name != "auto":
        return name
    return "small" if image_size <= LARGEST_SMALL else "resnet18"


def make_encoder(
    name: str = "auto",
    *,
    channels: int,
    image_size: int,
    width: int = 64,
    stem: str = "auto",
) -> nn.Module:
    """Make an image encoder: a module from (B, channels, S, S) to (B, features).

    Args:
        name: One of

            - ``resnet18``, ``resnet34``, ``resnet50`` (:class:`ResNet`) and ``small``
              (:class:`SmallCNN`);
            - ``auto``: ``small`` up to 16 pixels, ``resnet18`` above;
            - ``timm:NAME``, made with ``num_classes=0`` and ``in_chans=channels``, and with
              ``img_size`` if the model fixes its input size;
            - ``torchvision:NAME``, made without weights, its last linear layer replaced by the
              identity;
            - ``package.module:callable``: any callable that makes a module. It is called with
              those of ``channels``, ``image_size`` and ``width`` that are names of its parameters,
              by keyword.
        channels: Channels of the images.
        image_size: Height and width S of the images, in pixels.
        width: Channels of the first stage, for our own encoders.
        stem: ``cifar``, ``imagenet`` or ``auto`` (``cifar`` up to 32 pixels), for ResNets.

    Returns:
        A module with the attribute ``features``, an int. For a module from elsewhere, the size is
        found by one pass over two blank images in evaluation mode. On torch's ``meta`` device an
        empty module of size 1 stands for it.

    Raises:
        ValueError: If the name is unknown, or the module made does not fit.
        ImportError: If timm or torchvision is needed and missing, or does not load.

    Example:
        >>> encoder = make_encoder(channels=1, image_size=8, width=16)
        >>> type(encoder).__name__, encoder.features
        ('SmallCNN', 64)
        >>> make_encoder("resnet81", channels=3, image_size=32)
        Traceback (most recent call last):
        ValueError: expected an encoder ... got 'resnet81'; did you mean 'resnet18'?
    """
    if channels < 1 or image_size < 1:
        raise ValueError(
            "expected images of at least 1 channel and 1 pixel, "
            f"got channels={channels}, image_size={image_size}"
        )
    if stem not in ("auto", "cifar", "imagenet"):
        raise ValueError(f"expected the stem 'auto', 'cifar' or 'imagenet', got {stem!r}")
    name = chosen_name(name, image_size)
    if name in DEPTH_OF:
        kind: Stem = "cifar" if image_size <= LARGEST_CIFAR else "imagenet"
        if stem != "auto":
            kind = "cifar" if stem == "cifar" else "imagenet"
        return ResNet(DEPTH_OF[name], channels=channels, width=width, stem=kind)
    if stem != "auto":
        raise ValueError(
            f"expected stem='auto' for the encoder {name!r}, got {stem!r}; "
            f"only {', '.join(DEPTH_OF)} have a stem to choose"
        )
    if name == "small":
        return SmallCNN(channels=channels, width=width)
    source, colon, rest = name.partition(":")
    if not (source and colon and rest):
        raise ValueError(
            f"expected an encoder among {', '.join(NAMES)}, or {FORMS}, "
            f"got {name!r}{did_you_mean(name, NAMES)}"
        )
    if torch.get_default_device().type == "meta":  # an outline; others may compute while made
        return External(nn.Identity(), 1)
    if source == "timm":
        model = _from_timm(rest, channels=channels, image_size=image_size)
    elif source == "torchvision":
        model = _from_torchvision(rest)
    else:
        available = {"channels": channels, "image_size": image_size, "width": width}
        model = _from_callable(source, rest, available)
    return External(model, _output_size(model, name, channels=channels, image_size=image_size))


def _library(name: str) -> ModuleType:
    """Import timm or torchvision, here and not at the top: both are optional."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        needed = (error.name or name).partition(".")[0]
        raise ImportError(
            f"expected {needed} to be installed for an encoder '{name}:...', found none; "
            f"install it with: pip install {needed}"
        ) from error
    except Exception as error:  # a build for another torch fails in many ways while it registers
        raise ImportError(
            f"expected {name} to load, got {type(error).__name__}: {error}; it must be built "
            f"for the installed torch {torch.__version__}. Install a matching pair with: "
            "pip install --upgrade torch torchvision"
        ) from error


def _from_timm(name: str, *, channels: int, image_size: int) -> nn.Module:
    timm = _library("timm")
    if not timm.is_model(name):
        raise ValueError(
            "expected the name of a timm model (timm.list_models() lists them), "
            f"got {name!r}{did_you_mean(name, timm.list_models())}"
        )
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    settings = timm.models.get_pretrained_cfg(name)
    if settings is not None and settings.fixed_input_size:
        options["img_size"] = image_size
    with expecting(
        f"timm to make {name!r} with {options}", "choose another model, or change the images"
    ):
        model: nn.Module = timm.create_model(name, **options)
    return model


def _from_torchvision(name: str) -> nn.Module:
    models = _library("torchvision").models
    known = models.list_models()
    if name not in known:
        raise ValueError(
            "expected the name of a torchvision model (torchvision.models.list_models() lists "
            f"them), got {name!r}{did_you_mean(name, known)}"
        )
    model: nn.Module = models.get_model(name, weights=None)
    heads = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path.partition(".")[0] in CLASSIFIERS
    ]
    if heads:
        parent, _, child = heads[-1].rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())
    return model


def _from_callable(module: str, attribute: str, available: dict[str, int]) -> nn.Module:
    name = f"{module}:{attribute}"
    remedy = "check the spelling, and that its folder is on PYTHONPATH"
    with expecting(f"{module!r} of the encoder {name!r} to be importable", remedy):
        found = importlib.import_module(module)
    make: Callable[..., Any] | None = getattr(found, attribute, None)
    if not callable(make):
        raise ValueError(
            f"expected a callable {attribute!r} in {module!r}, "
            f"found none{did_you_mean(attribute, vars(found))}"
        )
    try:
        parameters = dict(inspect.signature(make).parameters)
    except ValueError:  # some callables written in C have no signature
        parameters = {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {
        key: value
        for key, value in available.items()
        if key in parameters and parameters[key].kind in named
    }
    remedy = f"it may take {', '.join(available)}, and any other parameter needs a default"
    with expecting(f"{name!r} to make a module when called with {wanted}", remedy):
        model = make(**wanted)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"expected {name!r} to make a torch.nn.Module, got a {type(model).__name__}; "
            "name a function that returns one, or its class"
        )
    return model


def _output_size(model: nn.Module, name: str, *, channels: int, image_size: int) -> int:
    """Features per image, by one pass in evaluation mode, which leaves BatchNorm's state alone."""
    parameter = next(model.parameters(), torch.empty(0))
    shape = (2, channels, image_size, image_size)
    images = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    remedy = f"choose one for {channels} channels and {image_size} pixels, or change the images"
    try:
        with (
            expecting(f"the encoder {name!r} to take images of shape {shape}", remedy),
            torch.no_grad(),
        ):
            output = model(images)
    finally:
        for module, training in modes:
            module.training = training
    received = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    fits = isinstance(output, Tensor) and output.dim() >= 2 and output.shape[0] == 2
    if not fits or output[0].numel() != output.shape[1]:
        raise ValueError(
            f"expected an output of shape (2, features) from the encoder {name!r} for 2 images, "
            f"got {received}; end it with pooling and flattening"
        )
    return int(output.shape[1])
