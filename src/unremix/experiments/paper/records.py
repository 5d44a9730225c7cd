"""What an experiment of the paper consists of, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from unremix.experiments.engine import Engine
from unremix.experiments.paper.published import Published
from unremix.experiments.paper.scales import SCALES, Kind, Options, ScaleName, Source
from unremix.experiments.plan import Job, make_job, train_config
from unremix.experiments.tables import Grid

EMBEDDED = ("digits", "pydocs", "stdlib-ast")


@dataclass(frozen=True)
class Row:
    """A row of a table, or a line of a figure: a setting.

    Args:
        name: What to call it.
        options: Its options, by name.
        published: The paper's figures.
        floors: Other names for its baselines, where they are not those of the other rows.
        scales: The scales that have it.
        papers: The paper's data sets that have it; all by default.
    """

    name: str
    options: Options
    published: Published = field(default_factory=dict)
    floors: Mapping[str, str] = field(default_factory=dict)
    scales: tuple[ScaleName, ...] = ("smoke", "cpu", "paper")
    papers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Made:
    """What an experiment comes to.

    Args:
        grids: Tables, each with a title, which may be empty.
        records: What ``table.csv`` holds.
        figures: Figures by the name of their files.
        facts: What ``results.json`` holds besides the runs.
        notes: Sentences below the tables.
    """

    grids: Sequence[tuple[str, Grid]]
    records: Sequence[Mapping[str, Any]]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Args:
        name: Its name on the command line.
        place: Where the paper has it.
        title: What it shows.
        make: Makes tables and figures of its runs.
        kind: Of what kind its data are.
        rows: Its settings.
        measures: What is shown of each run, by path, with a heading.
        reference: The row that the others are compared with.
        options: Options of every run, by scale.
        seeds: Seeds of every row; by default those of the scale.
        needs_encoders: Whether the runs' folders are needed, not only their records.
        notes: What to know when reading it.
    """

    name: str
    place: str
    title: str
    make: Callable[[Setting], Made]
    kind: Kind = "images"
    rows: tuple[Row, ...] = ()
    measures: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    options: Mapping[ScaleName, Options] = field(default_factory=dict)
    seeds: int | None = None
    needs_encoders: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """An experiment at a scale, with its runs.

    Args:
        experiment: The experiment.
        scale: Its scale.
        sources: Its data sets.
        seeds: Seeds of every row.
        options: Options of every run, in place of the scale's.
        engine: Runs the jobs and holds their records.
    """

    experiment: Experiment
    scale: ScaleName
    sources: tuple[Source, ...]
    seeds: int
    options: Options
    engine: Engine

    @property
    def rows(self) -> list[Row]:
        """The rows that the scale has."""
        return [row for row in self.experiment.rows if self.scale in row.scales]

    def sources_of(self, row: Row) -> list[Source]:
        """The data sets that a row is run on."""
        return [one for one in self.sources if row.papers is None or one.paper in row.papers]

    def job(self, row: Row, source: Source, seed: int) -> Job:
        """A run."""
        key = (row.name, source.data, seed)
        if key not in self._made:
            self._made[key] = self._make_job(row, source, seed)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[str, str, int], Job]:
        return {}

    def _make_job(self, row: Row, source: Source, seed: int) -> Job:
        train = train_config(
            SCALES[self.scale][self.experiment.kind].options,
            source.options,
            self.experiment.options.get(self.scale, {}),
            {"data": source.data},
            row.options,
            self.options,
            {"seed": seed},
        )
        label = row.name if len(self.sources) == 1 else f"{row.name}, {source.title}"
        return make_job(label, train)

    @property
    def jobs(self) -> list[Job]:
        """All runs: seed by seed, so that there is soon something to compare."""
        return [
            self.job(row, source, seed)
            for seed in range(self.seeds)
            for source in self.sources
            for row in self.rows
            if source in self.sources_of(row)
        ]

    def records(self, row: Row, source: Source) -> list[dict[str, Any]]:
        """The records of a row's finished runs on a data set, by seed."""
        jobs = [self.job(row, source, seed) for seed in range(self.seeds)]
        known = self.engine.results.records
        return [known[job.name] for job in jobs if job.name in known]


def put(source: Source, folder: Path) -> Source:
    """The data set, written to a folder if it is made up."""
    if source.write is None:
        return source
    place = folder / source.data
    if not place.exists():
        source.write(place)
    return replace(source, data=str(place))
