"""A run folder: what a training run leaves behind, and how to use it.

``config.yaml`` (complete, reloadable), ``metrics.csv``, ``checkpoints/last.ckpt``,
``encoder.safetensors``, ``evaluation.json``, ``report.html``, ``figures/``; ``warnings.txt`` if
anything looked wrong.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix.data.atomic_files import write_whole
from unremix.domains import Domain, find_domain
from unremix.training.config import TrainConfig, config_from_yaml, config_to_yaml


class Run:
    """A run folder.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If it holds no ``config.yaml``.

    Example:
        ``unremix.load("runs/digits").embed(["a.png", "b.png"])`` gives an array (2, F).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
        """The encoder, in eval mode; ``trained=False`` gives it as it was initialised."""
        model = self.domain.build(self.config, self.shape)
        if trained:
            model.load_state_dict(self.load_checkpoint()["model"])
        return model.encoder.eval()

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

    def embed(self, items: Any) -> Tensor:
        """Features of items, shape (n, F).

        Args:
            items: Images: paths, PIL images, or an array of uint8 images, shape (n, C, S, S).

        Raises:
            ValueError: For items the encoder cannot take.
        """
        return self.domain.embed(self, items)
