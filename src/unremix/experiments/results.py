"""The runs of an experiment: their folders, and a record of each, kept as a JSON line.

A run with a line in ``results.jsonl`` is done, even if ``runs/`` is gone, so the folder of an
experiment can be moved or shared without its runs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unremix.console.values import check_types
from unremix.evaluation.card import judged, measures_of
from unremix.experiments.plan import Job, train_command
from unremix.files.atomic_files import append_json, check_name, read_text, refuse_link
from unremix.training.record import versions
from unremix.training.run import Run

RESULTS = "results.jsonl"
TAIL = 6  # lines of a failed run's log that are shown
BEGUN = "$ "  # before the command, in a log
TRAINED = "trained"  # the features a run is about; all others on a card are baselines


class Folder:
    """The folder of an experiment, where all of its state is: runs, logs and locks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Job, Run] = {}

    def run(self, job: Job) -> Path:
        """The run's folder."""
        return self._place("runs", job)

    def log(self, job: Job) -> Path:
        """What the run printed."""
        return self._place("logs", job, ".txt")

    def lock(self, job: Job) -> Path:
        """The lock that the run's process holds."""
        return self._place(".locks", job)

    def _place(self, kind: str, job: Job, ending: str = "") -> Path:
        """A file or folder of a run, which lies here: files decide neither names nor links."""
        place = self.path / kind / f"{check_name(job.name, 'the name of a run')}{ending}"
        refuse_link(place.parent)
        refuse_link(place)
        return place

    def find(self, job: Job) -> Run | None:
        """The run, once it has begun."""
        if job not in self.known:
            try:
                self.known[job] = Run(self.run(job))
            except FileNotFoundError:
                return None
        return self.known[job]

    def has_checkpoint(self, job: Job) -> bool:
        """Whether there is something to resume from."""
        run = self.find(job)
        return run is not None and run.has_checkpoint

    def discard(self, job: Job) -> None:
        """Remove what a run left that was stopped before its first checkpoint."""
        self.known.pop(job, None)
        if self.run(job).exists():
            shutil.rmtree(self.run(job))

    def is_done(self, job: Job) -> bool:
        """Whether the run has finished."""
        run = self.find(job)
        return run is not None and run.evaluation is not None

    def rows(self, job: Job) -> list[dict[str, float]]:
        """The run's metrics so far."""
        run = self.find(job)
        return [] if run is None else run.metrics()

    def share_done(self, job: Job) -> float:
        """The share of a run that its metrics show."""
        rows, epochs = self.rows(job), job.train.epochs
        return min(1.0, rows[-1]["epoch"] / epochs) if rows and epochs else 0.0

    def tail(self, job: Job) -> list[str]:
        """The last lines that the run printed since it was last begun."""
        if not self.log(job).exists():
            return []
        text = read_text(self.log(job), inside=self.path)
        _, _, printed = text[text.rfind(BEGUN) :].partition("\n")
        return [line.rstrip() for line in printed.splitlines() if line.strip()][-TAIL:]


@dataclass(frozen=True)
class Record:
    """What came out of a run: all that tables and figures need of it."""

    name: str  # of its job
    row: str = ""  # of the table that it belongs to
    seed: int = 0
    data: str | None = None
    epochs: int | None = None  # that it was trained
    steps: int | None = None
    loss: float | None = None  # of the last epoch
    # For each kind of features (trained, untrained, …), measures by their path.
    results: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    probe_curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by features
    protocol: Mapping[str, Any] | None = None  # how each kind of measure was taken
    metrics: Sequence[dict[str, float]] = ()  # rows of metrics.csv
    cpu_seconds: float | None = None  # None if they were not measured
    precision: str | None = None  # that it was trained in; None in records of 32-true before
    command: str | None = None
    failure: str | None = None  # why it failed; None if it did not

    def measure(self, path: str, features: str = TRAINED) -> float | None:
        """The value of a measure, if the run has it."""
        item = self.results.get(features, {}).get(path)
        return None if item is None else float(item["value"])


FIELDS = frozenset(one.name for one in fields(Record)) - {"failure"}


def record_of(job: Job, run: Run | None, failure: str | None = None) -> Record:
    """The record of a run, read from its folder."""
    metrics = [] if run is None else run.metrics()
    card = (None if run is None or failure is not None else run.evaluation) or {}
    results = judged(card.get("results"))
    return Record(
        job.name,
        job.row,
        job.seed,
        data=card.get("data"),
        epochs=int(metrics[-1]["epoch"]) if metrics else (0 if card else None),
        steps=card.get("step"),
        loss=metrics[-1].get("loss") if metrics else None,
        results={
            kind: {
                path: {name: value for name, value in one.items() if name != "right"}
                for path, one in measures_of(result).items()
            }
            for kind, result in results.items()
        },
        probe_curves={
            kind: result["linear"]["curve"]
            for kind, result in results.items()
            if isinstance(result.get("linear"), dict) and "curve" in result["linear"]
        },
        protocol=card.get("protocol"),
        metrics=metrics,
        precision=None if run is None else run.config.precision,
        command=train_command(job.train),
        failure=failure,
    )


def _read(line: str) -> Record:
    """A record from its line.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: If the line is not a record.
    """
    values = json.loads(line)
    record = Record(**{name: values[name] for name in FIELDS if values.get(name) is not None})
    check_types(record)
    measures = (one for result in values["results"].values() for one in result.values())
    sound = all(isinstance(one["value"], int | float) for one in measures)
    if not sound or record.epochs is None or not 0 <= (record.cpu_seconds or 0) < math.inf:
        raise TypeError("other values than a run's")
    return record


class Results:
    """The finished runs of an experiment, by the names of their jobs.

    Args:
        path: ``results.jsonl``; it is made with the first run.

    Raises:
        ValueError: For a line that is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        text = read_text(path, inside=path.parent) if path.exists() else ""
        lines = text.splitlines()
        torn = len(lines) if lines and not text.endswith("\n") else None
        for number, line in enumerate(lines, start=1):
            try:
                record = _read(line)
                self.records[record.name] = record
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                if number == torn and isinstance(error, json.JSONDecodeError):
                    break  # a full disk, or a kill, cut it off
                raise ValueError(
                    f"expected a JSON record of a run in line {number} of {path}, got "
                    f"{line[:60]!r}; remove the line, and the run is made again"
                ) from error

    def __contains__(self, job: Job) -> bool:
        return job.name in self.records

    def add(self, record: Record, about: Mapping[str, Any] | None = None) -> None:
        """Note a run; the line is on the disk when this returns.

        Args:
            record: What came out of it.
            about: What else the line says.
        """
        line = {**asdict(record), "versions": versions(), **(about or {})}
        del line["failure"]  # of a run that is done
        append_json(self.path, line)
        self.records[record.name] = record

    def of(self, jobs: Iterable[Job]) -> list[Record]:
        """The records of those jobs that are done, each under the name that its row has here."""
        done = [job for job in jobs if job in self]
        return [replace(self.records[job.name], row=job.row) for job in done]

    def cpu_seconds(self, jobs: Iterable[Job]) -> list[float]:
        """CPU seconds of those of some jobs that are done and whose cost is known."""
        return [one.cpu_seconds for one in self.of(jobs) if one.cpu_seconds is not None]

    @property
    def core_hours(self) -> float:
        """The cost of all runs; a run of unknown cost counts as the average."""
        known = [one.cpu_seconds for one in self.records.values() if one.cpu_seconds is not None]
        return sum(known) / len(known) * len(self.records) / 3600 if known else 0.0
