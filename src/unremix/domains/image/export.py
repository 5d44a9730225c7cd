"""Image encoders as files: what they say of themselves, ONNX, torchvision's names, a README."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix import __version__
from unremix.console.suggestions import needed_for
from unremix.console.templates import fill
from unremix.domains.base import CODE_START, ExportNote, Exports, Trained, to_texts
from unremix.domains.image import resnet
from unremix.domains.image.encoders import LIBRARIES, NAMES
from unremix.domains.image.resnet import ResNet, SmallCNN, to_torchvision
from unremix.domains.image.views import ImageShape, prepared
from unremix.files.atomic_files import write_whole
from unremix.files.bounds import shorten
from unremix.files.onnx import import_onnxruntime

TEMPLATES = Path(__file__).with_name("templates")


class FromBytes(nn.Module):
    """An image encoder that takes pictures as they are, and normalizes them itself.

    Args:
        encoder: From normalized images to features.
        mean: Of each channel, as a share of the full range.
        std: Likewise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.encoder = encoder
        dtype = next(encoder.parameters()).dtype
        self.register_buffer("mean", torch.tensor(mean, dtype=dtype)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=dtype)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, C, S, S) to float32 (B, features)."""
        floats = images.to(self.mean.dtype) * (1 / 255)
        features: Tensor = self.encoder((floats - self.mean) / self.std)
        return features.float()


def facts_of(run: Trained, encoder: nn.Module) -> dict[str, Any]:
    """How to build an encoder, and how to prepare its images."""
    options, shape = run.config.own, run.shape
    name, stem = options.backbone, options.stem
    if isinstance(encoder, SmallCNN):
        name = "small"
    elif isinstance(encoder, ResNet):
        name, stem = f"resnet{encoder.depth}", encoder.stem
    return {
        "encoder": {"name": name, "width": options.width, "stem": stem},
        "size": shape.seen,
        **({"resized": shape.image_size} if shape.middle else {}),
        "channels": shape.channels,
        "crop": "center square",
        "resize": "bicubic, antialiased",
        "mean": list(shape.settings.mean),
        "std": list(shape.settings.std),
    }


def options_of(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """The options that build the encoder.

    Raises:
        ValueError: If it takes code to build it.
    """
    made = facts["encoder"]
    name = made["name"]
    # A file must not decide which code runs: weights are data.
    if name not in NAMES and not name.startswith(tuple(f"{one}:" for one in LIBRARIES)):
        raise ValueError(
            f"expected a network of unremix, timm or torchvision, got {name!r} in {path}; export "
            "it as onnx, which needs no code"
        )
    return {"backbone": name, "width": made["width"], "stem": made["stem"]}


def shape_of(facts: dict[str, Any], path: Path) -> ImageShape:
    """How images are prepared.

    Raises:
        ValueError: For a size or a number of channels that no image has.
    """
    numbers = {name: facts[name] for name in ("size", "mean", "std", "channels")}
    try:
        return prepared(resize=facts.get("resized"), **numbers)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{shorten(error)} in {path}; write it again with 'unremix export RUN'"
        ) from error


class Opaque(nn.Module):
    """A function from images as bytes, as an encoder of images in [0, 1]."""

    def __init__(self, forward: Callable[[Tensor], Tensor], features: int) -> None:
        super().__init__()
        self.run, self.features = forward, features

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) to (B, features)."""
        return self.run((images * 255).round().to(torch.uint8))


def opaque(
    forward: Callable[[Tensor], Tensor], facts: dict[str, Any], path: Path
) -> tuple[Opaque, ImageShape]:
    """An encoder that normalizes images itself, and the shape that leaves this to it."""
    plain = {"mean": [0.0] * facts["channels"], "std": [1.0] * facts["channels"]}
    return Opaque(forward, facts["features"]), shape_of(facts | plain, path)


def write_torchvision(encoder: nn.Module, facts: dict[str, Any], path: Path) -> ExportNote:
    """Write a state dict of torchvision's ResNets, without the classifier.

    Raises:
        ValueError: If the encoder is not one of them.
    """
    if not isinstance(encoder, ResNet):
        raise ValueError(
            f"expected a ResNet for the torchvision format, got {type(encoder).__name__}; "
            "export as safetensors or onnx"
        )
    state = to_torchvision(encoder)
    write_whole(path, lambda file: torch.save(state, file))
    differences = {
        "first convolution 3x3 instead of 7x7, no max-pool": encoder.stem == "cifar",
        f"width {encoder.width} instead of 64": encoder.width != 64,
        f"{encoder.channels} channel instead of 3": encoder.channels != 3,
    }
    reasons = [words for words, differs in differences.items() if differs]
    if not reasons:
        return ExportNote()
    note = (
        f"torchvision's resnet{encoder.depth} cannot load it ({', '.join(reasons)}); "
        "{code} builds the module that can"
    )
    return ExportNote(_code(encoder, path), note)


def _code(encoder: ResNet, path: Path) -> str:
    """A module of Python that builds this ResNet with nothing but torch."""
    source = inspect.getsource(resnet).split('"""', 2)[2].lstrip()
    return fill(
        TEMPLATES / "resnet.py.jinja",
        start=CODE_START,
        version=__version__,
        file=path.name,
        source=source,
        model=encoder,
    )


def write_onnx(encoder: nn.Module, facts: dict[str, Any], path: Path) -> ExportNote:
    """Write ONNX: uint8 images in, features out; checked against PyTorch."""
    with needed_for("the format onnx"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401

        onnxruntime = import_onnxruntime()
    shape = (2, facts["channels"], facts["size"], facts["size"])
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    # In single precision: onnxruntime has no convolution in double.
    model = FromBytes(encoder.float(), facts["mean"], facts["std"]).eval()

    def write(file: Path) -> None:
        with ExitStack() as quiet:  # it reports on itself, and on packages that are not needed
            logger = logging.getLogger("torch.onnx")
            quiet.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
            quiet.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            assert program is not None
            program.model.metadata_props.update(to_texts(facts))
            program.save(file, external_data=False)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for batch in (images, images[:1]):
            (features,) = session.run(None, {"images": batch.numpy()})
            with torch.no_grad():
                expected = model(batch)
            torch.testing.assert_close(torch.from_numpy(features), expected, rtol=1e-3, atol=1e-4)

    write_whole(path, write)
    return ExportNote()


EXPORTS = Exports(
    facts=facts_of,
    options=options_of,
    shape=shape_of,
    opaque=opaque,
    formats={"torchvision": write_torchvision, "onnx": write_onnx},
    readme=TEMPLATES / "readme.md.jinja",
)
