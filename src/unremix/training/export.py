"""A run's encoder for use elsewhere, with everything needed to prepare its inputs.

Every file carries its preprocessing as metadata; ``preprocess.json`` and ``README.md`` beside it
say the same to people and to other programs. :mod:`unremix.training.exported` reads the files.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from unremix import __version__
from unremix.data.atomic_files import read_text, write_bytes, write_text, write_whole
from unremix.data.suggestions import needed_for
from unremix.domains.sentence import SentenceShape, reader
from unremix.encoders import ResNet, SmallCNN, resnet, to_torchvision
from unremix.training.checkpoints import digest_of
from unremix.training.export_readme import README_START, readme
from unremix.training.run import Run

Format = Literal["safetensors", "torchvision", "onnx"]
SUFFIX = {"safetensors": ".safetensors", "torchvision": ".torchvision.pt", "onnx": ".onnx"}
ENDINGS = {"safetensors": (".safetensors",), "torchvision": (".pt", ".pth"), "onnx": (".onnx",)}

# What decides the architecture of an encoder of graphs or sentences.
OPTIONS = {
    "graph": ("hidden", "layers"),
    "sentence": ("encoder", "words", "units", "bidirectional", "output", "max_length"),
}
TEXTS = ("made_by", "version", "domain", "layer", "crop", "resize")  # others are written as JSON


class Export(NamedTuple):
    """What was written."""

    path: Path  # the encoder
    beside: tuple[Path, ...]  # further files: preprocessing, a README and perhaps code
    note: str | None  # what to know about it, if anything


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


def describe(run: Run, encoder: nn.Module) -> dict[str, Any]:
    """What a file says about its encoder: how to build it, and how to prepare its inputs."""
    config, shape = run.config, run.shape
    facts = {
        "made_by": f"unremix {__version__}",
        "version": __version__,
        "domain": config.domain,
        "layer": "backbone",
        "features": encoder.features,
    }
    if config.domain != "image":
        options = getattr(config, config.domain)
        chosen = {name: getattr(options, name) for name in OPTIONS[config.domain]}
        return {**facts, "encoder": chosen, "shape": asdict(shape)}
    name, stem = config.backbone, config.stem
    if isinstance(encoder, SmallCNN):
        name = "small"
    elif isinstance(encoder, ResNet):
        name, stem = f"resnet{encoder.depth}", encoder.stem
    return {
        **facts,
        "encoder": {"name": name, "width": config.width, "stem": stem},
        "size": shape.image_size,
        "channels": shape.channels,
        "crop": "center square",
        "resize": "bicubic, antialiased",
        "mean": list(shape.settings.mean),
        "std": list(shape.settings.std),
    }


def to_texts(facts: dict[str, Any]) -> dict[str, str]:
    """Metadata as strings, which is all that safetensors and ONNX hold."""
    return {key: value if key in TEXTS else json.dumps(value) for key, value in facts.items()}


def from_texts(texts: dict[str, str]) -> dict[str, Any]:
    """The inverse of :func:`to_texts`.

    Example:
        >>> from_texts(to_texts({"layer": "backbone", "size": 32}))
        {'layer': 'backbone', 'size': 32}
    """
    return {key: value if key in TEXTS else json.loads(value) for key, value in texts.items()}


def write_weights(run: Run, encoder: nn.Module, path: Path) -> None:
    """Write an encoder's weights as safetensors, with its description as metadata."""
    weights = {name: tensor.contiguous().cpu() for name, tensor in encoder.state_dict().items()}
    texts = to_texts(describe(run, encoder)) | {"sha256": digest_of(weights)}
    data = save(weights, metadata=texts)  # its save_file has a temporary file of its own
    write_bytes(path, data)


