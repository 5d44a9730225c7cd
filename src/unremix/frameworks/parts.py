"""What parts say of themselves: summary, section and options."""

from __future__ import annotations

import re
from dataclasses import Field, fields, is_dataclass, make_dataclass
from functools import lru_cache
from inspect import cleandoc, get_annotations
from typing import Any, cast, get_type_hints


def options_type(part: Any) -> type | None:
    """The frozen dataclass of a part's options: its ``Options``, or the part itself."""
    itself: Any = part if is_dataclass(part) else None
    return cast(type | None, getattr(part, "Options", itself))


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
    return cast(str, getattr(part, "section", ""))


def summary_of(part: Any) -> str:
    """What a part is, in one line."""
    return cast(str, getattr(part, "summary", "") or (part.__doc__ or "").partition("\n")[0])


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


@lru_cache(maxsize=8)  # equal options are of one type as long as no part is added
def options_by_section(parts: tuple[tuple[str, Any], ...]) -> dict[str, type]:
    """The options of all parts, by section: dataclasses whose fields are None until given.

    Args:
        parts: Names and parts.

    Example:
        >>> from unremix.frameworks.mixing import IMix, UnMix
        >>> options_by_section((("imix", IMix), ("unmix", UnMix)))["mixture"](cutmix=0.25)
        MixtureOptions(alpha=None, cutmix=0.25)
    """
    found: dict[str, dict[str, list[tuple[str, str, Any, str]]]] = {}  # by section and option
    for name, part in parts:
        kind = options_type(part)
        hints, texts = (get_type_hints(kind), described(kind)) if kind else ({}, {})
        for option, its in option_fields(part).items():
            usual = its.metadata.get("unset", written(its.default))
            entries = found.setdefault(section_of(part), {}).setdefault(option, [])
            entries.append((name, usual, hints[option] | None, texts.get(option, "")))
    made = {}
    for section, options in found.items():
        lines = [f"Options in the section {section}; None leaves the recipe's value.", "", "Args:"]
        for option, entries in options.items():
            values: dict[str, str] = {}  # defaults, each with the first part that has it
            for name, usual, _, _ in entries:
                values.setdefault(usual, name)
            values.pop("None", None)
            shown = ", ".join(v if len(values) == 1 else f"{v} ({of})" for v, of in values.items())
            end = f" Default: {shown}." if shown else ""
            lines.append(f"    {option}: {entries[0][3]}{end}")
        made[section] = make_dataclass(
            f"{section.capitalize()}Options",
            [(option, entries[0][2], None) for option, entries in options.items()],
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
