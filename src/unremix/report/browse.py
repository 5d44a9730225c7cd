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

import numpy as np
from torch import Tensor

from unremix.console.quantities import counted
from unremix.files.atomic_files import refuse_link, write_arrays, write_text
from unremix.files.locate import candidates
from unremix.files.npz import read_arrays
from unremix.mining.embeddings import Floats, Integers, unit_rows
from unremix.mining.files import write_rows
from unremix.mining.groups import find_clusters, find_duplicates, fitting_threshold
from unremix.mining.index import Advance, Allowed, Index, Kind, make_index
from unremix.report.pictures import make_atlas
from unremix.report.rendering import render
from unremix.training.checkpoints import check_embeddings
from unremix.training.run import Run, reading

TILE = 96  # pixels of the side of a picture on a page, at most
SHOWN_GROUPS = 200
SHOWN_MEMBERS = 12
LISTED = 10  # queries or groups that a terminal shows

Titled = Callable[[Sequence[int]], str]
"""The title of a group, from its rows."""


@dataclass(frozen=True)
class Item:
    """What a page shows of a sample."""

    name: str  # its name; of a sentence, the sentence
    image: Tensor | None = None  # of bytes, shape (C, S, S), if it is shown as an image
    label: str | None = None  # its class, where known
    similarity: float | None = None  # to what it is shown beside, where that means something

    @property
    def picture(self) -> str | None:
        """The image as a data URI."""
        if self.image is None:
            return None
        made = make_atlas(self.image[None], TILE)
        return f"data:{made.kind};base64,{base64.b64encode(made.data).decode()}"

    @property
    def coarse(self) -> bool:
        """Whether the image is so small that its pixels are shown."""
        return self.image is not None and self.image.shape[-1] < TILE


@dataclass(frozen=True)
class Group:
    """A section of a page, and rows of the table."""

    key: str | int  # the query, or the number of the group
    title: str  # its heading
    items: list[Item]  # of the table
    shown: int | None = None  # how many of them the page shows; None for all
    query: Item | None = None  # what they are compared with, if anything


@dataclass(frozen=True)
class Written:
    """What a command wrote, and its results in words."""

    page: Path
    table: Path  # the table beside it
    summary: list[str]  # a sentence each
    listed: list[str]  # the first results, a line each


