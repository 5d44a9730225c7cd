"""Pictures made for the tests, and folders and archives of them."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from unremix.domains.image.dataset import ImageSet, load_images


def picture(seed: int = 0, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    """Random pixels; width and height as Pillow has them."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture(hash_of(path))).save(path, **options)
    return path


def hash_of(path: Path) -> int:
    return sum(path.name.encode()) + sum(path.parent.name.encode())


def pixels(images: ImageSet) -> torch.Tensor:
    return images.images.batch(torch.arange(len(images)))


def one(tmp_path: Path, image: Image.Image, name: str = "a.png", **options: Any) -> torch.Tensor:
    """A single image, saved and loaded at its own size: shape (C, S, S)."""
    folder = tmp_path / "one"
    shutil.rmtree(folder, ignore_errors=True)
    save(folder / name, image, **options)
    return pixels(load_images(folder, image_size=min(image.size)).train)[0]


def zipped(folder: Path, target: Path, *, wrap: str = "", method: int = 8) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", method) as archive:
        files = [path for path in folder.rglob("*") if path.is_file()]
        random.Random(0).shuffle(files)
        for path in files:
            archive.write(path, wrap + path.relative_to(folder).as_posix())
    return target


def cifar_zip() -> Path | None:
    """CIFAR-10 as a zip of images, where this machine has it."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    roots = [Path(os.environ["UNREMIX_DATA"])] if "UNREMIX_DATA" in os.environ else []
    paths = [root / "cifar10-images.zip" for root in (*roots, shared)]
    return next((path for path in paths if path.exists()), None)
