"""Pages of a run's data: the neighbors of a query, near-duplicates, clusters.

Each writes a table that a spreadsheet opens, and a page in one file beside it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unremix.data.atomic_files import read_text, refuse_link, write_arrays, write_text
from unremix.data.image.dataset import ImageData
from unremix.data.image.items import read_items
from unremix.data.locate import candidates
from unremix.data.npz import read_arrays
from unremix.data.quantities import counted
from unremix.mining.embeddings import Floats, Integers, unit_rows
from unremix.mining.files import write_rows
from unremix.mining.groups import find_clusters, find_duplicates, fitting_threshold
from unremix.mining.index import Advance, Allowed, Kind, make_index
from unremix.report.pictures import make_atlas
from unremix.report.rendering import render
from unremix.training.checkpoints import check_embeddings
from unremix.training.run import Run, reading

TILE = 96  # pixels of the side of a picture on a page, at most
SHOWN_GROUPS = 200
SHOWN_MEMBERS = 12
COLUMNS = ("name", "label", "similarity")  # of every table, after what tells its rows apart
LISTED = 10  # queries or groups that a terminal shows


@dataclass(frozen=True)
class Item:
    """What a page shows of a sample."""

    name: str  # its name; of a sentence, the sentence
    picture: str | None  # as a data URI, where it is a picture
    label: str | None  # its class, where known
    similarity: float | None = None  # to what it is shown beside, where that means something
    coarse: bool = False  # whether the picture is so small that its pixels are shown


@dataclass(frozen=True)
class Group:
    """A row of a page."""

    title: str  # its heading
    items: list[Item]  # what it shows
    more: int = 0  # how many further items it has
    query: Item | None = None  # what they are compared with, where there is one


@dataclass(frozen=True)
class Written:
    """What a command wrote, and what it found in words."""

    page: Path
    table: Path  # the table beside it
    summary: list[str]  # a sentence each
    listed: list[str]  # the first results, a line each


class RunData:
    """The data of a run with their embeddings, which are computed once and kept."""

    def __init__(self, folder: str | Path, data: str | None = None, *, trust: bool = False) -> None:
        self.run = Run(folder, trust=trust)
        domain = self.run.domain
        self.data = domain.load_for(self.run, data)
        self.source = self.run.config.data if data is None else data
        kept = self.run.path / "embeddings" / f"{self._digest()}.npz"
        refuse_link(kept.parent)
        if not kept.exists():
            found = domain.features(self.run, self.data)
            embeddings = check_embeddings(found.embeddings).numpy()
            arrays = {"embeddings": embeddings, "names": np.array(found.names)}
            if found.labels is not None:
                arrays["labels"] = found.labels.numpy()
            if found.classes is not None:
                arrays["classes"] = np.array(list(found.classes))
            write_arrays(kept, arrays)
        self.labels: list[str] | None = None
        with reading(kept, "remove it"):
            arrays = read_arrays(kept)
            self.units: Floats = unit_rows(arrays["embeddings"])
            for name in ("names", "labels"):
                if name in arrays and arrays[name].shape != (len(self.units),):
                    raise ValueError(f"{name} of shape {arrays[name].shape}")
            self.names: list[str] = arrays["names"].tolist()
            if "labels" in arrays:
                labels = arrays["labels"].tolist()
                classes = arrays["classes"].tolist() if "classes" in arrays else None
                self.labels = [str(one) if classes is None else classes[one] for one in labels]
        self.coarse = isinstance(self.data, ImageData) and self.run.shape.image_size < TILE

    def _digest(self) -> str:
        """Of the encoder and of the data: of their files' names, sizes and times."""
        size = self.run.domain.size(self.data)
        digest = hashlib.sha256(repr((self.source, self.run.config.limit, size)).encode())
        weights = (self.run.checkpoint, self.run.previous, self.run.path / "encoder.safetensors")
        files = [path for path in weights if path.is_file()]  # one of them is enough
        for where in candidates(self.source):
            files += sorted(path for path in (where, *where.rglob("*")) if path.is_file())
        for path in files:
            stat = os.stat(path)
            digest.update(os.fsencode(path) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()[:16]

    def row_of(self, query: str) -> int:
        """The row of a sample by its name, or by its path below the data's folder; -1 for none."""
        names = [query]
        if isinstance(self.data, ImageData):  # other queries are no paths
            path = Path(query).resolve()
            for folder in candidates(self.source):
                if path.is_file() and path.is_relative_to(folder.resolve()):
                    parts = path.relative_to(folder.resolve()).parts
                    # Folders that wrap all the others are no part of a name.
                    names += ["/".join(parts[start:]) for start in range(len(parts))]
        return next((self._row_of[name] for name in names if name in self._row_of), -1)

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in reversed(list(enumerate(self.names)))}

    def pictures(self, rows: Sequence[int]) -> dict[int, str]:
        """The pictures of some rows as data URIs; nothing where the data are no pictures."""
        if not isinstance(self.data, ImageData) or not rows:
            return {}
        found: dict[int, str] = {}
        first = len(self.data.train)
        for images, offset in ((self.data.train, 0), (self.data.test, first)):
            some = [] if images is None else [r for r in rows if 0 <= r - offset < len(images)]
            if images is not None and some:
                batch = images.images.batch(torch.tensor(some) - offset)
                found |= dict(zip(some, map(_data_uri, batch), strict=True))
        return found

    def items(self, rows: Sequence[int], similarity: Callable[[int], float] | None) -> list[Item]:
        """What a page shows of some rows."""
        pictures = self.pictures(rows)
        return [
            Item(
                self.names[row],
                pictures.get(row),
                None if self.labels is None else self.labels[row],
                None if similarity is None else similarity(row),
                self.coarse,
            )
            for row in rows
        ]