class RunData:
    """The data of a run with their embeddings, and a page about them.

    Embeddings are computed once and kept in the run's folder.

    Args:
        name: Of the page, without its ending.
        run: The run's folder.
        data: Other data than the run's own.
        output: Where to write the page; by default into the run's folder.
        index: How neighbors are searched.
        trust: Whether code may run that the run's folder names.

    Raises:
        ValueError: If ``output`` is no page, or the embeddings that were kept are damaged.
    """

    def __init__(
        self,
        name: str,
        run: str | Path,
        data: str | None = None,
        output: str | None = None,
        *,
        index: Kind = "exact",
        trust: bool = False,
    ) -> None:
        self.page = Path(run) / f"{name}.html" if output is None else Path(output)
        if self.page.suffix != ".html":
            raise ValueError(
                f"expected a page that ends in .html, got {str(self.page)!r}; the table is written "
                "beside it as .csv"
            )
        self.run = Run(run, trust=trust)
        self.data = self.run.domain.load_for(self.run, data)
        self.source = self.run.config.data if data is None else data
        kept = self.run.path / "embeddings" / f"{self._digest()}.npz"
        refuse_link(kept.parent)
        if not kept.exists():
            self._embed(kept)
        self.labels: list[str] | None = None
        with reading(kept, "remove it"):
            arrays = read_arrays(kept)
            self.units: Floats = unit_rows(arrays["embeddings"])
            for array in ("names", "labels"):
                if array in arrays and arrays[array].shape != (len(self.units),):
                    raise ValueError(f"{array} of shape {arrays[array].shape}")
            self.names: list[str] = arrays["names"].tolist()
            if "labels" in arrays:
                labels = arrays["labels"].tolist()
                classes = arrays["classes"].tolist() if "classes" in arrays else None
                self.labels = [str(one) if classes is None else classes[one] for one in labels]
        self._kind = index

    @property
    def index(self) -> Index:
        """Finds neighbors among the embeddings."""
        return make_index(self.units, self._kind, self.run.path / "embeddings")

    def _embed(self, kept: Path) -> None:
        features = self.run.domain.features(self.run, self.data)
        embeddings = check_embeddings(features.embeddings).numpy()
        arrays = {"embeddings": embeddings, "names": np.array(features.names)}
        if features.labels is not None:
            arrays["labels"] = features.labels.numpy()
        if features.classes is not None:
            arrays["classes"] = np.array(list(features.classes))
        write_arrays(kept, arrays)

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
        names = self.run.domain.names_of(query, candidates(self.source))
        return next((self._row_of[name] for name in names if name in self._row_of), -1)

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in reversed(list(enumerate(self.names)))}

    def items(
        self,
        rows: Sequence[int],
        similarity: Callable[[int], float] | None = None,
        shown: int | None = None,
    ) -> list[Item]:
        """What there is to say about some rows; the first ``shown`` have their images."""
        pictured = rows[:shown]
        images = self.run.domain.thumbnails(self.data, pictured) if pictured else {}
        return [
            Item(
                self.names[row],
                images.get(row),
                None if self.labels is None else self.labels[row],
                None if similarity is None else similarity(row),
            )
            for row in rows
        ]

    def groups(
        self, what: str, members: Sequence[Integers], similarity: Floats, title: Titled
    ) -> list[Group]:
        """Numbered groups of rows, each titled by its rows."""
        groups = []
        for number, group in enumerate(members, start=1):
            rows, shown = group.tolist(), SHOWN_MEMBERS if number <= SHOWN_GROUPS else 0
            items = self.items(rows, lambda row: float(similarity[row]), shown)
            heading = f"{what.capitalize()} {number}, {title(rows)}"
            groups.append(Group(number, heading, items, shown))
        return groups

    def write(
        self,
        heading: str,
        what: str,
        summary: list[str],
        groups: Sequence[Group],
        lines: Callable[[Group], list[str]],
    ) -> Written:
        """Write the page and its table.

        Args:
            heading: Of the page.
            what: What a group is called in the table.
            summary: A sentence each.
            groups: What was found.
            lines: What a terminal shows of a group.
        """
        table = self.page.with_suffix(".csv")
        rank = ["rank"] if what == "query" else []
        columns = [what, *rank, "name", "label", "similarity"]
        cells = (
            (group.key, *([number] if rank else []), item.name, item.label or "", item.similarity)
            for group in groups
            for number, item in enumerate(group.items, 1)
        )
        write_rows(table, [dict(zip(columns, row, strict=True)) for row in cells], columns)
        page = render(
            "groups.html",
            "groups",
            heading=heading,
            run=self.run,
            summary=summary,
            groups=groups[:SHOWN_GROUPS] if what != "query" else groups,
            table=table.name,
        )
        write_text(self.page, page)
        listed = [line for group in groups[:LISTED] for line in lines(group)]
        if len(groups) > LISTED:
            listed.append(f"The others are in {table.name}.")
        return Written(self.page, table, summary, listed)


def write_neighbors(
    data: RunData, queries: Sequence[str], k: int, advance: Advance | None = None
) -> Written:
    """Find what is most similar to each query.

    Args:
        data: Where to look.
        queries: Names of samples, or what the run embeds, such as files or texts.
        k: Neighbors of each.
        advance: Receives the progress.

    Raises:
        ValueError: If a query is neither in the data nor something that the run embeds.
    """
    titles, units, rows, shown = _read_queries(data, queries)
    own = np.flatnonzero(rows >= 0)
    order = own[np.argsort(rows[own], kind="stable")]
    allowed = Allowed(Allowed.everything(len(units)).highest, order, rows[order])
    near = data.index.search(units, k, allowed, advance)
    groups = []
    for title, query, found, similarity in zip(
        titles, shown, near.rows.tolist(), near.similarity.tolist(), strict=True
    ):
        values = {row: value for row, value in zip(found, similarity, strict=True) if row >= 0}
        groups.append(
            Group(title, title, data.items(list(values), values.__getitem__), query=query)
        )
    summary = [f"The {k} nearest of {len(data.names):,} {data.run.domain.unit} to each query."]

    def lines(group: Group) -> list[str]:
        items = [f"  {item.similarity:.5f}  {_named(item)}" for item in group.items]
        return [f"{group.title}:", *items]

    return data.write("Neighbors", "query", summary, groups, lines)


