"""A run folder: what a training run leaves behind, and how to use it.

``config.yaml`` (complete, reloadable), ``metrics.csv``, ``checkpoints/last.ckpt``,
``encoder.safetensors``, ``evaluation.json``, ``report.html``, ``figures/``.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from unremix.config import TrainConfig
from unremix.data.image import ImageSet, decode_image
from unremix.encoders import make_encoder, projection_head
from unremix.files import write_whole
from unremix.frameworks.simclr import SimCLR
from unremix.recipes import LossOptions, find_recipe, make_loss
from unremix.views.image import SETTINGS, Augmentation, plain, settings_for


@dataclass(frozen=True)
class Shape:
    """What the data decided about the model.

    Args:
        channels: 1 or 3.
        image_size: Pixels per side.
        augmentation: Name of the setting in unremix.views.image.SETTINGS.
    """

    channels: int
    image_size: int
    augmentation: str

    @staticmethod
    def of(images: ImageSet, config: TrainConfig) -> Shape:
        """The shape of a data set under a configuration."""
        channels, size = images.images.channels, images.images.size
        name = config.augmentation
        if name == "auto":
            name = settings_for(channels, size)
        return Shape(channels, size, name)

    @property
    def settings(self) -> Augmentation:
        """The augmentation itself."""
        return SETTINGS[self.augmentation]


def build(config: TrainConfig, shape: Shape, *, gather: bool = False) -> SimCLR:
    """The model of a configuration, initialised from its seed; global randomness is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        encoder = make_encoder(
            config.backbone,
            channels=shape.channels,
            image_size=shape.image_size,
            width=config.width,
            stem=config.stem,
        )
        features = encoder.features
        assert isinstance(features, int)
        head = projection_head(
            features,
            hidden=config.head_hidden,
            output=config.head_output,
            batch_norm=config.head_batch_norm,
        )
    loss = make_loss(
        find_recipe(config.recipe), config.loss, temperature=config.temperature, gather=gather
    )
    model = SimCLR(encoder, head, loss)
    return model.double() if config.precision == "64-true" else model


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
    options = yaml.safe_load(text) or {}
    options["loss"] = LossOptions(**_tuples(LossOptions, options.get("loss") or {}))
    return TrainConfig(**_tuples(TrainConfig, options))


def _tuples(kind: type, options: dict[str, Any]) -> dict[str, Any]:
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
        self.shape = Shape(**json.loads((self.path / "shape.json").read_text()))

    @classmethod
    def unwritten(cls, path: Path, config: TrainConfig, shape: Shape) -> Run:
        """A run whose folder another process writes."""
        run = cls.__new__(cls)
        run.path, run.config, run.shape = path, config, shape
        return run

    @staticmethod
    def create(path: Path, config: TrainConfig, shape: Shape) -> Run:
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
        model = build(self.config, self.shape)
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

    def embed(self, items: list[str | Path | Image.Image] | Tensor | np.ndarray) -> Tensor:
        """Features of images, shape (n, F).

        Args:
            items: Paths or PIL images; or an array of uint8 images, shape (n, C, S, S).

        Raises:
            ValueError: For an array of another shape or dtype.
        """
        if isinstance(items, list):
            images = torch.stack(
                [decode_image(item, size=self.shape.image_size, channels=self.shape.channels)
                 for item in items]
            )  # fmt: skip
        else:
            images = torch.as_tensor(items)
        wanted = (self.shape.channels, self.shape.image_size, self.shape.image_size)
        if images.dtype != torch.uint8 or images.dim() != 4 or tuple(images.shape[1:]) != wanted:
            raise ValueError(
                f"expected uint8 images of shape (n, {', '.join(map(str, wanted))}), received "
                f"{images.dtype} of shape {tuple(images.shape)}"
            )
        return features_of(self.encoder(), images, self.shape.settings)


@torch.no_grad()
def features_of(
    encoder: nn.Module, images: Tensor, settings: Augmentation, *, batch: int = 512
) -> Tensor:
    """Features of uint8 images (n, C, S, S) in eval mode, shape (n, F), on the CPU."""
    parameter = next(encoder.parameters())
    device, dtype = parameter.device, parameter.dtype
    was_training = encoder.training
    encoder.eval()
    parts = [
        encoder(plain(part.to(device), settings).to(dtype)).float().cpu()
        for part in images.split(batch)
    ]
    encoder.train(was_training)
    return torch.cat(parts)
