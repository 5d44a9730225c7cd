"""Images per CPU-second: ``unremix train`` against lightly's SimCLR example and solo-learn's loop.

    python benchmarks/training.py [--peers .venv-peers/bin/python] [--rounds 3] [--width 16]
        [--images 2048] [--workers 1 2] [--quick]

How to read the table. Each contender trains SimCLR on the same pictures in a process of its own,
with one thread and, the others, one or two workers beside it (``unremix train`` has none), at its
defaults: ``unremix train`` in what ``--precision auto`` is here, the others in 32 bits; and the
others in bfloat16 (autocast, Lightning's bf16-mixed) as well. It
trains for one epoch and for three; the difference of the processor time that both took, its
workers' included, is what two epochs cost, so that imports and evaluation do not count. Contenders
take turns; medians are shown. All numbers go to benchmarks/results/training.json.

The other libraries are in an environment of their own: ``make setup-peers``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from measuring import Options, conclude, show_race
from timing import Race

HERE = Path(__file__).parent
AT_DEFAULTS = {16: 2.2, 64: 2.0}  # times the others' speed, by width
IN_BFLOAT16 = {16: 1.3, 64: 1.15}
MIXED = ", bf16"
FEW, MANY = 1, 3
"""Epochs of the two trainings whose difference counts."""
SIZE = 32
LOOPS = {"lightly": "lightly", "solo-learn's loop": "lightning"}


def contenders(workers: Sequence[int]) -> list[tuple[str, str, int]]:
    """Name, loop and workers of each; ``unremix train`` has no loop of another library.

    The others compute in 32 bits by default, and in bfloat16 where their name ends so.
    """
    return [("unremix train", "", 0)] + [
        (f"{name}, {count} worker{'s' if count > 1 else ''}{numbers}", loop, count)
        for name, loop in LOOPS.items()
        for count in workers
        for numbers in ("", MIXED)
    ]


def pictures(into: Path, count: int) -> Path:
    """A folder per class with ``count`` pictures of CIFAR-10 in all."""
    folder = Path(os.environ.get("UNREMIX_DATA", "."))
    archive = folder / "cifar10-images.zip"
    if not archive.exists():
        raise SystemExit(
            f"expected cifar10-images.zip in the folder that UNREMIX_DATA names, got {folder}"
        )
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if name.startswith("train/")]
        opened.extractall(into, names[:: max(1, len(names) // count)][:count])
    return into / "train"


def processor_seconds(command: list[str]) -> float:
    """What a command and all that it starts take on the processor."""
    before = os.times()
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout.decode()[-2000:]}")
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def ours(data: Path, runs: Path, epochs: int, width: int, batch_size: int) -> list[str]:
    """The command that trains with this library."""
    options = {
        "data": data,
        "recipe": "simclr",
        "backbone": "resnet18",
        "width": width,
        "image_size": SIZE,
        "batch_size": batch_size,
        "epochs": epochs,
        "evaluate_every": MANY,
        "probe_epochs": 1,
        "accelerator": "cpu",
        "threads": 1,
        "runs": runs,
        "progress": "false",
    }
    named = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "unremix", "train", *named]


def theirs(
    python: Path, loop: str, workers: int, data: Path, epochs: int, width: int, batch_size: int,
    *, mixed: bool,
) -> list[str]:  # fmt: skip
    """The command that trains with another one."""
    options = {
        "data": data,
        "epochs": epochs,
        "workers": workers,
        "width": width,
        "size": SIZE,
        "batch_size": batch_size,
        "threads": 1,
    }
    named = [f"--{name}={value}" for name, value in options.items()] + ["--bf16"] * mixed
    return [str(python), str(HERE / "peer_training.py"), loop, *named]


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv-peers/bin/python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--images", type=int, default=2048, help="of CIFAR-10")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of the others")
    parser.add_argument("--quick", action="store_true", help="small, for a smoke test")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    given = parser.parse_args()
    if not given.peers.exists():
        raise SystemExit(f"expected the other libraries in {given.peers}; run make setup-peers")
    count, batch_size, width = (128, 32, 4) if given.quick else (given.images, 128, given.width)
    rounds = 1 if given.quick else given.rounds
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = pictures(Path(folder), count)
        for _ in range(rounds):
            for name, loop, workers in contenders(given.workers):
                took = {}
                for epochs in (FEW, MANY):
                    if loop:
                        command = theirs(
                            given.peers, loop, workers, data, epochs, width, batch_size,
                            mixed=name.endswith(MIXED),
                        )  # fmt: skip
                    else:
                        command = ours(data, Path(folder) / "runs", epochs, width, batch_size)
                    took[epochs] = processor_seconds(command)
                seconds.setdefault(name, []).append(took[MANY] - took[FEW])
    found = Race(seconds, 0)
    images = count * (MANY - FEW)
    ratios = show_race(
        found,
        f"SimCLR, ResNet-18 of width {width}, {SIZE} px, batch {batch_size}",
        reference=contenders(given.workers)[1][0],
        column="images per CPU-second",
        amount=lambda spent: f"{images / spent:.0f}",
        faster=True,
    )
    speed = ratios["unremix train"].medians
    targets = {}
    for name, aims in (("", AT_DEFAULTS), (MIXED, IN_BFLOAT16)):
        others = [each for each, loop, _ in contenders(given.workers) if loop]
        fastest = max(ratios[each].medians for each in others if each.endswith(MIXED) == bool(name))
        if (least := aims.get(width)) is not None:
            targets[f"at least {least} × the others{name or ', at defaults'}"] = (
                speed >= least * fastest
            )
    options = Options(given.quick, rounds, "cpu", given.strict, "cifar10-images.zip")
    name = "training" if width == 16 else f"training-width-{width}"
    settings = {"width": width, "size": SIZE, "batch": batch_size, "images": count}
    return conclude(name, options, found, ratios, targets, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
