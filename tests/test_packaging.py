"""The extras of pyproject.toml: everything imported is declared, everything declared is used."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[1]
PACKAGE = {"PIL": "pillow", "faiss": "faiss-cpu", "sklearn": "scikit-learn", "yaml": "pyyaml"}
# timm is asked for by name on the command line; typing_extensions is for type checking only; the
# adapters serve libraries that their users have.
OPTIONAL = {
    *("datasets", "timm", "typing_extensions"),
    *("lightly", "open_clip", "pytorch_metric_learning", "sentence_transformers", "transformers"),
}
AT_RUN_TIME = {  # named in a string, or needed by another package
    "onnxruntime",
    "onnxscript",
    "pillow-heif",
    "sentencex",
    "tensorboard",
}


def _imported() -> set[str]:
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    foreign = found - sys.stdlib_module_names - {"unremix"}
    return {PACKAGE.get(name, name).lower() for name in foreign}


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    for name, packages in extras.items():
        if name not in ("all", "dev"):
            lines += packages
    return {re.match(r"[\w-]+", line).group().lower() for line in lines}  # type: ignore[union-attr]


def test_every_import_is_declared() -> None:
    assert _imported() - OPTIONAL <= _declared()


def test_every_declared_package_is_used() -> None:
    assert _declared() <= _imported() | AT_RUN_TIME
