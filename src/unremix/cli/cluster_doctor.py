"""What clusters see: Ray's and SLURM's nodes, shared storage, torchrun, object stores."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from unremix.cli.doctor import show_packages
from unremix.console.printing import one_line, printable
from unremix.console.quantities import counted
from unremix.console.suggestions import version_of
from unremix.files.remote import cache_folder

PACKAGES = {
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
SECONDS = 20  # that a node or a command may take to answer


def show_cluster() -> None:
    """Print what each engine sees, and what is missing."""
    sections = {"Ray": _ray, "SLURM": _slurm, "torchrun": _torchrun, "Storage": _storage}
    for title, lines in sections.items():
        print(f"{title}:")
        for line in lines():
            print(printable(f"  {line}"))
        print()
    show_packages(PACKAGES)


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
        address = os.environ.get("RAY_ADDRESS")
        if address:
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
                sees, version = ray.get(task.remote(str(marker)), timeout=SECONDS)
            except ray.exceptions.RayError as error:
                yield f"{words}; does not answer ({one_line(str(error))[:120]})"
                continue
            storage = f"sees {marker.parent}"
            if not sees:
                storage = f"does not see {marker.parent}: work on storage that all nodes share"
            package = f"unremix {version}" if version else "unremix is not installed there"
            yield f"{words}; {storage}; {package}"
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
        answer = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"sinfo does not answer ({one_line(str(error))[:200]})"
        return
    yield from answer.stdout.splitlines()


def _torchrun() -> Iterator[str]:
    if not torch.distributed.is_available():
        yield "this torch has no torch.distributed: install another build"
        return
    backends = {
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
    }
    found = ", ".join(name for name, there in backends.items() if there) or "none"
    yield f"backends {found}; {torch.cuda.device_count()} GPUs on this machine"


def _storage() -> Iterator[str]:
    kind = _file_system(Path.cwd())
    shared = kind in SHARED
    yield f"{Path.cwd()} is on {kind or 'an unknown file system'}" + (
        ", which nodes can share" if shared else ": several nodes need an --output that they share"
    )
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
