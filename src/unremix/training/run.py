"""A run folder: what a training run leaves behind, and how to use it.

``config.yaml`` (complete, reloadable), ``metrics.csv``, ``checkpoints/last.ckpt``,
``encoder.safetensors``, ``evaluation.json``, ``report.html``, ``figures/``; ``warnings.txt`` if
anything looked wrong.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from unremix.data.atomic_files import write_whole
from unremix.domains import Domain, find_domain
from unremix.frameworks.base import Projecting
from unremix.training.config import TrainConfig

Layer = Literal["backbone", "head"]
"""Which output of a model is an embedding: the encoder's, or the projection head's behind it."""


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML shows no tags."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def config_to_yaml(config: TrainConfig) -> str:
    """A configuration as YAML."""
    return yaml.safe_dump(_plain(asdict(config)), sort_keys=False)


def config_from_yaml(text: str) -> TrainConfig:
    """A configuration from YAML.

    Raises:
        ValueError: For an option that does not exist.
    """
    return make_config(yaml.safe_load(text) or {})


def make_config(options: Mapping[str, Any]) -> TrainConfig:
    """A configuration from options by name; those of a section may be a mapping.

    Raises:
        ValueError: For an option that does not exist.

    Example:
        >>> make_config({"recipe": "hcl", "loss": {"hardness": 2.0}}).loss.hardness
        2.0
    """
    made = dict(options)
    for name, kind in get_type_hints(TrainConfig).items():
        section = made.get(name) or {}
        if is_dataclass(kind) and isinstance(section, Mapping):
            assert isinstance(kind, type)
            made[name] = kind(**_tuples(kind, section))
    return TrainConfig(**_tuples(TrainConfig, made))


def _tuples(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ValueError(
            f"expected options among {', '.join(sorted(names))}, received {', '.join(unknown)}"
        )
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }


class Run:
    """A run folder.

    Args:
        path: The folder.
        layer: What embeddings are made of: ``backbone``, the encoder's output, or ``head``, the
            projection head's output behind it, which the loss compares.

    Raises:
        FileNotFoundError: If it holds no ``config.yaml``.
        ValueError: For another layer.

    Example:
        ``unremix.load("runs/digits").embed(["a.png", "b.png"])`` gives an array (2, F).
    """

    layer: Layer = "backbone"

    def __init__(self, path: str | Path, *, layer: Layer = "backbone") -> None:
        if layer not in get_args(Layer):
            raise ValueError(f"expected the layer 'backbone' or 'head', got {layer!r}")
        self.path, self.layer = Path(path), layer
        file = self.path / "config.yaml"
        if not file.exists():
            raise FileNotFoundError(
                f"expected a run folder with config.yaml, received {str(self.path)!r}; "
                "give the folder that 'unremix train' named at its end"
            )
        self.config = config_from_yaml(file.read_text())
        shape = json.loads((self.path / "shape.json").read_text())
        self.shape: Any = self.domain.shape_from(shape)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def domain(self) -> Domain:
        """What kind of data it is about."""
        return find_domain(self.config.domain)

    @classmethod
    def unwritten(cls, path: Path, config: TrainConfig, shape: Any) -> Run:
        """A run whose folder another process writes."""
        run = cls.__new__(cls)
        run.path, run.config, run.shape = path, config, shape
        return run

    @staticmethod
    def create(path: Path, config: TrainConfig, shape: Any) -> Run:
        """Make the folder of a new run."""
        path.mkdir(parents=True, exist_ok=True)
        text = config_to_yaml(replace(config, resume=None))
        write_whole(path / "config.yaml", lambda file: file.write_text(text))
        write_whole(path / "shape.json", lambda file: file.write_text(json.dumps(asdict(shape))))
        return Run(path)

    @property
    def checkpoint(self) -> Path:
        """The latest checkpoint."""
        return self.path / "checkpoints" / "last.ckpt"

    def load_checkpoint(self) -> dict[str, Any]:
        """The latest checkpoint's contents.

        Raises:
            FileNotFoundError: If there is none.
        """
        if not self.checkpoint.exists():
            raise FileNotFoundError(
                f"expected a checkpoint at {self.checkpoint}, found none; the run was stopped "
                "before its first one: start it anew"
            )
        state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        return state

    def encoder(self, *, trained: bool = True) -> nn.Module:
        """The encoder in eval mode, with its head if that is the run's layer.

        Args:
            trained: False gives it as it was initialized.

        Raises:
            ValueError: If the model has no head to use.
        """
        model = self.domain.build(self.config, self.shape)
        if trained:
            model.load_state_dict(self.load_checkpoint()["model"])
        if self.layer == "backbone":
            return model.encoder.eval()
        if not isinstance(model, Projecting):
            raise ValueError(
                f"expected a model with a projection head for the layer 'head', got "
                f"{type(model).__name__}, which has none; use the layer 'backbone'"
            )
        return nn.Sequential(model.encoder, model.head).eval()

    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv."""
        file = self.path / "metrics.csv"
        if not file.exists():
            return []
        with file.open(newline="") as lines:
            return [
                {name: float(value) for name, value in row.items() if value != ""}
                for row in csv.DictReader(lines)
            ]

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The evaluation card, if it has been written."""
        file = self.path / "evaluation.json"
        if not file.exists():
            return None
        card: dict[str, Any] = json.loads(file.read_text())
        return card

    @property
    def warnings(self) -> list[str]:
        """What looked wrong: files that were left out, and what was said during training."""
        file = self.path / "warnings.txt"
        return file.read_text().splitlines() if file.exists() else []

    def warn(self, message: str) -> None:
        """Keep a warning, once."""
        line = " ".join(message.split())
        if line not in self.warnings:
            text = "\n".join([*self.warnings, line]) + "\n"
            write_whole(self.path / "warnings.txt", lambda file: file.write_text(text))

    def embed(self, items: Any, *, normalize: bool = False) -> Tensor:
        """Embeddings of items, shape (n, F).

        Args:
            items: Pictures: a list of paths, PIL images or arrays, or one array of shape
                (n, C, H, W) or (n, H, W, C), see :func:`unremix.data.image.items.read_items`.
                Graphs: a list of ``torch_geometric.data.Data``. Sentences: a list of strings.
            normalize: Whether to scale each embedding to length 1.

        Raises:
            ValueError: For items the encoder cannot take.
        """
        embeddings = self.domain.embed(self, items)
        return F.normalize(embeddings, dim=1) if normalize else embeddings
