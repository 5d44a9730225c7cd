"""Finds images in any accepted format; reads folders and zips of them, and WebDataset shards."""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

from unremix.core.checks import check_number, check_positive
from unremix.domains.base import refuse_other_kinds
from unremix.domains.image.arrays import IDX_NAME, read_digits, read_idx, read_npz
from unremix.domains.image.cifar import CIFAR_FILES, read_cifar, tar_pickles
from unremix.domains.image.decoding import (
    ACCEPTED,
    HEIF_SUFFIXES,
    IMAGES,
    NEEDS_HEIF,
    FileSource,
    ImageSplits,
    Split,
    labeled,
    quiet_pillow,
    reason_for,
    suffixes,
)
from unremix.domains.sampling import drawn
from unremix.files.archives import RemoteSpan, Skipped, Span, Unusable, ZipSpan, zip_members
from unremix.files.atomic_files import read_bytes
from unremix.files.locate import locate
from unremix.files.remote import is_url, list_files
from unremix.files.shards import Place, expand_braces, read_shards
from unremix.files.walk import walk

TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "val", "valid", "validation")
ANNOTATIONS = "val_annotations.txt"  # Tiny-ImageNet's: name and class of the images beside it
Files = list[tuple[str, Span | RemoteSpan | ZipSpan]]
Shards = list[tuple[str, Place]]


def read_folder(folder: Path) -> ImageSplits:
    """A folder in one of the formats; if it holds only another folder, that one is read."""
    name = folder.resolve().name
    inner = folder
    seen: set[tuple[int, int]] = set()
    while True:
        status = inner.stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back to a folder that it lies in
            return read_tree(name, *_folder_files(folder))
        seen.add((status.st_dev, status.st_ino))
        entries = sorted(entry for entry in inner.iterdir() if not entry.name.startswith("."))
        files = {entry.name: entry for entry in entries if entry.is_file()}
        if "data_batch_1" in files or {"train", "test", "meta"} <= set(files):
            pickles = {key: read_bytes(files[key]) for key in CIFAR_FILES if key in files}
            return read_cifar(name, pickles, folder)
        if any(IDX_NAME.fullmatch(file) for file in files):
            return read_idx(name, files)
        shards: Shards = [one for one in files.items() if one[1].suffix.lower() == ".tar"]
        if shards:
            return read_tars(name, shards)
        if len(entries) != 1 or not entries[0].is_dir():
            return read_tree(name, *_folder_files(folder))
        inner = entries[0]


def _folder_files(folder: Path) -> tuple[Files, list[Skipped]]:
    """All files below a folder."""
    files: Files = []
    skipped: list[Skipped] = []
    for name, path, status, problem in walk(folder):
        if problem is not None:
            skipped.append(Skipped(name, reason_for(problem)))
        elif status is not None and S_ISREG(status.st_mode):
            files.append((name, Span(str(path), 0, status.st_size)))
        else:
            skipped.append(Skipped(name, "not a file"))  # opening a pipe would wait forever
    return files, skipped


def zip_files(path: Path) -> tuple[Files, list[Skipped]]:
    """The images of a zip, and what in it cannot be read."""
    files: Files = []
    skipped: list[Skipped] = []
    for name, span in zip_members(path):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            skipped.append(Skipped(name, "leads out of the zip"))
        else:
            files.append(("/".join(parts), span))
    return files, skipped


def read_tree(name: str, files: Files, skipped: list[Skipped]) -> ImageSplits:
    """A tree of image files: its splits and classes follow from the folders."""
    images: dict[str, Span | RemoteSpan | ZipSpan] = {}
    for file, span in sorted(files):
        if any(part.startswith(".") or part == "__MACOSX" for part in file.split("/")):
            continue
        if _is_image(file, span):
            images[file] = span
        else:
            heif = posixpath.splitext(file)[1].lower() in HEIF_SUFFIXES
            why = NEEDS_HEIF if heif else "not an image"
            skipped.append(Skipped(file, why if span.size else "empty"))
    annotated = _annotated_classes(files)
    paths = [file.split("/")[:-1] for file in images]
    shared = os.path.commonprefix(paths)  # noqa: RUF071 (of lists, it compares whole entries)
    folders, outside = _split_by_folder(list(images), len(shared), annotated)
    skipped += [Skipped(file, "outside the folders for train and test") for file in outside]
    splits: list[Split] = []
    for names, base in folders:
        # Test images of a single class still have labels if the training images have.
        fewest = 1 if splits and splits[0].labels is not None else 2
        source = FileSource([images[file] for file in names])
        splits.append(Split(names, source, _classes(names, base, fewest, annotated)))
    return ImageSplits(name, labeled(splits), skipped)


