"""What a page or a figure holds, whatever the bytes it is written in."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

Elements = list[tuple[str, dict[str, str], str]]


def page_data(page: str) -> dict[str, Any]:
    """The data that a report's page carries for its scripts."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    data: dict[str, Any] = json.loads(text)
    return data


def page_charts(page: str) -> list[str]:
    """The numbers that the charts of a page offer for copying."""
    return [unescape(values) for values in re.findall(r'data-copy-value="([^"]*)"', page)]


def drawn(figure: Path) -> Elements:
    """The elements of an SVG file in order: tag, attributes, text."""
    elements = ElementTree.parse(figure).iter()
    return [(one.tag, dict(one.attrib), (one.text or "").strip()) for one in elements]


def same_figures(one: Path, other: Path) -> bool:
    """Whether two figures, SVG or PNG, show the same."""
    if one.suffix == ".svg":
        return drawn(one) == drawn(other)
    return np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(other)))
