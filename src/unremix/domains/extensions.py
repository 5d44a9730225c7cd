"""Parts, recipes and kinds of data of a user's own, from Python files and modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


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
        path = Path(name).resolve()
        if not name.endswith(".py"):
            try:
                import_module(name)
            except ModuleNotFoundError as error:
                raise ValueError(
                    f"expected a module that can be imported, got {name!r} ({error}); a file "
                    "ends in .py"
                ) from error
            found.append(name)
            continue
        if not path.is_file():
            raise ValueError(f"expected a Python file to import, found none at {path}")
        found.append(str(path))
        if not _is_imported(path):
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
    return tuple(found)


def _is_imported(path: Path) -> bool:
    files = (
        vars(one).get("__file__") for one in list(sys.modules.values()) if hasattr(one, "__dict__")
    )
    alike = (Path(file) for file in files if isinstance(file, str) and file.endswith(path.name))
    return any(file.resolve() == path for file in alike)