def _is_image(name: str, span: Span | RemoteSpan | ZipSpan) -> bool:
    """Judged by the ending of the name, or by the content of a name without one."""
    suffix = posixpath.splitext(name)[1].lower()
    if suffix:
        return suffix in suffixes()
    try:
        FileSource([span]).header(0)
    except Exception as error:
        return reason_for(error).startswith("more than")  # an image, to be refused as too large
    return True


def read_files(paths: Sequence[str | Path]) -> ImageSplits:
    """Image files named one by one, in the order given.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If one is a folder, or there are none.
    """
    if not paths:
        raise ValueError("expected the paths of pictures, got an empty list")
    places = [locate(path, IMAGES) for path in paths]
    for place in places:
        if not place.is_file():
            raise ValueError(f"expected paths of pictures, got the folder {place}; name its files")
    source = FileSource([Span(str(place), 0, place.stat().st_size) for place in places])
    return ImageSplits("files", [Split([str(path) for path in paths], source)])


def _split_by_folder(
    names: list[str], depth: int, annotated: Mapping[str, str]
) -> tuple[list[tuple[list[str], int]], list[str]]:
    """Train and test by the folders at ``depth``, each with the depth of what it holds.

    Returns:
        Names and depth of each split, all names as one split if there are no two; and the names
        that belong to none.
    """
    folders: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        folders.setdefault(parts[depth].lower() if len(parts) > depth + 1 else "", []).append(name)
    train = next((folders.pop(key) for key in TRAIN_FOLDERS if key in folders), None)
    held_out = [key for key in TEST_FOLDERS if key in folders]
    if train is None or not held_out:
        return [(names, depth)], []
    classes = [key for key in held_out if _classes(folders[key], depth + 1, 2, annotated)]
    test = folders.pop((classes or held_out)[0])
    outside = [name for rest in folders.values() for name in rest]
    return [(train, depth + 1), (test, depth + 1)], outside


def _annotated_classes(files: Files) -> dict[str, str]:
    """The class of each image that a `ANNOTATIONS` file names: a line per image, tabs between."""
    found: dict[str, str] = {}
    for file, span in files:
        folder, _, base = file.rpartition("/")
        if base != ANNOTATIONS:
            continue
        try:
            lines = span.read().decode(errors="replace").splitlines()
        except Unusable:
            continue
        except OSError:
            if isinstance(span, RemoteSpan):  # an unreachable server must not cost the classes
                raise
            continue
        for line in lines:
            name, _, rest = line.partition("\t")
            for place in (folder, f"{folder}/images"):
                found[f"{place}/{name}".lstrip("/")] = rest.split("\t")[0]
    return found


def _classes(
    names: list[str], depth: int, fewest: int, annotated: Mapping[str, str]
) -> list[str] | None:
    """The class of each file as annotated, or else by its folder at ``depth``.

    None if some lie in no such folder, or there are too few of these.
    """
    if names and all(annotated.get(name) for name in names):
        return [annotated[name] for name in names]
    folders = [name.split("/")[depth:-1][:1] for name in names]
    if not all(folders) or len({folder for (folder,) in folders}) < fewest:
        return None
    return [folder for (folder,) in folders]


