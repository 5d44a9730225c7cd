"""Pages of embedded data: the neighbors of a query, near-duplicates, clusters.

Each writes a table that a spreadsheet opens, and a page in one file beside it.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from unremix.console.quantities import counted
from unremix.console.suggestions import did_you_mean
from unremix.files.atomic_files import write_text
from unremix.mining.embeddings import Floats, Integers, unit_rows
from unremix.mining.files import write_rows
from unremix.mining.groups import find_clusters, find_duplicates, fitting_threshold
from unremix.mining.index import Advance, Allowed, Kind, make_index
from unremix.report.pictures import make_atlas
from unremix.report.rendering import render
from unremix.report.sources import Source

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


def page_path(source: Source, name: str, output: str | Path | None) -> Path:
    """Where a page is written.

    Raises:
        ValueError: If ``output`` is no page.
    """
    path = source.folder / f"{name}.html" if output is None else Path(output)
    if path.suffix != ".html":
        raise ValueError(
            f"expected a page that ends in .html, got {str(path)!r}; the table is written "
            "beside it as .csv"
        )
    return path


def items_of(
    source: Source,
    rows: Sequence[int],
    similarity: Callable[[int], float] | None = None,
    shown: int | None = None,
) -> list[Item]:
    """What there is to say about some rows; the first ``shown`` have their images."""
    images = source.thumbnails(rows[:shown])
    return [
        Item(
            source.names[row],
            images.get(row),
            None if source.labels is None else source.labels[row],
            None if similarity is None else similarity(row),
        )
        for row in rows
    ]


def _groups(
    source: Source, what: str, members: Sequence[Integers], similarity: Floats, title: Titled
) -> list[Group]:
    """Numbered groups of rows, each titled by its rows."""
    groups = []
    for number, group in enumerate(members, start=1):
        rows, shown = group.tolist(), SHOWN_MEMBERS if number <= SHOWN_GROUPS else 0
        items = items_of(source, rows, lambda row: float(similarity[row]), shown)
        groups.append(Group(number, f"{what.capitalize()} {number}, {title(rows)}", items, shown))
    return groups


def _write(
    source: Source,
    page: Path,
    heading: str,
    what: str,
    summary: list[str],
    groups: Sequence[Group],
    lines: Callable[[Group], list[str]],
) -> Written:
    """Write a page and its table.

    Args:
        source: What it is about.
        page: Where it is written.
        heading: Of the page.
        what: What a group is called in the table.
        summary: A sentence each.
        groups: What was found.
        lines: What a terminal shows of a group.
    """
    table = page.with_suffix(".csv")
    rank = ["rank"] if what == "query" else []
    columns = [what, *rank, "name", "label", "similarity"]
    cells = (
        (group.key, *([number] if rank else []), item.name, item.label or "", item.similarity)
        for group in groups
        for number, item in enumerate(group.items, 1)
    )
    write_rows(table, [dict(zip(columns, row, strict=True)) for row in cells], columns)
    write_groups(source, page, heading, summary, groups if rank else groups[:SHOWN_GROUPS])
    listed = [line for group in groups[:LISTED] for line in lines(group)]
    if len(groups) > LISTED:
        listed.append(f"The others are in {table.name}.")
    return Written(page, table, summary, listed)


def write_groups(
    source: Source, page: Path, heading: str, summary: list[str], groups: Sequence[Group]
) -> None:
    """Write a page of groups, one below the other; its table has the same name."""
    text = render(
        "groups.html",
        "groups",
        heading=heading,
        source=source,
        summary=summary,
        groups=groups,
        table=page.with_suffix(".csv").name,
    )
    write_text(page, text)


def write_neighbors(
    source: Source,
    queries: Sequence[str],
    k: int,
    output: str | None = None,
    kind: Kind = "exact",
    advance: Advance | None = None,
) -> Written:
    """Find what is most similar to each query.

    Args:
        source: Where to look.
        queries: Names of items, or what the encoder embeds, such as files or texts.
        k: Neighbors of each.
        output: The page.
        kind: How neighbors are searched.
        advance: Receives the progress.

    Raises:
        ValueError: If a query is neither in the data nor something that the encoder embeds.
    """
    page = page_path(source, "neighbors", output)
    titles, units, rows, shown = _read_queries(source, queries)
    own = np.flatnonzero(rows >= 0)
    allowed = Allowed(Allowed.everything(len(units)).highest, own, rows[own])
    index = make_index(source.units, kind, source.kept)
    near = index.search(units, k, allowed, advance)
    groups = []
    for title, query, found, similarity in zip(
        titles, shown, near.rows.tolist(), near.similarity.tolist(), strict=True
    ):
        values = {row: value for row, value in zip(found, similarity, strict=True) if row >= 0}
        items = items_of(source, list(values), values.__getitem__)
        groups.append(Group(title, title, items, query=query))
    summary = [f"The {k} nearest of {len(source.names):,} {source.unit} to each query."]

    def lines(group: Group) -> list[str]:
        items = [f"  {item.similarity:.5f}  {_named(item)}" for item in group.items]
        return [f"{group.title}:", *items]

    return _write(source, page, "Neighbors", "query", summary, groups, lines)


def _named(item: Item) -> str:
    return item.name if item.label is None else f"{item.name} ({item.label})"


def _read_queries(
    source: Source, queries: Sequence[str]
) -> tuple[list[str], Floats, Integers, list[Item]]:
    """The title of each query, its embedding, its row in the data or -1, and how a page shows it.

    Raises:
        ValueError: For a query that is neither in the data nor something that is embedded.
    """
    model, titles = source.model, list[str]()
    for query in queries:
        if source.row_of(query) >= 0:
            titles.append(query)
        elif model is not None and model.domain.ask is not None:
            titles += filter(None, model.domain.ask(query))
        else:
            hint = did_you_mean(query, source.names) or (
                "; the table that 'unremix embed ... -o table.csv' writes lists them"
            )
            raise ValueError(
                f"expected the name of one of the {source.unit} in the data, got {query!r}{hint}"
            )
    rows = np.array([source.row_of(title) for title in titles], dtype=np.int64)
    others = [title for title, row in zip(titles, rows, strict=True) if row < 0]
    units = np.zeros((len(titles), source.units.shape[1]), dtype=np.float32)
    units[rows >= 0] = source.units[rows[rows >= 0]]
    images: dict[str, Tensor] = {}
    if others:
        assert model is not None
        units[rows < 0] = unit_rows(model.embed(others).numpy())
        images = dict(zip(others, model.domain.preview(model, others), strict=False))
    shown = [
        items_of(source, [int(row)])[0] if row >= 0 else Item(title, images.get(title))
        for title, row in zip(titles, rows, strict=True)
    ]
    return titles, units, rows, shown


def write_duplicates(
    source: Source,
    threshold: float | None = None,
    output: str | None = None,
    kind: Kind = "exact",
    advance: Advance | None = None,
) -> Written:
    """Find groups of near-duplicates.

    Args:
        source: Where to look.
        threshold: The cosine from which two items are near-duplicates; None for one that fits the
            data.
        output: The page.
        kind: How neighbors are searched.
        advance: Receives the progress.
    """
    page = page_path(source, "duplicates", output)
    index = make_index(source.units, kind, source.kept)
    result = find_duplicates(index, source.units, threshold, advance)
    groups = _groups(
        source, "group", result.groups, result.similarity, lambda rows: f"{len(rows)} alike"
    )
    inside, fitting = sum(map(len, result.groups)), fitting_threshold(result.similarity)
    median = float(np.median(result.similarity))
    summary = [
        f"{counted(len(groups), 'group')} with {inside:,} of {len(source.names):,} "
        f"{source.unit}, from a cosine of {result.threshold:g}.",
        f"The cosine to the nearest other one is {median:.3f} in the median. From "
        f"{fitting:.7g} on, it is hardly reached by chance",
    ]
    if threshold is None:
        summary[-1] += ": that is the threshold."
    else:
        near = int((result.similarity >= fitting).sum())
        summary[-1] += f"; {near:,} {source.unit} reach it."
        if near and fitting != threshold:
            summary[-1] += f" Try --threshold {fitting:.7g}."
    if len(groups) > SHOWN_GROUPS:
        summary.append(f"The page shows the {SHOWN_GROUPS} largest; the table has all.")

    def lines(group: Group) -> list[str]:
        return [f"{group.title}: {', '.join(map(_named, group.items[:SHOWN_MEMBERS]))}"]

    return _write(source, page, "Near-duplicates", "group", summary, groups, lines)


def write_clusters(
    source: Source, clusters: int | None, output: str | None = None, seed: int = 0
) -> Written:
    """Sort the data into clusters.

    Args:
        source: What to sort.
        clusters: How many; None for the square root of half the number of items.
        output: The page.
        seed: Of the start.
    """
    page = page_path(source, "clusters", output)
    result = find_clusters(source.units, clusters, seed)
    unit, labels = source.unit, source.labels

    def title(rows: Sequence[int]) -> str:
        return f"{len(rows)} {unit}" + (
            "" if labels is None else f": {most_frequent(labels, rows)}"
        )

    groups = _groups(source, "cluster", result.members, result.similarity, title)
    summary = [
        f"{len(source.names):,} {unit} in {counted(len(groups), 'cluster')} by k-means of their "
        "directions, the most central first."
    ]
    if labels is not None:
        from sklearn.metrics import normalized_mutual_info_score  # type: ignore[import-untyped]

        shared = normalized_mutual_info_score(labels, result.cluster)
        summary.append(f"Normalized mutual information with the labels: {shared:.3f}.")
    return _write(source, page, "Clusters", "cluster", summary, groups, lambda group: [group.title])


def most_frequent(labels: Sequence[str], rows: Sequence[int]) -> str:
    """The three most frequent labels of some rows, with their shares."""
    counts = Counter(labels[row] for row in rows).most_common()
    top = sorted(counts, key=lambda one: (-one[1], one[0]))[:3]
    return ", ".join(f"{name} {count / len(rows):.0%}" for name, count in top)
