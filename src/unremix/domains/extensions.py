"""Parts, recipes, encoders and kinds of data of a user's own, from Python files and modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from unremix.console.suggestions import did_you_mean, expecting


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
            _import_file(Path(name).resolve())
            found.append(str(Path(name).resolve()))
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"expected a module that can be imported, got {name!r} ({error}); a file ends in "
                ".py"
            ) from error
        found.append(name)
    return tuple(found)


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
        file = vars(one).get("__file__") if hasattr(one, "__dict__") else None
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return one
    return None
