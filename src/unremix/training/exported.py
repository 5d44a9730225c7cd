"""Encoders from the files that ``unremix export`` wrote, with the preprocessing they carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unremix.data.bounds import shorten
from unremix.data.image.items import read_items
from unremix.data.suggestions import needed_for
from unremix.domains import find_domain
from unremix.domains.outline import outlined, refuse_other
from unremix.encoders import make_encoder
from unremix.encoders.registry import NAMES
from unremix.options.config import LARGEST_IMAGE, TrainConfig, make_config
from unremix.training.checkpoints import (
    DamagedError,
    check_embeddings,
    check_finite,
    read_safetensors,
)
from unremix.training.export import OPTIONS, FromBytes, from_texts
from unremix.training.run import Run

AT_ONCE = 512  # images


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
        embeddings = check_embeddings(self._embed(items))
        return F.normalize(embeddings, dim=1) if normalize else embeddings


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

    def network(images: Tensor) -> Tensor:
        (features,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(features)

    return _of_images(path, facts, network)


def _from_safetensors(path: Path) -> ExportedEncoder:
    try:
        weights, texts = read_safetensors(path)
    except DamagedError as error:
        raise ValueError(f"expected a safetensors file, got another: {error}") from error
    facts = _facts(path, texts)
    check_finite(weights, str(path))
    if facts["domain"] == "image":
        _refuse_larger(lambda: _image_encoder(path, facts), weights, path)
        for name in ("mean", "std"):
            if len(facts[name]) != facts["channels"]:
                raise ValueError(f"{name} of {len(facts[name])} channels")
        encoder = _fill(_image_encoder(path, facts), weights)
        return _of_images(path, facts, FromBytes(encoder, facts["mean"], facts["std"]).eval())
    domain, kind = find_domain(facts["domain"]), facts["domain"]
    options = {name: facts["encoder"][name] for name in OPTIONS[kind]}
    config, shape = make_config({"domain": kind, kind: options}), domain.shape_from(facts["shape"])
    _refuse_larger(lambda: domain.build(config, shape).encoder, weights, path)
    encoder = _fill(domain.build(config, shape).encoder, weights)
    return ExportedEncoder(path, facts, _Loaded(path, config, shape, encoder).embed)


def _refuse_larger(make: Callable[[], nn.Module], weights: dict[str, Tensor], path: Path) -> None:
    """Refuse metadata of a larger network than the weights are of, before memory is taken."""
    refuse_other(outlined(make, "the sizes in its metadata"), weights, str(path))


class _Loaded(Run):
    """What embedding asks of a run, for an encoder without one."""

    def __init__(self, path: Path, config: TrainConfig, shape: Any, network: nn.Module) -> None:
        self.path, self.config, self.shape, self.network = path, config, shape, network

    def encoder(self, *, trained: bool = True) -> nn.Module:
        return self.network


def _fill(encoder: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The weights in the encoder, in their precision."""
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    encoder.to(dtype).load_state_dict(weights)
    return encoder.eval()


def _image_encoder(path: Path, facts: dict[str, Any]) -> nn.Module:
    made = facts["encoder"]
    name = made["name"]
    # A file must not decide which code runs: weights are data.
    if name not in NAMES and not name.startswith(("timm:", "torchvision:")):
        raise ValueError(
            f"expected a network of unremix, timm or torchvision, got {name!r} in {path}; export "
            "it as onnx, which needs no code"
        )
    return make_encoder(
        name,
        channels=facts["channels"],
        image_size=facts["size"],
        width=made["width"],
        stem=made["stem"],
    )


def _of_images(
    path: Path, facts: dict[str, Any], network: Callable[[Tensor], Tensor]
) -> ExportedEncoder:
    channels, size = facts["channels"], facts["size"]
    if channels not in (1, 3) or not isinstance(size, int) or not 1 <= size <= LARGEST_IMAGE:
        raise ValueError(
            f"expected 1 or 3 channels and a size in pixels in {path}, got {shorten(channels)} and "
            f"{shorten(size)}; write it again with 'unremix export RUN'"
        )

    @torch.no_grad()
    def embed(items: Any) -> Tensor:
        images = read_items(items, channels=channels, size=size)
        return torch.cat([network(part) for part in images.split(AT_ONCE)])

    return ExportedEncoder(path, facts, embed)
