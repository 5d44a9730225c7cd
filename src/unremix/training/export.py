"""A run's encoder for use elsewhere, with everything needed to prepare its inputs.

Every file carries its preprocessing as metadata; ``preprocess.json`` and ``README.md`` beside it
say the same to people and to other programs. :mod:`unremix.training.finding` reads the files.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors.torch import save
from torch import nn

from unremix import __version__
from unremix.console.templates import fill
from unremix.domains import DOMAINS, find_domain
from unremix.domains.base import CODE_START, TEXTS, to_texts
from unremix.files.atomic_files import read_text, write_bytes, write_text
from unremix.training.checkpoints import digest_of
from unremix.training.run import Run

Format = Literal["safetensors", "torchvision", "onnx"]
SUFFIX = {"safetensors": ".safetensors", "torchvision": ".torchvision.pt", "onnx": ".onnx"}
ENDINGS = {"safetensors": (".safetensors",), "torchvision": (".pt", ".pth"), "onnx": (".onnx",)}
README_START = "# An encoder exported by unremix"
TEMPLATE = Path(__file__).with_name("templates") / "encoder.md.jinja"


class Export(NamedTuple):
    """What was written."""

    path: Path  # the encoder
    beside: tuple[Path, ...]  # further files: preprocessing, a README and perhaps code
    note: str | None  # what to know about it, if anything


def export_facts(run: Run, encoder: nn.Module, shape: Any = None) -> dict[str, Any]:
    """What a file says about its encoder: how to build it, and how to prepare its inputs.

    Args:
        run: The run.
        encoder: Its encoder.
        shape: The encoder's shape; the run's by default.
    """
    config, domain = run.config, run.domain
    facts = {
        "made_by": f"unremix {__version__}",
        "version": __version__,
        "domain": config.domain,
        "layer": "backbone",
        "features": encoder.features,
        "precision": config.embeds_in,
    }
    if domain.exports is not None:
        return {**facts, **domain.exports.facts(run, encoder)}
    chosen = {name: getattr(config.own, name) for name in domain.architecture}
    return {**facts, "encoder": chosen, "shape": asdict(run.shape if shape is None else shape)}


def from_texts(texts: dict[str, str]) -> dict[str, Any]:
    """The inverse of :func:`to_texts`.

    Example:
        >>> from_texts(to_texts({"layer": "backbone", "size": 32}))
        {'layer': 'backbone', 'size': 32}
    """
    return {key: value if key in TEXTS else json.loads(value) for key, value in texts.items()}


def write_weights(facts: dict[str, Any], encoder: nn.Module, path: Path) -> None:
    """Write an encoder's weights as safetensors, with facts about it as metadata."""
    weights = {name: tensor.contiguous().cpu() for name, tensor in encoder.state_dict().items()}
    texts = to_texts(facts)
    texts |= {"sha256": digest_of(weights), "facts_sha256": digest_of(texts)}
    data = save(weights, metadata=texts)  # safetensors' save_file makes its own temporary file
    write_bytes(path, data)


def write_encoder(run: Run, encoder: nn.Module, kind: str = "trained") -> None:
    """Write an encoder as that of a run: as ``trained``, or which other one it is."""
    facts = export_facts(run, encoder) | ({} if kind == "trained" else {"kept": kind})
    write_weights(facts, encoder, run.path / "encoder.safetensors")
    run.trained = encoder


def export_encoder(
    run_folder: str, kind: Format, output: str | None = None, *, trust: bool = False
) -> Export:
    """Write a run's encoder, how to prepare its inputs, and a README with code to use it.

    Args:
        run_folder: The run.
        kind: ``safetensors`` (our parameter names), ``torchvision`` (a state dict of its ResNets,
            without the classifier) or ``onnx`` (uint8 images in, features out; checked against
            PyTorch with onnxruntime). Graphs and sentences can be written as safetensors only.
        output: The file; by default in the run's folder.
        trust: Whether code may run that the run's folder names.

    Returns:
        The files.

    Raises:
        ValueError: If this encoder cannot be written so, the file's name ends otherwise, or a
            package is missing.
    """
    if output is not None and Path(output).suffix not in ENDINGS[kind]:
        raise ValueError(
            f"expected a file that ends in {' or '.join(ENDINGS[kind])} for the format {kind}, "
            f"got {output!r}; rename it or choose another --format"
        )
    run = Run(run_folder, trust=trust)
    exports = run.domain.exports
    if kind != "safetensors" and (exports is None or kind not in exports.formats):
        able = [one.unit for one in DOMAINS.values() if one.exports and kind in one.exports.formats]
        raise ValueError(
            f"expected a run on {' or '.join(able)} for the format {kind}, got one on "
            f"{run.domain.unit}; export as safetensors, which unremix.load_exported reads"
        )
    encoder, shape = run.domain.reader(run)
    name = "encoder" if shape is run.shape else "encoder-expanded"  # not the run's own weights
    path = run.path / f"{name}{SUFFIX[kind]}" if output is None else Path(output)
    facts = export_facts(run, encoder, shape)
    code, note = None, None
    if exports is None or kind == "safetensors":
        write_weights(facts, encoder, path)
    else:
        said = exports.formats[kind](encoder, facts, path)
        if said.code is not None:
            code = _write_beside(path, f"{_stem(path)}_model.py", CODE_START, said.code)
        note = said.note and said.note.format(code=code and code.name)
    text, start = json.dumps(facts, indent=2) + "\n", '{\n  "made_by": "unremix '
    preprocess = _write_beside(path, "preprocess.json", start, text)
    readme = _write_beside(path, "README.md", README_START, _readme(facts, path, code))
    return Export(path, tuple(filter(None, (preprocess, readme, code))), note)


def _stem(path: Path) -> str:
    """The file's name up to its first dot, as a name that Python can import."""
    return re.sub(r"\W", "_", path.name.split(".")[0])


def _write_beside(path: Path, name: str, start: str, text: str) -> Path:
    """Write a text beside the encoder; a file of that name that is not ours is left alone."""
    target = path.parent / name
    if target.exists() and not read_text(target).startswith(start):
        target = path.parent / f"{_stem(path)}-{name}"
    write_text(target, text)
    return target


def _readme(facts: dict[str, Any], path: Path, code: Path | None) -> str:
    """The README of an encoder.

    Other files with the same stem beside it are covered as well. ``code`` builds the network where
    torchvision's class does not fit.
    """
    domain = find_domain(facts["domain"])
    stem = path.name.split(".")[0]
    earlier = path.parent / f"{stem}_model.py"
    code = earlier if code is None and earlier.exists() else code
    files = {end: stem + end for end in SUFFIX.values() if (path.parent / (stem + end)).exists()}
    files[path.name[len(stem) :]] = path.name
    loadable = path.name if path.suffix in (".safetensors", ".onnx") else None
    further = domain.exports and fill(domain.exports.readme, facts=facts, files=files, code=code)
    return fill(
        TEMPLATE,
        start=README_START,
        facts=facts,
        items=domain.items,
        loadable=loadable or files.get(".safetensors") or files.get(".onnx"),
        further=further,
    )
