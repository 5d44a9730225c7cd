"""Embeddings from arrays, tensors and files; files stay on disk and are mapped into memory."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unremix.console.printing import unguarded
from unremix.console.suggestions import needed_for
from unremix.core.precision import SMALLEST_NORM
from unremix.files.atomic_files import checked, open_file, open_text, read_text
from unremix.files.bounds import allowance, sound
from unremix.files.npz import read_arrays, read_header
from unremix.files.remote import fetch_or_refuse, is_url, list_files, remote_file
from unremix.files.seals import is_sealed, write_sealed

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

AT_ONCE = 2**24  # numbers of an array that are read at a time: 64 MB in float32
FETCHED_AT_ONCE = 8  # files behind a URL
ENDINGS = (".npy", ".npz", ".parquet", ".csv")
NUMBERED = "embedding_"  # columns of a .csv file, from embedding_0 on
PIECE = 2**20  # bytes
OF_A_ROW, OF_A_CELL = 160, 60  # bytes that Python takes for a row of a .csv file and for each text
LARGEST_PLAN = 1 << 20  # bytes
PLAN = "_unremix.json"  # beside parquet parts; parquet readers skip names with a leading underscore
KEY = "embeddings"


def open_embeddings(source: Any, name: str = "the embeddings") -> NDArray[Any]:
    """Embeddings as an array (n, D), without reading a file whole where that can be avoided.

    Args:
        source: An array or tensor (n, D), or a path or URL: ``.npy``, or ``.npz``, ``.parquet``,
            ``.csv`` or a folder of parquet parts, as ``unremix embed`` writes them. ``.npy`` and
            ``.npz`` that is not compressed are mapped into memory.
        name: What they are called in errors.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For another kind of file, or no floating-point matrix.
    """
    if isinstance(source, str | PathLike):
        array = read_columns(source, [KEY])[KEY]
    elif isinstance(source, torch.Tensor):
        array = source.detach().cpu().float().numpy()
    else:
        array = np.asanyarray(source)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"expected {name} as a matrix (n, D) with at least one row, got shape {array.shape}; "
            "stack them, one row each"
        )
    if array.dtype.kind != "f":
        raise ValueError(
            f"expected {name} in floating point, got {array.dtype}; convert them with .astype"
        )
    return array


def read_columns(
    source: str | PathLike[str], wanted: list[str] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name, all of them if None are asked for.

    Args:
        source: The file, or a folder of parquet parts that ``unremix embed --on ray`` wrote; a
            path, or a URL, from which files are fetched into the cache.
        wanted: Names of arrays.

    Raises:
        FileNotFoundError: If there is no such file.
        OSError: If a URL cannot be read, or the cache has no room.
        ValueError: For another kind of file, a wanted array that it does not hold, or parts that
            are missing.
    """
    name = str(source)
    if is_url(source) and Path(source).suffix not in ENDINGS:
        path, parts = Path(source), _fetched_parts(name)
    else:
        path = fetch_or_refuse(remote_file(name)) if is_url(source) else Path(source)
        parts = sorted(path.iterdir()) if (path / PLAN).is_file() else []
    if not parts and path.suffix not in ENDINGS:
        raise ValueError(
            f"expected a file that ends in {', '.join(ENDINGS)}, got {str(path)!r}; "
            "'unremix embed RUN -o FILE.npz' writes one"
        )
    if not parts and not path.is_file():
        raise FileNotFoundError(f"expected embeddings at {str(path)!r}, found no file")
    what = f"embeddings as 'unremix embed' or NumPy writes them in {name}"
    with sound(what, "a damaged file", "write it again", alien=True):  # whatever libraries raise
        if parts or path.suffix == ".parquet":
            found = _parquet_columns(name, _complete_parts(name, parts) or [path], wanted)
        elif path.suffix == ".npz":
            found = _npz_arrays(path, wanted)
        else:
            found = _csv_columns(path) if path.suffix == ".csv" else {KEY: _map_array(path)}
        _check_present(source, wanted, list(found))
    return {name: one for name, one in found.items() if wanted is None or name in wanted}


