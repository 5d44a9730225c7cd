"""``make size``, and the table of rooms in docs/architecture.md."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = '''"""Several
lines."""

from x import (  # a comment
    y,
)


class A:
    """Of a class."""

    text = """counted
    twice"""

    async def f(self) -> str:
        """Of a function."""
        # alone
        return """not a docstring"""
'''


@pytest.fixture(scope="module")
def size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size", ROOT / "benchmarks" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["size"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings(size: ModuleType) -> None:
    assert size.lines_of_code(SOURCE) == 8
    assert size.lines_of_code("") == 0


def test_files_are_counted_in_their_rooms(size: ModuleType, tmp_path: Path) -> None:
    for name in ("losses.py", "core/a.py", "core/engines/b.py", "domains/c.py", "domains/d/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\ny = 2\n")
    rooms = {"top": 2, "core": 4, "domains": 2, "domains/d": 2}
    assert size.count(tmp_path) == rooms
    assert size.count(tmp_path, files=True)["core/engines/b.py"] == 2


def test_the_page_is_updated(size: ModuleType) -> None:
    page = "| Room | Lines |\n|---|---:|\n| `core` | The loss | 1,234 |\n| `x/y` | Z | 7 |\n"
    assert size.stated(page) == {"core": 1234, "x/y": 7}
    new = size.updated(page, {"core": 999, "x/y": 1000})
    assert new == page.replace("1,234", "999").replace("7", "1,000")


def test_the_page_has_every_room_and_about_its_size(size: ModuleType) -> None:
    """To bring it up to date: ``python benchmarks/size.py --update docs/architecture.md``."""
    found, stated = size.count(), size.stated(PAGE)
    assert stated.keys() == found.keys()
    assert stated == {room: pytest.approx(lines, rel=0.05) for room, lines in found.items()}
