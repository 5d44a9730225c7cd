"""Encoders from the files that ``unremix export`` wrote, with the preprocessing they carry."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.suggestions import needed_for
from unremix.domains import find_domain
from unremix.domains.base import evaluating
from unremix.domains.options import TrainConfig, make_config
from unremix.files.bounds import shorten
from unremix.training.building import embeds_in, outlined, refuse_other
from unremix.training.checkpoints import (
    DamagedError,
    check_embeddings,
    check_finite,
    read_safetensors,
)
from unremix.training.export import from_texts


class ExportedEncoder:
    """An encoder with its preprocessing; :func:`load_exported` makes it.

    Attributes:
        path: The file.
        metadata: What the file says: size, crop, mean, std, layer, version and so on.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], embed: Callable[[Any], Tensor]
    ) -> None:
        self.path, self.metadata, self._embed = path, metadata, embed

    def __repr__(self) -> str:
        return f"load_exported({str(self.path)!r})"

    def embed(self, items: Any, *, normalize: bool = False) -> Tensor:
        """Embeddings of items, shape (n, F), as :meth:`unremix.Run.embed` gives them.

        Args:
            items: Pictures, graphs or sentences; see :meth:`unremix.Run.embed`.
            normalize: Whether to scale each embedding to length 1.

        Raises:
            ValueError: For items the encoder cannot take.
        """
        return check_embeddings(self._embed(items), normalize=normalize)


def load_exported(path: str | Path) -> ExportedEncoder:
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
        return (_from_onnx if path.suffix == ".onnx" else _from_safetensors)(path)
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


def _from_onnx(path: Path) -> ExportedEncoder:
    with needed_for("an .onnx file"):
        import onnxruntime
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no base of their own
        raise ValueError(f"expected an ONNX file, got {path} ({error})") from error
    facts = _facts(path, session.get_modelmeta().custom_metadata_map)
    exports = find_domain(facts["domain"]).exports
    assert exports is not None

    def forward(inputs: Tensor) -> Tensor:
        (features,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        return torch.from_numpy(features)

    return ExportedEncoder(path, facts, exports.embedder(facts, path, forward))


def _from_safetensors(path: Path) -> ExportedEncoder:
    try:
        weights, texts = read_safetensors(path)
    except DamagedError as error:
        raise ValueError(f"expected a safetensors file, got another: {error}") from error
    facts = _facts(path, texts)
    check_finite(weights, str(path))
    domain = find_domain(facts["domain"])
    exports = domain.exports
    if exports is not None:
        encoder = _filled(lambda: exports.network(facts, path), weights, path)
        network = embeds_in(facts.get("precision", "32-true"), exports.forward(encoder, facts))

        def forward(inputs: Tensor) -> Tensor:
            with evaluating(network):
                features: Tensor = network(inputs)
            return features

        return ExportedEncoder(path, facts, exports.embedder(facts, path, forward))
    own = {name: facts["encoder"][name] for name in domain.architecture}
    config = make_config(
        {"domain": domain.name, **({domain.section: own} if domain.section else own)}
    )
    shape = domain.shape_from(facts["shape"])
    encoder = _filled(lambda: domain.build(config, shape)[0], weights, path)
    embeds_in(facts.get("precision", "32-true"), encoder)
    loaded = _Loaded(path, config, shape, encoder)
    return ExportedEncoder(path, facts, lambda items: domain.embed(loaded, items))


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
    return encoder.eval()


@dataclass
class _Loaded:
    """What embedding asks of a run, for an encoder without one."""

    path: Path
    config: TrainConfig
    shape: Any
    network: nn.Module

    def encoder(self, *, trained: bool = True) -> nn.Module:
        return self.network

    def metrics(self) -> list[dict[str, float]]:
        return []

    def warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)