def _fetched_parts(url: str) -> list[Path]:
    """All files of a folder of parts behind a URL, sorted by name, in the cache."""
    files = dict(list_files(url))
    if PLAN not in files:
        raise ValueError(
            f"expected a folder of parts, or a file that ends in {', '.join(ENDINGS)}, at {url}, "
            "got another folder; 'unremix embed RUN --on ray -o URL' writes one"
        )
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        return list(pool.map(fetch_or_refuse, (files[name] for name in sorted(files))))


def _complete_parts(folder: str, paths: Sequence[Path]) -> list[Path]:
    """The parts among all files of their folder, if there are any."""
    parts = [path for path in paths if path.match("part-*.parquet")]
    for plan in (path for path in paths if path.name == PLAN):
        expected = int(json.loads(read_text(plan, LARGEST_PLAN))["parts"])
        if len(parts) < max(1, expected):
            raise ValueError(
                f"expected {expected} parts in {folder}, got {len(parts)}; the same 'unremix "
                "embed' writes the others"
            )
    return parts


def _check_present(
    path: str | PathLike[str], wanted: list[str] | None, present: Sequence[str]
) -> None:
    for name in wanted or ():
        if name not in present:
            raise ValueError(
                f"expected an array {name!r} in {path}, got {', '.join(present) or 'none'}; "
                "'unremix embed RUN -o FILE.npz' writes one"
            )


def _npz_arrays(path: Path, wanted: list[str] | None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; those that are stored as they are stay on disk."""
    with open_file(path) as opened, zipfile.ZipFile(opened) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        _check_present(path, wanted, list(members))
        chosen = {n: one for n, one in members.items() if wanted is None or n in wanted}
        found: dict[str, NDArray[Any]] = {}
        for name, info in chosen.items():
            if info.compress_type == zipfile.ZIP_STORED and info.file_size:
                with archive.open(info) as stream:
                    while stream.read(PIECE):  # at the end, the checksum is compared
                        pass
                found[name] = _map_array(path, _data_start(path, info))
    packed = chosen.keys() - found.keys()
    if packed:
        arrays = read_arrays(path, packed)
        found.update((name, arrays[name]) for name in packed)
    return {name: found[name] for name in chosen}


def _map_array(path: Path, start: int = 0) -> NDArray[Any]:
    """The array that begins at a byte of a file, as .npy files do; it stays on disk."""
    with open_file(path) as file:
        file.seek(start)
        shape, by_columns, kind = read_header(file)
        start = file.tell()
    return np.memmap(path, kind, "r", start, shape, order="F" if by_columns else "C")


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: after its local header, which states its own lengths."""
    with open_file(path) as file:
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
    name, extra = (int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2))
    return info.header_offset + 30 + name + extra


def _parquet_columns(
    source: str, paths: Sequence[Path], wanted: list[str] | None
) -> dict[str, NDArray[Any]]:
    """The wanted columns of some parquet files in turn, called ``source`` in messages."""
    with needed_for("a .parquet file", "use another kind of file"):
        import pyarrow.parquet
    for path in paths:
        _check_expansion(checked(path), pyarrow.parquet.read_metadata(path))
    # Repeated texts stay one text: a small file may repeat a long one any number of times.
    types = pyarrow.types
    texts = [
        field.name
        for field in pyarrow.parquet.read_schema(paths[0])
        if types.is_string(field.type) or types.is_large_string(field.type)
    ]
    table = pyarrow.concat_tables(
        pyarrow.parquet.read_table(path, page_checksum_verification=True, read_dictionary=texts)
        for path in paths
    )
    _check_present(source, wanted, table.column_names)
    found: dict[str, NDArray[Any]] = {}
    for name in wanted or table.column_names:
        column = table[name].combine_chunks()
        if name == KEY:
            if not (types.is_list(column.type) or types.is_fixed_size_list(column.type)):
                raise ValueError(
                    f"expected a list of numbers in each row of {KEY!r} in {source}, got "
                    f"{column.type}; write the file again"
                )
            flat = column.flatten().to_numpy(zero_copy_only=False)
            found[name] = flat.reshape(len(column), -1)
        elif types.is_dictionary(column.type):
            known = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            found[name] = known[column.indices.fill_null(len(known) - 1).to_numpy()]
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found


