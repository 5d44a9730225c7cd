"""The folder of a comparison, where all of its state is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from unremix.experiments.plan import Job
from unremix.files.atomic_files import check_name, read_text, refuse_link
from unremix.files.bounds import shorten
from unremix.report.comparison import read_comparison
from unremix.training.run import Run

ENDINGS = (".tar", ".gz", ".tgz", ".zip", ".npz", ".jsonl", ".txt")  # of data in one file
TAIL = 6  # lines of a failed run's log that are shown
BEGUN = "$ "  # before the command, in a log


def path_for(data: str) -> Path:
    """Where a comparison on some data is by default: in a folder of their name, without endings.

    Example:
        >>> path_for("downloads/cifar-10-python.tar.gz").as_posix()
        'comparisons/cifar-10-python'
    """
    path = Path(data).resolve()
    while path.suffix.lower() in ENDINGS:
        path = path.with_suffix("")
    return Path("comparisons") / path.name


class Folder:
    """The folder of a comparison."""

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

    def earlier(self) -> dict[str, Any] | None:
        """What comparison.yaml says, if there is one.

        Raises:
            ValueError: If the folder is that of something else.
        """
        file = self.path / "comparison.yaml"
        if file.exists():
            options = read_comparison(self.path)
            for name, kind in (("seeds", int), ("threads", int), ("train", dict)):
                if not isinstance(options.get(name), kind):
                    raise ValueError(
                        f"expected {name} as unremix wrote it in {file}, got "
                        f"{shorten(options.get(name))}; restore a copy, or choose another --output"
                    )
            return options
        strange = [entry.name for entry in self.path.iterdir() if entry.name != ".locks"]
        if strange:
            raise ValueError(
                f"expected a new folder or one of a comparison, got {str(self.path)!r} with "
                f"{strange[0]!r} and no comparison.yaml; choose another --output"
            )
        return None
