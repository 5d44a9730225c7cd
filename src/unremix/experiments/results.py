"""The finished runs of an experiment, a JSON line each: all that tables and figures need of them.

What ``results.jsonl`` has is done, also where ``runs/`` is gone, so the folder of an experiment can
be moved or shared without its runs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unremix.data.atomic_files import appending, read_text
from unremix.evaluation.card import measures_of
from unremix.experiments.plan import Job, train_command
from unremix.experiments.tables import TRAINED, Outcome
from unremix.training.record import versions
from unremix.training.run import Run

RESULTS = "results.jsonl"


def outcome_of(job: Job, run: Run | None, failure: str | None = None) -> Outcome:
    """How a run ended, by its folder; None before it has one."""
    rows = [] if run is None else run.metrics()
    card = None if run is None or failure is not None else run.evaluation
    results = (card or {}).get("results") or {}
    return Outcome(
        job.row,
        job.seed,
        failure,
        epochs=int(rows[-1]["epoch"]) if rows else (None if card is None else 0),
        loss=rows[-1].get("loss") if rows else None,
        results={kind: measures_of(result) for kind, result in results.items()},
    )


def record_of(job: Job, run: Run, cpu_seconds: float | None) -> dict[str, Any]:
    """What is kept of a finished run; CPU seconds are None where they were not measured."""
    card, outcome = run.evaluation or {}, outcome_of(job, run)
    return {
        "name": job.name,
        "row": job.row,
        "seed": job.seed,
        "data": card.get("data"),
        "epochs": outcome.epochs,
        "steps": card.get("step"),
        "loss": outcome.loss,
        "results": outcome.results,
        "probe_curves": {
            kind: result["linear"]["curve"]
            for kind, result in (card.get("results") or {}).items()
            if isinstance(result.get("linear"), dict) and "curve" in result["linear"]
        },
        "protocol": card.get("protocol"),
        "metrics": run.metrics(),
        "cpu_seconds": None if cpu_seconds is None else round(cpu_seconds, 3),
        "command": train_command(job.train),
        "versions": versions(),
    }


def _check_record(record: dict[str, Any]) -> None:
    """Refuse a record whose numbers are none.

    Raises:
        TypeError, KeyError, AttributeError: If it is such.
    """
    cost, loss = record.get("cpu_seconds"), record["loss"]
    measures = [one for result in record["results"].values() for one in result.values()]
    sound = (
        isinstance(record["epochs"], int)
        and (loss is None or isinstance(loss, int | float))
        and (cost is None or (isinstance(cost, int | float) and 0 <= cost < math.inf))
        and all(isinstance(one["value"], int | float) for one in measures)
    )
    if not sound:
        raise TypeError("other values than a run's")


class Results:
    """The finished runs of an experiment, by the names of their jobs.

    Args:
        path: ``results.jsonl``; it is made with the first run.

    Raises:
        ValueError: For a line that is no record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            for number, line in enumerate(read_text(path).splitlines(), start=1):
                try:
                    record = json.loads(line)
                    _check_record(record)
                    self.records[record["name"]] = record
                except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"expected a JSON record of a run in line {number} of {path}, got "
                        f"{line[:60]!r}; remove the line, and the run is made again"
                    ) from error

    def __contains__(self, job: Job) -> bool:
        return job.name in self.records

    def add(self, record: dict[str, Any]) -> None:
        """Note a run; the line is on the disk when this returns."""
        self.records[record["name"]] = record
        with appending(self.path) as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def outcome(self, job: Job) -> Outcome | None:
        """How a run ended, under the name that its row has here; None if it has not."""
        record = self.records.get(job.name)
        if record is None:
            return None
        return Outcome(
            job.row,
            job.seed,
            epochs=record["epochs"],
            loss=record["loss"],
            results=record["results"],
        )

    def value(self, job: Job, measure: str) -> float:
        """A measure of a run's trained encoder.

        Raises:
            ValueError: If the run does not have it.
        """
        found = self.records[job.name]["results"].get(TRAINED, {})
        if measure not in found:
            raise ValueError(
                f"expected the measure {measure!r} of every run, got {', '.join(found) or 'none'} "
                f"of {job}; change measure in the study's file"
            )
        return float(found[measure]["value"])

    def cpu_seconds(self, jobs: Iterable[Job]) -> list[float]:
        """What the finished runs among some have cost, as far as it is known."""
        records = [self.records.get(job.name, {}) for job in jobs]
        return [one["cpu_seconds"] for one in records if one.get("cpu_seconds") is not None]

    @property
    def core_hours(self) -> float:
        """What all runs have cost, as far as it is known."""
        seconds = [record.get("cpu_seconds") for record in self.records.values()]
        known = [float(one) for one in seconds if one is not None]
        if not known:
            return 0.0
        return sum(known) / len(known) * len(seconds) / 3600  # the others cost as much
