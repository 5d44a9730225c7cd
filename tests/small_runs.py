"""Tiny runs of each kind of data, and names that try to be something else than text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import unremix
from unremix.domains.options import TrainConfig
from unremix.report.storage import Stored
from unremix.training.run import Run

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"quotes\" and 'others' & <b>bold</b>",
    "x" * 5000,
    "مرحبا بالعالم \u202e reversed",
    "🦊🐻‍❄️ emoji",
    "--><!-- <!--<script>",
    "=HYPERLINK(1)",
]

# A run of an experiment, for which most tests have a stand-in.
TINY = TrainConfig(
    limit=128, batch_size=32, epochs=1, probe_epochs=1, head_hidden=(16,), head_output=8,
    accelerator="cpu", threads=1,
)  # fmt: skip

COMMON: dict[str, Any] = {"epochs": 1, "progress": False, "accelerator": "cpu", "threads": 1}


def small(folder: Path, **options: Any) -> TrainConfig:
    """A run on handwritten digits, named ``run``."""
    config = TrainConfig(
        runs=str(folder), name="run", limit=96, batch_size=32, epochs=3, probe_epochs=0,
        head_hidden=(16,), head_output=8, progress=False, accelerator="cpu", checkpoint_every=2,
        threads=1,
    )  # fmt: skip
    return replace(config, **options)


def digits(folder: Path, **options: Any) -> Run:
    """Handwritten digits, with labels."""
    chosen = {"name": "digits", "limit": 96, "batch_size": 32, "head_hidden": (16,),
              "head_output": 8, "recipe": "unremix-simclr", "probe_epochs": 0}  # fmt: skip
    return unremix.train(runs=str(folder), **{**COMMON, **chosen, **options})


def unlabeled(folder: Path) -> Run:
    """Pictures without labels, two of them the same."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (48, 40, 40, 3), dtype=np.uint8)
    images[7] = images[3]
    np.savez(folder / "noise.npz", images=images)
    return unremix.train(
        data=str(folder / "noise.npz"), runs=str(folder), name="unlabeled", batch_size=16,
        head_hidden=(16,), head_output=8, probe_epochs=0, **COMMON,
    )  # fmt: skip


def graphs(folder: Path, recipe: str = "graphcl-unremix") -> Run:
    """Rings with tails, whose names, classes and node labels are hostile."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        ring = 3 + number % 4
        tail = int(rng.integers(1, 6))
        edges = [[i, (i + 1) % ring] for i in range(ring)]
        edges += [[ring + i - 1 if i else 0, ring + i] for i in range(tail)]
        rows.append(
            {
                "name": HOSTILE[number][:1000] if number < len(HOSTILE) else f"ring {number}",
                "label": HOSTILE[number % 2],
                "edges": edges,
                "node_labels": [HOSTILE[node % 3] for node in range(ring + tail)],
            }
        )
    (folder / "rings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return unremix.train(
        data=str(folder / "rings.jsonl"), domain="graph", recipe=recipe, runs=str(folder),
        name=recipe, batch_size=16, graph={"folds": 2, "repeats": 1}, **COMMON,
    )  # fmt: skip


def sentences(folder: Path) -> Run:
    """A text without topics, some of its lines hostile."""
    words = ["the", "cat", "sat", "on", "mat", "two", "dogs", "ran", "after", "one", "red", "ball"]
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, 7)) for _ in range(90)]
    for number, line in enumerate(HOSTILE):
        lines[5 + 9 * number] = f"cat {line}" if line != "x" * 5000 else "cat " + "dog " * 1250
    text = "\n".join(
        f"{line}\n" if number % 12 == 11 else line for number, line in enumerate(lines)
    )
    (folder / "text.txt").write_text(text)
    return unremix.train(
        data=str(folder / "text.txt"), recipe="quickthought-unremix", runs=str(folder),
        name="sentences", batch_size=32,
        sentence={"units": 8, "words": 8, "senteval": "none", "format": "lines"}, **COMMON,
    )  # fmt: skip


def with_classes(stored: Stored, count: int, folder: Path) -> Path:
    """Gives a run folder a page's data with ten thousand items of so many classes."""
    about, arrays, items = dict(stored.about), dict(stored.arrays), 10_000
    known, rng = len(about["names"]), np.random.default_rng(0)
    about["names"] = [f"item {number}" for number in range(items)]
    about["labels"] = [number % count for number in range(items)]
    about["classes"] = [f"a class with the number {number}" for number in range(count)]
    arrays["predicted"] = rng.integers(0, count, items).astype(np.int32)
    arrays["positions"] = rng.random((items, 2), np.float32)
    arrays["neighbors"] = rng.integers(0, known, (items, 8)).astype(np.uint32)
    arrays["cosines"] = rng.random((items, 8), np.float32)
    arrays["embeddings"] = np.zeros((items, 2), np.float16)
    Stored(about, arrays).write(folder)
    return folder


def embedded(folder: Path, count: int = 120, *, labeled: bool = True, pictures: bool = True) -> str:
    """A file of embeddings: four classes, hostile names, three pairs, a wrong label."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    rows = rng.normal(size=(4, 32))[labels] + 0.7 * rng.normal(size=(count, 32))
    for copy, original in ((40, 4), (41, 5), (42, 6)):
        rows[copy] = rows[original] + 0.02 * rng.normal(size=32)
        labels[copy] = labels[original]
    labels[50] = (labels[50] + 1) % 4  # its neighbors know better
    names = [f"{'wxyz'[labels[n]]}/{n:04}.png" for n in range(count)]
    if pictures:
        for n, name in enumerate(names):
            path = folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            color = np.array(
                [(220, 60, 60), (60, 160, 60), (60, 60, 220), (200, 180, 40)][labels[n]]
            )
            pixels = np.clip(color + rng.integers(-40, 40, (24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(path)
    else:
        names[: len(HOSTILE)] = HOSTILE
    arrays = {"embeddings": rows.astype(np.float32), "names": np.array(names)}
    if labeled:
        classes = np.array([HOSTILE[1], "x", "y", "z"])
        arrays |= {"labels": labels, "class_names": classes[labels]}
    np.savez(folder / "x.npz", **arrays)
    return str(folder / "x.npz")
