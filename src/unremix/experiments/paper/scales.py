"""How large an experiment is: ``scales.yaml``, data sets, options and seeds for each scale."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from unremix.console.values import make_options, read_yaml
from unremix.files.atomic_files import write_bytes
from unremix.training.settings import find_config

Kind = Literal["images", "imagenet", "sentences", "graphs"]
ScaleName = Literal["smoke", "cpu", "paper"]
Options = Mapping[str, Any]


def read_data(name: str) -> Any:
    """What one of this folder's YAML files says.

    Example:
        >>> list(read_data("scales"))
        ['smoke', 'cpu', 'paper']
    """
    return read_yaml((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def _shipped(name: str) -> dict[str, Any]:
    """The options of a setting that ships with the package, without its data."""
    options: dict[str, Any] = read_yaml(Path(find_config(name)).read_text())
    return {option: value for option, value in options.items() if option != "data"}


@dataclass(frozen=True)
class Source:
    """A data set that takes the place of one of the paper's."""

    paper: str  # the paper's data set; empty for data of one's own
    data: str  # what ``--data`` takes
    title: str  # what to call it in tables and files; no two of an experiment have the same
    where: str = ""  # where to get it
    config: str = ""  # the shipped setting whose options belong to it
    generated: bool = False  # whether :func:`write_shards` makes it
    comparable: bool = True  # whether accuracies on it are of the paper's own test data

    @property
    def slug(self) -> str:
        """The title in a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def options(self) -> Options:
        """Options of a run that belong to it."""
        return _shipped(self.config) if self.config else {}


@dataclass(frozen=True)
class Scale:
    """The size of all experiments of a kind."""

    seeds: int  # of every row
    sources: tuple[Source, ...] = ()
    options: Options = field(default_factory=dict)  # of every run


def _scale(values: Mapping[str, Any], prefix: str) -> Scale:
    sources = [make_options(Source, one, f"{prefix}sources.") for one in values.get("sources", ())]
    return make_options(Scale, {**values, "sources": sources}, prefix)


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


SCALES: Mapping[ScaleName, Mapping[Kind, Scale]] = {
    scale: {kind: _scale(values, f"{scale}.{kind}.") for kind, values in kinds.items()}
    for scale, kinds in read_data("scales").items()
}
