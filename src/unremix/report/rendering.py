"""From a template, its scripts and its data to one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w-]+)\.js";$', re.MULTILINE)
TOGETHER = re.compile(r"(?<=\d) (?=[±%[])|(?<=[±τ]) |(?<=\d,) (?=[-+−]?[\d.]+\])")
EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def asset(folder: str, name: str) -> str:
    """The text of a file that stands beside this module."""
    return files("unremix.report").joinpath(folder).joinpath(name).read_text(encoding="utf-8")


@cache
def bundle(name: str) -> str:
    """A script and all that it imports as one.

    The modules are plain files that a browser can load as they are. A page in one file has no place
    to load them from: here each is a function that gives what it exports, after those it imports.
    """
    parts: dict[str, str] = {}

    def add(module: str) -> None:
        if module in parts:
            return
        source = asset("scripts", f"{module}.js")
        for _, needed in IMPORT.findall(source):
            add(needed)
        exported = ", ".join(found for _, found in EXPORT.findall(source))
        inner = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = modules.\2;", source))
        parts[module] = f"modules.{module} = (() => {{\n{inner}\nreturn {{ {exported} }};\n}})();\n"

    add(name)
    return "const modules = {};\n" + "".join(parts.values())


def unbroken(text: str) -> str:
    r"""A text in which a figure stays on one line with its unit, its error and its interval.

    Example:
        >>> unbroken("Better by 8.6 ± 7.5 points").split(" ")
        ['Better', 'by', '8.6\xa0±\xa07.5', 'points']
    """
    return TOGETHER.sub("\u00a0", text)


def numbers(array: NDArray[Any], kind: Any) -> str:
    """An array for the page: little-endian numbers of a kind, in base64."""
    ordered = np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(ordered.tobytes()).decode()


def as_json(data: Any) -> Markup:
    """Data to stand in a script element: nothing in them can end it, or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("unremix.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment


def fill(template: str, **context: Any) -> Markup:
    """A template of a page, or of a picture that is to stand on one, filled."""
    return Markup(_environment().get_template(template).render(**context))


def render(template: str, script: str, **context: Any) -> str:
    """A whole page.

    A policy in its head allows only its own script, by its hash, and no requests.
    """
    code = f"\n{bundle(script)}"
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    style = Markup(asset("styles", "page.css"))
    return fill(template, style=style, code=Markup(code), policy=policy, **context)
