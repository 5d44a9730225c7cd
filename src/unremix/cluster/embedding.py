"""Embedding on Ray: a pool of actors, each with its encoder, that write parts of a table.

The output is a folder of ``part-00000.parquet`` and so on, local or behind a URL; its rows are
those of the local command, in the same order. A part appears whole or not at all, and the same call
again makes those that are missing. ``_unremix.json`` tells what the parts are made of.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unremix.cluster.parts import Part, cut_data, encoder_of
from unremix.cluster.ray_engine import connect, node_resources, ray_map
from unremix.data.archives import Skipped
from unremix.data.atomic_files import write_bytes
from unremix.data.fingerprint import fingerprint
from unremix.data.remote import file_system, is_url, persist
from unremix.data.splits import name_some
from unremix.mining.embeddings import PLAN
from unremix.training.checkpoints import digest_of
from unremix.training.embedding import arrays_of, parquet_table, source_of
from unremix.training.run import Layer, Run

ROWS = 1024  # of a part
SUMMARY = b"unremix"  # where a part says what it holds
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Written:
    """What :func:`embed_on_ray` wrote."""

    rows: int  # embeddings in all parts
    width: int  # dimensions of each
    parts: int
    earlier: int  # how many of them an earlier call had written


class Summary(NamedTuple):
    """What a part holds."""

    rows: int  # embeddings
    width: int  # dimensions of each
    skipped: list[Skipped]  # name and reason of each image that could not be used


class Parts:
    """A folder of parts, local or behind a URL."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self.remote = is_url(path)

    @staticmethod
    def name(number: int) -> str:
        """The name of a part."""
        return f"part-{number:05d}.parquet"

    def names(self) -> set[str]:
        """What is there."""
        if not self.remote:
            folder = Path(self.path)
            return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        files, path = file_system(self.path)

        def listed() -> set[str]:
            try:
                return {name.rpartition("/")[2] for name in files.ls(path, detail=False)}
            except FileNotFoundError:
                return set()

        return persist(self.path, listed)

    def read(self, name: str) -> bytes:
        """The contents of a file."""
        if not self.remote:
            return (Path(self.path) / name).read_bytes()
        files, path = file_system(self.path)
        data: bytes = persist(self.path, lambda: files.cat_file(f"{path}/{name}"))
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        if self.remote:
            files, path = file_system(self.path)
            persist(self.path, lambda: files.pipe_file(f"{path}/{name}", data))
        else:
            write_bytes(Path(self.path) / name, data)


@dataclass(frozen=True)
class Maker:
    """Makes an actor's function: a run's encoder, loaded once, that embeds parts of the data."""

    run: str  # the run's folder
    layer: Layer  # see :class:`unremix.training.run.Run`
    normalize: bool  # whether to scale each embedding to length 1
    trust: bool  # whether code may run that the run's folder names
    output: str  # where parts are written
    threads: int  # of an actor
    gpu: bool  # whether it has a GPU

    def __call__(self) -> Callable[[tuple[int, Part]], Summary]:
        """Load the encoder, and give a function that writes a part."""
        torch.set_num_threads(self.threads)
        run = Run(self.run, layer=self.layer, trust=self.trust)
        encoder, shape = encoder_of(run), run.shape
        if self.gpu:
            encoder = encoder.cuda()
        parts = Parts(self.output)

        def write(numbered: tuple[int, Part]) -> Summary:
            number, part = numbered
            found, skipped = part.embed(encoder, shape)
            table = parquet_table(arrays_of(found, normalize=self.normalize))
            count, width = found.embeddings.shape
            summary = Summary(count, width, skipped)
            about = {SUMMARY: json.dumps(summary._asdict()).encode()}
            parts.write(Parts.name(number), _parquet_bytes(table.replace_schema_metadata(about)))
            return summary

        return write


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


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
    connect()  # what is missing is said before the data are read
    run.trained = run.encoder()  # likewise
    cut = cut_data(run, source_of(run, data), rows)
    tasks = list(enumerate(cut.parts))
    made_of = [digest_of(run.trained.state_dict()), layer, str(normalize), str(rows)]
    plan = {"parts": len(tasks), "made_of": fingerprint(chain(made_of, cut.identity))}
    parts = Parts(output)
    present = _present(parts, plan)
    summaries = [_summary(parts.read(name)) for name in sorted(present)]
    missing = [task for task in tasks if Parts.name(task[0]) not in present]
    gpu = run.config.accelerator != "cpu" and _gpus() > 0
    place = output if is_url(output) else str(Path(output).resolve())
    maker = Maker(str(run.path.resolve()), layer, normalize, trust, place, threads, gpu)
    for _, summary in ray_map(maker, missing, threads=threads, gpus=float(gpu)):
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


def _present(parts: Parts, plan: dict[str, Any]) -> set[str]:
    """The parts that an earlier call wrote.

    Raises:
        ValueError: If they are of another run, other data or other options.
    """
    names = parts.names()
    if PLAN in names:
        if not _holds(parts.read(PLAN), plan):
            raise ValueError(
                f"expected a new folder or one of the same embeddings, got {parts.path!r} with "
                "those of another run, other data or other options; choose another --output"
            )
    elif names:
        raise ValueError(
            f"expected a new folder or one of the same embeddings, got {parts.path!r} with "
            f"{min(names)!r}; choose another --output"
        )
    else:
        parts.write(PLAN, json.dumps(plan).encode())
    return {name for name in names if name.startswith("part-")}


def _holds(data: bytes, plan: dict[str, Any]) -> bool:
    """Whether a file holds this plan; a damaged one does not."""
    try:
        return bool(json.loads(data) == plan)
    except (ValueError, RecursionError):
        return False


def _summary(data: bytes) -> Summary:
    """What a part says of itself."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(pyarrow.BufferReader(data))
    return Summary(**json.loads(schema.metadata[SUMMARY]))


def _gpus() -> float:
    return sum(node.get("GPU", 0.0) for node in node_resources(connect()))