def export_encoder(
    run_folder: str, kind: Format, output: str | None = None, *, trust: bool = False
) -> Export:
    """Write a run's encoder, how to prepare its inputs, and a README with code to use it.

    Args:
        run_folder: The run.
        kind: ``safetensors`` (our parameter names), ``torchvision`` (a state dict of its ResNets,
            without the classifier) or ``onnx`` (uint8 images in, features out; checked against
            PyTorch with onnxruntime). Graphs and sentences can be written as safetensors only.
        output: The file; by default in the run's folder.
        trust: Whether code may run that the run's folder names.

    Returns:
        The files.

    Raises:
        ValueError: If this encoder cannot be written so, the file's name ends otherwise, or a
            package is missing.
    """
    if output is not None and Path(output).suffix not in ENDINGS[kind]:
        raise ValueError(
            f"expected a file that ends in {' or '.join(ENDINGS[kind])} for the format {kind}, "
            f"got {output!r}; rename it or choose another --format"
        )
    run = Run(run_folder, trust=trust)
    if kind != "safetensors" and run.config.domain != "image":
        why = "it works with tensors of one shape" if kind == "onnx" else "it has image models only"
        raise ValueError(
            f"expected a run on images for the format {kind}, got one on {run.domain.unit} "
            f"({why}); export as safetensors, which unremix.load_exported reads"
        )
    encoder, name = run.encoder(), "encoder"
    if run.config.domain == "sentence" and run.config.sentence.expand is not None:
        run, encoder = _with_further_words(run, encoder)
        name = "encoder-expanded"  # not the run's own weights
    path = run.path / f"{name}{SUFFIX[kind]}" if output is None else Path(output)
    facts = describe(run, encoder)
    code, note = None, None
    if kind == "safetensors":
        write_weights(run, encoder, path)
    elif kind == "onnx":
        _write_onnx(encoder, facts, path)
    else:
        if not isinstance(encoder, ResNet):
            raise ValueError(
                f"expected a ResNet for the torchvision format, got {type(encoder).__name__}; "
                "export as safetensors or onnx"
            )
        state = to_torchvision(encoder)
        write_whole(path, lambda file: torch.save(state, file))
        reasons = _differences(encoder)
        if reasons:
            code = _write_beside(path, f"{_stem(path)}_model.py", CODE_START, _code(encoder, path))
            note = (
                f"torchvision's resnet{encoder.depth} cannot load it ({', '.join(reasons)}); "
                f"{code.name} builds the module that can"
            )
    start = '{\n  "made_by": "unremix '
    text = json.dumps(facts, indent=2) + "\n"
    preprocess = _write_beside(path, "preprocess.json", start, text)
    page = readme(facts, path, code)
    beside = (preprocess, _write_beside(path, "README.md", README_START, page))
    return Export(path, beside if code is None else (*beside, code), note)


def _with_further_words(run: Run, encoder: nn.Module) -> tuple[Run, nn.Module]:
    """The run and encoder of sentences as embedding uses them: with the words of --expand."""
    encoder, words = reader(run)
    shape = SentenceShape(tuple(words.words[2:]), tuple(words.counts[2:]), words.counts[1])
    return Run.unwritten(run.path, run.config, shape), encoder


def _stem(path: Path) -> str:
    """The file's name up to its first dot, as a name that Python can import."""
    return re.sub(r"\W", "_", path.name.split(".")[0])


def _write_beside(path: Path, name: str, start: str, text: str) -> Path:
    """Write a text beside the encoder; a file of that name that is not ours is left alone."""
    target = path.parent / name
    if target.exists() and not read_text(target).startswith(start):
        target = path.parent / f"{_stem(path)}-{name}"
    write_text(target, text)
    return target


def _differences(encoder: ResNet) -> list[str]:
    """Why torchvision's class of that depth cannot load the weights."""
    return [
        words
        for differs, words in (
            (encoder.stem == "cifar", "first convolution 3x3 instead of 7x7, no max-pool"),
            (encoder.width != 64, f"width {encoder.width} instead of 64"),
            (encoder.channels != 3, f"{encoder.channels} channel instead of 3"),
        )
        if differs
    ]


CODE_START = '"""Written by unremix'


def _code(encoder: ResNet, path: Path) -> str:
    """A module of Python that builds this ResNet with nothing but torch."""
    source = inspect.getsource(resnet).split('"""', 2)[2].lstrip()
    made = (
        f"ResNet({encoder.depth}, channels={encoder.channels}, width={encoder.width}, "
        f'stem="{encoder.stem}")'
    )
    return f'''{CODE_START} {__version__}: the ResNet whose weights are in {path.name}.

It needs torch only. ``load()`` gives the encoder, from normalized images to features.
"""

{source}

def load(path: str | None = None) -> ResNet:
    """The trained encoder, in eval mode."""
    import torch
    from pathlib import Path

    model = {made}
    file = Path(__file__).with_name({path.name!r}) if path is None else path
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return model.eval()
'''


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says about itself and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_onnx(encoder: nn.Module, facts: dict[str, Any], path: Path) -> None:
    with needed_for("the format onnx"):
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    shape = (2, facts["channels"], facts["size"], facts["size"])
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    # In single precision: onnxruntime has no convolution in double.
    model = FromBytes(encoder.float(), facts["mean"], facts["std"]).eval()

    def write(file: Path) -> None:
        with _quiet():
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
