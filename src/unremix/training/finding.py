"""Ready encoders and weights by name: of a library, a callable, a file or a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.suggestions import did_you_mean, needed_for
from unremix.domains import DOMAINS, find_domain
from unremix.domains.base import domain_of_encoder
from unremix.domains.extensions import file_of, whole_name
from unremix.domains.options import TrainConfig, is_code, make_config
from unremix.files.atomic_files import checked
from unremix.files.bounds import check_torch, shorten, sound
from unremix.files.onnx import import_onnxruntime
from unremix.frameworks.base import Framework
from unremix.training.building import embeds_in, outlined, refuse_other
from unremix.training.checkpoints import (
    DamagedError,
    check_finite,
    is_checkpoint,
    read_checkpoint,
    read_safetensors,
)
from unremix.training.export import from_texts
from unremix.training.ready import ReadyEncoder
from unremix.training.run import Run

SHOWN = 4  # names listed in a message
PREFIXES = ("module.", "model.", "encoder.", "backbone.")
NESTED = ("state_dict", "model", "model_state", "teacher", "student")


def encoder(name: str, *, domain: str | None = None, trust: bool = False) -> ReadyEncoder:
    """An encoder that is ready to embed, without a training run; nothing is downloaded.

    Args:
        name: ``LIBRARY:NAME`` (such as ``timm:resnet18``, ``sentence-transformers:NAME`` or
            ``transformers:FOLDER``), ``package.module:callable`` or ``file.py:callable``; those of
            images perhaps with ``:FILE``, a file of weights; an exported ``.onnx`` or
            ``.safetensors`` file; or a run's folder.
        domain: What kind of data it is for; by default what the name says.
        trust: Whether code may run that a run's folder names. A callable that ``name`` names
            itself runs.

    Returns:
        The encoder, which reads and prepares its inputs itself.

    Raises:
        FileNotFoundError: If its weights are not on this machine; it names the command that
            downloads them.
        ImportError: If a package is missing.
        ValueError: If there is no such encoder.

    Example:
        ``unremix.encoder("timm:resnet18").embed(["a.png", "b.png"])`` gives an array (2, 512).
    """
    kind = domain or domain_of_encoder(name)
    return ready_encoder(make_config({"encoder": name, "domain": kind}), trust=trust)


def ready_encoder(config: TrainConfig, *, trust: bool = False) -> ReadyEncoder:
    """The encoder that ``config.encoder`` names.

    Args:
        config: Its ``encoder`` and kind of data; options of the kind of data, such as an image
            size, take the place of the encoder's own.
        trust: Whether code may run that a run's folder names.
    """
    name = config.encoder
    assert name is not None
    if config.init is not None:
        raise ValueError(
            f"expected either --encoder or --init, got --encoder {name} and --init {config.init}; "
            "leave one of them out"
        )
    path = Path(name)
    if path.is_dir():
        run = Run(path, trust=trust)
        description = run.domain.describe(run.config, run.shape)
        return ReadyEncoder(str(path), run.config, run.shape, run.encoder(), description)
    if path.suffix in (".onnx", ".safetensors") and ":" not in name:
        return load_exported(path)
    domain, source = find_domain(config.domain), name.partition(":")[0]
    able = [one for one in DOMAINS.values() if one.ready is not None]
    hint = did_you_mean(source, [prefix for one in able for prefix in one.prefixes])
    code = is_code(name) and not (hint and file_of(source) is None)
    if domain.ready is None or not (code or (":" in name and source in domain.prefixes)):
        forms = [f"{prefix}:NAME" for one in able for prefix in one.prefixes]
        raise ValueError(
            f"expected {', '.join(forms)}, package.module:callable, file.py:callable, an exported "
            f".onnx or .safetensors file or a run's folder as an encoder of {domain.unit}, got "
            f"{name!r}{hint or '; check the name, or add --domain'}"
        )
    if code:
        config = replace(config, encoder=whole_name(name))
    with torch.random.fork_rng(devices=[]):
        found = domain.ready(config)
        network, _ = domain.build(found.config, found.shape)
    given = read_weights(str(found.weights)) if isinstance(found.weights, Path) else found.weights
    load_matching(network, dict(given), f"--encoder {name}", whole=True)
    return ReadyEncoder(name, found.config, found.shape, network.eval(), found.description)


def load_exported(path: str | Path) -> ReadyEncoder:
    """Load an encoder that ``unremix export`` wrote.

    Args:
        path: A ``.safetensors`` or ``.onnx`` file.

    Returns:
        The encoder, which reads and prepares its inputs itself.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is another kind of file, or says nothing about its preprocessing.

    Example:
        ``unremix.load_exported("encoder.onnx").embed(["a.png", "b.png"])`` gives an array (2, F).
    """
    path = Path(path)
    if path.is_dir() or path.suffix not in (".safetensors", ".onnx"):
        raise ValueError(
            f"expected a .safetensors or .onnx file, got {str(path)!r}; write one with "
            "'unremix export RUN', or load a run's folder with unremix.load"
        )
    if not path.exists():
        raise FileNotFoundError(f"expected an exported encoder at {str(path)!r}, found no file")
    try:
        read = _from_onnx if path.suffix == ".onnx" else _from_safetensors
        config, shape, network, facts = read(path)
        made = f"exported by {facts['made_by']}"
        return ReadyEncoder(str(path), config, shape, network.eval(), made, facts)
    except Exception as error:  # its facts and its weights may be anything
        if isinstance(error, ImportError | OSError) or str(error).startswith("expected "):
            raise
        raise ValueError(
            f"expected an encoder as 'unremix export' wrote it, got {path} "
            f"({type(error).__name__}: {shorten(error)}); write it again"
        ) from error


def _facts(path: Path, texts: dict[str, str] | None) -> dict[str, Any]:
    if not texts or "made_by" not in texts:
        raise ValueError(
            f"expected a file with its preprocessing as metadata, got {path} without; write it "
            "again with 'unremix export RUN'"
        )
    return from_texts(texts)


def _from_onnx(path: Path) -> tuple[TrainConfig, Any, nn.Module, dict[str, Any]]:
    with needed_for("an .onnx file"):
        onnxruntime = import_onnxruntime()
    checked(path)  # the library would wait for a pipe
    with sound("an ONNX file", path, "write it again"):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    facts = _facts(path, session.get_modelmeta().custom_metadata_map)
    domain = find_domain(facts["domain"])
    assert domain.exports is not None

    def forward(inputs: Tensor) -> Tensor:
        (features,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        return torch.from_numpy(features)

    network, shape = domain.exports.opaque(forward, facts, path)
    return TrainConfig(domain=domain.name), shape, network, facts


def _from_safetensors(path: Path) -> tuple[TrainConfig, Any, nn.Module, dict[str, Any]]:
    try:
        weights, texts = read_safetensors(path)
    except DamagedError as error:
        raise ValueError(f"expected a safetensors file, got another: {error}") from error
    facts = _facts(path, texts)
    check_finite(weights, str(path))
    domain = find_domain(facts["domain"])
    exports = domain.exports
    if exports is None:
        made = facts["encoder"]
        own = {name: made[name] for name in domain.architecture if name in made}  # an early file
        shape = domain.shape_from(facts["shape"])
    else:
        own, shape = exports.options(facts, path), exports.shape(facts, path)
    config = TrainConfig(domain=domain.name, own=domain.options(**own))

    def make() -> nn.Module:
        return domain.build(config, shape)[0]

    # Before memory is taken for it.
    refuse_other(outlined(make, "the sizes in its metadata"), weights, str(path))
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    with torch.random.fork_rng(devices=[]):
        encoder = make().to(dtype)
    encoder.load_state_dict(weights)
    return config, shape, embeds_in(facts.get("precision", "32-true"), encoder), facts


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
    elif domain.download is not None and source.partition(":")[0] in domain.prefixes:
        given = dict(domain.download(source, shape))
        said = load_matching(model.encoder, given, f"--init {source}")
    else:
        said = load_matching(model.encoder, read_weights(source), f"--init {source}")
    follower = getattr(model, "key_encoder", None)
    if isinstance(follower, nn.Module):  # MoCo's begins as a copy
        follower.load_state_dict(model.encoder.state_dict())
    return said