def _data_uri(image: Tensor) -> str:
    """A picture (C, S, S) of bytes as a data URI."""
    made = make_atlas(image[None], TILE)
    return f"data:{made.kind};base64,{base64.b64encode(made.data).decode()}"


def write_neighbors(
    run: str | Path,
    queries: Sequence[str],
    k: int,
    *,
    data: str | None = None,
    output: str | Path | None = None,
    index: Kind = "exact",
    advance: Advance | None = None,
    trust: bool = False,
) -> Written:
    """Find what is most similar to each query.

    The arguments are those of ``unremix neighbors``; ``advance`` receives its progress.

    Raises:
        ValueError: If a query is neither in the data nor something that the run embeds.
    """
    page = _page(run, output, "neighbors")
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}; ask for one neighbor or more")
    found = RunData(run, data, trust=trust)
    titles, units, rows, shown = _read_queries(found, queries)
    allowed = Allowed.everything(len(units))
    own = np.flatnonzero(rows >= 0)
    order = own[np.argsort(rows[own], kind="stable")]
    allowed = Allowed(allowed.highest, order, rows[order])
    near = make_index(found.units, index, found.run.path / "embeddings").search(
        units, k, allowed, advance
    )
    groups, table = [], []
    for number, title in enumerate(titles):
        pairs = [
            (row, value)
            for row, value in zip(near.rows[number].tolist(), near.similarity[number].tolist(),
                                  strict=True)
            if row >= 0
        ]  # fmt: skip
        similarity = dict(pairs)
        items = found.items([row for row, _ in pairs], similarity.__getitem__)
        groups.append(Group(title, items, query=shown[number]))
        table += [
            {"query": title, "rank": rank, "name": item.name, "label": item.label or "",
             "similarity": item.similarity}
            for rank, item in enumerate(items, 1)
        ]  # fmt: skip
    summary = [f"The {k} nearest of {len(found.names):,} {found.run.domain.unit} to each query."]
    blocks = [
        [f"{one.title}:", *(f"  {item.similarity:.5f}  {_named(item)}" for item in one.items)]
        for one in groups
    ]
    return _write(
        page, found, "Neighbors", summary, groups, table, ["query", "rank", *COLUMNS], blocks
    )


def _named(item: Item) -> str:
    return item.name if item.label is None else f"{item.name} ({item.label})"


def _read_queries(
    found: RunData, queries: Sequence[str]
) -> tuple[list[str], Floats, Integers, list[Item]]:
    """Titles, unit vectors (B, D), rows (B,) (-1: not in the data) and what a page shows."""
    domain = found.run.config.domain
    titles: list[str] = []
    for query in queries:
        if found.row_of(query) < 0 and domain == "sentence" and query.endswith(".txt"):
            if not Path(query).is_file():
                raise FileNotFoundError(f"expected sentences at {query!r}, found no file")
            titles += [line.strip() for line in read_text(Path(query)).splitlines()]
        else:
            titles.append(query)
    titles = [title for title in titles if title]
    rows = np.array([found.row_of(title) for title in titles], dtype=np.int64)
    others = [title for title, row in zip(titles, rows, strict=True) if row < 0]
    if others and domain == "graph":
        raise ValueError(
            f"expected the name of a graph in the data, got {others[0]!r}; the table that "
            "'unremix embed RUN -o table.csv' writes lists them"
        )
    missing = [title for title in others if domain == "image" and not Path(title).is_file()]
    if missing:
        raise FileNotFoundError(
            f"expected a picture in the data, or the path of one, got {missing[0]!r}; "
            "pass a path, or a name as 'unremix embed' lists them"
        )
    units = np.zeros((len(titles), found.units.shape[1]), dtype=np.float32)
    units[rows >= 0] = found.units[rows[rows >= 0]]
    pictures: dict[str, str] = {}
    if others:
        units[rows < 0] = unit_rows(found.run.embed(others).numpy())
        if domain == "image":
            shape = found.run.shape
            images = read_items(others, channels=shape.channels, size=shape.image_size)
            pictures = dict(zip(others, map(_data_uri, images), strict=True))
    shown = [
        found.items([int(row)], None)[0]
        if row >= 0
        else Item(title, pictures.get(title), None, coarse=found.coarse)
        for title, row in zip(titles, rows, strict=True)
    ]
    return titles, units, rows, shown


