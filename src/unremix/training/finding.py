"""Ready encoders by name: of a library, a callable, an exported file or a run's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from unremix.console.suggestions import Mistyped, did_you_mean
from unremix.domains import DOMAINS, find_domain
from unremix.domains.base import domain_of_encoder
from unremix.domains.extensions import file_of, whole_name
from unremix.domains.options import TrainConfig, is_code, make_config
from unremix.training.exported import load_exported
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
