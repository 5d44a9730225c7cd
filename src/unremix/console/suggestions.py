"""What the user may have meant by a name that is not known, and what to install."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from unremix.console.printing import one_line


class Mistyped(ValueError):
    """A command line that is not understood."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one received, if any is near.

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
    "rdkit": "molecules",
    "s3fs": "s3",
    "sentencex": "text",
    "submitit": "slurm",
    "tokenizers": "pretrained",
    "torch_geometric": "graph",
    "transformers": "pretrained",
}


def how_to_install(module: str) -> str:
    """The message for a missing module, given by its import name.

    Example:
        >>> how_to_install("torch_geometric.data")
        'expected torch_geometric, which is not installed; pip install "unremix[graph]"'
    """
    name = module.partition(".")[0]
    extra = EXTRAS.get(name, "train,report")
    return f'expected {name}, which is not installed; pip install "unremix[{extra}]"'


@contextmanager
def expecting(what: str, remedy: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Turn whatever another library raises inside into one sentence.

    Args:
        what: What should have come of it.
        remedy: What to do now.
        kind: The error raised instead.

    Example:
        >>> with expecting("a number", "write it in digits"):
        ...     int("three")
        Traceback (most recent call last):
        ValueError: expected a number, got ValueError: invalid literal ...; write it in digits
    """
    try:
        yield
    except Exception as error:
        raise kind(f"expected {what}, got {type(error).__name__}: {error}; {remedy}") from error


@contextmanager
def needed_for(purpose: str, otherwise: str | None = None) -> Iterator[None]:
    """Turn a failing import inside into one sentence that says what to install.

    Args:
        purpose: What the module is needed for.
        otherwise: What to do without it, if anything.

    Raises:
        ImportError: If the module is not installed.

    Example:
        >>> with needed_for("a .parquet file", "use .npz"):
        ...     import no_such_module
        Traceback (most recent call last):
        ImportError: expected no_such_module for a .parquet file, but it is not installed; ...
    """
    try:
        yield
    except ImportError as error:
        name = (error.name or "a package").partition(".")[0]
        package = f'"unremix[{EXTRAS[name]}]"' if name in EXTRAS else name
        rest = f", or {otherwise}" if otherwise else ""
        raise ImportError(
            f"expected {name} for {purpose}, but it is not installed; pip install {package}{rest}"
        ) from error


def version_of(package: str) -> str | None:
    """The installed version of a package, if it is installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torchvision_problem() -> str | None:
    """What is wrong with an installed torchvision that does not load, and what to install."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # a build for another torch fails in many ways while it registers
        if isinstance(error, ModuleNotFoundError) and error.name == "torchvision":
            return None  # it is not installed
        why = f"{type(error).__name__}: {one_line(str(error))[:120]}"
        return (
            f"torchvision {version_of('torchvision')} does not load beside torch "
            f"{version_of('torch')} ({why}), so nothing that imports it does: timm, transformers, "
            "lightning. Install the one that was built for this torch, from the index that torch "
            "came from: pip install --force-reinstall --no-deps --index-url INDEX torchvision"
        )
    return None


@contextmanager
def importing_torchvision() -> Iterator[None]:
    """Name a torchvision that does not load where an import inside fails because of it.

    Raises:
        ImportError: If that is why.
    """
    try:
        yield
    except Exception as error:
        problem = torchvision_problem()
        if problem is None:
            raise
        raise ImportError(problem) from error
