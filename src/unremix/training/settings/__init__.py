"""Settings that ship with the package: the paper's scale, one file of options per data set."""

from __future__ import annotations

import re
from pathlib import Path

from unremix.console.suggestions import did_you_mean

FOLDER = Path(__file__).parent


def shipped() -> dict[str, str]:
    """Names of the settings, each with the first line of its file.

    Example:
        >>> list(shipped())
        ['cifar10', 'cifar100', 'imagenet', 'tiny-imagenet']
    """
    files = sorted(FOLDER.glob("*.yaml"))
    return {file.stem: file.read_text().splitlines()[0].removeprefix("# ") for file in files}


def find_config(name: str) -> str:
    """The file that ``--config`` means: one that exists, or a setting's by its bare name.

    Args:
        name: A path, a setting's name, or options as YAML, which are returned as they are.

    Raises:
        ValueError: For a bare name that is neither a file nor a setting; it names the settings.

    Example:
        >>> Path(find_config("cifar10")).name
        'cifar10.yaml'
    """
    if Path(name).is_file() or not re.fullmatch(r"[\w-]+", name):
        return name
    known = shipped()
    if name in known:
        return str(FOLDER / f"{name}.yaml")
    raise ValueError(
        f"expected a file of options or one of the settings {', '.join(known)}, got "
        f"{name!r}{did_you_mean(name, known)}"
    )
