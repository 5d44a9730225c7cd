"""What the benchmarks of training share: their options, the table of recipes, and the record."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from timing import Clock, Race, Ratio, race, ratio

from unremix.files.atomic_files import write_whole

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Options:
    """How to measure.

    Args:
        quick: Whether small, for a smoke test.
        rounds: Turns of each contender.
        clock: What counts as time.
        strict: Whether a missed target fails.
        data: The data, where there is a choice.
    """

    quick: bool
    rounds: int
    clock: Clock
    strict: bool
    data: str

    def race(self, contenders: Mapping[str, Callable[[], object]]) -> Race:
        """Time contenders in turns; only in full wait for other processes to be quiet."""
        patience = 0.0 if self.quick else 60.0
        return race(contenders, self.rounds, clock=self.clock, patience=patience)


def read_options(description: str, *, rounds: int, data: str = "") -> Options:
    """Parse the command line, and set the number of threads.

    Args:
        description: Its first line is shown by --help.
        rounds: Turns unless --rounds says otherwise.
        data: The data unless --data says otherwise; "" where there is no choice.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, for a smoke test")
    if data:
        parser.add_argument("--data", default=data)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time on one thread")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    given = parser.parse_args()
    torch.set_num_threads(1 if given.cpu_time else given.threads)
    return Options(
        given.quick,
        2 if given.quick else given.rounds,
        "cpu" if given.cpu_time else "wall",
        given.strict,
        given.data if data else "",
    )


def show_race(
    found: Race,
    title: str,
    *,
    reference: str,
    column: str,
    amount: Callable[[float], str],
    faster: bool = False,
) -> dict[str, Ratio]:
    """Print a line per contender with its ratio to the reference, and return the ratios.

    Args:
        found: The times.
        title: Of the table.
        reference: The contender that the others are compared with.
        column: What is shown of each.
        amount: Makes it of the median of the seconds.
        faster: Whether the ratio is that of speeds, not of times.
    """
    table = Table(title=title)
    for heading in ("", column, f"× {reference}, medians", "minima"):
        table.add_column(heading, justify="left" if not heading else "right")
    ratios = {}
    for name, seconds in found.seconds.items():
        pair = (seconds, found.seconds[reference])
        against = ratios[name] = ratio(*(reversed(pair) if faster else pair))
        table.add_row(
            name, amount(median(seconds)), f"{against.medians:.3f}", f"{against.minima:.3f}"
        )
    Console().print(table)
    return ratios


def show_shares(seconds: Mapping[str, float], whole: float) -> dict[str, float]:
    """Print what share of a step each stage takes, and return the shares."""
    shares = {name: value / whole for name, value in seconds.items()}
    table = Table("stage of UnReMix's step", "share")
    for name, share in shares.items():
        table.add_row(name, f"{share:.1%}")
    Console().print(table)
    return shares


def conclude(
    name: str,
    options: Options,
    found: Race,
    ratios: Mapping[str, Ratio],
    targets: Mapping[str, bool],
    *,
    settings: Mapping[str, object],
    further: Mapping[str, object] | None = None,
) -> int:
    """Say which targets hold, write the record, and return the exit code.

    Args:
        name: Of the benchmark, and of its file.
        options: How it was measured.
        found: The times.
        ratios: Of them.
        targets: Whether each holds.
        settings: What was measured.
        further: Other results.
    """
    console = Console()
    for target, holds in targets.items():
        console.print(f"{'✓' if holds else '✗'} {target}")
    console.print(f"{found.disturbed} calls were disturbed by other processes")
    report = {
        "machine": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
        "settings": {"rounds": options.rounds, "clock": options.clock, **settings},
        "seconds": found.seconds,
        "ratios": {contender: asdict(value) for contender, value in ratios.items()},
        **(further or {}),
        "targets": dict(targets),
        "disturbed": found.disturbed,
    }
    suffix = ("-quick" if options.quick else "") + ("-cpu-time" if options.clock == "cpu" else "")
    text = json.dumps(report, indent=1)
    write_whole(RESULTS / f"{name}{suffix}.json", lambda file: file.write_text(text))
    return int(options.strict and not all(targets.values()))
