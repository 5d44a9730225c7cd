"""A short text that identifies data."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import BinaryIO, Protocol, TypeVar

import torch
from torch import Tensor

AT_ONCE = 1 << 20  # bytes


class Digest(Protocol):
    """What collects bytes, as of hashlib or hmac."""

    def update(self, data: bytes, /) -> None:
        """Collect some more."""


Made = TypeVar("Made", bound=Digest)


def feed(digest: Made, file: BinaryIO, size: int = sys.maxsize) -> Made:
    """A digest after the next ``size`` bytes of a file, or all that are left."""
    while size > 0 and (part := file.read(min(AT_ONCE, size))):
        digest.update(part)
        size -= len(part)
    return digest


def fingerprint(parts: Iterable[Tensor | str | None]) -> str:
    """SHA-256 over tensors and texts, one after the other.

    Args:
        parts: Tensors of any shape, texts, or None for unknown parts.

    Example:
        >>> fingerprint(["a", None]) == fingerprint(["a", "None"])
        False
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            tensor = part.detach().cpu().contiguous()
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        else:
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            found.update(f"{type(part).__name__} {len(data)}\n".encode())
            found.update(data)
    return found.hexdigest()