def _named(item: Item) -> str:
    return item.name if item.label is None else f"{item.name} ({item.label})"


def _read_queries(
    data: RunData, queries: Sequence[str]
) -> tuple[list[str], Floats, Integers, list[Item]]:
    """The title of each query, its embedding, its row in the data or -1, and how a page shows it.

    Raises:
        ValueError: For a query that is neither in the data nor something that the run embeds.
    """
    domain, titles = data.run.domain, list[str]()
    for query in queries:
        if data.row_of(query) >= 0:
            titles.append(query)
        elif domain.ask is not None:
            titles += filter(None, domain.ask(query))
        else:
            raise ValueError(
                f"expected the name of one of the {domain.unit} in the data, got {query!r}; the "
                "table that 'unremix embed RUN -o table.csv' writes lists them"
            )
    rows = np.array([data.row_of(title) for title in titles], dtype=np.int64)
    others = [title for title, row in zip(titles, rows, strict=True) if row < 0]
    units = np.zeros((len(titles), data.units.shape[1]), dtype=np.float32)
    units[rows >= 0] = data.units[rows[rows >= 0]]
    images: dict[str, Tensor] = {}
    if others:
        units[rows < 0] = unit_rows(data.run.embed(others).numpy())
        images = dict(zip(others, domain.preview(data.run, others), strict=False))
    shown = [
        data.items([int(row)])[0] if row >= 0 else Item(title, images.get(title))
        for title, row in zip(titles, rows, strict=True)
    ]
    return titles, units, rows, shown


def write_duplicates(data: RunData, threshold: float, advance: Advance | None = None) -> Written:
    """Find groups of near-duplicates.

    Args:
        data: Where to look.
        threshold: The cosine from which two samples are near-duplicates.
        advance: Receives the progress.
    """
    result = find_duplicates(data.index, data.units, threshold, advance)
    groups = data.groups(
        "group", result.groups, result.similarity, lambda rows: f"{len(rows)} alike"
    )
    inside = sum(map(len, result.groups))
    median = float(np.median(result.similarity))
    summary = [
        f"{counted(len(groups), 'group')} with {inside:,} of {len(data.names):,} "
        f"{data.run.domain.unit}, from a cosine of {threshold:g}.",
        f"The cosine to the nearest other one is {median:.3f} in the median: a threshold should be "
        "well above it.",
    ]
    fitting = fitting_threshold(result.similarity)
    if fitting is not None and (fitting > threshold or (not groups and fitting < threshold)):
        summary[-1] += f" Try --threshold {fitting:.7g}."
    if len(groups) > SHOWN_GROUPS:
        summary.append(f"The page shows the {SHOWN_GROUPS} largest; the table has all.")

    def lines(group: Group) -> list[str]:
        return [f"{group.title}: {', '.join(map(_named, group.items[:SHOWN_MEMBERS]))}"]

    return data.write("Near-duplicates", "group", summary, groups, lines)


def write_clusters(data: RunData, clusters: int | None, seed: int = 0) -> Written:
    """Sort the data into clusters.

    Args:
        data: What to sort.
        clusters: How many; None for the square root of half the number of samples.
        seed: Of the start.
    """
    result = find_clusters(data.units, clusters, seed)
    unit, labels = data.run.domain.unit, data.labels

    def title(rows: Sequence[int]) -> str:
        said = f"{len(rows)} {unit}"
        if labels is not None:
            names, counts = np.unique([labels[row] for row in rows], return_counts=True)
            top = np.argsort(-counts, kind="stable")[:3]
            said += f": {', '.join(f'{names[i]} {counts[i] / len(rows):.0%}' for i in top)}"
        return said

    groups = data.groups("cluster", result.members, result.similarity, title)
    summary = [
        f"{len(data.names):,} {unit} in {counted(len(groups), 'cluster')} by k-means of their "
        "directions, the most central first."
    ]
    if labels is not None:
        from sklearn.metrics import normalized_mutual_info_score  # type: ignore[import-untyped]

        shared = normalized_mutual_info_score(labels, result.cluster)
        summary.append(f"Normalized mutual information with the labels: {shared:.3f}.")
    return data.write("Clusters", "cluster", summary, groups, lambda group: [group.title])
