"""What is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

import unremix
from unremix.console.printing import printable
from unremix.console.quantities import counted
from unremix.console.suggestions import torchvision_problem, version_of
from unremix.core.engines import engine_report
from unremix.training.precision import cpu_speed, device_kind, fast_precision

# What each package is for, and the command that brings it.
PACKAGES = {
    "lightning": ("training", 'pip install "unremix[train]"'),
    "scikit-learn": ("the embedded digits", 'pip install "unremix[train]"'),
    "pillow": ("reading images", 'pip install "unremix[train]"'),
    "pillow-heif": ("reading HEIC pictures", "pip install pillow-heif"),
    "safetensors": ("saving encoders", 'pip install "unremix[train]"'),
    "tensorboard": ("--loggers [tensorboard]", 'pip install "unremix[train]"'),
    "wandb": ("--loggers [wandb]", "pip install wandb"),
    "jinja2": ("reports", 'pip install "unremix[report]"'),
    "matplotlib": ("figures", 'pip install "unremix[report]"'),
    "pyarrow": ("embed to .parquet", "pip install pyarrow"),
    "onnx": ("export to ONNX", 'pip install "unremix[export]"'),
    "onnxruntime": ("ONNX, export and load", 'pip install "unremix[export]"'),
    "faiss-cpu": ("mine --index ivf", 'pip install "unremix[mine]"'),
    "timm": ("--encoder timm:NAME", "pip install timm"),
    "transformers": ("--encoder sentence-transformers:NAME", "pip install transformers"),
    "torch_geometric": ("graphs", 'pip install "unremix[graph]"'),
    "rdkit": ("molecules from SMILES", 'pip install "unremix[molecules]"'),
}


# Versions below these have known holes: what somebody else's file can do there.
SAFE = {
    "torch": ("2.10", "weights in archives of torch can run code"),
    "pillow": ("10.3", "pictures can write past their memory"),
    "aiohttp": ("3.13.3", "servers can exhaust memory"),
    "jinja2": ("3.1.6", "templates can leave their sandbox"),
    "onnx": ("1.17", "models can name files outside of their folder"),
    "pyarrow": ("14.0.1", "parquet files can run code"),
    "timm": ("1.0.26", "names of models can reach pickles"),
    "ray": ("2.52", "web pages can submit jobs to a local cluster"),
}


def holes(packages: Mapping[str, str | None]) -> list[str]:
    """What is wrong with installed versions that have known holes.

    Example:
        >>> holes({"pillow": "9.5.0", "jinja2": "3.1.6", "onnx": None})
        ['pillow 9.5.0: pictures can write past their memory; install pillow>=10.3']
    """
    return [
        f"{name} {packages[name]}: {what}; install {name}>={safe}"
        for name, (safe, what) in SAFE.items()
        if (version := packages.get(name)) is not None and _numbers(version) < _numbers(safe)
    ]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]


def show_installation() -> None:
    """Print what there is and what is missing; needs torch alone."""
    print(f"unremix {unremix.__version__}, Python {platform.python_version()}")
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda ({torch.cuda.device_count()} × {torch.cuda.get_device_name()})"
    elif torch.backends.mps.is_available():
        device = "mps"
    print(
        f"torch {torch.__version__}, device {device}, {counted(torch.get_num_threads(), 'thread')}"
    )
    print(f"engine of the losses: {engine_report()}")
    speed = cpu_speed()
    print(
        f"one CPU thread: {speed.float32:,.0f} GFLOP/s in float32, {speed.bfloat16:,.0f} in "
        f"bfloat16; --precision auto is {fast_precision(device_kind('auto'))} here"
    )
    root = os.environ.get("UNREMIX_DATA")
    if root is None:
        print("UNREMIX_DATA is not set: data are found by their path alone")
    else:
        found = "found" if Path(root).is_dir() else "not found: set it to a folder that exists"
        print(printable(f"UNREMIX_DATA {root}: {found}"))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    print(f"{free:.1f} GiB free on this disk" + (" - little" if free < 1 else ""), end="\n\n")
    show_packages(PACKAGES)
    _show_encoders()
    problem = torchvision_problem()
    if problem is not None:
        print(f"\n{problem}")
    known = holes({name: version_of(name) for name in SAFE})
    if known:
        print("\nversions with known holes, which matter for files of others:")
        print(*known, sep="\n")


def _show_encoders() -> None:
    """Print a ready encoder of each kind of data that is here, or the command that brings one."""
    try:
        from unremix.domains import DOMAINS
    except ImportError:  # with torch alone
        return
    print("\nready encoders, for --encoder:")
    for domain in DOMAINS.values():
        if domain.at_hand is not None:
            name, brings = domain.at_hand()
            print(printable(f"{domain.unit}: {name}" + (f", missing: {brings}" if brings else "")))


def show_packages(packages: Mapping[str, tuple[str, str]]) -> None:
    """Print a table of packages: version, purpose and, if one is missing, how to install it."""
    rows = [("package", "version", "for", "if missing")]
    for package, (purpose, command) in packages.items():
        version = version_of(package)
        rows.append((package, version or "missing", purpose, "" if version else command))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
