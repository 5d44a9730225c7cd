"""Embedding on Ray: a pool of actors, each with its encoder, that write parts of a table.

The output is a folder of ``part-00000.parquet`` and so on, local or behind a URL; its rows are
those of the local command, in the same order. A part appears whole or not at all, and repeating the
call makes missing parts. ``_unremix.json`` identifies their run, data and options.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unremix.cluster.ray_engine import connect, node_resources, ray_map
from unremix.domains.base import DOMAINS, Piece
from unremix.files.archives import Skipped, name_some
from unremix.files.fingerprint import fingerprint
from unremix.files.remote import is_url, list_files, read_place, write_place
from unremix.mining.embeddings import PLAN
from unremix.training.checkpoints import digest_of
from unremix.training.embedding import arrays_of, parquet_table
from unremix.training.ready import source_of
from unremix.training.run import Layer, Run

ROWS = 1024  # of a part
SUMMARY = b"unremix"  # key of a part's summary in its metadata
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Written:
    """What :func:`embed_on_ray` wrote."""

    rows: int  # embeddings in all parts
    width: int  # dimensions of each
    parts: int
    earlier: int  # how many of them an earlier call had written


class PartSummary(NamedTuple):
    """What a part holds."""

    rows: int  # embeddings
    width: int  # dimensions of each
    skipped: list[Skipped]  # name and reason of each image that could not be used


def name_of_part(number: int) -> str:
    """The name of a part's file."""
    return f"part-{number:05d}.parquet"


def _names_in(folder: str) -> set[str]:
    """The names of the files in a folder, local or behind a URL; none if there is no folder."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return {name for name, _ in list_files(folder)} if is_url(folder) else {*os.listdir(folder)}
    return set()


def _writer(
    folder: str, layer: Layer, normalize: bool, trust: bool, output: str, threads: int, gpu: bool
) -> Callable[[tuple[int, Piece]], PartSummary]:
    """Load a run's encoder in an actor; return what embeds a part of the data and writes it."""
    torch.set_num_threads(threads)
    run = Run(folder, layer=layer, trust=trust)
    encoder, _ = run.domain.reader(run)
    shape = run.shape
    if gpu:
        encoder = encoder.cuda()

    def write(numbered: tuple[int, Piece]) -> PartSummary:
        number, piece = numbered
        found, skipped = piece.embed(encoder, shape)
        table = parquet_table(arrays_of(found, normalize=normalize))
        count, width = found.embeddings.shape
        summary = PartSummary(count, width, skipped)
        about = {SUMMARY: json.dumps(summary._asdict()).encode()}
        data = _parquet_bytes(table.replace_schema_metadata(about))
        write_place(f"{output}/{name_of_part(number)}", data)
        return summary

    return write


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream, write_page_checksum=True)
    return stream.getvalue()


def embed_on_ray(
    run_folder: str,
    data: str | Sequence[str] | None,
    output: str,
    *,
    layer: Layer = "backbone",
    normalize: bool = False,
    trust: bool = False,
    threads: int = 1,
    rows: int = ROWS,
    advance: Advance | None = None,
) -> Written:
    """Write the embeddings of data on Ray, as the local command does, row for row.

    The arguments are those of :func:`unremix.training.embedding.embed_to_file`, but ``output`` is a
    folder of parts, new or of the same call before. ``rows`` is the size of a part, ``threads`` the
    CPUs of an actor, and ``advance`` is called with the share of the work that is done.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: For data the run cannot read, or an output of another call.
    """
    if Path(output).suffix in (".npz", ".csv"):
        raise ValueError(
            f"expected a folder for parquet parts with --on ray, got {output!r}; leave out its "
            "ending, or leave out --on ray"
        )
    run = Run(run_folder, layer=layer, trust=trust)
    connect()  # fail before the data are read
    run.trained = run.encoder()  # likewise
    if run.domain.cut is None:
        raise ValueError(
            f"expected {' or '.join(one.unit for one in DOMAINS.values() if one.cut)} to embed on "
            f"Ray, got {run.domain.unit}; leave out --on ray"
        )
    cut = run.domain.cut(run, source_of(run.domain, data), rows)
    tasks = list(enumerate(cut.pieces))
    made_of = [digest_of(run.trained.state_dict()), layer, str(normalize), str(rows)]
    plan = {"parts": len(tasks), "made_of": fingerprint(chain(made_of, cut.identity))}
    place = output if is_url(output) else str(Path(output).resolve())
    place = place.rstrip("/")
    present = _present(place, plan)
    summaries = [_summary(read_place(f"{place}/{name}")) for name in sorted(present)]
    missing = [task for task in tasks if name_of_part(task[0]) not in present]
    gpus = any(node.get("GPU") for node in node_resources(connect()))
    gpu = run.config.accelerator != "cpu" and gpus
    folder = str(run.path.resolve())
    make = partial(_writer, folder, layer, normalize, trust, place, threads, gpu)
    for _, summary in ray_map(make, missing, threads=threads, gpus=float(gpu)):
        summaries.append(summary)
        if advance is not None:
            advance(len(summaries) / len(tasks))
    skipped = [*cut.skipped, *(Skipped(*one) for summary in summaries for one in summary.skipped)]
    total = sum(summary.rows for summary in summaries)
    if not total:
        unit = run.domain.unit
        raise ValueError(f"expected usable {unit}, got none ({name_some(skipped)}); add some")
    if skipped:
        warnings.warn(
            f"skipped {len(skipped)} of {total + len(skipped)} files: {name_some(skipped)}",
            stacklevel=2,
        )
    return Written(total, summaries[0].width, len(tasks), len(present))


def _present(folder: str, plan: dict[str, Any]) -> set[str]:
    """The parts that an earlier call wrote.

    Raises:
        ValueError: If they are of another run, other data or other options.
    """
    names, written = _names_in(folder), json.dumps(plan).encode()
    if not names:
        write_place(f"{folder}/{PLAN}", written)
    elif PLAN not in names or read_place(f"{folder}/{PLAN}") != written:
        others = "those of another run, other data or other options"
        raise ValueError(
            f"expected a new folder or one of the same embeddings, got {folder!r} with "
            f"{others if PLAN in names else repr(min(names))}; choose another --output"
        )
    return {name for name in names if name.startswith("part-")}


def _summary(data: bytes | None) -> PartSummary:
    """The summary in a part's metadata."""
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(io.BytesIO(data or b""))
    return PartSummary(**json.loads(schema.metadata[SUMMARY]))
