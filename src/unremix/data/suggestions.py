"""What the user may have meant by a name that is not known, and what to install."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one received, if any is near.

    Args:
        name: What was received.
        known: What would have been understood.

    Example:
        >>> did_you_mean("resnet81", ["resnet18", "small"])
        "; did you mean 'resnet18'?"
        >>> did_you_mean("vgg", ["resnet18", "small"])
        ''
    """
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


# The extra that brings a module; the others come with training and reports.
EXTRAS = {
    "faiss": "mine",
    "fsspec": "train",
    "huggingface_hub": "hub",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "pyarrow": "export",
    "ray": "ray",
    "s3fs": "s3",
    "sentencex": "text",
    "submitit": "slurm",
    "torch_geometric": "graph",
}


def how_to_install(module: str) -> str:
    """What to say where a module is missing.

    Args:
        module: Its name, as an import has it.

    Example:
        >>> how_to_install("torch_geometric.data")
        'expected torch_geometric, which is not installed; pip install "unremix[graph]"'
    """
    name = module.partition(".")[0]
    extra = EXTRAS.get(name, "train,report")
    return f'expected {name}, which is not installed; pip install "unremix[{extra}]"'


def require_pyarrow() -> Any:
    """The module pyarrow, with ``pyarrow.parquet``.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "expected pyarrow for a .parquet file, but it is not installed; pip install pyarrow, "
            "or use another kind of file"
        ) from error
    return pyarrow
