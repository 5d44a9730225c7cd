"""Find the reader for what a user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unremix.domains.base import refuse_other_kinds
from unremix.domains.image.arrays import read_cifar, read_digits, read_npz, tar_pickles
from unremix.domains.image.decoding import HEIF_SUFFIXES, suffixes
from unremix.domains.image.folders import (
    read_files,
    read_folder,
    read_pattern,
    read_tars,
    read_tree,
    read_url,
    zip_files,
)
from unremix.domains.image.splits import ACCEPTED, IMAGES, ImageSplits, name_and_suffix
from unremix.files.locate import locate
from unremix.files.remote import is_url


def find_images(data: str | Path | Sequence[str | Path]) -> ImageSplits:
    """Recognize the format and find the images."""
    if not isinstance(data, str | Path):
        return read_files(data)
    if str(data) == "digits":
        return read_digits()
    if is_url(data) and name_and_suffix(Path(data))[1] in ("", ".tar"):
        return read_url(str(data))
    if "{" in str(data) and not Path(data).exists():
        return read_pattern(str(data))
    refuse_other_kinds(str(data), "image")
    path = locate(data, IMAGES)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():  # opening a pipe would wait forever
        raise ValueError(f"expected a file or a folder, got {path}, which is neither")
    name, suffix = name_and_suffix(path)
    if suffix == ".zip":
        files, skipped = zip_files(path)
        return read_tree(name, files, skipped)
    if suffix == ".npz":
        return read_npz(name, path)
    if suffix in (".tar.gz", ".tgz"):
        return read_cifar(name, tar_pickles(path), path)
    if suffix == ".tar":
        return read_tars(name, [(path.name, path)])
    if path.suffix.lower() in suffixes() | HEIF_SUFFIXES:
        raise ValueError(
            f"expected a folder of pictures, got the single picture {path}; put pictures into a "
            "folder, and name the folder"
        )
    raise ValueError(f"expected one of: {ACCEPTED}; got the file {path}")
