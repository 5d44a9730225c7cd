"""Windows of time series as a kind of data for unremix, in one file outside of it.

``pip install examples/time_series``, then ``unremix train --domain series``. Without installing it:
``unremix train --imports unremix_series.py --domain series``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unremix.console.values import bounded
from unremix.domains import Domain, register
from unremix.domains.arrays import Samples, Splits, splits_of
from unremix.domains.base import Items, Trained, evaluating
from unremix.domains.labeled import Labeled
from unremix.domains.options import TrainConfig, make_head
from unremix.files.fingerprint import fingerprint
from unremix.files.locate import locate
from unremix.files.npz import read_arrays
from unremix.frameworks.randomness import VIEWS, keys, uniforms
from unremix.frameworks.recipe import Recipe

SIDE = 64  # pixels of a thumbnail
ACCEPTED = (
    "accepted are 'waves'; .npy with windows (n, channels, steps); .npz with x (and y), or x_train "
    "(y_train, x_test, y_test); .csv with a named column per channel and a row per time step"
)


@dataclass(frozen=True)
class SeriesOptions:
    """Options for time series.

    Args:
        width: Channels of the encoder's first layer; the last has four times as many.
        window: Time steps of the windows that a .csv file is cut into.
        crop: The shortest stretch of a window that a view shows, as a share of it.
        noise: The largest noise of a view, in standard deviations; also its change of scale.
        hide: The longest stretch of a view that is replaced by the mean, as a share of it.
    """

    width: int = bounded(32, least=1, most=4096)
    window: int = bounded(128, least=2)
    crop: float = bounded(0.5, above=0, most=1)
    noise: float = bounded(0.3, least=0)
    hide: float = bounded(0.3, least=0, below=1)


@dataclass(frozen=True)
class SeriesShape:
    """What the data decide about the model."""

    channels: int


def waves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy waves of random phase and pitch, shape (count, 1, 128), and their classes."""
    rng, kind = np.random.default_rng(seed), np.arange(count) % 4
    pitch, phase = rng.uniform((2, 0), (5, 2 * np.pi), (count, 2)).T[:, :, None]
    time = np.linspace(0, 1, 128)
    sine, chirp = (np.sin(2 * np.pi * pitch * t + phase) for t in (time, time * (0.5 + time)))
    shapes = np.stack([sine, 2 / np.pi * np.arcsin(sine), np.sign(sine), chirp])
    x = shapes[kind, np.arange(count)] + 0.3 * rng.normal(size=(count, 128))
    return x[:, None], np.array(["sine", "triangle", "square", "chirp"])[kind]


