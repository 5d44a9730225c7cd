"""What parts say of themselves: summary, section and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass, make_dataclass
from inspect import cleandoc, get_annotations
from typing import Any, get_type_hints


def options_type(part: Any) -> type | None:
    """The frozen dataclass of a part's options: its ``Options``, or the part itself."""
    itself: Any = part if is_dataclass(part) else None
    options: type | None = getattr(part, "Options", itself)
    return options


def option_fields(part: Any) -> dict[str, Field[Any]]:
    """The options of a part, by name; those it shares with others come last."""
    kind = options_type(part)
    if kind is None:
        return {}
    own = get_annotations(kind)
    ordered = sorted(fields(kind), key=lambda option: option.name not in own)
    return {option.name: option for option in ordered}


def section_of(part: Any) -> str:
    """The section of a part's options on the command line; empty where it has none."""
    section: str = getattr(part, "section", "")
    return section


def summary_of(part: Any) -> str:
    """What a part is, in one line."""
    said: str = getattr(part, "summary", "") or (part.__doc__ or "").partition("\n")[0]
    return said


def described(documented: Any) -> dict[str, str]:
    """The text of each argument in a docstring; of a class, those of its bases included.

    Args:
        documented: A class or a function.

    Example:
        >>> from unremix.frameworks.moco import MoCoOptions
        >>> described(MoCoOptions)["queue"]
        'Old keys kept as negatives.'
    """
    texts: dict[str, str] = {}
    for each in getattr(documented, "__mro__", (documented,)):
        # Since Python 3.13 docstrings come without their indentation.
        listed = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", cleandoc(each.__doc__ or ""), re.M | re.S)
        entries = re.findall(
            r"^    (\w+): (.*?)(?=^    \w|\Z)", listed[1] if listed else "", re.M | re.S
        )
        texts = {name: " ".join(text.split()) for name, text in entries} | texts
    return texts


def merged(parts: Mapping[Any, Mapping[str, Any]]) -> dict[str, type]:
    """The options of all parts, by section: dataclasses whose fields are None until given.

    Args:
        parts: Parts by kind and name.

    Example:
        >>> from unremix.frameworks.mixing import IMix, UnMix
        >>> merged({"mixing": {"imix": IMix, "unmix": UnMix}})["mixture"](cutmix=0.25)
        MixtureOptions(alpha=None, cutmix=0.25)
    """
    types: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[str, str]] = {}
    defaults: dict[str, dict[str, dict[str, str]]] = {}
    for known in parts.values():
        for name, part in known.items():
            kind, section = options_type(part), section_of(part)
            if kind is None:
                continue
            hints, told = get_type_hints(kind), described(kind)
            for option, its in option_fields(part).items():
                types.setdefault(section, {}).setdefault(option, hints[option] | None)
                texts.setdefault(section, {}).setdefault(option, told.get(option, ""))
                shown = its.metadata.get("unset", written(its.default))
                of_parts = defaults.setdefault(section, {}).setdefault(option, {})
                of_parts.setdefault(shown, name)
    made = {}
    for section, options in types.items():
        lines = [f"Options in the section {section}; None leaves the recipe's value.", "", "Args:"]
        for option in options:
            values = {
                value: of for value, of in defaults[section][option].items() if value != "None"
            }
            usual = ", ".join(v if len(values) == 1 else f"{v} ({of})" for v, of in values.items())
            end = f" Default: {usual}." if usual else ""
            lines.append(f"    {option}: {texts[section][option]}{end}")
        made[section] = make_dataclass(
            f"{section.capitalize()}Options",
            [(option, hint, None) for option, hint in options.items()],
            frozen=True,
            namespace={"__doc__": "\n    ".join(lines)},
        )
    return made


def written(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return f'"[{", ".join(map(written, value))}]"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
