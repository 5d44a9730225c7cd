"""A run's encoder for use without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import nn

from unremix.data.atomic_files import write_whole
from unremix.encoders import ResNet, to_torchvision
from unremix.training.run import Run

Format = Literal["safetensors", "torchvision", "onnx"]
SUFFIX = {"safetensors": ".safetensors", "torchvision": ".torchvision.pt", "onnx": ".onnx"}
ENDINGS = {"safetensors": (".safetensors",), "torchvision": (".pt", ".pth"), "onnx": (".onnx",)}


def export_encoder(run_folder: str, kind: Format, output: str | None = None) -> Path:
    """Write a run's encoder.

    Args:
        run_folder: The run.
        kind: ``safetensors`` (our parameter names), ``torchvision`` (a state dict that its ResNets
            load, without the classifier) or ``onnx`` (normalised images in, features out; checked
            against PyTorch with onnxruntime).
        output: The file; by default in the run's folder.

    Returns:
        The file.

    Raises:
        ValueError: If this encoder cannot be written so, the file's name ends otherwise, or a
            package is missing.
    """
    if output is not None and Path(output).suffix not in ENDINGS[kind]:
        raise ValueError(
            f"expected a file that ends in {' or '.join(ENDINGS[kind])} for the format {kind}, "
            f"received {output!r}; rename it or choose another --format"
        )
    run = Run(run_folder)
    if kind != "safetensors" and run.config.domain != "image":
        raise ValueError(
            f"expected a run on images for the format {kind}, received one on {run.domain.unit}; "
            "export as safetensors"
        )
    encoder = run.encoder()
    path = run.path / f"encoder{SUFFIX[kind]}" if output is None else Path(output)
    if kind == "safetensors":
        weights = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
        write_whole(path, lambda file: save_file(weights, file))
    elif kind == "torchvision":
        if not isinstance(encoder, ResNet):
            raise ValueError(
                f"expected a ResNet for the torchvision format, received {type(encoder).__name__}; "
                "export as safetensors or onnx"
            )
        state = to_torchvision(encoder)
        write_whole(path, lambda file: torch.save(state, file))
    else:
        _export_onnx(encoder, run, path)
    return path


def _export_onnx(encoder: nn.Module, run: Run, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"expected onnx, onnxscript and onnxruntime, but {error.name} is not installed; "
            "pip install onnx onnxscript onnxruntime"
        ) from error
    size, channels = run.shape.image_size, run.shape.channels
    images = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))

    def write(file: Path) -> None:
        torch.onnx.export(
            encoder,
            (images,),
            file,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for batch in (images, images[:1]):
            (features,) = session.run(None, {"images": batch.numpy()})
            with torch.no_grad():
                expected = encoder(batch)
            torch.testing.assert_close(torch.from_numpy(features), expected, rtol=1e-3, atol=1e-4)

    write_whole(path, write)
