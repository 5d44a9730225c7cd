"""What is installed, what is missing, and the command that installs it; and what clusters see."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import unremix
from unremix.console.printing import one_line, printable
from unremix.console.quantities import counted
from unremix.console.suggestions import torchvision_problem, version_of
from unremix.core.engines import engine_report
from unremix.files.remote import cache_folder
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
OF_CLUSTERS = {
    "ray": ("--on ray", 'pip install "unremix[ray]"'),
    "pyarrow": ("embed --on ray", 'pip install "unremix[ray]"'),
    "submitit": ("--on slurm", 'pip install "unremix[slurm]"'),
    "fsspec": ("data behind URLs", 'pip install "unremix[train]"'),
    "aiohttp": ("https://", "pip install aiohttp"),
    "s3fs": ("s3://", 'pip install "unremix[s3]"'),
    "gcsfs": ("gs://", "pip install gcsfs"),
    "huggingface_hub": ("hf://", 'pip install "unremix[hub]"'),
}
SHARED = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cephfs", "ceph", "fuse.ceph", "glusterfs")
PATIENCE = 20  # seconds that a node or a command may take to answer


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
    device = device_kind("auto")
    if device == "cuda":
        device = f"cuda ({torch.cuda.device_count()} × {torch.cuda.get_device_name()})"
    threads = counted(torch.get_num_threads(), "thread")
    print(f"torch {torch.__version__}, device {device}, {threads}")
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
    if problem := torchvision_problem():
        print(f"\n{problem}")
    if known := holes({name: version_of(name) for name in SAFE}):
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


def show_cluster() -> None:
    """Print what each engine sees, and what is missing."""
    sections = {"Ray": _ray, "SLURM": _slurm, "torchrun": _torchrun, "Storage": _storage}
    for title, lines in sections.items():
        print(f"{title}:")
        for line in lines():
            print(printable(f"  {line}"))
        print()
    show_packages(OF_CLUSTERS)


def _ray() -> Iterator[str]:
    if version_of("ray") is None:
        yield 'not installed: pip install "unremix[ray]"'
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    connected = ray.is_initialized()
    try:
        if not connected:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address := os.environ.get("RAY_ADDRESS"):
            yield f"no cluster at RAY_ADDRESS {address}: {one_line(str(error))[:200]}"
        else:
            yield "no cluster runs here, and RAY_ADDRESS names none"
        yield "--on ray uses the cores of this machine; 'ray start --head' starts a cluster"
        return
    try:
        yield from _ray_nodes(ray)
    finally:
        if not connected:
            ray.shutdown()


def _ray_nodes(ray: Any) -> Iterator[str]:
    """A line per node: what it has, and whether it sees this folder and has our package."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(path: str) -> tuple[bool, str | None]:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return os.path.exists(path), version("unremix")
        except PackageNotFoundError:
            return os.path.exists(path), None

    marker = Path.cwd() / f".unremix-{secrets.token_hex(8)}.tmp"
    marker.touch()
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield counted(len(nodes), "node")
        for node in nodes:
            has = node["Resources"]
            words = f"{node['NodeManagerHostname']}: {has.get('CPU', 0):g} CPUs, "
            words += f"{has.get('GPU', 0):g} GPUs, {has.get('memory', 0) / 2**30:.0f} GiB"
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(look).options(num_cpus=0, scheduling_strategy=there)
            try:
                sees, version = ray.get(task.remote(str(marker)), timeout=PATIENCE)
            except ray.exceptions.RayError as error:
                yield f"{words}; does not answer ({one_line(str(error))[:120]})"
                continue
            blind = f"does not see {marker.parent}: work on storage that all nodes share"
            package = f"unremix {version}" if version else "unremix is not installed there"
            yield f"{words}; {f'sees {marker.parent}' if sees else blind}; {package}"
    finally:
        marker.unlink()


def _slurm() -> Iterator[str]:
    if version_of("submitit") is None:
        yield 'submitit is not installed: pip install "unremix[slurm]"'
    if shutil.which("sinfo") is None:
        yield "no SLURM here: sinfo is not found; log in to a node that submits jobs"
        return
    words = ["sinfo", "--noheader", "--format", "%P: %D nodes, %c CPUs and %G each, %a"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"sinfo does not answer ({one_line(str(error))[:200]})"
        return
    yield from answer.stdout.splitlines()


def _torchrun() -> Iterator[str]:
    if not torch.distributed.is_available():
        yield "this torch has no torch.distributed: install another build"
        return
    known = ("gloo", "nccl")
    found = [one for one in known if getattr(torch.distributed, f"is_{one}_available")()]
    backends = ", ".join(found) or "none"
    yield f"backends {backends}; {torch.cuda.device_count()} GPUs on this machine"


def _storage() -> Iterator[str]:
    kind = _file_system(Path.cwd())
    remark = ": several nodes need an --output that they share"
    remark = ", which nodes can share" if kind in SHARED else remark
    yield f"{Path.cwd()} is on {kind or 'an unknown file system'}{remark}"
    folder = cache_folder()
    above = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(above).free / 2**30
    yield f"cache for data behind URLs: {folder}, {free:.1f} GiB free (UNREMIX_CACHE)"


def _file_system(path: Path) -> str | None:
    """The kind of file system that a path is on; None if unknown."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    mounts = [line.split()[1:3] for line in lines]
    above = [(len(place), kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(above)[1] if above else None
