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
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unremix
from unremix.data.atomic_files import write_whole
from unremix.domains import Domain, find_domain
from unremix.frameworks.base import Projecting
from unremix.training.config import TrainConfig, config_from_yaml, config_to_yaml

WRITER = "# unremix "  # and the version, in the first line of config.yaml

Layer = Literal["backbone", "head"]
"""Which output of a model is an embedding: the encoder's, or the projection head's behind it."""


def _writer(text: str) -> str:
    """Which version wrote a config.yaml."""
    first = text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith(WRITER) else "an early version"


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
        text = file.read_text()
        try:
            self.config = config_from_yaml(text)
            shape = json.loads((self.path / "shape.json").read_text())
            self.shape: Any = self.domain.shape_from(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"expected a run folder of unremix {unremix.__version__}, got {str(self.path)!r} "
                f"of {_writer(text)} ({error}); use that version, or train a new run"
            ) from error
        self.trained: nn.Module | None = None

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
        run.path, run.config, run.shape, run.trained = path, config, shape, None
        return run

    @staticmethod
    def create(path: Path, config: TrainConfig, shape: Any) -> Run:
        """Make the folder of a new run."""
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / "shape.json", lambda file: file.write_text(json.dumps(asdict(shape))))
        Run.unwritten(path, config, shape).write_config()
        return Run(path)

    def write_config(self) -> None:
        """Write config.yaml."""
        text = f"{WRITER}{unremix.__version__}\n{config_to_yaml(replace(self.config, resume=None))}"
        write_whole(self.path / "config.yaml", lambda file: file.write_text(text))

    def extend(self, config: TrainConfig, *, write: bool) -> None:
        """Take over options that may change when a run is resumed, such as ``epochs``.

        Args:
            config: The run's options, some of them changed.
            write: Whether this process writes the folder.
        """
        earlier, self.config = self.config, replace(config, progress=self.config.progress)
        if write and self.config != earlier:
            self.write_config()
            # What was measured at the earlier end no longer holds.
            (self.path / "evaluation.json").unlink(missing_ok=True)

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
                f"expected a checkpoint at {self.checkpoint}, found none; the run ended "
                "before its first one: start it again with the same --name and options"
            )
        state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        return state

    def restore(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load a checkpoint's model.

        Raises:
            ValueError: If it is the checkpoint of another model.
        """
        try:
            model.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            writer = f"unremix {state['version']}" if "version" in state else "an early version"
            raise ValueError(
                f"expected a checkpoint of this run's model at {self.checkpoint}, got another, "
                f"written by {writer} (this is {unremix.__version__}); use that version, or train "
                "a new run"
            ) from error

    def encoder(self, *, trained: bool = True) -> nn.Module:
        """The encoder in eval mode, with its head if that is the run's layer.

        Args:
            trained: False gives it as it was initialized.

        Raises:
            ValueError: If the model has no head to use.
        """
        if trained and self.trained is not None and self.layer == "backbone":
            return self.trained
        model = self.domain.build(self.config, self.shape)
        if trained:
            self.restore(model, self.load_checkpoint())
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