def _check_expansion(path: Path, metadata: Any) -> None:
    """Refuse a parquet file that holds more values than its size can justify."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    values = sum(column.num_values for column in columns)
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if max(8 * values, unpacked) > allowance(path.stat().st_size):
        raise ValueError(
            f"expected at most eight bytes for each of its own in {path}, got {values:,} values; "
            "write them as .npz"
        )


def _csv_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a table; those of the embedding's dimensions become one array."""
    with open_text(path) as stream:
        reader = csv.reader(stream)
        headings = next(reader, [])
        places = [n for n, heading in enumerate(headings) if heading.startswith(NUMBERED)]
        others = {heading: n for n, heading in enumerate(headings) if n not in set(places)}
        rows: list[Floats] = []
        texts: dict[str, list[str]] = {heading: [] for heading in others}
        left = allowance(path.stat().st_size)
        for cells in reader:
            left -= OF_A_ROW + 4 * len(places) + OF_A_CELL * len(others)
            if left < 0:
                raise ValueError(
                    f"expected a table that fits into memory in {path}, got one of too many short "
                    "cells; write it as .npz"
                )
            try:
                rows.append(np.array([float(cells[n]) for n in places], dtype=np.float32))
                for heading, n in others.items():
                    texts[heading].append(unguarded(cells[n]))
            except (ValueError, IndexError):
                raise ValueError(
                    f"expected {len(headings)} cells with {len(places)} numbers among them in line "
                    f"{reader.line_num} of {path}, got {len(cells)} cells; write the file again"
                ) from None
    # As objects: in an array of text, each would take as much memory as the longest.
    found: dict[str, NDArray[Any]] = {
        name: np.array(cells, dtype=object) for name, cells in texts.items()
    }
    if "labels" in found:
        with suppress(ValueError):  # other files than ours may have classes by name
            found["labels"] = found["labels"].astype(np.int64)
    if places:
        found[KEY] = np.array(rows, dtype=np.float32).reshape(-1, len(places))
    return found


def kept_embeddings(path: Path | None, compute: Callable[[], Any]) -> Floats:
    """Embeddings (n, D), mapped from the ``.npy`` file that keeps them, or else computed and kept.

    Without a path, nothing is kept.
    """
    if path is not None and is_sealed(path):
        kept: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
        return kept
    found = np.asarray(compute(), dtype=np.float32)
    if path is not None:

        def write(file: Path) -> None:
            with file.open("wb") as stream:  # a stream, or NumPy would append a suffix
                np.save(stream, found, allow_pickle=False)

        write_sealed(path, write)
    return found


def unit_rows(embeddings: NDArray[Any]) -> Floats:
    """Rows (n, D) of any floating-point type as rows of length 1 in float32; a zero row stays 0.

    Raises:
        ValueError: If a row holds NaN or infinity.

    Example:
        >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    rows = np.asarray(embeddings)
    if rows.dtype != np.float32:  # float16 overflows when squared, float64 may not fit
        largest = np.abs(rows).max(axis=1, keepdims=True).astype(rows.dtype)
        rows = (rows / np.where(largest > SMALLEST_NORM, largest, 1)).astype(np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    if not np.isfinite(lengths).all():
        broken = int((~np.isfinite(lengths)).sum())
        raise ValueError(
            f"expected finite embeddings, got NaN, infinity or numbers too large in {broken} of "
            f"{len(rows)} rows; look for a diverged model or broken input"
        )
    units: Floats = rows / np.where(lengths > SMALLEST_NORM, lengths, np.float32(np.inf))
    return units


def digest_of(*parts: Any) -> str:
    """A digest: of arrays by content, of mapped files by size and time, of others by their repr."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.memmap) and part.filename is not None:
            stat = os.stat(part.filename)
            facts = (part.filename, part.offset, part.shape, part.dtype.str)
            digest.update(repr((*facts, stat.st_size, stat.st_mtime_ns)).encode())
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.shape}{part.dtype.str}".encode())
            step = max(1, AT_ONCE // max(1, int(np.prod(part.shape[1:]))))
            for start in range(0, len(part), step):
                digest.update(np.ascontiguousarray(part[start : start + step]).data)
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()
