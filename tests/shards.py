"""Handwritten digits in WebDataset shards of unequal sizes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import fsspec
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

COUNTS = (16, 9, 12, 14, 11, 13, 10, 15)  # 100 digits


def write_digits(folder: Path, counts: Sequence[int] = COUNTS, brightness: int = 15) -> str:
    """Write shards of so many digits each, with labels; the pattern that names them."""
    digits = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, count in enumerate(counts):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as archive:
            for _ in range(count):
                stream = io.BytesIO()
                pixels = (digits.images[number] * brightness).astype("uint8")
                Image.fromarray(pixels).save(stream, "PNG")
                label = str(digits.target[number]).encode()
                for ending, data in (("png", stream.getvalue()), ("cls", label)):
                    member = tarfile.TarInfo(f"{number:03d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                number += 1
    return str(folder / f"s-{{0..{len(counts) - 1}}}.tar")


def upload(folder: Path, url: str) -> None:
    """Put the shards of a folder below a URL."""
    files, root = fsspec.core.url_to_fs(url)
    for path in sorted(folder.glob("*.tar")):
        files.pipe_file(f"{root}/{path.name}", path.read_bytes())
