"""Checkpoints and weights that know themselves: a checksum over every byte, verified on reading.

A checkpoint is a file of safetensors: its tensors by number, and the rest of the state, which
refers to them, as JSON in the metadata. Nothing is unpickled. The metadata also hold the SHA-256 of
both; those of an ``encoder.safetensors`` hold the SHA-256 of its tensors. Earlier versions wrote
checkpoints by ``torch.save``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from unremix.console.values import fits
from unremix.files.atomic_files import checked, open_file
from unremix.files.bounds import check_torch
from unremix.files.fingerprint import feed, fingerprint

ARCHIVE = b"PK"  # how one begins
MARK = b"sha256:"
COMMENT = len(MARK) + 64  # bytes
# What a training continues from; early versions did not write all of it.
CONTENTS = {
    "step": int, "rows": list[dict[str, float]], "model": dict, "losses": list[float],
    "seconds": float, "record": dict, "optimizer": dict,
}  # fmt: skip
NEEDED = {"step", "rows", "model"}
MISMATCH = "its checksum does not match"
LAST_RECORD = b"PK\x05\x06"  # of a zip; 22 bytes without a comment


class DamagedError(ValueError):
    """A file does not hold what was written to it."""


def write_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint with its checksum."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_to_json(dict(state), tensors, {}))
    save_file(tensors, path, metadata={"state": text, "sha256": _digest(text, tensors)})


def read_checkpoint(
    path: Path, *, inside: Path | None = None, trust: bool = False
) -> dict[str, Any]:
    """Read a checkpoint once its checksum is verified; nothing in it is executed.

    Args:
        path: The file.
        inside: The run's folder, if it lies in one.
        trust: Whether an archive of an earlier version may be read where torch is too old for it.

    Raises:
        FileNotFoundError: If there is none.
        DamagedError: If it is not what was written.
    """
    with _damage_named(path), open_file(path, inside=inside) as file:
        if file.read(len(ARCHIVE)) == ARCHIVE:
            state: Any = _read_archive(file, path, trust=trust)
        else:
            tensors, texts = _read_tensors(path)
            if texts.get("sha256") != _digest(texts["state"], tensors):
                raise ValueError(MISMATCH)
            state = _from_json(json.loads(texts["state"]), tensors)
    if not _is_checkpoint(state):
        raise DamagedError(f"{path} is not a checkpoint of unremix")
    return cast(dict[str, Any], state)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Whatever is raised within, unless there is no file, means that the file is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # what damaged files raise has no base of its own
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        if isinstance(error, UnpicklingError):  # torch's text would have it loaded with its code
            why = "it holds more than numbers"
        raise DamagedError(f"{path} cannot be read ({why})") from error


def is_checkpoint(path: Path) -> bool:
    """Whether a file begins as a checkpoint does: with the header of safetensors."""
    with open_file(path) as file:
        return file.read(9)[8:] == b"{"


def _to_json(value: Any, tensors: dict[str, Tensor], known: dict[tuple[Any, ...], str]) -> Any:
    """A nested state as JSON has it; its tensors are added by number, shared ones once."""
    if isinstance(value, Tensor):
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if place not in known:
            whole = value.detach().cpu().contiguous()
            part = whole.untyped_storage().nbytes() != whole.numel() * whole.element_size()
            known[place] = str(len(tensors))
            tensors[known[place]] = whole.clone() if part else whole
        return {"tensor": known[place]}
    if isinstance(value, Mapping):
        return {"dict": [[key, _to_json(one, tensors, known)] for key, one in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(one, tensors, known) for one in value]}
    if isinstance(value, list):
        return [_to_json(one, tensors, known) for one in value]
    return value


def _from_json(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of :func:`_to_json`."""
    if isinstance(value, list):
        return [_from_json(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(_from_json(one, tensors) for one in inner)
    return {key: _from_json(one, tensors) for key, one in inner}


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    return fingerprint([text, digest_of(tensors)])


def _read_archive(file: BinaryIO, path: Path, *, trust: bool) -> Any:
    """A checkpoint of an earlier version, a file of torch.save whose comment is its checksum."""
    check_torch(trust=trust)
    if not _verify(file):
        warnings.warn(f"{path} has no checksum: an early version wrote it", stacklevel=4)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _is_checkpoint(state: Any) -> bool:
    """Whether all that a training continues from is of the type that it writes."""
    return (
        isinstance(state, dict)
        and state.keys() >= NEEDED
        and all(fits(state[name], kind) for name, kind in CONTENTS.items() if name in state)
        and state["step"] >= 0
        and all(fits(value, float) for row in state["rows"] for value in row.values())
        and all(math.isfinite(row.get("epoch", math.nan)) for row in state["rows"])
        and all(isinstance(name, str) and _is_plain(one) for name, one in state["model"].items())
    )


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor of numbers in memory, as they are: not sparse, nested or packed."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_nested or tensor.is_quantized)
    )


def _verify(file: BinaryIO) -> bool:
    """Compare an archive with its checksum; False if an early version wrote it without one."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - COMMENT))
    comment = file.read()
    if comment[-22:-18] == LAST_RECORD:
        return False
    if not comment.startswith(MARK):
        raise ValueError("its checksum is missing")
    file.seek(0)
    if comment != MARK + feed(hashlib.sha256(), file, size - COMMENT).hexdigest().encode():
        raise ValueError(MISMATCH)
    return True


def digest_of(values: Mapping[str, Tensor] | Mapping[str, str]) -> str:
    """SHA-256 over names, and over texts or the types, shapes and numbers of tensors."""
    return fingerprint(part for name in sorted(values) for part in (name, values[name]))


def read_safetensors(
    path: Path, inside: Path | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a .safetensors file, whose checksum is verified if it has one.

    Args:
        path: The file.
        inside: The run's folder, if it lies in one.

    Raises:
        DamagedError: If it is not what was written.
    """
    with _damage_named(path):
        weights, texts = _read_tensors(checked(path, inside=inside))
        facts = texts.pop("facts_sha256", None)  # earlier versions wrote none
        sound = texts.pop("sha256", None) in (None, digest_of(weights))
        if not sound or facts not in (None, digest_of(texts)):
            raise ValueError(MISMATCH)
    return weights, texts


def read_metadata(path: Path, inside: Path | None = None) -> dict[str, str]:
    """Metadata of a .safetensors file, none of a damaged one."""
    try:
        with safe_open(checked(path, inside=inside), framework="pt") as file:
            return file.metadata() or {}
    except Exception:  # of any kind: whoever reads the weights says so
        return {}


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a .safetensors file; nobody can change them once they are read."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are not finite.

    Raises:
        ValueError: If one of them is not.
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"expected finite weights in {where}, got NaN or infinity in {name}; the training "
                "diverged: train again with a lower --lr"
            )


def check_embeddings(embeddings: Tensor, *, normalize: bool = False) -> Tensor:
    """The embeddings (n, F), which may have overflowed although all weights are finite.

    Args:
        embeddings: Of the encoder.
        normalize: Whether to scale each to length 1.

    Raises:
        ValueError: If one of them is not finite.
    """
    broken = int((~embeddings.isfinite()).any(dim=1).sum())
    if broken:
        raise ValueError(
            f"expected finite embeddings, got NaN or infinity in {broken} of {len(embeddings)} "
            "rows; the encoder has diverged, or its input is broken: train again with a lower --lr"
        )
    return functional.normalize(embeddings, dim=1) if normalize else embeddings
