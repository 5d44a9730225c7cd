"""From what a user names to the reader that understands it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unremix.data.graph.json_lines import is_json_lines
from unremix.data.image.arrays import read_cifar, read_digits, read_npz, tar_pickles
from unremix.data.image.decoding import HEIF_SUFFIXES, suffixes
from unremix.data.image.folders import (
    read_files,
    read_folder,
    read_pattern,
    read_tars,
    read_tree,
    read_url,
    zip_files,
)
from unremix.data.locate import candidates, locate
from unremix.data.remote import is_url
from unremix.data.splits import ACCEPTED, IMAGES, Found, name_and_suffix

TU_FILE = "_graph_indicator.txt"  # every TU data set of graphs has one, and nothing else


def _of_domain(path: Path, domain: str) -> ValueError:
    return ValueError(
        f"expected images, got {path}, which looks like {domain} data; add --domain {domain}"
    )


def find_images(data: str | Path | Sequence[str | Path]) -> Found:
    """Recognize the format and find the images."""
    if not isinstance(data, str | Path):
        return read_files(data)
    if str(data) == "digits":
        return read_digits()
    if is_url(data) and name_and_suffix(Path(data))[1] in ("", ".tar"):
        return read_url(str(data))
    if "{" in str(data) and not Path(data).exists():
        return read_pattern(str(data))
    for graphs in candidates(data, folders=("tu",), suffixes=("", ".zip"))[1:]:
        if graphs.exists() and not any(place.exists() for place in candidates(data)):
            raise _of_domain(graphs, "graph")
    path = locate(data, IMAGES)
    if path.is_dir():
        if any(path.glob(f"*{TU_FILE}")):
            raise _of_domain(path, "graph")
        return read_folder(path)
    if not path.is_file():  # to open a pipe would wait for ever
        raise ValueError(f"expected a file or a folder, got {path}, which is neither")
    name, suffix = name_and_suffix(path)
    if suffix == ".zip":
        files, skipped = zip_files(path)
        if any(file.endswith(TU_FILE) for file, _ in files):
            raise _of_domain(path, "graph")
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
    domain = "graph" if is_json_lines(path) else "sentence" if ".txt" in path.suffixes else None
    if domain is not None:
        raise _of_domain(path, domain)
    raise ValueError(f"expected one of: {ACCEPTED}; got the file {path}")