def read(source: str, window: int) -> dict[str, np.ndarray]:
    """The arrays of a source."""
    if source == "waves":
        (x, y), (x_test, y_test) = waves(600, 0), waves(300, 1)
        return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    path = locate(source, ACCEPTED)
    if path.suffix == ".csv":
        rows = np.genfromtxt(path, delimiter=",", skip_header=1, ndmin=2)
        whole = rows[: len(rows) // window * window]
        return {"x": whole.reshape(-1, window, rows.shape[1]).swapaxes(1, 2)}
    if path.suffix == ".npy":
        return {"x": np.load(path, allow_pickle=False)}
    if path.suffix != ".npz":
        raise ValueError(f"expected time series, got {path}; {ACCEPTED}")
    return read_arrays(path)


def windows_of(name: str, arrays: Any, limit: int | None, channels: int | None) -> Splits:
    """Arrays as splits, at most so many windows of each, and of so many channels."""
    found = splits_of(name.rpartition("/")[2], arrays, limit=limit)
    shape = tuple(found.train.x.shape)
    if len(shape) != 3 or channels not in (None, shape[1]):
        wanted = f"windows (n, {channels or 'channels'}, steps)"
        raise ValueError(f"expected {wanted} in {name}, got shape {shape}; {ACCEPTED}")
    return found


def load(config: TrainConfig, data: str | None = None, channels: int | None = None) -> Splits:
    """The windows of a run, or others with as many channels."""
    source, limit = (config.data, config.limit) if data is None else (data, None)
    return windows_of(source, read(source, config.own.window), limit, channels)


def augment(x: Tensor, key: Tensor, options: SeriesOptions) -> Tensor:
    """A view of windows (n, C, L): a stretch of each, scaled, with noise, partly hidden."""
    channels, steps = x.shape[1:]
    u = uniforms(key, 4 + channels + channels * steps)[:, :, None]
    place = torch.linspace(0, 1, steps, device=x.device)
    share, hidden = 1 - (1 - options.crop) * u[:, :1], options.hide * u[:, 1:2]
    at = (u[:, 2:3] * (1 - share) + share * place) * (steps - 1)  # what is shown, (n, 1, L)
    left = at.long().clamp(max=steps - 2).expand_as(x)
    view = torch.lerp(x.gather(2, left), x.gather(2, left + 1), at - left)
    view = view * (1 + options.noise * (2 * u[:, 4 : 4 + channels] - 1))
    noise = options.noise * (2 * u[:, 4 + channels :].reshape(x.shape) - 1)
    passed = place - u[:, 3:4] * (1 - hidden)  # since the hidden stretch began
    mean = x.mean(2, keepdim=True)
    view = torch.where((passed >= 0) & (passed < hidden), mean, view)
    return view + noise * x.std(2, keepdim=True)


def views(x, indices, model, config, shape, epoch, streams=VIEWS):  # as Domain has them
    """Views of windows (n, C, L), one for each random stream."""
    seeds = (keys(config.seed, epoch, indices, stream) for stream in streams)
    return tuple(augment(x, key, config.own).to(model.dtype) for key in seeds)


def build(config: TrainConfig, shape: SeriesShape) -> tuple[nn.Module, nn.Sequential]:
    """Encoder, from windows (n, C, L) to features (n, 4 width), and head."""
    channels, layers = shape.channels, [nn.BatchNorm1d(shape.channels)]
    for out in (config.own.width * factor for factor in (1, 2, 4)):
        layers += [nn.Conv1d(channels, out, 7, 2, 3), nn.BatchNorm1d(out), nn.ReLU()]
        channels = out
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    encoder.features = channels
    return encoder, make_head(encoder, config)


def encode(encoder: nn.Module | None, windows: Samples, shape: SeriesShape) -> Tensor:
    """Features of windows, shape (n, F); without an encoder, their numbers."""
    if encoder is None:
        return windows.x.flatten(1)
    with evaluating(encoder) as (device, dtype):
        parts = [encoder(x.to(device, dtype)).float().cpu() for x in windows.x.split(512)]
    return torch.cat(parts)


def embed(run: Trained, items: Any) -> Tensor:
    """Features of windows in memory, shape (n, F)."""
    found = windows_of("the items", {"x": np.asarray(items)}, None, run.shape.channels)
    return encode(run.encoder(), found.train, run.shape)


def draw(x: Tensor) -> Tensor:
    """Windows (n, C, L) as curves, dark on light, uint8, shape (n, 1, S, S)."""
    x = nn.functional.interpolate(x, SIDE + 1, mode="linear")
    low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
    y = ((high - x) / (high - low).clamp(min=1e-6) * (SIDE - 3) + 1)[:, :, None]  # (n, C, 1, S + 1)
    row, ends = torch.arange(SIDE)[:, None], (y[..., :-1], y[..., 1:])
    dark = (row >= torch.minimum(*ends) - 0.75) & (row <= torch.maximum(*ends) + 0.75)
    return 255 - 215 * dark.any(1, keepdim=True).byte()


LABELED = Labeled(
    encode=encode, draw=draw, layer="encoder's output, before the head; windows not augmented"
)
DOMAIN = Domain(
    name="series",
    unit="windows",
    reads="the embedded waves; .npy, .npz or .csv files of time series",
    items=Items(called="windows", example="[[[0.0] * 128]]", accepted="of channels of numbers"),
    options=SeriesOptions,
    section="series",
    defaults={"data": "waves", "recipe": "series-unremix", "epochs": 20},
    uses=frozenset({"head_hidden", "head_output", "head_batch_norm", "probe_epochs"}),
    embedded={"waves": {}},
    sizes="series.width",
    recipes=(
        Recipe("series-simclr", "SimCLR on windows of time series"),
        Recipe("series-unremix", "UnReMix on windows of time series", weighting="unremix"),
    ),
    parts={"framework": ("simclr",)},
    load=load,
    load_for=lambda run, data: load(run.config, data, run.shape.channels),
    shape=lambda data, config: SeriesShape(data.train.x.shape[1]),
    shape_from=lambda values: SeriesShape(**values),
    fingerprint=lambda data: fingerprint([data.train.x, data.train.labels]),
    build=build,
    describe=lambda config, shape: f"CNN of width {config.own.width}, {shape.channels} channels",
    fetch=lambda data, indices: data.train.x[indices],
    views=views,
    embed=embed,
    features=LABELED.features,
    architecture=("width",),
    observe=LABELED.observe,
    evaluate=LABELED.evaluate,
    sample=LABELED.sample,
    thumbnails=lambda data, rows: dict(zip(rows, draw(data.x[list(rows)]), strict=True)),
)
register(DOMAIN)
