"""What an experiment of the paper consists of, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from unremix.experiments.laboratory import Laboratory
from unremix.experiments.paper.scales import SCALES, Kind, Options, ScaleName, Source
from unremix.experiments.plan import Job, make_job, train_config
from unremix.experiments.results import Record
from unremix.experiments.tables import Grid

Percent = tuple[float, float | None]
Published = dict[tuple[str, str], Percent]
"""Figures by data set and measure: mean and, if there is one, standard deviation."""

EMBEDDED = ("digits", "pydocs", "stdlib-ast")


@dataclass(frozen=True)
class Row:
    """A row of a table, or a line of a figure: a setting."""

    name: str
    options: Options  # by name
    published: Published = field(default_factory=dict)  # the paper's figures
    floors: Mapping[str, str] = field(default_factory=dict)  # other names for its baselines
    scales: tuple[ScaleName, ...] = ("smoke", "cpu", "paper")  # the scales that have it
    # The paper's data sets that have it, "" for data of one's own; all by default.
    papers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Made:
    """What an experiment comes to."""

    grids: Sequence[tuple[str, Grid]]  # tables, each with a title, which may be empty
    records: Sequence[Mapping[str, Any]]  # what ``table.csv`` holds
    figures: Mapping[str, Figure] = field(default_factory=dict)  # by the name of their files
    facts: Mapping[str, Any] = field(default_factory=dict)  # what results.json holds besides runs
    notes: Sequence[str] = ()  # sentences below the tables


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str  # its name on the command line
    places: tuple[str, ...]  # where the paper has it: "Table 1", "Figure 3"
    title: str  # what it shows
    make: Callable[[Setting], Made]  # makes tables and figures of its runs
    kind: Kind = "images"  # of what kind its data are
    rows: tuple[Row, ...] = ()  # its settings
    measures: Mapping[str, str] = field(default_factory=dict)  # headings, by path
    reference: str = ""  # the row that the others are compared with
    options: Mapping[ScaleName, Options] = field(default_factory=dict)  # of every run, by scale
    seeds: int | None = None  # of every row; by default those of the scale
    needs_encoders: bool = False  # whether the runs' folders are needed, not only their records
    needs_labels: bool = True  # whether it shows nothing without
    notes: tuple[str, ...] = ()  # what to know when reading it


@dataclass(frozen=True)
class Setting:
    """An experiment at a scale, with its runs."""

    experiment: Experiment
    scale: ScaleName
    sources: tuple[Source, ...]  # its data sets
    seeds: int  # of every row
    options: Options  # of every run, in place of the scale's
    laboratory: Laboratory  # runs the jobs and holds their records

    @property
    def rows(self) -> list[Row]:
        """The rows that the scale has."""
        return [row for row in self.experiment.rows if self.scale in row.scales]

    def sources_of(self, row: Row) -> list[Source]:
        """The data sets that a row is run on."""
        return [one for one in self.sources if row.papers is None or one.paper in row.papers]

    def rows_on(self, source: Source) -> list[Row]:
        """The rows that are run on a data set."""
        return [row for row in self.rows if source in self.sources_of(row)]

    def job(self, row: Row, source: Source, seed: int) -> Job:
        """A run."""
        train = train_config(
            SCALES[self.scale][self.experiment.kind].options,
            source.options,
            self.experiment.options.get(self.scale, {}),
            {"data": source.data},
            row.options,
            self.options,
            {"seed": seed},
        )
        return make_job(f"{row.name}, {source.title}", train)

    @cached_property
    def runs(self) -> list[tuple[Row, Source, Job]]:
        """All runs, seed by seed, so that there is soon something to compare."""
        return [
            (row, source, self.job(row, source, seed))
            for seed in range(self.seeds)
            for source in self.sources
            for row in self.rows_on(source)
        ]

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all runs."""
        return [job for _, _, job in self.runs]

    @property
    def to_do(self) -> list[Job]:
        """The runs that are missing: their records, or their encoders where these are needed."""
        done, folder = self.laboratory.results, self.laboratory.folder
        needs = self.experiment.needs_encoders
        return [job for job in self.jobs if job not in done or (needs and not folder.is_done(job))]

    @property
    def unmade(self) -> list[Job]:
        """Those of :attr:`to_do` that have to be trained: all but those that lack their record."""
        return [job for job in self.to_do if not self.laboratory.folder.is_done(job)]

    def records(self, row: Row, source: Source) -> list[Record]:
        """The records of a row's finished runs on a data set, by seed."""
        own = (job for one, data, job in self.runs if (one, data) == (row, source))
        return self.laboratory.results.of(own)

    @property
    def finished(self) -> list[tuple[Row, Source, Record]]:
        """All finished runs: row by row, on each data set, by seed."""
        return [
            (row, source, record)
            for row in self.rows
            for source in self.sources_of(row)
            for record in self.records(row, source)
        ]


def placed(source: Source, folder: Path) -> Source:
    """The data set; a generated one gets its path in a folder."""
    return replace(source, data=str(folder / source.data)) if source.generated else source
