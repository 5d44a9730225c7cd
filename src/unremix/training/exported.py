"""Encoders from the files that ``unremix export`` wrote, with the preprocessing they carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.suggestions import needed_for
from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.files.bounds import shorten
from unremix.files.onnx import import_onnxruntime
from unremix.training.building import embeds_in, outlined, refuse_other
from unremix.training.checkpoints import DamagedError, check_finite, read_safetensors
from unremix.training.export import from_texts
from unremix.training.ready import ReadyEncoder


def load_exported(path: str | Path) -> ReadyEncoder:
    """Load an encoder that ``unremix export`` wrote.

    Args:
        path: A ``.safetensors`` or ``.onnx`` file.

    Returns:
        The encoder, which reads and prepares its inputs itself.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is another kind of file, or says nothing about its preprocessing.

    Example:
        ``unremix.load_exported("encoder.onnx").embed(["a.png", "b.png"])`` gives an array (2, F).
    """
    path = Path(path)
    if path.is_dir() or path.suffix not in (".safetensors", ".onnx"):
        raise ValueError(
            f"expected a .safetensors or .onnx file, got {str(path)!r}; write one with "
            "'unremix export RUN', or load a run's folder with unremix.load"
        )
    if not path.exists():
        raise FileNotFoundError(f"expected an exported encoder at {str(path)!r}, found no file")
    try:
        read = _from_onnx if path.suffix == ".onnx" else _from_safetensors
        config, shape, network, facts = read(path)
        made = f"exported by {facts['made_by']}"
        return ReadyEncoder(str(path), config, shape, network.eval(), made, facts)
    except Exception as error:  # its facts and its weights may be anything
        if isinstance(error, ImportError | OSError) or str(error).startswith("expected "):
            raise
        raise ValueError(
            f"expected an encoder as 'unremix export' wrote it, got {path} "
            f"({type(error).__name__}: {shorten(error)}); write it again"
        ) from error


def _facts(path: Path, texts: dict[str, str] | None) -> dict[str, Any]:
    if not texts or "made_by" not in texts:
        raise ValueError(
            f"expected a file with its preprocessing as metadata, got {path} without; write it "
            "again with 'unremix export RUN'"
        )
    return from_texts(texts)


def _from_onnx(path: Path) -> tuple[TrainConfig, Any, nn.Module, dict[str, Any]]:
    with needed_for("an .onnx file"):
        onnxruntime = import_onnxruntime()
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no base of their own
        raise ValueError(f"expected an ONNX file, got {path} ({error})") from error
    facts = _facts(path, session.get_modelmeta().custom_metadata_map)
    domain = find_domain(facts["domain"])
    assert domain.exports is not None

    def forward(inputs: Tensor) -> Tensor:
        (features,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        return torch.from_numpy(features)

    network, shape = domain.exports.opaque(forward, facts, path)
    return TrainConfig(domain=domain.name), shape, network, facts


def _from_safetensors(path: Path) -> tuple[TrainConfig, Any, nn.Module, dict[str, Any]]:
    try:
        weights, texts = read_safetensors(path)
    except DamagedError as error:
        raise ValueError(f"expected a safetensors file, got another: {error}") from error
    facts = _facts(path, texts)
    check_finite(weights, str(path))
    domain = find_domain(facts["domain"])
    exports = domain.exports
    if exports is None:
        made = facts["encoder"]
        own = {name: made[name] for name in domain.architecture if name in made}  # an early file
        shape = domain.shape_from(facts["shape"])
    else:
        own, shape = exports.options(facts, path), exports.shape(facts, path)
    config = TrainConfig(domain=domain.name, own=domain.options(**own))
    encoder = _filled(lambda: domain.build(config, shape)[0], weights, path)
    embeds_in(facts.get("precision", "32-true"), encoder)
    return config, shape, encoder, facts


def _filled(make: Callable[[], nn.Module], weights: dict[str, Tensor], path: Path) -> nn.Module:
    """The encoder that a function makes, with the weights, in their precision.

    Raises:
        ValueError: If the metadata are of a larger network than the weights.
    """
    # Before memory is taken for it.
    refuse_other(outlined(make, "the sizes in its metadata"), weights, str(path))
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    with torch.random.fork_rng(devices=[]):
        encoder = make().to(dtype)
    encoder.load_state_dict(weights)
    return encoder
