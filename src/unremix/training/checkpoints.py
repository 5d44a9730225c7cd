"""Checkpoints and weights that know themselves: a checksum over every byte, verified on reading.

A checkpoint is a file of ``torch.save``, which is a zip. Its comment, at the very end, is the
SHA-256 of everything before it, so ``torch.load`` reads it as it is. An ``encoder.safetensors`` has
the SHA-256 of its tensors in its metadata.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from unremix.files.atomic_files import checked
from unremix.files.fingerprint import fingerprint

MARK = b"sha256:"
COMMENT = len(MARK) + 64  # bytes
LAST_RECORD = b"PK\x05\x06"  # of a zip; 22 bytes without a comment
AT_ONCE = 1 << 20  # bytes


class DamagedError(ValueError):
    """A file does not hold what was written to it."""


def write_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint with its checksum."""
    with path.open("w+b") as file:  # given a path, torch would not say why it cannot write
        torch.save(dict(state), file)
        file.seek(-2, os.SEEK_END)  # the length of the comment
        file.write(COMMENT.to_bytes(2, "little"))
        file.write(MARK + _digest(file, file.tell()))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint once its checksum is verified; nothing in it is executed.

    Raises:
        FileNotFoundError: If there is none.
        DamagedError: If it is not what was written.
    """
    try:
        with path.open("rb") as file:
            checked = _verify(file)
            file.seek(0)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except UnpicklingError as error:  # torch's text would have it loaded with its code
        raise DamagedError(f"{path} cannot be read (it holds more than numbers)") from error
    except Exception as error:  # what damaged files raise has no base of its own
        raise DamagedError(f"{path} cannot be read ({_first_line(error)})") from error
    if not checked:
        warnings.warn(f"{path} has no checksum: an early version wrote it", stacklevel=3)
    if not _is_checkpoint(state):
        raise DamagedError(f"{path} is not a checkpoint of unremix")
    return state


def _is_checkpoint(state: Any) -> bool:
    """Whether all that a training continues from is of the type that it writes."""
    if not isinstance(state, dict):
        return False
    step, rows, model = (state.get(name) for name in ("step", "rows", "model"))
    losses, seconds = state.get("losses", []), state.get("seconds", 0.0)
    return (
        isinstance(step, int)
        and _is_number(step)
        and step >= 0
        and isinstance(rows, list)
        and all(isinstance(row, dict) and "epoch" in row for row in rows)
        and all(_is_number(value) for row in rows for value in row.values())
        and all(math.isfinite(row["epoch"]) for row in rows)
        and isinstance(losses, list)
        and all(map(_is_number, losses))
        and _is_number(seconds)
        and isinstance(state.get("record", {}), dict)
        and isinstance(state.get("optimizer", {}), dict)
        and isinstance(model, dict)
        and all(isinstance(name, str) and _is_plain(tensor) for name, tensor in model.items())
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor of numbers in memory, as they are: not sparse, nested or packed."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_nested or tensor.is_quantized)
    )


def _verify(file: BinaryIO) -> bool:
    """Compare a checkpoint with its checksum; False if an early version wrote it without one."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - COMMENT))
    comment = file.read()
    if comment[-22:-18] == LAST_RECORD:
        return False
    if not comment.startswith(MARK):
        raise ValueError("its checksum is missing")
    if comment != MARK + _digest(file, size - COMMENT):
        raise ValueError("its checksum does not match")
    return True


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the first bytes of a file, in hexadecimal; the file stands behind them."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (block := file.read(min(AT_ONCE, size))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and numbers of tensors."""
    return fingerprint(part for name in sorted(weights) for part in (name, weights[name]))


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
    try:
        with safe_open(checked(path, inside=inside), framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts: dict[str, str] = file.metadata() or {}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise DamagedError(f"{path} cannot be read ({_first_line(error)})") from error
    if texts.pop("sha256", None) not in (None, digest_of(weights)):
        raise DamagedError(f"{path} cannot be read (its checksum does not match)")
    return weights, texts


def read_metadata(path: Path, inside: Path | None = None) -> dict[str, str]:
    """Metadata of a .safetensors file, none of a damaged one."""
    try:
        with safe_open(checked(path, inside=inside), framework="pt") as file:
            return file.metadata() or {}
    except Exception:  # of any kind: whoever reads the weights says so
        return {}


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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
