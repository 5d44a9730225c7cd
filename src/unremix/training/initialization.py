"""Start from the encoder of another run, from a file of weights, or from a library's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from unremix.domains import find_domain
from unremix.domains.options import TrainConfig
from unremix.files.atomic_files import checked
from unremix.files.bounds import check_torch, shorten
from unremix.frameworks.base import Framework
from unremix.training.checkpoints import is_checkpoint, read_checkpoint, read_safetensors
from unremix.training.ready import ReadyEncoder

SHOWN = 4  # names listed in a message
PREFIXES = ("module.", "model.", "encoder.", "backbone.")
NESTED = ("state_dict", "model", "model_state", "teacher", "student")


def find_weights(source: str) -> Path:
    """The file that ``--init`` means.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "encoder.safetensors"
        for name in ("last", "previous"):  # of a run that was stopped early
            if not path.is_file():
                path = Path(source) / "checkpoints" / f"{name}.ckpt"
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a run, a state dict or a .safetensors file for --init, found none at {path}"
        )
    return path


def read_weights(source: str) -> dict[str, Tensor]:
    """Names and tensors of a run's encoder, a state dict or a .safetensors file.

    Raises:
        FileNotFoundError: If there is no such run or file.
        ValueError: If it holds no tensors.
    """
    path = find_weights(source)
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    try:
        if Path(source).is_dir() or is_checkpoint(path):
            found: Any = read_checkpoint(path, inside=path.parent.parent)
        else:
            check_torch()
            found = torch.load(checked(path), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own text for a pickle would have it loaded with its code.
        code = isinstance(error, UnpicklingError)
        why = "it holds more than tensors" if code else f"{type(error).__name__}: {shorten(error)}"
        raise ValueError(
            f"expected a state dict in {path}, got another file ({why}); save one with "
            "torch.save(model.state_dict(), path)"
        ) from error
    for name in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    tensors = {
        name: value
        for name, value in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise ValueError(f"expected names and tensors in {path}, got a {type(found).__name__}")
    return tensors


def _without_prefix(given: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors under the names that fit best once common prefixes are gone."""
    forms = [given]
    for form in forms:  # grows while prefixes are found
        for prefix in PREFIXES:
            inner = {n.removeprefix(prefix): t for n, t in form.items() if n.startswith(prefix)}
            if inner:
                forms.append(inner)
    forms += [{f"model.{name}": tensor for name, tensor in form.items()} for form in list(forms)]

    def fitting(form: dict[str, Tensor]) -> int:
        return sum(name in wanted and wanted[name].shape == t.shape for name, t in form.items())

    return max(forms, key=fitting)


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))


def load_matching(
    encoder: nn.Module, given: dict[str, Tensor], source: str, *, whole: bool = False
) -> str:
    """Load what has the name and the shape of one of the encoder's tensors.

    Args:
        encoder: The encoder; nothing changes if nothing fits.
        given: Names and tensors.
        source: What to call them in messages.
        whole: Whether every parameter has to be among them.

    Returns:
        What was loaded and what was not.

    Raises:
        ValueError: If no parameter fits, or not every one.
    """
    own = encoder.state_dict()
    given = _without_prefix(given, own)
    fits = {n: t for n, t in given.items() if n in own and own[n].shape == t.shape}
    weights = {name for name, _ in encoder.named_parameters()}
    differ = [
        f"{name} (expected {tuple(own[name].shape)}, got {tuple(tensor.shape)})"
        for name, tensor in given.items()
        if name in own and name not in fits
    ]
    if not weights & fits.keys():
        hint = _some(differ) if differ else f"its names are {_some(list(given))}"
        raise ValueError(
            f"expected weights for this encoder ({_some(sorted(weights))}) from {source}, "
            f"got none that fit: {hint}; choose the --backbone, --width, --stem and number of "
            "channels that they were made with"
        )
    missing = sorted(own.keys() - fits.keys())
    if whole and missing:
        raise ValueError(
            f"expected all weights of this encoder from {source}, got none that fit for "
            f"{_some(missing)}; name the network that the weights are of"
        )
    encoder.load_state_dict(fits, strict=False)
    said = f"{source}: loaded {len(weights & fits.keys())} of {len(weights)} parameters"
    left = sorted(weights - given.keys())
    unused = [name for name in given if name not in own]
    for label, names in (("other shape", differ), ("not in it", left), ("not used", unused)):
        if names:
            said += f"; {label}: {_some(names)}"
    return said


def initialize(
    model: Framework, config: TrainConfig, shape: Any, ready: ReadyEncoder | None = None
) -> str:
    """Set the encoder's weights to those that the options name, if they name any.

    Args:
        model: With random weights.
        config: The options.
        shape: What the data decided about the model.
        ready: The encoder that ``--encoder`` named.

    Returns:
        What was loaded and what was not; empty for a ready encoder, which is loaded whole.
    """
    domain, said = find_domain(config.domain), ""
    source = domain.starts_from(config)
    if ready is not None:
        model.encoder.load_state_dict(ready.network.state_dict())
    elif source is None:
        return said
    else:
        if domain.download is not None and source.partition(":")[0] in domain.prefixes:
            given = dict(domain.download(source, shape))
        else:
            given = read_weights(source)
        said = load_matching(model.encoder, given, f"--init {source}")
    follower = getattr(model, "key_encoder", None)
    if isinstance(follower, nn.Module):  # MoCo's begins as a copy
        follower.load_state_dict(model.encoder.state_dict())
    return said