def read_pattern(pattern: str) -> ImageSplits:
    """Shards named by a pattern with braces, of paths or URLs; all must exist."""
    places = [one if is_url(one) else locate(one, IMAGES) for one in expand_braces(pattern)]
    shards: Shards = [(Path(place).name, place) for place in places]
    return read_tars(Path(pattern).name.split("{")[0].rstrip("-_.") or "shards", shards)


def read_url(url: str) -> ImageSplits:
    """Shards or a folder behind a URL.

    Raises:
        OSError: If something cannot be read in several attempts.
    """
    name = Path(url).name
    if url.lower().endswith(".tar"):
        return read_tars(name[: -len(".tar")], [(name, url)])
    files = list_files(url)
    shards: Shards = [one for one in files if re.fullmatch(r"[^./][^/]*\.tar", one[0].lower())]
    if shards:
        return read_tars(name, shards)
    return read_tree(name, [(inner, RemoteSpan(file, 0, file.size)) for inner, file in files], [])


def read_tars(name: str, shards: Shards) -> ImageSplits:
    """WebDataset shards; those whose names say train and those that say test (val) are a split."""
    chosen, outside = _split_by_name(shards)
    skipped = [Skipped(shard, "outside the shards for train and test") for shard in outside]
    splits = []
    for some in chosen:
        samples, bad = read_shards(some)
        labels = [sample.label for sample in samples if sample.label is not None]
        if labels and len(labels) < len(samples):
            warnings.warn(
                f"expected all samples of {name} or none to have a label, got "
                f"{len(samples) - len(labels)} of {len(samples)} without; all labels are ignored",
                stacklevel=4,
            )
        skipped += bad
        source = FileSource([sample.image for sample in samples])
        known = labels if labels and len(labels) == len(samples) else None
        splits.append(Split([sample.name for sample in samples], source, known))
    return ImageSplits(name, labeled(splits), skipped)


def _split_by_name(shards: Shards) -> tuple[list[Shards], list[str]]:
    """Shards to train on and to test on, all in one if names do not say; and the others."""

    def says(shard: str, *words: str) -> bool:
        return any(word in words for word in re.split(r"[^a-z]+", shard.lower()))

    train = [shard for shard in shards if says(shard[0], *TRAIN_FOLDERS)]
    held_out = [[shard for shard in shards if says(shard[0], word)] for word in TEST_FOLDERS]
    test = next((found for found in held_out if found), [])
    if not train or not test:
        return [shards], []
    return [train, test], [shard[0] for shard in shards if shard not in train and shard not in test]


def count_classes(data: str) -> int:
    """How many classes the images of any accepted format have, 0 without labels; none is decoded.

    Raises:
        FileNotFoundError: If the data do not exist.
        ValueError: If the format is not accepted.
    """
    return len(set(find_splits(data).splits[0].labels or ()))


def find_splits(
    data: str | Path | Sequence[str | Path],
    *,
    limit: int | None = None,
    validation: float | None = None,
) -> ImageSplits:
    """The images of any accepted format, before they are decoded; see :func:`load_images`.

    Raises:
        FileNotFoundError: If the data does not exist.
        ValueError: If the format is not accepted, or an option is out of range.
    """
    check_positive(limit=limit)
    if validation is not None:
        check_number("validation", validation, above=0, below=1)
    with quiet_pillow():
        found = _find(data)
    splits = found.splits if validation is None else found.splits[0].divided(validation)
    kept = [split.keep(drawn(len(split.names), limit).tolist()) for split in splits]
    return replace(found, splits=kept)


def name_and_suffix(path: Path) -> tuple[str, str]:
    """The name of a path without its ending, and the ending."""
    for suffix in (".zip", ".npz", ".tar.gz", ".tgz", ".tar"):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)], suffix
    return path.name, ""


def _find(data: str | Path | Sequence[str | Path]) -> ImageSplits:
    """Recognize the format and find the images."""
    if not isinstance(data, str | Path):
        return read_files(data)
    if str(data) == "digits":
        return read_digits()
    if "{" in str(data) and not Path(data).exists():
        return read_pattern(str(data))
    if is_url(data) and name_and_suffix(Path(data))[1] in ("", ".tar"):
        return read_url(str(data))
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
