"""Texts whose gaps are filled: files of :mod:`jinja2`, which comes with torch."""

from __future__ import annotations

from pathlib import Path


def fill(template: Path, **values: object) -> str:
    """The text of a template with values in its gaps, without escaping.

    Raises:
        jinja2.UndefinedError: If the template asks for a value that is not there.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
