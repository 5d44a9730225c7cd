"""Parts, recipes, encoders and kinds of data of a user's own, from Python files and modules."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from unremix.console.suggestions import did_you_mean, expecting
from unremix.files.bounds import sound
from unremix.files.seals import read_sealed, write_sealed
from unremix.user_cache import user_cache


def load_extensions(names: Iterable[str]) -> tuple[str, ...]:
    """Import each once; a file that is already imported as a module is not imported again.

    Args:
        names: Modules (``package.module``) or files (``method.py``).

    Returns:
        The same names, of files with the whole path, so that a run finds them from anywhere.

    Raises:
        ValueError: If there is no such file or module.
    """
    found = []
    for name in names:
        if name.endswith(".py"):
            name = str(Path(name).resolve())
            _import_file(Path(name))
        else:
            what, remedy = "a module that can be imported", "a file ends in .py"
            with sound(what, repr(name), remedy, ModuleNotFoundError):
                import_module(name)
        found.append(name)
    return tuple(found)


KNOWN = "trusted.json"  # in the user's cache: SHA-256 of trusted code, by what named it


def warn_of_changed_code(names: Iterable[str], where: str) -> None:
    """Say which code that a file or folder names has changed since it was last trusted.

    Args:
        names: Files, modules and callables; their files' SHA-256 are remembered.
        where: The file or folder.
    """
    file = user_cache() / KNOWN
    try:
        known = json.loads(read_sealed(file) or b"{}")
    except (ValueError, RuntimeError):
        known = {}
    found = {}
    for name in names:
        code = file_of(name.partition(":")[0])
        if code is not None:
            key = f"{Path(where).resolve()} {name}"
            found[key] = hashlib.sha256(code.read_bytes()).hexdigest()
            if known.get(key, found[key]) != found[key]:
                warnings.warn(
                    f"{name}, which {where} names, has changed since you last trusted it: SHA-256 "
                    f"{found[key]}, before {known[key]}",
                    stacklevel=4,
                )
    if known | found != known:
        text = json.dumps(known | found, indent=1)
        with suppress(OSError):
            write_sealed(file, lambda path: path.write_text(text))


def file_of(name: str) -> Path | None:
    """The file of a module, which is not imported to find it; None if there is none."""
    if name.endswith(".py"):
        return Path(name) if Path(name).is_file() else None
    top, *inner = name.split(".")
    with suppress(ImportError, ValueError):
        spec = find_spec(top)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin)
            if inner:
                place = place.parent.joinpath(*inner)
            choices = (place, place.with_suffix(".py"), place / "__init__.py")
            return next((one for one in choices if one.is_file()), None)
    return None


def whole_name(name: str) -> str:
    """A callable's name with the whole path of its file, so that a run finds it from anywhere.

    Example:
        >>> whole_name("package.module:callable")
        'package.module:callable'
    """
    module, _, attribute = name.partition(":")
    return f"{Path(module).resolve()}:{attribute}" if module.endswith(".py") else name


def find_callable(name: str) -> Callable[..., Any]:
    """The callable that ``package.module:callable`` or ``file.py:callable`` names.

    Raises:
        ValueError: If there is none.
    """
    source, _, attribute = name.partition(":")
    remedy = "check the spelling, and that its folder is on PYTHONPATH"
    if not source.endswith(".py") and Path(f"{source}.py").is_file():
        remedy = f"for the file in this folder, name {source}.py:{attribute}"
    with expecting(f"{source!r} of {name!r} to be importable", remedy):
        if source.endswith(".py"):
            module = _import_file(Path(source).resolve())
        else:
            module = import_module(source)
    found = getattr(module, attribute, None)
    if not callable(found):
        hint = did_you_mean(attribute, vars(module))
        raise ValueError(f"expected a callable {attribute!r} in {source!r}, found none{hint}")
    return found  # type: ignore[no-any-return]


def module_of(name: str, available: Mapping[str, Any]) -> nn.Module:
    """The module that a callable makes.

    Args:
        name: ``package.module:callable`` or ``file.py:callable``.
        available: What it is called with, by keyword: those that are names of its parameters.

    Raises:
        ValueError: If there is none, it needs other arguments, or it makes something else.
    """
    make = find_callable(name)
    try:
        parameters = dict(inspect.signature(make).parameters)
    except ValueError:  # some callables written in C have no signature
        parameters = {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {
        key: value
        for key, value in available.items()
        if key in parameters and parameters[key].kind in named
    }
    remedy = f"it may take {', '.join(available)}, and any other parameter needs a default"
    with expecting(f"{name!r} to make a module when called with {wanted}", remedy):
        model = make(**wanted)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"expected {name!r} to make a torch.nn.Module, got a {type(model).__name__}; "
            "name a function that returns one, or its class"
        )
    return model


def _import_file(path: Path) -> ModuleType:
    """The module of a file, which the name of the file imports as well, unless that is taken."""
    if not path.is_file():
        raise ValueError(f"expected a Python file to import, found none at {path}")
    imported = _imported(path)
    if imported is not None:
        return imported
    # Under its path as name, so that what it defines finds its module again.
    spec = spec_from_file_location(str(path), path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[str(path)] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[str(path)]
        raise
    if path.stem.isidentifier() and path.stem not in sys.modules and find_spec(path.stem) is None:
        sys.modules[path.stem] = module
    return module


def _imported(path: Path) -> ModuleType | None:
    for one in list(sys.modules.values()):
        file = getattr(one, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return one
    return None