def write_duplicates(
    run: str | Path,
    threshold: float,
    *,
    data: str | None = None,
    output: str | Path | None = None,
    index: Kind = "exact",
    advance: Advance | None = None,
    trust: bool = False,
) -> Written:
    """Find groups of near-duplicates.

    The arguments are those of ``unremix duplicates``; ``advance`` receives its progress.
    """
    page = _page(run, output, "duplicates")
    found = RunData(run, data, trust=trust)
    made = make_index(found.units, index, found.run.path / "embeddings")
    result = find_duplicates(made, found.units, threshold, advance)
    groups, table = _grouped(
        found, "group", result.groups, result.similarity, lambda rows: f"{len(rows)} alike"
    )
    inside = sum(map(len, result.groups))
    median = float(np.median(result.similarity))
    summary = [
        f"{counted(len(result.groups), 'group')} with {inside:,} of {len(found.names):,} "
        f"{found.run.domain.unit}, from a cosine of {threshold:g}.",
        f"The cosine to the nearest other one is {median:.3f} in the median: a threshold should be "
        "well above it.",
    ]
    fitting = fitting_threshold(result.similarity)
    if fitting is not None and (fitting > threshold or (not result.groups and fitting < threshold)):
        summary[-1] += f" Try --threshold {fitting:.7g}."
    if len(result.groups) > SHOWN_GROUPS:
        summary.append(f"The page shows the {SHOWN_GROUPS} largest; the table has all.")
    blocks = [[f"{one.title}: {', '.join(map(_named, one.items))}"] for one in groups]
    return _write(
        page, found, "Near-duplicates", summary, groups, table, ["group", *COLUMNS], blocks
    )


def write_clusters(
    run: str | Path,
    clusters: int | None,
    *,
    data: str | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    trust: bool = False,
) -> Written:
    """Sort the data into clusters.

    The arguments are those of ``unremix cluster``.
    """
    page = _page(run, output, "clusters")
    found = RunData(run, data, trust=trust)
    result = find_clusters(found.units, clusters, seed)

    def title(rows: Sequence[int]) -> str:
        said = f"{len(rows)} {found.run.domain.unit}"
        if found.labels is not None:
            names, counts = np.unique([found.labels[row] for row in rows], return_counts=True)
            top = np.argsort(-counts, kind="stable")[:3]
            said += f": {', '.join(f'{names[i]} {counts[i] / len(rows):.0%}' for i in top)}"
        return said

    groups, table = _grouped(found, "cluster", result.members, result.similarity, title)
    summary = [
        f"{len(found.names):,} {found.run.domain.unit} in "
        f"{counted(len(result.members), 'cluster')} by k-means of their directions, the most "
        "central first."
    ]
    if found.labels is not None:
        from sklearn.metrics import normalized_mutual_info_score  # type: ignore[import-untyped]

        shared = normalized_mutual_info_score(found.labels, result.cluster)
        summary.append(f"Normalized mutual information with the labels: {shared:.3f}.")
    blocks = [[group.title] for group in groups]
    return _write(page, found, "Clusters", summary, groups, table, ["cluster", *COLUMNS], blocks)


def _grouped(
    found: RunData,
    what: str,
    members: Sequence[Integers],
    similarity: Floats,
    title: Callable[[Sequence[int]], str],
) -> tuple[list[Group], list[dict[str, Any]]]:
    """Groups of rows for a page, and all of them for a table."""
    groups, table = [], []
    for number, group in enumerate(members, start=1):
        rows = group.tolist()
        if number <= SHOWN_GROUPS:
            items = found.items(rows[:SHOWN_MEMBERS], lambda row: float(similarity[row]))
            heading = f"{what.capitalize()} {number}, {title(rows)}"
            groups.append(Group(heading, items, len(rows) - len(items)))
        table += [
            {what: number, "name": found.names[row],
             "label": found.labels[row] if found.labels else "",
             "similarity": float(similarity[row])}
            for row in rows
        ]  # fmt: skip
    return groups, table


def _page(run: str | Path, output: str | Path | None, name: str) -> Path:
    page = Path(run) / f"{name}.html" if output is None else Path(output)
    if page.suffix != ".html":
        raise ValueError(
            f"expected a page that ends in .html, got {str(page)!r}; the table is written beside "
            "it as .csv"
        )
    return page


def _write(
    page: Path,
    found: RunData,
    heading: str,
    summary: list[str],
    groups: list[Group],
    table: list[dict[str, Any]],
    columns: list[str],
    blocks: Sequence[Sequence[str]],
) -> Written:
    beside = page.with_suffix(".csv")
    write_rows(beside, table, columns)
    text = render(
        "groups.html",
        "groups",
        heading=heading,
        name=found.run.path.name,
        recipe=found.run.config.recipe,
        data=found.run.config.data,
        summary=summary,
        groups=groups,
        table=beside.name,
    )
    write_text(page, text)
    listed = [line for block in blocks[:LISTED] for line in block]
    if len(blocks) > LISTED:
        listed.append(f"The others are in {beside.name}.")
    return Written(page, beside, summary, listed)
