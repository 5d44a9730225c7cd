"""Ready encoders by name: of a library, a callable, an exported file or a run's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unremix.console.suggestions import Mistyped, did_you_mean, needed_for
from unremix.domains import DOMAINS, find_domain
from unremix.domains.base import domain_of_encoder
from unremix.domains.extensions import file_of, whole_name
from unremix.domains.options import TrainConfig, is_code, make_config
from unremix.files.atomic_files import checked
from unremix.files.bounds import shorten, sound
from unremix.files.onnx import import_onnxruntime
from unremix.training.building import embeds_in, outlined, refuse_other
from unremix.training.checkpoints import DamagedError, check_finite, read_safetensors
from unremix.training.export import from_texts
from unremix.training.initialization import load_matching, read_weights
from unremix.training.ready import ReadyEncoder
from unremix.training.run import Layer, Run


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


def opened(
    run: str | None,
    ready: str | None,
    *,
    domain: str | None = None,
    layer: Layer = "backbone",
    trust: bool = False,
) -> Run | ReadyEncoder:
    """A run, or a ready encoder in its place, as a command names them.

    Raises:
        Mistyped: If both were named, or none.
    """
    if run is not None and ready is None:
        return Run(run, layer=layer, trust=trust)
    if ready is None or run is not None:
        got = "neither" if run is None else "both"
        raise Mistyped(f"expected a run's folder or --encoder NAME, got {got}; give one of them")
    return encoder(ready, domain=domain, trust=trust)


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
    encoder = _filled(lambda: domain.build(config, shape)[0], weights, path)
    embeds_in(facts.get("precision", "32-true"), encoder)
    return config, shape, encoder, facts


def _filled(make: Callable[[], nn.Module], weights: dict[str, Tensor], path: Path) -> nn.Module:
    """The encoder that a function makes, with the weights, in their precision.

    Raises:
        ValueError: If the metadata are of a larger network than the weights.
    """
    # Before memory is taken for it.
    refuse_other(outlined(make, "the sizes in its metadata"), weights, str(path))
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    with torch.random.fork_rng(devices=[]):
        encoder = make().to(dtype)
    encoder.load_state_dict(weights)
    return encoder
